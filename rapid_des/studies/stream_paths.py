"""How long a stretch of a rank's program keeps its streams: matrices of (max, +), which can be chained.

A stream runs its nodes one at a time in their order, each once what it waits for has ended (R1). If every
node lasts as long as alone, then whenever a stretch begins, the moments at which its streams are free again
and its results are there are maxima over when streams were free and inputs there, each plus a time: that of
the longest path between the two. So a stretch is a matrix of such times, and one behind another is their
product (Baccelli, Cohen, Olsder and Quadrat, Synchronization and Linearity, 1992). Nothing that slows a node
is in it: it is a bound from below.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.frontend.template import INPUT, SECOND, PieceColumn, PricedPiece

NEVER = -(1 << 57)
"""No path leads there; whatever is added to it is still long before any start."""


def paths(piece: PricedPiece, durations: Int64s, streams: Sequence[int], outputs: Sequence[int]) -> Int64s:
    """Return a piece as a matrix: a row a stream and result, a column a stream and input, in picoseconds.

    `durations` of its rows; `streams` are all that it may use; `outputs` the rows that hold its results.
    Inputs are those of the ports INPUT and SECOND, for which whatever else a piece waits for counts too.
    """
    count = len(streams) + 2
    place = {stream: number for number, stream in enumerate(streams)}
    before = unmoved(len(streams))
    free, ports = before[:-2].copy(), {INPUT: before[-2], SECOND: before[-1]}
    ended = np.empty((len(piece), count), np.int64)
    on = [place[stream] for stream in piece.rows[:, PieceColumn.STREAM].tolist()]
    for row, (stream, duration, after) in enumerate(
        zip(on, durations.tolist(), piece.edges.by_row(), strict=True)
    ):
        moment = free[stream]
        for other in after:
            if other >= 0:
                np.maximum(moment, ended[other], out=moment)
            elif other in ports:
                np.maximum(moment, ports[other], out=moment)
        moment += duration
        ended[row] = moment
    return np.concatenate([free, ended[list(outputs)]])


def moments(piece: PricedPiece, durations: Int64s) -> list[int]:
    """Return when each row of a piece is done that starts on idle streams, in picoseconds."""
    ended, free = list[int](), Counter[int]()
    streams = piece.rows[:, PieceColumn.STREAM].tolist()
    for stream, duration, after in zip(streams, durations.tolist(), piece.edges.by_row(), strict=True):
        begun = max((ended[other] for other in after if other >= 0), default=0)
        free[stream] = max(begun, free[stream]) + duration
        ended.append(free[stream])
    return ended


def longest(piece: PricedPiece, durations: Int64s) -> int:
    """Return the picoseconds from a piece's start on idle streams to its result."""
    return moments(piece, durations)[piece.output] if len(piece) else 0


def unmoved(streams: int) -> Int64s:
    """Return the matrix of a stretch without nodes, whose results are its inputs."""
    matrix = np.full((streams + 2, streams + 2), NEVER, np.int64)
    np.fill_diagonal(matrix, 0)
    return matrix


def after(matrix: Int64s, moments: Int64s) -> Int64s:
    """Return when streams are free and results there of a stretch, given when they were before it."""
    ends: Int64s = (matrix + moments).max(axis=1)
    return ends


def product(later: Int64s, earlier: Int64s) -> Int64s:
    """Return the matrix of one stretch behind another, of streams alone."""
    chained: Int64s = (later[:, :, None] + earlier[None, :, :]).max(axis=1)
    return np.maximum(chained, NEVER)


def power(matrix: Int64s, times: int) -> Int64s:
    """Return the matrix of a stretch so many times in a row, of streams alone."""
    result = unmoved(len(matrix) - 2)
    while times:
        if times % 2:
            result = product(matrix, result)
        matrix, times = product(matrix, matrix), times // 2
    return result
