"""Traces in memory: columns of nodes, shared by ranks that run the same operator list.

This is the one form that the frontend produces, that files are read into and written from, and that replay
lowers. A node's group and peer are *slots*: small numbers that each rank resolves by its own table, so that
thousands of ranks with the same program share one `NodeTable`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Literal

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from rapid_des.arrays import Bools, Int8s, Int32s, Int64s, starts_of
from rapid_des.errors import TraceError

MOST_RANKS = 2**24
"""The upper limit of the number of ranks; a rank's number is below it."""
LIBRARIES = "rapid_libraries"
"""The metadata attribute that holds, as JSON, the communication libraries that the collectives call."""
EXCHANGES = "rapid_exchanges"
"""The metadata attribute that holds, as JSON, how all-to-alls with a tag distribute their data."""
UNSTATED = -1
"""The value of an absent entry. In `duration` it means a time to compute from `flops` and `tensor_bytes`; in
`group`, `peer` and `issuer` it means none.
"""


BOUNDS = ("tensor", "vector", "shared", "l2", "hbm", "latency", "launch")
"""The resources that can bound the time of a GPU kernel."""


class NodeKind(IntEnum):
    """The kind of a node; the numbers are those of the public schema's `NodeType`."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMPUTE = 4
    SEND = 5
    RECV = 6
    COLLECTIVE = 7
    STORAGE = 8
    DATA_OPERATION = 9


class CollectiveType(IntEnum):
    """The ten collectives; the numbers are the public schema's `CollectiveCommType`."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


class Exchange(Struct, frozen=True):
    """How an all-to-all spreads copies of tokens over its members, all of whose tokens are alike.

    Its comm_size is what a member sends (or, of one that returns, gets) if every copy travels by itself.
    """

    copies: tuple[int, ...] = ()
    """The relative number of token copies for the experts of each member, in any unit. Empty: equal numbers.
    """
    topk: int = 1
    """The number of copies of each token."""
    returns: bool = False
    """Whether the experts' results go back to their tokens, so that each member sends what it would otherwise
    receive.
    """
    once: bool = False
    """Whether the copies for one member travel once, and cross the network once for all members of a node."""
    nodes: int = 0
    """The largest number of nodes to which one token is sent; 0: no limit."""


class NodeTable(Struct, frozen=True, eq=False):
    """The nodes of one rank's program, in program order, as read-only columns of length n.

    Ranks share one object where they do the same; a table is equal to itself alone.

    Dependencies are rows of a compressed sparse table: node i waits for the finish of
    `dependencies[dependency_starts[i] : dependency_starts[i + 1]]`, positions in this table, not ids.
    Nodes on the same stream run in table order unless the stream is unordered.
    """

    ids: NDArray[np.uint64]
    kind: Int8s
    name: Int32s
    stream: Int32s
    duration: Int64s
    """The duration of each node in picoseconds, or `UNSTATED`."""
    size: Int64s
    """The bytes of each node: a collective's input buffer on this rank, a message, or the data that a memory
    node moves. `UNSTATED` where a foreign trace does not state it.
    """
    collective: Int8s
    """The `CollectiveType` of a node of kind COLLECTIVE, else `UNSTATED`."""
    group: Int32s
    """The slot in `RankTrace.groups`, or `UNSTATED`."""
    peer: Int32s
    """The slot in `RankTrace.peers` of the other rank of a send or receive, or `UNSTATED`."""
    tag: Int64s
    """The tag that a send and its receive must share. For an all-to-all: its entry in `TraceSet.exchanges`,
    counted from 1, or 0 for none.
    """
    priority: Int64s
    """The priority of each node; streams and links serve the smallest value first."""
    flops: Int64s
    tensor_bytes: Int64s
    on_cpu: Bools
    issuer: Int32s
    """The position of the host's node that issues this node, or `UNSTATED` if no node issues it."""
    issued: Int64s
    """The picoseconds from the start of `issuer` until it has issued this node; the node starts no earlier.
    """
    bound: Int8s
    """The resource of `BOUNDS` that bounds a GPU kernel whose duration is measured without contention; else
    `UNSTATED`.
    """
    dependency_starts: Int64s
    dependencies: Int32s
    names: tuple[str, ...]
    """The distinct node names; the column `name` holds positions in this table."""
    streams: tuple[str, ...]
    """The distinct stream names; the column `stream` holds positions in this table. Frontend jobs use the
    names of `frontend/template.py`.
    """

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def has_work(self) -> bool:
        """Whether any node takes time, counts operations, communicates or moves memory."""
        talks = np.isin(self.kind, (NodeKind.SEND, NodeKind.RECV, NodeKind.COLLECTIVE))
        return bool(((self.duration > 0) | (self.flops > 0) | (self.size > 0) | talks).any())


