"""Traces in memory: columns of nodes, shared by ranks that run the same operator list.

This is the one form that the frontend produces, that files are read into and written from, and that replay
lowers. A node's group and peer are *slots*: small numbers that each rank resolves by its own table, so that
thousands of ranks with the same program share one `NodeTable`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rapid_des.arrays import Bools, Int8s, Int32s, Int64s
from rapid_des.errors import TraceError

MOST_RANKS = 2**24
"""Ranks are numbered below this."""
LIBRARIES = "rapid_libraries"
"""Metadata attribute: the communication libraries that the set's collectives call, as JSON."""
EXCHANGES = "rapid_exchanges"
"""Metadata attribute: how all-to-alls with a tag spread what they carry, as JSON."""
UNSTATED = -1
"""In `duration`: to be computed from `flops` and `tensor_bytes`. In `group`, `peer` and `issuer`: none."""


BOUNDS = ("tensor", "vector", "shared", "l2", "hbm", "latency", "launch")
"""What the time of a GPU kernel hangs on."""


class NodeKind(IntEnum):
    """What a node does; the numbers are the public schema's `NodeType`."""

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


@dataclass(frozen=True)
class Exchange:
    """How an all-to-all spreads copies of tokens over its members, all of whose tokens are alike.

    Its comm_size is what a member sends (or, of one that returns, gets) if every copy travels by itself.
    """

    copies: tuple[int, ...] = ()
    """How many go to the experts of each member, in any unit; empty: as many to each."""
    topk: int = 1
    """Copies of a token."""
    returns: bool = False
    """Experts' results go back to their tokens: each member sends what it else would get."""
    once: bool = False
    """Copies for one member travel once, and over the network once for all members of a node."""
    nodes: int = 0
    """To how many nodes a token goes at most; 0: any number."""


@dataclass(frozen=True, eq=False)
class NodeTable:
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
    """Picoseconds, or `UNSTATED`."""
    size: Int64s
    """Bytes: a collective's input buffer on this rank, a message, or what a memory node moves;
    `UNSTATED` where a foreign trace does not say."""
    collective: Int8s
    """A `CollectiveType` where kind is COLLECTIVE, else `UNSTATED`."""
    group: Int32s
    """Slot in `RankTrace.groups`, or `UNSTATED`."""
    peer: Int32s
    """Slot in `RankTrace.peers` of the other side of a send or receive, or `UNSTATED`."""
    tag: Int64s
    """Of a send or receive what both must agree in; of an all-to-all 0, or the place from 1 on of its way
    to spread in `TraceSet.exchanges`."""
    priority: Int64s
    """The smaller is served first where a stream or link must choose."""
    flops: Int64s
    tensor_bytes: Int64s
    on_cpu: Bools
    issuer: Int32s
    """Position of the host's node that issues this one, or `UNSTATED`: nobody need issue it."""
    issued: Int64s
    """Picoseconds from the start of `issuer` until it has issued this node, which can not start before."""
    bound: Int8s
    """Of a GPU kernel whose duration is its time alone: one of `BOUNDS`; else `UNSTATED`."""
    dependency_starts: Int64s
    dependencies: Int32s
    names: tuple[str, ...]
    """`name` indexes this table of distinct names."""
    streams: tuple[str, ...]
    """`stream` indexes this table; frontend jobs use those of `frontend/template.py`."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def has_work(self) -> bool:
        """Whether any node takes time, counts operations, communicates or moves memory."""
        talks = np.isin(self.kind, (NodeKind.SEND, NodeKind.RECV, NodeKind.COLLECTIVE))
        return bool(((self.duration > 0) | (self.flops > 0) | (self.size > 0) | talks).any())


@dataclass(frozen=True)
class RankTrace:
    """One rank: a (shared) table and what this rank's slots mean."""

    rank: int
    nodes: NodeTable
    groups: tuple[str, ...] = ()
    """Slot to group name, a key of `TraceSet.groups`."""
    peers: tuple[int, ...] = ()
    """Slot to rank."""


@dataclass(frozen=True, eq=False)
class TraceSet:
    """All ranks of one job, ascending by rank, with their process groups and what reading had to decide.

    Equal to itself alone, as its tables are.
    """

    ranks: tuple[RankTrace, ...]
    groups: Mapping[str, tuple[int, ...]]
    """Group name to its ranks, in ring order; the world's group is named "world"."""
    unordered_streams: frozenset[str] = frozenset()
    """Streams whose nodes may start in any order (foreign traces); all others run in table order."""
    libraries: str = ""
    """The communication libraries that its collectives call, by kind of group, as JSON; empty: not stated."""
    notes: tuple[str, ...] = field(default=())
    """One line for each choice or repair that reading made, for people."""
    exchanges: tuple[Exchange, ...] = ()
    """How all-to-alls with a tag spread what they carry."""
    families: tuple[Int64s, ...] = ()
    """[family][group, member] ranks of the whole job's groups, those of a family working at the same time; a
    trace of some ranks has them all. Empty: not stated."""

    def table_numbers(self) -> list[int]:
        """Return by position the number of each rank's table: one for all ranks that share one."""
        numbers: dict[NodeTable, int] = {}
        return [numbers.setdefault(rank.nodes, len(numbers)) for rank in self.ranks]


Severity = Literal["error", "repaired", "warning"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: an `error` stops a replay, `repaired` was dropped, a `warning` is odd."""

    kind: str
    message: str
    """Names the place; one line."""
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
