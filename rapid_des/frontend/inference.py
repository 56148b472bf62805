"""A static batch served: one prefill, then one token a step with a growing KV cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.device.operators import OperatorModel
from rapid_des.frontend.ends import embedding_forward, sampling
from rapid_des.frontend.job import Job
from rapid_des.frontend.operations import Operation
from rapid_des.frontend.parts import (
    EMBEDDING,
    HEAD,
    Lists,
    PieceKey,
    Pieces,
    Section,
    part_pieces,
    sections,
)
from rapid_des.frontend.prices import price
from rapid_des.frontend.routing import exchanges
from rapid_des.frontend.shard import Shard, byte_count
from rapid_des.frontend.template import INPUT, Column, Piece, chain, retimed
from rapid_des.frontend.trace import FinishedProgram, ProgramWriter

COSTS = (Column.DURATION, Column.FLOPS, Column.BYTES, Column.BOUND)
"""What a longer KV cache changes in the rows that depend on it."""


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


def pass_lists(job: Job, current: Pass, place: int = 0) -> dict[Section, tuple[Operation, ...]]:
    """Return the operator list of each section in one pass of one micro-batch; `place` as in training."""
    shard = replace(serving_shard(job, current), expert_place=place)
    layers = {Section("block", kind): layer.forward(shard) for kind, layer in enumerate(job.kinds)}
    return {EMBEDDING: embedding_forward(shard), **layers, HEAD: sampling(shard)}


def serving_lists(job: Job, place: int = 0) -> Lists:
    """Return the operator lists of all passes, as `pass_key` names them, of ranks at one place along ep.

    Of decode steps after the first, only what sees the KV cache: the rest is as in the first.
    """
    simulated = passes(job)
    lists: dict[PieceKey, tuple[Operation, ...]] = {}
    for current in simulated[:2]:
        for section, operations in pass_lists(job, current, place).items():
            lists[pass_key(section, current.step, simulated)] = operations
    for current in simulated[2:]:
        for kind, layer in enumerate(job.kinds):
            key = pass_key(Section("block", kind), current.step, simulated)
            lists[key] = layer.layer.on_cache(serving_shard(job, current))
    return lists


def serving_shard(job: Job, current: Pass) -> Shard:
    """Return a rank's dimensions in one pass of one micro-batch."""
    spec = job.inference
    sequences = spec.micro_batch or spec.batch
    return job.shard(sequences, current.query_length, current.key_length)


def serving_notes(job: Job) -> tuple[str, ...]:
    """Return what a user must know of the simulated passes."""
    simulated, steps = len(passes(job)) - 1, job.inference.output_length - 1
    if simulated == steps:
        return ()
    return (
        f"decode: {simulated} of {steps} steps are simulated, spread evenly; the others are interpolated",
    )


def pass_key(section: Section, step: int, simulated: Sequence[Pass]) -> PieceKey:
    """Return which piece a pass runs for a section: decode steps differ in their blocks only."""
    grows = section.name == "block"
    return PieceKey(section, "forward", step=step if grows or not step else simulated[1].step)


def serving_pieces(
    job: Job, lists: Lists, operators: OperatorModel, decode_operators: OperatorModel
) -> Pieces:
    """Return `serving_lists` as priced pieces.

    Decode steps after the first are copies of it, but for the rows that see the KV cache.
    """
    complete = passes(job)[:2]
    pieces: dict[PieceKey, Piece] = {}
    for key, operations in lists.items():
        host = None if captures(job, key.step) else job.host
        piece = price(operations, decode_operators if key.step else operators, host, exchanges(job))
        if key.step > complete[-1].step:
            first = pieces[pass_key(key.section, complete[-1].step, complete)]
            piece = _recosted(first, piece.rows[:, COSTS])
        pieces[key] = piece
    return pieces


def captures(job: Job, step: int) -> bool:
    """Tell whether a pass is launched as one CUDA graph; step 0 is the prefill."""
    captured = "nothing" if job.host is None else job.host.captured
    return captured == "passes" or (captured == "decode" and step > 0)


