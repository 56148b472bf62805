"""What the host of a rank issues, as edges of its program: those that can make a difference.

Between two moments at which it must wait, the host issues one kernel, collective or message after the other
and runs ahead of its GPU. So the issue of the k-th is the host's start plus a sum that is known before the
run: one visit stands for the host's whole stretch, and every node that it issues has an edge from that
visit's *start* (R1). Most of these edges say nothing new: a kernel whose predecessor on its stream can not
be done before it is issued waits for that one anyway. They are left out, exactly: with F(j) the least time
from the host's start to the finish of j, the edge of k with lag L(k) follows from an order j before k with
F(j) ≥ L(k), and F(k) ≥ max(L(k), F(j)) + work(k).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rapid_des.arrays import Bools, Int64s, rows_of
from rapid_des.chakra.trace import UNSTATED, NodeKind, NodeTable
from rapid_des.program.edges import Edges

_SERVES = (NodeKind.COMPUTE, NodeKind.MEM_LOAD, NodeKind.MEM_STORE)


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
    """Yield the nodes of each ordered stream that one node of the host issues, in program order."""
    ordered = np.array([name not in unordered for name in nodes.streams], np.bool_)
    rows = np.flatnonzero((nodes.issuer != UNSTATED) & ordered[nodes.stream])
    rows = rows[np.lexsort((rows, nodes.issuer[rows], nodes.stream[rows]))]
    changes = (np.diff(nodes.issuer[rows]) != 0) | (np.diff(nodes.stream[rows]) != 0)
    yield from (part for part in np.split(rows, np.flatnonzero(changes) + 1) if len(part))


def _by_dependencies(nodes: NodeTable, lags: Int64s, finish: Int64s) -> Bools:
    """Tell whose issue follows from a dependency of the same issuer."""
    waiting = rows_of(np.diff(nodes.dependency_starts))
    before = nodes.dependencies
    tells = (nodes.issuer[before] == nodes.issuer[waiting]) & (finish[before] >= lags[waiting])
    told = np.zeros(len(nodes), np.bool_)
    told[waiting[tells]] = True
    return told
