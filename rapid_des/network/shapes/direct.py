"""Shapes without switches: ring, mesh, torus, king mesh, hypercube, fully connected, twisted torus.

The twisted torus is a torus whose wrap-around links are shifted along another axis.
"""

from __future__ import annotations

import itertools
import math
from functools import cached_property

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Bools, Int64s, hashed, starts_by
from rapid_des.errors import TopologyError
from rapid_des.network.dimensions import (
    FullyConnected,
    Hypercube,
    KingMesh,
    Mesh,
    Ring,
    Torus,
    Twist,
    TwistedTorus,
)
from rapid_des.network.fabric import Block, block, both_directions, check_links, wires
from rapid_des.network.routing import UNREACHED
from rapid_des.network.specs import Routing

_TIE = 2
"""The salt that is hashed with a flow's source and destination."""


def grid(dimension: Ring | Mesh | Torus | KingMesh, routing: Routing) -> Block:
    """Return a grid; axis 0 is innermost: position = c0 + k0·(c1 + k1·(…))."""
    sizes = (dimension.size,) if isinstance(dimension.size, int) else tuple(dimension.size)
    wraps = isinstance(dimension, Ring | Torus)
    positions = math.prod(sizes)
    offsets = _king_offsets(len(sizes)) if isinstance(dimension, KingMesh) else _axis_offsets(len(sizes))
    check_links(2 * len(offsets) * positions, dimension.name)
    laid = []
    for offset in offsets:
        source, destination = _neighbours(sizes, offset, wraps=wraps)
        laid += both_directions(source, destination, dimension, dimension.reverse)
    if not isinstance(dimension, KingMesh):
        return block(positions, positions, laid, _AxisByAxis(sizes, routing, wraps))
    next_node = _KingLine(sizes) if routing.tie == "balanced" else _KingMoves(sizes)
    return block(positions, positions, laid, next_node)


def _axis_offsets(axes: int) -> list[tuple[int, ...]]:
    return [tuple(int(axis == other) for other in range(axes)) for axis in range(axes)]


def _king_offsets(axes: int) -> list[tuple[int, ...]]:
    """Return the half of a king's moves that leads to higher positions; the others are their opposites."""
    moves = itertools.product((-1, 0, 1), repeat=axes)
    return [move for move in moves if move[::-1] > (0,) * axes]


def _digit(position: Int64s, sizes: tuple[int, ...], axis: int) -> Int64s:
    return position // math.prod(sizes[:axis]) % sizes[axis]


def _neighbours(sizes: tuple[int, ...], offset: tuple[int, ...], *, wraps: bool) -> tuple[Int64s, Int64s]:
    source = np.arange(math.prod(sizes))
    exists = np.ones(len(source), bool)
    destination = np.zeros(len(source), np.int64)
    for axis, (size, move) in enumerate(zip(sizes, offset, strict=True)):
        digit = _digit(source, sizes, axis) + move
        if not wraps or size <= 2:
            exists &= (digit >= 0) & (digit < size)
        destination += digit % size * math.prod(sizes[:axis])
    return source[exists], destination[exists]


class _AxisByAxis(Struct, frozen=True):
    """One axis after the other, in the order that the routing states."""

    sizes: tuple[int, ...]
    routing: Routing
    wraps: bool

    def __call__(self, source: Int64s, destination: Int64s, current: Int64s) -> Int64s:
        axes = range(len(self.sizes))
        following = current.copy()
        for axis in axes if self.routing.order == "innermost_first" else reversed(axes):
            size = self.sizes[axis]
            here, there = _digit(current, self.sizes, axis), _digit(destination, self.sizes, axis)
            moving = (following == current) & (here != there)
            ahead = self._goes_up(here, there, axis, (source, destination)) if self.wraps else there > here
            digit = (here + np.where(ahead, 1, -1)) % size
            following += np.where(moving, (digit - here) * math.prod(self.sizes[:axis]), 0)
        return following

    def _goes_up(self, here: Int64s, there: Int64s, axis: int, flow: tuple[Int64s, Int64s]) -> Bools:
        size = self.sizes[axis]
        distance = (there - here) % size
        up_on_tie = np.ones(len(here), bool)
        if self.routing.tie == "lowest_id":
            up_on_tie = (here + 1) % size < (here - 1) % size
        elif self.routing.tie == "hash":
            up_on_tie = hashed(*flow, (_TIE, axis)) % 2 == 0
        elif self.routing.tie == "balanced":
            up_on_tie = self._turn(axis, *flow) % 2 == 0
        ahead: Bools = (2 * distance < size) | ((2 * distance == size) & up_on_tie)
        return ahead

    def _turn(self, axis: int, source: Int64s, destination: Int64s) -> Int64s:
        """Return numbers that alternate from one source along an axis to the next.

        They alternate from one line of the grid to the next too, and with where a message goes on to: lines
        whose opposite positions are an odd number apart are balanced together.
        """
        turn = _digit(source, self.sizes, axis)
        for other in range(len(self.sizes)):
            if other != axis:
                turn = turn + _digit(source, self.sizes, other) + _digit(destination, self.sizes, other)
        return turn


