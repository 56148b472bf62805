"""Collectives planned for what survives of a fabric: rings laid along it, or the plan as it was.

A group that no dead link concerns keeps the machine's plan. Otherwise every line along a dimension (or the
one ring of all members) that lost a route takes, of the algorithm as stated and those of `REPAIRS` for
it in an order repaired for what survives (`ordering.repaired`), the one that would end first alone (see
`side_by_side`; ties in this order). A group over several dimensions does so line by line; or it does as
stated, or leaves the dimensions, all members on one repaired ring, if alone the group would end earlier so.
Algorithms of other kinds stay as they are, and what is stated as one ring does not become two.

Collectives that begin while a closure is noticed are replanned by `CollectiveReplanner`, rank by rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int32s, Int64s
from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import CollectiveType, NodeKind, TraceSet
from rapid_des.errors import FabricCutError
from rapid_des.machine import Machine
from rapid_des.network.collectives import IN_SWITCH, algorithm
from rapid_des.network.collectives.on_fabric import line_of, repaired, snakes
from rapid_des.network.routing import UNREACHED, hops_from
from rapid_des.program.collectives.plans import AxisPhase, CollectiveCall, CollectivePlan, cut_in_chunks
from rapid_des.program.collectives.select import Planner
from rapid_des.program.collectives.simulate import duration_alone
from rapid_des.program.collectives.templates import template_of
from rapid_des.program.groups import families_of
from rapid_des.program.program import NONE, Template
from rapid_des.program.routes import all_pairs, geometry
from rapid_des.program.services import MessageSizes, part_sizes
from rapid_des.program.switch_trees import TreesOverGroups, with_switches
from rapid_des.values import replace

REPAIRS: Mapping[str, tuple[str, ...]] = {
    "ring": ("ring", "bucket"),
    "bidirectional_ring": ("bidirectional_ring", "bucket"),
    "bucket": ("bucket",),
    "torus": ("bidirectional_ring",),
    "mesh_bucket": ("bucket",),
}
"""What may serve instead: algorithms whose neighbours can be laid along what survives. A bucket is a ring
that does not close, in one chunk: several side by side would use both directions at once, as no ring does."""

LARGEST_RING = 1024
"""Largest group that is replanned: the search for a ring order takes quadratic time."""

Ranks = tuple[int, ...]


class FaultPlanner(Planner):
    """Plans collectives around dead links; results are kept."""

    def __init__(
        self,
        machine: Machine,
        memory: BoundedCache | None = None,
        *,
        repeats: bool = False,
        families: Sequence[Int64s] = (),
    ) -> None:
        super().__init__(machine, memory, repeats=repeats, families=families)
        self._phase = cache(self._best)
        self._alone = cache(self._played)
        self._whole = cache(self._alike)
        self._distances = cache(self._hops)
        self.concern = cache(self._concern)

    def _known(self, machine: Machine) -> Machine:
        """Return the machine as its constant faults leave it: planning around them, `auto` knows them."""
        return machine

    def _concern(self, ranks: Ranks) -> bool:
        """Return whether a pair of the group lost its planned route; if not, its plans stay as they were."""
        return len(ranks) > LARGEST_RING or (len(ranks) > 1 and self._lose_routes(all_pairs([ranks])))

    def plan(self, call: CollectiveCall, ranks: Ranks, rank: int) -> CollectivePlan:
        """Return how one rank takes part in a collective of `ranks`; every rank's phases are as many."""
        stated = self.stated(call, ranks)
        if any(phase.axis is not None for phase in stated[0]):
            alike = self._whole(call, ranks)
            if alike is not None:
                return alike
        return self._along(stated, call, ranks, ranks.index(rank))

    def mark(self, rank: int, groups: Iterable[Ranks]) -> int | None:
        """Return the rank if its part in collectives of its groups may be like no other's, else None."""
        return rank if any(map(self.concern, groups)) else None

    def _along(
        self, stated: CollectivePlan, call: CollectiveCall, ranks: Ranks, place: int
    ) -> CollectivePlan:
        """Return a plan with the phases of one member's own lines."""
        whole = len(stated) > 1
        return tuple(
            tuple(self._phase(phase, self._line(phase, call, ranks, place), whole) for phase in chunk)
            for chunk in stated
        )

    def _line(self, phase: AxisPhase, call: CollectiveCall, ranks: Ranks, place: int) -> Ranks:
        return ranks if phase.axis is None else tuple(line_of(ranks, call.extents, phase.axis, place)[1])

    def _alike(self, call: CollectiveCall, ranks: Ranks) -> CollectivePlan | None:
        """Return the plan of all members, as stated or one ring, that ends before the one line by line."""
        if self._inside_switches(call) or not self.concern(ranks):
            return None
        stated = self.stated(call, ranks)
        lines = [self._along(stated, call, ranks, place) for place in range(len(ranks))]
        least = self._duration(lines, call, ranks)
        best = None
        for other in (stated, *self._one_ring(stated, call, ranks)):
            duration = self._duration([other] * len(ranks), call, ranks)
            if duration < least:
                best, least = other, duration
        return best

    def _one_ring(self, stated: CollectivePlan, call: CollectiveCall, ranks: Ranks) -> list[CollectivePlan]:
        """Return plans that leave the dimensions: all members on one repaired ring."""
        names = {phase.algorithm for phase in stated[0]}
        if not names <= {"ring", "bidirectional_ring", "bucket"}:
            return []
        name = "bidirectional_ring" if names == {"bidirectional_ring"} else "ring"
        ring = AxisPhase(None, call.collective, name, call.size, len(stated))
        return [((phase,),) for phase in self._rings(ring, ranks, call.extents)]

    def _inside_switches(self, call: CollectiveCall) -> bool:
        """Return whether the machine asks for switches, which lines of a group may have and others not.

        Members whose lines have none must not leave the dimensions alone.
        """
        choice = self.machine.collectives.choice(call.collective.name.lower())
        stated = () if choice is None else choice.algorithm
        return any(name in IN_SWITCH for name in ((stated,) if isinstance(stated, str) else stated))

    def _duration(self, plans: Sequence[CollectivePlan], call: CollectiveCall, ranks: Ranks) -> int:
        """Return what a collective takes alone, given each member's plan of it."""
        chunks = []
        for number, chunk in enumerate(plans[0]):
            phases = []
            for place, stated in enumerate(chunk):
                mine = {
                    self._line(stated, call, ranks, member): plan[number][place]
                    for member, plan in enumerate(plans)
                }
                phases.append(tuple((mine[line], line) for line in sorted(mine)))
            chunks.append(tuple(phases))
        return self._alone(tuple(chunks), cut_in_chunks(plans[0]))

    def _played(
        self, chunks: tuple[tuple[tuple[tuple[AxisPhase, Ranks], ...], ...], ...], whole: bool
    ) -> int:  # noqa: FBT001
        schedules = [
            [[(phase.schedule(len(line)), line) for phase, line in lines] for lines in chunk]
            for chunk in chunks
        ]
        return duration_alone(schedules, self.machine, whole=whole)

    def _best(self, phase: AxisPhase, ranks: Ranks, whole: bool) -> AxisPhase:  # noqa: FBT001
        schedule = phase.schedule(len(ranks))
        pairs = np.unique(np.stack((schedule.source, schedule.destination), 1), axis=0)
        if schedule.switches or not self._lose_routes(np.array(ranks)[pairs]):
            return phase
        choices = [phase, *self._rings(phase, ranks)]
        times = [self._alone(((((choice, ranks),),),), whole or choice.chunks > 1) for choice in choices]
        return choices[times.index(min(times))]

    def _rings(self, phase: AxisPhase, ranks: Ranks, extents: tuple[int, ...] = ()) -> list[AxisPhase]:
        """Return what may serve instead of a phase; with `extents` its rings walk the group to and fro."""
        if len(ranks) > LARGEST_RING:
            return []
        orders = tuple(snakes(extents)) if extents else ()
        hops, healthy = self._distances(ranks)
        rings = []
        for name in REPAIRS.get(phase.algorithm, ()):
            if phase.collective in algorithm(name).does:
                both = 0 if name == "ring" else 1
                order = repaired(hops + both * hops.T, healthy + both * healthy.T, orders)
                chunks = 1 if name == "bucket" else phase.chunks
                rings.append(replace(phase, algorithm=name, chunks=chunks, extents=(), order=order))
        return rings

    def _lose_routes(self, pairs: Int64s) -> bool:
        dead = np.array(sorted(self.machine.dead), np.int64)
        return bool(np.isin(self.machine.planned.routes(pairs).links, dead).any())

    def _hops(self, ranks: Ranks) -> tuple[Int64s, Int64s]:
        """Return the hops between members on what survives, and on the whole fabric."""
        fabric = self.machine.fabric
        alive, every = np.ones(len(fabric), bool), np.ones(len(fabric), bool)
        alive[sorted(self.machine.dead)] = False
        members = np.array(ranks)
        reached = [
            np.stack([hops_from(fabric, rank, links)[members] for rank in ranks]).astype(np.int64)
            for links in (alive, every)
        ]
        left, healthy = (np.where(hops == UNREACHED, fabric.nodes, hops) for hops in reached)
        return left, healthy


