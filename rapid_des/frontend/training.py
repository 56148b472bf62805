"""One optimizer step: the program of every pipeline stage, from priced pieces and a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rapid_des.device.operators import OperatorModel
from rapid_des.frontend.job import Job
from rapid_des.frontend.parts import NORMS, PieceKey, Pieces, part_pieces
from rapid_des.frontend.pipeline import Item, predecessor
from rapid_des.frontend.reduction import (
    gather_buckets,
    optimizer_step,
    reduce_buckets,
    small_reductions,
    zero_gradients,
)
from rapid_des.frontend.template import GATE, INPUT, PARAMETERS, Mark, Piece, chain
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
    program: ProgramWriter = field(default_factory=ProgramWriter)
    results: dict[Item, int] = field(default_factory=dict)
    gate: dict[int, int] = field(default_factory=dict)
    """The port of the last message, where the stage waits for each to leave."""
    final: dict[int, int] = field(default_factory=dict)
    """By chunk: where its last backward starts."""
    gathered: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def marks(self, chunk: int) -> tuple[Mark, ...]:
        """Return the marks of a chunk's backward, relative to its start."""
        return self.chained["backward", chunk].marks

    @property
    def parameters(self) -> int:
        """Parameters of this rank."""
        return sum(mark.parameters for chunk in range(self.job.chunks) for mark in self.marks(chunk))


def stage_program(job: Job, pieces: Pieces, stage: int, operators: OperatorModel) -> FinishedProgram:
    """Return the program that every rank of one stage runs."""
    state = _open_stage(job, pieces, stage)
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
    return _Stage(job, stage, running, norms, chained, job.training_shard.boundary_bytes)


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
    return state.program.receive(f"receive.{name}", source=peer, size=size, tag=tag, after=asked)


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
    else:
        state.results[item] = state.program.writer.place(state.chained[item.phase, item.chunk], ports)
    if item.phase == "backward":
        state.final[item.chunk] = start
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


def _finish_step(state: _Stage, operators: OperatorModel) -> None:
    job, program = state.job, state.program
    start = len(program)
    end = max(state.results.values())
    reduced: list[int] = []
    for chunk in sorted(state.final, key=lambda chunk: state.final[chunk]):
        after = None if job.training.overlap_gradients else end
        first = state.final[chunk]
        marks = [Mark(mark.position + first, mark.parameters) for mark in state.marks(chunk)]
        reduced += reduce_buckets(program, job, marks, after=after)
    done = small_reductions(program, job, state.index, norms=state.norms, after=(end, *reduced))
    last = optimizer_step(program, job, operators, parameters=state.parameters, after=done)
    if job.sharding.gathers and not job.sharding.ahead:
        for chunk in range(job.chunks):
            gather_buckets(program, job, state.marks(chunk), after=(last,))
    program.segment("optimizer", start)
