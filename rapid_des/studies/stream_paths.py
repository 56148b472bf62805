"""How long a stretch of a rank's program keeps its streams: matrices of (max, +), which can be chained.

A stream runs its nodes one at a time in their order, each once what it waits for has ended (R1). If every
node lasts as long as alone, then whenever a stretch begins, the moments at which its streams are free again
and its results are there are maxima over when streams were free and inputs there, each plus a time: that of
the longest path between the two. So a stretch is a matrix of such times, and one behind another is their
product (Baccelli, Cohen, Olsder and Quadrat, Synchronization and Linearity, 1992). Nothing that slows a node
is in it: it is a bound from below.
"""

from __future__ import annotations

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
    place = {stream: number for number, stream in enumerate(streams)}
    before = unmoved(len(streams))
    free, ports = list(before[:-2]), {INPUT: before[-2], SECOND: before[-1]}
    on = [place[stream] for stream in piece.rows[:, PieceColumn.STREAM].tolist()]
    ended = list[Int64s]()
    for stream, duration, after in zip(on, durations.tolist(), piece.edges.by_row(), strict=True):
        moment = free[stream]
        for other in after:
            if other in ports:
                moment = np.maximum(moment, ports[other])
            elif other >= 0 and on[other] != stream:  # those on its own stream end before that is free
                moment = np.maximum(moment, ended[other])
        free[stream] = moment + duration
        ended.append(free[stream])
    return np.array([*free, *(ended[output] for output in outputs)])


def moments(piece: PricedPiece, durations: Int64s, others: int = 0) -> list[int]:
    """Return when each row of a piece is done, in picoseconds, if kernels may start at 0.

    `others`: when all other streams are free, and what comes from outside is there.
    """
    ended, free = list[int](), {0: 0}
    streams = piece.rows[:, PieceColumn.STREAM].tolist()
    for stream, duration, after in zip(streams, durations.tolist(), piece.edges.by_row(), strict=True):
        begun = max([ended[other] for other in after if other >= 0], default=others)
        free[stream] = max(begun, free.get(stream, others)) + duration
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


def product(later: Int64s, earlier: Int64s) -> Int64s:
    """Return the matrix of one stretch behind another, of streams alone."""
    chained: Int64s = np.maximum.reduce(later[:, :, None] + earlier, axis=1, initial=NEVER)
    return chained
