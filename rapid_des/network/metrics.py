"""The figures of a fabric: nodes, links, degrees, diameter and bisection.

Bisection bandwidth is what fits through the narrowest cut that halves the GPUs, in one direction:
all halvings of a small fabric are tried, in larger ones swaps look for a narrow one.

Routes are checked here: whether GPUs are cut off, and which links may wait for each other.
Dally and Seitz, IEEE Trans. Computers C-36 (1987): routes without virtual channels are free of deadlock if
and only if their channel dependency graph has no cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from math import comb

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Bools, Floats, Int64s, distinct
from rapid_des.errors import FabricCutError, TopologyError
from rapid_des.network.dimensions import AnyDimension, FullyConnected, Hypercube, Mesh, Ring, Switch, Torus
from rapid_des.network.fabric import Fabric, Router
from rapid_des.network.routing import UNREACHED, hops_from

_MOST_HOPS_LOOKED_AT = 2**26
"""The most links that the searches for the diameter visit, all together."""
_MOST_FLOW_LINKS = 20_000
"""The number of links between switches up to which a cut through them is solved as a maximum flow."""
_NEAR, _FAR, _BETWEEN = 0, 1, 2


class Diameter(Struct, frozen=True):
    """The most hops on a shortest path between two GPUs; a lower bound where not `exact`."""

    hops: int
    exact: bool
    connected: bool


class Bisection(Struct, frozen=True):
    """Bytes a second, in the direction that carries less; an upper bound where not `exact`."""

    bandwidth: int
    exact: bool


class Summary(Struct, frozen=True):
    """A fabric's figures; degrees count a GPU's living outgoing links, least and most."""

    gpus: int
    nics: int
    switches: int
    links: int
    dead_links: int
    degree: tuple[int, int]
    diameter: Diameter
    bisection: Bisection


def summary(
    fabric: Fabric,
    dimensions: Sequence[AnyDimension],
    dead: frozenset[int] = frozenset(),
    lost: frozenset[int] = frozenset(),
) -> Summary:
    """Return the figures of a fabric whose `dead` links carry nothing and whose `lost` GPUs are holes."""
    alive = fabric.alive(dead)
    far = diameter(fabric, dead, lost)
    degrees = np.bincount(fabric.source[alive], minlength=fabric.nodes)[surviving(fabric, lost)]
    return Summary(
        gpus=fabric.gpus,
        nics=fabric.nics,
        switches=fabric.nodes - fabric.gpus - fabric.nics,
        links=len(fabric),
        dead_links=len(dead),
        degree=(int(degrees.min()), int(degrees.max())),
        diameter=far,
        bisection=bisection(fabric, dimensions, dead, lost),
    )


def surviving(fabric: Fabric, lost: frozenset[int]) -> Int64s:
    """Return the GPUs that are not lost, ascending."""
    lives = np.ones(fabric.gpus, bool)
    lives[np.array(sorted(lost), np.int64)] = False
    return np.flatnonzero(lives)


def diameter(
    fabric: Fabric, dead: frozenset[int] = frozenset(), lost: frozenset[int] = frozenset()
) -> Diameter:
    """Return the diameter; on large fabrics from as many evenly spaced GPUs as a few seconds allow."""
    gpus = surviving(fabric, lost)
    if not len(gpus):
        raise TopologyError(f"{fabric.name}: every GPU is down")
    alive = fabric.alive(dead)
    sources = spaced(gpus, max(1, _MOST_HOPS_LOOKED_AT // max(len(fabric), 1) // 8)).tolist()
    hops = [hops_from(fabric, source, alive)[gpus] for source in sources]
    connected = not any((row == UNREACHED).any() for row in hops)
    return Diameter(max(int(row.max()) for row in hops), len(sources) == len(gpus), connected)


def spaced(gpus: Int64s, most: int) -> Int64s:
    """Return the GPUs, or `most` evenly spaced ones of them."""
    positions = np.linspace(0, len(gpus) - 1, min(len(gpus), most)).astype(np.int64)
    chosen: Int64s = gpus[distinct(positions)]
    return chosen


def bisection(
    fabric: Fabric,
    dimensions: Sequence[AnyDimension],
    dead: frozenset[int] = frozenset(),
    lost: frozenset[int] = frozenset(),
) -> Bisection:
    """Return the narrowest of the cuts across the middle of each axis, and whether none can be narrower.

    It is exact for one switch, and where the shapes are regular and uniform all-to-all traffic, spread
    evenly, proves the cut: (GPUs/2)² flows cross any halving, so none carries less than the busiest link
    lets through. Else all halvings are tried where these are few (then it is exact too), or swaps of GPUs.
    """
    alive = fabric.alive(dead)
    gpus = surviving(fabric, lost)
    sides = [np.split(gpus, [len(gpus) // 2]), *_axis_halves(fabric, gpus)]
    narrowest = min(
        _directed_cut(fabric, alive, *ends) for low, high in sides for ends in ((low, high), (high, low))
    )
    plain = not dead and _uniform(fabric)
    single = len(dimensions) == 1 and isinstance(dimensions[0], Switch) and dimensions[0].nic is None
    proven = _lower_bound(fabric, dimensions) if plain else 0
    exact = fabric.gpus > 1 and plain and (single or narrowest == proven)
    if exact or len(gpus) < 2:
        return Bisection(narrowest, exact)
    least = _narrowest(fabric, alive, gpus)
    if least is not None:
        return Bisection(least, exact=True)
    cut = _by_swaps(fabric, alive, gpus)
    others = [] if cut is None else [_directed_cut(fabric, alive, *ends) for ends in (cut, cut[::-1])]
    return Bisection(min([narrowest, *others]), exact=False)


def _axis_halves(fabric: Fabric, gpus: Int64s) -> Iterator[tuple[Int64s, Int64s]]:
    """Yield the low and high half of each axis that halves the GPUs."""
    stride = 1
    for size in fabric.axes:
        low = gpus // stride % size < size // 2
        if 2 * np.count_nonzero(low) == len(gpus):
            yield gpus[low], gpus[~low]
        stride *= size


def _directed_cut(fabric: Fabric, alive: Bools, near: Int64s, far: Int64s) -> int:
    """Return the capacity from GPUs `near` to GPUs `far`, all other nodes standing where it is least."""
    source, destination, bandwidth = fabric.source[alive], fabric.destination[alive], fabric.bandwidth[alive]
    side = np.full(fabric.nodes, _BETWEEN)
    side[near], side[far] = _NEAR, _FAR
    direct = (side[source] == _NEAR) & (side[destination] == _FAR)
    inner = (side[source] == _BETWEEN) & (side[destination] == _BETWEEN)
    enters = (side[source] == _NEAR) & (side[destination] == _BETWEEN)
    leaves = (side[source] == _BETWEEN) & (side[destination] == _FAR)
    # As floats: exact up to 9 PB/s at a node, and no sum wraps.
    into = np.bincount(destination[enters], bandwidth[enters], fabric.nodes).astype(np.float64)
    out = np.bincount(source[leaves], bandwidth[leaves], fabric.nodes).astype(np.float64)
    linked = np.zeros(fabric.nodes, bool)
    linked[source[inner]] = linked[destination[inner]] = True
    # A node between the halves that has no link to another such node stands where the smaller of its two
    # sums is cut. The others, which depend on each other, need a maximum flow.
    stars = np.minimum(into, out)[~linked].sum()
    total = int(bandwidth[direct].sum(dtype=np.float64)) + int(stars)
    if np.count_nonzero(inner) > _MOST_FLOW_LINKS:
        return total + int(min(into[linked].sum(), out[linked].sum()))
    between = np.stack([source[inner], destination[inner], bandwidth[inner]], axis=1)
    return total + _flow(between, into, out, np.flatnonzero(linked))


def _flow(between: Int64s, into: Floats, out: Floats, linked: Int64s) -> int:
    import networkx  # slow to import, and most fabrics have no links between switches

    graph: networkx.DiGraph[object] = networkx.DiGraph()
    graph.add_nodes_from(["near", "far"])
    for node in linked.tolist():
        graph.add_edge("near", node, capacity=int(into[node]))
        graph.add_edge(node, "far", capacity=int(out[node]))
    for source, destination, bandwidth in between.tolist():
        graph.add_edge(source, destination, capacity=bandwidth)
    return int(networkx.maximum_flow_value(graph, "near", "far"))


def _uniform(fabric: Fabric) -> bool:
    """Whether all links of a dimension have one rate."""
    dimensions = range(len(fabric.dimensions))
    return all(len(distinct(fabric.bandwidth[fabric.dimension == index])) <= 1 for index in dimensions)


def _lower_bound(fabric: Fabric, dimensions: Sequence[AnyDimension]) -> int:
    """Return the least over axes of (GPUs / size) · bisection of the axis alone; 0 where a shape has none."""
    bounds = []
    for index, dimension in enumerate(dimensions):
        rates = fabric.bandwidth[fabric.dimension == index]
        for size in fabric.extents[index]:
            if size > 1:
                bounds.append(fabric.gpus // size * _axis_width(dimension, size) * int(rates[0]))
    return min(bounds, default=0)


def _axis_width(dimension: AnyDimension, size: int) -> int:
    """Return the number of links of one axis that any halving cuts in one direction; 0 if not known."""
    if isinstance(dimension, Ring | Torus):
        return 1 if size == 2 else 2
    if isinstance(dimension, Mesh):
        return 1
    if isinstance(dimension, FullyConnected):
        return (size // 2) * (size - size // 2)
    power_of_two = size & (size - 1) == 0
    return size // 2 if isinstance(dimension, Hypercube) and power_of_two else 0


_MOST_TRIED = 2**18
"""The most combinations of halvings and placements of interconnected switches that are all tried."""
_MOST_NODES = 1024
"""The number of nodes up to which swaps are tried, in a table of all pairs."""
_STARTS = 8
_LOOKED_AT = 16
"""The GPUs of each side that are candidates for a swap: those that would gain most."""


def _narrowest(fabric: Fabric, alive: Bools, gpus: Int64s) -> int | None:
    """Return the bytes a second through the narrowest halving, in its narrower direction; None for too many.

    Of an odd number one half has one more. Every other node stands where least crosses.
    """
    rates = _rates(fabric, alive) if fabric.nodes <= _MOST_NODES else None
    if rates is None:
        return None
    others = np.setdiff1d(np.arange(fabric.nodes), gpus)
    joined = others[(rates[np.ix_(others, others)] > 0).any(0) | (rates[np.ix_(others, others)] > 0).any(1)]
    half, count = len(gpus) // 2, len(gpus)
    if half == 0 or len(joined) > 18 or comb(count, half) << len(joined) > _MOST_TRIED:
        return None
    near = np.array([np.isin(np.arange(count), chosen) for chosen in combinations(range(count), half)])
    stars = np.setdiff1d(others, joined)
    return int(min(_least(rates, gpus, stars, joined, side) for side in (near, ~near)))


def _rates(fabric: Fabric, alive: Bools) -> Floats:
    rates = np.zeros((fabric.nodes, fabric.nodes))
    np.add.at(rates, (fabric.source[alive], fabric.destination[alive]), fabric.bandwidth[alive])
    return rates


def _least(rates: Floats, gpus: Int64s, stars: Int64s, joined: Int64s, near: Bools) -> float:
    """Return the least that crosses from any row of `near` to the other GPUs."""
    side, other = near.astype(np.float64), (~near).astype(np.float64)
    # a row is one halving: a product of 0 and 1 with the rates adds up what crosses it
    direct = (side @ rates[np.ix_(gpus, gpus)] * other).sum(1)
    through = np.minimum(side @ rates[np.ix_(gpus, stars)], other @ rates[np.ix_(stars, gpus)].T).sum(1)
    into, out = side @ rates[np.ix_(gpus, joined)], other @ rates[np.ix_(joined, gpus)].T
    inner, least = rates[np.ix_(joined, joined)], np.full(len(near), np.inf)
    for placed in range(1 << len(joined)):
        here = placed >> np.arange(len(joined)) & 1 == 1  # the switches on the near side
        between = into[:, ~here].sum(1) + out[:, here].sum(1) + inner[np.ix_(here, ~here)].sum()
        least = np.minimum(least, between)
    return float((direct + through + least).min())


def _by_swaps(fabric: Fabric, alive: Bools, gpus: Int64s) -> tuple[Int64s, Int64s] | None:
    """Return a halving that no swap of two GPUs makes narrower, the narrowest of some; None if too large.

    Each begins with the GPUs nearest to one of them (Kernighan and Lin, Bell System Technical Journal 49(2),
    1970, but without their sequences of swaps).
    """
    if fabric.nodes > _MOST_NODES or len(gpus) < 2:
        return None
    rates = _rates(fabric, alive)
    both = rates + rates.T
    seeds = gpus[np.unique(np.linspace(0, len(gpus) - 1, _STARTS).astype(np.int64))]
    sides = [_swapped(both, gpus, _around(fabric, alive, gpus, int(seed))) for seed in seeds]
    side = min(sides, key=lambda signs: float(-(signs @ both @ signs)))
    return gpus[side[gpus] > 0], gpus[side[gpus] < 0]


def _around(fabric: Fabric, alive: Bools, gpus: Int64s, seed: int) -> Floats:
    """Return +1 for the half of the GPUs nearest to one and what is no farther from it, -1 for all others."""
    hops = hops_from(fabric, seed, alive).astype(np.int64)
    hops[hops == UNREACHED] = fabric.nodes
    near = gpus[np.argsort(hops[gpus], kind="stable")[: len(gpus) // 2]]
    side = np.where(hops <= hops[near].max(), 1.0, -1.0)
    side[gpus] = -1.0
    side[near] = 1.0
    return side


def _swapped(both: Floats, gpus: Int64s, side: Floats) -> Floats:
    """Swap GPUs, and move other nodes, as long as less crosses then; `side` is +1 or -1."""
    others = np.setdiff1d(np.arange(len(side)), gpus)
    pull = both @ side
    for _ in range(4 * len(side)):
        gain = -side * pull  # of moving each node: what crosses to it less what does not
        if len(others) and gain[others].max() > 0:
            moved = [int(others[np.argmax(gain[others])])]
        else:
            pairs = [_eager(gain, gpus[side[gpus] == sign]) for sign in (1.0, -1.0)]
            gains = gain[pairs[0]][:, None] + gain[pairs[1]] - 2 * both[np.ix_(*pairs)]
            best = np.unravel_index(int(np.argmax(gains)), gains.shape)
            if gains[best] <= 0:
                break
            moved = [int(pairs[0][best[0]]), int(pairs[1][best[1]])]
        for node in moved:
            pull -= 2 * side[node] * both[node]
            side[node] = -side[node]
    return side


def _eager(gain: Floats, gpus: Int64s) -> Int64s:
    return gpus[np.argsort(-gain[gpus], kind="stable")[:_LOOKED_AT]]


_ALL_PAIRS_UP_TO = 512
"""The number of GPUs up to which a check follows the routes of all pairs."""
_SAMPLED = 192
"""The approximate number of GPUs sampled from a larger fabric; fewer where their routes could exceed
`_MOST_HOPS` links.
"""
_MOST_HOPS = 2**23


class RouteCheck(Struct, frozen=True):
    """The result of a check of routes between GPUs, all of which reach each other."""

    routes: int
    """The number of routes that were followed."""
    all_routes: bool
    """Whether the routes of all pairs were followed."""
    dependency_cycle: tuple[int, ...]
    """Links that may wait for each other in a cycle; empty if there is no such cycle."""


def check_routes(fabric: Fabric, router: Router, dead: frozenset[int], lost: frozenset[int]) -> RouteCheck:
    """Return the result of a check; `FabricCutError` if some surviving GPUs cannot reach each other.

    Deadlock freedom is that of the links as they are: a circle needs virtual channels or bubbles to be safe,
    as every torus does; our own replay does not block on buffers.
    """
    gpus = surviving(fabric, lost)
    if not diameter(fabric, dead, lost).connected:
        _raise_cut(fabric, router, gpus.tolist())
    sample = _sample(fabric, gpus)
    pairs = _all_pairs(sample)
    cycle = channel_dependency_cycle(fabric, router, pairs)
    return RouteCheck(len(pairs), len(sample) == len(gpus), cycle)


def channel_dependency_cycle(
    fabric: Fabric, router: Router, pairs: Iterable[tuple[int, int]] | None = None
) -> tuple[int, ...]:
    """Return links that wait for each other in a circle; () if the routes of `pairs` have none.

    Pairs are all of GPUs where None are given.
    """
    routes = router.routes(_all_pairs(np.arange(fabric.gpus)) if pairs is None else pairs)
    last = np.zeros(len(routes.links), bool)
    last[routes.starts[1:][np.diff(routes.starts) > 0] - 1] = True
    holds = np.flatnonzero(~last)
    edges = distinct(routes.links[holds] * len(fabric) + routes.links[holds + 1])
    return _cycle(edges // len(fabric), edges % len(fabric), len(fabric))


def _all_pairs(gpus: Int64s) -> Int64s:
    """Return all ordered pairs of different GPUs, one a row."""
    table = np.stack(np.meshgrid(gpus, gpus, indexing="ij"), axis=-1).reshape(-1, 2)
    pairs: Int64s = table[table[:, 0] != table[:, 1]]
    return pairs


def _cycle(holder: Int64s, awaited: Int64s, links: int) -> tuple[int, ...]:
    """Drop links that wait for nothing until only circles and their approaches remain, then follow one."""
    left = np.ones(len(holder), bool)
    while True:
        waiting = np.zeros(links, bool)
        waiting[holder[left]] = True
        drops = left & ~waiting[awaited]
        if not drops.any():
            break
        left &= ~drops
    following = dict(zip(holder[left][::-1].tolist(), awaited[left][::-1].tolist(), strict=True))
    if not following:
        return ()
    seen: list[int] = [min(following)]
    while following[seen[-1]] not in seen:
        seen.append(following[seen[-1]])
    return tuple(seen[seen.index(following[seen[-1]]) :])


def _sample(fabric: Fabric, gpus: Int64s) -> Int64s:
    """Return the GPUs, or of very many those on the axes through GPU 0, where rings close, and others."""
    if len(gpus) <= _ALL_PAIRS_UP_TO:
        return gpus
    strides = np.cumprod([1, *fabric.axes])
    few = min(_SAMPLED, int((_MOST_HOPS / sum(fabric.axes)) ** 0.5))
    lines = [
        np.arange(min(size, few // len(fabric.axes) + 1)) * stride
        for size, stride in zip(fabric.axes, strides, strict=False)
    ]
    wanted = distinct(np.concatenate([*lines, spaced(gpus, few // 2)]))
    at = np.searchsorted(gpus, wanted).clip(max=len(gpus) - 1)
    chosen: Int64s = wanted[gpus[at] == wanted]
    return chosen


def _raise_cut(fabric: Fabric, router: Router, gpus: list[int]) -> None:
    """Route to and from every GPU: the first that is cut off is the error."""
    for gpu in gpus:
        router.route(gpus[0], gpu)
        router.route(gpu, gpus[0])
    raise FabricCutError(f"{fabric.name}: some GPUs cannot reach each other")
