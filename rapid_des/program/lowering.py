"""From traces and a machine to the program that engines run: everything that time does not decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import UNSTATED, CollectiveType, NodeKind, NodeTable, RankTrace, TraceSet
from rapid_des.errors import InputError, TraceError, UnsupportedByEngine
from rapid_des.machine import Machine
from rapid_des.program.analytic import alone, fixed_message, fixed_template, message_alone
from rapid_des.program.builders import Expansion, MemberVisit, rank_program, service_times
from rapid_des.program.groups import Along, Channel, Geometry, GroupTable, SlotNumbers, SlotTable, Whole
from rapid_des.program.plans import (
    Call,
    Phase,
    Plan,
    Planner,
    Served,
    TreesOver,
    TreesOverGroups,
    cut_in_chunks,
    served_by,
)
from rapid_des.program.program import NONE, Namer, Program, RankProgram, Template
from rapid_des.program.replicas import Replicas, cut_of, link_orbits
from rapid_des.program.services import Sizes, fluid_table, hop_table, no_hops
from rapid_des.program.signatures import signatures
from rapid_des.program.templates import Templates


@dataclass(frozen=True)
class Lowered:
    """A program with what is needed to talk about it."""

    program: Program
    traces: TraceSet
    replicas: Replicas | None = None
    """What the program is the first one of; None: it is the whole."""
    served: frozenset[Served] = frozenset()
    """Which algorithms its collectives got."""
    plans: Mapping[Call, Plan] = field(default_factory=dict)
    """How each collective is done, by the first rank that was lowered."""

    @property
    def copies(self) -> int:
        """How often the ranks of the program stand beside themselves."""
        return 1 if self.replicas is None else self.replicas.count

    def of_every_rank(self, values: Sequence[int]) -> dict[int, int]:
        """Return what all ranks have by rank, given what those of the program have."""
        ranks = np.array([binding.rank for binding in self.program.bindings], np.int64)
        known = dict(zip(ranks.tolist(), values, strict=True))
        for _ in range(self.copies - 1):
            assert self.replicas is not None
            ranks = self.replicas.image[ranks]
            known.update(zip(ranks.tolist(), values, strict=True))
        return dict(sorted(known.items()))

    @property
    def name(self) -> Namer:
        """Name a visit by rank, node name and node id."""

        def of(position: int, visit: int) -> str:
            binding = self.program.bindings[position]
            nodes = self.traces.ranks[position].nodes
            node = int(self.program.programs[binding.program].node[visit])
            if node == NONE:
                return f"rank {binding.rank}, a step of a collective"
            return f"rank {binding.rank} node {int(nodes.ids[node])} ({nodes.names[nodes.name[node]]})"

        return of


def lower(  # noqa: PLR0913 - what is asked for, by name
    traces: TraceSet,
    machine: Machine,
    *,
    overlap: bool = False,
    analytic: bool = False,
    replicas: Replicas | None = None,
    cache: BoundedCache | None = None,
) -> Lowered:
    """Return the program of `traces` on `machine`; rank r runs on GPU r.

    On unordered streams the k-th collective that a rank starts in a group meets the k-th of the others. With
    `overlap` collectives are counted apart by kind and size instead and may run side by side: for traces
    whose ranks reach them in different orders. With `analytic` nothing takes a link: collectives and
    messages last as long as they would alone (see `zero_load`). With `replicas` the traces are those of
    replica 0, and `UnsupportedByEngine` says that it can not stand for the others. `cache` keeps templates
    from one program to the next.
    """
    if traces.ranks and traces.ranks[-1].rank >= machine.fabric.gpus:
        raise InputError(
            f"{machine.path}: the machine has {machine.fabric.gpus} GPUs, the trace has rank "
            f"{traces.ranks[-1].rank}"
        )
    machine.require_alive(trace.rank for trace in traces.ranks)
    lowering = _Lowering(
        traces,
        machine,
        overlap=overlap,
        analytic=analytic,
        replicas=replicas,
        cache=BoundedCache() if cache is None else cache,
    )
    return Lowered(lowering.program(), traces, replicas, frozenset(lowering.served), lowering.plans)


def planner_of(machine: Machine) -> Planner:
    """Return what plans collectives: around dead links, if a constant fault of the machine asks for that."""
    if not machine.replans:
        return Planner(machine)
    from rapid_des.program.faults.planning import FaultPlanner

    return FaultPlanner(machine)


class _Lowering:
    """Collects templates, groups and sizes while the ranks are lowered."""

    def __init__(  # noqa: PLR0913 - as `lower` has it
        self,
        traces: TraceSet,
        machine: Machine,
        *,
        overlap: bool,
        analytic: bool,
        replicas: Replicas | None,
        cache: BoundedCache,
    ) -> None:
        self.traces = traces
        self.replicas = replicas
        self.analytic = analytic
        self.overlap = overlap
        self.machine = machine
        stores = machine.switching.mode == "store_and_forward"
        self.segment = machine.switching.segment if stores else None
        self.sizes = Sizes()
        self.templates = Templates(self.sizes, cache)
        self.groups = GroupTable(traces, machine, replicas)
        self.above = TreesOverGroups(machine)
        self.programs: list[RankProgram] = []
        self.shared: dict[tuple[object, ...], tuple[int, SlotTable]] = {}
        self.likeness: dict[tuple[int, ...], bytes] = {}
        self.planner = planner_of(machine)
        self.served: set[Served] = set()
        self.plans: dict[Call, Plan] = {}

    def program(self) -> Program:
        numbered = zip(self.traces.ranks, self.traces.table_numbers(), strict=True)
        bindings = tuple(
            self.groups.bind(position, *self._rank(trace, table))
            for position, (trace, table) in enumerate(numbered)
        )
        fluid_mode = self.machine.switching.mode == "fluid"
        routed = self.groups.routed(self.templates.numbered, both_ways=fluid_mode)
        routes, sizes, whole, fluid = routed.routes, self.sizes.all(), self.sizes.whole(), None
        if fluid_mode:
            hops, classes = no_hops(sizes), np.zeros(len(routes.links), np.int32)
            fluid = fluid_table(self.machine, routed, sizes)
        else:
            hops, classes = hop_table(self.machine.fabric, self.machine.switching, routes, sizes, whole=whole)
        route_links, links = routes.links.astype(np.int32, copy=False), routed.links
        if self.replicas is not None:
            number, links = link_orbits(
                self.machine, self.replicas, self.groups.proving_pairs(self.templates.numbered)
            )
            route_links = number[routes.links]
        return Program(
            bindings=bindings,
            programs=tuple(self.programs),
            groups=routed.groups,
            templates=tuple(self.templates.numbered),
            hops=hops,
            route_starts=routes.starts.astype(np.int64, copy=False),
            route_links=route_links,
            route_class=classes,
            links=links,
            labels=self.groups.labels,
            fluid=fluid,
        )

    def _rank(self, trace: RankTrace, table: int) -> tuple[int, SlotTable]:
        """Return the rank's program: one for all ranks with the same table and the same shapes of groups."""
        geometries = tuple(self.groups.geometry(name) for name in trace.groups)
        trees = tuple(self._above(name, trace.rank) for name in trace.groups)
        mark = self.planner.mark(trace.rank, map(self.groups.members, trace.groups))
        key: tuple[object, ...] = (table, geometries, trees, mark)
        if self.analytic:
            members = tuple(self._likeness(self.groups.members(name)) for name in trace.groups)
            key = (*key, members, tuple(self._likeness((trace.rank, peer)) for peer in trace.peers))
        if key not in self.shared:
            expansions = _Expansions(self, trace, geometries, trees)
            program = rank_program(
                trace.nodes,
                service_times(trace.nodes, self.machine.device),
                expansion=expansions.of_node,
                expansions=expansions.distinct,
                unordered=self.traces.unordered_streams,
                overlap=self.overlap,
            )
            self.programs.append(program)
            self.shared[key] = len(self.programs) - 1, expansions.slots.table()
        return self.shared[key]

    def _above(self, name: str, rank: int) -> TreesOver:
        """Return the trees of switches over a group; where nothing takes a link, over its first line only."""
        ranks = self.groups.members(name)
        extents, _ = self.groups.geometry(name)
        return self.above.of(name, ranks, extents, ranks[0] if self.analytic else rank)

    def _likeness(self, ranks: tuple[int, ...]) -> bytes:
        """Return a key of what a group's routes are like; a rank may be its own peer."""
        if ranks not in self.likeness:
            distinct = tuple(dict.fromkeys(ranks))
            self.likeness[ranks] = signatures(self.machine, [distinct])[0]
        return self.likeness[ranks]

    def fixed(self, call: Call, ranks: tuple[int, ...]) -> int:
        """Return the template of a collective that takes as long as it would alone."""
        key = ("alone", call, ranks if self.machine.replans else self._likeness(ranks))
        return self.templates.number(key, lambda: self._alone(call, ranks))

    def plan(self, call: Call, ranks: tuple[int, ...], rank: int) -> Plan:
        """Return how a collective of some ranks is done, and note it."""
        chunks = self.planner.plan(call, ranks, rank)
        self.served.add(served_by(call, chunks))
        self.plans.setdefault(call, chunks)
        return chunks

    def _alone(self, call: Call, ranks: tuple[int, ...]) -> Template:
        duration = 0
        for chunk in self.plan(call, ranks, ranks[0]):
            for phase in chunk:
                line = ranks
                if phase.axis is not None:
                    stride = prod(call.extents[: phase.axis])
                    line = ranks[: stride * call.extents[phase.axis] : stride]
                schedule = phase.schedule(len(line))
                duration += alone(schedule, self.machine, line)
        return fixed_template(call.members, duration, self.sizes, name=call.collective.name.lower())

    def fixed_message(self, size: int, ends: tuple[int, int]) -> int:
        """Return the template of a message that takes as long as it would alone."""
        key = ("message alone", size, self._likeness(ends))
        return self.templates.number(
            key, lambda: fixed_message(message_alone(size, self.machine, *ends), self.sizes)
        )

    def message(self, size: int) -> int:
        """Return the template of a message."""
        return self.templates.number(("message", size), lambda: self.templates.message(size, self.segment))

    def phase(self, phase: Phase, members: int, *, whole: bool, kept: int) -> int:
        """Return the template of one phase of a collective; `whole`: its messages never go in parts.

        With fewer `kept` than members, its cut.
        """
        key = (phase, members, whole, kept)
        return self.templates.number(key, lambda: self._collective(phase, members, whole=whole, kept=kept))

    def _collective(self, phase: Phase, members: int, *, whole: bool, kept: int) -> Template:
        name = f"{phase.collective.name.lower()} of {phase.size} B by {phase.algorithm}"
        if kept < members:
            cut = cut_of(phase, members, kept)
            if self.segment is not None and cut.size.max() > self.segment:
                raise UnsupportedByEngine("messages in segments have no cut")
            return replace(
                cut.template(members, kept), size=self.sizes.rows(cut.size, whole=whole), name=name
            )
        return self.templates.of(
            (phase, members), lambda: phase.schedule(members), name=name, segment=self.segment, whole=whole
        )


