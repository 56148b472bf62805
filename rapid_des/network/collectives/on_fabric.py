"""Algorithms that know the shape of the group's part of the fabric, by name.

Each takes the extents of the group (innermost first) beside collective and size. Where more than one
dimension takes part, chunks start in different dimensions, so that all links in both directions are busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import permutations
from math import prod
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import InputError
from rapid_des.network.collectives.hierarchical import HIERARCHICAL, Hierarchy, flatten
from rapid_des.network.collectives.in_switch import IN_SWITCH, below_switches, nvls, two_levels
from rapid_des.network.collectives.registry import ALGORITHMS
from rapid_des.network.collectives.schedule import (
    ROOTED,
    SHARDED_INPUT,
    Demand,
    Schedule,
    demand,
    relabel,
    together,
)
from rapid_des.network.collectives.trees import grid_tree
from rapid_des.values import replace

RingOrder: TypeAlias = tuple[int, ...]
"""The member at each position of a logical ring."""
C = CollectiveType
_OWNED = SHARDED_INPUT | {C.REDUCE_SCATTER, C.REDUCE_SCATTER_BLOCK, C.SCATTER}
"""The collectives whose block b belongs to member b, whatever that member's position in the ring."""


def ordered_schedule(
    name: str, collective: CollectiveType, size: int, order: RingOrder, *, chunks: int = 1
) -> Schedule:
    """Return an algorithm's transfers with member order[i] at position i; all keep their data."""
    reordered = _reordered(demand(collective, len(order), size), np.array(order, np.int64))
    schedule = together([ALGORITHMS[name].schedule(part) for part in reordered.chunks(chunks)])
    return relabel(schedule, np.array(order, np.int64), len(order))


def _reordered(demand: Demand, order: Int64s) -> Demand:
    """Return the demand with blocks and root numbered by ring positions instead of members."""
    blocks = np.arange(len(demand.offset))
    if demand.collective in _OWNED:
        blocks = order
    elif demand.collective is C.ALL_TO_ALL:
        blocks = (order[:, None] * demand.members + order[None, :]).reshape(-1)
    root = int(np.flatnonzero(order == demand.root)[0]) if demand.collective in ROOTED else demand.root
    return replace(demand, root=root, offset=demand.offset[blocks], size=demand.size[blocks])


def snakes(extents: Sequence[int]) -> Iterator[RingOrder]:
    """Yield the orders in which a grid's members are walked to and fro, for every order of its axes.

    >>> list(snakes((2, 3)))
    [(0, 1, 3, 2, 4, 5), (0, 2, 4, 5, 3, 1)]
    """
    strides = np.cumprod([1, *extents[:-1]], dtype=np.int64)
    for axes in permutations(range(len(extents))):
        walk = np.zeros(1, np.int64)
        for axis in axes:
            walk = np.concatenate(
                [walk[:: 1 - step % 2 * 2] + step * strides[axis] for step in range(extents[axis])]
            )
        yield tuple(walk.tolist())


def repaired(hops: Int64s, healthy: Int64s, orders: Iterable[RingOrder] = ()) -> RingOrder:
    """Return a ring whose neighbours are near: that of rank order, or the first shortest of `orders`, mended.

    `hops[a, b]` counts those from a to b on what survives, `healthy[a, b]` on the fabric without faults. As
    long as that makes the ring shorter, neighbours that have moved apart are separated: by reversing a
    stretch beside them or by moving one of the two elsewhere, whichever leaves the fewest hops. The ring
    begins behind its longest hop, so that a line's ends are its ends.
    """
    starts = [np.array(order) for order in orders] or [np.arange(len(hops))]
    ring = min((_mended(start, hops, healthy) for start in starts), key=lambda ring: _length(ring, hops))
    longest = int(np.argmax(hops[ring, np.roll(ring, -1)]))
    return tuple(np.roll(ring, -longest - 1).tolist())


def _mended(ring: Int64s, hops: Int64s, healthy: Int64s) -> Int64s:
    while True:
        apart = np.flatnonzero((hops > healthy)[ring, np.roll(ring, -1)]).tolist()
        others = [other for position in apart for other in _without(np.roll(ring, -position - 1))]
        lengths = [_length(other, hops) for other in others]
        if not others or min(lengths) >= _length(ring, hops):
            return ring
        ring = others[lengths.index(min(lengths))]


def _length(ring: Int64s, hops: Int64s) -> int:
    return int(hops[ring, np.roll(ring, -1)].sum())


def _without(ring: Int64s) -> Iterator[Int64s]:
    """Yield rings in which the last is not followed by the first."""
    size = len(ring)
    yield ring[::-1]
    for end in range(1, size - 1):
        yield np.concatenate((ring[: end + 1][::-1], ring[end + 1 :]))
    for target in range(2, size - 1):
        yield np.concatenate((ring[1:target], ring[:1], ring[target:]))
        yield np.concatenate((ring[: target - 1], ring[-1:], ring[target - 1 : -1]))


def line_of(
    members: Sequence[int], extents: Sequence[int], axis: int, position: int
) -> tuple[int, list[int]]:
    """Return the first position and the members of the line along an axis through a position of a grid."""
    stride = int(np.prod(extents[:axis], dtype=np.int64))
    base = position - position // stride % extents[axis] * stride
    return base, [members[base + step * stride] for step in range(extents[axis])]


_TREES = frozenset({C.ALL_REDUCE, C.BROADCAST, C.REDUCE})


