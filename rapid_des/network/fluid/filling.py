"""Progressive filling: max-min fair rates of the touched flows over the visited links.

A flow weighs `RATIO_ONE` on a link of its route; on the route back it weighs its ratio, if its
acknowledgements share links. A link's share is the rate r at which its flows fill it: weight x r = what is
left.
"""

from __future__ import annotations

from rapid_des.arrays import Int64s
from rapid_des.compiling import compilable
from rapid_des.network.fluid.state import NONE, RATIO_ONE, Fluid, divided, portion, stride


@compilable
def fill(fluid: Fluid) -> None:
    """Write each touched flow's fair rate to `settled`, given the acknowledgement load of the moment.

    The waiting shares stand in one heap of (share, id) with links before flows, whose share is their ceiling.
    A link's share never falls while others settle, so an outdated entry is put back when it surfaces.
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
