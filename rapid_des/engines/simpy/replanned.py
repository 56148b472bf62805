"""R8: collectives that begin while a closure is noticed are planned for the surviving links.

This concerns collectives that start while a link with policy `replan` is closed and its closure noticed. They
are planned for the fabric without all links that are closed and noticed, as on a machine where a constant
fault with this policy removes those links. A collective is planned once, when its first member arrives, and
keeps its plan to its end. A group that those links cut apart for a while keeps the plan of the program, and
its messages wait. If a closure is noticed or ends during a collective, only the routes of messages change. So
bytes that were sent stay sent, members keep what they hold, and all members follow the same plan.
"""

from __future__ import annotations

from functools import cache

from msgspec import Struct, field
from simpy.events import Event

from rapid_des.engines.deadlock import explain_disagreement
from rapid_des.engines.simpy.collectives import (
    CollectiveEngine,
    CollectiveInstance,
    Key,
    Member,
    TemplateTable,
)
from rapid_des.engines.simpy.fluid_links import FluidLinks, Shared
from rapid_des.engines.simpy.link_closures import legs_of, shared_of
from rapid_des.engines.simpy.links import Links, Steps
from rapid_des.engines.simpy.pieces import Parts
from rapid_des.errors import TraceError
from rapid_des.program.builders import LINK_ORDERS
from rapid_des.program.faults.closures import Closures
from rapid_des.program.faults.planning import RankPhase, RoutedPhase
from rapid_des.program.faults.rerouting import planned_around


class PlannedInstance(CollectiveInstance):
    """A step of a replanned collective, in flight."""

    def __init__(self, key: Key, step: RankPhase, template: TemplateTable, closures: Closures) -> None:
        super().__init__(key, template, [])
        self._step: RoutedPhase = step.phase
        self._closures = closures

    def parts(self, _: Links, task: int) -> Parts:
        """Return the message of a task and the links that it crosses while nothing is closed."""
        route = self._step.routes[self.template.pair[task]]
        sizes = self._step.parts[self.template.size[task]]
        return [(size, legs_of(self._closures, route, size)) for size in sizes]

    def shared(self, _: FluidLinks, task: int) -> Shared | None:
        """Return the message of a task in the fluid mode."""
        route = self._step.routes[self.template.pair[task]]
        (size,) = self._step.parts[self.template.size[task]]
        return shared_of(self._closures, route, frozenset(), size) if route else None


class StartedCollective(Struct, eq=False):
    """A collective that has begun: what it is planned around, and its ranks so far."""

    dead: frozenset[int] | None
    """The links that its plan avoids; None: it runs as lowered."""
    template: int
    """The template of its first visit; the other members' visits must have the same."""
    ranks: dict[int, RankPart] = field(default_factory=dict)
    """The work of each rank in it, by the position of the rank."""


class RankPart(Struct, eq=False):
    """The work of one rank in a replanned collective."""

    done: Event
    visits: list[int]
    """The rank's visits in the records that represent this collective."""


class Replanning:
    """Plans collectives that begin while a closure is noticed."""

    def __init__(self, collectives: CollectiveEngine, closures: Closures) -> None:
        self.env = collectives.env
        self.collectives = collectives
        self.closures = closures
        self._started: dict[tuple[int, int], StartedCollective] = {}
        self._table = cache(lambda step: TemplateTable(step.template))

    def meet(self, call: tuple[int, int], template: int, node: int, arrival: Member) -> Event | None:
        """Let a rank arrive at call k of a group; return the event of its end, None for the program's plan.

        All visits of one rank to one collective share the rank's part in it.
        """
        position, visit, _ = arrival
        planner, met = self.closures.collectives, self.collectives.met
        if planner is None or not planner.is_collective(position, node):
            return None
        if call not in self._started:
            timetables = self.collectives.program.link_timetables
            dead = planned_around((position, node), self.closures, timetables, self.env.now)
            self._started[call] = StartedCollective(dead, template)
        started = self._started[call]
        if started.dead is None:
            return None
        part = started.ranks.get(position)
        if part is not None:
            part.visits.append(visit)
            met[visit] = met[part.visits[0]]
            return part.done
        if template != started.template:
            message = explain_disagreement(self.collectives.program, (*call, 0), (started.template, template))
            raise TraceError(message)
        chunks = planner.steps_of(position, node, started.dead)
        visits = [visit]
        done = self.env.process(self._take_part(call, chunks, arrival, visits))
        started.ranks[position] = RankPart(done, visits)
        return done

    def _take_part(
        self, call: tuple[int, int], chunks: list[list[RankPhase]], arrival: Member, visits: list[int]
    ) -> Steps:
        """Go through the steps of all chunks side by side, each chunk before the next on links."""
        (position, visit, priority), first = arrival, chunks[0][0]
        before = priority - priority % LINK_ORDERS
        yield from [
            self.env.process(self._chunk(call, steps, first, (position, visit, before + number)))
            for number, steps in enumerate(chunks)
        ]
        met = self.collectives.met
        for visit in visits[1:]:
            met[visit] = met[visits[0]]

    def _chunk(
        self, call: tuple[int, int], steps: list[RankPhase], first: RankPhase, arrival: Member
    ) -> Steps:
        for step in steps:
            instance = self._instance((*call, step.number), step, meets=step is first)
            yield self.collectives.join(instance, step.member, arrival)

    def _instance(self, key: Key, step: RankPhase, *, meets: bool) -> CollectiveInstance:
        instances = self.collectives.instances
        if key not in instances:
            instances[key] = PlannedInstance(key, step, self._table(step.phase), self.closures)
            instances[key].meets = meets
        return instances[key]
