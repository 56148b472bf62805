"""Slim Fly: the McKay-Miller-Siran graph of diameter two, by arithmetic in a finite field."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rapid_des.arrays import Bools, Int64s
from rapid_des.errors import TopologyError
from rapid_des.network.blocks import Block, wires
from rapid_des.network.paths import pick
from rapid_des.network.shapes.fields import Field, finite_field
from rapid_des.network.shapes.routers import OverRouters, require_room, require_routers, with_hosts
from rapid_des.network.specs import Routing, SlimFly

_SALT = 4
"""What is hashed beside a flow's ends."""


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


def _edges(field: Field) -> Int64s:
    """Return the edges, some of them twice: Hafner, J. Symbolic Computation 37(2), 2004, has the geometry.

    (0, x, y) and (0, x, y') where y - y' is of the first set, (1, m, c) and (1, m, c') where c - c' is of the
    second, and (0, x, y) and (1, m, c) where y = m x + c.
    """
    q = field.size
    index = np.arange(q)
    found = []
    for subgraph, generators in enumerate(_generators(field)):
        x, y, generator = (axis.ravel() for axis in np.meshgrid(index, index, generators, indexing="ij"))
        line = q * (x + q * subgraph)
        found.append(np.stack([line + y, line + field.sums[y, generator]], axis=1))
    x, m, c = (axis.ravel() for axis in np.meshgrid(index, index, index, indexing="ij"))
    y = field.sums[field.products[m, x], c]
    found.append(np.stack([y + q * x, c + q * (m + q)], axis=1))
    return np.concatenate(found)


def _generators(field: Field) -> tuple[Int64s, Int64s]:
    """Return the two sets of differences: even and odd powers of a primitive element; mixed for 4w - 1."""
    q, powers = field.size, field.powers
    if q % 4 != 3:
        return powers[0 : q - 1 : 2], powers[1:q:2]
    w = (q + 1) // 4
    first = [*range(0, 2 * w - 1, 2), *range(2 * w - 1, 4 * w - 2, 2)]
    second = [*range(1, 2 * w, 2), *range(2 * w, 4 * w - 1, 2)]
    return powers[first], powers[second]


@dataclass(frozen=True, eq=False)
class _AtMostTwo:
    """The link to the goal, or a way over one of the neighbours that both have."""

    neighbours: Int64s
    """[router] its neighbours, ascending."""
    adjacent: Bools
    routing: Routing

    def __call__(self, start: Int64s, goal: Int64s, flow: tuple[Int64s, Int64s]) -> Int64s:
        shared = self.adjacent[self.neighbours[start], goal[:, None]]
        nth = pick(self.routing, *flow, _SALT, np.maximum(shared.sum(axis=1), 1))
        place = np.argmax(np.cumsum(shared, axis=1) > nth[:, None], axis=1)
        over = self.neighbours[start, place]
        direct = (start == goal) | self.adjacent[start, goal]
        return np.stack([start, np.where(direct, goal, over), goal], axis=1)
