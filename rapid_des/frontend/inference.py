"""A static batch served: one prefill, then one token a step with a growing KV cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rapid_des.device.operators import OperatorModel
from rapid_des.frontend.block import CORE, boundary_bytes, serving_block
from rapid_des.frontend.ends import embedding_forward, sampling
from rapid_des.frontend.parts import PieceKey, Section, part_pieces, price_steps
from rapid_des.frontend.pricing import kernel_node
from rapid_des.frontend.program import NEXT, PREVIOUS, FinishedProgram, ProgramWriter
from rapid_des.frontend.resolved import Job
from rapid_des.frontend.shard import Shard
from rapid_des.frontend.steps import Step
from rapid_des.frontend.template import INPUT, Column, Piece, chain, retimed
from rapid_des.frontend.trace import JobTrace, job_trace
from rapid_des.frontend.traffic import byte_count


@dataclass(frozen=True)
class Pass:
    """One pass of every request through the model: the prefill (step 0) or a decode step."""

    step: int
    query_length: int
    key_length: int

    @property
    def name(self) -> str:
        """`prefill` or `decode`."""
        return "decode" if self.step else "prefill"


def passes(job: Job) -> tuple[Pass, ...]:
    """Return the prefill, which makes the first token, and the decode steps that are simulated."""
    spec = job.inference
    steps: Sequence[int] = range(1, spec.output_length)
    if spec.decode_steps != "all" and steps:
        chosen = np.linspace(1, spec.output_length - 1, spec.decode_steps).round()
        steps = sorted({int(step) for step in chosen})
    prefill = Pass(0, spec.prompt_length, spec.prompt_length)
    return (prefill, *(Pass(step, 1, spec.prompt_length + step) for step in steps))


def serving_steps(shard: Shard) -> Mapping[PieceKey, tuple[Step, ...]]:
    """Return the operator lists of one pass."""
    return {
        PieceKey("embedding", "forward"): embedding_forward(shard),
        PieceKey("block", "forward"): serving_block(shard),
        PieceKey("head", "forward"): sampling(shard),
    }


def serving_shard(job: Job, current: Pass) -> Shard:
    """Return a rank's dimensions in one pass of one micro-batch."""
    spec = job.inference
    sequences = spec.micro_batch or spec.batch
    return job.shard(sequences, current.query_length, current.key_length)


@dataclass
class _Server:
    """One stage's passes, each made from the last by changing what the KV length changes."""

    job: Job
    stage: int
    program: ProgramWriter = field(default_factory=ProgramWriter)
    tokens: dict[int, int] = field(default_factory=dict)
    """By micro-batch: the position that makes, or receives, its newest token."""


def inference_trace(job: Job, operators: OperatorModel, decode_operators: OperatorModel) -> JobTrace:
    """Return prefill and decode of all ranks; replicas (dp) serve requests of their own."""
    models = operators, decode_operators
    programs = [serving_program(job, stage, _stage_pieces(job, stage, models)) for stage in range(job.stages)]
    return job_trace(job, programs, notes=serving_notes(job))


def serving_program(job: Job, stage: int, pieces: Sequence[Piece]) -> FinishedProgram:
    """Return the program that every rank of one stage runs, given the stage's piece of each pass."""
    server = _Server(job, stage)
    todo = passes(job)
    for current, piece in zip(todo, pieces, strict=True):
        for micro_batch in range(job.micro_batches):
            _place_pass(server, current, piece, micro_batch, last=current is todo[-1])
    return server.program.finish()


def serving_notes(job: Job) -> tuple[str, ...]:
    """Return what a user must know of the simulated passes."""
    simulated, steps = len(passes(job)) - 1, job.inference.output_length - 1
    if simulated == steps:
        return ()
    return (
        f"decode: {simulated} of {steps} steps are simulated, spread evenly; the others are interpolated",
    )


def pass_key(section: Section, step: int, todo: Sequence[Pass]) -> PieceKey:
    """Return which piece a pass runs for a section: decode steps differ in their blocks only."""
    return PieceKey(section, "forward", step=step if section == "block" or not step else todo[1].step)


