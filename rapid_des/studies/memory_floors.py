"""Bounds from below for the memory of ways to split a training job, and what these are made of.

    standing   weights, gradients, optimizer, messages: the smallest that replicas and micro-batches leave
    moving     activations of the micro-batches that a stage has begun before its first backward; under
               schedules without a closed form the most that its order holds

What candidates have in common is worked out once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct, field, structs

from rapid_des.bounded_cache import BoundedCache
from rapid_des.frontend import Job
from rapid_des.frontend.memory.events import SectionMemory, section_memory
from rapid_des.frontend.memory.training import standing
from rapid_des.frontend.parts import Lists, ModelSection, pass_lists, section_parameters
from rapid_des.frontend.routing import heaviest_place
from rapid_des.frontend.schedules.schedule import Order, PassKind
from rapid_des.frontend.template import Domain
from rapid_des.machine import Machine
from rapid_des.studies.earliest import fullest_stages, held, is_usual
from rapid_des.studies.likeness import again_key, kernels_key, model_key, parts_key, stages_key
from rapid_des.studies.made_of import Part, Parts
from rapid_des.studies.stand_ins import few_passes, without_recomputation, without_unit_copies
from rapid_des.values import replace

_Made = TypeVar("_Made")


class MemoryFloors(Struct):
    """Bounds for the candidates of one job on one machine, all of whose GPUs are equal and healthy."""

    machine: Machine
    cache: BoundedCache
    known: dict[Hashable, Any] = field(default_factory=dict)

    def memory(self, job: Job) -> int:
        """Return bytes that some rank needs at least."""
        return self.memories([job])[0]

    def memories(self, jobs: Sequence[Job]) -> list[int]:
        """Return the same of jobs that differ in their ZeRO stage alone: equal activations come and go."""
        moving = [(stage, self.moving(jobs[0], stage)) for stage in fullest_stages(jobs[0])]
        return [max(self.standing(job, stage) + moved for stage, moved in moving) for job in jobs]

    def standing(self, job: Job, stage: int) -> int:
        """Return those of a stage's ranks that stand all the time, at the least: with the smallest messages.

        They depend neither on what is recomputed nor, but for messages, on the micro-batch.
        """
        made_of, copies = self.once(("made of", stage, *stages_key(job)), lambda: self._made_of(job, stage))
        split, training = job.spec.parallelism, job.training
        key = (*model_key(job), split.dp, split.pp, copies, split.sequence_parallel, stage)
        key = (*key, training.zero_stage, made_of)
        return self.once(("standing", *key), lambda: self._stands(without_recomputation(job), stage))

    def _made_of(self, job: Job, stage: int) -> tuple[tuple[tuple[ModelSection, int], ...], int]:
        """Return how often a stage has each section, and how many stages hold the same."""
        sections = self.sections_of(without_recomputation(job), stage)
        return tuple(sorted(sections.items())), len(job.copies[0])

    def _stands(self, job: Job, stage: int) -> int:
        training = structs.replace(job.training, micro_batch=1)
        small = replace(job, spec=structs.replace(job.spec, training=training))
        parameters, sizes = self.parameters_of(job, stage), self.sizes(job)
        return sum(tensor.size for tensor in standing(small, stage, parameters, sizes))

    def kept(self, job: Job, stage: int) -> int:
        """Return those of `moving` that a stage keeps from forwards to backwards."""
        return self.moving(job, stage, peaks=0)

    def moving(self, job: Job, stage: int, *, peaks: int = 1) -> int:
        """Return those of them that come and go, whatever replicas share; `peaks` 0: no backward's."""
        key = (stage, kernels_key(job), stages_key(job))
        chunks = self.once(("chunks", *key), lambda: self._chunks(job, stage))
        if is_usual(job):
            counted = zip(held(job, stage), chunks, strict=True)
            moving = sum(count * chunk.kept for count, chunk in counted) + peaks * chunks[-1].peaks.get(
                "backward", 0
            )
        else:
            order = job.micro_batches, job.training.overlap_batches
            moving = self.once(
                ("most held", *key, *order, peaks),
                lambda: _most_held(self._order(job, stage), chunks, peaks),
            )
        return round(moving * (1 + job.spec.memory.fragmentation))

    def _order(self, job: Job, stage: int) -> Order:
        """Return a stage's order of so few micro-batches that it is soon made: no more of them are held."""
        few = few_passes(job)
        key = ("orders", job.training.schedule, job.training.overlap_batches, few.shape)
        return self.once(key, lambda: few.stage_orders.orders)[stage]

    def _chunks(self, job: Job, stage: int) -> list[_Chunk]:
        """Return what each chunk of a stage holds."""
        memory = self.once(("memory", *kernels_key(job)), lambda: self._section_memory(job))
        parts = self.parts(job)
        placed = parts.placement[stage]
        kinds = {
            kind: _Chunk.of(parts.kinds[kind], memory) for kind in {parts.kind_of[part] for part in placed}
        }
        return [kinds[parts.kind_of[part]] for part in placed]

    def _section_memory(self, job: Job) -> Mapping[ModelSection, SectionMemory]:
        place = heaviest_place(job) if job.model.has_experts else 0
        return section_memory(job, self.lists(without_unit_copies(job), place))

    def lists(self, job: Job, place: int) -> Lists:
        """Return the operators of all sections; those that stand once in a stage are not asked for."""
        key = ("lists", *kernels_key(job), place)
        return self.once(key, lambda: pass_lists(few_passes(job), place))

    def sections_of(self, job: Job, stage: int) -> Counter[ModelSection]:
        """Return how often a stage has each section."""
        total, parts = Counter[ModelSection](), self.parts(job)
        for part in parts.placement[stage]:
            total.update(dict(parts[part].counts))
        return total

    def parameters_of(self, job: Job, stage: int) -> Counter[Domain]:
        """Return the parameters of a rank of a stage."""
        plain, total = without_recomputation(job), Counter[Domain]()
        sizes = self.sizes(plain)
        for section, count in self.sections_of(plain, stage).items():
            for domain, elements in sizes[section].items():
                total[domain] += count * elements
        return total

    def once(self, key: Hashable, make: Callable[[], _Made]) -> _Made:
        """Return what a key stands for, made if nobody asked for it before."""
        if key not in self.known:
            self.known[key] = make()
        value: _Made = self.known[key]
        return value

    def sizes(self, job: Job) -> Mapping[ModelSection, Counter[Domain]]:
        """Return the parameters of every section on a rank."""
        key = ("sizes", *model_key(job), *again_key(job))
        return self.once(key, lambda: section_parameters(job))

    def kinds(self, job: Job) -> Sequence[int]:
        """Return the kind of every layer, by what the job runs again."""
        return self.once(("kinds", *again_key(job)), lambda: job.kind_of_layer)

    def parts(self, job: Job) -> Parts:
        """Return what the parts of the model are made of."""
        return self.once(("parts", *parts_key(job)), lambda: Parts.of(job, self.kinds(job)))


