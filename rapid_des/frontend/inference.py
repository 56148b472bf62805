"""A static batch served: one prefill, then one token a step with a growing KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rapid_des.device.operators import OperatorModel
from rapid_des.frontend.block import CORE, boundary_bytes, serving_block
from rapid_des.frontend.ends import embedding_forward, sampling
from rapid_des.frontend.parts import PieceKey, part_pieces
from rapid_des.frontend.pricing import kernel_node, price
from rapid_des.frontend.program import NEXT, PREVIOUS, ProgramWriter
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
    operators: OperatorModel
    program: ProgramWriter = field(default_factory=ProgramWriter)
    tokens: dict[int, int] = field(default_factory=dict)
    """By micro-batch: the position that makes, or receives, its newest token."""


def inference_trace(job: Job, operators: OperatorModel, decode_operators: OperatorModel) -> JobTrace:
    """Return prefill and decode of all ranks; replicas (dp) serve requests of their own."""
    todo = passes(job)
    programs = []
    for stage in range(job.stages):
        server = _Server(job, stage, operators)
        pieces = _stage_pieces(job, stage, todo, (operators, decode_operators))
        for position, (current, piece) in enumerate(zip(todo, pieces, strict=True)):
            for micro_batch in range(job.micro_batches):
                _place_pass(server, current, piece, micro_batch, last=position == len(todo) - 1)
        programs.append(server.program.finish())
    return job_trace(job, programs, notes=_notes(job, todo))


def _notes(job: Job, todo: Sequence[Pass]) -> tuple[str, ...]:
    simulated, steps = len(todo) - 1, job.inference.output_length - 1
    if simulated == steps:
        return ()
    return (
        f"decode: {simulated} of {steps} steps are simulated, spread evenly; the others are interpolated",
    )


def _stage_pieces(
    job: Job, stage: int, todo: Sequence[Pass], models: tuple[OperatorModel, OperatorModel]
) -> list[Piece]:
    """Return a stage's piece for each pass; decode steps share all but the attention core."""
    prefill = _price_stage(job, stage, todo[0], models[0])
    if len(todo) == 1:
        return [prefill]
    base = _price_stage(job, stage, todo[1], models[1])
    names = np.array([name.endswith(CORE) for name in base.names])
    cores = np.flatnonzero(names[base.rows[:, Column.NAME]])
    found = [prefill]
    for current in todo[1:]:
        core = kernel_node("", serving_shard(job, current).attention()[0], models[1], ())
        values = {Column.DURATION: core.duration, Column.FLOPS: core.flops, Column.BYTES: core.bytes}
        found.append(retimed(base, cores, values))
    return found


def _price_stage(job: Job, stage: int, current: Pass, operators: OperatorModel) -> Piece:
    steps = serving_steps(serving_shard(job, current))
    pieces = {key: price(value, operators) for key, value in steps.items()}
    return chain(part_pieces(job, stage, "forward", pieces))


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
