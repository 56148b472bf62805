"""R7: flows are served by all links of their route at once and share them max-min fairly.

    fluid = new_fluid(capacities, flows=…, hops=…)
    at each instant: first set_capacity(…), then end_flow(…), then begin_flow(…), each in any order;
    changed = settle(fluid, now)      whose flows fluid.changed[:changed] have new fluid.finish times

A message joins and leaves as `protocol.fluid_service` says: `begin_flow` comes `before` after it starts, and
it has arrived `after` its finish. Everything is an integer and each rate follows from the flows that are
active, so interpreted Python and numba give the same bits: every function here compiles as it stands, the
state is a tuple of arrays.

Shares (`fill`): the link with the least capacity left per unsettled flow, lowest id first, settles its flows
at that share; a flow whose ceiling (its slowest link) is lower settles there before. Only links that their
flows could saturate (`demand > capacity`) connect flows: `settle` re-solves the flows connected to what
changed and leaves all others alone.

Acknowledgements are part of a link's load. Where they are at most an eighth of it (`LIGHT`), they go first:
they are taken from the capacity of the links on the route back before flows share the rest, and each pass of
`settle` leaves an eighth of the error of the pass before. Heavier ones (of messages of a few bytes) share
links as flows do: at rate r a flow loads each link of its route by r, and each on the route back by its ratio
of r, and the filling weighs them so; it is exact, so that flows against each other have one answer.
"""

from __future__ import annotations

from rapid_des.compiling import compilable
from rapid_des.network.fluid.state import NEVER as NEVER
from rapid_des.network.fluid.state import NONE, RATIO_ONE, SCALE, divided, drain_time, drained, fill, portion
from rapid_des.network.fluid.state import Fluid as Fluid
from rapid_des.network.fluid.state import new_fluid as new_fluid
from rapid_des.network.fluid.state import set_route as set_route
from rapid_des.network.fluid.state import stride as stride

ACKNOWLEDGEMENT_PASSES = 4
"""The passes of `settle`. Each uses the acknowledgements of the pass before; the remaining error is their
share to this power.
"""
LIGHT = RATIO_ONE // 8
"""The acknowledgement load up to which acknowledgements go first, as a share of a flow's own load and of the
links on the route back.
"""


@compilable
def begin_flow(fluid: Fluid, flow: int, wire: int, ratio: int, now: int) -> None:
    """Start a flow of `wire` bytes in a slot whose route, of one link or more, has been written."""
    start = flow * stride(fluid)
    fluid.ratio[flow] = ratio
    fluid.sharing[flow] = fluid.hops[flow]
    if ratio > _light_up_to(fluid, flow):
        fluid.sharing[flow] += fluid.hops_back[flow]
    fluid.left[flow] = wire * SCALE
    fluid.fraction[flow] = 0
    fluid.since[flow] = now
    fluid.rate[flow] = 0
    fluid.finish[flow] = NEVER
    _find_ceiling(fluid, flow)
    _add_demand(fluid, flow, 1)
    for hop in range(start, start + fluid.sharing[flow]):
        link = fluid.link[hop]
        fluid.weight[link] += RATIO_ONE if hop < start + fluid.hops[flow] else ratio
        fluid.previous[hop] = NONE
        fluid.next[hop] = fluid.first[link]
        if fluid.first[link] != NONE:
            fluid.previous[fluid.first[link]] = hop
        fluid.first[link] = hop
    _touch(fluid, flow)


@compilable
def end_flow(fluid: Fluid, flow: int) -> None:
    """Take a flow out, finished or not, and free its slot."""
    _touch(fluid, flow)
    _expand(fluid)
    _untouch(fluid, flow)
    start = flow * stride(fluid)
    for hop in range(start, start + fluid.sharing[flow]):
        link, before, after = fluid.link[hop], fluid.previous[hop], fluid.next[hop]
        fluid.weight[link] -= RATIO_ONE if hop < start + fluid.hops[flow] else fluid.ratio[flow]
        if before == NONE:
            fluid.first[link] = after
        else:
            fluid.next[before] = after
        if after != NONE:
            fluid.previous[after] = before
    _add_demand(fluid, flow, -1)
    _set_background(fluid, flow, fluid.rate[flow], 0)
    fluid.rate[flow] = 0
    fluid.finish[flow] = NEVER
    fluid.hops[flow] = 0


