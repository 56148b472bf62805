"""Pieces of a rank's program as columns, and the writer that joins them into one `NodeTable`.

A piece is priced once and placed many times: layers and micro-batches are copies of arrays, never of Python
objects. A dependency inside a piece is a position in it; a dependency on what came before is a *port*, a
negative number that `Writer.place` resolves to a node already written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct, field

from rapid_des.arrays import Bools, Int32s, Int64s, frozen, joined, rows_of, starts_of
from rapid_des.chakra.trace import UNSTATED, NodeKind, NodeTable
from rapid_des.frontend.software import issue_order
from rapid_des.values import fields, replace

STREAMS = (
    "compute",
    "tp",
    "cp",
    "ep",
    "dp",
    "pp-send",
    "pp-recv",
    "host",
    "cp-send",
    "cp-recv",
    "dp-across",
    "tp-send",
    "tp-recv",
    "to-host",
    "from-host",
    "host-optimizer",
    "pp-send-next",
    "pp-recv-next",
    "compute-beside",
)
"""The streams of a rank. Those of the host, and the last ones, exist only where they are used."""
STREAM_KINDS: Mapping[str, str] = {
    "compute": "compute", "tp": "tp", "cp": "cp", "ep": "ep", "dp": "dp", "pp-send": "pp", "pp-recv": "pp",
    "host": "host", "cp-send": "cp", "cp-recv": "cp", "dp-across": "dp", "tp-send": "tp", "tp-recv": "tp",
    "to-host": "offload", "from-host": "offload", "host-optimizer": "offload",
    "pp-send-next": "pp", "pp-recv-next": "pp", "compute-beside": "compute",
}  # fmt: skip
HOST = STREAMS.index("host")
INPUT = -1
"""The port of the value that a piece consumes (an activation or a gradient)."""
PARAMETERS = -2
"""The port of the gathered parameters that a piece computes with (ZeRO)."""
GATE = -3
"""The port of a message that must have left before the piece starts."""
SECOND = -4
"""The port of what the second of two pieces consumes that stand in one."""
FETCHED = -5
"""The port of activations that have come back from the host."""
PORTS = (INPUT, PARAMETERS, GATE, FETCHED)
"""The ports that the first node of a piece waits for."""
_BY_NUMBER = (FETCHED, SECOND, GATE, PARAMETERS, INPUT)
"""The ports by number; they are counted from the end, so the last one is -1."""


class PieceColumn(IntEnum):
    """Columns of a piece, in order."""

    KIND = 0
    NAME = 1
    STREAM = 2
    DURATION = 3
    SIZE = 4
    COLLECTIVE = 5
    GROUP = 6
    PEER = 7
    TAG = 8
    FLOPS = 9
    BYTES = 10
    ISSUE = 11
    LEAD = 12
    BOUND = 13


class PieceNode(Struct, frozen=True):
    """One node of a piece, before it becomes a row."""

    name: str
    kind: NodeKind
    stream: str
    after: tuple[int, ...]
    """Positions in the piece, or ports, that it waits for."""
    duration: int = UNSTATED
    size: int = 0
    collective: int = UNSTATED
    group: int = UNSTATED
    peer: int = UNSTATED
    tag: int = 0
    flops: int = 0
    bytes: int = 0
    issue: int = 0
    """Picoseconds to issue it; for a node of the host itself, picoseconds before its first issue."""
    lead: int = 0
    """The time before the end of its issue at which it may start."""
    bound: int = UNSTATED


Domain: TypeAlias = Literal["dense", "expert", "frozen", "frozen_expert"]
"""The replicas that hold some parameters, those of the model or those of the routed experts, and whether
the parameters are trained."""
DOMAINS: tuple[tuple[Domain, Domain], ...] = ("dense", "expert"), ("frozen", "frozen_expert")
"""Trained and frozen domains; each for dense parameters and for routed experts."""
FROZEN: frozenset[Domain] = frozenset(DOMAINS[1])
SectionName: TypeAlias = Literal["embedding", "block", "prediction", "head", "draft", "norms", "optimizer"]


class GradientMark(NamedTuple):
    """Where in a piece the gradients of some parameters (of this rank) become final."""

    position: int
    parameters: int
    domain: Domain = "dense"
    deferrable: bool = False
    """Whether they become final in the weights' half of a backward that has two."""

    def at(self, position: int) -> GradientMark:
        """Return the mark at another position."""
        return GradientMark(position, self.parameters, self.domain, self.deferrable)


