"""The memory of a training rank: what stays through the whole step, and the events of its schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

from msgspec import Struct, field

from rapid_des.device.operators import width
from rapid_des.frontend.groups import EXPERT_AXES, GROUPS, PARTS, State, byte_count
from rapid_des.frontend.job import Job
from rapid_des.frontend.memory.events import (
    Instant,
    JobMemory,
    MemoryOfItem,
    Moment,
    SectionMemory,
    StageMemory,
    Tensor,
    Timeline,
    by_category,
    fragments,
    merged,
    section_memory,
    size_of,
)
from rapid_des.frontend.optimizers import bucket_parameters, gathered_as, states, temporaries
from rapid_des.frontend.parts import (
    EMBEDDING,
    HEAD,
    ModelSection,
    section_parameters,
    sections,
    stage_parameters,
    stage_sections,
)
from rapid_des.frontend.schedules.schedule import Item
from rapid_des.frontend.template import FROZEN, Domain
from rapid_des.frontend.unit_copies import widens_parameters
from rapid_des.units import ceil_divide


def training_memory(job: Job) -> JobMemory:
    """Return the memory of each stage's ranks in a training step."""
    by_section = section_memory(job)
    return JobMemory(tuple(_stage(job, stage, by_section) for stage in range(job.stages)))


def _stage(job: Job, stage: int, by_section: Mapping[ModelSection, SectionMemory]) -> StageMemory:
    parameters = stage_parameters(job, stage)
    copies = 2 * max(memory.away for memory in by_section.values())
    away = Tensor("activations to and from the host", "communication", copies, 2)
    whole = (*standing(job, stage, parameters), away)
    walk = _MemoryWalk(job, stage, by_section, Counter(by_category(whole)))
    for item in job.stage_orders.orders[stage]:
        if item.phase != "wait":
            walk.run(item)
    last = (
        *updating(job, parameters),
        *(Tensor(name, "temporary", size) for name, size in temporaries(job, stage, parameters)),
    )
    moving = max(walk.peak, last, key=_bytes)
    tensors = merged((*whole, *moving, *fragments(job, moving)))
    end = Moment("optimizer", by_category((*whole, *last, *fragments(job, last))), by_category(whole))
    total, peak = parameters.total(), by_category(tensors)
    timeline = Timeline(tuple(walk.items), tuple(walk.passed), end, walk.sizes)
    return StageMemory(stage, total, peak, tensors, walk.activations, timeline)


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.size for tensor in tensors)


def _sum(standing_sizes: Mapping[str, int], moving: Mapping[str, int]) -> dict[str, int]:
    return {name: size + moving.get(name, 0) for name, size in standing_sizes.items()}


_State: TypeAlias = tuple[dict[tuple[ModelSection, bool], int], dict[ModelSection, int], int, int, int]
"""Numbers of sections held and lent (see `_MemoryWalk`), their bytes with and without logits, outputs."""


