"""Planning collectives: as the machine file states, and where it states nothing by `auto`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import CollectiveType
from rapid_des.machine import Machine
from rapid_des.network.collective_specs import Choice
from rapid_des.program.choosing import Asked, Chooser, first_of_best
from rapid_des.program.plans import Call, Plan, geometry, leaves_open, plan


class Planner:
    """Plans for a machine without dead links to plan around.

    `auto` chooses for the healthy fabric: who built the job knew of no fault. With `repeats` it keeps to
    algorithms of which one replica's part stands for the others'. `memory` keeps what it worked out.
    """

    def __init__(
        self, machine: Machine, memory: BoundedCache | None = None, *, repeats: bool = False
    ) -> None:
        self.machine = machine
        self._repeats = repeats
        self._chooser = Chooser(self._known(machine), BoundedCache() if memory is None else memory)

    def _known(self, machine: Machine) -> Machine:
        """Return the machine that is chosen for."""
        if not machine.faults and not machine.dead:
            return machine
        healthy = replace(machine, fabric=machine.healthy, router=machine.planned, faults=(), slowed={})
        return replace(healthy, dead=frozenset(), lost=frozenset())

    def plan(self, call: Call, ranks: tuple[int, ...], rank: int) -> Plan:  # noqa: ARG002 - alike for all ranks
        """Return how a rank takes part in a collective of `ranks`."""
        return self.stated(call, ranks)

    def stated(self, call: Call, ranks: tuple[int, ...]) -> Plan:
        """Return the plan that the machine file asks for, the same for all ranks."""
        return plan(call, self.machine, partial(self.choice, call, ranks))

    def choice(self, call: Call, ranks: tuple[int, ...]) -> Choice:
        """Return what `auto` takes for a collective of `ranks`."""
        return first_of_best(self.times(call, ranks))

    def times(self, call: Call, ranks: tuple[int, ...]) -> dict[Choice, float]:
        """Return the estimated picoseconds of all that `auto` chooses from, in their order."""
        asked = Asked(call.collective, call.extents, call.size)
        return self._chooser.times(asked, ranks, repeats=self._repeats)

    def alike(self, ranks: tuple[int, ...], kinds: Iterable[CollectiveType]) -> bytes | None:
        """Return a key of what is chosen for a group; None where all of its collectives are stated."""
        if len(ranks) < 2 or not any(leaves_open(self.machine.collectives, kind) for kind in kinds):
            return None
        return self._chooser.likeness(ranks, geometry(self.machine, ranks)[0])

    def mark(self, rank: int, groups: Iterable[tuple[int, ...]]) -> int | None:  # noqa: ARG002
        """Return the rank if its part in collectives of its groups may be like no other's, else None."""
        return None
