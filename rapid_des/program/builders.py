"""Rank programs and templates, built from what sets them apart: all other columns follow or have a default.

A rank's nodes become visits: streams, service times, dependencies, and what each collective becomes.

Between two moments at which it must wait, the host issues one kernel, collective or message after the other
and runs ahead of its GPU. So the issue of the k-th is the host's start plus a sum that is known before the
run: one visit stands for the host's whole stretch, and every node that it issues has an edge from that
visit's *start* (R1). Most of these edges say nothing new: a kernel whose predecessor on its stream cannot
be done before it is issued waits for that one anyway. They are left out, exactly: with F(j) the least time
from the host's start to the finish of j, the edge of k with lag L(k) follows from an order j before k with
F(j) ≥ L(k), and F(k) ≥ max(L(k), F(j)) + work(k).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rapid_des.arrays import Bools, Int8s, Int32s, Int64s, equals_before, rows_of
from rapid_des.chakra.trace import UNSTATED, NodeKind, NodeTable
from rapid_des.network.specs import MOST_CHUNKS
from rapid_des.program.program import (
    NONE,
    RankProgram,
    Rows,
    TaskEdges,
    Template,
    VisitKind,
    WorkLevel,
    joined,
)
from rapid_des.values import replace

_NARROW = {
    "server": NONE,
    "release": NONE,
    "slot": NONE,
    "parent": NONE,
    "occurrence": NONE,
    "sub": 0,
    "template": NONE,
    "node": NONE,
}
"""The columns of 32 bits and their default values."""


LINK_ORDERS = MOST_CHUNKS
"""How many orders of chunks fit between two node priorities on links."""


class Occupancy(Struct, frozen=True, order=True):
    """The share of a GPU's resources that a kernel takes from kernels beside it."""

    sms: int = 0
    traffic: int = 0
    """Bytes per second that the kernel reads from and writes to HBM."""
    chip: int = 0
    """The share of the arithmetic units that a kernel on another stream uses, in 1 / `contention.WHOLE`."""
    memory: int = 0
    """The share of the memory bandwidth that a kernel on another stream uses, in 1 / `contention.WHOLE`."""


NOTHING = Occupancy()


class MemberVisit(Struct, frozen=True):
    """One rank's part in one phase of a collective: with whom, by which template, in which chunk."""

    slot: int
    template: int
    chunk: int
    server: int = NONE
    """Another server of the rank that the visit occupies, such as a queue of its phases; NONE: none."""
    priority: int = 0
    """Priority among the visits that wait for that server; the smallest goes first."""
    link_order: int = 0
    """Order on links among transfers of nodes of equal priority, below `LINK_ORDERS` (R3)."""


class NodeExpansion(Struct, frozen=True):
    """How a node that communicates becomes visits.

    No member visit: nothing to do (a group of one). One that takes no server: the node itself is it. Else the
    node holds its stream while those of each chunk run one after the other, chunks side by side.
    """

    slot: int
    members: tuple[MemberVisit, ...] = ()
    occupancy: Occupancy = NOTHING
    """The GPU resources that the node takes from kernels beside it."""

    @property
    def holds(self) -> bool:
        """Whether the node holds its stream for its member visits."""
        return len(self.members) > 1 or any(member.server != NONE for member in self.members)

    @property
    def extra(self) -> int:
        """Visits beyond the node's own: the member visits and the join that ends them."""
        return len(self.members) + 1 if self.holds else 0


class NodeVisits:
    """The visit that each node is itself, columns of one row a node: by default joins without a server.

    A node with an expansion becomes the visits of that, and states its server and priorities only.
    """

    def __init__(self, nodes: NodeTable) -> None:
        count = len(nodes)
        self.nodes = nodes
        self.kind = np.full(count, int(VisitKind.JOIN), np.int8)
        self.work, self.priority = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.link_priority, self.sub = np.zeros(count, np.int64), np.zeros(count, np.int32)
        self.server, self.slot, self.occurrence, self.template, self.expansion = np.full(
            (5, count), NONE, np.int32
        )


