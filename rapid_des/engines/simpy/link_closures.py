"""R8: links close while messages cross them, and the affected messages are rerouted.

When a link closes, the piece of a message that it serves keeps the whole segments that got through. They
continue, and later links serve only them. The rest stops, as do pieces that wait for the link or ask for it
while it is closed. When the closure is noticed, the pure function `replan` returns other routes for them.
Where flows share links (R7), a flow on a link that closes ends with the whole packets that got through.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, cast

from msgspec import Struct, field
from simpy.events import Event, Timeout
from simpy.exceptions import Interrupt

from rapid_des.engines.simpy.fluid_links import Flow, FluidLinks, Shared
from rapid_des.engines.simpy.links import NO_TIMETABLE, Links
from rapid_des.engines.simpy.servers import Arbiter, Chooser, Hop, InFlightMessage, Legs, Parts, Piece
from rapid_des.network.fluid import remaining
from rapid_des.network.fluid.state import bytes_out
from rapid_des.program.faults.closures import Closures, Remaining, Stopped, down_at, new_routes, route_around
from rapid_des.program.program import NONE, WorkLevel
from rapid_des.program.timetable import FULL_RATE, hop_times, tail_crosses, work_done
from rapid_des.values import replace


class Waiting(Struct, eq=False):
    """Messages stopped by closed links; each is sent again on another route once the closure is noticed.

    All that has stopped until the end of an instant and shall leave at that instant is routed as one batch.
    """

    links: Links
    closures: Closures
    resend: Callable[[InFlightMessage, tuple[int, ...], int, int], None]
    """Sends again what was stopped: called with the message, the links of its new route, the bytes that take
    it, and the number of that piece.
    """
    waker: Chooser
    """The arbiter's server that calls `wake` at the end of an instant."""
    touch: Callable[[Chooser], None]
    _batches: dict[int, list[tuple[InFlightMessage, Stopped]]] = field(default_factory=dict)
    """The stopped pieces by the time, in picoseconds, at which their closure is noticed."""
    _again: int = 0

    def stop(
        self, message: InFlightMessage, which: tuple[int, int], remaining: Remaining, links: Sequence[int]
    ) -> None:
        """Keep bytes of a piece, `which` by part and number, that the first closed link of some stopped."""
        env = self.links.env
        until = self.closures.stopped_until(links, env.now)
        assert until is not None, "nothing stops at open links"
        moment, together = until
        message.pieces += 1
        self._keep(moment, message, Stopped((*message.order, *which), remaining, together))

    def _keep(self, moment: int, message: InFlightMessage, stopped: Stopped) -> None:
        """Keep a stopped piece until the time at which it may be sent again."""
        env = self.links.env
        if moment not in self._batches:
            self._batches[moment] = []
            if moment == env.now:
                self.touch(self.waker)
            else:
                Timeout(env, moment - env.now).callbacks.append(lambda _: self.touch(self.waker))
        self._batches[moment].append((message, stopped))

    def wake(self) -> None:
        """Send again what stopped at links of which it is now known that they are closed."""
        now, timetables = self.links.env.now, self.links.program.link_timetables
        if now not in self._batches:
            return
        batch = self._batches.pop(now)
        found = new_routes([rest for _, rest in batch], self.closures, timetables, now)
        for which, route in found.routes:
            message, rest = batch[which]
            self._again += 1
            self.resend(message, route, rest.remaining.size, self._again)
        for which in found.waiting:
            self._keep(found.again, *batch[which])


