"""Bounds from below for ways to split a training job: no simulation of one is faster, none needs less memory.

    passes   on every stage: the forwards before its first + all its passes + the backwards after its last
    step     and: all passes but the last backward + its gradients' reduction; the optimizer; the gathers
    walked   the same, its passes in the order of the schedule with messages and gathers between them

Each is tighter than the one before, and costs more. Kernels are priced by the operator models; messages (of
which `passes` has none) alone in an idle fabric; what ways have in common (a layer of one split, the
optimizer's part) is worked out once. Waiting and queueing are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any, TypeVar

import numpy as np
from msgspec import structs

from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import NodeKind
from rapid_des.device.pricing import operator_model
from rapid_des.frontend import Job
from rapid_des.frontend.groups import message_size
from rapid_des.frontend.memory.events import SectionMemory, section_memory
from rapid_des.frontend.memory.training import standing
from rapid_des.frontend.optimizers import step_kernels
from rapid_des.frontend.parts import (
    Section,
    price_lists,
    section_parameters,
    sections,
    training_lists,
)
from rapid_des.frontend.routing import exchanges, places
from rapid_des.frontend.template import STREAMS, Column, Domain, Node, Piece
from rapid_des.frontend.trace import FinishedProgram, ProgramWriter, assemble
from rapid_des.machine import Machine
from rapid_des.modes.execution import EngineChoice, execute
from rapid_des.modes.pricing import as_used, issued_on
from rapid_des.program.lowering import lower
from rapid_des.program.replicas import Mates
from rapid_des.program.routes import signatures
from rapid_des.studies.earliest import Alone, End, Times, can_be_walked, ends, walked

_Made = TypeVar("_Made")
_COMPUTE = STREAMS.index("compute")
_SIMPY = EngineChoice("simpy", fold=False)
_NOTHING = Node("nothing", NodeKind.COMPUTE, "compute", (), duration=0)


@dataclass
class Floors:
    """Bounds for the ways of one job on one machine, all of whose GPUs are equal and healthy."""

    machine: Machine
    cache: BoundedCache
    known: dict[Hashable, Any] = field(default_factory=dict)

    def passes(self, job: Job, *, again: bool) -> int:
        """Return picoseconds that no step goes below, by kernels alone; `again`: with what is recomputed."""
        key = ("kernels", again, *(_kernels_key(job) if again else _plain_key(job)))
        wanted = job if again else _plain(job)
        times = self._once(("times", *key), lambda: self._times(wanted, messages=False))
        return max(end.drained for end in self._ends(wanted, times, key))

    def step(self, job: Job) -> int:
        """Return picoseconds that no simulation of a training step goes below, by closed forms."""
        times = self._alone_times(job)
        return self._step(job, self._ends(job, times, _layer_key(job)))

    def walked(self, job: Job) -> int:
        """Return the same by a walk through the schedule; 0 where it is not walked."""
        if not can_be_walked(job):
            return 0
        gathers: dict[tuple[Section, bool], int] = {}
        reduces: dict[Section, int] = {}
        for section, size in self._sizes(job).items() if job.sharding.policy.by_unit else ():
            gathered = self._travels(job, size, gathers=True)
            near = any(sharding.reshard_ranks for sharding in job.shardings.values())
            gathers |= {(section, False): gathered, (section, True): 0 if near else gathered}
            if job.sharding.each:
                reduces[section] = self._travels(job, size, gathers=False)
        alone = Alone(self._alone_times(job), self._messages(job), gathers, reduces)
        return self._step(job, walked(job, alone))

    def _alone_times(self, job: Job) -> Times:
        return self._once(("times", *_layer_key(job)), lambda: self._times(job, messages=True))

    def _ends(self, job: Job, times: Times, key: tuple[Hashable, ...]) -> tuple[End, ...]:
        layers = self._once(("layers", *_layer_key(job)), lambda: job.kind_of_layer)
        return self._once(("ends", *key, _pass_key(job)), lambda: ends(job, times, layers))

    def _step(self, job: Job, done: Sequence[End]) -> int:
        """Return what a step takes at the least whose stages have run their passes so."""
        after, travels = self._once(("after", *_state_key(job)), lambda: self._after(job))
        reduced = [
            max(end.drained, end.last_backward + travel.once, job.micro_batches * travel.each)
            for end, travel in zip(done, travels, strict=True)
        ]
        return max(reduced) + after

    def memory(self, job: Job) -> int:
        """Return bytes that some rank needs at least: the first stage's."""
        layers, stages, state = _kernels_key(job), _stages_key(job), _state_key(job)
        first = self._once(("first stage", *_model_key(job), *stages), lambda: self._first_stage(job))
        held = self._once(
            ("standing", state, job.spec.parallelism.dp, job.training.micro_batch),
            lambda: sum(tensor.size for tensor in standing(job, 0, first)),
        )
        chunks = self._once(("chunks", layers, stages), lambda: _chunks(job, self._by_section(job)))
        most = min(job.schedule.bound(job.shape), job.micro_batches * len(chunks))
        moving = most * min(kept for kept, _ in chunks) + min(peak for _, peak in chunks)
        return held + round(moving * (1 + job.spec.memory.fragmentation))

    def _by_section(self, job: Job) -> Mapping[Section, SectionMemory]:
        return self._once(("memory", *_kernels_key(job)), lambda: section_memory(job))

    def _first_stage(self, job: Job) -> Counter[Domain]:
        return _parameters(job, 0, self._sizes(job))

    def _once(self, key: Hashable, make: Callable[[], _Made]) -> _Made:
        if key not in self.known:
            self.known[key] = make()
        found: _Made = self.known[key]
        return found

    def _sizes(self, job: Job) -> Mapping[Section, Counter[Domain]]:
        return self._once(("sizes", *_model_key(job)), lambda: section_parameters(job))

    def _times(self, job: Job, *, messages: bool) -> Times:
        """Return what every section takes alone on a rank of the first stage, with messages or without."""
        job = issued_on(_short(job), self.machine)
        job = replace(job, spec=structs.replace(job.spec, host=None))
        used = as_used(job, self.machine, self.machine.device)
        operators, found = operator_model(used, self.cache), Counter[tuple[Section, bool]]()
        of_places = [
            price_lists(training_lists(job, place), operators, None, exchanges(job))
            for place in range(places(job))
        ]
        for key in of_places[0]:
            if key.stage < 0 and key.phase in ("forward", "backward"):
                piece = min((pieces[key] for pieces in of_places), key=_computes)
                passed = self._passes(job, piece) if messages else _computes(piece)
                found[key.section, key.phase == "backward"] = passed
        return found

    def _passes(self, job: Job, piece: Piece) -> int:
        """Return how long a piece takes: kernels one after the other, or what a run says."""
        if (piece.rows[:, Column.STREAM] == _COMPUTE).all():
            return _computes(piece)
        program = ProgramWriter()
        program.writer.place(piece, {})
        return self._alone(job, program.finish())

    def _messages(self, job: Job) -> dict[tuple[int, int], int]:
        """Return how long a message takes from each stage to its neighbours, round the pipeline."""
        found: dict[tuple[int, int], int] = {}
        if job.stages == 1:
            return found
        firsts = _stride(job, "pp") * np.arange(job.stages)
        for source in range(job.stages):
            for target in {(source + 1) % job.stages, (source - 1) % job.stages}:
                way = int(firsts[source]), int(firsts[target])
                like = signatures(self.machine, [way])[0]
                among = (job.stages, *_layout_key(job)) if job.batches_messages else ()
                key = ("message", like, job.message_bytes, among)
                found[source, target] = self._once(key, partial(self._message, job, source, target, way))
        return found

    def _message(self, job: Job, source: int, target: int, way: tuple[int, int]) -> int:
        """Return how long a message between two stages takes alone."""
        programs = [ProgramWriter(None, job.batches_messages) for _ in range(job.stages)]
        for program in programs:
            program.writer.append(_NOTHING, ())
        programs[source].send("message", to=target, size=job.message_bytes, tag=0, after=0)
        programs[target].receive("message", source=source, size=job.message_bytes, tag=0)
        line = job.rows("stages")
        ranks = line[(line == way[0]).any(axis=1)][0].tolist()
        traces = assemble(job, [program.finish() for program in programs], ranks=ranks)
        lowered = lower(traces, self.machine, analytic=True, cache=self.cache)
        return execute(lowered.program, _SIMPY).records.makespan

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