class ShapedCollective(Struct, frozen=True):
    """A collective over a group of a known shape."""

    collective: CollectiveType
    extents: tuple[int, ...]
    size: int
    root: int = 0
    chunks: int = 1
    parents: tuple[int, ...] = ()
    """The tree of switches over the group: the parent of each member, then of each switch. Empty:
    `extents[0]` members at each leaf.
    """

    @property
    def demand(self) -> Demand:
        """The blocks that it moves."""
        return demand(self.collective, prod(self.extents), self.size, root=self.root)


ShapedBuild: TypeAlias = Callable[[ShapedCollective], Schedule]


def _each(shaped: ShapedCollective, build: Callable[[Demand], Schedule]) -> Schedule:
    """Build every chunk of a collective that needs no hierarchy."""
    return together([build(part) for part in shaped.demand.chunks(shaped.chunks)])


_ALONG = {"torus": "bidirectional_ring", "mesh_bucket": "bucket", "hypercube": "direct"}


def hierarchy_of(name: str, collective: CollectiveType, extents: tuple[int, ...]) -> tuple[Hierarchy, bool]:
    """Return the algorithm of each dimension for one of `PER_DIMENSION`, and whether chunks rotate.

    Chunks that rotate begin along another dimension each. A rail goes directly within the node (the first
    dimension) and in rings along the rails; a hypercube exchanges along every bit of the member's number.

    >>> hierarchy_of("rail", CollectiveType.ALL_TO_ALL, (8, 4))[0].algorithms
    ('direct', 'direct')
    """
    if name == "rail":
        outer = {C.ALL_TO_ALL: "direct", C.BARRIER: "dissemination"}.get(collective, "ring")
        return Hierarchy(extents, ("direct", *(outer for _ in extents[1:]))), False
    if name == "hypercube":
        members = prod(extents)
        if members & (members - 1):
            raise InputError(f"a hypercube has a power of two of members, not {members}")
        extents = (2,) * max(members.bit_length() - 1, 1) if members > 1 else (1,)
    along = _ALONG[name]
    exchange = {C.ALL_TO_ALL: "ring" if along == "bucket" else along, C.BARRIER: "dissemination"}
    return Hierarchy(extents, (exchange.get(collective, along),) * len(extents)), True


def _per_dimension(shaped: ShapedCollective, name: str) -> Schedule:
    over, rotate = hierarchy_of(name, shaped.collective, shaped.extents)
    chunks = shaped.chunks * (len(over.extents) if rotate else 1)
    return flatten(shaped.collective, over, shaped.size, chunks=chunks, rotate=rotate)


def _grid_tree(shaped: ShapedCollective, *, diagonal: bool) -> Schedule:
    return _each(shaped, lambda part: grid_tree(part, shaped.extents, diagonal=diagonal))


def _nvls(shaped: ShapedCollective) -> Schedule:
    return nvls(shaped.demand, shaped.chunks)


def _switch_tree(shaped: ShapedCollective) -> Schedule:
    parents = shaped.parents or two_levels(prod(shaped.extents), shaped.extents[0])
    return _each(shaped, lambda part: below_switches(part, parents))


ON_FABRIC: dict[str, tuple[ShapedBuild, frozenset[CollectiveType]]] = {
    "torus": (partial(_per_dimension, name="torus"), HIERARCHICAL),
    "mesh_bucket": (partial(_per_dimension, name="mesh_bucket"), HIERARCHICAL - {C.ALL_TO_ALL}),
    "hypercube": (partial(_per_dimension, name="hypercube"), HIERARCHICAL),
    "rail": (partial(_per_dimension, name="rail"), HIERARCHICAL),
    "mesh_tree": (partial(_grid_tree, diagonal=False), _TREES),
    "king_mesh_tree": (partial(_grid_tree, diagonal=True), _TREES),
    **{name: (_nvls if name == "nvls" else _switch_tree, does) for name, does in IN_SWITCH.items()},
}
"""The function and the collectives of each algorithm, by name. Algorithms of `IN_SWITCH` have switches among
their members.
"""
PER_DIMENSION = (*_ALONG, "rail")
"""The algorithms that handle one dimension after another (see `hierarchy_of`)."""


def on_fabric(name: str, shaped: ShapedCollective) -> Schedule:
    """Return the transfers by an algorithm of `ON_FABRIC`; `InputError` says what it lacks."""
    if name not in ON_FABRIC:
        raise InputError(f"{name!r} is no algorithm for a shaped group; allowed: {', '.join(ON_FABRIC)}")
    build, does = ON_FABRIC[name]
    if shaped.collective not in does:
        allowed = ", ".join(kind.name.lower() for kind in C if kind in does)
        raise InputError(f"{name} does not do {shaped.collective.name.lower()}; it does {allowed}")
    return build(shaped)


def collectives_of(name: str) -> frozenset[CollectiveType]:
    """Return the collectives of an algorithm of either registry; `InputError` lists all algorithms."""
    if name in ON_FABRIC:
        return ON_FABRIC[name][1]
    if name in ALGORITHMS:
        return frozenset(ALGORITHMS[name].does)
    known = ", ".join((*ALGORITHMS, *ON_FABRIC))
    raise InputError(f"{name!r} is not a collective algorithm; allowed: {known}")


def build_schedule(name: str, shaped: ShapedCollective) -> Schedule:
    """Return the transfers of a shaped group by an algorithm of either registry.

    >>> len(build_schedule("ring", ShapedCollective(CollectiveType.ALL_GATHER, (2, 2), 100)))
    12
    """
    if name not in ALGORITHMS and collectives_of(name):
        return on_fabric(name, shaped)
    members = prod(shaped.extents)
    return ALGORITHMS[name](shaped.collective, members, shaped.size, root=shaped.root, chunks=shaped.chunks)
