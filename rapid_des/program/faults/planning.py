"""Collectives planned for what survives of a fabric: rings laid along it, or the plan as it was.

A group that no dead link concerns keeps the machine's plan. Otherwise every line along a dimension (or the
one ring of all members) that lost a planned way takes, of the algorithm as stated and those of `REPAIRS` for
it in an order repaired for what survives (`ordering.repaired`), the one that would end first alone (see
`side_by_side`; ties in this order). A group over several dimensions does so line by line; or it does as
stated, or leaves the dimensions, all members on one repaired ring, if alone the group would end earlier so.
Algorithms of other kinds stay as they are, and what is stated as one ring does not become two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.bounded_cache import BoundedCache
from rapid_des.machine import Machine
from rapid_des.network.collectives import ALGORITHMS, IN_SWITCH
from rapid_des.network.collectives.ordering import line_of, repaired, snakes
from rapid_des.network.paths import UNREACHED, hops_from
from rapid_des.program.choosing import Planner
from rapid_des.program.plans import Call, Phase, Plan, cut_in_chunks
from rapid_des.program.routes import all_pairs
from rapid_des.program.side_by_side import duration_alone

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
"""Members; larger groups keep their plans, as looking for an order takes the square of them."""

Ranks = tuple[int, ...]


class FaultPlanner(Planner):
    """Plans for a machine whose dead links shall be planned around; what was found once is remembered."""

    def __init__(
        self, machine: Machine, memory: BoundedCache | None = None, *, repeats: bool = False
    ) -> None:
        super().__init__(machine, memory, repeats=repeats)
        self._phase = cache(self._best)
        self._alone = cache(self._played)
        self._whole = cache(self._alike)
        self._near = cache(self._hops)
        self.concern = cache(self._concern)

    def _known(self, machine: Machine) -> Machine:
        """Return the machine as its constant faults leave it: planning around them, `auto` knows them."""
        return machine

    def _concern(self, ranks: Ranks) -> bool:
        """Tell whether any two of a group lost their planned way; if not, its plans stay as they were."""
        return len(ranks) > LARGEST_RING or (len(ranks) > 1 and self._lose_routes(all_pairs([ranks])))

    def plan(self, call: Call, ranks: Ranks, rank: int) -> Plan:
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

    def _along(self, stated: Plan, call: Call, ranks: Ranks, place: int) -> Plan:
        """Return a plan with the phases of one member's own lines."""
        whole = len(stated) > 1
        return tuple(
            tuple(self._phase(phase, self._line(phase, call, ranks, place), whole) for phase in chunk)
            for chunk in stated
        )

    def _line(self, phase: Phase, call: Call, ranks: Ranks, place: int) -> Ranks:
        return ranks if phase.axis is None else tuple(line_of(ranks, call.extents, phase.axis, place)[1])

    def _alike(self, call: Call, ranks: Ranks) -> Plan | None:
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

    def _one_ring(self, stated: Plan, call: Call, ranks: Ranks) -> list[Plan]:
        """Return plans that leave the dimensions: all members on one repaired ring."""
        names = {phase.algorithm for phase in stated[0]}
        if not names <= {"ring", "bidirectional_ring", "bucket"}:
            return []
        name = "bidirectional_ring" if names == {"bidirectional_ring"} else "ring"
        ring = Phase(None, call.collective, name, call.size, len(stated))
        return [((phase,),) for phase in self._rings(ring, ranks, call.extents)]

    def _inside_switches(self, call: Call) -> bool:
        """Tell whether the machine asks for switches, which lines of a group may have and others not.

        Members whose lines have none must not leave the dimensions alone.
        """
        choice = self.machine.collectives.choice(call.collective.name.lower())
        stated = () if choice is None else choice.algorithm
        return any(name in IN_SWITCH for name in ((stated,) if isinstance(stated, str) else stated))

    def _duration(self, plans: Sequence[Plan], call: Call, ranks: Ranks) -> int:
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

    def _played(self, chunks: tuple[tuple[tuple[tuple[Phase, Ranks], ...], ...], ...], whole: bool) -> int:  # noqa: FBT001
        schedules = [
            [[(phase.schedule(len(line)), line) for phase, line in lines] for lines in chunk]
            for chunk in chunks
        ]
        return duration_alone(schedules, self.machine, whole=whole)

    def _best(self, phase: Phase, ranks: Ranks, whole: bool) -> Phase:  # noqa: FBT001
        schedule = phase.schedule(len(ranks))
        pairs = np.unique(np.stack((schedule.source, schedule.destination), 1), axis=0)
        if schedule.switches or not self._lose_routes(np.array(ranks)[pairs]):
            return phase
        choices = [phase, *self._rings(phase, ranks)]
        times = [self._alone(((((choice, ranks),),),), whole or choice.chunks > 1) for choice in choices]
        return choices[times.index(min(times))]

    def _rings(self, phase: Phase, ranks: Ranks, extents: tuple[int, ...] = ()) -> list[Phase]:
        """Return what may serve instead of a phase; with `extents` its rings walk the group to and fro."""
        if len(ranks) > LARGEST_RING:
            return []
        orders = tuple(snakes(extents)) if extents else ()
        one_way, healthy = self._near(ranks)
        found = []
        for name in REPAIRS.get(phase.algorithm, ()):
            if phase.collective in ALGORITHMS[name].does:
                both = 0 if name == "ring" else 1
                order = repaired(one_way + both * one_way.T, healthy + both * healthy.T, orders)
                chunks = 1 if name == "bucket" else phase.chunks
                found.append(replace(phase, algorithm=name, chunks=chunks, extents=(), order=order))
        return found

    def _lose_routes(self, pairs: Int64s) -> bool:
        dead = np.array(sorted(self.machine.dead), np.int64)
        return bool(np.isin(self.machine.planned.routes(pairs).links, dead).any())

    def _hops(self, ranks: Ranks) -> tuple[Int64s, Int64s]:
        """Return the hops between members on what survives, and on the whole fabric."""
        fabric = self.machine.fabric
        alive, every = np.ones(len(fabric), bool), np.ones(len(fabric), bool)
        alive[sorted(self.machine.dead)] = False
        members = np.array(ranks)
        found = [
            np.stack([hops_from(fabric, rank, links)[members] for rank in ranks]).astype(np.int64)
            for links in (alive, every)
        ]
        left, healthy = (np.where(hops == UNREACHED, fabric.nodes, hops) for hops in found)
        return left, healthy
