"""Passes in pieces: backwards cut in two, and forwards beside backwards of another micro-batch.

A backward is cut into the gradients of inputs, which the stage before waits for, and those of weights.

A forward and a backward of two micro-batches run as one stretch of program. Both lists are cut behind their
exchanges of tokens among experts, and the parts take turns, the backward's first: while one list's tokens
travel, the other computes (DeepSeek-AI 2024, figure 4; Megatron Core's combined forward and backward). Every
stream keeps one order, that of the parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s, ranges, starts_of
from rapid_des.device.operators import Gemm, Vector
from rapid_des.frontend.groups import byte_count
from rapid_des.frontend.operations import Operation
from rapid_des.frontend.template import (
    INPUT,
    SECOND,
    STREAMS,
    GradientMark,
    PieceColumn,
    PieceEdges,
    PricedPiece,
)
from rapid_des.values import replace


class BackwardHalves(NamedTuple):
    """Two operator lists; the second starts when the first is done."""

    inputs: tuple[Operation, ...]
    weights: tuple[Operation, ...]


def backward_halves(operations: Sequence[Operation]) -> BackwardHalves:
    """Return a backward's list in two halves: all but weight gradients, then weight gradients.

    A list is written in the order of one stream, so an operation may stand behind a weight gradient that it
    does not need: it waits for what stands before that instead.
    """
    waits = _without_deferrable(operations)
    deferred = {place for place, operation in enumerate(operations) if operation.deferrable}
    for place in reversed(range(len(operations))):
        consumers = [other for other, after in enumerate(waits) if place in after]
        if consumers and deferred.issuperset(consumers):
            deferred.add(place)
    immediate = [place for place in range(len(operations)) if place not in deferred]
    return BackwardHalves(
        _selected(operations, waits, immediate), _selected(operations, waits, sorted(deferred))
    )


def _without_deferrable(operations: Sequence[Operation]) -> list[tuple[int, ...]]:
    """Return what each operation waits for; what is not deferrable waits for nothing that is."""
    standing: list[int] = []
    """For each place: itself, or the last before it that is not deferrable."""
    for place, operation in enumerate(operations):
        before = standing[-1] if standing else INPUT
        standing.append(before if operation.deferrable else place)
    return [
        operation.after
        if operation.deferrable
        else tuple(dict.fromkeys(standing[other] if other >= 0 else other for other in operation.after))
        for operation in operations
    ]


def _selected(
    operations: Sequence[Operation], waits: Sequence[tuple[int, ...]], places: Sequence[int]
) -> tuple[Operation, ...]:
    """Return some of the operations; what they need of others has been made before."""
    number = {place: index for index, place in enumerate(places)}
    return tuple(
        replace(
            operations[place], after=tuple(dict.fromkeys(number.get(other, INPUT) for other in waits[place]))
        )
        for place in places
    )


def gradient_bytes(operation: Operation) -> int:
    """Return the bytes of the gradient that a weight gradient multiplies or scatters; a bias shares it."""
    operator = operation.operator
    if isinstance(operator, Gemm):
        return byte_count(operator.batch * operator.m * operator.k, operator.dtype)
    if isinstance(operator, Vector) and operator.kind == "embedding_gradient":
        return byte_count(operator.rows * operator.columns, operator.dtype)
    return 0


def following(first: Sequence[Operation], operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """Return a list with another appended, whose input is the end of the first."""
    count = len(first)
    moved = (
        replace(each, after=tuple(other + count if other >= INPUT else other for other in each.after))
        for each in operations
    )
    return (*first, *moved)


def joined(*lists: Sequence[Operation]) -> tuple[Operation, ...]:
    """Return lists concatenated; each waits for the end of the one before."""
    whole: tuple[Operation, ...] = ()
    for operations in lists:
        whole = following(whole, operations)
    return whole


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
    # `order`: rows of both (the backward's behind the forward's) as they will stand; `place` is its inverse.
    order = np.concatenate(list(_merge_order(forward, backward)))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    rows = place[: len(forward)], place[len(forward) :]
    names = tuple(dict.fromkeys((*forward.names, *backward.names)))
    numbers = {name: number for number, name in enumerate(names)}
    columns = [_named(piece, numbers) for piece in (forward, backward)]
    counts = np.concatenate([forward.edges.counts, backward.edges.counts])
    targets = np.concatenate([_moved(forward, rows[0], {}), _moved(backward, rows[1], {INPUT: SECOND})])
    # The dependencies of the rows in their new order.
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