class _Expansions:
    """The expansions of one node table, and the slots they need."""

    def __init__(
        self,
        lowering: _Lowering,
        trace: RankTrace,
        geometries: tuple[Geometry, ...],
        trees: tuple[TreesOver, ...],
    ) -> None:
        nodes = trace.nodes
        self._lowering = lowering
        self._trace = trace
        self._geometries = geometries
        self._trees = trees
        self.slots = SlotNumbers(map(Whole, range(len(geometries))))
        self.distinct: list[Expansion] = []
        self.of_node = np.full(len(nodes), NONE, np.int32)
        self._collectives(nodes)
        self._messages(nodes)

    def _collectives(self, nodes: NodeTable) -> None:
        places = np.flatnonzero(nodes.kind == NodeKind.COLLECTIVE)
        columns = np.stack((nodes.collective[places], nodes.size[places], nodes.group[places]), 1).astype(
            np.int64
        )
        rows, inverse = np.unique(columns, axis=0, return_inverse=True)
        self.of_node[places] = inverse.reshape(-1) + len(self.distinct)
        for index, (kind, size, group) in enumerate(rows.tolist()):
            node = places[inverse.reshape(-1) == index][0]
            if UNSTATED in (kind, size, group):
                what = "known type" if kind == UNSTATED else "size" if size == UNSTATED else "group"
                where = f"rank {self._trace.rank} node {int(nodes.ids[node])}"
                raise TraceError(f"{where}: the trace states no {what} for this collective")
            stream = nodes.streams[nodes.stream[node]]
            apart = self._lowering.overlap and stream in self._lowering.traces.unordered_streams
            slot = self.slots.number(Whole(group, (kind, size) if apart else ()), stream)
            self.distinct.append(self._collective(CollectiveType(kind), size, group, slot))

    def _collective(self, kind: CollectiveType, size: int, group: int, whole: int) -> Expansion:
        extents, axes = self._geometries[group]
        call = Call(kind, size, extents, axes, self._trees[group])
        if call.members == 1:
            return Expansion(whole)
        ranks = self._lowering.groups.members(self._trace.groups[group])
        if self._lowering.analytic:
            return Expansion(
                whole, (MemberVisit(whole, self.slots.use(whole, self._lowering.fixed(call, ranks)), 0),)
            )
        kept = self._lowering.groups.kept(ranks)
        members_of = []
        chunks = self._lowering.plan(call, ranks, self._trace.rank)
        for chunk, chunk_phases in enumerate(chunks):
            for phase in chunk_phases:
                members, slot, here = call.members, whole, kept
                if phase.axis is not None:
                    if kept < members:
                        raise UnsupportedByEngine("a collective along several axes has no cut")
                    members = here = extents[phase.axis]
                    along = Along(group, phase.axis, members, stride=prod(extents[: phase.axis]))
                    slot = self.slots.number(along, self.slots.label(whole))
                index = self._lowering.phase(phase, members, whole=cut_in_chunks(chunks), kept=here)
                members_of.append(MemberVisit(slot, self.slots.use(slot, index), chunk))
        return Expansion(whole, tuple(members_of))

    def _messages(self, nodes: NodeTable) -> None:
        places = np.flatnonzero((nodes.kind == NodeKind.SEND) | (nodes.kind == NodeKind.RECV))
        columns = np.stack((nodes.kind[places], nodes.size[places], nodes.peer[places], nodes.tag[places]), 1)
        rows, inverse = np.unique(columns.astype(np.int64), axis=0, return_inverse=True)
        self.of_node[places] = inverse.reshape(-1) + len(self.distinct)
        for index, (kind, size, peer, tag) in enumerate(rows.tolist()):
            node = places[inverse.reshape(-1) == index][0]
            if UNSTATED in (peer, size):
                what = "peer" if peer == UNSTATED else "size"
                where = f"rank {self._trace.rank} node {int(nodes.ids[node])}"
                raise TraceError(f"{where}: the trace states no {what} for this send or receive")
            stream = nodes.streams[nodes.stream[node]].removesuffix("-send").removesuffix("-recv")
            slot = self.slots.number(Channel(peer, tag, kind == NodeKind.SEND), stream)
            template = self._message(size, peer, sends=kind == NodeKind.SEND)
            self.distinct.append(Expansion(slot, (MemberVisit(slot, self.slots.use(slot, template), 0),)))

    def _message(self, size: int, peer: int, *, sends: bool) -> int:
        if not self._lowering.analytic:
            return self._lowering.message(size)
        ends = (self._trace.rank, self._trace.peers[peer])
        return self._lowering.fixed_message(size, ends if sends else ends[::-1])
