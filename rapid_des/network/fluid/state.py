"""The state of the fluid mode: flat columns, exact integer arithmetic of drained work, max-min fair rates.

A rate is in 1/16 byte a second, work in 1/16 byte (`left`) and, for what is below, in 1e-12 of that
(`fraction`): a rate times picoseconds is then a whole number, so nothing is ever lost to rounding, and 64
bits hold it. Python and numba give the same bits; only functions of `rapid_des.network.fluid` change it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.compiling import compilable
from rapid_des.errors import TopologyError

SCALE = 16
"""The work units in a byte, and the rate units in a byte a second."""
MOST_BANDWIDTH = 10**14
"""The largest bandwidth, in bytes a second, that the arithmetic holds with 5,000 flows on one link; at a
thousandth of it, 5 million.
"""
NEVER = 2**63 - 1
RATIO_ONE = 65_536
"""Acknowledgement ratios are integers in this unit."""

_FRACTION_ONE = 10**12
_HALF = 10**6
_MOST_SECONDS = 4 * 10**6
_MOST_TIMES = 2**46
NONE = -1
_BY_LINK = ["capacity", "demand", "background", "weight", "first"]
_LINK_SCRATCH = ["visited", "is_visited", "free", "waiting"]
_BY_FLOW = ["hops", "hops_back", "sharing", "ceiling", "ratio", "rate", "left", "fraction", "since", "finish"]
_FLOW_SCRATCH = ["changed", "trial", "touched", "position", "settled"]


@compilable
def drain_time(left: int, fraction: int, rate: int) -> int:
    """Return the least picoseconds by which `rate` has drained the work; NEVER at rate 0 or past 46 days.

    >>> drain_time(3 * SCALE, 0, 2 * SCALE)
    1500000000000
    """
    if rate == 0 or left // rate > _MOST_SECONDS:
        return NEVER
    picoseconds, rest, power = left // rate, left % rate, _FRACTION_ONE
    for _ in range(6):
        power //= 100
        rest = rest * 100 + fraction // power % 100
        picoseconds = picoseconds * 100 + rest // rate
        rest %= rate
    return picoseconds + (1 if rest > 0 else 0)


@compilable
def drained(left: int, fraction: int, rate: int, elapsed: int) -> tuple[int, int]:
    """Return the work that is left after `elapsed` picoseconds, none below zero.

    >>> drained(3 * SCALE, 0, 2 * SCALE, 750_000_000_000)
    (24, 0)
    """
    rate_high, rate_low = rate // _HALF, rate % _HALF
    time_high, time_low = elapsed // _HALF, elapsed % _HALF
    middle = rate_high * time_low + rate_low * time_high
    small = (middle % _HALF) * _HALF + rate_low * time_low
    units = rate_high * time_high + middle // _HALF + small // _FRACTION_ONE
    fraction -= small % _FRACTION_ONE
    if fraction < 0:
        fraction += _FRACTION_ONE
        units += 1
    if units > left:
        return 0, 0
    return left - units, fraction


@compilable
def portion(rate: int, ratio: int) -> int:
    """Return `ratio` / 65,536 of a rate, rounded down: the load of a flow's acknowledgements."""
    return (rate // 256) * ratio // 256


@compilable
def divided(rate: int, ratio: int) -> int:
    """Return the rate of which `ratio` / 65,536 is this one, rounded down, at most 2**62 or so.

    >>> divided(300, 3 * RATIO_ONE // 2)
    200
    """
    return min(rate // ratio, _MOST_TIMES) * RATIO_ONE + rate % ratio * RATIO_ONE // ratio


class Fluid(NamedTuple):
    """The state: columns by link, by flow slot, by hop (`slot * stride + position`), and scratch."""

    capacity: Int64s
    """[link] in rate units of 1/16 byte a second, as all rates here."""
    demand: Int64s
    """[link] the load if every flow, with its acknowledgements, had its ceiling."""
    background: Int64s
    """[link] the present load of the acknowledgements that go first."""
    weight: Int64s
    """[link] the load for each unit of its flows' rates, in 1/65,536: a flow weighs 1."""
    first: Int64s
    """[link] its first hop in the list of hops, or NONE."""
    link: Int64s
    """[hop] the link: a flow's route from position 0, then the route of its acknowledgements."""
    next: Int64s
    """[hop] the next hop on the same link, or NONE."""
    previous: Int64s
    hops: Int64s
    """[flow] length of the route; 0 if the slot is free."""
    hops_back: Int64s
    sharing: Int64s
    """[flow] hops, from position 0, that share links: its route, with the route back if answers are heavy."""
    ceiling: Int64s
    """[flow] the rate that it has without any other flow."""
    ratio: Int64s
    """[flow] acknowledgement load as a share of its own, in 1/65,536."""
    rate: Int64s
    left: Int64s
    """[flow] the work left at `since`, in 1/16 byte; `fraction` holds the rest in 1e-12 of that."""
    fraction: Int64s
    since: Int64s
    finish: Int64s
    """[flow] the tick by which its last byte is out at the present rate; NEVER at rate 0."""
    changed: Int64s
    """[flow] the flows whose rate changed; this and all columns below are scratch space."""
    trial: Int64s
    touched: Int64s
    position: Int64s
    settled: Int64s
    visited: Int64s
    is_visited: Int64s
    free: Int64s
    waiting: Int64s
    heap_key: Int64s
    heap_id: Int64s
    counts: Int64s
    """[0] touched flows, [1] of them expanded, [2] visited links."""


def new_fluid(capacities: Int64s, *, flows: int, hops: int) -> Fluid:
    """Return an empty state for links of these bytes a second and `flows` slots.

    `hops` is the most links of a flow's two routes together.
    """
    links = len(capacities)
    if capacities.max(initial=0) > MOST_BANDWIDTH:
        link = int(capacities.argmax())
        problem = f"{capacities[link]} bytes/s; the fluid mode allows up to {MOST_BANDWIDTH}"
        raise TopologyError(f"link {link}: bandwidth: {problem}")

    def column(length: int, value: int = 0) -> Int64s:
        return np.full(length, value, dtype=np.int64)

    by_flow = {name: column(flows) for name in _BY_FLOW + _FLOW_SCRATCH}
    by_link = {name: column(links) for name in _BY_LINK + _LINK_SCRATCH}
    by_hop = {name: column(flows * hops, NONE) for name in ("link", "next", "previous")}
    heap = {name: column(links + flows) for name in ("heap_key", "heap_id")}
    by_flow["finish"][:] = NEVER
    by_flow["position"][:] = NONE
    by_link["first"][:] = NONE
    by_link["capacity"][:] = capacities * SCALE
    return Fluid(**by_link, **by_hop, **by_flow, **heap, counts=column(3))


def widened(fluid: Fluid, flows: int) -> Fluid:
    """Return the state with room for `flows` slots, those that there are unchanged."""
    hops = len(fluid.link) // len(fluid.hops)
    grown = new_fluid(fluid.capacity // SCALE, flows=flows, hops=hops)
    for old, new in zip(fluid, grown, strict=True):
        new[: len(old)] = old
    return grown


def lengthened(fluid: Fluid, hops: int) -> Fluid:
    """Return the state with room for flows of this many links; the same state if it has that room."""
    had, flows = len(fluid.link) // len(fluid.hops), len(fluid.hops)
    if hops <= had:
        return fluid

    def moved(column: Int64s) -> Int64s:
        """Return hops where they now stand."""
        return np.where(column == NONE, NONE, column // had * hops + column % had)

    columns = {}
    for name, values in (
        ("link", fluid.link),
        ("next", moved(fluid.next)),
        ("previous", moved(fluid.previous)),
    ):
        table = np.full((flows, hops), NONE, np.int64)
        table[:, :had] = values.reshape(flows, had)
        columns[name] = table.reshape(-1)
    return fluid._replace(first=moved(fluid.first), **columns)


def never_end(fluid: Fluid) -> bool:
    """Return whether a draining flow ends later than the largest representable time."""
    return bool(((fluid.rate > 0) & (fluid.finish == NEVER)).any())


def bytes_out(wire: int, left: int, fraction: int) -> int:
    """Return the whole bytes that a flow of `wire` bytes has drained, given its work left.

    >>> bytes_out(10, 3 * SCALE, 0), bytes_out(10, 3 * SCALE, 1)
    (7, 6)
    """
    return int((wire * SCALE - left - (fraction > 0)) // SCALE)


def set_route(fluid: Fluid, flow: int, route: tuple[int, ...], back: tuple[int, ...]) -> None:
    """Write the links of a free slot's two routes; engines may write the columns themselves."""
    start = flow * stride(fluid)
    fluid.link[start : start + len(route)] = route
    fluid.link[start + len(route) : start + len(route) + len(back)] = back
    fluid.hops[flow] = len(route)
    fluid.hops_back[flow] = len(back)


@compilable
def stride(fluid: Fluid) -> int:
    """Return the distance between the first hops of two slots."""
    return len(fluid.link) // len(fluid.hops)


@compilable
def fill(fluid: Fluid) -> None:
    """Write each touched flow's fair rate to `settled`, given the acknowledgement load of the moment.

    A flow weighs `RATIO_ONE` on a link of its route; on the route back it weighs its ratio, if its
    acknowledgements share links. A link's share is the rate r at which its flows fill it: weight x r = what
    is left. The waiting shares stand in one heap of (share, id) with links before flows, whose share is their
    ceiling. A link's share never falls while others settle, so an old entry is put back when it surfaces.
    """
    size = _load(fluid)
    links = len(fluid.capacity)
    while size > 0:
        share, name = fluid.heap_key[0], fluid.heap_id[0]
        size = _pop(fluid.heap_key, fluid.heap_id, size)
        if name >= links:
            if fluid.settled[name - links] == NONE:
                _settle_flow(fluid, name - links, share)
        elif fluid.waiting[name] > 0:
            now = _share(fluid, name)
            if now > share:
                size = _push(fluid.heap_key, fluid.heap_id, size, now, name)
            else:
                _settle_link(fluid, name, now)


@compilable
def _load(fluid: Fluid) -> int:
    """Reset the links and flows to be filled and push their first shares; return the heap's size."""
    size = 0
    for i in range(fluid.counts[2]):
        link = fluid.visited[i]
        # Light acknowledgements of very many flows may come to more than a link carries: half is kept free.
        fluid.free[link] = max(fluid.capacity[link] // 2, fluid.capacity[link] - fluid.background[link])
        fluid.waiting[link] = fluid.weight[link]
        if fluid.waiting[link] > 0 and fluid.demand[link] > fluid.capacity[link]:
            size = _push(fluid.heap_key, fluid.heap_id, size, _share(fluid, link), link)
    for i in range(fluid.counts[0]):
        flow = fluid.touched[i]
        fluid.settled[flow] = NONE
        name = len(fluid.capacity) + flow
        size = _push(fluid.heap_key, fluid.heap_id, size, fluid.ceiling[flow], name)
    return size


@compilable
def _share(fluid: Fluid, link: int) -> int:
    """Return the rate that each waiting flow would get; at least one unit unless the link is dead."""
    least = 1 if fluid.capacity[link] > 0 else 0
    free, weight = fluid.free[link], fluid.waiting[link]
    if weight % RATIO_ONE == 0:
        return int(max(least, free // (weight // RATIO_ONE)))
    return int(max(least, divided(free, weight)))


@compilable
def _settle_link(fluid: Fluid, link: int, share: int) -> None:
    hop = fluid.first[link]
    while hop != NONE:
        flow = hop // stride(fluid)
        if fluid.settled[flow] == NONE:
            _settle_flow(fluid, flow, share)
        hop = fluid.next[hop]


@compilable
def _settle_flow(fluid: Fluid, flow: int, rate: int) -> None:
    fluid.settled[flow] = rate
    start = flow * stride(fluid)
    for hop in range(start, start + fluid.hops[flow]):
        link = fluid.link[hop]
        fluid.free[link] = max(0, fluid.free[link] - rate)
        fluid.waiting[link] -= RATIO_ONE
    if fluid.sharing[flow] == fluid.hops[flow]:
        return
    answer = portion(rate, fluid.ratio[flow])
    for hop in range(start + fluid.hops[flow], start + fluid.sharing[flow]):
        link = fluid.link[hop]
        fluid.free[link] = max(0, fluid.free[link] - answer)
        fluid.waiting[link] -= fluid.ratio[flow]


@compilable
def _push(keys: Int64s, ids: Int64s, size: int, key: int, name: int) -> int:
    """Put (key, name) into the binary heap; return its new size."""
    hole = size
    while hole > 0:
        parent = (hole - 1) // 2
        if (keys[parent], ids[parent]) <= (key, name):
            break
        keys[hole], ids[hole] = keys[parent], ids[parent]
        hole = parent
    keys[hole], ids[hole] = key, name
    return size + 1


@compilable
def _pop(keys: Int64s, ids: Int64s, size: int) -> int:
    """Take the smallest (key, name) off the binary heap; return its new size."""
    size -= 1
    key, name = keys[size], ids[size]
    hole, child = 0, 1
    while child < size:
        if child + 1 < size and (keys[child + 1], ids[child + 1]) < (keys[child], ids[child]):
            child += 1
        if (key, name) <= (keys[child], ids[child]):
            break
        keys[hole], ids[hole] = keys[child], ids[child]
        hole, child = child, 2 * child + 1
    keys[hole], ids[hole] = key, name
    return size
