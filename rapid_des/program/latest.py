"""The latest time of each moment: the least latest time of what follows it, minus the distance to that.

Moments are numbered; the edges that lead to a moment stand in a row of ragged rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rapid_des.arrays import Bools, Int64s, starts_by
from rapid_des.compiling import CompiledKernel
from rapid_des.compiling.kinds import Int64Column

_INTERPRETED = 50_000
"""The edges from which on compiled code is faster even if it must be loaded first."""


def latest_times(
    edges: tuple[Int64s, Int64s, Int64s], moments: int, end: int, *, compiled: bool | None = None
) -> tuple[Int64s, Bools]:
    """Return the latest time of each moment in the edges' unit, and whether it is known.

    Edges are the moments from which and to which they lead, and their least distances. Moments that nothing
    follows have time until `end`. On a cycle, and before one, no latest time is known. `compiled`: whether
    compiled code walks back, or Python; None: whoever is faster.

    >>> latest_times((np.array([0, 1]), np.array([1, 2]), np.array([3, 5])), 3, 10)[0].tolist()
    [2, 5, 10]
    """
    origin, target, lag = edges
    order = np.argsort(target, kind="stable")
    pending = np.bincount(origin, minlength=moments).astype(np.int64)
    ready = np.full(moments, moments, np.int64)
    last = np.flatnonzero(pending == 0)
    ready[: len(last)] = last
    columns: list[Any] = [starts_by(target[order], moments), origin[order], lag[order]]
    columns += [pending, ready, np.full(moments, end, np.int64)]
    if compiled is None:
        compiled = _compiled_walk.is_loaded or len(order) > _INTERPRETED
    if not compiled:  # lists are indexed several times faster
        columns = [column.tolist() for column in columns]
    (_compiled_walk if compiled else _walk_back)(len(last), *columns)
    return np.array(columns[5], np.int64), np.array(columns[3], np.int64) == 0


def _walk_back(  # noqa: PLR0913 - columns, as kernels take them
    count: int,
    starts: Int64Column,
    origin: Int64Column,
    lag: Int64Column,
    pending: Int64Column,
    ready: Int64Column,
    latest: Int64Column,
) -> None:
    """Compute latest times from the `count` moments on that are `ready`: all that follows them is done."""
    place = 0
    while place < count:
        moment = ready[place]
        place += 1
        for edge in range(starts[moment], starts[moment + 1]):
            before = origin[edge]
            latest[before] = min(latest[before], latest[moment] - lag[edge])
            pending[before] -= 1
            if pending[before] == 0:
                ready[count] = before
                count += 1


_compiled_walk = CompiledKernel(_walk_back)
