"""Collectives planned for what survives of a fabric: rings laid along it, or the plan as it was.

A group that no dead link concerns keeps the machine's plan. Otherwise every line along a dimension (or the
one ring of all members) that lost a planned way takes, of the algorithm as stated and those of `REPAIRS` for
it in an order repaired for what survives (`ordering.repaired`), the one that would end first alone by its
longest chain and its busiest link (see `analytic`; ties in this order). A group over several dimensions does
so line by line, or leaves the dimensions: all members on one repaired ring, if that would end earlier still.
Algorithms of other kinds stay as they are, and what is stated as one ring does not become two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from operator import itemgetter

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.machine import Machine
from rapid_des.network.collectives import ALGORITHMS, IN_SWITCH
from rapid_des.network.collectives.ordering import line_of, repaired, snakes
from rapid_des.network.paths import UNREACHED, hops_from
from rapid_des.program.analytic import chain_and_load
from rapid_des.program.plans import Call, Phase, Plan, Planner, plan
from rapid_des.program.signatures import all_pairs

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

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._phase = cache(self._best)
        self._load = cache(self._chain_and_load)
        self._whole = cache(self._one_ring)
        self._near = cache(self._hops)
        self.concern = cache(self._concern)

    def _concern(self, ranks: Ranks) -> bool:
        """Tell whether any two of a group lost their planned way; if not, its plans stay as they were."""
        return len(ranks) > LARGEST_RING or (len(ranks) > 1 and self._lose_routes(all_pairs([ranks])))

    def plan(self, call: Call, ranks: Ranks, rank: int) -> Plan:
        """Return how one rank takes part in a collective of `ranks`; every rank's phases are as many."""
        stated = plan(call, self.machine)
        by_line = self._along(stated, call, ranks, ranks.index(rank))
        if all(phase.axis is None for phase in stated[0]):
            return by_line
        ring = self._whole(call, ranks)
        return by_line if ring is None else ring

    def mark(self, rank: int, groups: Iterable[Ranks]) -> int | None:
        """Return the rank if its part in collectives of its groups may be like no other's, else None."""
        return rank if any(map(self.concern, groups)) else None

    def _along(self, stated: Plan, call: Call, ranks: Ranks, place: int) -> Plan:
        """Return a plan with the phases of one member's own lines."""
        return tuple(
            tuple(self._phase(phase, self._line(phase, call, ranks, place)) for phase in chunk)
            for chunk in stated
        )

    def _line(self, phase: Phase, call: Call, ranks: Ranks, place: int) -> Ranks:
        return ranks if phase.axis is None else tuple(line_of(ranks, call.extents, phase.axis, place)[1])

    def _one_ring(self, call: Call, ranks: Ranks) -> Plan | None:
        """Return the plan that leaves the dimensions, if it ends before the one along them."""
        if self._inside_switches(call) or not self.concern(ranks):
            return None
        stated = plan(call, self.machine)
        names = {phase.algorithm for phase in stated[0]}
        if not names <= {"ring", "bidirectional_ring", "bucket"}:
            return None
        lines = [self._along(stated, call, ranks, place) for place in range(len(ranks))]
        name = "bidirectional_ring" if names == {"bidirectional_ring"} else "ring"
        ring = self._rings(Phase(None, call.collective, name, call.size, len(stated)), ranks, call.extents)
        times = [self._together([(phase, ranks)]) for phase in ring]
        if not ring or min(times) >= self._duration(lines, call, ranks):
            return None
        return ((ring[times.index(min(times))],),)

    def _inside_switches(self, call: Call) -> bool:
        """Tell whether the machine asks for switches, which lines of a group may have and others not.

        Members whose lines have none must not leave the dimensions alone.
        """
        choice = self.machine.collectives.choice(call.collective.name.lower())
        stated = () if choice is None else choice.algorithm
        return any(name in IN_SWITCH for name in ((stated,) if isinstance(stated, str) else stated))

    def _duration(self, lines: Sequence[Plan], call: Call, ranks: Ranks) -> int:
        """Return no less than one chunk's phases take, nor than all chunks on one dimension."""
        chunks, axes = [0], dict[int | None, int]()
        for number, chunk in enumerate(lines[0]):
            times = []
            for place, stated in enumerate(chunk):
                mine = {
                    (plan[number][place], self._line(stated, call, ranks, member))
                    for member, plan in enumerate(lines)
                }
                times.append(self._together(sorted(mine, key=itemgetter(1))))
                axes[stated.axis] = axes.get(stated.axis, 0) + times[-1]
            chunks.append(sum(times))
        return max(*chunks, *axes.values())

    def _together(self, lines: Sequence[tuple[Phase, Ranks]]) -> int:
        """Return what the lines of one phase take side by side: the longest chain or the busiest link."""
        longest, load = 0, np.zeros(len(self.machine.fabric), np.int64)
        for phase, ranks in lines:
            chain, mine = self._load(phase, ranks)
            longest = max(longest, chain)
            load[: len(mine)] += mine
        return max(longest, int(load.max(initial=0)))

    def _best(self, phase: Phase, ranks: Ranks) -> Phase:
        schedule = phase.schedule(len(ranks))
        pairs = np.unique(np.stack((schedule.source, schedule.destination), 1), axis=0)
        if schedule.switches or not self._lose_routes(np.array(ranks)[pairs]):
            return phase
        choices = [phase, *self._rings(phase, ranks)]
        times = [self._together([(choice, ranks)]) for choice in choices]
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

    def _chain_and_load(self, phase: Phase, ranks: Ranks) -> tuple[int, Int64s]:
        return chain_and_load(phase.schedule(len(ranks)), self.machine, ranks)

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