@compilable
def set_capacity(fluid: Fluid, link: int, bandwidth: int) -> None:
    """Give a link another rate, in bytes a second; 0 stops it (R6)."""
    hop = fluid.first[link]
    while hop != NONE:
        _touch(fluid, hop // stride(fluid))
        hop = fluid.next[hop]
    _expand(fluid)
    fluid.capacity[link] = bandwidth * SCALE
    hop = fluid.first[link]
    while hop != NONE:
        flow = hop // stride(fluid)
        _add_demand(fluid, flow, -1)
        _find_ceiling(fluid, flow)
        _add_demand(fluid, flow, 1)
        hop = fluid.next[hop]
    fluid.counts[1] = 0


@compilable
def settle(fluid: Fluid, now: int) -> int:
    """Share out again what the changes at this instant touched; return how many flows changed rate.

    They are `changed[: count]`, in no order that matters; `left`, `since` and `finish` are up to date.
    """
    coupled = _expand(fluid)
    touched = fluid.counts[0]
    for i in range(touched):
        fluid.trial[fluid.touched[i]] = fluid.rate[fluid.touched[i]]
    for _ in range(ACKNOWLEDGEMENT_PASSES if coupled else 1):
        fill(fluid)
        moved = False
        for i in range(touched):
            flow = fluid.touched[i]
            if fluid.settled[flow] != fluid.trial[flow]:
                moved = True
                _set_background(fluid, flow, fluid.trial[flow], fluid.settled[flow])
                fluid.trial[flow] = fluid.settled[flow]
        if not moved:
            break
    return _adopt(fluid, now)


@compilable
def _adopt(fluid: Fluid, now: int) -> int:
    count = 0
    for i in range(fluid.counts[0]):
        flow = fluid.touched[i]
        fluid.position[flow] = NONE
        if fluid.trial[flow] == fluid.rate[flow]:
            continue
        fluid.left[flow], fluid.fraction[flow] = remaining(fluid, flow, now)
        fluid.since[flow] = now
        fluid.rate[flow] = fluid.trial[flow]
        wait = drain_time(fluid.left[flow], fluid.fraction[flow], fluid.rate[flow])
        fluid.finish[flow] = NEVER if wait == NEVER else now + wait
        fluid.changed[count] = flow
        count += 1
    for i in range(fluid.counts[2]):
        fluid.is_visited[fluid.visited[i]] = 0
    for place in range(3):
        fluid.counts[place] = 0
    return count


@compilable
def remaining(fluid: Fluid, flow: int, now: int) -> tuple[int, int]:
    """Return a flow's work left at `now`: 1/16 bytes, and 1e-12 of that."""
    return drained(fluid.left[flow], fluid.fraction[flow], fluid.rate[flow], now - fluid.since[flow])


@compilable
def _expand(fluid: Fluid) -> bool:
    """Touch all flows connected to touched ones by links that may be full; True if by light answers."""
    coupled = False
    while fluid.counts[1] < fluid.counts[0]:
        flow = fluid.touched[fluid.counts[1]]
        fluid.counts[1] += 1
        start = flow * stride(fluid)
        shared = start + fluid.sharing[flow]
        for hop in range(start, start + fluid.hops[flow] + fluid.hops_back[flow]):
            link = fluid.link[hop]
            if fluid.demand[link] > fluid.capacity[link] and fluid.first[link] != NONE:
                coupled = coupled or hop >= shared
                _visit(fluid, link)
    return coupled


@compilable
def _visit(fluid: Fluid, link: int) -> None:
    if fluid.is_visited[link]:
        return
    fluid.is_visited[link] = 1
    fluid.visited[fluid.counts[2]] = link
    fluid.counts[2] += 1
    hop = fluid.first[link]
    while hop != NONE:
        _touch(fluid, hop // stride(fluid))
        hop = fluid.next[hop]


@compilable
def _touch(fluid: Fluid, flow: int) -> None:
    if fluid.position[flow] == NONE:
        fluid.position[flow] = fluid.counts[0]
        fluid.touched[fluid.counts[0]] = flow
        fluid.counts[0] += 1


@compilable
def _untouch(fluid: Fluid, flow: int) -> None:
    last = fluid.touched[fluid.counts[0] - 1]
    fluid.touched[fluid.position[flow]] = last
    fluid.position[last] = fluid.position[flow]
    fluid.position[flow] = NONE
    fluid.counts[0] -= 1
    fluid.counts[1] = fluid.counts[0]


@compilable
def _least_capacity(fluid: Fluid, flow: int) -> int:
    """Return the capacity of the slowest link on a flow's route."""
    start = flow * stride(fluid)
    least = NEVER
    for hop in range(start, start + fluid.hops[flow]):
        least = min(least, fluid.capacity[fluid.link[hop]])
    return least


@compilable
def _light_up_to(fluid: Fluid, flow: int) -> int:
    """Return the ratio up to which acknowledgements go first, by the slowest link back that is not dead."""
    there = flow * stride(fluid) + fluid.hops[flow]
    ceiling, light = _least_capacity(fluid, flow), LIGHT
    for hop in range(there, there + fluid.hops_back[flow]):
        capacity = fluid.capacity[fluid.link[hop]]
        if 0 < capacity < ceiling:
            light = min(light, divided(capacity, ceiling) // (RATIO_ONE // LIGHT))
    return light


@compilable
def _find_ceiling(fluid: Fluid, flow: int) -> None:
    start, ceiling = flow * stride(fluid), _least_capacity(fluid, flow)
    for hop in range(start + fluid.hops[flow], start + fluid.sharing[flow]):
        capacity = fluid.capacity[fluid.link[hop]]
        ceiling = min(ceiling, max(min(capacity, 1), divided(capacity, fluid.ratio[flow])))
    fluid.ceiling[flow] = ceiling


@compilable
def _add_demand(fluid: Fluid, flow: int, sign: int) -> None:
    start = flow * stride(fluid)
    there = start + fluid.hops[flow]
    for hop in range(start, there):
        fluid.demand[fluid.link[hop]] += sign * fluid.ceiling[flow]
    answer = portion(fluid.ceiling[flow], fluid.ratio[flow])
    for hop in range(there, there + fluid.hops_back[flow]):
        fluid.demand[fluid.link[hop]] += sign * answer


@compilable
def _set_background(fluid: Fluid, flow: int, old: int, new: int) -> None:
    if fluid.sharing[flow] > fluid.hops[flow]:
        return
    change = portion(new, fluid.ratio[flow]) - portion(old, fluid.ratio[flow])
    start = flow * stride(fluid) + fluid.hops[flow]
    for hop in range(start, start + fluid.hops_back[flow]):
        fluid.background[fluid.link[hop]] += change
