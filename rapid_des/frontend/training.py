"""One optimizer step: the program of every pipeline stage, from priced pieces and a schedule's items.

After the passes of a schedule come gradient buckets, their reductions, the norm, the optimizer, the gathers.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct, field

from rapid_des.device.operators import OperatorModel
from rapid_des.frontend.job import Job
from rapid_des.frontend.offload import Activations
from rapid_des.frontend.optimizers import (
    gather_buckets,
    gather_unit,
    gathers_once,
    optimizer_step,
    reduce_buckets,
    small_reductions,
    zero_gradients,
)
from rapid_des.frontend.parts import NORMS, PieceKey, Pieces, part_pieces, unit_gathers
from rapid_des.frontend.passes import Interleaved, interleaved, travels
from rapid_des.frontend.schedules.schedule import Item, PassKind, PassResult
from rapid_des.frontend.template import (
    GATE,
    INPUT,
    PARAMETERS,
    SECOND,
    Domain,
    GradientMark,
    PricedPiece,
    chain,
)
from rapid_des.frontend.trace import FinishedProgram, ProgramWriter

Message = tuple[int, PassResult]
"""The stage that sends, and the result that it sends."""


class _TrainingStage(Struct):
    """The state of one stage while its program is written."""

    job: Job
    index: int
    pieces: Mapping[tuple[PassKind, int], tuple[PricedPiece, ...]]
    """Pieces by (phase, chunk), in running order; some are empty."""
    norms: PricedPiece | None
    chained: Mapping[tuple[PassKind, int], PricedPiece]
    """The pieces of (phase, chunk) joined into one, where not empty."""
    last: Mapping[tuple[int, bool], Item]
    """The item that completes the gradients of (chunk, whether deferrable)."""
    arrivals: deque[Message]
    """Messages still to be received, if stages do not post receives in the order of need."""
    program: ProgramWriter
    results: dict[PassResult, int] = field(default_factory=dict)
    newest: int = -1
    """Position of the end of the last item; -1: no item ran yet."""
    before: int = -1
    """Position of the end of the item before it."""
    received: dict[Message, int] = field(default_factory=dict)
    sent: int = -1
    gate: dict[int, int] = field(default_factory=dict)
    """The port of the last message, where the stage waits for each to leave."""
    final: dict[tuple[int, bool], list[GradientMark]] = field(default_factory=dict)
    """The marks where the gradients of (chunk, whether deferrable) became final last."""
    gathered: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """The gathers that the first forward of each chunk waits for."""
    reduced: list[int] = field(default_factory=list)
    """Positions of the gradient reductions so far."""
    offloaded: Activations | None = None
    """The activations on the host; None: none are offloaded."""
    placed: list[tuple[PricedPiece, int]] = field(default_factory=list)
    """The pieces of the newest pass whose gradients are reduced after it, and where each begins."""
    held: dict[tuple[int, int], int] = field(default_factory=dict)
    """The position of the gather of the parameters of (chunk, unit) that are still whole."""
    together: dict[tuple[tuple[PassKind, int], ...], Interleaved | None] = field(default_factory=dict)
    """The pieces of two items interleaved into one, by (phase, chunk) of both; None: they run in turn."""

    def marks(self, chunk: int) -> tuple[GradientMark, ...]:
        """Return the marks of a chunk's whole backward, relative to its start."""
        piece = self.chained.get(("backward", chunk))
        return () if piece is None else piece.marks

    @property
    def chunks(self) -> list[int]:
        """Its chunks in the order of their parts, in which all copies of a part agree."""
        parts = self.job.placement[self.index]
        return sorted(range(len(parts)), key=parts.__getitem__)

    @property
    def parameters(self) -> Counter[Domain]:
        """Number of this rank's parameters, by domain."""
        total = Counter[Domain]()
        for chunk in self.chunks:
            for mark in self.marks(chunk):
                total[mark.domain] += mark.parameters
        return total


def stage_program(job: Job, pieces: Pieces, stage: int, operators: OperatorModel) -> FinishedProgram:
    """Return the program that every rank of one stage runs."""
    state = _open_stage(job, pieces, stage)
    if job.training.offload_activations:
        state.offloaded = Activations(job, stage, operators)
    state.program.issuing(first=0 if job.host is None else job.host.before())
    if gathers_once(job) and job.sharding.ahead:
        for chunk in state.chunks:
            state.gathered[chunk] = gather_buckets(state.program, job, state.marks(chunk), after=())
    zero_gradients(state.program, job, operators, parameters=state.parameters)
    items = iter(job.stage_orders.orders[stage])
    for item in items:
        if item.phase == "wait":
            state.gate = {GATE: state.sent} if state.sent >= 0 else {}
        elif item.paired:
            _place_pair(state, item, next(items))
        else:
            _place_item(state, item)
    _finish_step(state, operators)
    return state.program.finish()


