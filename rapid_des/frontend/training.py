"""One optimizer step: the program of every pipeline stage, from priced pieces and a schedule.

After the passes of a schedule come gradient buckets, their reductions, the norm, the optimizer, the gathers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rapid_des.device.operators import OperatorModel, Vector
from rapid_des.frontend.job import Job
from rapid_des.frontend.parallelism import Item, predecessor
from rapid_des.frontend.parts import NORMS, PieceKey, Pieces, part_pieces
from rapid_des.frontend.shard import message_size
from rapid_des.frontend.template import GATE, INPUT, PARAMETERS, Domain, Mark, Piece, chain
from rapid_des.frontend.trace import NEXT, PREVIOUS, FinishedProgram, ProgramWriter


@dataclass
class _Stage:
    """What is known while one stage's program is written."""

    job: Job
    index: int
    pieces: Mapping[tuple[str, int], tuple[Piece, ...]]
    """By phase and chunk, in running order."""
    norms: Piece | None
    chained: Mapping[tuple[str, int], Piece]
    boundary: int
    """Bytes of a message between stages."""
    program: ProgramWriter
    results: dict[Item, int] = field(default_factory=dict)
    gate: dict[int, int] = field(default_factory=dict)
    """The port of the last message, where the stage waits for each to leave."""
    final: dict[int, int] = field(default_factory=dict)
    """By chunk: where its last backward starts."""
    gathered: dict[int, tuple[int, ...]] = field(default_factory=dict)
    reduced: list[int] = field(default_factory=list)
    """Where gradients were reduced so far."""
    held: dict[tuple[int, int], int] = field(default_factory=dict)
    """By chunk and unit: where parameters were gathered that are still whole."""

    def marks(self, chunk: int) -> tuple[Mark, ...]:
        """Return the marks of a chunk's backward, relative to its start."""
        return self.chained["backward", chunk].marks

    @property
    def parameters(self) -> Counter[Domain]:
        """Parameters of this rank by domain."""
        total = Counter[Domain]()
        for chunk in range(self.job.chunks):
            for mark in self.marks(chunk):
                total[mark.domain] += mark.parameters
        return total


def stage_program(job: Job, pieces: Pieces, stage: int, operators: OperatorModel) -> FinishedProgram:
    """Return the program that every rank of one stage runs."""
    state = _open_stage(job, pieces, stage)
    state.program.issuing(first=0 if job.host is None else job.host.before())
    if job.sharding.gathers and job.sharding.ahead:
        for chunk in range(job.chunks):
            state.gathered[chunk] = gather_buckets(state.program, job, state.marks(chunk), after=())
    zero_gradients(state.program, job, operators, parameters=state.parameters)
    for item in job.orders[stage]:
        _place_item(state, item)
    _finish_step(state, operators)
    return state.program.finish()


def _open_stage(job: Job, pieces: Pieces, stage: int) -> _Stage:
    running = {
        (phase, chunk): part_pieces(job, job.part(stage, chunk), phase, pieces)
        for phase in ("forward", "backward")
        for chunk in range(job.chunks)
    }
    norms = pieces.get(PieceKey(NORMS, "backward", stage))
    chained = {key: chain(value) for key, value in running.items()}
    boundary = job.message_bytes
    return _Stage(job, stage, running, norms, chained, boundary, ProgramWriter(job.host))


def _message(state: _Stage, stage: int, item: Item) -> tuple[str, int, int]:
    """Return name, bytes and tag of the message that carries the result of `item` of `stage`."""
    part = state.job.part(stage, item.chunk)
    tag = (item.micro_batch * state.job.parts + part) * 2 + (item.phase == "backward")
    name = "activation" if item.phase == "forward" else "gradient"
    return name, state.boundary, tag


def _input(state: _Stage, item: Item) -> int | None:
    """Return the position of what `item` consumes, after receiving it where it comes from another stage."""
    job = state.job
    source = predecessor(job.stages, job.chunks, state.index, item)
    if source is None:
        return None
    stage, needed = source
    if stage == state.index and (job.stages == 1 or needed.phase != item.phase):
        return state.results[needed]
    name, size, tag = _message(state, stage, needed)
    peer = PREVIOUS if item.phase == "forward" else NEXT
    ahead = job.overlaps_pipeline or job.schedule.interleaves or not state.results
    asked = () if ahead else (next(reversed(state.results.values())),)
    received = state.program.receive(f"receive.{name}", source=peer, size=size, tag=tag, after=asked)
    _wait_for_messages(state, received)
    if job.scatters_boundary:
        return state.program.message(f"receive.{name}.gather", "sp.gather", size, after=(received,))
    return received


