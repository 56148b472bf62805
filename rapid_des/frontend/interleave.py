"""A forward and a backward of two micro-batches as one stretch of program, each beside the other's exchanges.

Both lists are cut behind their exchanges of tokens among experts, and the parts take turns, the backward's
first: while one list's tokens travel, the other computes (DeepSeek-AI 2024, figure 4; Megatron Core's
combined forward and backward). Every stream keeps one order, that of the parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s, ranges, starts_of
from rapid_des.frontend.template import (
    INPUT,
    SECOND,
    STREAMS,
    GradientMark,
    PieceColumn,
    PieceEdges,
    PricedPiece,
)

_EXCHANGE = STREAMS.index("ep")


class Interleaved(Struct, frozen=True, eq=False):
    """Two pieces as one; the input of the second is the port `SECOND`."""

    piece: PricedPiece
    """The combined piece; its result is the result of the first one."""
    rows: tuple[Int64s, Int64s]
    """The rows of each piece in the combined one."""
    marks: tuple[tuple[GradientMark, ...], tuple[GradientMark, ...]]
    """The marks of each piece, at rows of the combined one."""
    outputs: tuple[int, int]
    """The row of each piece's result in the combined one."""


def travels(piece: PricedPiece) -> bool:
    """Return whether a piece sends tokens to experts."""
    return bool((piece.rows[:, PieceColumn.STREAM] == _EXCHANGE).any())


def interleaved(forward: PricedPiece, backward: PricedPiece) -> Interleaved:
    """Return a forward and a backward that take turns at their exchanges of tokens.

    What each waits for within itself, and its results, stay as they are; both pieces' gates and gathered
    parameters are those of the whole.
    """
    order = np.concatenate(list(_merge_order(forward, backward)))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    rows = place[: len(forward)], place[len(forward) :]
    names = tuple(dict.fromkeys((*forward.names, *backward.names)))
    numbers = {name: number for number, name in enumerate(names)}
    columns = [_named(piece, numbers) for piece in (forward, backward)]
    counts = np.concatenate([forward.edges.counts, backward.edges.counts])
    targets = np.concatenate([_moved(forward, rows[0], {}), _moved(backward, rows[1], {INPUT: SECOND})])
    rows_taken = ranges(starts_of(counts)[:-1][order], counts[order])
    outputs = int(rows[0][forward.output]), int(rows[1][backward.output])
    whole = PricedPiece(
        np.concatenate(columns)[order],
        names,
        PieceEdges(counts[order], targets[rows_taken]),
        output=outputs[0],
    )
    marks = tuple(
        mark.at(int(places[mark.position]))
        for piece, places in zip((forward, backward), rows, strict=True)
        for mark in piece.marks
    )
    first = len(forward.marks)
    return Interleaved(whole, rows, (marks[:first], marks[first:]), outputs)


def _merge_order(forward: PricedPiece, backward: PricedPiece) -> Iterator[Int64s]:
    """Yield stretches of rows, those of the backward numbered behind the forward's."""
    for late, early in zip_longest(_stretches(backward, len(forward)), _stretches(forward, 0)):
        yield from (part for part in (late, early) if part is not None)


def _stretches(piece: PricedPiece, first: int) -> list[Int64s]:
    """Return the rows in parts: each ends with an exchange, except the last."""
    ends = np.flatnonzero(piece.rows[:, PieceColumn.STREAM] == _EXCHANGE) + 1
    parts = np.split(np.arange(first, first + len(piece)), ends)
    return [part for part in parts if len(part)]


def _named(piece: PricedPiece, numbers: Mapping[str, int]) -> Int64s:
    rows = piece.rows.copy()
    number_of = np.array([numbers[name] for name in piece.names], np.int64)
    rows[:, PieceColumn.NAME] = number_of[rows[:, PieceColumn.NAME]]
    return rows


def _moved(piece: PricedPiece, rows: Int64s, ports: Mapping[int, int]) -> Int64s:
    """Return a piece's dependencies with its rows' new places, and some ports renamed."""
    targets = piece.edges.targets
    moved = np.where(targets >= 0, rows[np.maximum(targets, 0)], targets)
    for port, other in ports.items():
        moved[targets == port] = other
    return moved
