"""When every stage is done at the earliest where passes run in pairs, or backwards in two halves.

Items are walked in the order of their schedule, a pair as the frontend interleaves it. What an item does to
its stage is a matrix (see `stream_paths`): each node takes what it takes alone, on streams that keep their
order, so what is left out is what slows nodes, and what else a stage waits for.

Of a long step of pairs a short one is walked in whose middle each stage runs the pairs that are left out, one
after the other, waiting for no other stage. Every stage is cut where as many pairs lie behind it. What one
makes before its cut and another needs after its own is, in the long step, made by a later pair of the same
stage; nothing that is made after a cut is needed before another. So to each chain of waiting in the short
step belongs one in the long step, which is as long or longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field

from rapid_des.arrays import Int64s
from rapid_des.frontend import Job
from rapid_des.frontend.parts import HEAD, ModelSection, PieceKey
from rapid_des.frontend.passes import interleaved, travels
from rapid_des.frontend.schedules.schedule import Item, Order, PassKind, PassResult
from rapid_des.frontend.template import STREAMS, PieceColumn, PricedPiece, chain
from rapid_des.studies.earliest import End, Times
from rapid_des.studies.stream_paths import NEVER, after, paths, power, product, unmoved

_EXCHANGE = STREAMS.index("ep")
_MOST = 1 << 14
"""Items up to which a schedule is walked."""
_PAIRS = ("dualpipe", "dualpipe_v")
"""Schedules whose middle repeats itself, two pairs at a time."""
_MIDDLE = 8
"""How often it does at least in a step that stands for a longer one."""


class Timed(NamedTuple):
    """A piece, and what each of its nodes takes alone in picoseconds."""

    piece: PricedPiece
    durations: Int64s


Pass = tuple[tuple[ModelSection, ...], PassKind]
"""Sections of a part of the model in forward order, and what is done with them."""


class Stretches(Struct, frozen=True):
    """What items and pairs do to their stage."""

    places: Sequence[Mapping[PieceKey, Timed]]
    """All pieces, at each place of ranks whose experts' loads differ."""
    streams: tuple[int, ...]
    by_unit: bool
    """Whether each section waits for its parameters, and nothing runs beside another."""
    known: dict[tuple[Pass, ...], Int64s] = field(default_factory=dict)
    """Matrices by the passes of an item, or of a pair."""

    def of(self, passes: tuple[Pass, ...]) -> Int64s:
        """Return the matrix of an item, or of two that run beside each other: at the quickest place."""
        if passes not in self.known:
            matrices = [self._matrix(passes, pieces) for pieces in self.places]
            self.known[passes] = np.minimum.reduce(matrices)
        return self.known[passes]

    def _matrix(self, passes: tuple[Pass, ...], pieces: Mapping[PieceKey, Timed]) -> Int64s:
        timed = [chained for one in passes if (chained := _chained(one, pieces)) is not None]
        if not timed:
            return unmoved(len(self.streams))
        if len(timed) == 1:
            return paths(*timed[0], self.streams, (timed[0].piece.output,) * 2)
        both = interleaved(timed[0].piece, timed[1].piece)
        durations = np.empty(len(both.piece), np.int64)
        for rows, each in zip(both.rows, timed, strict=True):
            durations[rows] = each.durations
        return paths(both.piece, durations, self.streams, both.outputs)

    def together(self, passes: tuple[Pass, ...]) -> bool:
        """Tell whether two passes run beside each other."""
        pieces = self.places[0]
        chains = [[pieces[key].piece for key in _keys(one) if len(pieces[key].piece)] for one in passes]
        beside = all(chains) and passes[0][1] == "forward" != passes[1][1] and not self.by_unit
        return beside and any(travels(piece) for pieces in chains for piece in pieces)


def _keys(one: Pass) -> list[PieceKey]:
    sections, phase = one
    return [PieceKey(section, phase) for section in (sections if phase == "forward" else sections[::-1])]


def _chained(one: Pass, pieces: Mapping[PieceKey, Timed]) -> Timed | None:
    """Return the pieces of a pass as one; None where it has none."""
    timed = [pieces[key] for key in _keys(one) if len(pieces[key].piece)]
    if not timed:
        return None
    return Timed(chain([each.piece for each in timed]), np.concatenate([each.durations for each in timed]))


