"""From traces and a machine to the program that engines run: everything that time does not decide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache as remembered

import numpy as np
from msgspec import Struct, field

from rapid_des.arrays import Int64s
from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import UNSTATED, NodeKind, NodeTable, RankTrace, TraceSet
from rapid_des.errors import InputError
from rapid_des.machine import Machine
from rapid_des.program.builders import NodeExpansion
from rapid_des.program.collectives.library import libraries_of
from rapid_des.program.collectives.lower import Communication, Plans
from rapid_des.program.collectives.plans import Play, ServedCollective
from rapid_des.program.delays import delay_table
from rapid_des.program.expansions import Calls, Expanded, Expansions
from rapid_des.program.groups import GroupTable, Routed, SlotTable
from rapid_des.program.program import (
    NONE,
    Namer,
    Program,
    QueuePairTable,
    RankProgram,
    Records,
    Template,
    VisitKind,
)
from rapid_des.program.queue_pairs import queue_pair_table
from rapid_des.program.replicas import Replicas, link_orbits
from rapid_des.program.routes import geometry, routes_back, sprayed
from rapid_des.program.services import MessageSizes, flow_protocol, fluid_table, hop_table, no_hops
from rapid_des.program.switch_trees import NO_TREES, TreesOver, TreesOverGroups


class Lowered(Struct, frozen=True):
    """A program with what is needed to talk about it."""

    program: Program
    traces: TraceSet
    replicas: Replicas | None = None
    """The replicas that this program stands for; None: it is the whole program."""
    served: frozenset[ServedCollective] = frozenset()
    """The algorithms that served its collectives."""
    plans: Plans = field(default_factory=dict)
    """The plan of each collective, as the first rank that was lowered has it."""
    sizes: MessageSizes = field(default_factory=MessageSizes)
    """The message sizes in bytes, in the order of the rows of the hop table."""
    expanded: tuple[Expanded, ...] = ()
    """The expanded communication nodes of each rank program."""

    @property
    def copies(self) -> int:
        """The number of copies of the simulated ranks."""
        return 1 if self.replicas is None else self.replicas.count

    def of_every_rank(self, values: Sequence[int]) -> dict[int, int]:
        """Return values for all ranks, given those of the simulated ranks."""
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
    repeats: bool = False,
    even: bool = False,
    cache: BoundedCache | None = None,
    play: Play | None = None,
) -> Lowered:
    """Return the program of `traces` on `machine`; rank r runs on GPU r.

    On unordered streams the k-th collective that a rank starts in a group meets the k-th of the others. With
    `overlap` collectives are counted apart by kind and size instead and may run side by side: for traces
    whose ranks reach them in different orders. With `analytic` nothing takes a link: collectives and
    messages last as long as alone, by closed forms; collectives that are small as `play` simulates them.
    With `replicas` the traces are those of replica 0, and `UnsupportedByEngine` says that it cannot stand
    for the others; `repeats` keeps `auto` to algorithms that can. With `even` collectives of libraries are
    rounded up by less than a thousandth so that all rails carry as much. `cache` keeps templates and choices
    from one program to the next.
    """
    last = traces.ranks[-1].rank if traces.ranks else 0
    if last >= machine.fabric.gpus:
        problem = f"the machine has {machine.fabric.gpus} GPUs, the trace has rank {last}"
        raise InputError(f"{machine.path}: {problem}")
    machine.require_alive(trace.rank for trace in traces.ranks)
    lowering = _Lowering(
        traces,
        machine,
        overlap=overlap,
        analytic=analytic,
        replicas=replicas,
        repeats=repeats,
        even=even,
        cache=BoundedCache() if cache is None else cache,
        play=play,
    )
    program, communication = lowering.program(), lowering.communication
    served, expanded = frozenset(communication.served), tuple(lowering.expanded)
    return Lowered(program, traces, replicas, served, communication.plans, communication.sizes, expanded)


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
        repeats: bool,
        even: bool,
        cache: BoundedCache,
        play: Play | None,
    ) -> None:
        self.traces = traces
        self.replicas = replicas
        self.overlap = overlap
        self.machine = machine
        self.groups = GroupTable(traces, machine, replicas)
        self.trees = TreesOverGroups(machine) if machine.in_switches else None
        self.programs: list[RankProgram] = []
        self.expanded: list[Expanded] = []
        self.shared: dict[tuple[int, tuple[NodeExpansion, ...], SlotTable], int] = {}
        libraries = libraries_of(traces, machine)
        self.communication = Communication(
            machine,
            self.groups,
            cache,
            analytic=analytic,
            libraries=libraries,
            repeats=repeats,
            even=even,
            play=play,
        )
        self.geometry = remembered(lambda name: geometry(machine, self.groups.members(name)))
        self.calls: dict[int, Calls] = {}

    def program(self) -> Program:
        numbered = list(zip(self.traces.ranks, self.traces.table_numbers(), strict=True))
        if self.communication.needs_crossings:
            self.communication.learn_crossings(self._ends(numbered))
        bindings = tuple(
            self.groups.bind(position, *self._rank(trace, table))
            for position, (trace, table) in enumerate(numbered)
        )
        templates, message_sizes = self.communication.templates.numbered, self.communication.sizes
        fluid_mode = self.machine.switching.mode == "fluid"
        held = self.machine.switching.congestion is not None
        routed = self._routed(templates)
        routes, spray = sprayed(self.machine, routed.routes)
        sizes, whole = message_sizes.all(), message_sizes.whole()
        fluid = fluid_table(self.machine, routed.routes, sizes, routed.return_routes) if fluid_mode else None
        pairs: QueuePairTable | None = None
        if fluid_mode:
            hops, classes = no_hops(sizes), np.zeros(len(routes.links), np.int32)
        else:
            hops, classes = hop_table(self.machine.fabric, self.machine.switching, routes, sizes, whole=whole)
        if held:
            fabric, switching = self.machine.fabric, self.machine.switching
            back = routes_back(routed.return_routes, len(routes), spray)
            hops, pairs = queue_pair_table(fabric, switching, routes, hops, back)
        route_links, links = routes.links.astype(np.int32, copy=False), routed.links
        if self.replicas is not None and self.communication.analytic:
            self.replicas.require_alike(self.machine, self.groups.within_replica())
        elif self.replicas is not None:
            number, links = link_orbits(self.machine, self.replicas, self.groups.proving_pairs(templates))
            route_links = number[routes.links]
        delays = None
        if self.machine.spec.jitter is not None or any(fault.timeout for fault in self.machine.faults):
            ranks = [trace.rank for trace in self.traces.ranks]
            delays = delay_table(self.machine, ranks, routed.routes, sizes)
        return Program(
            bindings=bindings,
            programs=tuple(self.programs),
            groups=routed.groups,
            templates=tuple(templates),
            hops=hops,
            route_starts=routes.starts.astype(np.int64, copy=False),
            route_links=route_links,
            route_class=classes,
            links=links,
            labels=self.groups.labels,
            fluid=fluid,
            queue_pairs=pairs,
            spray=spray,
            delays=delays,
        )

    def _routed(self, templates: Sequence[Template]) -> Routed:
        """Return the routes of messages, and of their acknowledgements where these load links."""
        switching = self.machine.switching
        flows = switching.mode == "fluid"
        answered = flows and flow_protocol(switching).acknowledgement > 0
        held = switching.congestion is not None
        routed = self.groups.routed(templates, both_directions=answered or held)
        return routed.unanswered() if flows and not answered else routed

    def _rank(self, trace: RankTrace, table: int) -> tuple[int, SlotTable]:
        """Return the rank's program: one for all ranks whose table becomes the same visits."""
        geometries = tuple(self.geometry(name) for name in trace.groups)
        trees = tuple(self._above(name, trace.rank) for name in trace.groups)
        calls = self._calls(trace.nodes, table)
        expansions = Expansions(self, trace, calls, geometries, trees)
        distinct, slots = tuple(expansions.distinct), expansions.slots.table()
        key = (table, distinct, slots)
        if key not in self.shared:
            expanded = Expanded(calls.of_node, distinct, calls.sub)
            device = self.machine.device
            program = expanded.program(trace.nodes, device, self.traces, overlap=self.overlap)
            self.programs.append(program)
            self.expanded.append(expanded)
            self.shared[key] = len(self.programs) - 1
        return self.shared[key], slots

    def _ends(self, numbered: Sequence[tuple[RankTrace, int]]) -> Iterator[tuple[int, int]]:
        """Yield source and destination of messages; of pairs that exchange several, more than once."""
        for trace, table in numbered:
            for kind, _, peer, *_ in self._calls(trace.nodes, table).messages:
                if peer != UNSTATED:
                    ends = trace.rank, trace.peers[peer]
                    yield ends if kind == NodeKind.SEND else ends[::-1]

    def _calls(self, nodes: NodeTable, table: int) -> Calls:
        """Return the calls of a table, of which many ranks may have the same."""
        if table not in self.calls:
            exchanges, by_tag = bool(self.traces.exchanges), self.groups.by_tag
            self.calls[table] = Calls.of(nodes, exchanges=exchanges, by_tag=by_tag)
        return self.calls[table]

    def _above(self, name: str, rank: int) -> TreesOver:
        """Return the trees of switches over a group; where nothing takes a link, over its first line only."""
        if self.trees is None:
            return NO_TREES
        ranks = self.groups.members(name)
        extents, _ = self.geometry(name)
        return self.trees.of(name, ranks, extents, ranks[0] if self.communication.analytic else rank)


class RankTimes(Struct, frozen=True):
    """The times of one rank's nodes in a run, in picoseconds; arrays with one entry per node of its table."""

    start: Int64s
    finish: Int64s
    met: Int64s
    """The time at which the last member of the node's collective or message arrived; NONE for other nodes."""


def rank_times(lowered: Lowered, records: Records, position: int) -> RankTimes:
    """Return the times of the nodes of the rank at `position` of the bindings."""
    program = lowered.program
    binding = program.bindings[position]
    table = program.programs[binding.program]
    offset = int(program.visits()[position])
    visits = np.flatnonzero(table.node != NONE)
    first_step = np.where(table.kind[visits] == VisitKind.HOLD, visits + 1, visits)
    return RankTimes(
        start=records.start[offset + visits],
        finish=records.finish[offset + visits],
        met=records.met[offset + first_step],
    )
