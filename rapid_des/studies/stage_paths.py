"""The earliest end of every stage where passes run in pairs, or where backward passes run in two halves.

A matrix (see `stream_paths`) states what an item of a schedule does to the streams of its stage, if each node
takes as long as it does alone. A stage runs its items in order. The product of their matrices is therefore
the least time of the stage, without its waits for other stages. Items repeat, so a long product is computed
from two halves, and equal halves are computed once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field

from rapid_des.arrays import Int64s
from rapid_des.frontend.parts import ModelSection, PieceKey
from rapid_des.frontend.passes import interleaved, travels
from rapid_des.frontend.schedules.schedule import PassKind, StageOrders
from rapid_des.frontend.template import STREAMS, PieceColumn, PricedPiece, chain
from rapid_des.studies.closed_form_bounds import End, Times
from rapid_des.studies.made_of import Parts
from rapid_des.studies.stream_paths import NEVER, moments, paths, product, unmoved

_EXCHANGE = STREAMS.index("ep")
Pass = tuple[tuple[ModelSection, ...], PassKind]
"""The sections of a part of the model in forward order, and what is done with them."""


class Timed(NamedTuple):
    """A piece, and what each of its nodes takes alone in picoseconds."""

    piece: PricedPiece
    durations: Int64s


class Runs(Struct, frozen=True):
    """The runs of each stage: a run is an item or a pair of items, by the kinds of their parts."""

    kinds: tuple[tuple[tuple[int, PassKind], ...], ...]
    """The distinct runs; each of their items is the kind of its part, and its phase."""
    stages: tuple[tuple[int, ...], ...]
    """The position in `kinds` of each run of each stage, in order."""
    last: tuple[int, ...]
    """The run, by stage, with the last backward of the chunk that finishes first."""

    @classmethod
    def of(cls, orders: StageOrders, parts: Parts) -> Runs:
        """Return the runs of all stages."""
        kinds: dict[tuple[tuple[int, PassKind], ...], int] = {}
        stages, last = [], []
        for held, order in zip(orders.placement, orders.orders, strict=True):
            runs, last_of = list[int](), dict[int, int]()
            items = iter(item for item in order if item.phase != "wait")
            for item in items:
                pair = (item, next(items)) if item.paired else (item,)
                last_of |= {one.chunk: len(runs) for one in pair if one.direction == "backward"
                            and one.phase != "weight_gradient"}  # fmt: skip
                run = tuple((parts.kind_of[held[one.chunk]], one.phase) for one in pair)
                runs.append(kinds.setdefault(run, len(kinds)))
            stages.append(tuple(runs))
            last.append(min(last_of.values()))
        return cls(tuple(kinds), tuple(stages), tuple(last))


class StagePaths(Struct, dict=True):
    """The matrices of passes that run on one stage, alone or two beside each other."""

    places: Sequence[Mapping[PieceKey, Timed]]
    """All pieces, for each of the ranks whose experts' loads differ."""
    by_unit: bool
    """Whether each section waits for its parameters, and nothing runs beside another."""
    known: dict[tuple[Pass, ...], Int64s] = field(default_factory=dict)

    @cached_property
    def streams(self) -> tuple[int, ...]:
        """All streams that pieces use, that of kernels first."""
        rows = [
            timed.piece.rows[:, PieceColumn.STREAM] for pieces in self.places for timed in pieces.values()
        ]
        return tuple(sorted({0, *np.concatenate(rows).tolist()}))

    def ends(self, runs: Runs, parts: Parts, *, whole: bool) -> list[End]:
        """Return the earliest end of each stage; `whole`: no backward is split into halves."""
        forward, backward = (
            [self._through((kind.sections, phase)) for kind in parts.kinds] for phase in _WHOLE
        )
        to, back = [0], [0]
        for kind in parts.kind_of:
            to.append(to[-1] + forward[kind])
            back.append(back[-1] + (backward[kind] if whole else 0))
        matrices = [
            self.of(tuple((parts.kinds[kind].sections, phase) for kind, phase in run)) for run in runs.kinds
        ]
        known: dict[tuple[int, ...], Int64s] = {
            (number,): matrix[:-2, :-2] for number, matrix in enumerate(matrices)
        }
        done = list[End]()
        for held, items, last in zip(parts.placement, runs.stages, runs.last, strict=True):
            begun, first = to[min(held)], in_a_row(items[:last], known)[0, 0] if last else 0
            drained = begun + int(in_a_row(items, known)[0, 0]) + back[min(held)]
            done.append(End(drained, begun + int(first)))
        return done

    def _through(self, one: Pass) -> int:
        """Return how long a pass takes from its input to its result."""
        return max(0, int(self.of((one,))[-2, -2]))

    def of(self, passes: tuple[Pass, ...]) -> Int64s:
        """Return the matrix of one pass, or of two that overlap where they can, at the fastest place."""
        if passes not in self.known:
            self.known[passes] = self._made(passes)
        return self.known[passes]

    def _made(self, passes: tuple[Pass, ...]) -> Int64s:
        matrix = unmoved(len(self.streams))
        if len(passes) == 2 and self._together(passes):
            return _least([self._beside(passes, pieces) for pieces in self.places])
        if len(passes) == 2:  # the second waits for streams alone, not for what the first has made
            singles = [self.of((one,))[:-2, :-2] for one in passes]
            matrix[:-2, :-2] = product(singles[1], singles[0])
            return matrix
        ((sections, phase),) = passes
        if len(sections) == 1:
            return _least([self._section(PieceKey(sections[0], phase), pieces) for pieces in self.places])
        for section in sections if phase == "forward" else sections[::-1]:
            matrix = product(self.of((((section,), phase),)), matrix)
        return matrix

    def _section(self, key: PieceKey, pieces: Mapping[PieceKey, Timed]) -> Int64s:
        piece, durations = pieces[key]
        if not len(piece):
            return unmoved(len(self.streams))
        return paths(piece, durations, self.streams, (piece.output,) * 2)

    def _beside(self, passes: tuple[Pass, ...], pieces: Mapping[PieceKey, Timed]) -> Int64s:
        first, second = (_chained(_timed(one, pieces)) for one in passes)
        both = interleaved(first.piece, second.piece)
        durations = np.empty(len(both.piece), np.int64)
        for rows, each in zip(both.rows, (first, second), strict=True):
            durations[rows] = each.durations
        return paths(both.piece, durations, self.streams, both.outputs)

    def _together(self, passes: tuple[Pass, ...]) -> bool:
        """Return whether two passes overlap."""
        chains = [[timed.piece for timed in _timed(one, self.places[0])] for one in passes]
        beside = all(chains) and passes[0][1] == "forward" != passes[1][1] and not self.by_unit
        return beside and any(travels(piece) for pieces in chains for piece in pieces)