def _open_stage(job: Job, pieces: Pieces, stage: int) -> _TrainingStage:
    always: frozenset[PassKind] = frozenset(("backward",))  # whose marks say where parameters stand
    phases = (job.stage_orders.phases | always) - {"wait"}
    running = {
        (phase, chunk): part_pieces(job, part, phase, pieces)
        for phase in phases
        for chunk, part in enumerate(job.placement[stage])
    }
    chained = {key: chain([piece for piece in value if len(piece)]) for key, value in running.items()
               if any(map(len, value))}  # fmt: skip
    return _TrainingStage(
        job,
        stage,
        running,
        pieces.get(PieceKey(NORMS, "backward", stage)),
        chained,
        last={
            (item.chunk, deferrable): item
            for item in job.stage_orders.orders[stage]
            for deferrable in _COMPLETES.get(item.phase, ())
        },
        arrivals=deque(() if job.asks_by_need else job.stage_orders.arrivals[stage]),
        program=ProgramWriter(job.host, job.batches_messages, _apart(job, stage)),
    )


def _apart(job: Job, stage: int) -> int | None:
    """Return the stage whose messages do not wait for others': who asks ahead asks each neighbour by itself.

    In one line they would wait for whichever neighbour is late. Two stages have no other neighbour.
    """
    return None if job.asks_by_need or job.stages == 2 else (stage + 1) % job.stages


_COMPLETES: Mapping[PassKind, tuple[bool, ...]] = {
    "backward": (False, True),
    "input_gradient": (False,),
    "weight_gradient": (True,),
}
"""Which gradients a phase makes, by whether they are deferrable."""


def _message(job: Job, message: Message) -> tuple[str, int]:
    """Return name and tag of the message that carries what a stage made."""
    stage, result = message
    part = job.placement[stage][result.chunk]
    tag = (result.micro_batch * job.parts + part) * 2 + (result.direction == "backward")
    return "activation" if result.direction == "forward" else "gradient", tag


def _input(state: _TrainingStage, item: Item) -> int | None:
    """Return the position of what `item` consumes, after receiving it where it comes from another stage."""
    job = state.job
    needed = job.stage_orders.needs(state.index, item)
    if needed is None:
        return None
    stage, result = needed
    if stage == state.index:
        return state.results[result]
    if needed not in state.received:
        wanted = [needed] if job.asks_by_need else _asked(state.arrivals, needed)
        state.received.update((message, _receive(state, message)) for message in wanted)
    received = state.received.pop(needed)
    _wait_for_messages(state, received)
    if job.scatters_boundary:
        name = f"receive.{_message(job, needed)[0]}.gather"
        return state.program.message(name, "sp.gather", job.message_bytes, after=(received,))
    return received


def _asked(arrivals: deque[Message], needed: Message) -> list[Message]:
    """Remove and return all messages up to the one that is needed."""
    batch = [arrivals.popleft()]
    while batch[-1] != needed:
        batch.append(arrivals.popleft())
    return batch


def _receive(state: _TrainingStage, message: Message) -> int:
    """Append a receive: asked for ahead of all need, once the item before is done, or while that runs.

    Who asks in the order in which messages are made does so while the item before the one that needs the
    first of them runs, unless its own messages hold it up: an earlier receive occupies the GPU for nothing.
    """
    job, (source, _) = state.job, message
    name, tag = _message(job, message)
    asked: tuple[int, ...] = ()
    if not job.asks_by_need:
        asked = (state.before,) if job.overlaps_pipeline and state.before >= 0 else ()
    elif not (job.overlaps_pipeline or job.schedule.ahead or state.newest < 0):
        asked = (state.newest,)
    return state.program.receive(
        f"receive.{name}", source=source, size=job.message_bytes, tag=tag, after=asked
    )


