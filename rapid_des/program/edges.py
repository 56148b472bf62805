"""Dependencies between visits, or between transfers, as columns; and those by which a host issues work.

Between two moments at which it must wait, the host issues one kernel, collective or message after the other
and runs ahead of its GPU. So the issue of the k-th is the host's start plus a sum that is known before the
run: one visit stands for the host's whole stretch, and every node that it issues has an edge from that
visit's *start* (R1). Most of these edges say nothing new: a kernel whose predecessor on its stream can not
be done before it is issued waits for that one anyway. They are left out, exactly: with F(j) the least time
from the host's start to the finish of j, the edge of k with lag L(k) follows from an order j before k with
F(j) ≥ L(k), and F(k) ≥ max(L(k), F(j)) + work(k).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rapid_des.arrays import Bools, Int32s, Int64s, rows_of, starts_by
from rapid_des.chakra.trace import UNSTATED, NodeKind, NodeTable

Rows = NDArray[np.integer[Any]]
_SERVES = (NodeKind.COMPUTE, NodeKind.MEM_LOAD, NodeKind.MEM_STORE)


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


def issue_edges(nodes: NodeTable, durations: Int64s, unordered: frozenset[str]) -> Edges | None:
    """Return the edges from starts of the host's nodes to what these issue, between nodes of the table.

    `durations` are the nodes' picoseconds, which faults and neighbours may only lengthen. None: nothing is
    issued.
    """
    issued = np.flatnonzero(nodes.issuer != UNSTATED)
    if not len(issued):
        return None
    lags = np.maximum(nodes.issued, 1)
    finish, told = _by_streams(nodes, lags, np.where(np.isin(nodes.kind, _SERVES), durations, 0), unordered)
    told |= _by_dependencies(nodes, lags, finish)
    needed = issued[~told[issued]]
    return Edges(nodes.issuer[needed], needed, lags[needed], at_start=True)


def _by_streams(
    nodes: NodeTable, lags: Int64s, work: Int64s, unordered: frozenset[str]
) -> tuple[Int64s, Bools]:
    """Return the least finish of each node after its issuer's start, and whose issue its stream implies."""
    finish, told = lags + work, np.zeros(len(nodes), np.bool_)
    for rows in _stretches(nodes, unordered):
        after = np.cumsum(work[rows])
        latest = np.maximum.accumulate(lags[rows] - after + work[rows])
        finish[rows] = latest + after
        told[rows[1:]] = lags[rows[1:]] <= finish[rows[:-1]]
    return finish, told


def _stretches(nodes: NodeTable, unordered: frozenset[str]) -> Iterator[Int64s]:
    """Yield the nodes of each ordered stream, if several, that one node of the host issues, in order."""
    ordered = np.array([name not in unordered for name in nodes.streams], np.bool_)
    rows = np.flatnonzero((nodes.issuer != UNSTATED) & ordered[nodes.stream])
    rows = rows[np.lexsort((rows, nodes.issuer[rows], nodes.stream[rows]))]
    changes = (np.diff(nodes.issuer[rows]) != 0) | (np.diff(nodes.stream[rows]) != 0)
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(rows)]
    yield from (rows[begin:end] for begin, end in pairwise(bounds) if end - begin > 1)


def _by_dependencies(nodes: NodeTable, lags: Int64s, finish: Int64s) -> Bools:
    """Tell whose issue follows from a dependency of the same issuer."""
    waiting = rows_of(np.diff(nodes.dependency_starts))
    before = nodes.dependencies
    tells = (nodes.issuer[before] == nodes.issuer[waiting]) & (finish[before] >= lags[waiting])
    told = np.zeros(len(nodes), np.bool_)
    told[waiting[tells]] = True
    return told