class PieceEdges(Struct, frozen=True, eq=False):
    """The dependencies of a piece, row after row: positions in the piece, or ports."""

    counts: Int64s
    """[row] number of dependencies."""
    targets: Int64s

    def by_row(self) -> list[list[int]]:
        """Return each row's targets."""
        targets, ends = self.targets.tolist(), [0, *np.cumsum(self.counts).tolist()]
        return [targets[start:end] for start, end in pairwise(ends)]


class PricedPiece(Struct, frozen=True, eq=False):
    """A stretch of program: rows, their names, their dependencies, and the node that holds its result."""

    rows: Int64s
    names: tuple[str, ...]
    edges: PieceEdges
    output: int
    marks: tuple[GradientMark, ...] = ()
    cache_rows: tuple[int, ...] = ()
    """Rows whose cost depends on how many positions the KV cache holds."""

    def __len__(self) -> int:
        return len(self.rows)


def _row(node: PieceNode, name: int) -> tuple[int, ...]:
    return (
        node.kind, name, STREAMS.index(node.stream), node.duration, node.size, node.collective,
        node.group, node.peer, node.tag, node.flops, node.bytes, node.issue, node.lead,
        node.bound,
    )  # fmt: skip


def make_piece(
    nodes: Sequence[PieceNode], *, marks: Sequence[GradientMark] = (), cache_rows: Sequence[int] = ()
) -> PricedPiece:
    """Return nodes as a piece whose result is the last one."""
    names = tuple(dict.fromkeys(node.name for node in nodes))
    index = {name: position for position, name in enumerate(names)}
    rows = [_row(node, index[node.name]) for node in nodes]
    counts = [len(node.after) for node in nodes]
    after = [target for node in nodes for target in node.after]
    return PricedPiece(
        np.array(rows, np.int64).reshape(len(rows), len(PieceColumn)),
        names,
        PieceEdges(np.array(counts, np.int64), np.array(after, np.int64)),
        len(nodes) - 1,
        tuple(marks),
        tuple(cache_rows),
    )


def renamed(piece: PricedPiece, prefix: str) -> PricedPiece:
    """Return the piece with `prefix` before its names; the arrays are shared."""
    return replace(piece, names=tuple(prefix + name for name in piece.names))


def retimed(
    piece: PricedPiece,
    positions: Sequence[int] | Int64s,
    values: Mapping[PieceColumn, int | Int64s],
) -> PricedPiece:
    """Return the piece with other values in some columns of some rows."""
    rows = piece.rows.copy()
    for column, value in values.items():
        rows[positions, column] = value
    return replace(piece, rows=rows)


def chain(pieces: Sequence[PricedPiece]) -> PricedPiece:
    """Return pieces as one, each consuming the result of the one before; the first keeps its gate."""
    writer = Writer()
    marks: list[GradientMark] = []
    cache_rows: list[int] = []
    output = INPUT
    for piece in pieces:
        if not len(piece):
            continue
        offset = len(writer)
        output = writer.place(piece, {INPUT: output} | ({GATE: GATE} if not offset else {}))
        marks += [mark.at(mark.position + offset) for mark in piece.marks]
        cache_rows += [offset + row for row in piece.cache_rows]
    return replace(writer.piece(output), marks=tuple(marks), cache_rows=tuple(cache_rows))


def _without_repeated(edges: PieceEdges, ports: Mapping[int, int]) -> PieceEdges:
    """Return the dependencies without duplicates, where several ports are the same node."""
    first = {place: port for port, place in reversed(list(ports.items()))}
    targets = edges.targets.copy()
    for port, place in ports.items():
        targets[edges.targets == port] = first[place]
    row = rows_of(edges.counts)
    kept = np.sort(np.unique(np.stack((row, targets), axis=1), axis=0, return_index=True)[1])
    return PieceEdges(np.bincount(row[kept], minlength=len(edges.counts)), targets[kept])


class TableRows(NamedTuple):
    """The rows of a program."""

    rows: Int64s
    """[row, `PieceColumn`]."""
    dependencies: tuple[Int64s, Int64s]
    """The number of rows that each waits for, and their positions, row after row."""


class _PlacedPiece(NamedTuple):
    """A piece at its position in a writer."""

    piece: PricedPiece
    edges: PieceEdges
    offset: int
    ports: list[int]
    """The position that each port stands for, by the port's (negative) number."""


