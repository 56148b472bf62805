"""The memory of a training rank: its sections' events in the order of the schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from rapid_des.frontend.groups import byte_count
from rapid_des.frontend.job import Job
from rapid_des.frontend.memory.events import SectionMemory, section_memory, size_of
from rapid_des.frontend.memory.standing import fragments, is_replicated, standing, updating
from rapid_des.frontend.memory.tensors import (
    JobMemory,
    Moment,
    StageMemory,
    Tensor,
    by_category,
    merged,
)
from rapid_des.frontend.parts import Section, section_parameters, sections, stage_parameters
from rapid_des.frontend.schedules.plan import Item


def training_memory(job: Job) -> JobMemory:
    """Return the memory of each stage's ranks in a training step."""
    by_section = section_memory(job)
    return JobMemory(tuple(_stage(job, stage, by_section) for stage in range(job.stages)))


def _stage(job: Job, stage: int, by_section: Mapping[Section, SectionMemory]) -> StageMemory:
    parameters = stage_parameters(job, stage)
    copies = 2 * max(memory.away for memory in by_section.values())
    away = Tensor("activations to and from the host", "communication", copies, 2)
    whole = (*standing(job, stage, parameters), away)
    walk = _Walk(job, stage, by_section, Counter(by_category(whole)))
    for item in job.plan.orders[stage]:
        if item.phase != "wait":
            walk.run(item)
    last = tuple(updating(job, parameters))
    moving = max(walk.peak, last, key=_bytes)
    tensors = merged((*whole, *moving, *fragments(job, moving)))
    end = Moment("optimizer", by_category((*whole, *last, *fragments(job, last))), by_category(whole))
    total, peak = parameters.total(), by_category(tensors)
    return StageMemory(stage, total, peak, tensors, walk.activations, (*walk.timeline, end))


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.size for tensor in tensors)


def _sum(standing_sizes: Mapping[str, int], moving: Mapping[str, int]) -> dict[str, int]:
    return {name: size + moving.get(name, 0) for name, size in standing_sizes.items()}


