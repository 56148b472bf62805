"""Logical rings in another order than that of the members: whose neighbours are near on what survives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations
from typing import TypeAlias

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.chakra.trace import CollectiveType
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