class Writer(Struct):
    """Collects placed pieces and single nodes; the only mutable thing in making a table.

    All that was placed becomes arrays at once, when a table or a piece is made of it.
    """

    _placed: list[_PlacedPiece] = field(default_factory=list)
    _made: list[tuple[int, ...]] = field(default_factory=list)
    """Rows of nodes that may be appended one by one, each any number of times."""
    _single: list[int] = field(default_factory=list)
    """Indices into `_made` of the appended nodes, in order."""
    _single_at: list[int] = field(default_factory=list)
    _single_tags: list[int] = field(default_factory=list)
    _single_after: list[Sequence[int]] = field(default_factory=list)
    """The dependencies of each appended node."""
    _names: dict[str, int] = field(default_factory=dict)
    _numbered: dict[PricedPiece, Int64s] = field(default_factory=dict)
    """The rows of each piece with this writer's numbers of names."""
    _length: int = 0

    def __len__(self) -> int:
        return self._length

    @property
    def rows(self) -> Int64s:
        """Number of rows so far."""
        rows, single = np.empty((self._length, len(PieceColumn)), np.int64), self._is_single()
        if self._single:
            rows[single] = np.array(self._made, np.int64)[self._single]
            rows[single, PieceColumn.TAG] = self._single_tags
        if self._placed:
            rows[~single] = np.concatenate([self._numbered[placed.piece] for placed in self._placed])
        return rows

    def place(self, piece: PricedPiece, ports: Mapping[int, int]) -> int:
        """Append the piece and return the position of its result.

        `ports` gives each port's position, or its own number where it stays a port; dependencies on ports
        that are not given are dropped.
        """
        if piece not in self._numbered:
            rows = piece.rows.copy()
            names = [self._names.setdefault(name, len(self._names)) for name in piece.names]
            rows[:, PieceColumn.NAME] = np.array(names, np.int64)[rows[:, PieceColumn.NAME]]
            self._numbered[piece] = rows
        offset, edges = self._length, piece.edges
        if len(set(ports.values())) < len(ports):
            edges = _without_repeated(edges, ports)
        of_ports = [ports.get(port, _DROPPED) for port in _BY_NUMBER]
        self._placed.append(_PlacedPiece(piece, edges, offset, of_ports))
        self._length += len(piece)
        return offset + piece.output

    def append(self, node: PieceNode, after: Sequence[int]) -> int:
        """Append one node that waits for given positions; return its own."""
        return self.append_made(self.make(node), after, tag=node.tag)

    def make(self, node: PieceNode) -> int:
        """Return the number of a node that will be appended, with any tag, any number of times."""
        self._made.append(_row(node, self._names.setdefault(node.name, len(self._names))))
        return len(self._made) - 1

    def append_made(self, made: int, after: Sequence[int], *, tag: int = 0) -> int:
        """Append a node by its number; it waits for given positions. Return its own."""
        self._single.append(made)
        self._single_at.append(self._length)
        self._single_tags.append(tag)
        self._single_after.append(list(dict.fromkeys(after)) if len(after) > 1 else after)
        self._length += 1
        return self._length - 1

    def _is_single(self) -> Bools:
        single = np.zeros(self._length, np.bool_)
        single[self._single_at] = True
        return single

    def _joined(self) -> tuple[Int64s, Int64s]:
        """Return the number of dependencies of each row, and all of them, row after row."""
        single, counts = self._is_single(), np.zeros(self._length, np.int64)
        counts[single] = [len(after) for after in self._single_after]
        counts[~single], of_pieces = self._of_pieces()
        targets, by_single = np.empty(int(counts.sum()), np.int64), np.repeat(single, counts)
        # Rows of single nodes and of pieces alternate: each kind fills its own places among all dependencies.
        targets[by_single] = [target for after in self._single_after for target in after]
        targets[~by_single] = of_pieces
        return counts, targets

    def _of_pieces(self) -> tuple[Int64s, Int64s]:
        """Return the dependencies of the rows of pieces alone."""
        edges = [placed.edges for placed in self._placed]
        counts = joined([each.counts for each in edges], np.int64)
        targets = joined([each.targets for each in edges], np.int64)
        placed = rows_of([len(each.targets) for each in edges])
        ports = np.array([placed.ports for placed in self._placed], np.int64).reshape(-1, len(_BY_NUMBER))
        offsets = np.array([placed.offset for placed in self._placed], np.int64)
        # A negative target is a port, looked up in the ports of its piece; any other is a row of the piece,
        # moved by the offset of the piece.
        targets = np.where(targets < 0, ports[placed, np.minimum(targets, -1)], offsets[placed] + targets)
        waits = targets != _DROPPED
        return np.bincount(rows_of(counts)[waits], minlength=len(counts)), targets[waits]

    def piece(self, output: int) -> PricedPiece:
        """Return all that was placed as one piece."""
        return PricedPiece(self.rows, tuple(self._names), PieceEdges(*self._joined()), output)

    def name(self, name: str) -> int:
        """Return the number of a name."""
        return self._names.setdefault(name, len(self._names))

    def table_rows(self) -> TableRows:
        """Return all rows and what they wait for."""
        return TableRows(self.rows, self._joined())

    def table(self, program: TableRows, group_slots: Int64s, peer_slots: Int64s) -> NodeTable:
        """Return rows as a rank's program; `group_slots` and `peer_slots` renumber what they use."""
        rows, (counts, dependencies) = program
        assert not len(dependencies) or dependencies.min() >= 0
        group, peer = rows[:, PieceColumn.GROUP], rows[:, PieceColumn.PEER]
        on_host = rows[:, PieceColumn.STREAM] == HOST
        issuer, issued, duration = _issues(rows, counts, dependencies)
        table = NodeTable(
            ids=np.arange(len(rows), dtype=np.uint64),
            kind=rows[:, PieceColumn.KIND].astype(np.int8),
            name=rows[:, PieceColumn.NAME].astype(np.int32),
            stream=rows[:, PieceColumn.STREAM].astype(np.int32),
            duration=duration,
            size=rows[:, PieceColumn.SIZE].copy(),
            collective=rows[:, PieceColumn.COLLECTIVE].astype(np.int8),
            group=np.where(group >= 0, group_slots[group], UNSTATED).astype(np.int32),
            peer=np.where(peer >= 0, peer_slots[peer], UNSTATED).astype(np.int32),
            tag=rows[:, PieceColumn.TAG].copy(),
            priority=np.zeros(len(rows), np.int64),
            flops=rows[:, PieceColumn.FLOPS].copy(),
            tensor_bytes=rows[:, PieceColumn.BYTES].copy(),
            on_cpu=on_host,
            issuer=issuer,
            issued=issued,
            bound=rows[:, PieceColumn.BOUND].astype(np.int8),
            dependency_starts=starts_of(counts),
            dependencies=dependencies.astype(np.int32),
            names=tuple(self._names),
            streams=STREAMS[: max(HOST, 1 + int(rows[:, PieceColumn.STREAM].max(initial=0)))],
        )
        for name in fields(NodeTable):
            column = getattr(table, name)
            if isinstance(column, np.ndarray):
                frozen(column)
        return table


