"""Algorithms that know the shape of the group's part of the fabric, by name; hierarchical ones.

Each takes the extents of the group (innermost first) beside collective and size. Where more than one
dimension takes part, chunks start in different dimensions, so that all links in both directions are busy.

Hierarchical collectives have a phase a dimension, each an algorithm among a line of members. Members are
numbered by mixed radix, dimension 0 innermost. An all-reduce reduce-scatters along the first dimensions of
its order, all-reduces along the last, and all-gathers back; a reduce-scatter and an all-to-all walk the
order, an all-gather walks it backwards. Chunks go through the phases one behind the other, with `rotate` each
in an order that starts one dimension further, so that all dimensions are busy at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import permutations
from math import prod
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s, starts_of
from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import InputError
from rapid_des.extensions import COLLECTIVES, is_known, names
from rapid_des.network.collectives.in_switch import IN_SWITCH, below_switches, nvls, two_levels
from rapid_des.network.collectives.registry import ALGORITHMS, algorithm
from rapid_des.network.collectives.schedule import (
    ROOTED,
    SHARDED_INPUT,
    Demand,
    Schedule,
    demand,
    in_sequence,
    relabel,
    relocate,
    together,
)
from rapid_des.network.collectives.trees import grid_tree
from rapid_des.units import ceil_divide
from rapid_des.values import replace

C = CollectiveType
_REDUCE_SCATTERS = frozenset({C.REDUCE_SCATTER, C.REDUCE_SCATTER_BLOCK})
HIERARCHICAL = frozenset({C.ALL_REDUCE, C.ALL_GATHER, C.ALL_TO_ALL, C.BARRIER}) | _REDUCE_SCATTERS
"""The collectives that can be done one dimension after another."""


class DimensionPhase(Struct, frozen=True):
    """One phase of a chunk: every line of members along `dimension` does this."""

    dimension: int
    collective: CollectiveType
    algorithm: str
    size: int
    """The bytes of each member's input buffer, rounded up where blocks are uneven."""


class Hierarchy(Struct, frozen=True):
    """The dimensions that a group spans, innermost first, and the algorithm for each."""

    extents: tuple[int, ...]
    algorithms: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.extents) != len(self.algorithms):
            raise InputError(
                f"{len(self.extents)} dimensions need as many algorithms, not {len(self.algorithms)}"
            )

    @property
    def members(self) -> int:
        """Size of the group."""
        return int(np.prod(self.extents))

    def orders(self, chunks: int, *, rotate: bool) -> list[tuple[int, ...]]:
        """Return each chunk's order of the dimensions (those of one member left out)."""
        used = [dimension for dimension, extent in enumerate(self.extents) if extent > 1] or [0]
        shifts = [index % len(used) if rotate else 0 for index in range(chunks)]
        return [tuple(used[shift:] + used[:shift]) for shift in shifts]