@dataclass
class _Walk:
    """What comes and goes on one stage while it runs its items in order."""

    job: Job
    stage: int
    by_section: Mapping[Section, SectionMemory]
    standing: Mapping[str, int]
    """Bytes of what stands beside, by category."""
    peak: tuple[Tensor, ...] = ()
    """At the fullest moment so far."""
    activations: int = 0
    """The most that waited for its backward so far, logits left out."""
    timeline: list[Moment] = field(default_factory=list)
    _held: Counter[tuple[Section, bool]] = field(default_factory=Counter)
    """Sections between their forward and backward, or between its halves (true)."""
    _lent: Counter[Section] = field(default_factory=Counter)
    """Sections before their backward, whose layers were run again with those behind them."""
    _base: int = 0
    """Bytes of what they keep."""
    _activations: int = 0
    """The same without logits."""
    _outputs: int = 0
    """Micro-batches, by chunk, in flight."""
    _passed: int = 0
    """Bytes of gradients of the pass that runs."""
    _most: int = -1
    _known: dict[tuple[object, ...], tuple[tuple[Tensor, ...], dict[str, int], dict[str, int]]] = field(
        default_factory=dict
    )
    """By what is held when an item begins: its fullest moment, and what it leaves. Items of a settled
    pipeline begin alike."""

    @cached_property
    def _chunks(self) -> tuple[tuple[Section, ...], ...]:
        parts = self.job.placement[self.stage]
        return tuple(tuple(section for section, _ in sections(self.job, part)) for part in parts)

    @cached_property
    def _sizes(self) -> Mapping[tuple[Section, bool], tuple[int, int]]:
        """Bytes of activations and logits that a section keeps, until its backward or between its halves."""
        return {
            (section, deferred): (size_of(kept, "activations"), size_of(kept, "logits"))
            for section in self.by_section
            for deferred in (False, True)
            for kept in [self._kept(section, deferred=deferred)]
        }

    @cached_property
    def _gradients(self) -> Mapping[Section, int]:
        """Bytes of a section's gradients that stand until the pass ends, where the framework keeps them."""
        if self.job.spec.memory.gradient_copies == "none" or is_replicated(self.job):
            return Counter()
        dtype = self.job.spec.precision.activations
        return {section: byte_count(n.total(), dtype) for section, n in section_parameters(self.job).items()}

    @cached_property
    def _output(self) -> int:
        """Bytes that each micro-batch in flight keeps of the stage's output."""
        job = self.job
        return job.spec.memory.held_outputs * job.training_shard.boundary_bytes * (job.stages > 1)

    def run(self, item: Item) -> None:
        """Run one item, section by section."""
        forward = item.phase == "forward"
        chunk, fullest, most = self._chunks[item.chunk], tuple[Tensor, ...](), -1
        self._outputs += forward
        self._passed = 0
        held = item.phase, item.chunk, self._outputs, *self._held.values(), None, *self._lent.values()
        known = self._known.get(held)
        order = chunk if forward else chunk[::-1]
        for place, section in enumerate(order):
            here = self.by_section[section]
            if not forward:
                self._hold(section, -1, deferred=item.phase == "weight_gradient")
                self._lend([section] if item.phase != "weight_gradient" else [], -1)
                self._passed += self._gradients[section] * (item.phase != "input_gradient")
            size = self._base + self._outputs * self._output + self._passed + here.highest[item.phase]
            if size > most:
                most = size
                fullest = tuple(self._tensors(here.fullest[item.phase])) if known is None else known[0]
            if item.phase in ("forward", "input_gradient"):
                self._hold(section, 1, deferred=not forward)
            if item.phase in ("backward", "input_gradient"):
                self._lend(order[place + 1 : place + 1 + here.others], 1)
        self._outputs -= item.phase in ("backward", "input_gradient")
        if known is None:
            known = self._known[held] = fullest, *self._categories(fullest)
        fullest, sizes, left = known
        if most > self._most:
            self._most, self.peak = most, fullest
        self.timeline.append(Moment(item.phase, sizes, left, item.micro_batch, item.chunk))

    def _categories(self, fullest: Sequence[Tensor]) -> tuple[dict[str, int], dict[str, int]]:
        """Return bytes by category at the fullest moment of an item that has just run, and now."""
        moving = by_category((*fullest, *fragments(self.job, fullest)))
        return _sum(self.standing, moving), _sum(self.standing, by_category(self._tensors(())))

    def _kept(self, section: Section, *, deferred: bool) -> tuple[Tensor, ...]:
        memory = self.by_section[section]
        return memory.deferred if deferred else memory.kept

    def _hold(self, section: Section, count: int, *, deferred: bool) -> None:
        self._held[section, deferred] += count
        activations, logits = self._sizes[section, deferred]
        self._base += count * (activations + logits)
        self._activations += count * activations
        self.activations = max(self.activations, self._activations + self._outputs * self._output)

    def _lend(self, sections: Sequence[Section], count: int) -> None:
        """Hold, or give back, what a layer behind these has made again for them."""
        for section in sections:
            self._lent[section] += count * bool(self.by_section[section].remade)
            self._base += count * sum(tensor.size for tensor in self.by_section[section].remade)

    def _tensors(self, here: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield what comes and goes while a section with `here` runs."""
        yield from here
        for (section, deferred), count in self._held.items():
            for tensor in self._kept(section, deferred=deferred) if count else ():
                yield tensor._replace(size=count * tensor.size, number=count)
        for section, count in self._lent.items():
            for tensor in self.by_section[section].remade if count else ():
                yield tensor._replace(category="temporary", size=count * tensor.size, number=count)
        yield Tensor("stage outputs", "activations", self._outputs * self._output, self._outputs)
        yield Tensor("gradients of the pass", "temporary", self._passed)
