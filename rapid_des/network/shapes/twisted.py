"""The twisted torus: a torus whose wrap-around links are shifted along another axis."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s, hashed, starts_by
from rapid_des.errors import TopologyError
from rapid_des.network.fabric import Block, block, both_directions, check_links
from rapid_des.network.paths import UNREACHED
from rapid_des.network.specs import Routing, Twist, TwistedTorus

_SALT = 3
"""The salt that is hashed with a flow's source and destination."""


def twisted_torus(dimension: TwistedTorus, routing: Routing) -> Block:
    """Return a torus with shifted wrap-around links; position = c0 + k0·(c1 + k1·(…)) as in a plain one."""
    sizes = (dimension.size,) if isinstance(dimension.size, int) else tuple(dimension.size)
    _check_twists(dimension, sizes)
    if routing.tie not in ("positive", "hash"):
        problem = f"{routing.tie}: dimension {dimension.name} is a twisted_torus; allowed: positive, hash"
        raise TopologyError(f"routing.tie: {problem}")
    lattice = _Lattice(sizes, dimension.twists)
    check_links(2 * len(sizes) * lattice.positions, dimension.name)
    here, twisted = np.arange(lattice.positions), {twist.wrap for twist in dimension.twists}
    laid = []
    for axis, size in enumerate(sizes):
        ahead = lattice.position(lattice.coordinates(here) + np.eye(len(sizes), dtype=np.int64)[axis])
        inside = lattice.coordinates(here)[:, axis] < size - 1
        exists = inside if size <= 2 and axis not in twisted else np.ones(len(here), bool)
        laid += both_directions(here[exists], ahead[exists], dimension, dimension.reverse)
    return block(lattice.positions, lattice.positions, laid, _Shortest(lattice, routing))


def _check_twists(dimension: TwistedTorus, sizes: tuple[int, ...]) -> None:
    twisted = {twist.wrap for twist in dimension.twists}
    pairs = set[tuple[int, int]]()
    for index, twist in enumerate(dimension.twists):
        where = f"dimension {dimension.name}: twists[{index}]"
        if max(twist.wrap, twist.along) >= len(sizes):
            problem = f"wrap {twist.wrap}, along {twist.along}; allowed: axes 0 to {len(sizes) - 1}"
        elif twist.along in twisted:
            problem = f"along: axis {twist.along} is twisted itself; allowed: one that is not"
        elif sizes[twist.wrap] < 2:
            problem = f"wrap: axis {twist.wrap} has size 1 and does not wrap"
        elif twist.by >= sizes[twist.along]:
            problem = f"by: {twist.by}; allowed: 1 to {sizes[twist.along] - 1}"
        elif (twist.wrap, twist.along) in pairs:
            problem = f"wrap {twist.wrap}, along {twist.along} stands twice"
        else:
            pairs.add((twist.wrap, twist.along))
            continue
        raise TopologyError(f"{where}: {problem}")


class _Lattice(Struct, frozen=True, dict=True):
    """Integer vectors, of which those that lead to the same position are one."""

    sizes: tuple[int, ...]
    twists: tuple[Twist, ...]

    @property
    def positions(self) -> int:
        return math.prod(self.sizes)

    def coordinates(self, position: Int64s) -> Int64s:
        """Return the coordinates of positions, a row each."""
        return np.stack(np.unravel_index(position, self.sizes, order="F"), axis=-1).astype(np.int64)

    def position(self, vector: Int64s) -> Int64s:
        """Return where vectors from position 0 lead."""
        reduced = vector.copy()
        for twist in self.twists:
            wraps = vector[:, twist.wrap] // self.sizes[twist.wrap]
            reduced[:, twist.along] += wraps * twist.by
        places = np.cumprod([1, *self.sizes[:-1]])
        reached: Int64s = reduced % self.sizes @ places
        return reached

    @cached_property
    def shortest(self) -> tuple[Int64s, Int64s, Int64s]:
        """All shortest vectors to each position, those furthest up the first axes first.

        They are rows of (starts by position, vectors); the third column is each position's distance.
        """
        hops = np.full(self.positions, UNREACHED)
        hops[0] = level = 0
        axes = np.eye(len(self.sizes), dtype=np.int64)
        offsets = [np.zeros((1, len(self.sizes)), np.int64)]
        while len(offsets[-1]):
            level += 1
            ahead = np.unique(np.concatenate([offsets[-1] + step for step in (*axes, *-axes)]), axis=0)
            ends = self.position(ahead)
            fresh = hops[ends] == UNREACHED
            hops[ends[fresh]] = level
            offsets.append(ahead[fresh])
        vectors = np.concatenate(offsets)
        ends = self.position(vectors)
        order = np.lexsort((*-vectors.T[::-1], ends))
        return starts_by(ends[order], self.positions), vectors[order], hops


class _Shortest(Struct, frozen=True):
    """Routes along one of the shortest vectors, one axis after another in the routing's order."""

    lattice: _Lattice
    routing: Routing

    def __call__(self, source: Int64s, destination: Int64s, current: Int64s) -> Int64s:
        lattice, (starts, vectors, hops) = self.lattice, self.lattice.shortest
        start, goal, here = (lattice.coordinates(node) for node in (source, destination, current))
        whole, rest = lattice.position(goal - start), lattice.position(goal - here)
        spread = hashed(source, destination, (_SALT,)) if self.routing.tie == "hash" else np.zeros_like(whole)
        vector = vectors[starts[whole] + spread % np.diff(starts)[whole]]
        axes = np.arange(len(lattice.sizes))
        order = axes if self.routing.order == "innermost_first" else axes[::-1]
        walked = np.cumsum(np.abs(vector[:, order]), axis=1)
        axis = order[np.argmax(walked > (hops[whole] - hops[rest])[:, None], axis=1)]
        rows = np.arange(len(source))
        step = np.zeros_like(vector)
        step[rows, axis] = np.sign(vector[rows, axis])
        return lattice.position(here + step)