def _least(matrices: Sequence[Int64s]) -> Int64s:
    least: Int64s = np.minimum.reduce(matrices)
    return least


_WHOLE: tuple[PassKind, PassKind] = ("forward", "backward")


def times_beside(places: Sequence[Mapping[PieceKey, Timed]]) -> tuple[Times, Times]:
    """Return the least times of sections, forward and backward, where another pass may overlap with them.

    The first result is for the stream of kernels, with all that kernels wait for except exchanges among
    experts. The second is for these exchanges. Two passes of a pair use a stream one after the other.
    """
    needed = [{key: _needed(timed) for key, timed in pieces.items()} for pieces in places]
    kernels, exchanges = ({key: min(of[key][at] for of in needed) for key in needed[0]} for at in (0, 1))
    return _whole(kernels), _whole(exchanges)


def _needed(timed: Timed) -> tuple[int, int]:
    """Return how long a piece needs the stream of kernels, and that of exchanges."""
    streams, durations = timed.piece.rows[:, PieceColumn.STREAM], timed.durations
    ends = moments(timed.piece, np.where(streams == _EXCHANGE, NEVER, durations), NEVER)
    kernels = [end for end, stream in zip(ends, streams.tolist(), strict=True) if stream == 0]
    return kernels[-1] if kernels else 0, int(durations[streams == _EXCHANGE].sum())


def _whole(times: Mapping[PieceKey, int]) -> Times:
    """Return the times of forwards and backwards; a backward takes the less of whole and in halves."""
    found = {(key.section, key.phase != "forward"): times[key] for key in times if key.phase in _WHOLE}
    for section in {key.section for key in times if key.phase == "input_gradient"}:
        halves = times[PieceKey(section, "input_gradient")] + times[PieceKey(section, "weight_gradient")]
        found[section, True] = min(found[section, True], halves)
    return found


def in_a_row(runs: tuple[int, ...], known: dict[tuple[int, ...], Int64s]) -> Int64s:
    """Return the matrix of several runs in order; `known` has those of single runs, and gets all others."""
    if runs not in known:
        half = 1 << (len(runs) - 1).bit_length() - 1
        known[runs] = product(in_a_row(runs[half:], known), in_a_row(runs[:half], known))
    return known[runs]


def _timed(one: Pass, pieces: Mapping[PieceKey, Timed]) -> list[Timed]:
    """Return the pieces of a pass in the order in which they run, without empty ones."""
    sections, phase = one
    keys = [PieceKey(section, phase) for section in (sections if phase == "forward" else sections[::-1])]
    return [pieces[key] for key in keys if len(pieces[key].piece)]


def _chained(timed: Sequence[Timed]) -> Timed:
    return Timed(chain([each.piece for each in timed]), np.concatenate([each.durations for each in timed]))
