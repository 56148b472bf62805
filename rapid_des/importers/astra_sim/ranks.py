"""A node table of a trace to a rank program, by that simulator's rules of who runs what for how long.

A rank serves at once one operator of the CPU, one of the GPU and one of communication, always the ready one
of the smallest node id. Receives take no server.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rapid_des.arrays import Bools, Int64s, as_they_come, equals_before
from rapid_des.chakra.trace import CollectiveType, NodeKind, NodeTable, RankTrace
from rapid_des.errors import ConfigError, TraceError
from rapid_des.importers.astra_sim.algorithms import PhaseTemplates
from rapid_des.importers.astra_sim.collectives import CollectiveExpansions, Scope
from rapid_des.importers.astra_sim.files import MemoryFile, Setup
from rapid_des.importers.astra_sim.phases import A2A, AG, AR, LONGEST_S, RS
from rapid_des.program.builders import NodeVisits, expanded_program
from rapid_des.program.channels import ChannelSlots
from rapid_des.program.groups import Channel, Memory, SlotNumbers, SlotTable
from rapid_des.program.program import NONE, RankProgram, VisitKind, WorkLevel
from rapid_des.units import PS_PER_NS

CPU, GPU, COMMUNICATION = 0, 1, 2
_STREAMS = 3

_SIMULATED = (int(AR), int(AG), int(RS), int(A2A))
_BROADCAST = int(CollectiveType.BROADCAST)
_COMPUTE, _COLLECTIVE = int(NodeKind.COMPUTE), int(NodeKind.COLLECTIVE)
_SEND, _RECV = int(NodeKind.SEND), int(NodeKind.RECV)
_MEMORY = (int(NodeKind.MEM_LOAD), int(NodeKind.MEM_STORE))
_COMMUNICATES = (_SEND, _RECV, _COLLECTIVE, *_MEMORY)


class IssueOrder(Struct, frozen=True):
    """The order in which a rank prefers its nodes, and that of their issue if all took equal time."""

    position: Int64s
    """[node, by ascending id] its place in the order."""
    nodes: Int64s
    """The nodes by ascending id among those whose dependencies are done. This order numbers messages that are
    otherwise equal, and gives collectives their queues."""


def issue_order(nodes: NodeTable) -> IssueOrder:
    """Return the orders of a node table."""
    count = len(nodes)
    ascending = np.argsort(nodes.ids, kind="stable").astype(np.int64)
    by_id = np.empty(count, np.int64)
    by_id[ascending] = np.arange(count)
    waiting = np.repeat(np.arange(count), np.diff(nodes.dependency_starts))
    if (by_id[nodes.dependencies] < by_id[waiting]).all():
        return IssueOrder(by_id, ascending)
    return IssueOrder(by_id, _earliest_ids_first(nodes, by_id, ascending, waiting))


def _earliest_ids_first(nodes: NodeTable, by_id: Int64s, ascending: Int64s, waiting: Int64s) -> Int64s:
    count = len(nodes)
    order = np.argsort(nodes.dependencies, kind="stable")
    followers = np.split(waiting[order], np.cumsum(np.bincount(nodes.dependencies, minlength=count))[:-1])
    missing = np.diff(nodes.dependency_starts).tolist()
    positions = by_id.tolist()
    free = [position for position, node in enumerate(ascending.tolist()) if missing[node] == 0]
    issued = []
    while free:
        node = int(ascending[heapq.heappop(free)])
        issued.append(node)
        for follower in followers[node].tolist():
            missing[follower] -= 1
            if missing[follower] == 0:
                heapq.heappush(free, positions[follower])
    rest = [node for node in ascending.tolist() if missing[node]]
    return np.array(issued + rest, np.int64)


class NodePlace(NamedTuple):
    """What names a node in errors."""

    rank: str
    node: int
    name: str


def place_in(trace: RankTrace, node: int) -> NodePlace:
    """Return what names a node of a rank's table in errors."""
    nodes = trace.nodes
    return NodePlace(f"rank {trace.rank}", int(nodes.ids[node]), nodes.names[int(nodes.name[node])])


