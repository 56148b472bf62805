"""One rank's nodes to visits: streams, service times, dependencies, and what each collective becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rapid_des.arrays import Bools, Int32s, Int64s
from rapid_des.chakra.trace import UNSTATED, NodeKind, NodeTable
from rapid_des.device.device import Device
from rapid_des.program.builders import Edges, joined, make_rank_program
from rapid_des.program.program import NONE, RankProgram, VisitKind
from rapid_des.units import PS_PER_S


@dataclass(frozen=True)
class MemberVisit:
    """One rank's part in one phase of a collective: with whom, by which template, in which chunk."""

    slot: int
    template: int
    chunk: int


@dataclass(frozen=True)
class Expansion:
    """How a node that communicates becomes visits.

    No member visit: nothing to do (a group of one). One: the node itself is it. More: the node
    holds its stream while those of each chunk run one after the other, chunks side by side.
    """

    slot: int
    members: tuple[MemberVisit, ...] = ()

    @property
    def extra(self) -> int:
        """Visits beyond the node's own: the member visits and the join that ends them."""
        return len(self.members) + 1 if len(self.members) > 1 else 0


def rank_program(  # noqa: PLR0913 - one call, all by name
    nodes: NodeTable,
    durations: Int64s,
    *,
    expansion: Int32s,
    expansions: Sequence[Expansion],
    unordered: frozenset[str] = frozenset(),
    overlap: bool = False,
) -> RankProgram:
    """Return the visits of a node table.

    `durations` are the nodes' service times in picoseconds with nothing left unstated; `expansion` gives for
    each node its place in `expansions`, or NONE for nodes that do not communicate. `overlap` lets collectives
    on unordered streams run side by side.
    """
    extra = np.array([one.extra for one in expansions] or [0], np.int64)
    lengths = 1 + np.where(expansion == NONE, 0, extra[expansion])
    first = np.concatenate(([0], np.cumsum(lengths)))
    free = _free_of_streams(nodes, unordered, overlap=overlap)
    columns = _own_visits(nodes, durations, expansion=expansion, first=first, free=free)
    columns["occurrence"][first[:-1]] = _occurrences(nodes, expansion, expansions, free, unordered)
    edges = [_dependencies(nodes, first), _chains(nodes, first, unordered)]
    for index, one in enumerate(expansions):
        places = first[:-1][expansion == index]
        if len(places):
            edges += _expand(columns, one, places)
    capacity = np.ones(len(nodes.streams), np.int32)
    return make_rank_program(columns, joined(edges), server_capacity=capacity)


def _free_of_streams(nodes: NodeTable, unordered: frozenset[str], *, overlap: bool) -> Bools:
    """Tell which nodes start as soon as they are ready: receives that no stream puts in order.

    A receive that held its stream until its message came would keep the others from being asked for.
    With `overlap` also collectives that no stream puts in order.
    """
    loose = np.array([name in unordered for name in nodes.streams] or [False], np.bool_)[nodes.stream]
    kinds = (NodeKind.RECV, NodeKind.COLLECTIVE) if overlap else (NodeKind.RECV,)
    return loose & np.isin(nodes.kind, kinds)


def _own_visits(
    nodes: NodeTable, durations: Int64s, *, expansion: Int32s, first: Int64s, free: Bools
) -> dict[str, NDArray[np.int64]]:
    total, own = int(first[-1]), first[:-1]
    names = ("server", "release", "slot", "parent", "occurrence", "template", "node")
    columns = {name: np.full(total, NONE, np.int64) for name in names}
    columns |= {name: np.zeros(total, np.int64) for name in ("work", "priority", "link_priority", "sub")}
    columns["kind"] = np.full(total, int(VisitKind.JOIN), np.int64)
    serves = np.isin(nodes.kind, (NodeKind.COMPUTE, NodeKind.MEM_LOAD, NodeKind.MEM_STORE))
    columns["kind"][own[serves]] = int(VisitKind.COMPUTE)
    columns["work"][own[serves]] = durations[serves]
    takes_stream = serves | ((expansion != NONE) & ~free)
    columns["server"][own[takes_stream]] = nodes.stream[takes_stream]
    columns["priority"][own] = nodes.priority
    columns["link_priority"][own] = nodes.priority
    columns["node"][own] = np.arange(len(nodes))
    return columns


