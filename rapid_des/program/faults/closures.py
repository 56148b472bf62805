"""Rule R8: when links close, when that is noticed, and what of a message is left then.

What a closed link stopped goes on by another route, or waits for the link to return.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from rapid_des.chakra.trace import TraceSet
from rapid_des.errors import FabricCutError, UnsupportedByEngine
from rapid_des.machine import Machine
from rapid_des.network.fabric import Fabric, Router, Routes
from rapid_des.network.faults import Fault, hits, touches_links
from rapid_des.network.faults.timing import active_intervals
from rapid_des.network.jitter import draws_delays
from rapid_des.network.protocol import FluidService, Protocol, fluid_service
from rapid_des.program.faults.planning import CollectiveReplanner
from rapid_des.program.program import Timetable
from rapid_des.program.services import flow_protocol, hop_table, services_of, with_tails
from rapid_des.program.timetable import FOREVER, rate_at, steps_until
from rapid_des.units import PS_PER_S, Duration

Services = tuple[tuple[int, int, int, int, int], ...]
"""(occupancy, head, lag, across, along) of each hop, in picoseconds; see `HopTable` and `TailTable`."""


class Closure(Struct, frozen=True):
    """A link that is down for a while and that its traffic leaves, times in picoseconds."""

    link: int
    start: int
    end: int | None
    noticed: int
    """The time of detection: from then on new transfers avoid the link, and stopped ones are rerouted."""
    together: bool
    """Policy `replan`: what remains is planned as a whole, and collectives that begin later are replanned;
    else each transfer is routed on its own."""

    def covers(self, moment: int) -> bool:
        """Return whether the link is closed at this time."""
        return self.start <= moment and (self.end is None or moment < self.end)


class Remaining(Struct, frozen=True):
    """What is left of a transfer, and the node that holds it."""

    source: int
    destination: int
    size: int


class Stopped(Struct, frozen=True):
    """The rest of a message that a closed link stopped, until the closure is detected."""

    order: tuple[int, ...]
    """The rank by which it gets a route: that of the message (R3), its part, how often it started again."""
    remaining: Remaining
    together: bool
    """Whether it is planned with everything else that stopped; otherwise it is routed on its own."""


class Closures(Struct, frozen=True, eq=False, dict=True):
    """All closures of a run, and what rerouting and replanning need."""

    closures: tuple[Closure, ...]
    """Ascending by (start, link)."""
    fabric: Fabric
    router_around: Callable[[frozenset[int]], Router]
    services: Callable[[tuple[int, ...], int], Services]
    """Returns the hop services of a message of some bytes on a route of links."""
    flow: Callable[[tuple[int, ...], int], FluidService]
    """Returns the service of a flow of some bytes on a route of links, in the fluid mode."""
    packet: Protocol
    """Fluid mode: the packets of a flow. When a flow is cut, whole packets (or bytes) have arrived."""
    segment: int | None
    """Bytes that a link forwards at once: of an interrupted visit the complete ones count as served."""
    holds: bool
    """Whether GPUs on the route hold whole messages (store_and_forward): what remains goes on from the last
    one it reached. Else it is sent again from its source, as packets in flight are dropped."""
    answered: bool
    """Fluid mode: whether a flow needs a return route for its acknowledgements."""
    collectives: CollectiveReplanner | None
    """Replans collectives; None if no closure asks for it."""

    def closed(self, link: int, moment: int) -> Closure | None:
        """Return the closure of a link at a time, the first noticed of several."""
        covering = [closure for closure in self._of.get(link, ()) if closure.covers(moment)]
        return min(covering, key=lambda closure: closure.noticed, default=None)

    def begins(self, link: int, moment: int) -> bool:
        """Return whether a closure of a link begins at a time."""
        return any(closure.start == moment for closure in self._of.get(link, ()))

    def avoided(self, moment: int) -> frozenset[int]:
        """Return the closed links that are noticed."""
        return frozenset(closure.link for closure in self._noticed(moment))

    def planned_around(self, moment: int) -> frozenset[int] | None:
        """Return the dead links that a collective which begins now is planned around; None: none are."""
        noticed = self._noticed(moment)
        asked = any(closure.together for closure in noticed)
        return frozenset(closure.link for closure in noticed) if asked else None

    def stopped_until(self, links: Sequence[int], moment: int) -> tuple[int, bool] | None:
        """Return when what comes to links gets another route, and if planned together; None if all are open.

        The first that is closed counts.
        """
        for link in links:
            closure = self.closed(link, moment)
            if closure is not None:
                return max(moment, closure.noticed), closure.together
        return None

    def got_through(self, wire: int) -> int:
        """Return the payload of the whole packets among this many bytes of a flow."""
        return wire // (self.packet.payload + self.packet.header) * self.packet.payload

    def left_of(self, links: Sequence[int], route: Sequence[int], size: int) -> Remaining:
        """Return bytes, on a node that holds them, of a message that took all of `links` but the last."""
        nodes = [int(self.fabric.source[link]) for link in links]
        held = [node for node in nodes[1:] if node < self.fabric.gpus] if self.holds else []
        return Remaining([nodes[0], *held][-1], int(self.fabric.destination[route[-1]]), size)

    def return_route(self, route: Sequence[int], dead: frozenset[int]) -> tuple[int, ...]:
        """Return the links on which the acknowledgements of a route go back, around dead ones.

        None where they take none of a link's time; `FabricCutError` if there is no route.
        """
        if not self.answered:
            return ()
        ends = int(self.fabric.destination[route[-1]]), int(self.fabric.source[route[0]])
        return self.router_around(dead).route(*ends)

    def _noticed(self, moment: int) -> list[Closure]:
        return [closure for closure in self.closures if closure.covers(moment) and closure.noticed <= moment]

    @cached_property
    def _of(self) -> Mapping[int, list[Closure]]:
        of_link: dict[int, list[Closure]] = {}
        for closure in self.closures:
            of_link.setdefault(closure.link, []).append(closure)
        return of_link


def closures_of(machine: Machine, faults: Sequence[Fault], horizon: int, traces: TraceSet) -> Closures | None:
    """Return the closures of timed faults that traffic shall leave, up to `horizon`; None for none.

    `traces` are those of the program: they say what collectives that are replanned have to do.
    """
    closures = [
        Closure(link, start, end, start + (fault.detection or 0), fault.policy == "replan")
        for fault, hit in hits(machine.fabric, faults, machine.spec.gpus_per_node)
        if fault.timed and fault.policy != "wait" and touches_links(fault)
        for start, end in active_intervals(fault, horizon)
        for link in hit.links.tolist()
    ]
    if not closures:
        return None
    replans = any(closure.together for closure in closures)
    _check_can_leave(machine, replans=replans)
    switching = machine.switching
    protocol, packet = switching.protocol, flow_protocol(switching)

    @cache
    def services(links: tuple[int, ...], size: int) -> Services:
        routes = Routes(np.array([0, len(links)]), np.array(links, np.int64))
        table, classes = hop_table(machine.fabric, switching, routes, [size])
        return tuple(services_of(with_tails(table, machine.fabric, switching, routes), 0, classes))

    @cache
    def flow(links: tuple[int, ...], size: int) -> FluidService:
        rates, latencies = machine.fabric.bandwidth, machine.fabric.latency
        return fluid_service(packet, size, [(int(rates[link]), int(latencies[link])) for link in links])

    return Closures(
        closures=tuple(sorted(closures, key=attrgetter("start", "link", "noticed"))),
        fabric=machine.fabric,
        router_around=cache(machine.router_around),
        services=services,
        flow=flow,
        packet=packet,
        segment=switching.segment or (None if protocol is None else int(protocol.payload)),
        holds=switching.mode == "store_and_forward",
        answered=switching.mode == "fluid" and packet.acknowledgement > 0,
        collectives=CollectiveReplanner(traces, machine) if replans else None,
    )


def _check_can_leave(machine: Machine, *, replans: bool) -> None:
    """Raise `UnsupportedByEngine` if a machine's messages cannot leave links that close in mid-flight."""
    switching = machine.switching
    if replans and draws_delays(machine.spec.jitter, machine.faults):
        problem = (
            "messages that draw delays do not go with policy=replan in mid-flight, which numbers them again"
        )
        raise UnsupportedByEngine(f"{machine.path}: {problem}; use policy=reroute")
    if switching.congestion is not None or switching.spray is not None:
        what = "spray: sprayed messages" if switching.congestion is None else "congestion: queue pairs"
        problem = f"switching.{what} are not rerouted in mid-flight"
        raise UnsupportedByEngine(f"{machine.path}: {problem}; use policy=wait")