class RoutedPhase(Struct, frozen=True, eq=False):
    """The transfers of one phase among its members: bytes of each, and its route if nothing is closed."""

    template: Template
    parts: Sequence[Sequence[int]]
    """Bytes of each part of a message, by size row of the template."""
    routes: Sequence[tuple[int, ...]]
    """Links of each pair of the template."""


class RankPhase(Struct, frozen=True, eq=False):
    """One rank's part in one phase of a collective."""

    number: int
    """Identifies the phase within a collective, and the line among those that run it side by side."""
    member: int
    phase: RoutedPhase


class CollectiveReplanner:
    """Replans the collectives of a trace around closed links."""

    def __init__(self, traces: TraceSet, machine: Machine) -> None:
        self._traces, self._machine = traces, machine
        stores = machine.switching.mode == "store_and_forward"
        self._segment = machine.switching.segment if stores else None
        self._surviving = cache(self._without)
        self._routed = cache(self._route)
        self._problem = cache(self._cut)

    def is_collective(self, position: int, node: int) -> bool:
        """Return whether a rank's node is a collective."""
        return bool(self._traces.ranks[position].nodes.kind[node] == NodeKind.COLLECTIVE)

    def kinds(self, position: int, nodes: Int32s) -> Int64s:
        """Return a number for each collective node of a rank, else NONE. Equal numbers share `steps_of`.

        Of equal numbers are those of which `steps_of` says the same.
        """
        table = self._traces.ranks[position].nodes
        asked = np.stack([column[nodes] for column in (table.collective, table.group, table.size)], 1)
        numbers = np.unique(asked, axis=0, return_inverse=True)[1].reshape(-1)
        return np.where(table.kind[nodes] == NodeKind.COLLECTIVE, numbers, NONE)

    def steps_of(self, position: int, node: int, dead: frozenset[int]) -> list[list[RankPhase]]:
        """Return a rank's phases in the collective of one of its nodes, one after the other for each chunk.

        It is planned for the fabric without `dead`; `FabricCutError` if that cuts the group apart.
        """
        return self._steps(self._asked(position, node), self._traces.ranks[position].rank, dead)

    def cut(self, position: int, node: int, dead: frozenset[int]) -> str:
        """Say how dead links cut apart those that take part in a collective; empty: they do not."""
        return self._problem(self._asked(position, node), dead)

    def _cut(self, asked: tuple[int, str, int], dead: frozenset[int]) -> str:
        try:
            for rank in self._traces.groups[asked[1]]:
                self._steps(asked, rank, dead)
        except FabricCutError as error:
            return str(error)
        return ""

    def _asked(self, position: int, node: int) -> tuple[int, str, int]:
        """Return the kind of a rank's collective, its group and its bytes."""
        trace = self._traces.ranks[position]
        nodes = trace.nodes
        return int(nodes.collective[node]), trace.groups[nodes.group[node]], int(nodes.size[node])

    def _steps(self, asked: tuple[int, str, int], rank: int, dead: frozenset[int]) -> list[list[RankPhase]]:
        kind, name, size = asked
        ranks = self._traces.groups[name]
        extents, axes = geometry(self._machine, ranks)
        surviving = self._surviving(dead)
        trees = surviving.above.of(name, ranks, extents, rank)
        call = CollectiveCall(CollectiveType(kind), size, extents, axes, trees)
        plan = surviving.planner.plan(call, ranks, rank)
        place, first, chunks = ranks.index(rank), 0, []
        for chunk in plan:
            phases = range(first, first + len(chunk))
            rank_steps = [
                self._rank_phase(schedule, phase, call, (ranks, place), (dead, cut_in_chunks(plan)))
                for schedule, phase in zip(phases, chunk, strict=True)
            ]
            chunks.append(rank_steps)
            first += len(chunk)
        return chunks

    def _rank_phase(
        self,
        number: int,
        phase: AxisPhase,
        call: CollectiveCall,
        who: tuple[Ranks, int],
        how: tuple[frozenset[int], bool],
    ) -> RankPhase:
        ranks, place = who
        base, line, member = 0, ranks, place
        if phase.axis is not None:
            base, members = line_of(ranks, call.extents, phase.axis, place)
            line, member = tuple(members), members.index(ranks[place])
        return RankPhase(number * len(ranks) + base, member, self._routed(phase, line, *how))

    def _route(self, phase: AxisPhase, ranks: Ranks, dead: frozenset[int], whole: bool) -> RoutedPhase:  # noqa: FBT001
        sizes, schedule = MessageSizes(), phase.schedule(len(ranks))
        template = template_of(schedule, sizes, name="", segment=self._segment)
        nodes = (
            with_switches(self._surviving(dead).machine.switch_trees, ranks) if schedule.switches else ranks
        )
        ends = np.array(nodes)[np.stack((template.pair_source, template.pair_destination), 1)]
        routes = self._machine.router.routes(ends)
        parts = [[size] if whole else part_sizes(self._machine.switching, size) for size in sizes.all()]
        return RoutedPhase(template, parts, [routes.of(pair) for pair in range(len(routes))])

    def _without(self, dead: frozenset[int]) -> _Surviving:
        machine = self._machine.without(dead)
        planner = FaultPlanner(machine, families=families_of(self._traces))
        return _Surviving(machine, planner, TreesOverGroups(machine))


class _Surviving(Struct, frozen=True, eq=False):
    """The fabric as plans see it while some links are down."""

    machine: Machine
    planner: FaultPlanner
    above: TreesOverGroups
