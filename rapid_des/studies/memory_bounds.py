"""Bounds from below for the memory of layouts of a training job, and what these are made of.

    standing   weights, gradients, optimizer, messages: the smallest that replicas and micro-batches leave
    moving     activations of the micro-batches that a stage has begun before its first backward; under
               schedules without a closed form the most that its order holds

What candidates have in common is worked out once, for their stand-in (`stand_ins`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, field

from rapid_des.frontend import Job
from rapid_des.frontend.memory.events import SectionMemory, section_memory
from rapid_des.frontend.memory.training import standing
from rapid_des.frontend.parts import ModelSection
from rapid_des.frontend.routing import heaviest_place
from rapid_des.frontend.schedules import PipelineSchedule
from rapid_des.frontend.schedules.schedule import Order, PassKind, PipelineShape
from rapid_des.studies.closed_form_bounds import fullest_stages, held, is_usual
from rapid_des.studies.made_of import Part
from rapid_des.studies.shared_work import SharedWork, once
from rapid_des.studies.stand_ins import Layers, State, few_passes, of_layers, of_state, without_unit_copies


class MemoryBounds(Struct):
    """Bounds of memory for the candidates of one job."""

    work: SharedWork
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
        return self._standing(of_state(job), stage)

    @once
    def _standing(self, state: State, stage: int) -> int:
        parameters, sizes = self.work.parameters_of(state, stage), self.work.sizes(of_layers(state))
        return sum(tensor.size for tensor in standing(state, stage, parameters, sizes))

    def kept(self, job: Job, stage: int) -> int:
        """Return those of `moving` that a stage keeps from forwards to backwards."""
        return self.moving(job, stage, peaks=0)

    def moving(self, job: Job, stage: int, *, peaks: int = 1) -> int:
        """Return those of them that come and go, whatever replicas share; `peaks` 0: no backward's."""
        layers, parts = of_layers(without_unit_copies(job)), self.work.parts(job)
        chunks = [self._chunk(layers, parts[part]) for part in parts.placement[stage]]
        if is_usual(job):
            counted = zip(held(job, stage), chunks, strict=True)
            moving = sum(count * chunk.kept for count, chunk in counted) + peaks * chunks[-1].peaks.get(
                "backward", 0
            )
        else:
            few = few_passes(job)  # whose orders are soon made: no more of many micro-batches are held
            moving = _most_held(self._orders(few.schedule, few.shape)[stage], chunks, peaks)
        return round(moving * (1 + job.spec.memory.fragmentation))

    @once
    def _orders(self, schedule: PipelineSchedule, shape: PipelineShape) -> Sequence[Order]:
        return schedule.stage_orders(shape).orders

    @once
    def _chunk(self, layers: Layers, part: Part) -> _Chunk:
        return _Chunk.of(part, self._section_memory(layers))

    @once
    def _section_memory(self, layers: Layers) -> Mapping[ModelSection, SectionMemory]:
        place = heaviest_place(layers) if layers.model.has_experts else 0
        return section_memory(layers, self.work.lists(layers, place))


class _Chunk(NamedTuple):
    """What a micro-batch holds of a chunk, in bytes."""

    kept: int
    """The bytes kept from forward to backward."""
    deferred: int
    """The bytes kept from the first half of a backward to the second."""
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
