"""Rule R8: when links close, when that is noticed, and on which routes what remains goes on."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from operator import attrgetter

import numpy as np

from rapid_des.chakra.trace import TraceSet
from rapid_des.errors import FabricCutError, UnsupportedByEngine
from rapid_des.machine import Machine
from rapid_des.network.fabric import Fabric, Router, Routes
from rapid_des.network.faults import Fault, hits, touches_links
from rapid_des.network.faults.timing import active_intervals
from rapid_des.program.faults.replanning import CollectiveReplanner
from rapid_des.program.services import hop_table, services_of, with_tails
from rapid_des.units import PS_PER_S, Duration

Services = tuple[tuple[int, int, int, int, int], ...]
"""(occupancy, head, lag, across, along) in picoseconds of each hop, see `HopTable` and `TailTable`."""


@dataclass(frozen=True)
class Closure:
    """A link that is down for a while and that its traffic leaves, times in picoseconds."""

    link: int
    start: int
    end: int | None
    noticed: int
    """From then on new transfers avoid the link, and those that it stopped get new routes."""
    together: bool
    """Policy `replan`: what remains is planned as a whole, and collectives that begin later are replanned;
    else each transfer is routed on its own."""

    def covers(self, moment: int) -> bool:
        """Whether the link is closed."""
        return self.start <= moment and (self.end is None or moment < self.end)


@dataclass(frozen=True)
class Remaining:
    """What is left of a transfer, on a node that holds it."""

    source: int
    destination: int
    size: int


@dataclass(frozen=True, eq=False)
class Closures:
    """All closures of a run, and what replanning needs."""

    closures: tuple[Closure, ...]
    """Ascending by (start, link)."""
    fabric: Fabric
    router_around: Callable[[frozenset[int]], Router]
    services: Callable[[tuple[int, ...], int], Services]
    """Of a message of some bytes on a route of links."""
    segment: int | None
    """What a link forwards at once: of a visit in service, whole ones count as served."""
    holds: bool
    """Whether GPUs on the route hold whole messages (store_and_forward): what remains goes on from the last
    one it reached. Else it is sent again from its source, as packets in flight are dropped."""
    collectives: CollectiveReplanner | None
    """Replans collectives; None if no closure asks for it."""

    def closed(self, link: int, moment: int) -> Closure | None:
        """Return the closure of a link at a time, the first noticed of several."""
        covering = [closure for closure in self._of.get(link, ()) if closure.covers(moment)]
        return min(covering, key=lambda closure: closure.noticed, default=None)

    def avoided(self, moment: int) -> frozenset[int]:
        """Return the closed links that are noticed."""
        return frozenset(closure.link for closure in self._noticed(moment))

    def planned_around(self, moment: int) -> frozenset[int] | None:
        """Return what a collective that begins now is planned around; None if nothing asks for that."""
        noticed = self._noticed(moment)
        asked = any(closure.together for closure in noticed)
        return frozenset(closure.link for closure in noticed) if asked else None

    def _noticed(self, moment: int) -> list[Closure]:
        return [closure for closure in self.closures if closure.covers(moment) and closure.noticed <= moment]

    @property
    def _of(self) -> Mapping[int, list[Closure]]:
        return _by_link(self.closures)


@lru_cache(maxsize=8)
def _by_link(closures: tuple[Closure, ...]) -> Mapping[int, list[Closure]]:
    of_link: dict[int, list[Closure]] = {}
    for closure in closures:
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
    switching = machine.switching
    if switching.mode == "fluid":
        raise UnsupportedByEngine(f"{machine.path}: the fluid mode does not reroute; use policy=wait")
    protocol = switching.protocol

    @cache
    def services(links: tuple[int, ...], size: int) -> Services:
        routes = Routes(np.array([0, len(links)]), np.array(links, np.int64))
        table, classes = hop_table(machine.fabric, switching, routes, [size])
        return tuple(services_of(with_tails(table, machine.fabric, switching, routes), 0, classes))

    return Closures(
        closures=tuple(sorted(closures, key=attrgetter("start", "link", "noticed"))),
        fabric=machine.fabric,
        router_around=cache(machine.router_around),
        services=services,
        segment=switching.segment or (None if protocol is None else int(protocol.payload)),
        holds=switching.mode == "store_and_forward",
        collectives=CollectiveReplanner(traces, machine) if any(one.together for one in closures) else None,
    )


def replan(
    remaining: Sequence[Remaining], closures: Closures, dead: frozenset[int], *, together: bool
) -> list[tuple[int, ...]]:
    """Return the links that each of what remains takes on the surviving fabric; pure.

    Each goes where the fault-aware router sends it; or `together`, in the order given, on the route that is
    fastest if nothing moves but what was planned before it. `FabricCutError` if there is no route.
    """
    route = cache(closures.router_around(dead).route)
    if not together:
        return [route(one.source, one.destination) for one in remaining]
    load = [0] * len(closures.fabric)
    routes = []
    for one in remaining:
        links = _fastest(closures.fabric, one, dead, load) or route(one.source, one.destination)
        for link in links:
            load[link] += one.size
        routes.append(links)
    return routes


def _fastest(fabric: Fabric, one: Remaining, dead: frozenset[int], load: Sequence[int]) -> tuple[int, ...]:
    """Return the route of least total time over its links, each behind what is planned on it (Dijkstra)."""
    starts, links = fabric.outgoing
    waiting: list[tuple[int, tuple[int, ...], int]] = [(0, (), one.source)]
    seen: set[int] = set()
    while waiting:
        time, route, node = heapq.heappop(waiting)
        if node == one.destination:
            return route
        if node in seen:
            continue
        seen.add(node)
        for link in links[starts[node] : starts[node + 1]].tolist():
            if link not in dead:
                busy = (load[link] + one.size) * PS_PER_S // int(fabric.bandwidth[link])
                after = time + busy + int(fabric.latency[link])
                heapq.heappush(waiting, (after, (*route, link), int(fabric.destination[link])))
    return ()


def cut_at(error: FabricCutError, moment: int) -> FabricCutError:
    """Return the error with the time at which traffic found the fabric cut."""
    return FabricCutError(f"at {Duration(moment)}: {error}")