class _MemoryWalk(Struct, dict=True):
    """The activations of one stage while it runs its items in order."""

    job: Job
    stage: int
    by_section: Mapping[ModelSection, SectionMemory]
    standing: Mapping[str, int]
    """Bytes that stay for the whole step, by category."""
    activations: int = 0
    """The largest sum of kept activations so far, without logits, in bytes."""
    items: list[Item] = field(default_factory=list)
    passed: list[MemoryOfItem] = field(default_factory=list)
    """The states that each item left."""
    _held: dict[tuple[ModelSection, bool], int] = field(default_factory=dict)
    """Numbers of sections between forward and backward, or (True) between halves of a backward."""
    _lent: dict[ModelSection, int] = field(default_factory=dict)
    """Numbers of sections that were recomputed with later layers and wait for their backward."""
    _base: int = 0
    """Bytes that held and lent sections keep."""
    _activations: int = 0
    """Bytes that they keep without logits."""
    _outputs: int = 0
    """Number of micro-batches in flight, over all chunks."""
    _passed: int = 0
    """Bytes of gradients of the current pass."""
    _most: int = -1
    _fullest: Instant | None = None
    """The peak so far, with its bytes."""
    _known: dict[tuple[int, str, int], MemoryOfItem] = field(default_factory=dict)
    """Results by state at the start of an item: items of a settled pipeline start in few states."""
    _states: list[_State] = field(default_factory=list)
    _numbers: dict[tuple[int, ...], int] = field(default_factory=dict)
    _state: int = 0

    def __post_init__(self) -> None:
        self._held = {(section, half): 0 for section in self.by_section for half in (False, True)}
        self._lent = dict.fromkeys(self.by_section, 0)
        self._leaves()

    @cached_property
    def _chunks(self) -> tuple[tuple[ModelSection, ...], ...]:
        parts = self.job.placement[self.stage]
        return tuple(tuple(section for section, _ in sections(self.job, part)) for part in parts)

    @cached_property
    def _sizes(self) -> Mapping[tuple[ModelSection, bool], tuple[int, int]]:
        """Bytes of activations and logits that a section keeps, until its backward or between its halves."""
        return {
            (section, deferred): (size_of(saved, "activations"), size_of(saved, "logits"))
            for section in self.by_section
            for deferred in (False, True)
            for saved in [self._saved(section, deferred=deferred)]
        }

    @cached_property
    def _gradients(self) -> Mapping[ModelSection, int]:
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
        """Run one item; an item that starts in a known state reuses its result."""
        begins = self._state, item.phase, item.chunk
        known = self._known.get(begins)
        if known is None:
            known = self._known[begins] = self._pass(item)
        self._state = known.state
        self.items.append(item)
        self.passed.append(known)

    def _pass(self, item: Item) -> MemoryOfItem:
        """Run one item, section by section."""
        forward = item.phase == "forward"
        chunk, most, fullest = self._chunks[item.chunk], -1, None
        self._held, self._lent, self._base, self._activations, self._outputs = self._states[self._state]
        self._held, self._lent, self._passed = {**self._held}, {**self._lent}, 0
        self._outputs += forward
        order = chunk if forward else chunk[::-1]
        for place, section in enumerate(order):
            here = self.by_section[section]
            if not forward:
                self._hold(section, -1, deferred=item.phase == "weight_gradient")
                self._lend([section] if item.phase != "weight_gradient" else [], -1)
                self._passed += self._gradients[section] * (item.phase != "input_gradient")
            size = self._base + self._outputs * self._output + self._passed + here.highest[item.phase]
            if size > most:
                most, fullest = size, self._instant(here.fullest[item.phase])
            if item.phase in ("forward", "input_gradient"):
                self._hold(section, 1, deferred=not forward)
            if item.phase in ("backward", "input_gradient"):
                self._lend(order[place + 1 : place + 1 + here.others], 1)
        if most > self._most:
            self._most, self._fullest = most, fullest
        self._outputs -= item.phase in ("backward", "input_gradient")
        return MemoryOfItem(fullest, self._instant(()), self._leaves())

    @property
    def peak(self) -> tuple[Tensor, ...]:
        """The tensors that come and go, at the peak so far."""
        return () if self._fullest is None else tuple(self._tensors(self._fullest))

    def sizes(self, passed: MemoryOfItem) -> tuple[dict[str, int], dict[str, int]]:
        """Return the bytes by category at the peak of an item, and after it."""
        fullest = () if passed.fullest is None else tuple(self._tensors(passed.fullest))
        moving = by_category((*fullest, *fragments(self.job, fullest)))
        left = by_category(self._tensors(passed.left))
        return _sum(self.standing, moving), _sum(self.standing, left)

    def _leaves(self) -> int:
        """Return the number of the current state."""
        state = self._held, self._lent, self._base, self._activations, self._outputs
        number = self._numbers.setdefault(
            (*self._held.values(), *self._lent.values(), self._outputs), len(self._states)
        )
        if number == len(self._states):
            self._states.append(state)
        return number

    def _saved(self, section: ModelSection, *, deferred: bool) -> tuple[Tensor, ...]:
        memory = self.by_section[section]
        return memory.deferred if deferred else memory.saved

    def _hold(self, section: ModelSection, count: int, *, deferred: bool) -> None:
        self._held[section, deferred] += count
        activations, logits = self._sizes[section, deferred]
        self._base += count * (activations + logits)
        self._activations += count * activations
        self.activations = max(self.activations, self._activations + self._outputs * self._output)

    def _lend(self, sections: Sequence[ModelSection], count: int) -> None:
        """Hold, or release, what a layer behind these recomputed for them."""
        for section in sections:
            self._lent[section] += count * bool(self.by_section[section].remade)
            self._base += count * sum(tensor.size for tensor in self.by_section[section].remade)

    def _instant(self, here: Sequence[Tensor]) -> Instant:
        return Instant({**self._held}, {**self._lent}, self._passed, here, self._outputs)

    def _tensors(self, instant: Instant) -> Iterator[Tensor]:
        """Yield the tensors that come and go at an instant."""
        yield from instant.here
        for (section, deferred), count in instant.held.items():
            for name, category, size, _ in self._saved(section, deferred=deferred) if count else ():
                yield Tensor(name, category, count * size, count)
        for section, count in instant.lent.items():
            for name, _, size, _ in self.by_section[section].remade if count else ():
                yield Tensor(name, "temporary", count * size, count)
        yield Tensor("stage outputs", "activations", instant.outputs * self._output, instant.outputs)
        yield Tensor("gradients of the pass", "temporary", instant.passed)