def chunk_phases(
    collective: CollectiveType, over: Hierarchy, size: int, *, chunks: int = 1, rotate: bool = False
) -> tuple[tuple[DimensionPhase, ...], ...]:
    """Return the phases of every chunk of a collective with an input buffer of `size` bytes a member.

    >>> h = Hierarchy((2, 4), ("direct", "ring"))
    >>> [(p.dimension, p.collective.name, p.size) for p in chunk_phases(CollectiveType.ALL_REDUCE, h, 800)[0]]
    [(0, 'REDUCE_SCATTER', 800), (1, 'ALL_REDUCE', 400), (0, 'ALL_GATHER', 400)]
    """
    _check(collective)
    sizes = [size // chunks + (index < size % chunks) for index in range(chunks)]
    return tuple(
        tuple(_phases(collective, over, order, part))
        for order, part in zip(over.orders(chunks, rotate=rotate), sizes, strict=True)
    )


def _check(collective: CollectiveType) -> None:
    if collective not in HIERARCHICAL:
        allowed = ", ".join(kind.name.lower() for kind in C if kind in HIERARCHICAL)
        raise InputError(f"{collective.name.lower()} has no per-dimension form; those that have: {allowed}")


def _phases(
    collective: CollectiveType, over: Hierarchy, order: tuple[int, ...], size: int
) -> list[DimensionPhase]:
    phases = []
    for dimension, kind in _walk(collective, order):
        name = over.algorithms[dimension]
        if kind not in (IN_SWITCH[name] if name in IN_SWITCH else algorithm(name).does):
            raise InputError(f"{name} (dimension {dimension}) does not do {kind.name.lower()}")
        phases.append(DimensionPhase(dimension, kind, name, size))
        if kind in _REDUCE_SCATTERS:
            size = ceil_divide(size, over.extents[dimension])
        elif kind is C.ALL_GATHER:
            size = size * over.extents[dimension]
    return phases


def _walk(collective: CollectiveType, order: tuple[int, ...]) -> list[tuple[int, CollectiveType]]:
    if collective is C.ALL_REDUCE:
        inwards = [(dimension, C.REDUCE_SCATTER) for dimension in order[:-1]]
        outwards = [(dimension, C.ALL_GATHER) for dimension in reversed(order[:-1])]
        return [*inwards, (order[-1], C.ALL_REDUCE), *outwards]
    along = reversed(order) if collective is C.ALL_GATHER else order
    return [(dimension, collective) for dimension in along]


def flatten(
    collective: CollectiveType, over: Hierarchy, size: int, *, chunks: int = 1, rotate: bool = False
) -> Schedule:
    """Return all phases of all chunks as one schedule; a member's phase waits for its phase before."""
    _check(collective)
    parts = demand(collective, over.members, size).chunks(chunks)
    schedules = []
    for part, order in zip(parts, over.orders(len(parts), rotate=rotate), strict=True):
        phases = [
            _phase(part, over, _DimensionStep(dimension, kind, order))
            for dimension, kind in _walk(collective, order)
        ]
        schedules.append(in_sequence(phases))
    return together(schedules)


class _DimensionStep(Struct, frozen=True):
    """The operation of the lines along one dimension, and the dimensions that come before."""

    dimension: int
    collective: CollectiveType
    order: tuple[int, ...]

    @property
    def before(self) -> tuple[int, ...]:
        """The dimensions of the order that come before this one."""
        return self.order[: self.order.index(self.dimension)]


def _phase(part: Demand, over: Hierarchy, phase: _DimensionStep) -> Schedule:
    """Return the schedules of all lines along a dimension, side by side."""
    extent = over.extents[phase.dimension]
    stride = int(np.prod(over.extents[: phase.dimension]))
    member = np.arange(over.members)
    lines = []
    for start in member[member // stride % extent == 0]:
        line = start + stride * np.arange(extent)
        owned = _owned(part, over, phase, int(start))
        lines.append(relabel(_line(part, phase, owned, over.algorithms[phase.dimension]), line, over.members))
    return together(lines)


def _line(part: Demand, phase: _DimensionStep, owned: list[Int64s], name: str) -> Schedule:
    """Return one line's schedule; `owned[b]` are the part's blocks that make up the line's block b."""
    sizes = np.array([part.size[blocks].sum() for blocks in owned], dtype=np.int64)
    starts = starts_of(sizes)[:-1]
    members = len(owned) if phase.collective is not C.ALL_TO_ALL else round(len(owned) ** 0.5)
    local = Demand(phase.collective, members, 0, starts, sizes)
    blocks = np.concatenate(owned)
    return relocate(algorithm(name).schedule(local), part.offset[blocks], part.size[blocks])


def _owned(part: Demand, over: Hierarchy, phase: _DimensionStep, start: int) -> list[Int64s]:
    """Return the blocks behind each block of the line through `start`.

    Reductions and gathers: those of the members that agree with the line in the dimensions before, split by
    their position in this one. All-to-all: block (i, k) holds what was with the line's member i and goes on
    to its member k.
    """
    extent = over.extents[phase.dimension]
    if part.collective is C.BARRIER:
        return np.array_split(np.arange(len(part.size)), extent)
    coordinates = np.unravel_index(np.arange(over.members), over.extents, order="F")
    here = [int(coordinate[start]) for coordinate in coordinates]
    among = np.ones(len(part.size), dtype=np.bool_)
    if part.collective is not C.ALL_TO_ALL:
        for dimension in phase.before:
            among &= coordinates[dimension] == here[dimension]
        return _split(np.flatnonzero(among), coordinates[phase.dimension][among], extent)
    source, destination = np.divmod(np.arange(over.members**2), over.members)
    for dimension, coordinate in enumerate(here):
        if dimension != phase.dimension:
            holder = destination if dimension in phase.before else source
            among &= coordinates[dimension][holder] == coordinate
    line, goal = coordinates[phase.dimension][source[among]], coordinates[phase.dimension][destination[among]]
    return _split(np.flatnonzero(among), line * extent + goal, extent * extent)


def _split(blocks: Int64s, key: Int64s, count: int) -> list[Int64s]:
    """Return the blocks of each key from 0 to count - 1."""
    order = np.argsort(key, kind="stable")
    bounds = np.cumsum(np.bincount(key, minlength=count))[:-1]
    return np.split(blocks[order], bounds)


RingOrder: TypeAlias = tuple[int, ...]
"""The member at each position of a logical ring."""
_OWNED = SHARDED_INPUT | {C.REDUCE_SCATTER, C.REDUCE_SCATTER_BLOCK, C.SCATTER}
"""The collectives whose block b belongs to member b, whatever that member's position in the ring."""


def ordered_schedule(
    name: str, collective: CollectiveType, size: int, order: RingOrder, *, chunks: int = 1
) -> Schedule:
    """Return an algorithm's transfers with member order[i] at position i; all keep their data."""
    reordered = _reordered(demand(collective, len(order), size), np.array(order, np.int64))
    schedule = together([algorithm(name).schedule(part) for part in reordered.chunks(chunks)])
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
    if name in ALGORITHMS or is_known(COLLECTIVES, name):
        return frozenset(algorithm(name).does)
    known = ", ".join((*ALGORITHMS, *ON_FABRIC, *names(COLLECTIVES)))
    raise InputError(f"{name!r} is not a collective algorithm; allowed: {known}")


def build_schedule(name: str, shaped: ShapedCollective) -> Schedule:
    """Return the transfers of a shaped group by an algorithm of either registry.

    >>> len(build_schedule("ring", ShapedCollective(CollectiveType.ALL_GATHER, (2, 2), 100)))
    12
    """
    if name in ON_FABRIC:
        return on_fabric(name, shaped)
    collectives_of(name)  # refuses what neither registry has
    members = prod(shaped.extents)
    return algorithm(name)(shaped.collective, members, shaped.size, root=shaped.root, chunks=shaped.chunks)
