"""R7 on SimPy: all links together are one resource that flows share max-min fairly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from simpy.events import Timeout

from rapid_des.engines.simpy.links import NO_TIMETABLE, Links, Message
from rapid_des.engines.simpy.servers import Arbiter
from rapid_des.network.fluid import (
    NEVER,
    Fluid,
    begin_flow,
    end_flow,
    new_fluid,
    set_capacity,
    set_route,
    settle,
)
from rapid_des.network.fluid.state import never_end, widened
from rapid_des.program.program import FluidTable, Program
from rapid_des.program.services import widest
from rapid_des.program.timetable import FULL_RATE, lag_at, rate_at
from rapid_des.units import PS_PER_S


@dataclass
class Flow:
    """One message in flight."""

    message: Message
    route: int
    size: int
    """Row of the hop tables."""
    late: int = 0
    """Picoseconds that timetables of its links add."""


class FluidLinks:
    """Flows join, leave and change their rates at the end of an instant, as links choose."""

    def __init__(self, program: Program, arbiter: Arbiter, links: Links) -> None:
        assert program.fluid is not None
        self.env = arbiter.env
        self.program = program
        self.table: FluidTable = program.fluid
        self.arbiter = arbiter
        self.order = -1
        self.links = links
        self.fluid: Fluid = new_fluid(self.table.capacity, flows=64, hops=widest(program))
        self.flows: dict[int, Flow] = {}
        self.free = list(range(63, -1, -1))
        self.joining: list[Flow] = []
        self.ending: set[int] = set()
        self.changing: set[int] = set()
        for link, timetable in program.link_timetables.items():
            for moment in timetable.time.tolist():
                self._later(moment, partial(self.changing.add, link))

    def send(self, message: Message, route: int, size: int) -> None:
        """Have a message of a size row set off."""
        flow = Flow(message, route, size)
        before = int(self.table.before[size, self.table.profile[route]])
        self._later(self.env.now + before, lambda: self.joining.append(flow))

    def never_end(self) -> bool:
        """Whether a flow that drains does so for longer than can be told."""
        return never_end(self.fluid)

    def choose(self) -> None:
        """Let what happened at this instant change the rates."""
        now = self.env.now
        for link in sorted(self.changing):
            set_capacity(self.fluid, link, self._capacity(link, now))
        for slot in sorted(self.ending):
            if slot in self.flows and self.fluid.finish[slot] == now:
                self._end(slot)
        for flow in self.joining:
            self._join(flow, now)
        self.changing.clear()
        self.ending.clear()
        self.joining.clear()
        for slot in self.fluid.changed[: settle(self.fluid, now)].tolist():
            finish = int(self.fluid.finish[slot])
            if finish != NEVER:
                self._later(finish, partial(self.ending.add, slot))

    def _later(self, moment: int, change: Callable[[], object]) -> None:
        """Have something change at the end of a coming instant, or of this one."""

        def happens(_: object = None) -> None:
            change()
            self.arbiter.touch(self)

        if moment == self.env.now:
            happens()
        else:
            Timeout(self.env, moment - self.env.now).callbacks.append(happens)

    def _capacity(self, link: int, now: int) -> int:
        time, rate, _ = self.links.timetables[link]
        return int(self.table.capacity[link]) * rate_at(time, rate, now) // FULL_RATE

    def _lag(self, link: int, now: int) -> int:
        time, _, lag = self.links.timetables.get(link, NO_TIMETABLE)
        return lag_at(time, lag, now)

    def _join(self, flow: Flow, now: int) -> None:
        if not self.free:
            had = len(self.fluid.hops)
            self.fluid = widened(self.fluid, 2 * had)
            self.free = list(range(2 * had - 1, had - 1, -1))
        slot = self.free.pop()
        self.flows[slot] = flow
        flow.late = sum(self._lag(link, now) for link in self._links(flow.route))
        back = int(self.table.back[flow.route])
        set_route(self.fluid, slot, self._links(flow.route), self._links(back))
        ratio = int(self.table.ratio[flow.size, self.table.profile[flow.route]])
        begin_flow(self.fluid, slot, int(self.table.wire[flow.size]), ratio, now)

    def _end(self, slot: int) -> None:
        flow = self.flows.pop(slot)
        end_flow(self.fluid, slot)
        self.free.append(slot)
        self._book(flow)
        after = max(int(self.table.after[flow.size, self.table.profile[flow.route]]), 1) + flow.late
        Timeout(self.env, after).callbacks.append(lambda _: self.links.deliver(flow.message))

    def _book(self, flow: Flow) -> None:
        """Count the flow on its links, as if each had served it alone at its full rate."""
        wire = float(self.table.wire[flow.size])
        for link in self._links(flow.route):
            busy = int(wire * PS_PER_S / float(self.table.capacity[link]))
            self.links.book(link, flow.message.label, size=flow.message.size, busy=busy)
            self.links.hops += 1

    def _links(self, route: int) -> tuple[int, ...]:
        starts = self.program.route_starts
        return tuple(self.program.route_links[starts[route] : starts[route + 1]].tolist())
