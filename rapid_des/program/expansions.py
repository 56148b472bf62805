"""What the nodes of a rank that communicate become: members of collectives, messages, and where they meet."""

from __future__ import annotations

from math import prod
from typing import Protocol

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int32s
from rapid_des.chakra.trace import (
    EXCHANGES,
    UNSTATED,
    CollectiveType,
    Exchange,
    NodeKind,
    NodeTable,
    RankTrace,
    TraceSet,
)
from rapid_des.device.device import Device
from rapid_des.errors import TraceError, UnsupportedByEngine
from rapid_des.program.builders import NOTHING, MemberVisit, NodeExpansion, rank_program
from rapid_des.program.collectives.lower import Communication
from rapid_des.program.collectives.plans import CollectiveCall, cut_in_chunks
from rapid_des.program.contention import with_contention
from rapid_des.program.groups import Along, Channel, Geometry, GroupTable, SlotNumbers, Whole
from rapid_des.program.program import NONE, RankProgram
from rapid_des.program.services import service_times
from rapid_des.program.switch_trees import TreesOver


class SharedLowering(Protocol):
    """What the expansions of all ranks share."""

    traces: TraceSet
    groups: GroupTable
    communication: Communication
    overlap: bool


class Expanded(Struct, frozen=True):
    """What a table's communication nodes become: for each node its index in `distinct`, or NONE."""

    of_node: Int32s
    distinct: tuple[NodeExpansion, ...]
    sub: Int32s
    """The number that separates messages of one slot by tag, for each node."""

    def program(self, nodes: NodeTable, device: Device, traces: TraceSet, *, overlap: bool) -> RankProgram:
        """Return the program of a table; see `rank_program`."""
        durations = service_times(nodes, device)
        program = rank_program(
            nodes,
            durations,
            expansion=self.of_node,
            expansions=self.distinct,
            sub=self.sub,
            unordered=traces.unordered_streams,
            overlap=overlap,
        )
        occupancy = self.of_node, [expansion.occupancy for expansion in self.distinct]
        return with_contention(program, nodes, durations, occupancy, device)


class Calls(Struct, frozen=True):
    """The communication that a node table states: distinct calls, each with the first node that makes it."""

    of_node: Int32s
    """[node] The call that it makes: first those of collectives, then those of messages; or NONE."""
    sub: Int32s
    """[node] The tag that separates the messages of a channel."""
    collectives: tuple[tuple[int, ...], ...]
    """Type, bytes, group and exchange, and the node."""
    messages: tuple[tuple[int, ...], ...]
    """Kind of node, bytes, peer, channel and group, and the node."""

    @classmethod
    def of(cls, nodes: NodeTable, *, exchanges: bool, by_tag: bool) -> Calls:
        """Return the calls of a node table.

        `exchanges`: tags of all-to-alls stand for exchanges. `by_tag`: messages of each tag are a channel.
        """
        of_node, sub = np.full(len(nodes), NONE, np.int32), np.zeros(len(nodes), np.int32)
        places = np.flatnonzero(nodes.kind == NodeKind.COLLECTIVE)
        spread = nodes.tag if exchanges else np.zeros(len(nodes), np.int64)
        stated = nodes.collective[places], nodes.size[places], nodes.group[places], spread[places]
        columns = np.stack(stated, 1).astype(np.int64)
        rows, first, inverse = np.unique(columns, axis=0, return_index=True, return_inverse=True)
        of_node[places] = inverse.reshape(-1)
        nodes_of_rows = places[first].tolist()
        collectives = tuple((*row, node) for row, node in zip(rows.tolist(), nodes_of_rows, strict=True))
        places = np.flatnonzero((nodes.kind == NodeKind.SEND) | (nodes.kind == NodeKind.RECV))
        if not by_tag:
            sub[places] = nodes.tag[places]
        kinds = (nodes.kind, nodes.size, nodes.peer, nodes.tag if by_tag else of_node, nodes.group)
        sent = list(zip(*(column[places].tolist() for column in kinds), strict=True))
        node_of = dict(zip(reversed(sent), reversed(places.tolist()), strict=True))
        number = {row: place for place, row in enumerate(sorted(node_of), len(collectives))}
        of_node[places] = [number[row] for row in sent]
        return cls(of_node, sub, collectives, tuple((*row, node_of[row]) for row in number))