def lower_rank(
    setup: Setup, templates: PhaseTemplates, trace: RankTrace, order: IssueOrder, groups: Sequence[Scope]
) -> tuple[RankProgram, SlotTable]:
    """Return the program of a rank's table, whose group slots mean `groups`, the last the world."""
    lowering = TableLowering(setup, templates, trace.nodes, partial(place_in, trace), groups)
    return lowering.lower(order), lowering.slot_table()


class TableLowering:
    """Lowers a node table: that of a rank, or those of several ranks that only compute and send messages."""

    def __init__(
        self,
        setup: Setup,
        templates: PhaseTemplates,
        nodes: NodeTable,
        place: Callable[[int], NodePlace],
        groups: Sequence[Scope] = (),
    ) -> None:
        self.setup, self.templates, self.groups = setup, templates, groups
        self.nodes, self.place = nodes, place
        self.channels = ChannelSlots()
        self.slots = SlotNumbers()
        self.expansions = CollectiveExpansions(setup, templates, self.slots, first_queue=_STREAMS)
        self.visits = NodeVisits(self.nodes)

    def lower(self, order: IssueOrder) -> RankProgram:
        """Return the program: the visits of each kind of node. Channels have the slots behind all others."""
        nodes = self.nodes
        on_cpu = nodes.on_cpu & _among(nodes.kind, _COMMUNICATES)
        self._refuse(on_cpu, "communicates on the CPU")
        self._compute()
        if self.setup.system.replay_only:
            self._replayed()
        else:
            self._collectives(order.nodes)
            self._memory()
            self._messages(order.nodes)
        self.visits.priority[:] = order.position
        queues = len(self.setup.network.npus_count) * self.setup.queues
        capacity = np.repeat(np.array([1, self.expansions.capacity], np.int32), [_STREAMS, queues])
        level = np.repeat(np.array([WorkLevel.STREAM, WorkLevel.SLOT], np.int8), [_STREAMS, queues])
        return expanded_program(
            self.visits, self.expansions.distinct, server_capacity=capacity, server_level=level
        )

    def slot_table(self) -> SlotTable:
        """Return what the slots are."""
        for peer, sends, templates in self.channels.rows():
            slot = self.slots.number(Channel(peer, None, sends))
            for template in templates:
                self.slots.use(slot, template)
        return self.slots.table()

    def _serve(self, which: Bools, server: int | NDArray[np.int32], work: Int64s) -> None:
        self.visits.kind[which] = int(VisitKind.COMPUTE)
        self.visits.server[which] = server
        self.visits.work[which] = work

    def _compute(self) -> None:
        nodes, system = self.nodes, self.setup.system
        computes = nodes.kind == _COMPUTE
        if not computes.any():
            return
        modelled = computes & ~nodes.on_cpu & bool(system.roofline_enabled and not system.replay_only)
        stated = computes & ~modelled
        server = np.where(nodes.on_cpu, CPU, GPU).astype(np.int32)
        self._serve(stated, server[stated], _durations(nodes)[stated])
        real = modelled & (nodes.tensor_bytes > 0)
        if real.any():
            self._serve(real, GPU, self._roofline(real))

    def _roofline(self, which: Bools) -> Int64s:
        """Return the service times of operators whose rate memory or arithmetic bounds; whole nanoseconds."""
        system, nodes = self.setup.system, self.nodes
        flops = np.maximum(nodes.flops[which], 0).astype(np.float64)
        intensity = flops / nodes.tensor_bytes[which]
        assert system.peak_perf is not None
        rate = np.minimum(system.local_mem_bw * 1e9 * intensity, system.peak_perf * 1e12)
        seconds = np.divide(flops, rate, out=np.zeros_like(flops), where=rate > 0)
        late = which.copy()
        late[which] = seconds > LONGEST_S
        reason = f"takes longer than {LONGEST_S} s (30 days) by peak-perf and local-mem-bw"
        self._refuse(late, reason)
        return np.trunc(seconds * 1e9).astype(np.int64) * PS_PER_NS

    def _replayed(self) -> None:
        """Let communication take its recorded time."""
        which = _among(self.nodes.kind, _COMMUNICATES)
        self._serve(which, COMMUNICATION, _durations(self.nodes)[which])
        receives = self.nodes.kind == _RECV
        self.visits.server[receives] = NONE

    def _collectives(self, issued: Int64s) -> None:
        nodes = self.nodes
        collectives = nodes.kind == _COLLECTIVE
        if not collectives.any():
            return
        recorded = collectives & (nodes.collective == _BROADCAST)
        self._serve(recorded, COMMUNICATION, _durations(nodes)[recorded])
        simulated = collectives & _among(nodes.collective, _SIMULATED)
        unknown = collectives & ~recorded & ~simulated
        self._refuse(unknown, "is a collective that ASTRA-sim does not have")
        for node in issued[simulated[issued]].tolist():
            self._named(node, self._collective)

    def _collective(self, node: int) -> None:
        nodes = self.nodes
        group = int(nodes.group[node])
        group = len(self.groups) - 1 if group == NONE else group
        self.visits.server[node] = COMMUNICATION
        self.visits.expansion[node] = self.expansions.next(
            collective=CollectiveType(int(nodes.collective[node])),
            size=int(nodes.size[node]),
            group=group,
            scope=self.groups[group],
        )

    def _messages(self, issued: Int64s) -> None:
        nodes = self.nodes
        messages = _among(nodes.kind, (_SEND, _RECV))
        self._refuse(messages & (nodes.peer == NONE), "names no rank to talk to")
        self._refuse(messages & (nodes.size < 1), "is an empty message")
        if not messages.any():
            return
        self.visits.kind[messages] = int(VisitKind.MEMBER)
        sends = nodes.kind == _SEND
        self.visits.server[sends] = COMMUNICATION
        chosen = issued[messages[issued]]
        sizes, template = nodes.size[chosen], self.templates.messages(nodes.size[chosen])
        sub = self.templates.channels(nodes.tag[chosen], sizes)
        ends, slot = as_they_come(nodes.peer[chosen].astype(np.int64) * 2 + sends[chosen])
        self.channels = ChannelSlots.used(ends >> 1, (ends & 1).astype(np.bool_), slot, template)
        self.visits.slot[chosen] = len(self.slots) + slot
        self.visits.template[chosen], self.visits.sub[chosen] = template, sub
        self.visits.occurrence[chosen] = equals_before((slot << 31) + sub)

    def _memory(self) -> None:
        nodes = self.nodes
        moves = np.flatnonzero(_among(nodes.kind, _MEMORY))
        if not len(moves):
            return
        memory = self.setup.memory
        if memory is None or memory.memory_type == "NO_MEMORY_EXPANSION":
            place = self.place(int(moves[0]))
            raise TraceError(
                f"{place.rank}: node {place.node} uses remote memory; state one with --astra-memory"
            )
        slot = self.slots.number(Memory(self._sharers(memory)))
        self.visits.kind[moves] = int(VisitKind.MEMBER)
        self.visits.server[moves] = COMMUNICATION
        self.visits.slot[moves] = slot
        for node in moves.tolist():
            template = self.templates.visit(int(nodes.size[node]))
            self.visits.template[node] = self.slots.use(slot, template)

    def _sharers(self, memory: MemoryFile) -> int:
        """Return how many neighbouring ranks share a remote memory."""
        sharers = {"PER_NPU_MEMORY_EXPANSION": 1, "PER_NODE_MEMORY_EXPANSION": memory.num_npus_per_node}
        return sharers.get(memory.memory_type) or prod(self.setup.network.npus_count)

    def _named(self, node: int, action: Callable[[int], None]) -> None:
        try:
            action(node)
        except ConfigError as error:
            place = self.place(node)
            raise ConfigError(f"{error} ({place.rank}, node {place.node})") from None

    def _refuse(self, which: Bools, reason: str) -> None:
        wrong = np.flatnonzero(which)
        if len(wrong):
            place = self.place(int(wrong[0]))
            raise TraceError(f"{place.rank}: node {place.node} ({place.name}) {reason}")


def _among(column: NDArray[np.int8], values: Sequence[int]) -> Bools:
    """Return which entries are one of `values`; much faster on short columns than numpy's own."""
    among: Bools = column == values[0]
    for value in values[1:]:
        among |= column == value
    return among


def _durations(nodes: NodeTable) -> Int64s:
    """Return recorded times in whole nanoseconds; nothing recorded is one nanosecond, as there."""
    return np.maximum(nodes.duration // PS_PER_NS, 1) * PS_PER_NS
