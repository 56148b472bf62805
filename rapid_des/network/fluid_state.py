"""The state of the fluid mode: flat columns, changed in place by `rapid_des.network.fluid`."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rapid_des.compiling import compilable
from rapid_des.errors import TopologyError
from rapid_des.network.fluid_work import MOST_BANDWIDTH, NEVER, SCALE

NONE = -1

Int64s: TypeAlias = NDArray[np.int64]

_BY_LINK = ["capacity", "demand", "background", "population", "first"]
_LINK_SCRATCH = ["visited", "is_visited", "free", "waiting"]
_BY_FLOW = ["hops", "hops_back", "ceiling", "ratio", "rate", "left", "fraction", "since", "finish"]
_FLOW_SCRATCH = ["changed", "trial", "touched", "position", "settled"]


class Fluid(NamedTuple):
    """The state: columns by link, by flow slot, by hop (`slot * stride + position`), and scratch."""

    capacity: Int64s
    """[link] in rate units of 1/16 byte a second, as all rates here."""
    demand: Int64s
    """[link] what its flows and acknowledgements would load if each had its ceiling."""
    background: Int64s
    """[link] acknowledgement load now."""
    population: Int64s
    """[link] flows on it."""
    first: Int64s
    """[link] its first hop in the list of hops, or NONE."""
    link: Int64s
    """[hop] the link: a flow's route from position 0, then its way back."""
    next: Int64s
    """[hop] the next hop on the same link, or NONE."""
    previous: Int64s
    hops: Int64s
    """[flow] length of the route; 0 if the slot is free."""
    hops_back: Int64s
    ceiling: Int64s
    """[flow] the capacity of its slowest link."""
    ratio: Int64s
    """[flow] acknowledgement load as a share of its own, in 1/65,536."""
    rate: Int64s
    left: Int64s
    """[flow] work left at `since`, in 1/16 byte, and `fraction` in 1e-12 of that."""
    fraction: Int64s
    since: Int64s
    finish: Int64s
    """[flow] the tick by which its last byte is out at the present rate; NEVER if it stands still."""
    changed: Int64s
    """Scratch from here on."""
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

    `hops` is the most links on a flow's route and way back together.
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
    """Return the state with room for `flows` slots; those there are keep theirs."""
    had = len(fluid.hops)
    hops = len(fluid.link) // had
    grown = new_fluid(fluid.capacity // SCALE, flows=flows, hops=hops)
    for old, new in zip(fluid, grown, strict=True):
        new[: len(old)] = old
    return grown


def set_route(fluid: Fluid, flow: int, route: tuple[int, ...], back: tuple[int, ...]) -> None:
    """Write the links of a free slot's route and way back; engines may write the columns themselves."""
    start = flow * stride(fluid)
    fluid.link[start : start + len(route)] = route
    fluid.link[start + len(route) : start + len(route) + len(back)] = back
    fluid.hops[flow] = len(route)
    fluid.hops_back[flow] = len(back)


@compilable
def stride(fluid: Fluid) -> int:
    """Return the distance between the first hops of two slots."""
    return len(fluid.link) // len(fluid.hops)