class RankTrace(Struct, frozen=True):
    """One rank: a (shared) table and what this rank's slots mean."""

    rank: int
    nodes: NodeTable
    groups: tuple[str, ...] = ()
    """The group name of each slot, a key of `TraceSet.groups`."""
    peers: tuple[int, ...] = ()
    """The rank of each slot."""


class TraceSet(Struct, frozen=True, eq=False):
    """All ranks of one job, ascending by rank, with their process groups and what reading had to decide.

    Equal to itself alone, as its tables are.
    """

    ranks: tuple[RankTrace, ...]
    groups: Mapping[str, tuple[int, ...]]
    """The ranks of each group in ring order, by group name; the group of all ranks is "world"."""
    unordered_streams: frozenset[str] = frozenset()
    """The streams whose nodes may start in any order (foreign traces); all others run in table order."""
    libraries: str = ""
    """The communication libraries that the collectives call, by kind of group, as JSON; empty: not stated."""
    notes: tuple[str, ...] = field(default=())
    """One line of text for each choice or repair that the reader made."""
    exchanges: tuple[Exchange, ...] = ()
    """How all-to-alls with a tag distribute their data; tag t refers to entry t - 1."""
    families: tuple[Int64s, ...] = ()
    """The ranks [group, member] of each family of groups of the whole job; groups of one family work at the
    same time. A trace of some ranks holds all families. Empty: not stated.
    """

    def table_numbers(self) -> list[int]:
        """Return by position the number of each rank's table: one for all ranks that share one."""
        numbers: dict[NodeTable, int] = {}
        return [numbers.setdefault(rank.nodes, len(numbers)) for rank in self.ranks]


Severity = Literal["error", "repaired", "warning"]


class Finding(Struct, frozen=True):
    """One thing that is wrong: an `error` stops a replay, `repaired` was dropped, a `warning` is odd."""

    kind: str
    message: str
    """One line that names the place and the problem."""
    severity: Severity = "error"
    file: str = ""
    rank: int | None = None
    node: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class FoundError(TraceError):
    """A finding that stops reading; the message is the finding's."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        super().__init__(finding.message)


def one_collective(
    ranks: Sequence[int], collective: CollectiveType, size: int, *, stream: str, unordered: bool = False
) -> TraceSet:
    """Return the trace in which every rank calls the same collective once and does nothing else."""
    return collectives(ranks, collective, [size], stream=stream, unordered=unordered)


def collectives(
    ranks: Sequence[int],
    collective: CollectiveType,
    sizes: Sequence[int],
    *,
    stream: str,
    unordered: bool = False,
) -> TraceSet:
    """Return the trace in which every rank calls the same collectives, one after the other, and no more."""
    count = len(sizes)
    nodes = node_table(
        [NodeKind.COLLECTIVE] * count,
        sizes,
        collective=[collective] * count,
        group=[0] * count,
        names=(collective.name.lower(),),
        streams=(stream,),
    )
    traces = tuple(RankTrace(rank, nodes, groups=("world",)) for rank in ranks)
    return TraceSet(traces, {"world": tuple(ranks)}, frozenset({stream} if unordered else ()))


def node_table(
    kind: Sequence[int] | NDArray[Any],
    size: Sequence[int] | NDArray[Any],
    *,
    streams: tuple[str, ...],
    names: tuple[str, ...] = ("transfer",),
    waits: Sequence[Sequence[int]] | None = None,
    **stated: Sequence[int] | NDArray[Any],
) -> NodeTable:
    """Return a table of nodes; columns that are not stated hold what stands for nothing."""
    count = len(kind)

    def column(name: str, dtype: type[np.generic], default: int = 0) -> NDArray[Any]:
        return np.array(stated[name], dtype) if name in stated else np.full(count, default, dtype)

    waits = waits or [()] * count
    return NodeTable(
        ids=np.arange(count, dtype=np.uint64),
        kind=np.array(kind, np.int8),
        name=column("name", np.int32),
        stream=column("stream", np.int32),
        duration=column("duration", np.int64, UNSTATED),
        size=np.array(size, np.int64),
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
        dependency_starts=starts_of([len(row) for row in waits]),
        dependencies=np.array([other for row in waits for other in row], np.int32),
        names=names,
        streams=streams,
    )