def _wait_for_messages(state: _Stage, message: int) -> None:
    """Have the host wait for a message, and all that its GPU runs, if the framework does.

    Megatron-LM synchronises after messages between stages, which it sends and receives together, unless they
    travel beside compute.
    """
    job = state.job
    if job.host is not None and "pipeline" in job.host.waits and not job.overlaps_pipeline:
        newest = list(state.results.values())[-1:]
        state.program.issuing(after=(*newest, *state.gate.values(), message))


def _send_result(state: _Stage, item: Item) -> None:
    job = state.job
    part = job.part(state.index, item.chunk)
    ends = part == job.parts - 1 if item.phase == "forward" else part == 0
    if ends or job.stages == 1:
        return
    name, size, tag = _message(state, state.index, item)
    peer = NEXT if item.phase == "forward" else PREVIOUS
    sent = state.program.send(f"send.{name}", to=peer, size=size, tag=tag, after=state.results[item])
    if not job.overlaps_pipeline:
        state.gate = {GATE: sent}


def _place_item(state: _Stage, item: Item) -> None:
    incoming = _input(state, item)
    ports = state.gate | ({} if incoming is None else {INPUT: incoming})
    start = len(state.program)
    first = item.phase == "forward" and item.micro_batch == 0
    if first and item.chunk in state.gathered:
        state.results[item] = _place_gathered(state, item.chunk, ports)
    elif state.job.sharding.policy.by_unit:
        state.results[item] = _place_units(state, item, ports)
    else:
        state.results[item] = state.program.writer.place(state.chained[item.phase, item.chunk], ports)
    if item.phase == "backward":
        state.final[item.chunk] = start
        if state.job.sharding.each and not state.job.sharding.policy.by_unit:
            state.reduced += _reduce_chunk(state, item.chunk)
    state.program.segment(item.phase, start, micro_batch=item.micro_batch, chunk=item.chunk)
    _send_result(state, item)


def _place_gathered(state: _Stage, chunk: int, ports: Mapping[int, int]) -> int:
    """Place a forward whose sections each wait for the gather of their parameters."""
    waits: list[int | None] = []
    used = 0
    for piece in state.pieces["backward", chunk]:
        gathers = state.gathered[chunk][used : used + len(piece.marks)]
        waits.append(max(gathers, default=None))
        used += len(piece.marks)
    output = -1
    for piece, gathered in zip(state.pieces["forward", chunk], reversed(waits), strict=True):
        parameters = {} if gathered is None else {PARAMETERS: gathered}
        output = state.program.writer.place(piece, {**ports, **parameters})
        ports = {INPUT: output}
    return output


def _reduce_chunk(state: _Stage, chunk: int) -> tuple[int, ...]:
    """Append the reduction of the gradients of a chunk's newest backward; return the positions."""
    end, first = max(state.results.values()), state.final[chunk]
    after = None if state.job.training.overlap_gradients else end
    marks = [replace(mark, position=mark.position + first) for mark in state.marks(chunk)]
    return reduce_buckets(state.program, state.job, marks, after=after)


def _place_units(state: _Stage, item: Item, ports: Mapping[int, int]) -> int:
    """Place a pass whose units each wait for the gather of their parameters, some units ahead of compute.

    A unit is one section: a layer, the embedding, the head. The gather that is furthest ahead begins with a
    unit's compute, when the parameters of the one before may be given back; gradients travel once their unit
    is done.
    """
    job, chunk, program = state.job, item.chunk, state.program
    forward = item.phase == "forward"
    backward = state.pieces["backward", chunk]
    units = list(range(len(backward)))[:: -1 if forward else 1]
    newest, output = list(ports.values())[-1:], -1
    for place, unit in enumerate(units):
        for ahead in units[place : place + job.training.prefetch + 1]:
            if (chunk, ahead) not in state.held:
                state.held[chunk, ahead] = gather_unit(program, job, backward[ahead].marks, after=newest)
        piece = state.pieces[item.phase, chunk][place]
        gathered = state.held[chunk, unit]
        start = len(program)
        output = program.writer.place(piece, {**ports, **({PARAMETERS: gathered} if gathered >= 0 else {})})
        ports, newest = {INPUT: output}, [output]
        if job.training.reshard or not forward:
            del state.held[chunk, unit]
        if not forward and _reduces(state, item):
            marks = [replace(mark, position=mark.position + start) for mark in piece.marks]
            state.reduced += reduce_buckets(program, job, marks, after=None)
    return output