def _wait_for_messages(state: _TrainingStage, message: int) -> None:
    """Have the host wait for a message, and all that its GPU runs, if the framework does.

    Megatron-LM synchronises after messages between stages, which it sends and receives together, unless they
    travel beside compute.
    """
    job = state.job
    if job.host is not None and "pipeline" in job.host.waits and not job.overlaps_pipeline:
        newest = [state.newest] if state.newest >= 0 else []
        state.program.issuing(after=(*newest, *state.gate.values(), message))


def _send_result(state: _TrainingStage, item: Item) -> None:
    job = state.job
    target = job.stage_orders.consumer(state.index, item)
    if target is None or target == state.index:
        return
    result = PassResult(item.direction, item.micro_batch, item.chunk)
    name, tag = _message(job, (state.index, result))
    state.sent = state.program.send(
        f"send.{name}", to=target, size=job.message_bytes, tag=tag, after=state.results[result]
    )
    if not job.overlaps_pipeline:
        state.gate = {GATE: state.sent}


def _place_item(state: _TrainingStage, item: Item) -> None:
    incoming = _input(state, item)
    ports = state.gate | ({} if incoming is None else {INPUT: incoming})
    start = len(state.program)
    end = _place_pass(state, item, ports)
    _close_item(state, item, start, end, [(piece.marks, begin) for piece, begin in state.placed])


def _place_pair(state: _TrainingStage, first: Item, second: Item) -> None:
    """Place a forward and the backward that runs beside it; one after the other where nothing travels."""
    both = _together(state, first, second)
    if both is None:
        _place_item(state, first)
        _place_item(state, second)
        return
    ports = dict(state.gate)
    for item, port in ((first, INPUT), (second, SECOND)):
        incoming = _input(state, item)
        ports |= {} if incoming is None else {port: incoming}
    start = len(state.program)
    state.program.writer.place(both.piece, ports)
    for item, output, marks in zip((first, second), both.outputs, both.marks, strict=True):
        _close_item(state, item, start, start + output, [(marks, start)])


def _together(state: _TrainingStage, first: Item, second: Item) -> Interleaved | None:
    """Return the pieces of two items as one; None where they run one after the other."""
    keys = (first.phase, first.chunk), (second.phase, second.chunk)
    whole = all(key in state.chained for key in keys) and first.phase == "forward" != second.phase
    # With ep 1 no tokens travel: sums over the ranks that share an expert are no exchange to compute beside.
    whole &= state.offloaded is None and state.job.spec.parallelism.ep > 1
    if not whole or first.chunk in state.gathered or state.job.sharding.policy.by_unit:
        return None
    if keys not in state.together:
        pieces = [state.chained[key] for key in keys]
        state.together[keys] = interleaved(*pieces) if any(map(travels, pieces)) else None
    return state.together[keys]


_Marked: TypeAlias = Sequence[tuple[Sequence[GradientMark], int]]
"""Marks of pieces, with the position where each piece begins."""


def _close_item(state: _TrainingStage, item: Item, start: int, end: int, marked: _Marked) -> None:
    """Note what an item of the rows from `start` on has made, at row `end`, and send it on."""
    state.before, state.newest = state.newest, end
    if item.phase != "weight_gradient":
        state.results[PassResult(item.direction, item.micro_batch, item.chunk)] = state.newest
    for deferrable in _completed(state, item):
        state.final[item.chunk, deferrable] = [
            mark.at(mark.position + begin)
            for marks, begin in marked
            for mark in marks
            if mark.deferrable == deferrable
        ]
    each = state.job.sharding.each and not state.job.sharding.policy.by_unit
    if each and True in _COMPLETES.get(item.phase, ()):
        state.reduced += _reduce_chunk(state, item.chunk)
    state.program.segment(item.phase, start, micro_batch=item.micro_batch, chunk=item.chunk)
    _send_result(state, item)


def _place_pass(state: _TrainingStage, item: Item, ports: Mapping[int, int]) -> int:
    """Place the pieces of an item and return where it ends; a part without layers hands on what it got."""
    state.placed = []
    if item.phase == "forward" and item.chunk in state.gathered:
        return _place_gathered(state, item, ports)
    if (item.phase, item.chunk) not in state.chained:
        return ports[INPUT]
    if state.job.sharding.policy.by_unit:
        return _place_units(state, item, ports)
    if state.offloaded is not None:
        pieces = state.pieces[item.phase, item.chunk]
        output, state.placed = state.offloaded.place(state.program, item, pieces, ports)
        return output
    state.placed = [(state.chained[item.phase, item.chunk], len(state.program))]
    return state.program.writer.place(state.chained[item.phase, item.chunk], ports)


