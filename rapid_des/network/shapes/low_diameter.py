"""Networks of few hops between routers: HyperX, a lattice whose lines are all linked, and Slim Fly.

Slim Fly is the McKay-Miller-Siran graph of diameter two, by arithmetic in a finite field. Both, and
Dragonfly+, are routers with endpoints at them, and may go over a third router.

Dragonfly+ has groups of leaves under spines, whose spines are cabled to those of other groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Bools, Int64s, hashed
from rapid_des.errors import TopologyError
from rapid_des.network.dimensions import DragonflyPlus, HyperX, LowDiameter, Rate, SlimFly
from rapid_des.network.fabric import Block, Wires, block, both_directions, check_bandwidth, check_links, wires
from rapid_des.network.routing import pick
from rapid_des.network.specs import NonMinimal, Routing

Paths: TypeAlias = Callable[[Int64s, Int64s], Int64s]
"""Maps (source, destination) endpoints to a row of routers for each flow; a row ends with the destination's
router and may repeat routers.
"""
Minimal: TypeAlias = Callable[[Int64s, Int64s, tuple[Int64s, Int64s]], Int64s]
"""Maps (start, goal) routers and the flow's ends to rows as in `Paths`."""

_WHETHER, _WHERE = 11, 12
"""The salts that are hashed with a flow's source and destination."""
_PARTS = 2**32
"""The resolution of a share: it is a multiple of 1 / this."""


