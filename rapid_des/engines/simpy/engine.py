"""The definition of replay: ranks and transfers as SimPy processes, GPU streams and links as SimPy resources.

Readable first; the compiled engine must agree with it to the tick. Times are integer picoseconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator
from functools import partial
from itertools import count
from typing import Any

import numpy as np
from simpy.events import Event, Timeout

from rapid_des.engines.deadlock import explain_disagreement
from rapid_des.engines.simpy.fluid_links import FluidLinks
from rapid_des.engines.simpy.instances import Instance, trail_of
from rapid_des.engines.simpy.servers import Arbiter, Clock, Server
from rapid_des.engines.simpy.tables import Hops, LinkTable, RankTable, Sender, TemplateTable
from rapid_des.errors import TraceError
from rapid_des.program.program import NONE, Level, Program, Records, VisitKind
from rapid_des.program.timetable import FOREVER, advance

Process = Generator[Event, Any, None]


class Simulation:
    """One run of a program; `run` plays it to the end or to a given time."""

    def __init__(self, program: Program, *, trail: bool = False) -> None:
        self.program = program
        self.env = Clock()
        self.offsets = program.visits().tolist()
        tables = [RankTable(rank_program) for rank_program in program.programs]
        self.tables = [tables[binding.program] for binding in program.bindings]
        self.templates = [TemplateTable(template) for template in program.templates]
        self.links = LinkTable(program)
        self.arbiters = arbiters = [Arbiter(self.env, level) for level in Level]
        self.link_servers: dict[int, Server] = {}
        self.fluid = FluidLinks(program, arbiters[Level.LINK], self.links) if program.fluid else None
        self.servers = self._rank_servers(arbiters)
        self.pending = [list(table.need) for table in self.tables]
        self.ready = [[0] * len(table.need) for table in self.tables]
        self.start = [NONE] * self.offsets[-1]
        self.finish = [NONE] * self.offsets[-1]
        self.met = [NONE] * self.offsets[-1]
        self.finished: dict[int, Event] = {}
        self.counters: dict[tuple[int, int], int] = {}
        self.occurrence: dict[int, int] = {}
        self.instances: dict[tuple[int, int, int], Instance] = {}
        self.left = [len(table.need) for table in self.tables]
        self.retired = [Event(self.env) for _ in self.tables]
        self.trail: list[tuple[int, ...]] | None = [] if trail else None
        self.events = self.sent = self.received = 0
        for position in range(len(self.tables)):
            self.env.process(self._rank(position))

    def _rank_servers(self, arbiters: list[Arbiter]) -> list[list[Server]]:
        order = count()
        return [
            [Server(self.env, arbiters[level], capacity, next(order)) for capacity, level in table.servers]
            for table in self.tables
        ]

    def run(self, until: int | None = None) -> None:
        """Play until nothing is left to happen, or up to and including a time in picoseconds."""
        end = FOREVER if until is None else min(until + 1, FOREVER)
        if end > self.env.now:
            self.env.run(end)

    def records(self) -> Records:
        """Return what happened so far."""
        return Records(
            start=np.array(self.start, np.int64),
            finish=np.array(self.finish, np.int64),
            met=np.array(self.met, np.int64),
            link_bytes=self.links.sums(0),
            link_busy=self.links.sums(1),
            link_wait=self.links.sums(2),
            hops=self.links.hops,
            events=self.events,
            sent=self.sent,
            received=self.received,
            ties=self.arbiters[Level.LINK].ties,
            trail=None if self.trail is None else trail_of(self.trail),
        )

    def _rank(self, position: int) -> Process:
        for visit, need in enumerate(self.tables[position].need):
            if need == 0:
                self.env.process(self._visit(position, visit))
        if self.left[position]:
            yield self.retired[position]

    def _visit(self, position: int, visit: int) -> Process:
        table, env = self.tables[position], self.env
        flat = self.offsets[position] + visit
        local = table.server[visit]
        server = None if local == NONE else self.servers[position][local]
        if server is not None:
            yield server.request((table.priority[visit], env.now, flat))
        start = self.start[flat] = env.now
        self._pass(position, table.at_start[visit])
        kind = table.kind[visit]
        if kind == VisitKind.COMPUTE:
            yield Timeout(env, self._service(position, visit, start) - start)
        elif kind == VisitKind.JOIN:
            if table.work[visit]:
                yield Timeout(env, table.work[visit])
        elif kind == VisitKind.HOLD:
            self._number(position, visit)
            yield self._finish_of(self.offsets[position] + table.release[visit])
        else:
            yield self._arrive(position, visit)
        if server is not None:
            if env.now == start:
                yield Timeout(env, 1)
            server.release()
        self._retire(position, visit)

    def _service(self, position: int, visit: int, start: int) -> int:
        table = self.tables[position]
        server = table.server[visit]
        work: int = table.work[visit] if server == NONE else max(table.work[visit], 1)
        timetable = self.program.stream_timetables.get((position, server))
        if timetable is None:
            return start + work
        finish: int = advance(timetable.time.tolist(), timetable.rate.tolist(), start, work)
        return finish

    def _finish_of(self, flat: int) -> Event:
        if flat not in self.finished:
            self.finished[flat] = Event(self.env)
            if self.finish[flat] != NONE:
                self.finished[flat].succeed()
        return self.finished[flat]

    def _retire(self, position: int, visit: int) -> None:
        flat = self.offsets[position] + visit
        self.finish[flat] = self.env.now
        if flat in self.finished and not self.finished[flat].triggered:
            self.finished[flat].succeed()
        self._pass(position, self.tables[position].at_finish[visit])
        self.left[position] -= 1
        if self.left[position] == 0:
            self.retired[position].succeed()

    def _pass(self, position: int, edges: list[tuple[int, int]]) -> None:
        pending, ready, now = self.pending[position], self.ready[position], self.env.now
        for target, lag in edges:
            if pending[target] == 0:
                continue  # a counting predecessor beyond the n that were needed (R1)
            pending[target] -= 1
            ready[target] = max(ready[target], now + lag)
            if pending[target] == 0:
                self._at(ready[target], partial(self._begin, position, target))

    def _begin(self, position: int, visit: int) -> None:
        self.env.process(self._visit(position, visit))

    def _at(self, moment: int, action: Callable[[], None]) -> None:
        self.events += 1
        if moment == self.env.now:
            action()
        else:
            Timeout(self.env, moment - self.env.now).callbacks.append(lambda _: action())

    def _number(self, position: int, visit: int) -> int:
        """Bind the instance number k of a visit (R5)."""
        table, flat = self.tables[position], self.offsets[position] + visit
        number = table.occurrence[visit]
        if number == NONE:
            slot = (position, table.slot[visit])
            number = self.counters.get(slot, 0)
            self.counters[slot] = number + 1
        self.occurrence[flat] = number
        return int(number)

    def _arrive(self, position: int, visit: int) -> Event:
        parent = self.tables[position].parent[visit]
        if parent == NONE:
            return self._meet(position, visit, self._number(position, visit))
        return self._meet(position, visit, self.occurrence[self.offsets[position] + parent])

    def _meet(self, position: int, visit: int, number: int) -> Event:
        """Return when a visit's part in instance `number` of its collective is done."""
        table, binding = self.tables[position], self.program.bindings[position]
        slot, template = table.slot[visit], table.template[visit]
        group, member = int(binding.groups[slot]), int(binding.members[slot])
        key = (group, number, table.sub[visit])
        instance = self.instances.get(key)
        if instance is None:
            routes = self.program.groups[group].routes[template].tolist()
            instance = self.instances[key] = Instance(self.templates[template], template, routes)
        elif instance.index != template:
            raise TraceError(explain_disagreement(self.program, key, (instance.index, template)))
        return self._join(key, instance, member, self.offsets[position] + visit)

    def _join(self, key: tuple[int, int, int], instance: Instance, member: int, flat: int) -> Event:
        instance.visits[member] = flat
        done = instance.done[member] = Event(self.env)
        instance.absent -= 1
        if instance.absent == 0:
            self._assembled(instance)
        for target, lag in instance.template.arrivals[member]:
            self._count(key, instance, target, lag)
        return done

    def _assembled(self, instance: Instance) -> None:
        for flat in instance.visits:
            self.met[flat] = self.env.now

    def _count(self, key: tuple[int, int, int], instance: Instance, target: int, lag: int) -> None:
        left = instance.pending[target] - 1
        if left < 0:
            return  # a counting predecessor beyond the n that were needed (R1)
        instance.pending[target] = left
        ready = instance.ready[target] = max(instance.ready[target], self.env.now + lag)
        if left == 0:
            self._at(ready, partial(self._fire, key, instance, target))

    def _fire(self, key: tuple[int, int, int], instance: Instance, target: int) -> None:
        template = instance.template
        if target >= template.tasks:
            done = instance.done[target - template.tasks]
            assert done is not None, "a member is done before it arrived"
            done.succeed()
            instance.undone -= 1
            if instance.undone == 0:
                del self.instances[key]
            return
        for after, lag, at_injection in template.edges(target):
            if at_injection:
                self._count(key, instance, after, lag)
        if template.pair[target] == NONE:
            self._deliver(key, instance, target)
        else:
            self.env.process(self._transfer(key, instance, target))

    def _deliver(self, key: tuple[int, int, int], instance: Instance, task: int) -> None:
        for after, lag, at_injection in instance.template.edges(task):
            if not at_injection:
                self._count(key, instance, after, lag)

    def _transfer(self, key: tuple[int, int, int], instance: Instance, task: int) -> Process:
        env, links, template = self.env, self.links, instance.template
        source = instance.visits[template.source[task]]
        position, priority = self._origin(source)
        size, label = template.size[task], self.program.groups[key[0]].label
        self.sent += links.payload[size]
        hops = links.route(route := instance.routes[template.pair[task]])
        if not hops:
            yield Timeout(env, 1)  # to oneself: no link, but a tick, so that an instant ends (R4)
        elif self.fluid is not None:
            yield self.fluid.flow(route, size, label)
        else:
            sender = (priority, (position, env.now, source, task), label)
            first, *rest = [self._travel(hops, sender, *part) for part in links.parts(hops, size)]
            later = [env.process(part) for part in rest]
            yield from first
            yield from later
        self.received += links.payload[size]
        self._deliver(key, instance, task)

    def _travel(self, hops: Hops, sender: Sender, number: int, size: int, wait: int) -> Process:
        """Take one part of a message over its links."""
        env, links, (priority, order, label) = self.env, self.links, sender
        if wait:
            yield Timeout(env, wait)
        for place, (link, service) in enumerate(hops):
            ready, server = env.now, self._link_server(link)
            yield server.request((priority, ready, number, *order, place))
            start = env.now
            free, forward, arrival = links.hop(link, size, service, start)
            links.count(link, label, size, wait=start - ready, busy=free - start)
            if self.trail is not None:
                self.trail.append((link, start, free, arrival, *order[2:], place))
            Timeout(env, free - start).callbacks.append(server.release)
            delay = (arrival if place == len(hops) - 1 else forward) - start
            if delay:
                yield Timeout(env, delay)

    def _link_server(self, link: int) -> Server:
        if link not in self.link_servers:
            self.link_servers[link] = Server(self.env, self.arbiters[Level.LINK], 1, link)
        return self.link_servers[link]

    def _origin(self, flat: int) -> tuple[int, int]:
        position = bisect_right(self.offsets, flat) - 1
        priority: int = self.tables[position].link_priority[flat - self.offsets[position]]
        return position, priority


def run(program: Program, *, trail: bool = False) -> Records:
    """Play a program to its end; visits that never finish are left at NONE in the records."""
    simulation = Simulation(program, trail=trail)
    simulation.run()
    return simulation.records()
