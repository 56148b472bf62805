"""Collectives: members arrive at an instance, its tasks follow one another, its members are done (R1, R5).

Those that begin while a closure is noticed are planned for the links that survive (R8).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from msgspec import Struct, field
from simpy.events import Event

from rapid_des.engines.deadlock import explain_disagreement
from rapid_des.engines.simpy.fluid_links import FluidLinks, Shared
from rapid_des.engines.simpy.link_closures import legs_of, shared_of
from rapid_des.engines.simpy.links import Links, Steps
from rapid_des.engines.simpy.servers import InFlightMessage, Parts
from rapid_des.errors import TraceError
from rapid_des.program.builders import LINK_ORDERS
from rapid_des.program.delays import NOISE, RETRIES, draw_of, limit_above
from rapid_des.program.faults.closures import Closures, planned_around
from rapid_des.program.faults.planning import RankPhase, RoutedPhase
from rapid_des.program.program import NONE, Program, Template

Key = tuple[int, int, int]
"""The key of a collective instance: its group, its number k, and its sub-instance (the chunk and phase of the
collective).
"""
Member = tuple[int, int, int]
"""A member of an instance: the position of its rank, its visit in the records, and the priority of its
messages on links.
"""


class TemplateTable:
    """A `Template` as Python lists, which an interpreter reads several times faster than numpy scalars."""

    def __init__(self, template: Template) -> None:
        self.members = template.members
        self.tasks = len(template)
        self.ahead = template.ahead
        self.pair = template.pair.tolist()
        self.source = template.source.tolist()
        self.size = template.size.tolist()
        self.need = template.need.tolist() + template.member_need.tolist()
        columns = (template.edge_target, template.edge_lag, template.edge_at_injection)
        self._starts = template.edge_starts.tolist()
        self._edges = list(zip(*(column.tolist() for column in columns), strict=True))
        self._injecting = bool(template.edge_at_injection.any())
        arrivals = list(zip(template.arrival_target.tolist(), template.arrival_lag.tolist(), strict=True))
        starts = template.arrival_starts.tolist()
        self.arrivals = [arrivals[first:last] for first, last in zip(starts, starts[1:], strict=False)]

    def edges(self, task: int, *, at_injection: bool) -> list[tuple[int, int]]:
        """Return (target, lag) of a task's outgoing edges with that anchor: its injection or its arrival."""
        if at_injection and not self._injecting:
            return []
        edges = self._edges[self._starts[task] : self._starts[task + 1]]
        return [(target, lag) for target, lag, anchor in edges if anchor == at_injection]


class CollectiveInstance:
    """One collective in flight: the members that have arrived, and what its tasks still wait for."""

    def __init__(self, key: Key, template: TemplateTable, routes: Sequence[int], index: int = NONE) -> None:
        self.key = key
        self.template = template
        self.routes = routes
        """The route of each pair of the template."""
        self.index = index
        """The number of the template in the program."""
        self.meets = True
        """Whether the members' meeting goes into the records."""
        self.pending = list(template.need)
        self.ready = [0] * len(self.pending)
        self.members: list[Member | None] = [None] * template.members
        self.done: list[Event | None] = [None] * template.members
        self.channels: defaultdict[int, deque[Any]] = defaultdict(deque)
        """The channel of each pair of the template, see `InFlightMessage.channel`."""
        self.absent = self.undone = template.members

    def parts(self, links: Links, task: int) -> Parts:
        """Return the message of a task and the links that it crosses."""
        source = self.members[self.template.source[task]]
        assert source is not None, "a member sends before it arrived"
        size = self.template.size[task]
        route = links.message_route(self.routes[self.template.pair[task]], size, (source[0], task))
        return links.parts(route, size)

    def shared(self, fluid: FluidLinks, task: int) -> Shared | None:
        """Return the message of a task where flows share links; None if it crosses no link."""
        return fluid.shared(self.routes[self.template.pair[task]], self.template.size[task])