def serving_pieces(
    job: Job, operators: OperatorModel, decode_operators: OperatorModel
) -> Mapping[PieceKey, Piece]:
    """Return the priced pieces of all passes, as `pass_key` names them."""
    found: dict[PieceKey, Piece] = {}
    todo = passes(job)
    for current, model in zip(todo[:2], (operators, decode_operators), strict=False):
        priced = price_steps(serving_steps(serving_shard(job, current)), model)
        found |= {pass_key(key.section, current.step, todo): piece for key, piece in priced.items()}
    if len(todo) > 2:
        base = found[pass_key("block", todo[1].step, todo)]
        for current, piece in zip(todo[2:], _at_lengths(job, todo[2:], base, decode_operators), strict=True):
            found[pass_key("block", current.step, todo)] = piece
    return found


def stage_passes(job: Job, stage: int, pieces: Mapping[PieceKey, Piece]) -> Iterator[Piece]:
    """Yield a stage's piece of each pass, from the pieces of all."""
    todo = passes(job)
    sections: tuple[Section, ...] = ("embedding", "block", "head")
    for current in todo:
        own = {key: pieces[pass_key(key.section, current.step, todo)] for key in map(_forward, sections)}
        yield chain(part_pieces(job, stage, "forward", own))


def _forward(section: Section) -> PieceKey:
    return PieceKey(section, "forward")


def _stage_pieces(job: Job, stage: int, models: tuple[OperatorModel, OperatorModel]) -> list[Piece]:
    """Return a stage's piece of each pass; decode steps share all but the attention core."""
    todo = passes(job)
    found = [
        chain(
            part_pieces(job, stage, "forward", price_steps(serving_steps(serving_shard(job, current)), model))
        )
        for current, model in zip(todo[:2], models, strict=False)
    ]
    return [*found, *(_at_lengths(job, todo[2:], found[1], models[1]) if len(todo) > 2 else ())]


def _at_lengths(job: Job, later: Sequence[Pass], base: Piece, operators: OperatorModel) -> Iterator[Piece]:
    """Yield a decode step's piece as that of other steps, whose attention sees other KV lengths."""
    names = np.array([name.endswith(CORE) for name in base.names])
    cores = np.flatnonzero(names[base.rows[:, Column.NAME]])
    for current in later:
        core = kernel_node("", serving_shard(job, current).attention()[0], operators, ())
        values = {Column.DURATION: core.duration, Column.FLOPS: core.flops, Column.BYTES: core.bytes}
        yield retimed(base, cores, values)


def _place_pass(server: _Server, current: Pass, piece: Piece, micro_batch: int, *, last: bool) -> None:
    job, stage, program = server.job, server.stage, server.program
    boundary = boundary_bytes(serving_shard(job, current))
    number = current.step * job.micro_batches + micro_batch
    ports: dict[int, int] = {}
    if stage:
        arrived = program.receive(
            "receive.activation", source=PREVIOUS, size=boundary, tag=number * job.stages + stage - 1
        )
        ports = {INPUT: arrived}
    elif micro_batch in server.tokens:
        ports = {INPUT: server.tokens[micro_batch]}
    start = len(program)
    done = program.writer.place(piece, ports)
    program.segment(
        current.name, start, micro_batch=micro_batch, kv_length=current.key_length, step=current.step
    )
    server.tokens[micro_batch] = done
    if stage < job.stages - 1:
        tag = number * job.stages + stage
        program.send("send.activation", to=NEXT, size=boundary, tag=tag, after=done)
    if not last and job.stages > 1:
        _pass_token(server, number, micro_batch, done)


def _pass_token(server: _Server, number: int, micro_batch: int, done: int) -> None:
    """Bring the sampled tokens from the last stage back to the first."""
    job, program = server.job, server.program
    spec = job.inference
    size = byte_count(spec.micro_batch or spec.batch, "fp32")
    tag = number * job.stages + job.stages - 1
    if server.stage == job.stages - 1:
        program.send("send.token", to=NEXT, size=size, tag=tag, after=done)
    elif server.stage == 0:
        server.tokens[micro_batch] = program.receive("receive.token", source=PREVIOUS, size=size, tag=tag)


def decode_time(samples: Sequence[tuple[int, int]], first: int, last: int) -> int:
    """Return the total of all steps first..last from sampled (step, picoseconds), linear in between.

    >>> decode_time([(1, 100), (3, 300)], 1, 3)
    600
    """
    if last < first:
        return 0
    steps, times = zip(*sorted(samples), strict=True)
    return int(np.ceil(np.interp(np.arange(first, last + 1), steps, times).sum()))