class _KingMoves(Struct, frozen=True):
    """Routes of a king mesh that move along all axes in which the goal is off at once."""

    sizes: tuple[int, ...]

    def __call__(self, _source: Int64s, destination: Int64s, current: Int64s) -> Int64s:
        following = current.copy()
        for axis in range(len(self.sizes)):
            ahead = np.sign(_digit(destination, self.sizes, axis) - _digit(current, self.sizes, axis))
            following += ahead * math.prod(self.sizes[:axis])
        return following


class _KingLine(Struct, frozen=True):
    """Routes along the straight line to the goal, rounded to the grid: diagonals lie between straight moves.

    After move j of the m that the longest axis needs, an axis that is off by d is at d·j/m, rounded.
    """

    sizes: tuple[int, ...]

    def __call__(self, source: Int64s, destination: Int64s, current: Int64s) -> Int64s:
        axes = range(len(self.sizes))
        start, goal, here = (
            [_digit(node, self.sizes, axis) for axis in axes] for node in (source, destination, current)
        )
        whole = np.max([np.abs(goal[axis] - start[axis]) for axis in axes], axis=0)
        left = np.max([np.abs(goal[axis] - here[axis]) for axis in axes], axis=0)
        moves = whole - left + 1
        following = np.zeros_like(current)
        for axis in axes:
            off = goal[axis] - start[axis]
            gone = (2 * np.abs(off) * moves + whole) // np.maximum(2 * whole, 1)
            following += (start[axis] + np.sign(off) * gone) * math.prod(self.sizes[:axis])
        return following


def fully_connected(dimension: FullyConnected, routing: Routing) -> Block:  # noqa: ARG001 - nothing to choose
    """Return links between all pairs; the direct one is the route."""
    size = dimension.size
    check_links(size * (size - 1), dimension.name)
    low, high = np.triu_indices(size, 1)
    laid = both_directions(low, high, dimension, dimension.reverse)
    return block(size, size, laid, _straight)


def _straight(source: Int64s, destination: Int64s, current: Int64s) -> Int64s:  # noqa: ARG001 - one link away
    return destination


def hypercube(dimension: Hypercube, routing: Routing) -> Block:
    """Return links between positions that differ in one bit: each bit is an axis, the lowest the innermost.

    A route flips one differing bit after the other in the order that the routing states, of those whose flip
    stays inside the (possibly incomplete) cube.
    """
    size = dimension.size
    check_links(size * len(_bits(size)), dimension.name)
    laid = [wires(np.zeros(0, np.int64), np.zeros(0, np.int64), dimension)]
    for bit in _bits(size):
        low = np.flatnonzero((np.arange(size) & bit == 0) & (np.arange(size) | bit < size))
        laid += both_directions(low, low | bit, dimension, dimension.reverse)

    return block(size, size, laid, _BitByBit(size, routing))


class _BitByBit(Struct, frozen=True):
    """The first differing bit in the routing's order whose flip stays inside the cube."""

    size: int
    routing: Routing

    def __call__(self, _source: Int64s, destination: Int64s, current: Int64s) -> Int64s:
        following, bits = current.copy(), _bits(self.size)
        for bit in bits if self.routing.order == "innermost_first" else reversed(bits):
            flipped = current ^ bit
            flips = (following == current) & ((current ^ destination) & bit != 0) & (flipped < self.size)
            following = np.where(flips, flipped, following)
        return following


def _bits(size: int) -> list[int]:
    return [1 << bit for bit in range((size - 1).bit_length())]


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
