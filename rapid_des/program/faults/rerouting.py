"""Rule R8: on which routes what closed links stopped goes on, or until when it waits for one."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from rapid_des.errors import FabricCutError
from rapid_des.network.fabric import Fabric
from rapid_des.program.faults.closures import Closures, Remaining, Stopped
from rapid_des.program.program import Timetable
from rapid_des.program.timetable import FOREVER, rate_at, steps_until
from rapid_des.units import PS_PER_S, Duration

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

    What can not reach its destination now, but will once links are back, waits for the first of those.
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