Timetables = Mapping[int, Timetable]
"""The timetables of a program's links, by link."""


class Rerouted(NamedTuple):
    """New routes of stopped transfers, and the transfers that no route is left for."""

    routes: list[tuple[int, tuple[int, ...]]]
    """(index of the transfer, links of its new route), in the order of messages."""
    waiting: list[int]
    """Indices of the transfers that wait for links to come back."""
    again: int
    """Time in picoseconds at which the first of the links that are down comes back."""


def new_routes(
    stopped: Sequence[Stopped], closures: Closures, timetables: Timetables, moment: int
) -> Rerouted:
    """Return the new routes of all that stopped.

    What cannot reach its destination now, but will once links are back, waits for the first of those.
    `FabricCutError` names the time and the links where a cut is for ever.
    """
    dead = down_at(timetables, moment)
    order = sorted(
        range(len(stopped)), key=lambda which: (stopped[which].order, stopped[which].remaining.size)
    )
    routes: list[tuple[int, tuple[int, ...]]] = []
    for together in (False, True):
        chosen = [which for which in order if stopped[which].together == together]
        remaining = [stopped[which].remaining for which in chosen]
        found = replan(remaining, closures, dead, together=together)
        routes += [(chosen[place], links) for place, links in found.items()]
    gone = {which for which, _ in routes}
    waiting = [which for which in order if which not in gone]
    require_return([stopped[which].remaining for which in waiting], closures, timetables, moment)
    return Rerouted(routes, waiting, _next_return(timetables, dead, moment) if waiting else moment)