def streams_of(places: Sequence[Mapping[PieceKey, Timed]]) -> tuple[int, ...]:
    """Return all streams that pieces use, that of kernels first."""
    rows = [timed.piece.rows[:, PieceColumn.STREAM] for pieces in places for timed in pieces.values()]
    return tuple(sorted({0, *np.concatenate(rows).tolist()}))


def times_beside(places: Sequence[Mapping[PieceKey, Timed]]) -> tuple[Times, Times]:
    """Return what sections take at least, forward and backward, where another pass may run beside them.

    Of the stream of kernels, with what these wait for but exchanges among experts; and of such exchanges.
    What both passes of a pair need of a stream they need one after the other.
    """
    kernels, exchanges = (
        {key: _of_places(places, key, stream) for key in places[0]} for stream in (0, _EXCHANGE)
    )
    return _whole(kernels), _whole(exchanges)


def _of_places(places: Sequence[Mapping[PieceKey, Timed]], key: PieceKey, stream: int) -> int:
    """Return how long a piece needs a stream at least."""
    return min(_needed(pieces[key], stream) for pieces in places)


def _needed(timed: Timed, stream: int) -> int:
    travels = timed.piece.rows[:, PieceColumn.STREAM] == _EXCHANGE
    if stream == _EXCHANGE:
        return int(timed.durations[travels].sum())
    streams = streams_of([{PieceKey(HEAD, "forward"): timed}])
    durations = np.where(travels, NEVER, timed.durations)
    return int(paths(timed.piece, durations, streams, ())[0, 0]) if len(timed.piece) else 0


def _whole(times: Mapping[PieceKey, int]) -> Times:
    """Return what forwards take, and backwards: whole or in halves, whichever is less."""
    found = {(key.section, False): time for key, time in times.items() if key.phase == "forward"}
    for key, time in times.items():
        if key.phase == "backward":
            halves = [PieceKey(key.section, phase) for phase in ("input_gradient", "weight_gradient")]
            apart = sum(times[half] for half in halves) if halves[0] in times else time
            found[key.section, True] = min(time, apart)
    return found


def walked_in_pairs(job: Job) -> int | None:
    """Return of how many of its micro-batches a step is walked here; None if it takes too long.

    >>> from rapid_des.frontend import load_job
    >>> walked_in_pairs(load_job("deepseek_v3_train_2048"))
    48
    """
    count = job.micro_batches
    if job.training.schedule in _PAIRS:
        count = min(count, 2 * job.stages + 2 * _MIDDLE)
    items = 4 * count * job.stages * job.shape.chunks
    return count if items <= _MOST and not job.training.offload_activations else None