class ClosingLinks:
    """Closes links, and finds another route for what that stops."""

    order = 0

    def __init__(self, links: Links, closures: Closures) -> None:
        self.env = links.env
        self.links = links
        self.closures = closures
        self.waiting = Waiting(
            links, closures, self._resend, self, Arbiter(self.env, WorkLevel.STOPPED).touch
        )
        for moment, closing in groupby(closures.closures, key=attrgetter("start")):
            self.env.at(moment, partial(self._close, sorted({closure.link for closure in closing})))

    def choose(self) -> None:
        """Send again the pieces that may leave now."""
        self.waiting.wake()

    def around(self, message: InFlightMessage, parts: Parts) -> Parts:
        """Return the parts of a message that starts now, on a route without links known to be closed."""
        avoided, piece = self.closures.avoided(self.env.now), Piece(message, parts[0][1], message.size)
        if avoided.isdisjoint(_route(piece)):
            return parts
        route = _route(piece)
        around = route_around(route, self.closures, self.links.program.link_timetables, self.env.now)
        return [(size, legs_of(self.closures, around, size)) for size, _ in parts] if around else parts

    def stops(self, piece: Piece, place: int) -> bool:
        """Stop a piece if its next link is closed."""
        if self.closures.closed(piece.legs[place][0], self.env.now) is None:
            return False
        self._stop(piece, place, piece.size)
        piece.size = 0
        return True

    def go_on(self, piece: Piece, hop: Hop, interrupt: Interrupt) -> Generator[Event, Any, bool]:
        """Continue with the bytes that got through before a hop's link closed; return whether there are any.

        The piece waits for `hop`, or is on it; the link that closed is that of this hop or of an earlier one.
        """
        closed = cast("Hop", interrupt.cause)
        while True:
            if closed.start == NONE:  # the link for which it waits has closed
                self._stop(piece, closed.place, piece.size)
                piece.size = 0
                return False
            if closed.place >= piece.cut:
                self._cut(piece, hop, closed)
                if not piece.size:
                    hop.cancel()  # no byte is left that could cross the next link
                    return False
            try:
                yield hop if hop.start == NONE else Timeout(self.env, hop.onward - self.env.now)
            except Interrupt as another:
                closed = cast("Hop", another.cause)
            else:
                return True

    def _close(self, links: list[int]) -> None:
        """Interrupt what the links serve, the farthest on its route first, then those that wait."""
        now, servers = self.env.now, [self.links.server(link) for link in links]
        served = [link.serving for link in servers if link.serving is not None and not link.is_free]
        for hop in sorted(served, key=lambda hop: (-hop.place, hop.link)):
            self._shorten(hop, now, self._got_through(hop))
            if hop.process is not None and hop.process.is_alive:
                hop.process.interrupt(hop)
        for server in servers:
            for _, hop in sorted(server.queue, key=itemgetter(0)):
                assert hop.process is not None
                hop.process.interrupt(hop)
            server.queue.clear()

    def _got_through(self, hop: Hop) -> int:
        """Return the bytes of the whole segments that a link has served until now."""
        unit = self.closures.segment
        if unit is None:
            return 0
        occupancy = legs_of(self.closures, _route(hop.piece), hop.size)[hop.place][1][0]
        time, rate, _ = self.links.timetables[hop.link]
        done = work_done(time, rate, hop.start, self.env.now)
        return hop.size * done // (occupancy * FULL_RATE) // unit * unit

    def _cut(self, piece: Piece, hop: Hop, closed: Hop) -> None:
        """Stop what did not get through a closed link; the piece is smaller, and continues earlier."""
        now = self.env.now
        self._stop(piece, closed.place, piece.size - closed.size)
        piece.cut, piece.size = closed.place, closed.size
        piece.legs = legs_of(self.closures, _route(piece), piece.size)
        before = piece.crossed = 0
        for later in piece.hops:
            free = self._times(later)[0]
            if later.place > closed.place and later is later.server.serving and later.free >= now:
                self._shorten(later, max(now, free), piece.size)
            before, piece.crossed = piece.crossed, self._crosses(later, free, piece.crossed)
        if hop.start != NONE:
            through = self._crosses(hop, hop.free, before)
            last = hop.place == len(piece.legs) - 1
            hop.onward = max(now, through if last else min(self._times(hop)[1], through))

    def _times(self, hop: Hop) -> tuple[int, int, int]:
        """Return the times of a hop if its piece had had its present size from the beginning."""
        link, service = hop.piece.legs[hop.place]
        return hop_times(service[:3], self.links.timetables.get(link, NO_TIMETABLE), hop.start)

    def _crosses(self, hop: Hop, free: int, before: int) -> int:
        """Return when the last byte of a hop's piece has crossed it, if its link was done at `free`."""
        link, service = hop.piece.legs[hop.place]
        table = self.links.timetables.get(link, NO_TIMETABLE)
        return tail_crosses(service[3:], table, hop.start, free, before)

    def _shorten(self, hop: Hop, free: int, size: int) -> None:
        """End a link's service of a hop earlier, after fewer bytes."""
        label = hop.piece.message.label
        self.links.book(hop.link, label, size=size - hop.size, busy=free - hop.free)
        hop.arrival += free - hop.free
        hop.free, hop.size = free, size
        hop.server.is_done_earlier(hop)

    def _stop(self, piece: Piece, place: int, size: int) -> None:
        """Keep bytes that a closed link stopped until that is noticed."""
        route = _route(piece)
        rest = self.closures.left_of(route[: place + 1], route, size)
        self.waiting.stop(piece.message, (piece.part, piece.number), rest, route[place : place + 1])

    def _resend(self, message: InFlightMessage, route: tuple[int, ...], size: int, number: int) -> None:
        self.links.start(Piece(message, legs_of(self.closures, route, size), size, number=number))