def with_hosts(dimension: LowDiameter, routers: int, laid: list[Wires], paths: Paths) -> Block:
    """Return the block of routers that are linked as `laid` (counted from 0), with `hosts` endpoints each."""
    size, hosts = dimension.size, dimension.hosts
    check_links(2 * size + sum(len(part.source) for part in laid), dimension.name)
    endpoint = np.arange(size)
    links = both_directions(endpoint, size + endpoint // hosts, dimension, dimension.reverse)
    links += [
        Wires(part.source + size, part.destination + size, part.bandwidth, part.latency) for part in laid
    ]
    return block(size, size + routers, links, RouterToRouter(paths, hosts, size))


def require_room(dimension: LowDiameter, routers: int) -> None:
    """Refuse more endpoints than the routers take."""
    room = routers * dimension.hosts
    if dimension.size > room:
        allowed = f"up to {room}, {dimension.hosts} at each of {routers} routers"
        raise TopologyError(
            f"dimension {dimension.name}: size: {dimension.size} endpoints; allowed: {allowed}"
        )


def require_routers(dimension: LowDiameter, detour: NonMinimal | None) -> None:
    """Refuse routes through groups where there are none."""
    if detour is not None and detour.through == "group":
        problem = f"dimension {dimension.name} has no groups; allowed: router"
        raise TopologyError(f"routing.non_minimal.through: group: {problem}")


class RouterToRouter(Struct, frozen=True):
    """The router after the present one in a flow's row; if it occurs twice, after its last occurrence."""

    paths: Paths
    hosts: int
    """The number of endpoints at a router."""
    first: int
    """The local node of the first router."""

    def __call__(self, source: Int64s, destination: Int64s, current: Int64s) -> Int64s:
        """Return the next local node of each flow."""
        start, goal = self.first + source // self.hosts, self.first + destination // self.hosts
        following = np.where(current == goal, destination, start)
        between = np.flatnonzero((current >= self.first) & (current != goal))
        table = self.paths(source[between], destination[between])
        there = table == (current[between] - self.first)[:, None]
        last = table.shape[1] - 1 - np.argmax(there[:, ::-1], axis=1)
        following[between] = self.first + table[np.arange(len(table)), last + 1]
        return following


class OverRouters(Struct, frozen=True):
    """Minimal paths, but over a third router for the stated share of the flows."""

    minimal: Minimal
    hosts: int
    """The number of endpoints at a router."""
    routers: int
    """The number of routers that may be the third: 0..routers-1."""
    detour: NonMinimal | None

    def __call__(self, source: Int64s, destination: Int64s) -> Int64s:
        """Return the routers that each flow comes by."""
        start, goal = source // self.hosts, destination // self.hosts
        flow = source, destination
        if self.detour is None or self.routers < 3:
            return self.minimal(start, goal, flow)
        takes = takes_detour(self.detour, flow) & (start != goal)
        over = np.where(takes, third(self.detour, flow, (start, goal), self.routers), start)
        return np.concatenate([self.minimal(start, over, flow), self.minimal(over, goal, flow)], axis=1)


def takes_detour(detour: NonMinimal, flow: tuple[Int64s, Int64s]) -> Bools:
    """Return which flows do not go the minimal route, if they can."""
    return hashed(*flow, (detour.seed, _WHETHER)) % _PARTS < round(detour.share * _PARTS)


def third(detour: NonMinimal, flow: tuple[Int64s, Int64s], ends: tuple[Int64s, Int64s], of: int) -> Int64s:
    """Return for each flow a place in 0..of-1 that is neither of its two ends. The ends differ."""
    place = hashed(*flow, (detour.seed, _WHERE)) % (of - 2)
    place += place >= np.minimum(*ends)
    return place + (place >= np.maximum(*ends))


_SALT = 4
"""The salt that is hashed with a flow's source and destination."""


def hyperx(dimension: HyperX, routing: Routing) -> Block:
    """Return a HyperX; router = s0 + S0·(s1 + S1·(…)), and dimension order is the minimal route."""
    sizes = (dimension.routers,) if isinstance(dimension.routers, int) else dimension.routers
    cables = (dimension.cables,) * len(sizes) if isinstance(dimension.cables, int) else dimension.cables
    if len(cables) != len(sizes):
        problem = f"cables: {len(cables)} numbers; allowed: one, or one for each of {len(sizes)} axes"
        raise TopologyError(f"dimension {dimension.name}: {problem}")
    routers = math.prod(sizes)
    require_room(dimension, routers)
    require_routers(dimension, routing.non_minimal)
    check_links(routers * sum(size - 1 for size in sizes), dimension.name)
    rate = dimension.router_link
    check_bandwidth(int(rate.bandwidth) * max(cables), f"dimension {dimension.name}: {max(cables)} cables")
    laid = [_line(sizes, axis, rate, count) for axis, count in enumerate(cables)]
    minimal = _HyperXRouting(sizes, routing)
    return with_hosts(
        dimension, routers, laid, OverRouters(minimal, dimension.hosts, routers, routing.non_minimal)
    )


def _line(sizes: tuple[int, ...], axis: int, rate: Rate, cables: int) -> Wires:
    """Return the links of every router to the others that differ from it along one axis."""
    stride, size = math.prod(sizes[:axis]), sizes[axis]
    router = np.repeat(np.arange(math.prod(sizes)), size - 1)
    digit = router // stride % size
    offset = np.tile(np.arange(1, size), math.prod(sizes))
    other = router + ((digit + offset) % size - digit) * stride
    single = wires(router, other, rate)
    return Wires(single.source, single.destination, single.bandwidth * cables, single.latency)


class _HyperXRouting(Struct, frozen=True):
    sizes: tuple[int, ...]
    routing: Routing

    def __call__(self, start: Int64s, goal: Int64s, flow: tuple[Int64s, Int64s]) -> Int64s:  # noqa: ARG002
        axes = range(len(self.sizes))
        path = [start]
        for axis in axes if self.routing.order == "innermost_first" else reversed(axes):
            stride, size = math.prod(self.sizes[:axis]), self.sizes[axis]
            path.append(path[-1] + (goal // stride % size - start // stride % size) * stride)
        return np.stack(path, axis=1)


def slim_fly(dimension: SlimFly, routing: Routing) -> Block:
    """Return a Slim Fly of 2 q² routers; router = y + q·(x + q·subgraph)."""
    field = finite_field(dimension.q)
    if field is None:
        allowed = "a prime power from 3 on: 3, 4, 5, 7, 8, 9, 11, 13, 16, 17, …"
        raise TopologyError(f"dimension {dimension.name}: q: {dimension.q}; allowed: {allowed}")
    routers = 2 * dimension.q**2
    require_room(dimension, routers)
    require_routers(dimension, routing.non_minimal)
    edges = _edges(field)
    near, far = np.concatenate([edges, edges[:, ::-1]]).T
    adjacent = np.zeros((routers, routers), bool)
    adjacent[near, far] = True
    near, far = (ends.astype(np.int64) for ends in np.nonzero(adjacent))
    minimal = _AtMostTwo(far.reshape(routers, -1), adjacent, routing)
    paths = OverRouters(minimal, dimension.hosts, routers, routing.non_minimal)
    return with_hosts(dimension, routers, [wires(near, far, dimension.router_link)], paths)


def _edges(field: GaloisField) -> Int64s:
    """Return the edges, some of them twice: Hafner, J. Symbolic Computation 37(2), 2004, has the geometry.

    (0, x, y) and (0, x, y') where y - y' is of the first set, (1, m, c) and (1, m, c') where c - c' is of the
    second, and (0, x, y) and (1, m, c) where y = m x + c.
    """
    q = field.size
    index = np.arange(q)
    edges = []
    for subgraph, generators in enumerate(_generators(field)):
        x, y, generator = (axis.ravel() for axis in np.meshgrid(index, index, generators, indexing="ij"))
        line = q * (x + q * subgraph)
        edges.append(np.stack([line + y, line + field.sums[y, generator]], axis=1))
    x, m, c = (axis.ravel() for axis in np.meshgrid(index, index, index, indexing="ij"))
    y = field.sums[field.products[m, x], c]
    edges.append(np.stack([y + q * x, c + q * (m + q)], axis=1))
    return np.concatenate(edges)


def _generators(field: GaloisField) -> tuple[Int64s, Int64s]:
    """Return the two sets of differences: even and odd powers of a primitive element; mixed for 4w - 1."""
    q, powers = field.size, field.powers
    if q % 4 != 3:
        return powers[0 : q - 1 : 2], powers[1:q:2]
    w = (q + 1) // 4
    first = [*range(0, 2 * w - 1, 2), *range(2 * w - 1, 4 * w - 2, 2)]
    second = [*range(1, 2 * w, 2), *range(2 * w, 4 * w - 1, 2)]
    return powers[first], powers[second]


class _AtMostTwo(Struct, frozen=True, eq=False):
    """The link to the goal, or a route over one of the neighbours that both have."""

    neighbours: Int64s
    """[router] its neighbours, ascending."""
    adjacent: Bools
    routing: Routing

    def __call__(self, start: Int64s, goal: Int64s, flow: tuple[Int64s, Int64s]) -> Int64s:
        shared = self.adjacent[self.neighbours[start], goal[:, None]]
        nth = pick(self.routing, *flow, _SALT, np.maximum(shared.sum(axis=1), 1))
        place = np.argmax(np.cumsum(shared, axis=1, dtype=np.int32) > nth[:, None], axis=1)
        over = self.neighbours[start, place]
        direct = (start == goal) | self.adjacent[start, goal]
        return np.stack([start, np.where(direct, goal, over), goal], axis=1)


class GaloisField(Struct, frozen=True, eq=False):
    """The field of `size` elements 0..size-1."""

    size: int
    sums: Int64s
    """[a, b] their sum."""
    products: Int64s
    """[a, b] their product."""
    powers: Int64s
    """[e] the e-th power of a primitive element, e from 0 to size - 1: all elements but 0, then 1 again."""


def finite_field(size: int) -> GaloisField | None:
    """Return the field of `size` elements, or None where there is none: `size` is no prime power.

    >>> finite_field(4).products.tolist()
    [[0, 0, 0, 0], [0, 1, 2, 3], [0, 2, 3, 1], [0, 3, 1, 2]]
    """
    prime = next(divisor for divisor in range(2, size + 1) if size % divisor == 0)
    degree = round(np.log(size) / np.log(prime))
    if prime**degree != size:
        return None
    # An element is a polynomial over the integers modulo `prime`; its number has the coefficients as digits.
    places = prime ** np.arange(degree)
    digits = np.arange(size)[:, None] // places % prime
    sums = (digits[:, None] + digits) % prime @ places
    # An x whose powers are all elements but 0 makes the field; a product is then a sum of logarithms.
    tails = (_powers(tail, prime, degree) for tail in range(1, size))
    powers = next(cycle for cycle in tails if len(cycle) == size and cycle[-1] == 1)
    logs = np.zeros(size, np.int64)
    logs[powers[:-1]] = np.arange(size - 1)
    products = np.append(powers[:-1], powers[:-1])[logs[:, None] + logs]
    products[0] = products[:, 0] = 0
    return GaloisField(size, sums, products, powers)


def _powers(tail: int, prime: int, degree: int) -> Int64s:
    """Return powers of x up to the first that is 0 or 1, at most p**degree, where x**degree is `tail`.

    The last of that many is 1 exactly if x is primitive; every field has a `tail` for which it is.
    """
    places = prime ** np.arange(degree)
    reduced = tail // places % prime
    element, powers = np.eye(1, degree, dtype=np.int64)[0], [1]
    while len(powers) < prime**degree:
        carry = element[-1]
        shifted = np.append(0, element[:-1])
        element = (shifted + carry * reduced) % prime
        powers.append(int(element @ places))
        if powers[-1] <= 1:
            break
    return np.array(powers)


_UP, _CABLE, _LEAF, _SECOND = 5, 6, 7, 8
"""The salts that are hashed with a flow's source and destination at each choice."""


def dragonfly_plus(dimension: DragonflyPlus, routing: Routing) -> Block:
    """Return a Dragonfly+; its routers are all leaves, group by group, and then all spines."""
    groups = _DragonflyPlusGroups.of(dimension)
    check_links(2 * groups.leaves_in_all * groups.spines + 2 * groups.count * groups.ports, dimension.name)
    widest = groups.ports * int(dimension.global_link.bandwidth)
    check_bandwidth(widest, f"dimension {dimension.name}: global cables of a group")
    leaf = np.repeat(np.arange(groups.leaves_in_all), groups.spines)
    spine = np.tile(np.arange(groups.spines), groups.leaves_in_all)
    laid = both_directions(leaf, groups.spine(leaf // groups.leaves, spine), dimension.local_link)
    laid.append(_cables(groups, dimension.global_link))
    minimal, detour = _UpOverDown(groups, routing), routing.non_minimal
    if detour is not None and detour.through == "group":
        paths: OverRouters | _OverGroups = _OverGroups(groups, minimal, dimension.hosts, detour)
    else:
        paths = OverRouters(minimal, dimension.hosts, groups.leaves_in_all, detour)
    return with_hosts(dimension, groups.leaves_in_all + groups.count * groups.spines, laid, paths)


class _DragonflyPlusGroups(Struct, frozen=True):
    """Which spines join two groups, by the distance 1..count-1 between them and the cable's number."""

    count: int
    leaves: int
    """The number of leaves in a group; `spines` is the number of its spines."""
    spines: int
    each: int
    """The number of global cables of a spine."""

    @classmethod
    def of(cls, dimension: DragonflyPlus) -> _DragonflyPlusGroups:
        """Return the groups of a dimension; `TopologyError` where their cables cannot join them."""
        hosts = dimension.hosts * dimension.leaves
        count = -(-dimension.size // hosts)
        groups = cls(count, dimension.leaves, dimension.spines, dimension.global_links)
        if count > 1 and not groups.copies:
            allowed = f"up to {(groups.ports + 1) * hosts} with {groups.ports} global cables a group"
            raise TopologyError(f"dimension {dimension.name}: size: {dimension.size}; allowed: {allowed}")
        return groups

    @property
    def ports(self) -> int:
        """Global cables that a group has room for."""
        return self.spines * self.each

    @property
    def copies(self) -> int:
        """Cables between two groups."""
        return self.ports // max(self.count - 1, 1)

    @property
    def leaves_in_all(self) -> int:
        return self.count * self.leaves

    def spine(self, group: Int64s, spine: Int64s) -> Int64s:
        """Return the router that a group's spine is."""
        return self.leaves_in_all + group * self.spines + spine

    def gateway(self, group: Int64s, other: Int64s, copy: Int64s | int) -> Int64s:
        """Return the router in a group that holds a cable to another group."""
        distance = (other - group) % self.count
        port = copy * (self.count - 1) + np.maximum(distance, 1) - 1
        return self.spine(group, port // self.each)


def _cables(groups: _DragonflyPlusGroups, rate: Rate) -> Wires:
    """Return the links between groups: as wide as their cables are many."""
    group, other, copy = np.indices((groups.count, groups.count, groups.copies)).reshape(3, -1)
    group, other, copy = (column[group != other] for column in (group, other, copy))
    ends = np.stack([groups.gateway(group, other, copy), groups.gateway(other, group, copy)], axis=1)
    links, cables = np.unique(ends, axis=0, return_counts=True)
    bandwidth, latency = cables * int(rate.bandwidth), np.full(len(links), int(rate.latency))
    return Wires(links[:, 0], links[:, 1], bandwidth, latency)


class _UpOverDown(Struct, frozen=True):
    """Minimal routes: leaf, spine, spine of the other group, leaf; within a group over one spine."""

    groups: _DragonflyPlusGroups
    routing: Routing

    def __call__(self, start: Int64s, goal: Int64s, flow: tuple[Int64s, Int64s]) -> Int64s:
        here, there = start // self.groups.leaves, goal // self.groups.leaves
        out, into = self.crossing(here, there, flow)
        within = self.groups.spine(here, pick(self.routing, *flow, _UP, self.groups.spines))
        near, same = here == there, start == goal
        up = np.where(same, start, np.where(near, within, out))
        down = np.where(same, start, np.where(near, within, into))
        return np.stack([start, up, down, goal], axis=1)

    def crossing(self, here: Int64s, there: Int64s, flow: tuple[Int64s, Int64s]) -> tuple[Int64s, Int64s]:
        """Return the two ends of the cable that a flow takes from group to group."""
        copy = pick(self.routing, *flow, _CABLE, max(self.groups.copies, 1))
        return self.groups.gateway(here, there, copy), self.groups.gateway(there, here, copy)


class _OverGroups(Struct, frozen=True):
    """Minimal routes, but over a third group for the stated share of the flows between groups.

    There they go on from the spine they came to, if it has a cable to the last group, else over a leaf.
    """

    groups: _DragonflyPlusGroups
    minimal: _UpOverDown
    hosts: int
    """The number of endpoints at a leaf."""
    detour: NonMinimal

    def __call__(self, source: Int64s, destination: Int64s) -> Int64s:
        groups, flow = self.groups, (source, destination)
        start, goal = source // self.hosts, destination // self.hosts
        path = self.minimal(start, goal, flow)
        if groups.count < 3:
            return path
        here, there = start // groups.leaves, goal // groups.leaves
        takes = takes_detour(self.detour, flow) & (here != there)
        over = third(self.detour, flow, (here, there), groups.count)
        up, into = self.minimal.crossing(here, over, flow)
        out, down = self._onward(into, over, there, flow)
        leaf = over * groups.leaves + pick(self.minimal.routing, *flow, _LEAF, groups.leaves)
        long = np.stack([start, up, into, np.where(into == out, into, leaf), out, down, goal], axis=1)
        short = np.concatenate([path, np.repeat(path[:, -1:], 3, axis=1)], axis=1)
        return np.where(takes[:, None], long, short)

    def _onward(
        self, into: Int64s, over: Int64s, there: Int64s, flow: tuple[Int64s, Int64s]
    ) -> tuple[Int64s, Int64s]:
        """Return the ends of the cable from the third group on: one of the spine that was come to, if any."""
        groups, copies = self.groups, np.arange(self.groups.copies)[None, :]
        held = groups.gateway(over[:, None], there[:, None], copies) == into[:, None]
        allowed = held | ~held.any(axis=1, keepdims=True)
        nth = pick(self.minimal.routing, *flow, _SECOND, allowed.sum(axis=1))
        copy = np.argmax(np.cumsum(allowed, axis=1) > nth[:, None], axis=1)
        return groups.gateway(over, there, copy), groups.gateway(there, over, copy)
