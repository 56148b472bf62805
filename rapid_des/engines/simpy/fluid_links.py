"""R7 on SimPy: all links together are one resource that flows share max-min fairly."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from msgspec import Struct
from simpy.events import Timeout

from rapid_des.engines.simpy.links import NO_TIMETABLE, Links
from rapid_des.engines.simpy.servers import Arbiter, InFlightMessage
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
from rapid_des.network.fluid.state import lengthened, never_end, widened
from rapid_des.program.program import FluidTable, Program
from rapid_des.program.services import widest
from rapid_des.program.timetable import FULL_RATE, lag_at, rate_at
from rapid_des.units import PS_PER_S


class Shared(Struct, frozen=True):
    """The parameters of a message on the links of its route, see `protocol.FluidService`."""

    links: tuple[int, ...]
    back: tuple[int, ...]
    """The links of the route of its acknowledgements."""
    size: int
    wire: int
    ratio: int
    before: int
    after: int


class Flow(Struct):
    """One message in flight, or what remains of it."""

    message: InFlightMessage
    shared: Shared
    number: int = 0
    """The number of pieces that closed links had stopped and sent again when this piece was; 0 for a first
    piece.
    """
    late: int = 0
    """The picoseconds that the timetables of its links add."""


class FluidClosureActions(Protocol):
    """The actions taken where links close (see `link_closures`)."""

    def around(self, message: InFlightMessage, shared: Shared) -> Shared:
        """Return the parameters of a flow that starts now, on a route without links known to be closed."""
        ...

    def act(self) -> None:
        """Stop flows on links that close now and flows that join closed ones; send what stopped again."""
        ...


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
        self.closing: FluidClosureActions | None = None
        self.fluid: Fluid = new_fluid(self.table.capacity, flows=64, hops=widest(program))
        self._shared: dict[tuple[int, int], Shared | None] = {}
        self.flows: dict[int, Flow] = {}
        self.free = list(range(63, -1, -1))
        self.joining: list[Flow] = []
        self.ending: set[int] = set()
        self.changing: set[int] = set()
        for link, timetable in program.link_timetables.items():
            for moment in timetable.time.tolist():
                self._later(moment, partial(self.changing.add, link))

    def shared(self, route: int, size: int) -> Shared | None:
        """Return the flow parameters of a message of a size row on a route; None if it crosses no link."""
        if (route, size) not in self._shared:
            self._shared[route, size] = self._shared_on(route, size)
        return self._shared[route, size]

    def _shared_on(self, route: int, size: int) -> Shared | None:
        links, profile = self._links(route), self.table.profile[route]
        if not links:
            return None
        return Shared(
            links=links,
            back=self._links(int(self.table.back[route])),
            size=self.links.payload[size],
            wire=int(self.table.wire[size]),
            ratio=int(self.table.ratio[size, profile]),
            before=int(self.table.before[size, profile]),
            after=int(self.table.after[size, profile]),
        )

    def send(self, message: InFlightMessage, shared: Shared) -> None:
        """Start a message."""
        if self.closing is not None:
            shared = self.closing.around(message, shared)
        message.pieces = 1
        self.start(Flow(message, shared))

    def start(self, flow: Flow) -> None:
        """Start a flow."""
        self._later(self.env.now + flow.shared.before, partial(self.joining.append, flow))

    def never_end(self) -> bool:
        """Whether a draining flow ends later than the largest representable time."""
        return never_end(self.fluid)

    def choose(self) -> None:
        """Update the rates after all events of this instant."""
        now = self.env.now
        if self.closing is not None:
            self.closing.act()
        for link in sorted(self.changing):
            set_capacity(self.fluid, link, self._capacity(link, now))
        for slot in sorted(self.ending):
            if slot in self.flows and self.fluid.finish[slot] == now:
                self.end(slot)
        for flow in filter(self._has_turn, sorted(self.joining, key=_handed_over)):
            self._join(flow, now)
        self.changing.clear()
        self.ending.clear()
        self.joining.clear()
        for slot in self.fluid.changed[: settle(self.fluid, now)].tolist():
            finish = int(self.fluid.finish[slot])
            if finish != NEVER:
                self._later(finish, partial(self.ending.add, slot))

    def end(self, slot: int) -> Flow:
        """Take a flow off its links; what it is then arrives."""
        flow = self.take(slot)
        self.leave(flow)
        return flow

    def take(self, slot: int) -> Flow:
        """Take a flow off its links."""
        end_flow(self.fluid, slot)
        self.free.append(slot)
        flow = self.flows.pop(slot)
        self.pass_turn(flow)
        return flow

    def pass_turn(self, flow: Flow) -> None:
        """Let the next flow of a channel join one tick later, if this flow was the channel's first."""
        channel = flow.message.channel
        if channel and channel[0] is flow:
            channel.popleft()
            if channel:
                self._later(self.env.now + 1, partial(self.joining.append, channel[0]))

    def _has_turn(self, flow: Flow) -> bool:
        """Return whether a flow may join now; if not, it waits for those before it in its channel."""
        channel = flow.message.channel
        if not channel or channel[0] is not flow:
            channel.append(flow)
        return channel[0] is flow

    def leave(self, flow: Flow) -> None:
        """Deliver a flow that has left all links; record its service as if each link had served it alone."""
        shared = flow.shared
        for link in shared.links:
            busy = int(float(shared.wire) * PS_PER_S / float(self.table.capacity[link]))
            self.links.book(link, flow.message.label, size=shared.size, busy=busy)
            self.links.hops += 1
        after = max(shared.after, 1) + flow.late
        Timeout(self.env, after).callbacks.append(lambda _: self._arrive(flow))

    def _arrive(self, flow: Flow) -> None:
        message = flow.message
        message.arrived += flow.shared.size
        message.pieces -= 1
        if message.pieces == 0:
            assert message.arrived == message.size, "bytes were lost or doubled at a closing link"
            self.links.deliver(message)

    def _later(self, moment: int, change: Callable[[], object]) -> None:
        """Schedule a change for the end of a later instant, or of this one."""

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
        shared = flow.shared
        if not self.free:
            had = len(self.fluid.hops)
            self.fluid = widened(self.fluid, 2 * had)
            self.free = list(range(2 * had - 1, had - 1, -1))
        self.fluid = lengthened(self.fluid, len(shared.links) + len(shared.back))
        slot = self.free.pop()
        self.flows[slot] = flow
        flow.late = sum(self._lag(link, now) for link in shared.links)
        set_route(self.fluid, slot, shared.links, shared.back)
        begin_flow(self.fluid, slot, shared.wire, shared.ratio, now)

    def _links(self, route: int) -> tuple[int, ...]:
        starts = self.program.route_starts
        return tuple(self.program.route_links[starts[route] : starts[route + 1]].tolist())


def _handed_over(flow: Flow) -> tuple[tuple[int, ...], int]:
    """Return the key that orders flows which join at one instant."""
    return flow.message.order, flow.number