def rank_program(  # noqa: PLR0913 - one call, all by name
    nodes: NodeTable,
    durations: Int64s,
    *,
    expansion: Int32s,
    expansions: Sequence[NodeExpansion],
    sub: Int32s | int = 0,
    unordered: frozenset[str] = frozenset(),
    overlap: bool = False,
) -> RankProgram:
    """Return the visits of a node table.

    `durations` are the nodes' service times in picoseconds with nothing left unstated; `expansion` gives for
    each node its place in `expansions`, or NONE for nodes that do not communicate, `sub` what
    distinguishes those of a slot. `overlap` lets collectives on unordered streams run side by side.
    """
    free = _free_of_streams(nodes, unordered, overlap=overlap)
    visits = NodeVisits(nodes)
    serves = np.isin(nodes.kind, (NodeKind.COMPUTE, NodeKind.MEM_LOAD, NodeKind.MEM_STORE))
    visits.kind[serves] = int(VisitKind.COMPUTE)
    visits.work[serves] = durations[serves]
    takes_stream = serves | ((expansion != NONE) & ~free)
    visits.server[takes_stream] = nodes.stream[takes_stream]
    visits.priority[:], visits.sub[:] = nodes.priority, sub
    visits.link_priority[:] = nodes.priority * LINK_ORDERS
    visits.occurrence[:] = _occurrences(visits, expansion, expansions, free, unordered)
    visits.expansion = expansion
    ordered = [stream for stream, name in enumerate(nodes.streams) if name not in unordered]
    chains = [np.flatnonzero(nodes.stream == stream) for stream in ordered]  # R2
    capacity = np.ones(len(nodes.streams), np.int32)
    issues = _issue_edges(nodes, visits.work, unordered)
    return expanded_program(visits, expansions, server_capacity=capacity, chains=chains, issues=issues)


def _free_of_streams(nodes: NodeTable, unordered: frozenset[str], *, overlap: bool) -> Bools:
    """Return which nodes start as soon as they are ready: receives that no stream puts in order.

    A receive that held its stream until its message came would keep the others from being asked for.
    With `overlap` also collectives that no stream puts in order.
    """
    loose = np.array([name in unordered for name in nodes.streams] or [False], np.bool_)[nodes.stream]
    kinds = (NodeKind.RECV, NodeKind.COLLECTIVE) if overlap else (NodeKind.RECV,)
    return loose & np.isin(nodes.kind, kinds)


def _occurrences(
    visits: NodeVisits,
    expansion: Int32s,
    expansions: Sequence[NodeExpansion],
    free: Bools,
    unordered: frozenset[str],
) -> Int64s:
    """Count each slot's nodes of one `sub` in program order; NONE where they count when they start (R5).

    That is so for all calls of a group that an unordered stream calls.
    """
    slots = np.array([each.slot for each in expansions] or [NONE], np.int64)
    slot, nodes = np.where(expansion == NONE, NONE, slots[expansion]), visits.nodes
    count = equals_before((slot << 31) + visits.sub)
    loose = np.array([name in unordered for name in nodes.streams] or [False], np.bool_)[nodes.stream]
    counted_later = loose & ~free & (nodes.kind == NodeKind.COLLECTIVE)
    counted_later = np.isin(slot, slot[counted_later])  # all calls of a group are counted alike
    return np.where((slot == NONE) | counted_later, NONE, count)


def expanded_program(  # noqa: PLR0913 - one call, all by name
    visits: NodeVisits,
    expansions: Sequence[NodeExpansion],
    *,
    server_capacity: Int32s,
    server_level: Int8s | None = None,
    chains: Sequence[Int64s] = (),
    issues: TaskEdges | None = None,
) -> RankProgram:
    """Return all visits of a rank: those of its nodes, each followed by what its expansion adds.

    The nodes of each of `chains` run one after the other, besides what they depend on and the edges
    between nodes in `issues`. Servers are streams unless `server_level` says otherwise.
    """
    extra = np.array([expansion.extra for expansion in expansions] or [0], np.int64)
    lengths = 1 + np.where(visits.expansion == NONE, 0, extra[visits.expansion])
    # Node n becomes visits first[n] to first[n + 1]: the node itself, then its member visits and a join.
    first = np.concatenate(([0], np.cumsum(lengths)))
    columns = {
        name: _spread(getattr(visits, name), first, fill)
        for name, fill in (
            ("kind", VisitKind.JOIN), ("server", NONE), ("work", 0), ("priority", 0), ("link_priority", 0),
            ("slot", NONE), ("occurrence", NONE), ("sub", 0), ("template", NONE),
        )
    }  # fmt: skip
    columns["node"] = _spread(np.arange(len(visits.nodes)), first, NONE)
    columns["release"], columns["parent"] = np.full((2, first[-1]), NONE, np.int64)
    edges = [_dependencies(visits.nodes, first), *(_chain(first[chain]) for chain in chains)]
    if issues is not None:
        edges.append(replace(issues, origin=first[issues.origin], target=first[issues.target]))
    # Expansions of at most one visit replace it in place; the others hold the stream for their visits.
    alone = np.array([not expansion.holds for expansion in expansions] or [False])
    at = np.flatnonzero(visits.expansion != NONE)
    _replace(columns, expansions, visits.expansion[at], first[at], alone)
    for index in np.flatnonzero(~alone).tolist():
        positions = first[:-1][visits.expansion == index]
        if len(positions):
            edges += _expand(columns, expansions[index], positions)
    return make_rank_program(
        columns, joined(edges), server_capacity=server_capacity, server_level=server_level
    )