class CollectiveEngine:
    """Every collective in flight."""

    def __init__(self, program: Program, links: Links, fluid: FluidLinks | None, met: list[int]) -> None:
        self.env = links.env
        self.program = program
        self.links = links
        self.fluid = fluid
        self.templates = [TemplateTable(template.expanded()) for template in program.templates]
        self.instances: dict[Key, CollectiveInstance] = {}
        self.met = met
        self.sent = 0
        self.offsets: list[int] = program.visits().tolist()

    def meet(self, key: Key, template: int, member: int, arrival: Member) -> Event:
        """Arrive at an instance; the event succeeds when this member is done."""
        instance = self.instances.get(key)
        if instance is None:
            routes = self.program.groups[key[0]].routes[template].tolist()
            instance = CollectiveInstance(key, self.templates[template], routes, template)
            self.instances[key] = instance
        elif instance.index != template:
            raise TraceError(explain_disagreement(self.program, key, (instance.index, template)))
        return self.join(instance, member, arrival)

    def join(self, instance: CollectiveInstance, member: int, arrival: Member) -> Event:
        """Arrive at an instance that is known; the event succeeds when this member is done."""
        instance.members[member] = arrival
        done = instance.done[member] = Event(self.env)
        instance.absent -= 1
        if instance.absent == 0 and instance.meets:
            for _, visit, _ in filter(None, instance.members):
                self.met[visit] = self.env.now
        for target, lag in instance.template.arrivals[member]:
            self._count(instance, target, lag)
        return done

    def _count(self, instance: CollectiveInstance, target: int, lag: int) -> None:
        """Count an edge to a task or member, which is ready when enough edges have passed (R1)."""
        left = instance.pending[target] - 1
        if left < 0:
            return  # a counting predecessor beyond the n that were needed
        instance.pending[target] = left
        ready = instance.ready[target] = max(instance.ready[target], self.env.now + lag)
        if left == 0:
            done = target >= instance.template.tasks
            self.env.at(ready, partial(self._finish if done else self._inject, instance, target))

    def _finish(self, instance: CollectiveInstance, target: int) -> None:
        done = instance.done[target - instance.template.tasks]
        assert done is not None, "a member is done before it arrived"
        done.succeed()
        instance.undone -= 1
        if instance.undone == 0:
            del self.instances[instance.key]

    def _inject(self, instance: CollectiveInstance, task: int) -> None:
        for after, lag in instance.template.edges(task, at_injection=True):
            self._count(instance, after, lag)
        if instance.template.pair[task] == NONE:
            self._deliver(instance, task)
        else:
            self._send(instance, task)

    def _deliver(self, instance: CollectiveInstance, task: int) -> None:
        for after, lag in instance.template.edges(task, at_injection=False):
            self._count(instance, after, lag)

    def _late(self, instance: CollectiveInstance, task: int) -> int:
        """Return how much later than its last byte a message arrives (R11)."""
        delays, source = self.program.delays, instance.members[instance.template.source[task]]
        assert delays is not None and source is not None, "the caller checks this"
        position, visit, _ = source
        draw_key = int(delays.rank[position]), visit - self.offsets[position], task
        route, size = instance.routes[instance.template.pair[task]], instance.template.size[task]
        late, column = 0, int(delays.losses[route])
        if delays.noise[route] != NONE:
            late += self._drawn(int(delays.noise[route]), draw_of(int(delays.seed[0]), *draw_key, NOISE))
        if column != NONE:
            seed = int(delays.loss_seed[column])
            late += self._drawn(int(delays.retries[size, column]), draw_of(seed, *draw_key, RETRIES))
        return late

    def _drawn(self, row: int, draw: int) -> int:
        delays = self.program.delays
        assert delays is not None, "the caller checks this"
        first, last = delays.starts[row : row + 2].tolist()
        return int(delays.values[limit_above(delays.limits, first, last, draw)])

    def _wait(self, late: int, arrives: Callable[[], None]) -> None:
        self.env.at(self.env.now + late, arrives)

    def _send(self, instance: CollectiveInstance, task: int) -> None:
        (group, _, sub), template = instance.key, instance.template
        source = instance.members[template.source[task]]
        assert source is not None, "a member sends before it arrived"
        position, visit, priority = source
        shared = None if self.fluid is None else instance.shared(self.fluid, task)
        parts = [] if shared is not None else instance.parts(self.links, task)
        size = sum(size for size, _ in parts) if shared is None else shared.size
        label = self.program.groups[group].label
        order = (position, self.env.now, visit, sub, task)
        late = 0 if self.program.delays is None else self._late(instance, task)
        arrives = partial(self._deliver, instance, task)
        if late:
            arrives = partial(self._wait, late, arrives)
        channel = instance.channels[template.pair[task]]
        message = InFlightMessage(arrives, priority, order, label, size, template.ahead, channel)
        self.sent += size
        if self.fluid is not None and shared is not None:
            self.fluid.send(message, shared)
        else:
            self.links.send(message, parts)


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