def route_around(
    links: tuple[int, ...], closures: Closures, timetables: Timetables, moment: int
) -> tuple[int, ...]:
    """Return the route around closed links that are noticed of a message that would begin on some links.

    None where no route is left for a while: the message begins as it would, and stops. `FabricCutError` if
    that is for ever.
    """
    whole = closures.left_of(links[:1], links, 0)
    found = replan([whole], closures, closures.avoided(moment), together=False)
    if not found:
        require_return([whole], closures, timetables, moment)
    return found.get(0, ())


def planned_around(
    who: tuple[int, int], closures: Closures, timetables: Timetables, moment: int
) -> frozenset[int] | None:
    """Return the links that a collective is planned around which begins now; None: it keeps its plan.

    `who` is the first of its ranks, by position, and its node. A group that is cut apart for a while keeps
    its plan, and its messages wait; `FabricCutError` if that is for ever.
    """
    dead, planner = closures.planned_around(moment), closures.collectives
    if dead is None or planner is None or not planner.cut(*who, dead):
        return dead
    gone = stays_down(timetables, dead, moment)
    if gone and (problem := planner.cut(*who, gone)):
        raise cut_at(FabricCutError(problem), moment)
    return None


def replan(
    remaining: Sequence[Remaining], closures: Closures, dead: frozenset[int], *, together: bool
) -> dict[int, tuple[int, ...]]:
    """Return by place the links that each of what remains takes on the surviving fabric; pure.

    Each goes where the fault-aware router sends it; or `together`, in the order given, on the route that is
    fastest if nothing moves but what was planned before it. What has no route there, or none back for its
    acknowledgements, is left out.
    """
    routed = cache(lambda source, destination: _routed(closures, dead, source, destination))
    load = [0] * len(closures.fabric) if together else []
    routes = {}
    for place, transfer in enumerate(remaining):
        links: tuple[int, ...] = routed(transfer.source, transfer.destination)
        if links and together:
            links = _fastest(closures.fabric, transfer, dead, load) or links
            for link in links:
                load[link] += transfer.size
        if links:
            routes[place] = links
    return routes


def _routed(closures: Closures, dead: frozenset[int], source: int, destination: int) -> tuple[int, ...]:
    """Return the links between two nodes around dead ones; none where there is no route."""
    try:
        links = closures.router_around(dead).route(source, destination)
        closures.return_route(links, dead)
    except FabricCutError:
        return ()
    return links


def require_return(
    remaining: Iterable[Remaining], closures: Closures, timetables: Timetables, moment: int
) -> None:
    """Raise `FabricCutError` with the time if links that never come back cut something off."""
    gone = stays_down(timetables, down_at(timetables, moment), moment)
    try:
        for transfer in remaining:
            links = closures.router_around(gone).route(transfer.source, transfer.destination)
            closures.return_route(links, gone)
    except FabricCutError as error:
        raise cut_at(error, moment) from None


def _fastest(
    fabric: Fabric, transfer: Remaining, dead: frozenset[int], load: Sequence[int]
) -> tuple[int, ...]:
    """Return the route of least total time over its links, each behind what is planned on it (Dijkstra)."""
    starts, links = fabric.outgoing
    waiting: list[tuple[int, tuple[int, ...], int]] = [(0, (), transfer.source)]
    seen: set[int] = set()
    while waiting:
        time, route, node = heapq.heappop(waiting)
        if node == transfer.destination:
            return route
        if node in seen:
            continue
        seen.add(node)
        for link in links[starts[node] : starts[node + 1]].tolist():
            if link not in dead:
                busy = (load[link] + transfer.size) * PS_PER_S // int(fabric.bandwidth[link])
                after = time + busy + int(fabric.latency[link])
                heapq.heappush(waiting, (after, (*route, link), int(fabric.destination[link])))
    return ()


def cut_at(error: FabricCutError, moment: int) -> FabricCutError:
    """Return the error with the time at which traffic found the fabric cut."""
    return FabricCutError(f"at {Duration(moment)}: {error}")


def down_at(timetables: Timetables, moment: int) -> frozenset[int]:
    """Return the links that are down at a time."""
    return frozenset(
        link for link, table in timetables.items() if not rate_at(table.time, table.rate, moment)
    )


def stays_down(timetables: Timetables, links: Iterable[int], moment: int) -> frozenset[int]:
    """Return those of some links that are down that never come back after a time."""
    return frozenset(link for link in links if _comes_back(timetables[link], moment) == FOREVER)


def _next_return(timetables: Timetables, dead: Iterable[int], moment: int) -> int:
    """Return when the first of some links that are down comes back."""
    return min(_comes_back(timetables[link], moment) for link in dead)


def _comes_back(table: Timetable, moment: int) -> int:
    """Return when a link that is down works again: FOREVER if it never does."""
    first = steps_until(table.time, moment)
    later = np.flatnonzero(table.rate[first:])
    return int(table.time[first + later[0]]) if len(later) else FOREVER