def _spread(values: NDArray[np.integer[Any]], first: Int64s, fill: int) -> Int64s:
    column = np.full(int(first[-1]), fill, np.int64)
    column[first[:-1]] = values
    return column


def _dependencies(nodes: NodeTable, first: Int64s) -> TaskEdges:
    target = np.repeat(first[:-1], np.diff(nodes.dependency_starts))
    return TaskEdges(first[nodes.dependencies], target)


def _chain(positions: Int64s) -> TaskEdges:
    return TaskEdges(positions[:-1], positions[1:])


def _replace(
    columns: Mapping[str, Int64s],
    expansions: Sequence[NodeExpansion],
    numbers: Int32s,
    positions: Int64s,
    alone: Bools,
) -> None:
    """Fill in the visits of nodes at `positions` that become one visit or none, each by its expansion."""
    none = np.array([not expansion.members for expansion in expansions] or [False])
    columns["server"][positions[none[numbers]]] = NONE
    chosen = (alone & ~none)[numbers]
    numbers, positions = numbers[chosen], positions[chosen]
    columns["kind"][positions] = int(VisitKind.MEMBER)
    for name in ("slot", "template"):
        of_expansion = [
            getattr(expansion.members[0], name) if expansion.members else NONE for expansion in expansions
        ]
        columns[name][positions] = np.array(of_expansion or [NONE], np.int64)[numbers]


def _expand(columns: Mapping[str, Int64s], expansion: NodeExpansion, positions: Int64s) -> list[TaskEdges]:
    """Fill in the visits of all nodes of one expansion; return the edges among them."""
    members = expansion.members
    join = positions + len(members) + 1
    columns["kind"][positions] = int(VisitKind.HOLD)
    columns["slot"][positions] = expansion.slot
    columns["release"][positions] = join
    # [node, member visit]: each node is followed by its member visits, then by the join.
    inner = positions[:, None] + 1 + np.arange(len(members))
    columns["kind"][inner] = int(VisitKind.MEMBER)
    columns["parent"][inner] = positions[:, None]
    link_orders = [member.link_order for member in members]
    columns["link_priority"][inner] = columns["link_priority"][positions][:, None] + link_orders
    columns["sub"][inner] = np.arange(len(members))
    for name in ("slot", "template", "server", "priority"):
        columns[name][inner] = [getattr(member, name) for member in members]
    chunk = np.array([member.chunk for member in members])
    # Member visits of a chunk are a chain. A chunk begins at the start of the HOLD, and its last visit
    # leads to the join.
    begins = np.append(True, chunk[1:] != chunk[:-1])
    last = inner[:, np.append(begins[1:], True)]
    origin = np.where(begins, positions[:, None], inner - 1)
    return [
        TaskEdges(origin.ravel(), inner.ravel(), at_start=np.tile(begins, len(positions))),
        TaskEdges(last.ravel(), np.repeat(join, last.shape[1])),
    ]


def make_rank_program(
    columns: Mapping[str, Rows],
    edges: TaskEdges,
    *,
    server_capacity: Rows,
    server_level: Int8s | None = None,
) -> RankProgram:
    """Return the visits with these columns, `kind` among them; servers are streams by default."""
    visits, servers = len(columns["kind"]), len(server_capacity)
    narrow: dict[str, Any] = {
        name: columns.get(name, np.full(visits, default)).astype(np.int32)
        for name, default in _NARROW.items()
    }
    wide: dict[str, Any] = {
        name: columns.get(name, np.zeros(visits)).astype(np.int64)
        for name in ("work", "priority", "link_priority")
    }
    starts, target, lag, at_start = edges.by_origin(visits)
    streams = np.full(servers, int(WorkLevel.STREAM), np.int8)
    return RankProgram(
        kind=columns["kind"].astype(np.int8),
        need=np.bincount(edges.target, minlength=visits).astype(np.int32),
        edge_starts=starts,
        edge_target=target,
        edge_lag=lag,
        edge_at_start=at_start,
        server_capacity=server_capacity.astype(np.int32),
        server_level=streams if server_level is None else server_level,
        **wide,
        **narrow,
    )


