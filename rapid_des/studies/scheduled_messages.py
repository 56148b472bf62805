"""A collective's schedule as a trace of sends and receives, so that any algorithm runs on any machine.

Every transfer is a send and a receive with streams of their own; it waits for the receives that the
schedule names. This serves algorithms that no trace can ask for by name: those of a file, and those that know
the fabric.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rapid_des.chakra.trace import UNSTATED, NodeKind, NodeTable, RankTrace, TraceSet
from rapid_des.errors import UnsupportedByEngine
from rapid_des.network.collectives import Schedule


@dataclass
class _Rank:
    """One rank's nodes in the making; positions stand in the order of the schedule."""

    kind: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    peer: list[int] = field(default_factory=list)
    tag: list[int] = field(default_factory=list)
    waits: list[list[int]] = field(default_factory=list)

    def add(self, kind: NodeKind, size: int, peer: int, tag: int, waits: list[int]) -> int:
        for column, value in zip(
            (self.kind, self.size, self.peer, self.tag), (kind, size, peer, tag), strict=True
        ):
            column.append(int(value))
        self.waits.append(waits)
        return len(self.kind) - 1


def messages(schedule: Schedule, group: Sequence[int]) -> TraceSet:
    """Return the trace in which the ranks `group` play `schedule`, member i being group[i].

    `UnsupportedByEngine` if switches take part: they can not send by themselves in a replay of messages.
    """
    if schedule.switches:
        raise UnsupportedByEngine("switches that reduce or multiply data can not be replayed as messages")
    ranks = [_Rank() for _ in range(schedule.members)]
    arrival = np.full(len(schedule), UNSTATED, dtype=np.int64)
    """Where each transfer (or join) stands in its destination's list."""
    ends = zip(schedule.source.tolist(), schedule.destination.tolist(), schedule.size.tolist(), strict=True)
    for number, (source, destination, size) in enumerate(ends):
        start, stop = schedule.dependency_starts[number : number + 2]
        awaited = schedule.dependencies[start:stop]
        here = schedule.destination[awaited] == source
        waits = arrival[awaited[here]].tolist()
        if source == destination:
            arrival[number] = ranks[source].add(NodeKind.COMPUTE, 0, UNSTATED, 0, waits)
            continue
        ranks[source].add(NodeKind.SEND, size, destination, number, waits)
        arrival[number] = ranks[destination].add(NodeKind.RECV, size, source, number, [])
    peers = tuple(group)
    traces = [RankTrace(rank, _table(nodes), peers=peers) for rank, nodes in zip(group, ranks, strict=True)]
    return TraceSet(tuple(sorted(traces, key=lambda trace: trace.rank)), {"world": tuple(group)})


def _table(nodes: _Rank) -> NodeTable:
    count = len(nodes.kind)
    none = np.full(count, UNSTATED)
    zero = np.zeros(count, dtype=np.int64)
    kind = np.array(nodes.kind, dtype=np.int8)
    return NodeTable(
        ids=np.arange(count, dtype=np.uint64),
        kind=kind,
        name=np.zeros(count, dtype=np.int32),
        stream=np.arange(count, dtype=np.int32),
        duration=np.where(kind == NodeKind.COMPUTE, 0, UNSTATED).astype(np.int64),
        size=np.array(nodes.size, dtype=np.int64),
        collective=none.astype(np.int8),
        group=none.astype(np.int32),
        peer=np.array(nodes.peer, dtype=np.int32),
        tag=np.array(nodes.tag, dtype=np.int64),
        priority=zero,
        flops=zero,
        tensor_bytes=zero,
        on_cpu=np.zeros(count, dtype=np.bool_),
        dependency_starts=np.concatenate(([0], np.cumsum([len(row) for row in nodes.waits]))).astype(
            np.int64
        ),
        dependencies=np.array([other for row in nodes.waits for other in row], dtype=np.int32),
        names=("transfer",),
        streams=tuple(f"transfer-{index}" for index in range(count)),
    )
