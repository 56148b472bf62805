"""A trace set and ASTRA-sim's files to a program: what that simulator would do, in our own terms.

Ranks that only compute and exchange messages are lowered as one table, which is cut afterwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rapid_des.arrays import Int64s, joined_starts, rows_of, starts_by, starts_of
from rapid_des.chakra.groups import DIMENSIONS, WORLD
from rapid_des.chakra.trace import NodeKind, NodeTable, RankTrace, TraceSet
from rapid_des.errors import TraceError
from rapid_des.importers.astra_sim.algorithms import PhaseTemplates
from rapid_des.importers.astra_sim.collectives import Scope
from rapid_des.importers.astra_sim.files import MemoryFile, Setup
from rapid_des.importers.astra_sim.ranks import (
    IssueOrder,
    NodePlace,
    TableLowering,
    issue_order,
    lower_rank,
    place_in,
)
from rapid_des.importers.astra_sim.topology import AstraNetwork, astra_hop_table, network_of
from rapid_des.program.channels import ChannelSlots
from rapid_des.program.groups import Channel, GroupTable, SlotTable
from rapid_des.program.lowering import Lowered
from rapid_des.program.program import NONE, HopTable, Program, RankBinding, RankProgram
from rapid_des.units import PS_PER_NS
from rapid_des.values import fields, replace

_TOGETHER = (NodeKind.COLLECTIVE, NodeKind.MEM_LOAD, NodeKind.MEM_STORE)
_BY_VISIT = (
    "kind", "server", "work", "priority", "link_priority", "release", "parent", "occurrence", "sub",
    "template", "need",
)  # fmt: skip


def lower_together(
    setup: Setup, templates: PhaseTemplates, traces: Sequence[RankTrace], orders: Sequence[IssueOrder]
) -> tuple[list[RankProgram], ChannelSlots]:
    """Return the programs of ranks that only compute and exchange messages, and the slots of all."""
    starts = starts_of([len(trace.nodes) for trace in traces])
    peer_starts = starts_of([len(trace.peers) for trace in traces])

    def place(node: int) -> NodePlace:
        number = int(np.searchsorted(starts, node, side="right")) - 1
        return place_in(traces[number], node - int(starts[number]))

    nodes = _joined([trace.nodes for trace in traces], starts, peer_starts)
    order = IssueOrder(
        np.concatenate([order.position for order in orders]),
        _shifted([order.nodes for order in orders], starts),
    )
    lowering = TableLowering(setup, templates, nodes, place)
    program, slots = lowering.lower(order), lowering.channels
    # Peers and nodes are numbered trace after trace, and slots in the order of nodes: a trace's are a range.
    owner = np.searchsorted(peer_starts, slots.peer, side="right") - 1
    slots = replace(slots, starts=starts_by(owner, len(traces)), peer=slots.peer - peer_starts[owner])
    return _cut(program, starts, slots.starts), slots


def is_alone(nodes: NodeTable) -> bool:
    """Return whether a table has neither collectives nor uses of memory, so that others can join it."""
    return not np.isin(nodes.kind, _TOGETHER).any()


def _joined(tables: Sequence[NodeTable], starts: Int64s, peer_starts: Int64s) -> NodeTable:
    """Return the nodes of all tables as one table, whose peers are numbered trace after trace."""
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(table, name) for table in tables])
        for name in fields(NodeTable)
        if name not in {"names", "streams", "dependency_starts"}
    }
    row = rows_of(np.diff(starts))
    columns["peer"] += np.where(columns["peer"] == NONE, 0, peer_starts[row]).astype(np.int32)
    columns["dependencies"] = _shifted([table.dependencies for table in tables], starts)
    dependency_starts = joined_starts([table.dependency_starts for table in tables])
    return NodeTable(names=(), streams=(), dependency_starts=dependency_starts, **columns)


def _shifted(columns: Sequence[NDArray[Any]], starts: Int64s) -> Int64s:
    """Return columns of positions one after the other, each moved by the start of its table."""
    lengths = [len(column) for column in columns]
    return np.concatenate(columns) + np.repeat(starts[:-1], lengths)


def _cut(program: RankProgram, starts: Int64s, slot_starts: Int64s) -> list[RankProgram]:
    """Return the programs of tables that were lowered as one; every visit is a node."""
    row = rows_of(np.diff(starts))
    edge_row = np.repeat(row, np.diff(program.edge_starts))
    columns = {
        **{name: getattr(program, name) for name in _BY_VISIT},
        "node": program.node - starts[row].astype(np.int32),
        "slot": program.slot - np.where(program.slot == NONE, 0, slot_starts[row]).astype(np.int32),
    }
    edge_target = program.edge_target - starts[edge_row].astype(np.int32)
    programs = []
    for begin, end in pairwise(starts.tolist()):
        edge_starts = program.edge_starts[begin : end + 1]
        out = slice(int(edge_starts[0]), int(edge_starts[-1]))
        programs.append(
            RankProgram(
                edge_starts=edge_starts - edge_starts[0],
                edge_target=edge_target[out],
                edge_lag=program.edge_lag[out],
                edge_at_start=program.edge_at_start[out],
                server_capacity=program.server_capacity,
                server_level=program.server_level,
                **{name: column[begin:end] for name, column in columns.items()},
            )
        )
    return programs


def lower(traces: TraceSet, setup: Setup) -> Lowered:
    """Return the program; errors name the file, or the rank and node, that is wrong."""
    return lower_with_network(traces, setup)[0]


def lower_with_network(traces: TraceSet, setup: Setup) -> tuple[Lowered, AstraNetwork]:
    """Return the program and the network that it runs on; see `lower`."""
    _check_ranks(traces, prod(setup.network.npus_count), str(setup.files.network))
    network = network_of(setup.network, setup.files.network)
    traces = _with_groups(traces, setup, network.gpus)
    templates = PhaseTemplates(setup)
    table = GroupTable(traces, network)
    programs = _Programs(setup, templates, traces.groups, network.gpus)
    tables = traces.table_numbers()
    bound = programs.of_messages(traces.ranks, tables, table)
    bindings = tuple(
        bound[position] if position in bound else table.bind(position, *programs.of(trace, number))
        for position, (trace, number) in enumerate(zip(traces.ranks, tables, strict=True))
    )
    routed = table.routed(templates.numbered, both_directions=False)
    hops = astra_hop_table(network, templates.sizes.all())
    memories = np.full(routed.links - len(network.fabric), len(network.bandwidth), np.int32)
    program = Program(
        bindings=bindings,
        programs=tuple(programs.distinct),
        groups=routed.groups,
        templates=templates.numbered,
        hops=_with_memory(hops, setup.memory) if len(memories) else hops,
        route_starts=routed.routes.starts,
        route_links=routed.routes.links.astype(np.int32, copy=False),
        route_class=np.append(network.service_class, memories).astype(np.int32)[routed.routes.links],
        links=routed.links,
    )
    return Lowered(program, traces), network


def _check_ranks(traces: TraceSet, npus: int, file: str) -> None:
    ranks = [trace.rank for trace in traces.ranks]
    wrong = next((position for position, rank in enumerate(ranks) if rank != position), len(ranks))
    if wrong != npus or len(ranks) != npus:
        what = f"a trace for rank {ranks[npus]}" if wrong >= npus else f"no trace for rank {wrong}"
        raise TraceError(f"{file}: {npus} NPUs, but {what}; allowed: one trace for each")


def _with_groups(traces: TraceSet, setup: Setup, gpus: int) -> TraceSet:
    """Return the traces with the groups as that simulator resolves their names.

    A name is a number in the groups' file, else what the trace defines, as the reader does dimensions:
    "dimensions:1,0#2" is the third group along the innermost of two. A group of all ranks is the world in
    the order of their ids. The last slot of every rank is the world, for collectives that name no group.
    """
    names = sorted({name for trace in traces.ranks for name in trace.groups})
    everyone = tuple(range(gpus))
    world = {"", WORLD} | ({"0"} if setup.dialect == "stock" else set())
    world |= {name for name in names if name.startswith(DIMENSIONS) and all(_flags(name))}
    groups = {WORLD: everyone}
    for name in names:
        ranks = everyone if name in world else _ranks_of(name, traces, setup)
        if not ranks or max(ranks) >= gpus:
            allowed = f"at least one rank, 0 to {gpus - 1}"
            raise TraceError(f"process group {name!r}: {ranks}; allowed: {allowed}")
        groups[name] = everyone if len(ranks) == gpus else ranks

    def slots(trace: RankTrace) -> tuple[str, ...]:
        return (*(WORLD if name in world else name for name in trace.groups), WORLD)

    ranks_of = tuple(replace(trace, groups=slots(trace)) for trace in traces.ranks)
    return replace(traces, ranks=ranks_of, groups=groups)


def _ranks_of(name: str, traces: TraceSet, setup: Setup) -> tuple[int, ...]:
    stated: Mapping[str, tuple[int, ...]] = {str(number): ranks for number, ranks in setup.groups.items()}
    if name in stated:
        return stated[name]
    if name in traces.groups:
        return traces.groups[name]
    where = setup.files.groups or "the trace"
    raise TraceError(f"{where}: process group {name!r} is not defined; state it with --astra-groups")


def _flags(name: str) -> tuple[bool, ...]:
    flags = name.removeprefix(DIMENSIONS).partition("#")[0]
    return tuple(flag == "1" for flag in flags.split(","))


class _Programs:
    """Rank programs, each lowered once for all ranks that run the same nodes in groups of the same kinds."""

    def __init__(
        self, setup: Setup, templates: PhaseTemplates, groups: Mapping[str, tuple[int, ...]], gpus: int
    ) -> None:
        self._setup, self._templates = setup, templates
        self._groups = groups
        self._gpus = gpus
        self._numbers: dict[object, tuple[int, SlotTable]] = {}
        self._digests: dict[int, bytes] = {}
        self.distinct: list[RankProgram] = []

    def of_messages(
        self, traces: Sequence[RankTrace], tables: Sequence[int], groups: GroupTable
    ) -> dict[int, RankBinding]:
        """Bind, by position, the ranks that only compute and exchange messages: before all others."""
        distinct: dict[bytes, tuple[int, RankTrace, IssueOrder]] = {}
        number_of: dict[int, int] = {}
        for trace, table in zip(traces, tables, strict=True):
            if table in number_of or not is_alone(trace.nodes):
                continue
            order = issue_order(trace.nodes)
            fresh = len(distinct), trace, order
            number_of[table], *_ = distinct.setdefault(_digest(trace.nodes, order), fresh)
        if not distinct:
            return {}
        _, first, orders = zip(*distinct.values(), strict=True)
        self.distinct, slots = lower_together(self._setup, self._templates, first, orders)
        positions = [position for position, table in enumerate(tables) if table in number_of]
        of_trace = np.array([number_of[tables[position]] for position in positions])
        bound = groups.bind_messages([traces[position] for position in positions], of_trace, slots)
        return dict(zip(positions, bound, strict=True))

    def of(self, trace: RankTrace, table: int) -> tuple[int, SlotTable]:
        """Return the number of a rank's program, and what its slots are, given the number of its table."""
        scopes = tuple(map(self._scope, trace.groups))
        digest = self._digests.get(table)
        order = issue_order(trace.nodes) if digest is None else None
        if order is not None:
            digest = self._digests[table] = _digest(trace.nodes, order)
        key = (digest, scopes)
        if key not in self._numbers:
            program, slots = lower_rank(
                self._setup, self._templates, trace, order or issue_order(trace.nodes), scopes
            )
            self._numbers[key] = len(self.distinct), slots
            self.distinct.append(program)
        number, slots = self._numbers[key]
        self._check_peers(trace, slots)
        return number, slots

    def _scope(self, name: str) -> Scope:
        if len(self._groups[name]) == self._gpus:
            return Scope()
        if name.startswith(DIMENSIONS):
            return Scope(dimensions=_flags(name))
        return Scope(members=len(self._groups[name]))

    def _check_peers(self, trace: RankTrace, slots: SlotTable) -> None:
        for slot in slots.slots:
            peer = trace.peers[slot.peer] if isinstance(slot, Channel) else None
            if peer is not None and (peer == trace.rank or not 0 <= peer < self._gpus):
                allowed = f"another rank from 0 to {self._gpus - 1}"
                raise TraceError(f"rank {trace.rank}: a message to or from rank {peer}; allowed: {allowed}")


def _digest(nodes: NodeTable, order: IssueOrder) -> bytes:
    """Return a fingerprint of all that lowering reads of a table, ids by their order only."""
    columns = (
        order.position, nodes.kind, nodes.duration, nodes.size, nodes.collective, nodes.group, nodes.peer,
        nodes.tag, nodes.flops, nodes.tensor_bytes, nodes.on_cpu, nodes.dependency_starts, nodes.dependencies,
    )  # fmt: skip
    digest = hashlib.blake2b(digest_size=16)
    for column in columns:
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.digest()


def _with_memory(hops: HopTable, memory: MemoryFile | None) -> HopTable:
    """Add remote memory as the last service class: latency + trunc(bytes / rate) ns, one use at a time."""
    assert memory is not None and memory.remote_mem_bw is not None
    time = np.trunc(memory.remote_mem_latency + np.trunc(hops.bytes / memory.remote_mem_bw))
    occupancy = np.maximum(time.astype(np.int64) * PS_PER_NS, 1)[:, None]
    return HopTable(
        occupancy=np.hstack((hops.occupancy, occupancy)),
        head=np.hstack((hops.head, occupancy)),
        lag=np.hstack((hops.lag, np.zeros_like(occupancy))),
        bytes=hops.bytes,
    )
