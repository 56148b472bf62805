"""Bounds from below for ways to split a training job: no simulation of one is faster, none needs less memory.

    step >= on every stage: the forwards before its first + all its passes + the backwards after its last
            and: all passes but the last backward + its gradients' reduction; the optimizer; the gathers

Passes are priced by the operator models, their messages alone in an idle fabric; what ways have in common
(a layer of one split, the optimizer's part) is worked out once. What messages between stages take, waiting
and queueing are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import prod
from typing import Any, TypeVar

import numpy as np
from msgspec import structs

from rapid_des.bounded_cache import BoundedCache
from rapid_des.device.pricing import operator_model
from rapid_des.frontend import Job
from rapid_des.frontend.groups import message_size
from rapid_des.frontend.memory.events import SectionMemory, section_memory
from rapid_des.frontend.memory.training import standing
from rapid_des.frontend.optimizers import step_kernels
from rapid_des.frontend.parts import (
    EMBEDDING,
    HEAD,
    PREDICTION,
    Section,
    price_lists,
    section_parameters,
    sections,
    training_lists,
)
from rapid_des.frontend.routing import exchanges, places
from rapid_des.frontend.template import STREAMS, Column, Domain, Piece
from rapid_des.frontend.trace import FinishedProgram, ProgramWriter, assemble
from rapid_des.machine import Machine
from rapid_des.modes.execution import EngineChoice, execute
from rapid_des.modes.pricing import as_used, issued_on
from rapid_des.program.lowering import lower
from rapid_des.program.replicas import Mates

_Made = TypeVar("_Made")
_COMPUTE = STREAMS.index("compute")
_SIMPY = EngineChoice("simpy", fold=False)
Times = Mapping[tuple[Section, bool], int]
"""Picoseconds of one pass of a section: forward, or (true) all of its backward."""


@dataclass
class Floors:
    """Bounds for the ways of one job on one machine, all of whose GPUs are equal and healthy."""

    machine: Machine
    cache: BoundedCache
    known: dict[Hashable, Any] = field(default_factory=dict)

    def step(self, job: Job) -> int:
        """Return picoseconds that no simulation of a training step goes below."""
        times = self._once(("times", *_layer_key(job)), lambda: self._times(job))
        key = ("ends", *_layer_key(job), _pass_key(job))
        layers = self._once(("layers", *_layer_key(job)), lambda: job.kind_of_layer)
        ends = self._once(key, lambda: _ends(job, times, layers))
        after, travels = self._once(("after", *_state_key(job)), lambda: self._after(job))
        reduced = [
            max(end.drained, end.last_backward + travel.once, job.micro_batches * travel.each)
            for end, travel in zip(ends, travels, strict=True)
        ]
        return max(reduced) + after

    def memory(self, job: Job) -> int:
        """Return bytes that some rank needs at least: the first stage's."""
        by_section = self._once(("memory", *_layer_key(job)), lambda: section_memory(job))
        sizes = self._sizes(job)
        held = self._once(
            (
                "standing",
                *_state_key(job)[:-5],
                job.spec.parallelism.dp,
                *_state_key(job)[-5:],
                job.training.micro_batch,
            ),
            lambda: sum(tensor.size for tensor in standing(job, 0, _parameters(job, 0, sizes))),
        )
        return held + _in_flight(job, by_section)

    def _once(self, key: Hashable, make: Callable[[], _Made]) -> _Made:
        if key not in self.known:
            self.known[key] = make()
        made: _Made = self.known[key]
        return made

    def _sizes(self, job: Job) -> Mapping[Section, Counter[Domain]]:
        return self._once(("sizes", *_model_key(job)), lambda: section_parameters(job))

    def _times(self, job: Job) -> Times:
        """Return what every section takes alone on a rank of the first stage, messages by closed forms."""
        job = issued_on(job, self.machine)
        job = replace(job, spec=structs.replace(job.spec, host=None))
        used = as_used(job, self.machine, self.machine.device)
        operators, counts = operator_model(used, self.cache), Counter[tuple[Section, bool]]()
        of_places = [
            price_lists(training_lists(job, place), operators, None, exchanges(job))
            for place in range(places(job))
        ]
        for key in of_places[0]:
            if key.stage < 0 and key.phase in ("forward", "backward"):
                piece = min((pieces[key] for pieces in of_places), key=_computes)
                counts[key.section, key.phase == "backward"] = self._passes(job, piece)
        return counts

    def _passes(self, job: Job, piece: Piece) -> int:
        """Return how long a piece takes: kernels one after the other, or what a run says."""
        if (piece.rows[:, Column.STREAM] == _COMPUTE).all():
            return _computes(piece)
        program = ProgramWriter()
        program.writer.place(piece, {})
        return self._alone(job, program.finish())

    def _alone(self, job: Job, program: FinishedProgram) -> int:
        """Return how long one rank's program takes where all of its stage do the same and nothing queues."""
        stage = np.flatnonzero(job.layout.coordinates("pp") == 0)
        traces = assemble(job, [program] * job.stages, ranks=stage.tolist())
        image = np.arange(job.gpus)
        image[stage] = np.roll(stage, -1)
        first = replace(traces, ranks=traces.ranks[:1])
        mates = Mates(1, image)
        lowered = lower(first, self.machine, analytic=True, replicas=mates, cache=self.cache)
        return execute(lowered.program, _SIMPY).records.makespan

    def _after(self, job: Job) -> tuple[int, tuple[_Travel, ...]]:
        """Return what follows all passes at the least, and how long each stage's gradients travel."""
        sizes = self._sizes(job)
        stages = [_parameters(job, stage, sizes) for stage in range(job.stages)]
        least = min(range(job.stages), key=lambda stage: stages[stage].total())
        used = as_used(job, self.machine, self.machine.device)
        operators = operator_model(used, self.cache)
        kernels = list(step_kernels(job, least, stages[least]).values())[1:]
        after = sum(operators.estimate(kernel).duration for kernel in kernels)
        once = not job.sharding.policy.by_unit and not job.sharding.ahead
        if not job.training.offload_optimizer and once:
            after += self._travels(job, stages[least], gathers=True)
        return after, tuple(self._moves(job, parameters) for parameters in stages)

    def _moves(self, job: Job, parameters: Counter[Domain]) -> _Travel:
        """Return how long a stage's gradients and parameters are on their way, at the least."""
        reduced, sharding = self._travels(job, parameters, gathers=False), job.sharding
        if not sharding.policy.by_unit:
            return _Travel(0, reduced) if sharding.each else _Travel(reduced, 0)
        times = 2 if job.training.reshard is True else 1
        each = times * self._travels(job, parameters, gathers=True) + (reduced if sharding.each else 0)
        return _Travel(0 if sharding.each else reduced, each)

    def _travels(self, job: Job, parameters: Counter[Domain], *, gathers: bool) -> int:
        """Return how long a stage's gradients are reduced, or its parameters gathered, in one message."""
        precision, program = job.spec.precision, ProgramWriter()
        dtype = precision.gathers if gathers else precision.gradient_reduce
        for domain, sharding in job.shardings.items():
            role = sharding.unit_gathers if gathers else sharding.policy.reduce
            if role is not None and role and sharding.replicas > 1 and parameters[domain]:
                size = message_size(role, parameters[domain], dtype, sharding.replicas)
                program.message(f"{domain}.{role}", role, size, after=(), group=sharding.group)
        key = ("travels", gathers, *_model_key(job), _layout_key(job), job.training.zero_stage,
               tuple(sorted(parameters.items())))  # fmt: skip
        return self._once(key, lambda: self._alone(job, program.finish())) if len(program) else 0


