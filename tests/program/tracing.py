"""Traces in a few lines: nodes by streams, ranks that share them."""

from __future__ import annotations

from typing import Any

import numpy as np

from rapid_des.chakra.trace import UNSTATED, CollectiveType, NodeKind, NodeTable, RankTrace, TraceSet

NANOSECOND = 1000
ALL_REDUCE, ALL_GATHER, BARRIER = CollectiveType.ALL_REDUCE, CollectiveType.ALL_GATHER, CollectiveType.BARRIER


class Nodes:
    """The operator list of one or more ranks; every method returns the new node's position."""

    def __init__(self) -> None:
        self.rows: list[dict[str, int]] = []
        self.after: list[tuple[int, ...]] = []
        self.streams: list[str] = []
        self.groups: list[str] = []
        self.peers: list[int] = []

    def compute(self, duration, *, stream="compute", after=(), priority=0, **work) -> int:
        """Work of `duration` picoseconds, or if that is UNSTATED of `flops` and `tensor_bytes`."""
        return self._add(NodeKind.COMPUTE, stream, after, duration=duration, priority=priority, **work)

    def host(self, duration, *, after=()) -> int:
        """The host, which issues for `duration`; `issue` says what it issues when."""
        return self._add(NodeKind.COMPUTE, "host", after, duration=duration, on_cpu=True)

    def issue(self, node, host, when) -> int:
        """Node `node` is issued `when` picoseconds after node `host` starts."""
        self.rows[node] |= {"issuer": host, "issued": when}
        return int(node)

    def collective(self, kind, size, group="world", *, stream="dp", after=(), priority=0) -> int:
        """A collective with an input buffer of `size` bytes."""
        slot = _slot(self.groups, group)
        return self._add(
            NodeKind.COLLECTIVE, stream, after, collective=kind, size=size, group=slot, priority=priority
        )

    def send(self, peer, size, *, tag=0, stream="send", after=(), priority=0) -> int:
        """A message to rank `peer`."""
        slot = _slot(self.peers, peer)
        return self._add(NodeKind.SEND, stream, after, size=size, peer=slot, tag=tag, priority=priority)

    def recv(self, peer, size, *, tag=0, stream="recv", after=(), priority=0) -> int:
        """A message from rank `peer`."""
        slot = _slot(self.peers, peer)
        return self._add(NodeKind.RECV, stream, after, size=size, peer=slot, tag=tag, priority=priority)

    def _add(self, kind, stream, after, **values) -> int:
        self.rows.append({"kind": kind, "stream": _slot(self.streams, stream), **values})
        self.after.append(tuple(after) if isinstance(after, (tuple, list)) else (after,))
        return len(self.rows) - 1

    def table(self, *, ids=None) -> NodeTable:
        """The node table; ids are 0, 1, … unless given."""

        def column(name, dtype, default=0):
            return np.array([row.get(name, default) for row in self.rows], dtype)

        count = len(self.rows)
        flat = [before for row in self.after for before in row]
        return NodeTable(
            ids=np.arange(count, dtype=np.uint64) if ids is None else np.array(ids, np.uint64),
            kind=column("kind", np.int8),
            name=np.arange(count, dtype=np.int32),
            stream=column("stream", np.int32),
            duration=column("duration", np.int64),
            size=column("size", np.int64),
            collective=column("collective", np.int8, UNSTATED),
            group=column("group", np.int32, UNSTATED),
            peer=column("peer", np.int32, UNSTATED),
            tag=column("tag", np.int64),
            priority=column("priority", np.int64),
            flops=column("flops", np.int64),
            tensor_bytes=column("tensor_bytes", np.int64),
            on_cpu=column("on_cpu", np.bool_),
            issuer=column("issuer", np.int32, UNSTATED),
            issued=column("issued", np.int64),
            bound=column("bound", np.int8, UNSTATED),
            dependency_starts=np.concatenate(([0], np.cumsum([len(row) for row in self.after]))).astype(
                np.int64
            ),
            dependencies=np.array(flat, np.int32),
            names=tuple(f"node{place}" for place in range(count)),
            streams=tuple(self.streams),
        )

    def reordered(self, order) -> Nodes:
        """The same nodes with old position order[i] at position i."""
        place = {old: new for new, old in enumerate(order)}
        other = Nodes()
        other.streams, other.groups, other.peers = self.streams, self.groups, self.peers
        other.rows = [self.rows[old] for old in order]
        other.after = [tuple(place[before] for before in self.after[old]) for old in order]
        return other


def _slot(table: list[Any], value) -> int:
    if value not in table:
        table.append(value)
    return table.index(value)


def trace_set(programs, groups=None, *, unordered=()) -> TraceSet:
    """One rank for each of `programs` (`Nodes`), in order; "world" is all of them."""
    groups = {"world": tuple(range(len(programs)))} | (groups or {})
    ranks = tuple(
        RankTrace(rank, nodes.table(), tuple(nodes.groups), tuple(nodes.peers))
        for rank, nodes in enumerate(programs)
    )
    return TraceSet(ranks, groups, frozenset(unordered))


def same_everywhere(nodes, ranks, groups_of=None, peers_of=None, *, groups=None, unordered=()) -> TraceSet:
    """`ranks` ranks that share one table; `groups_of(rank)`, `peers_of(rank)`: what their slots mean."""
    table = nodes.table()
    traces = tuple(
        RankTrace(
            rank,
            table,
            tuple(groups_of(rank)) if groups_of else tuple(nodes.groups),
            tuple(peers_of(rank)) if peers_of else tuple(nodes.peers),
        )
        for rank in range(ranks)
    )
    return TraceSet(traces, {"world": tuple(range(ranks))} | (groups or {}), frozenset(unordered))
