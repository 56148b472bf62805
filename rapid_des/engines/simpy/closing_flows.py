"""R8 where flows share links (R7): one on a link that closes ends with the whole packets that got through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from rapid_des.engines.simpy.fluid_links import Flow, FluidLinks, Shared
from rapid_des.engines.simpy.links import Message
from rapid_des.engines.simpy.stopped import Waiting
from rapid_des.network.fluid import remaining
from rapid_des.network.fluid.state import bytes_out
from rapid_des.program.faults.closures import Closures, down_at, replan_at


class ClosingFlows:
    """Stops flows where links of their route, or of the way back, close, and finds another route for them."""

    def __init__(self, fluid: FluidLinks, closures: Closures) -> None:
        self.env = fluid.env
        self.fluid = fluid
        self.closures = closures
        self.waiting = Waiting(fluid.links, closures, self._set_off, fluid, fluid.arbiter.touch)
        for closure in closures.closures:
            self.env.at(closure.start, partial(fluid.arbiter.touch, fluid))
        self._starts = frozenset(closure.start for closure in closures.closures)

    def around(self, message: Message, shared: Shared) -> Shared:
        """Return what a message that sets off is, on a route without closed links that were noticed."""
        avoided = self.closures.avoided(self.env.now)
        if avoided.isdisjoint((*shared.links, *shared.back)):
            return shared
        whole = self.closures.left_of(shared.links[:1], shared.links, message.size)
        (route,) = replan_at(self.env.now, [whole], self.closures, avoided, together=False)
        return shared_of(self.closures, route, avoided, message.size, self.env.now)

    def act(self) -> None:
        """Stop flows on links that close now and flows that join closed ones; send what stopped again."""
        fluid, now = self.fluid, self.env.now
        if now in self._starts:
            for slot in sorted(fluid.flows):
                if fluid.fluid.finish[slot] != now and self._closed(fluid.flows[slot].shared):
                    self._cut(slot, now)
        for flow in [flow for flow in fluid.joining if self._closed(flow.shared)]:
            fluid.joining.remove(flow)
            self._stop(flow, flow.shared.size)
            flow.message.pieces -= 1
        self.waiting.wake()

    def _cut(self, slot: int, now: int) -> None:
        """Have the whole packets of a flow that got through arrive; the rest stops."""
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

    def _set_off(self, message: Message, route: tuple[int, ...], size: int, number: int) -> None:
        dead = down_at(self.fluid.program.link_timetables, self.env.now)
        self.fluid.start(Flow(message, shared_of(self.closures, route, dead, size, self.env.now), number))


def shared_of(
    closures: Closures, route: tuple[int, ...], dead: frozenset[int], size: int, moment: int
) -> Shared:
    """Return what some bytes are to the links of a route; acknowledgements go back around dead ones."""
    service = closures.flow(route, size)
    return Shared(
        links=route,
        back=closures.way_back(route, dead, moment),
        size=size,
        wire=service.wire,
        ratio=service.ratio,
        before=service.before,
        after=service.after,
    )


def _crossed(shared: Shared) -> Sequence[int]:
    """Return the links that a flow needs, there and back."""
    return *shared.links, *shared.back