def _reduces(state: _Stage, item: Item) -> bool:
    """Tell whether gradients are reduced after a backward: each, or the last of its chunk."""
    return state.job.sharding.each or item.micro_batch == state.job.micro_batches - 1


def gather_unit(program: ProgramWriter, job: Job, marks: Sequence[Mark], *, after: Sequence[int]) -> int:
    """Append the gathers of a unit's parameters; return the position of the last, -1 where none travel."""
    done = -1
    for domain, sharding in job.shardings.items():
        role = sharding.unit_gathers
        elements = sum(mark.parameters for mark in marks if mark.domain == domain)
        if role is not None and elements:
            size = message_size(role, elements, job.spec.precision.activations, sharding.replicas)
            name = "parameters.gather" if domain == "dense" else "experts.gather"
            done = program.message(name, role, size, after=after)
    return done


def _finish_step(state: _Stage, operators: OperatorModel) -> None:
    job, program = state.job, state.program
    start = len(program)
    end = max(state.results.values())
    if not job.sharding.each and not job.sharding.policy.by_unit:
        for chunk in sorted(state.final, key=lambda chunk: state.final[chunk]):
            state.reduced += _reduce_chunk(state, chunk)
    done = small_reductions(program, job, state.index, norms=state.norms, after=(end, *state.reduced))
    last = optimizer_step(program, job, operators, parameters=state.parameters, after=done)
    if job.sharding.gathers and not job.sharding.ahead:
        for chunk in range(job.chunks):
            gather_buckets(program, job, state.marks(chunk), after=(last,))
    program.segment("optimizer", start)


@dataclass(frozen=True)
class Bucket:
    """Gradients that travel together: how many, and the last mark that completes them."""

    parameters: int
    last_mark: int


def gradient_buckets(marks: Sequence[Mark], size: int) -> tuple[Bucket, ...]:
    """Return buckets in backward order; one closes as soon as it holds `size` parameters.

    >>> gradient_buckets([Mark(0, 3), Mark(1, 3), Mark(2, 3)], 5)
    (Bucket(parameters=6, last_mark=1), Bucket(parameters=3, last_mark=2))
    """
    buckets: list[Bucket] = []
    collected = 0
    for index, mark in enumerate(marks):
        collected += mark.parameters
        if collected >= size or index == len(marks) - 1:
            buckets.append(Bucket(collected, index))
            collected = 0
    return tuple(buckets)


def reduce_buckets(
    program: ProgramWriter, job: Job, marks: Sequence[Mark], *, after: int | None
) -> tuple[int, ...]:
    """Append the reduction of a chunk's gradients; return the positions.

    `marks` hold absolute positions; a bucket waits for its own, or for `after` where nothing overlaps.
    """
    waiting = []
    for domain, sharding in job.shardings.items():
        if sharding.replicas == 1:
            continue
        role, dtype = sharding.policy.reduce, job.spec.precision.gradient_reduce
        own = [mark for mark in marks if mark.domain == domain]
        for index, bucket in enumerate(gradient_buckets(own, job.training.bucket_parameters)):
            size = message_size(role, bucket.parameters, dtype, sharding.replicas)
            ready = own[bucket.last_mark].position if after is None else after
            waiting.append((ready, f"gradients.{role}.{index}", role, size))
    return tuple(
        program.message(name, role, size, after=(ready,))
        for ready, name, role, size in sorted(waiting, key=lambda bucket: bucket[0])
    )


