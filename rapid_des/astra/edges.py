"""Edges of a template, gathered in any order and laid out in rows by origin."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from rapid_des.arrays import Bools, Int32s, Int64s


@dataclass(frozen=True)
class Rows:
    """Edges of origin i are starts[i]..starts[i + 1]."""

    starts: Int64s
    target: Int32s
    lag: Int64s
    at_injection: Bools


@dataclass
class Edges:
    """Edges in the order that they were added, which is the order within a row."""

    _parts: list[tuple[Int64s, Int64s, Int64s, Bools]] = field(default_factory=list)

    def add(
        self, origin: ArrayLike, target: ArrayLike, lag: ArrayLike, *, at_injection: bool = False
    ) -> None:
        """Add edges; the three columns are broadcast against each other."""
        columns = np.broadcast_arrays(
            np.asarray(origin, np.int64), np.asarray(target, np.int64), np.asarray(lag, np.int64)
        )
        one, other, delay = (column.ravel() for column in columns)
        self._parts.append((one, other, delay, np.full(len(one), at_injection)))

    def rows(self, origins: int) -> Rows:
        """Return all edges by origin."""
        origin, target, lag, at_injection = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        order = np.argsort(origin, kind="stable")
        starts = np.concatenate(([0], np.cumsum(np.bincount(origin, minlength=origins)))).astype(np.int64)
        return Rows(starts, target[order].astype(np.int32), lag[order], at_injection[order])