@dataclass(frozen=True)
class _Travel:
    """How long a stage's gradients and parameters travel between replicas, in picoseconds."""

    once: int
    """After its last backward has begun."""
    each: int
    """For every micro-batch."""


@dataclass(frozen=True)
class _End:
    """When a stage is done at the earliest, in picoseconds."""

    drained: int
    """Its passes, and those of other stages that follow its last one."""
    last_backward: int
    """When its last micro-batch's backward begins."""


def _ends(job: Job, times: Times, kinds: Sequence[int]) -> tuple[_End, ...]:
    """Return when each stage is done at the earliest, given the kind of every layer."""
    forward, backward = (_by_part(job, times, kinds, backward=back) for back in (False, True))
    to, back = [0, *accumulate(forward)], [0, *accumulate(backward)]
    defers = "input_gradient" in job.plan.phases
    share = 1 if len(job.copies[0]) == 1 else len(job.copies[0])
    ends = []
    for own in job.placement:
        passes = job.micro_batches * sum(forward[part] + backward[part] for part in own) // share
        first, last = min(to[part] for part in own), min(back[part] for part in own)
        drained = first + passes + (0 if defers else last)
        ends.append(_End(drained, first + passes - sum(backward[part] for part in own)))
    return tuple(ends)


def _by_part(job: Job, times: Times, kinds: Sequence[int], *, backward: bool) -> list[int]:
    """Return how long each part of the model takes in one direction."""
    each = [times[Section("block", kind), backward] for kind in kinds]
    ends = [0, *accumulate(job.layers)]
    by_part = [sum(each[first:last]) for first, last in pairwise(ends)]
    by_part[0] += times[EMBEDDING, backward]
    by_part[-1] += times[HEAD, backward] + job.predictions * times.get((PREDICTION, backward), 0)
    return by_part