def make_template(  # noqa: PLR0913 - a template's parts
    members: int,
    tasks: tuple[Rows, Rows],
    pairs: tuple[Rows, Rows, Rows],
    *,
    edges: TaskEdges,
    arrivals: TaskEdges,
    need: Rows | None = None,
    name: str = "",
) -> Template:
    """Return the template of these tasks; what each awaits follows from the edges to it.

    `tasks` are who injects each and its row of sizes; `pairs` the pair of each task, and of each pair the
    source and the destination. `arrivals` are the edges from members, `edges` those from tasks. `need`: how
    many of the edges to each task must pass, if not all.
    """
    source, size = tasks
    awaited = np.bincount(edges.target, minlength=len(source) + members).astype(np.int32)
    awaited += np.bincount(arrivals.target, minlength=len(awaited)).astype(np.int32)
    edge_starts, edge_target, edge_lag, at_injection = edges.by_origin(len(source))
    arrival_starts, arrival_target, arrival_lag, _ = arrivals.by_origin(members)
    pair, pair_source, pair_destination = (column.astype(np.int32, copy=False) for column in pairs)
    return Template(
        members=members,
        pair=pair,
        pair_source=pair_source,
        pair_destination=pair_destination,
        source=source.astype(np.int32, copy=False),
        size=size.astype(np.int32, copy=False),
        need=awaited[: len(source)] if need is None else need.astype(np.int32, copy=False),
        edge_starts=edge_starts,
        edge_target=edge_target,
        edge_lag=edge_lag,
        edge_at_injection=at_injection,
        arrival_starts=arrival_starts,
        arrival_target=arrival_target,
        arrival_lag=arrival_lag,
        member_need=awaited[len(source) :],
        name=name,
    )


def _issue_edges(nodes: NodeTable, work: Int64s, unordered: frozenset[str]) -> TaskEdges | None:
    """Return the edges from starts of the host's nodes to what these issue, between nodes of the table.

    `work` is each node's service time in picoseconds, which faults and neighbours may only lengthen. None:
    nothing is issued.
    """
    issued = np.flatnonzero(nodes.issuer != UNSTATED)
    if not len(issued):
        return None
    lags = np.maximum(nodes.issued, 1)
    finish, implied = _by_streams(nodes, lags, work, unordered)
    implied |= _by_dependencies(nodes, lags, finish)
    needed = issued[~implied[issued]]
    return TaskEdges(nodes.issuer[needed], needed, lags[needed], at_start=True)


def _by_streams(
    nodes: NodeTable, lags: Int64s, work: Int64s, unordered: frozenset[str]
) -> tuple[Int64s, Bools]:
    """Return the least finish of each node after its issuer's start, and whose issue its stream implies."""
    finish, implied = lags + work, np.zeros(len(nodes), np.bool_)
    for rows in _stretches(nodes, unordered):
        # On one stream finish[k] = max(lag[k], finish[k-1]) + work[k]. Less `after`, the sum of the work up
        # to k, that is a running maximum.
        after = np.cumsum(work[rows])
        latest = np.maximum.accumulate(lags[rows] - after + work[rows])
        finish[rows] = latest + after
        # The stream proves the issue of k if k - 1 cannot finish before it.
        implied[rows[1:]] = lags[rows[1:]] <= finish[rows[:-1]]
    return finish, implied


def _stretches(nodes: NodeTable, unordered: frozenset[str]) -> Iterator[Int64s]:
    """Yield the nodes of each ordered stream, if several, that one node of the host issues, in order."""
    ordered = np.array([name not in unordered for name in nodes.streams], np.bool_)
    rows = np.flatnonzero((nodes.issuer != UNSTATED) & ordered[nodes.stream])
    rows = rows[np.lexsort((rows, nodes.issuer[rows], nodes.stream[rows]))]
    # Sorted by stream and issuer: a run ends where either changes.
    changes = (np.diff(nodes.issuer[rows]) != 0) | (np.diff(nodes.stream[rows]) != 0)
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(rows)]
    yield from (rows[begin:end] for begin, end in pairwise(bounds) if end - begin > 1)


def _by_dependencies(nodes: NodeTable, lags: Int64s, finish: Int64s) -> Bools:
    """Return whose issue follows from a dependency of the same issuer."""
    waiting = rows_of(np.diff(nodes.dependency_starts))
    before = nodes.dependencies
    implies = (nodes.issuer[before] == nodes.issuer[waiting]) & (finish[before] >= lags[waiting])
    implied = np.zeros(len(nodes), np.bool_)
    implied[waiting[implies]] = True
    return implied