def drained_in_pairs(
    job: Job,
    parts: Sequence[tuple[ModelSection, ...]],
    stretches: Stretches,
    message: Mapping[tuple[int, int], int],
    left_out: int = 0,
) -> list[End]:
    """Return when each stage's passes are done at the earliest, for a step of `left_out` more micro-batches.

    `parts` are the sections of each part of the model, `message` what one takes from a stage to another.
    """
    walk = _Walk(job, parts, stretches, message)
    walk.run(left_out // 2 if job.training.schedule == "dualpipe" else left_out)
    return [End(int(stage.free[0]), min(stage.last_backward.values(), default=0)) for stage in walk.stages]


class _Stage(Struct):
    order: Order
    free: Int64s
    """When its streams are."""
    place: int = 0
    """Of the next item in its order."""
    gate: int = 0
    """When its newest message has left, if it waits for that."""
    last_backward: dict[int, int] = field(default_factory=dict)
    """By chunk: when its newest backward begins, or the first half of that."""


class _Walk(Struct, dict=True):
    job: Job
    parts: Sequence[tuple[ModelSection, ...]]
    stretches: Stretches
    message: Mapping[tuple[int, int], int]
    made: dict[tuple[int, PassResult], int] = field(default_factory=dict)
    """When what a stage made is there."""

    known: dict[tuple[tuple[int, PassKind], ...], Int64s | None] = field(default_factory=dict)
    """Matrices by part and phase of each item."""

    def __post_init__(self) -> None:
        streams = len(self.stretches.streams)
        orders = self.job.stage_orders.orders
        self.stages = [
            _Stage(tuple(item for item in order if item.phase != "wait"), np.zeros(streams, np.int64))
            for order in orders
        ]
        self.waits = not self.job.overlaps_pipeline

    def run(self, left_out: int) -> None:
        """Run all stages, each as far as it gets, until all are done; `left_out`: turns of their middle."""
        cuts = [self._cut(number) if left_out else -1 for number in range(len(self.stages))]
        moved = True
        while moved:
            moved = False
            for number, stage in enumerate(self.stages):
                while stage.place < len(stage.order):
                    items = stage.order[stage.place : stage.place + 1 + stage.order[stage.place].paired]
                    there = [self._there(number, item) for item in items]
                    if None in there:
                        break
                    if stage.place == cuts[number]:
                        stage.free = after(self._middle(number, left_out), stage.free)
                    self._pass(number, items, [moment for moment in there if moment is not None])
                    stage.place += len(items)
                    moved = True

    def _cut(self, number: int) -> int:
        """Return where in a stage's order half of the turns of its middle lie behind that all stages have.

        What a stage runs before its first turn says `frontend.schedules`.
        """
        stages, distance = len(self.stages), number
        half = stages
        if self.job.training.schedule == "dualpipe":
            half, distance = stages // 2, min(number, stages - 1 - number)
        forwards = [place for place, item in enumerate(self.stages[number].order) if item.phase == "forward"]
        return forwards[3 * half - 1 - distance + _MIDDLE // 2 * 2]

    def _middle(self, number: int, times: int) -> Int64s:
        """Return the matrix of so many turns of a stage's middle, from its cut on."""
        stage = self.stages[number]
        pairs = (stage.order[stage.place : stage.place + 2], stage.order[stage.place + 2 : stage.place + 4])
        turn = unmoved(len(stage.free))[:-2, :-2]
        for items in pairs:
            for each in [items] if self._matrix(number, items) is not None else [[item] for item in items]:
                matrix = self._matrix(number, each)
                assert matrix is not None, "one item always has one"
                turn = product(matrix[:-2, :-2], turn)
        return power(turn, times)

    def _there(self, number: int, item: Item) -> int | None:
        """Return when what an item needs is there; None: it is not known yet."""
        needed = self.job.stage_orders.needs(number, item)
        if needed is None:
            return 0
        made = self.made.get(needed)
        return None if made is None else made + self.message.get((needed[0], number), 0)

    def _matrix(self, number: int, items: Sequence[Item]) -> Int64s | None:
        """Return what an item, or a pair, does to its stage; None where a pair runs one by one."""
        placed = self.job.placement[number]
        key = tuple((placed[item.chunk], item.phase) for item in items)
        if key not in self.known:
            passes = tuple((self.parts[part], phase) for part, phase in key)
            beside = len(passes) == 1 or self.stretches.together(passes)
            self.known[key] = self.stretches.of(passes) if beside else None
        return self.known[key]

    def _pass(self, number: int, items: Sequence[Item], there: Sequence[int]) -> None:
        """Run an item, or a pair, whose inputs are there."""
        matrix, stage = self._matrix(number, items), self.stages[number]
        if matrix is None:
            for item, moment in zip(items, there, strict=True):
                self._pass(number, [item], [moment])
            return
        inputs = [max(moment, stage.gate) for moment in (there[0], there[-1])]
        for item, moment in zip(items, inputs, strict=False):
            if item.phase in ("backward", "input_gradient"):
                stage.last_backward[item.chunk] = max(int(stage.free[0]), moment)
        ends = after(matrix, np.concatenate([stage.free, inputs]))
        stage.free, made = ends[:-2], ends[-2:].tolist()
        for item, end in zip(items, made, strict=False):
            if item.phase != "weight_gradient":
                self._send(number, item, end)

    def _send(self, number: int, item: Item, end: int) -> None:
        """Note what an item has made, and where that has to leave before its stage goes on, when it has."""
        self.made[number, PassResult(item.direction, item.micro_batch, item.chunk)] = end
        target = self.job.stage_orders.consumer(number, item)
        if self.waits and target is not None and target != number:
            self.stages[number].gate = end + self.message.get((number, target), 0)