class _Chunk(NamedTuple):
    """What a micro-batch holds of a chunk, in bytes."""

    kept: int
    """From forward to backward."""
    deferred: int
    """From the first half of a backward to the second."""
    peaks: Mapping[PassKind, int]
    """What the first layer of a backward adds, by its kind."""

    @classmethod
    def of(cls, part: Part, memory: Mapping[ModelSection, SectionMemory]) -> _Chunk:
        """Return that of a chunk that is such a part."""
        kept = deferred = 0
        for section, count in part.counts:
            kept += count * _kept(memory[section])
            deferred += count * sum(tensor.size for tensor in memory[section].deferred)
        last = memory[part.sections[-1]] if part.sections else None
        highest = {} if last is None else last.highest
        peaks = {phase: max(size - _kept(last), 0) for phase, size in highest.items()} if last else {}
        return cls(kept, deferred, peaks)


def _kept(section: SectionMemory) -> int:
    return section.activations + section.logits


def _most_held(order: Order, chunks: Sequence[_Chunk], peaks: int) -> int:
    """Return the most that a stage's order holds, between its items and where a backward begins."""
    now = most = 0
    for item in order:
        chunk = chunks[item.chunk]
        if item.phase == "forward":
            now += chunk.kept
        elif item.phase == "weight_gradient":
            now -= chunk.deferred
        elif item.direction == "backward":
            most = max(most, now + peaks * chunk.peaks.get(item.phase, 0))
            now += chunk.deferred * (item.phase == "input_gradient") - chunk.kept
        most = max(most, now)
    return most