class Expansions:
    """What the calls of a node table become on one rank, and the slots they need."""

    def __init__(
        self,
        lowering: SharedLowering,
        trace: RankTrace,
        calls: Calls,
        geometries: tuple[Geometry, ...],
        trees: tuple[TreesOver, ...],
    ) -> None:
        self._lowering, self._communication = lowering, lowering.communication
        self._trace = trace
        self._geometries = geometries
        self._trees = trees
        self.slots = SlotNumbers(map(Whole, range(len(geometries))))
        self.distinct: list[NodeExpansion] = []
        """The expansion of each call, in the order of their numbers."""
        for row in calls.collectives:
            self._collective_call(*row)
        for row in calls.messages:
            self._message_call(*row)

    def _collective_call(self, kind: int, size: int, group: int, exchange: int, node: int) -> None:
        nodes = self._trace.nodes
        if UNSTATED in (kind, size, group):
            what = "known type" if kind == UNSTATED else "size" if size == UNSTATED else "group"
            where = f"rank {self._trace.rank} node {int(nodes.ids[node])}"
            raise TraceError(f"{where}: the trace states no {what} for this collective")
        stream = nodes.streams[nodes.stream[node]]
        apart = self._lowering.overlap and stream in self._lowering.traces.unordered_streams
        slot = self.slots.number(Whole(group, (kind, size) if apart else ()), stream)
        extents, axes = self._geometries[group]
        spread = self._exchange(exchange, group)
        call = CollectiveCall(CollectiveType(kind), size, extents, axes, self._trees[group], spread)
        self.distinct.append(self._collective(call, group, slot))

    def _exchange(self, exchange: int, group: int) -> Exchange | None:
        """Return how an all-to-all of a tag spreads; `TraceError` if that is not stated for this group."""
        if not exchange:
            return None
        exchanges, name = self._lowering.traces.exchanges, self._trace.groups[group]
        members = len(self._lowering.groups.members(name))
        if exchange > len(exchanges) or len(exchanges[exchange - 1].copies) not in (0, members):
            problem = f"tag {exchange} stands for no all-to-all among {members} members"
            raise TraceError(f"rank {self._trace.rank}, group {name}: {problem} ({EXCHANGES})")
        return exchanges[exchange - 1]

    def _collective(self, call: CollectiveCall, group: int, whole: int) -> NodeExpansion:
        extents = call.extents
        ranks = self._lowering.groups.members(self._trace.groups[group])
        if len(ranks) == 1:
            return NodeExpansion(whole)
        index = self._communication.whole(call, self.slots.label(whole), ranks)
        if index is not None:
            members_of = (MemberVisit(whole, self.slots.use(whole, index), 0),)
            return NodeExpansion(whole, members_of, self._communication.occupancy.get(index, NOTHING))
        simulated = self._lowering.groups.simulated(ranks)
        in_phases = []
        chunks = self._communication.plan(call, ranks, self._trace.rank)
        for chunk, chunk_phases in enumerate(chunks):
            for phase in chunk_phases:
                members, slot, here = len(ranks), whole, simulated
                if phase.axis is not None:
                    if simulated < members:
                        raise UnsupportedByEngine("a collective along several axes has no cut")
                    members = here = extents[phase.axis]
                    along = Along(group, phase.axis, members, stride=prod(extents[: phase.axis]))
                    slot = self.slots.number(along, self.slots.label(whole))
                index = self._communication.phase(phase, members, whole=cut_in_chunks(chunks), simulated=here)
                in_phases.append(MemberVisit(slot, self.slots.use(slot, index), chunk, link_order=chunk))
        return NodeExpansion(whole, tuple(in_phases))

    def _message_call(self, kind: int, size: int, peer: int, tag: int, group: int, node: int) -> None:  # noqa: PLR0913, PLR0917 - a row of `Calls.messages`
        nodes, groups = self._trace.nodes, self._lowering.groups
        if UNSTATED in (peer, size):
            what = "peer" if peer == UNSTATED else "size"
            where = f"rank {self._trace.rank} node {int(nodes.ids[node])}"
            raise TraceError(f"{where}: the trace states no {what} for this send or receive")
        stream = groups.label(nodes, nodes.stream[node])
        sends = kind == NodeKind.SEND
        channel = Channel(peer, tag, sends) if groups.by_tag else Channel(peer, None, sends, tagged=True)
        slot = self.slots.number(channel, stream)
        ends = (self._trace.rank, self._trace.peers[peer])
        within = None if group == UNSTATED else groups.members(self._trace.groups[group])
        template = self._communication.message(size, stream, ends if sends else ends[::-1], within)
        # A receive mostly waits. NCCL's keeps its SMs meanwhile, but counted so stages on one node take
        # 11 % longer than in blocks, and longer than measured.
        occupancy = self._communication.occupancy.get(template, NOTHING) if sends else NOTHING
        members = (MemberVisit(slot, self.slots.use(slot, template), 0),)
        self.distinct.append(NodeExpansion(slot, members, occupancy))