def _issues(rows: Int64s, counts: Int64s, dependencies: Int64s) -> tuple[Int32s, Int64s, Int64s]:
    """Return each row's issuer, its issue time after the issuer's start, and its duration.

    Each node of the host issues what follows until the next one, and lasts until it has.
    """
    issuer, issued = np.full(len(rows), UNSTATED, np.int32), np.zeros(len(rows), np.int64)
    duration = rows[:, PieceColumn.DURATION].copy()
    hosts = np.flatnonzero(rows[:, PieceColumn.STREAM] == HOST)
    if not len(hosts):
        return issuer, issued, duration
    order = issue_order(rows[:, PieceColumn.KIND], counts, dependencies)
    # `passed` is when the host has issued each row, in issue order, if it never waited. A host node ends one
    # stretch and begins the next; times within a stretch count from its host node.
    passed = np.cumsum(rows[order, PieceColumn.ISSUE])
    starts = np.flatnonzero(rows[order, PieceColumn.STREAM] == HOST)
    begun = passed[starts] - rows[order[starts], PieceColumn.ISSUE]
    duration[order[starts]] = np.append(begun[1:], passed[-1]) - begun
    # Index of the host node that precedes each row in issue order; -1: before the first one.
    stretch = np.searchsorted(starts, np.arange(len(rows)), side="right") - 1
    given = np.flatnonzero((stretch >= 0) & (rows[order, PieceColumn.STREAM] != HOST))
    issuer[order[given]] = order[starts[stretch[given]]]
    issued[order[given]] = passed[given] - begun[stretch[given]] - rows[order[given], PieceColumn.LEAD]
    return issuer, np.maximum(issued, 0), duration


_DROPPED = -(2**40)