_OF = {"dense": "", "expert": "experts' ", "frozen": "frozen ", "frozen_expert": "frozen experts' "}


Sizes = Mapping[ModelSection, Counter[Domain]]
"""Parameters of each section, as `section_parameters` counts them."""


def standing(
    job: Job, stage: int, parameters: Mapping[Domain, int], known: Sizes | None = None
) -> Iterator[Tensor]:
    """Yield what stays for the whole step, on a rank of this many parameters by domain."""
    sizes = section_parameters(job) if known is None else known
    for domain, elements in parameters.items():
        if domain in FROZEN:
            yield from _frozen(job, stage, domain, elements, sizes)
        else:
            yield from _model(job, stage, domain, elements)
    yield from _unsharded(job, stage, parameters, sizes)
    yield from _buffers(job, stage, parameters)
    yield from framework(job)


def _model(job: Job, stage: int, domain: Domain, elements: int) -> Iterator[Tensor]:
    precision, of = job.spec.precision, _OF[domain]

    def held(state: State) -> int:
        return job.shardings[domain].held(state, elements)

    yield Tensor(f"{of}weights", "weights", byte_count(held("parameters"), precision.activations))
    yield Tensor(f"{of}gradients", "gradients", byte_count(held("gradients"), precision.gradients))
    if job.training.offload_optimizer:
        return
    if precision.own_weights is not None:
        bytes_held = byte_count(held("optimizer"), precision.own_weights)
        yield Tensor(f"{of}master weights", "optimizer", bytes_held)
    for name, size in states(job, stage, domain, elements):
        yield Tensor(f"{of}{name}", "optimizer", size)


def _frozen(job: Job, stage: int, domain: Domain, elements: int, sizes: Sizes) -> Iterator[Tensor]:
    """Yield weights that are not trained: tables, head and the layers' matrices in their own format."""
    counts = stage_sections(job, stage)
    ends = sum(sizes[section][domain] * counts[section] for section in (EMBEDDING, HEAD))
    adapters, wide = job.training.adapters, job.spec.precision.activations
    stored = wide if adapters is None or adapters.weights is None else adapters.weights
    inner, sharding = elements - ends, job.shardings[domain]
    parts = (sharding.held("parameters", ends), wide), (sharding.held("parameters", inner), stored)
    size = sum(byte_count(count, dtype) for count, dtype in parts)
    yield Tensor(f"{_OF[domain]}weights", "weights", size)


def _unsharded(job: Job, stage: int, parameters: Mapping[Domain, int], sizes: Sizes) -> Iterator[Tensor]:
    """Yield what is whole of parameters and gradients that replicas share: units in use and in transit.

    Of parameters the unit that computes and those gathered ahead of it (all, where none is given back), of
    gradients the unit's own and the one that travels.
    """
    training, precision = job.training, job.spec.precision
    if not job.sharding.policy.by_unit or not is_replicated(job):
        return
    counts = stage_sections(job, stage)
    units = sorted((_unit_bytes(job, section, sizes) for section in counts.elements()), reverse=True)
    whole = units[: training.prefetch + 1] if training.reshard else units
    yield Tensor("gathered units", "unsharded", sum(whole), len(whole))
    if widens_parameters(job):
        wide = [sizes[section].total() for section in counts.elements()]
        size = byte_count(sum(wide) if not training.reshard else max(wide), precision.activations)
        yield Tensor("widened units", "unsharded", size)
    if job.sharding.reshard_ranks:
        resharded = ceil_divide(sum(units), job.sharding.reshard_ranks)
        yield Tensor("resharded units", "unsharded", resharded, len(units))
    trained = {domain: count for domain, count in parameters.items() if domain not in FROZEN}
    largest = sorted(sum(sizes[section][domain] for domain in trained) for section in counts.elements())[-2:]
    if job.sharding.each:
        size = byte_count(sum(largest), precision.gradients)
        yield Tensor("gradients of whole units", "unsharded", size, len(largest))
    else:  # whole ones are added up; their parts come from another stream, whose memory PyTorch keeps apart
        size = byte_count(max(largest, default=0), precision.activations)
        yield Tensor("gradients of a unit", "unsharded", size)
        parts = sum(ceil_divide(count, job.shardings[domain].replicas) for domain, count in trained.items())
        yield Tensor("summed gradients", "gradients", byte_count(parts, precision.gradients))