def _in_flight(job: Job, by_section: Mapping[Section, SectionMemory]) -> int:
    """Return bytes that come and go on the first stage at its fullest, at the least.

    That is when the first backward begins of all micro-batches that it holds: its own section's moment.
    """
    chunks = []
    for part in job.placement[0]:
        held = [by_section[section] for section, _ in sections(job, part)]
        kept = [memory.activations + memory.logits for memory in held]
        peak = max(held[-1].highest["backward"] - kept[-1], 0) if held else 0
        chunks.append((sum(kept), peak))
    most = min(job.schedule.bound(job.shape), job.micro_batches * len(chunks))
    moving = most * min(kept for kept, _ in chunks) + min(peak for _, peak in chunks)
    return round(moving * (1 + job.spec.memory.fragmentation))


def _parameters(job: Job, stage: int, sizes: Mapping[Section, Counter[Domain]]) -> Counter[Domain]:
    total = Counter[Domain]()
    for part in job.placement[stage]:
        for section, _ in sections(job, part):
            total.update(sizes[section])
    return total


def _computes(piece: Piece) -> int:
    return int(piece.rows[:, Column.DURATION].sum())


def _model_key(job: Job) -> tuple[Hashable, ...]:
    """Return what a rank's share of a layer follows from."""
    split = job.spec.parallelism
    alone = split.pp == 1 and job.model.spec.tied_embeddings
    return split.tp, split.cp, split.ep, split.etp, alone


def _layout_key(job: Job) -> tuple[Hashable, ...]:
    split = job.spec.parallelism
    return split.order, split.dp, split.pp


def _layer_key(job: Job) -> tuple[Hashable, ...]:
    """Return what the passes of a layer follow from; of ranks' places what their groups notice."""
    split, training = job.spec.parallelism, job.training
    spread = split.cp > 1 or split.order[0] != "tp" or job.model.has_experts
    where: tuple[int, ...] = (_stride(job, "tp"), _stride(job, "cp")) if spread else ()
    if job.model.has_experts:
        where = (*where, _stride(job, "dp"), split.dp)
    of_parts = job.layers if training.recompute_method == "block" else ()
    return (*_model_key(job), split.sequence_parallel, training.micro_batch, training.recompute, where,
            of_parts, training.schedule in ("dualpipe", "dualpipe_v"))  # fmt: skip


def _stride(job: Job, axis: str) -> int:
    """Return how far neighbours along an axis are apart."""
    sizes = dict(zip(job.layout.axes, job.layout.sizes, strict=True))
    return prod(sizes[inner] for inner in job.layout.axes[: job.layout.axes.index(axis)])


def _pass_key(job: Job) -> Hashable:
    split, training = job.spec.parallelism, job.training
    return split.pp, split.chunks, split.layers, training.schedule, job.micro_batches


def _state_key(job: Job) -> tuple[Hashable, ...]:
    return (*_model_key(job), *_layout_key(job), job.training.zero_stage, job.placement, job.layers,
            job.spec.parallelism.sequence_parallel)  # fmt: skip