def _issuing(server: _Server, step: int, micro_batch: int) -> None:
    """Have the host issue a pass when it has the tokens that the pass before made."""
    host, token = server.job.host, server.tokens.get(micro_batch)
    if host is not None:
        first = step == micro_batch == server.stage == 0
        before = host.before(captured=captures(server.job, step), first=first)
        server.program.issuing(first=before, after=() if token is None else (token,))


def _recosted(piece: Piece, costs: Int64s) -> Piece:
    """Return a piece with other costs (rows of `COSTS`) where it depends on the KV cache."""
    values = {column: costs[:, index] for index, column in enumerate(COSTS)}
    return retimed(piece, list(piece.cache_rows), values)


def _stage_passes(job: Job, stage: int, pieces: Pieces) -> Iterator[Piece]:
    """Yield a stage's piece of each pass: prefill, first decode step, and that at other lengths."""
    simulated = passes(job)
    order = [section for section, _ in sections(job, stage)]
    for number, current in enumerate(simulated):
        here = {
            PieceKey(section, "forward"): pieces[pass_key(section, current.step, simulated)]
            for section in set(order)
        }
        if number < 2:
            joined = chain(part_pieces(job, stage, "forward", here))
        else:
            costs = {key.section: piece.rows[np.ix_(piece.cache_rows, COSTS)] for key, piece in here.items()}
            joined = _recosted(joined, np.concatenate([costs[section] for section in order]))
        yield joined


@dataclass
class _Server:
    """One stage's passes while its program is written."""

    job: Job
    stage: int
    program: ProgramWriter
    tokens: dict[int, int] = field(default_factory=dict)
    """By micro-batch: the position that makes, or receives, its newest token."""


def serving_program(job: Job, stage: int, pieces: Pieces) -> FinishedProgram:
    """Return the program that every rank of one stage runs, given the pieces of all passes."""
    server = _Server(job, stage, ProgramWriter(job.host))
    simulated = passes(job)
    for current, piece in zip(simulated, _stage_passes(job, stage, pieces), strict=True):
        for micro_batch in range(job.micro_batches):
            _place_pass(server, current, piece, micro_batch, last=current is simulated[-1])
    return server.program.finish()


def _place_pass(server: _Server, current: Pass, piece: Piece, micro_batch: int, *, last: bool) -> None:
    job, stage, program = server.job, server.stage, server.program
    boundary = serving_shard(job, current).boundary_bytes
    number = current.step * job.micro_batches + micro_batch
    ports: dict[int, int] = {}
    _issuing(server, current.step, micro_batch)
    if stage:
        arrived = program.receive(
            "receive.activation", source=stage - 1, size=boundary, tag=number * job.stages + stage - 1
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
        program.send("send.activation", to=stage + 1, size=boundary, tag=tag, after=done)
    if not last and job.stages > 1:
        _pass_token(server, number, micro_batch, done)


def _pass_token(server: _Server, number: int, micro_batch: int, done: int) -> None:
    """Bring the sampled tokens from the last stage back to the first."""
    job, program = server.job, server.program
    spec = job.inference
    size = byte_count(spec.micro_batch or spec.batch, "fp32")
    tag = number * job.stages + job.stages - 1
    if server.stage == job.stages - 1:
        program.send("send.token", to=0, size=size, tag=tag, after=done)
    elif server.stage == 0:
        server.tokens[micro_batch] = program.receive(
            "receive.token", source=job.stages - 1, size=size, tag=tag
        )


def decode_time(samples: Sequence[tuple[int, int]], first: int, last: int) -> int:
    """Return the total of all steps first..last from sampled (step, picoseconds), linear in between.

    >>> decode_time([(1, 100), (3, 300)], 1, 3)
    600
    """
    if last < first:
        return 0
    steps, times = zip(*sorted(samples), strict=True)
    return int(np.ceil(np.interp(np.arange(first, last + 1), steps, times).sum()))