def _unit_bytes(job: Job, section: ModelSection, sizes: Mapping[ModelSection, Counter[Domain]]) -> int:
    """Return the bytes of a unit's parameters once gathered."""
    layer = section.name == "block"
    return sum(
        byte_count(count, gathered_as(job, domain, layer=layer)) for domain, count in sizes[section].items()
    )


def is_replicated(job: Job) -> bool:
    """Return whether several ranks hold the same parameters."""
    return any(sharding.replicas * sharding.instances > 1 for sharding in job.shardings.values())


def _buffers(job: Job, stage: int, parameters: Mapping[Domain, int]) -> Iterator[Tensor]:
    """Yield the buffers of messages, and the copies that a framework makes for them."""
    precision, spec, shard = job.spec.precision, job.spec.memory, job.training_shard
    if job.stages > 1:
        number = _stage_buffers(job, stage)
        yield Tensor("stage input and output", "communication", number * job.message_bytes, number)
    if precision.gradient_reduce != precision.gradients:
        bucket = byte_count(bucket_parameters(job), precision.gradient_reduce)
        yield Tensor("travelling bucket", "communication", bucket)
    if shard.sequence_parallel and shard.tp > 1:
        size = spec.gather_buffers * shard.activation_bytes(shard.tokens * shard.hidden)
        yield Tensor("gathered sequences", "communication", size, spec.gather_buffers)
    if job.training.offload_optimizer:
        widths = width(precision.gradients) + width(precision.activations)
        size = round(2 * widths * min(job.training.bucket_parameters, sum(parameters.values())))
        yield Tensor("buckets to and from the host", "communication", size, 4)
    if spec.gradient_copies == "buckets" and is_replicated(job):
        trained = sum(count for domain, count in parameters.items() if domain not in FROZEN)
        size = byte_count(trained, precision.activations)
        yield Tensor("gradient buckets", "gradients", size)


def _stage_buffers(job: Job, stage: int) -> int:
    """Return how many buffers a stage receives into, inputs and gradients of its chunks.

    Inputs in flight are counted with the activations too: as many as stages at most.
    """
    each = job.micro_batches * (2 * job.shape.chunks - (stage == 0) - (stage == job.stages - 1))
    return 2 if job.spec.memory.stage_buffers == "one" else each


def framework(job: Job) -> Iterator[Tensor]:
    """Yield the memory of the framework itself."""
    spec = job.spec.memory
    groups = sum(job.members(group) > 1 for group in _groups(job))
    yield Tensor("context", "framework", int(spec.context or 0))
    yield Tensor("communicators", "framework", groups * int(spec.communicator or 0), groups)
    peers = job.members("tp") - 1
    yield Tensor("peers' buffers", "framework", peers * int(spec.peer or 0), peers)
    yield Tensor("matrix workspace", "workspace", int(spec.workspace or 0))
    yield Tensor("memory_reserve", "reserve", int(job.spec.memory_reserve or 0))


def _groups(job: Job) -> Iterator[str]:
    """Yield the kinds of process groups that a job of this model creates."""
    for group, axes in GROUPS.items():
        if group in PARTS and job.members(group) == job.members(PARTS[group][0]):
            continue
        if group == "experts" and job.spec.routing.dispatcher != "all_gather":
            continue
        if job.model.has_experts or EXPERT_AXES.isdisjoint(axes):
            yield group


def updating(job: Job, parameters: Mapping[Domain, int]) -> Iterator[Tensor]:
    """Yield what is allocated while the optimizer runs and updated parameters are gathered."""
    if not job.spec.memory.gather_copies:
        return
    for domain, elements in parameters.items():
        sharding = job.shardings[domain]
        if sharding.gathers is not None:
            elements_held = sharding.held("optimizer", elements)
            size = byte_count(elements + elements_held, job.spec.precision.gathers)
            yield Tensor(f"{_OF[domain]}updated parameters", "temporary", size)
