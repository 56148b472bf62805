"""Traces made in code: kernels beside collectives, shifts, irregular messages, and schedules as messages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field

from rapid_des.arrays import Int64s, starts_of
from rapid_des.chakra.trace import (
    BOUNDS,
    UNSTATED,
    CollectiveType,
    NodeKind,
    NodeTable,
    RankTrace,
    TraceSet,
    node_table,
)
from rapid_des.errors import UnsupportedByEngine
from rapid_des.network.collectives import Schedule

_MESSAGE_SIZES = (64 * 1024, 1024 * 1024)
"""The least and the largest size of irregular messages, in bytes."""


class GpuKernel(Struct, frozen=True):
    """A kernel of a trace: what bounds it, its picoseconds without contention, and its HBM bytes."""

    bound: str
    duration: int
    hbm_bytes: int = 0


def beside(
    ranks: Sequence[int], kernel: GpuKernel, collective: CollectiveType, size: int, *, waits: bool = False
) -> TraceSet:
    """Return a trace in which every rank runs a kernel and a collective, which may wait for the kernel."""
    nodes = node_table(
        [NodeKind.COMPUTE, NodeKind.COLLECTIVE],
        [0, size],
        duration=[kernel.duration, UNSTATED],
        tensor_bytes=[kernel.hbm_bytes, 0],
        bound=[BOUNDS.index(kernel.bound), UNSTATED],
        collective=[UNSTATED, collective],
        group=[UNSTATED, 0],
        name=[0, 1],
        stream=[0, 1],
        names=("kernel", collective.name.lower()),
        streams=("compute", "dp"),
        waits=[[], [0] if waits else []],
    )
    traces = tuple(RankTrace(rank, nodes, groups=("world",)) for rank in ranks)
    return TraceSet(traces, {"world": tuple(ranks)})


def shift(ranks: int, by: int, size: int) -> TraceSet:
    """Return a trace in which every rank sends `size` bytes to the rank `by` above it, modulo `ranks`.

    If `by` is the GPUs of a group, it is the worst case of a dragonfly with minimal routes (Kim, Dally, Scott
    and Abts, ISCA 2008): all messages of a group go to one other group.
    """
    nodes = node_table(
        [NodeKind.SEND, NodeKind.RECV], [size] * 2, peer=[0, 1], stream=[0, 1], streams=("send", "recv")
    )
    traces = [
        RankTrace(rank, nodes, peers=((rank + by) % ranks, (rank - by) % ranks)) for rank in range(ranks)
    ]
    return TraceSet(tuple(traces), {"world": tuple(range(ranks))})


def irregular(ranks: int, messages: int, *, stream: str) -> TraceSet:
    """Return a trace in which every rank sends messages of random sizes to random ranks at once."""
    random = np.random.default_rng(1)
    source = np.repeat(np.arange(ranks), messages)
    destination = (source + random.integers(1, ranks, len(source))) % ranks
    size = random.integers(*_MESSAGE_SIZES, len(source))
    sent_by, received_by = _entries_of_each(source, ranks), _entries_of_each(destination, ranks)
    traces = []
    for rank, (sent, received) in enumerate(zip(sent_by, received_by, strict=True)):
        others = np.concatenate((destination[sent], source[received]))
        peers, slot = np.unique(others, return_inverse=True)
        message = np.concatenate((sent, received))
        kinds = np.repeat([NodeKind.SEND, NodeKind.RECV], [len(sent), len(received)])
        nodes = node_table(kinds, size[message], peer=slot.reshape(-1), tag=message, streams=(stream,))
        traces.append(RankTrace(rank, nodes, peers=tuple(peers.tolist())))
    return TraceSet(tuple(traces), {"world": tuple(range(ranks))}, frozenset({stream}))


def _entries_of_each(column: Int64s, count: int) -> list[Int64s]:
    """Return where a column has each of the values below `count`."""
    starts = starts_of(np.bincount(column, minlength=count))
    return np.split(np.argsort(column, kind="stable"), starts[1:-1])


class _RankNodes(Struct):
    """Builds the nodes of one rank, in the order of the schedule."""

    kind: list[NodeKind] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    peer: list[int] = field(default_factory=list)
    tag: list[int] = field(default_factory=list)
    waits: list[list[int]] = field(default_factory=list)

    def add(self, kind: NodeKind, size: int, peer: int, tag: int, waits: list[int]) -> int:
        """Append a node; return its position."""
        self.kind.append(kind)
        self.size.append(size)
        self.peer.append(peer)
        self.tag.append(tag)
        self.waits.append(waits)
        return len(self.kind) - 1

    def table(self, *, group: int = UNSTATED) -> NodeTable:
        """Return the nodes, each on its own stream; all messages go through one group if stated."""
        return node_table(
            self.kind,
            self.size,
            peer=self.peer,
            tag=self.tag,
            stream=range(len(self.kind)),
            duration=[0 if kind == NodeKind.COMPUTE else UNSTATED for kind in self.kind],
            waits=self.waits,
            group=[UNSTATED if kind == NodeKind.COMPUTE else group for kind in self.kind],
            streams=tuple(f"transfer-{index}" for index in range(len(self.kind))),
        )


def messages(schedule: Schedule, group: Sequence[int], *, together: bool = False) -> TraceSet:
    """Return the trace in which the ranks `group` play `schedule`, member i being group[i].

    Any algorithm can so run on any machine, also one that a trace cannot name: from a file, or made for the
    fabric. Every transfer is a send and a receive with streams of their own; it waits for the receives that
    the schedule names. Transfers share one communicator of the group if `together`; else each pair has one.
    `UnsupportedByEngine` if switches take part: they cannot send by themselves in a replay of messages.
    """
    if schedule.switches:
        raise UnsupportedByEngine("switches that reduce or multiply data cannot be replayed as messages")
    ranks = [_RankNodes() for _ in range(schedule.members)]
    arrival = np.full(len(schedule), UNSTATED, dtype=np.int64)
    """The position of each transfer (or join) in its destination's list."""
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
    groups = ("world",) if together else ()
    traces = [
        RankTrace(rank, nodes.table(group=0 if together else UNSTATED), groups, peers)
        for rank, nodes in zip(group, ranks, strict=True)
    ]
    return TraceSet(tuple(sorted(traces, key=lambda trace: trace.rank)), {"world": tuple(group)})
