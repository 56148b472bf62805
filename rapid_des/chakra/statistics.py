"""How much a trace holds: nodes by kind, collectives and bytes, work, depth; by rank and in total."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.chakra.dependencies import Edges, topological_order
from rapid_des.chakra.kernels import longest_paths, on_arrays
from rapid_des.chakra.trace import UNSTATED, CollectiveType, NodeKind, NodeTable, TraceSet
from rapid_des.values import asdict


class RankStatistics(Struct, frozen=True):
    """Counts of one rank; times in picoseconds, sizes in bytes."""

    rank: int
    nodes: int
    dependencies: int
    kinds: dict[str, int]
    collectives: dict[str, int]
    collective_bytes: dict[str, int]
    sent_bytes: int
    received_bytes: int
    compute_time: int
    """The sum of the stated durations of compute nodes, in picoseconds."""
    untimed: int
    """The number of compute nodes without a stated duration."""
    flops: int
    depth: int
    """The number of nodes on the longest chain of dependencies."""
    groups: int


def rank_statistics(traces: TraceSet) -> tuple[RankStatistics, ...]:
    """Return the counts of every rank; ranks that share a table are counted once."""
    known: dict[int, dict[str, Any]] = {}
    rows = []
    for rank, table in zip(traces.ranks, traces.table_numbers(), strict=True):
        if table not in known:
            known[table] = _table_counts(rank.nodes)
        rows.append(RankStatistics(rank=rank.rank, groups=len(rank.groups), **known[table]))
    return tuple(rows)


def totals(rows: tuple[RankStatistics, ...]) -> dict[str, Any]:
    """Return sums over the ranks, and the deepest rank's depth."""
    sums: dict[str, Any] = {"ranks": len(rows)}
    for name in ("nodes", "dependencies", "sent_bytes", "received_bytes", "compute_time", "untimed", "flops"):
        sums[name] = sum(getattr(row, name) for row in rows)
    for name in ("kinds", "collectives", "collective_bytes"):
        counter: Counter[str] = Counter()
        for row in rows:
            counter.update(getattr(row, name))
        sums[name] = dict(sorted(counter.items()))
    sums["depth"] = max((row.depth for row in rows), default=0)
    return sums


def statistics_json(rows: tuple[RankStatistics, ...]) -> dict[str, Any]:
    """Return the statistics as plain values for JSON."""
    return {"total": totals(rows), "ranks": [asdict(row) for row in rows]}


def _table_counts(nodes: NodeTable) -> dict[str, Any]:
    kinds = np.bincount(nodes.kind, minlength=len(NodeKind))
    collective = nodes.kind == NodeKind.COLLECTIVE
    compute = nodes.kind == NodeKind.COMPUTE
    stated = compute & (nodes.duration != UNSTATED)
    sizes = np.maximum(nodes.size, 0)
    counts, amounts = {}, {}
    for kind in CollectiveType:
        rows = collective & (nodes.collective == kind)
        if rows.any():
            counts[kind.name.lower()] = int(rows.sum())
            amounts[kind.name.lower()] = int(sizes[rows].sum())
    return {
        "nodes": len(nodes),
        "dependencies": len(nodes.dependencies),
        "kinds": {kind.name.lower(): int(kinds[kind]) for kind in NodeKind if kinds[kind]},
        "collectives": counts,
        "collective_bytes": amounts,
        "sent_bytes": int(sizes[nodes.kind == NodeKind.SEND].sum()),
        "received_bytes": int(sizes[nodes.kind == NodeKind.RECV].sum()),
        "compute_time": int(nodes.duration[stated].sum()),
        "untimed": int((compute & ~stated).sum()),
        "flops": int(nodes.flops.sum()),
        "depth": int(depths(nodes).max(initial=0)),
    }


def edges_of(nodes: NodeTable) -> Edges:
    """Return a table's dependencies as pairs of rows."""
    counts = np.diff(nodes.dependency_starts)
    return Edges(np.repeat(np.arange(len(nodes)), counts), nodes.dependencies.astype(np.int64))


def depths(nodes: NodeTable) -> Int64s:
    """Return for each node how many nodes the longest chain that ends in it has."""
    return path_lengths(nodes, np.ones(len(nodes), np.int64))


def path_lengths(nodes: NodeTable, weights: Int64s) -> Int64s:
    """Return for each node the largest sum of weights along a chain of dependencies that ends in it."""
    order = topological_order(edges_of(nodes), len(nodes))
    lengths = np.zeros(len(nodes), np.int64)
    needs = nodes.dependencies.astype(np.int64)
    on_arrays(longest_paths, len(needs), (order, nodes.dependency_starts, needs, weights), (lengths,))
    return lengths