def _occurrences(
    nodes: NodeTable,
    expansion: Int32s,
    expansions: Sequence[Expansion],
    free: Bools,
    unordered: frozenset[str],
) -> Int64s:
    """Count each slot's nodes in program order; NONE where they count when they start (R5).

    That is so for all calls of a group that an unordered stream calls.
    """
    slots = np.array([one.slot for one in expansions] or [NONE], np.int64)
    slot = np.where(expansion == NONE, NONE, slots[expansion])
    order = np.argsort(slot, kind="stable")
    ordered = slot[order]
    begins = np.concatenate(([True], ordered[1:] != ordered[:-1])) if len(order) else np.zeros(0, np.bool_)
    group_start = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
    count = np.empty(len(order), np.int64)
    count[order] = np.arange(len(order)) - group_start
    loose = np.array([name in unordered for name in nodes.streams] or [False], np.bool_)[nodes.stream]
    counted_later = loose & ~free & (nodes.kind == NodeKind.COLLECTIVE)
    counted_later = np.isin(slot, slot[counted_later])  # one way of counting for all calls of a group
    return np.where((slot == NONE) | counted_later, NONE, count)


def _dependencies(nodes: NodeTable, first: Int64s) -> Edges:
    counts = np.diff(nodes.dependency_starts)
    target = np.repeat(first[:-1], counts)
    return Edges(first[nodes.dependencies], target)


def _chains(nodes: NodeTable, first: Int64s, unordered: frozenset[str]) -> Edges:
    """Chain the nodes of each stream that runs in table order (R2)."""
    before, after = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for stream, name in enumerate(nodes.streams):
        if name not in unordered:
            chain = first[:-1][nodes.stream == stream]
            before.append(chain[:-1])
            after.append(chain[1:])
    target = np.concatenate(after)
    return Edges(np.concatenate(before), target)


def _expand(columns: Mapping[str, NDArray[np.int64]], expansion: Expansion, places: Int64s) -> list[Edges]:
    """Fill in the visits of all nodes of one expansion; return the edges among them."""
    members = expansion.members
    if not members:
        columns["server"][places] = NONE
        return []
    if len(members) == 1:
        columns["kind"][places] = int(VisitKind.MEMBER)
        columns["slot"][places] = members[0].slot
        columns["template"][places] = members[0].template
        return []
    join = places + len(members) + 1
    columns["kind"][places] = int(VisitKind.HOLD)
    columns["slot"][places] = expansion.slot
    columns["release"][places] = join
    inner = places[:, None] + 1 + np.arange(len(members))
    columns["kind"][inner] = int(VisitKind.MEMBER)
    columns["parent"][inner] = places[:, None]
    columns["link_priority"][inner] = columns["link_priority"][places][:, None]
    columns["slot"][inner] = [member.slot for member in members]
    columns["template"][inner] = [member.template for member in members]
    columns["sub"][inner] = np.arange(len(members))
    chunks = [member.chunk for member in members]
    return [_member_edge(inner, places, join, chunks, index) for index in range(len(members))] + [
        Edges(inner[:, index], join)
        for index in range(len(members))
        if index + 1 == len(members) or chunks[index + 1] != chunks[index]
    ]


def _member_edge(inner: Int64s, hold: Int64s, join: Int64s, chunks: list[int], index: int) -> Edges:
    starts_chunk = index == 0 or chunks[index - 1] != chunks[index]
    origin = hold if starts_chunk else inner[:, index - 1]
    return Edges(origin, inner[:, index], at_start=np.full(len(join), starts_chunk))


def service_times(nodes: NodeTable, device: Device) -> Int64s:
    """Return the nodes' durations, unstated ones by the device's roofline.

    Compute: the longer of `flops` at the matrix unit's bf16 peak and `tensor_bytes` through HBM, plus
    a launch. Memory nodes: `size` through HBM.
    """
    duration = nodes.duration.copy()
    unstated = duration == UNSTATED
    if not unstated.any():
        return duration
    bandwidth = float(device.spec.hbm.bandwidth)
    moved = np.where(nodes.kind == NodeKind.COMPUTE, nodes.tensor_bytes, nodes.size).astype(np.float64)
    arithmetic = np.where(nodes.kind == NodeKind.COMPUTE, nodes.flops, 0) / device.tensor_rate("bf16")
    busy = np.ceil(np.maximum(arithmetic, np.maximum(moved, 0) / bandwidth) * PS_PER_S).astype(np.int64)
    launched = np.where((nodes.kind == NodeKind.COMPUTE) & ~nodes.on_cpu, device.launch_overhead, 0)
    return np.where(unstated, busy + launched, duration)