def _place_gathered(state: _TrainingStage, item: Item, ports: Mapping[int, int]) -> int:
    """Place a chunk's first forward, whose sections each wait for the gather of their parameters."""
    waits: list[dict[int, int]] = []
    used, positions = 0, state.gathered.pop(item.chunk)
    for piece in state.pieces["backward", item.chunk]:
        gathered = max(positions[used : used + len(piece.marks)], default=-1)
        waits.append({PARAMETERS: gathered} if gathered >= 0 else {})
        used += len(piece.marks)
    output = ports.get(INPUT, -1)
    pieces = zip(state.pieces["forward", item.chunk], reversed(waits), strict=True)
    for place, (piece, parameters) in enumerate(pieces):
        output = state.program.writer.place(piece, {**ports, **parameters})
        ports = {INPUT: output}
        if state.offloaded is not None:
            state.offloaded.leave(state.program, item, place, output)
    return output


def _reduce_chunk(state: _TrainingStage, chunk: int) -> tuple[int, ...]:
    """Append the reduction of the gradients of a chunk's newest backward; return the positions."""
    after = None if state.job.training.overlap_gradients else state.newest
    marks = state.final.get((chunk, False), []) + state.final.get((chunk, True), [])
    ordered = sorted(marks, key=lambda mark: mark.position)
    return reduce_buckets(state.program, state.job, ordered, after=after)


def _place_units(state: _TrainingStage, item: Item, ports: Mapping[int, int]) -> int:
    """Place a pass whose units each wait for the gather of their parameters, some units ahead of compute.

    A unit is one section: a layer, the embedding, the head. The gather that is furthest ahead begins with a
    unit's compute, when the parameters of the one before may be given back; gradients travel once their unit
    is done. Weight gradients by themselves need no parameters.
    """
    job, chunk, program, moved = state.job, item.chunk, state.program, state.offloaded
    forward, gathers = item.phase == "forward", item.phase != "weight_gradient"
    backward = state.pieces["backward", chunk]
    units = list(range(len(backward)))[:: -1 if forward else 1]
    uses = [0] * len(units) if forward else unit_gathers(job, job.placement[state.index][chunk])
    newest, output = list(ports.values())[-1:], ports.get(INPUT, -1)
    completed = _completed(state, item)
    for place, unit in enumerate(units):
        for ahead in units[place : place + job.training.prefetch + 1] if gathers else ():
            if (chunk, ahead) not in state.held and (forward or len(backward[ahead])):
                state.held[chunk, ahead] = gather_unit(
                    program, job, backward[ahead].marks, newest, again=uses[ahead], reduced=state.reduced
                )
        piece, gathered = state.pieces[item.phase, chunk][place], state.held.get((chunk, unit), -1)
        back = moved.back(program, item, len(backward) - 1 - unit, newest) if moved else {}
        start = len(program)
        if len(piece):
            whole = {PARAMETERS: gathered} if gathers and gathered >= 0 else {}
            output = program.writer.place(piece, {**ports, **whole, **back})
            ports, newest = {INPUT: output}, [output]
        if forward and moved is not None:
            moved.leave(program, item, place, output)
        if gathers and (job.training.reshard or not forward):
            state.held.pop((chunk, unit), None)
        marks = [mark.at(mark.position + start) for mark in piece.marks if mark.deferrable in completed]
        state.reduced += reduce_buckets(program, job, marks, after=None)
    return output


def _completed(state: _TrainingStage, item: Item) -> list[bool]:
    """Return which gradients are reduced after an item: those that it makes, if each or as their last."""
    made = _COMPLETES.get(item.phase, ())
    return [domain for domain in made if state.job.sharding.each or state.last[item.chunk, domain] == item]


def _finish_step(state: _TrainingStage, operators: OperatorModel) -> None:
    job, program = state.job, state.program
    start = len(program)
    if not job.sharding.each and not job.sharding.policy.by_unit:
        for chunk in job.stage_orders.completed_chunks(state.index):
            state.reduced += _reduce_chunk(state, chunk)
    after = (state.newest, *state.reduced)
    done = small_reductions(program, job, state.index, norms=state.norms, after=after)
    last = optimizer_step(program, job, operators, stage=state.index, parameters=state.parameters, after=done)
    if gathers_once(job) and not job.sharding.ahead:
        for chunk in state.chunks:
            gather_buckets(program, job, state.marks(chunk), after=(last,))
    program.segment("optimizer", start)