def _route(piece: Piece) -> tuple[int, ...]:
    return tuple(link for link, _ in piece.legs)


def legs_of(closures: Closures, route: tuple[int, ...], size: int) -> Legs:
    """Return the links of a route with what it takes some bytes to cross them."""
    return list(zip(route, closures.services(route, size), strict=True))


class ClosingFlows:
    """Stops flows where links of their route, or of that back, close, and finds another for them."""

    def __init__(self, fluid: FluidLinks, closures: Closures) -> None:
        self.env = fluid.env
        self.fluid = fluid
        self.closures = closures
        self.waiting = Waiting(fluid.links, closures, self._resend, fluid, fluid.arbiter.touch)
        for closure in closures.closures:
            self.env.at(closure.start, partial(fluid.arbiter.touch, fluid))
        self._starts = frozenset(closure.start for closure in closures.closures)

    def around(self, message: InFlightMessage, shared: Shared) -> Shared:
        """Return the parameters of a flow that starts now, on a route without links known to be closed."""
        avoided = self.closures.avoided(self.env.now)
        if avoided.isdisjoint((*shared.links, *shared.back)):
            return shared
        timetables = self.fluid.program.link_timetables
        route = route_around(shared.links, self.closures, timetables, self.env.now)
        return shared_of(self.closures, route, avoided, message.size) if route else shared

    def act(self) -> None:
        """Stop flows on links that close now and flows that join closed ones; send what stopped again."""
        fluid, now = self.fluid, self.env.now
        if now in self._starts:
            for slot in sorted(fluid.flows):
                if fluid.fluid.finish[slot] != now and self._closed(fluid.flows[slot].shared):
                    self._cut(slot, now)
        for flow in [flow for flow in fluid.joining if self._closed(flow.shared)]:
            fluid.joining.remove(flow)
            fluid.pass_turn(flow)
            self._stop(flow, flow.shared.size)
            flow.message.pieces -= 1
        self.waiting.wake()

    def _cut(self, slot: int, now: int) -> None:
        """Deliver the whole packets of a flow that got through; the rest stops."""
        left, fraction = remaining(self.fluid.fluid, slot, now)
        flow = self.fluid.take(slot)
        through = self.closures.got_through(bytes_out(flow.shared.wire, left, fraction))
        self._stop(flow, flow.shared.size - through)
        if through:
            service = self.closures.flow(flow.shared.links, through)
            flow.shared = replace(flow.shared, size=through, wire=service.wire, after=service.after)
            self.fluid.leave(flow)
        else:
            flow.message.pieces -= 1

    def _closed(self, shared: Shared) -> bool:
        return self.closures.stopped_until(_crossed(shared), self.env.now) is not None

    def _stop(self, flow: Flow, size: int) -> None:
        """Keep bytes that a closed link stopped until that is noticed."""
        rest = self.closures.left_of(flow.shared.links[:1], flow.shared.links, size)
        self.waiting.stop(flow.message, (0, flow.number), rest, _crossed(flow.shared))

    def _resend(self, message: InFlightMessage, route: tuple[int, ...], size: int, number: int) -> None:
        dead = down_at(self.fluid.program.link_timetables, self.env.now)
        self.fluid.start(Flow(message, shared_of(self.closures, route, dead, size), number))


def shared_of(closures: Closures, route: tuple[int, ...], dead: frozenset[int], size: int) -> Shared:
    """Return the flow parameters of some bytes on a route; acknowledgements return around dead links."""
    service = closures.flow(route, size)
    return Shared(
        links=route,
        back=closures.return_route(route, dead),
        size=size,
        wire=service.wire,
        ratio=service.ratio,
        before=service.before,
        after=service.after,
    )


def _crossed(shared: Shared) -> Sequence[int]:
    """Return the links that a flow needs, there and back."""
    return *shared.links, *shared.back