def gather_buckets(
    program: ProgramWriter, job: Job, marks: Sequence[Mark], *, after: Sequence[int]
) -> tuple[int, ...]:
    """Append the gathers of a chunk's updated parameters in forward order; return a position per mark."""
    position = [0] * len(marks)
    for domain, sharding in job.shardings.items():
        role, own = sharding.gathers, [number for number, mark in enumerate(marks) if mark.domain == domain]
        if role is None:
            continue
        buckets = gradient_buckets([marks[number] for number in own], job.training.bucket_parameters)
        for index in reversed(range(len(buckets))):
            first = buckets[index - 1].last_mark + 1 if index else 0
            size = message_size(
                role, buckets[index].parameters, job.spec.precision.activations, sharding.replicas
            )
            name = f"{'parameters' if domain == 'dense' else 'experts'}.gather.{index}"
            gathered = program.message(name, role, size, after=after)
            for mark in own[first : buckets[index].last_mark + 1]:
                position[mark] = gathered
    return tuple(position)


def small_reductions(
    program: ProgramWriter, job: Job, stage: int, *, norms: Piece | None, after: Sequence[int]
) -> tuple[int, ...]:
    """Append what is reduced besides the buckets: norms over tp, a tied table over its two stages.

    `after` begins with the end of the last backward and goes on with the buckets in order.
    """
    precision = job.spec.precision
    done = tuple(after)
    if norms is not None:
        done = (program.writer.place(norms, {GATE: done[0], INPUT: done[-1]}),)
    if job.ties_across_stages and stage in {0, job.stages - 1}:
        elements = job.training_shard.vocabulary_part * job.model.spec.hidden
        size = message_size("embedding.reduce", elements, precision.gradients, 2)
        done = (program.message("gradients.embedding", "embedding.reduce", size, after=done),)
    return done


def step_kernels(job: Job, parameters: Mapping[Domain, int]) -> dict[str, Vector]:
    """Return what a rank of so many parameters (by domain) runs once a step, in order, by name.

    Clearing the gradient accumulators, with which a step begins; loss unscaling (fp16), gradient norm and
    optimizer on the part of the parameters that the rank updates.
    """
    dtype = job.spec.precision.gradients
    updated = sum(job.shardings[domain].held("optimizer", count) for domain, count in parameters.items())
    kernels = {"gradients.zero": Vector("fill", 1, sum(parameters.values()), dtype)}
    if job.training_shard.recipe is not None:
        weights = Vector("cast_transpose", 1, sum(parameters.values()), job.spec.precision.activations)
        kernels["weights.cast"] = weights
    if job.spec.precision.activations == "fp16":
        kernels["gradient_unscale"] = Vector("gradient_clip", 1, updated, dtype)
    if job.training.gradient_norm:
        kernels["gradient_norm"] = Vector("gradient_norm", 1, updated, dtype)
    return kernels | {"optimizer": Vector(job.training.optimizer, 1, updated, dtype)}


SUMS = {"gradient_unscale": "gradient_unscale.overflow", "gradient_norm": "gradient_norm.reduce"}
"""The scalar that ranks agree on after a kernel, by the kernel's name."""


def zero_gradients(
    program: ProgramWriter, job: Job, operators: OperatorModel, *, parameters: Mapping[Domain, int]
) -> None:
    """Append the clearing of the gradient accumulators, with which a step begins."""
    kernel = step_kernels(job, parameters)["gradients.zero"]
    program.kernel("gradients.zero", kernel, operators, after=())


def optimizer_step(
    program: ProgramWriter,
    job: Job,
    operators: OperatorModel,
    *,
    parameters: Mapping[Domain, int],
    after: Sequence[int],
) -> int:
    """Append the end of the step, each node after the one before; return the position of the optimizer."""
    done = tuple(after)
    for name, kernel in list(step_kernels(job, parameters).items())[1:]:
        done = (program.kernel(name, kernel, operators, after=done),)
        if name in SUMS:
            done = _sum_scalar(program, job, SUMS[name], done)
            if job.host is not None and "gradient_norm" in job.host.waits:
                program.issuing(after=done)
    return done[0]


def _sum_scalar(program: ProgramWriter, job: Job, name: str, after: tuple[int, ...]) -> tuple[int, ...]:
    """Sum one fp32 over all ranks that hold different gradients: replicas first, then the model's."""
    for group in job.sharding.norm_groups:
        if job.members(group) > 1:
            role = f"{group}.gradient_norm"
            size = message_size(role, 1, "fp32", job.members(group))
            after = (program.message(name, role, size, after=after),)
    return after
