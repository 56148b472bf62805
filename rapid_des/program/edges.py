"""Dependencies between visits, or between transfers, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rapid_des.arrays import Bools, Int32s, Int64s, starts_by

Rows = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Edges:
    """Dependencies in any order, a row each."""

    origin: Rows
    target: Rows
    lag: Int64s | int = 0
    """A number: all lag alike."""
    at_start: Bools | bool = False
    """Which are anchored at the origin's start, a task's injection."""

    def by_origin(self, origins: int) -> tuple[Int64s, Int32s, Int64s, Bools]:
        """Return where the rows of each origin start, and targets, lags and anchors, ascending by target.

        What is alike for all takes no memory.
        """
        lag, at_start = np.asarray(self.lag, np.int64), np.asarray(self.at_start, np.bool_)
        key = self.origin.astype(np.int64)
        key *= int(self.target.max(initial=0)) + 1
        key += self.target
        key *= 2
        key += at_start
        starts, target = starts_by(self.origin, origins), self.target.astype(np.int32, copy=False)
        if not (key[1:] >= key[:-1]).all():
            order = np.argsort(key, kind="stable")  # of one key: rows that nearly stand in order cost little
            target = target[order]
            lag = lag[order] if lag.ndim else lag
            at_start = at_start[order] if at_start.ndim else at_start
        return starts, target, np.broadcast_to(lag, target.shape), np.broadcast_to(at_start, target.shape)


def edges(origin: ArrayLike, target: ArrayLike, lag: ArrayLike = 0, *, at_start: bool = False) -> Edges:
    """Return edges of columns of any shapes, which are broadcast against each other."""
    columns = np.broadcast_arrays(np.asarray(origin), np.asarray(target))
    rows = [column.ravel() for column in columns]
    lags = np.asarray(lag, np.int64)
    if not lags.ndim:
        return Edges(rows[0], rows[1], int(lags), at_start)
    return Edges(rows[0], rows[1], np.broadcast_to(lags, columns[0].shape).ravel(), at_start)


def joined(parts: Sequence[Edges]) -> Edges:
    """Return the edges of all parts."""
    counts = [len(part.origin) for part in parts]
    return Edges(
        np.concatenate([part.origin for part in parts]),
        np.concatenate([part.target for part in parts]),
        _one_after_another([part.lag for part in parts], counts, np.int64),
        _one_after_another([part.at_start for part in parts], counts, np.bool_),
    )


def _one_after_another(columns: Sequence[Any], counts: Sequence[int], dtype: type[np.generic]) -> Any:
    """Return columns joined, each of which may be one value; one value if that is all of them."""
    if all(np.ndim(column) == 0 and column == columns[0] for column in columns):
        return columns[0]
    rows = (np.broadcast_to(column, count) for column, count in zip(columns, counts, strict=True))
    return np.concatenate(list(rows), dtype=dtype)