def _chunks(job: Job, by_section: Mapping[Section, SectionMemory]) -> list[tuple[int, int]]:
    """Return bytes that each chunk of the first stage keeps of a micro-batch, and that its backward adds.

    The stage is fullest when the first backward begins of all micro-batches that it holds.
    """
    chunks = []
    for part in job.placement[0]:
        held = [by_section[section] for section, _ in sections(job, part)]
        kept = [memory.activations + memory.logits for memory in held]
        peak = max(held[-1].highest["backward"] - kept[-1], 0) if held else 0
        chunks.append((sum(kept), peak))
    return chunks


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


def _short(job: Job) -> Job:
    """Return a job of few micro-batches, whose plan is soon made: layers do not know how many there are."""
    shape, count = job.shape, job.micro_batches
    least = 2 * shape.stages * shape.chunks
    fewer = least + (count - least) % (2 * shape.in_group)
    if fewer >= count:
        return job
    batch = job.training.global_batch // count * fewer
    training = structs.replace(job.training, global_batch=batch)
    return replace(job, spec=structs.replace(job.spec, training=training))


def _plain(job: Job) -> Job:
    """Return the job without recomputation: each of its passes has all of these kernels."""
    if job.training.recompute == "none":
        return job
    training = structs.replace(job.training, recompute="none", recompute_layers=None,
                               recompute_method="uniform", recompute_kinds=())  # fmt: skip
    return replace(job, spec=structs.replace(job.spec, training=training))


def _plain_key(job: Job) -> tuple[Hashable, ...]:
    """Return what the kernels of a layer follow from that is not recomputed."""
    split, training = job.spec.parallelism, job.training
    replicas = split.dp if job.model.has_experts and places(job) > 1 else 1
    two_ways = training.schedule in ("dualpipe", "dualpipe_v")
    return (*_model_key(job), replicas, split.sequence_parallel, training.micro_batch, two_ways)


def _kernels_key(job: Job) -> tuple[Hashable, ...]:
    """Return what the kernels of a layer follow from."""
    of_parts = job.layers if job.training.recompute_method == "block" else ()
    return (*_plain_key(job), job.training.recompute, of_parts)


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
    return prod(sizes[one] for one in job.layout.axes[: job.layout.axes.index(axis)])


def _stages_key(job: Job) -> tuple[Hashable, ...]:
    """Return what the parts of each stage follow from."""
    split = job.spec.parallelism
    return split.pp, split.chunks, split.layers, job.training.schedule


def _pass_key(job: Job) -> Hashable:
    return *_stages_key(job), job.micro_batches


def _state_key(job: Job) -> tuple[Hashable, ...]:
    return (*_model_key(job), *_layout_key(job), job.training.zero_stage, job.placement, job.layers,
            job.spec.parallelism.sequence_parallel)  # fmt: skip
