"""Where a drawing puts the nodes of a fabric: grids for direct fabrics, layers for switched ones."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rapid_des.arrays import Int64s, entries_of
from rapid_des.network.fabric import Fabric
from rapid_des.network.paths import compressed

Points = NDArray[np.float64]


def node_positions(fabric: Fabric, *, on_circle: bool) -> Points:
    """Return (x, y) of each node, about a unit apart; `on_circle` is for one axis without switches."""
    if fabric.nodes > fabric.gpus:
        return _layers(fabric)
    if on_circle:
        return _circle(fabric.gpus)
    return _grid(fabric)


def _circle(count: int) -> Points:
    angle = np.pi / 2 - 2 * np.pi * np.arange(count) / max(count, 1)
    return np.stack([np.cos(angle), np.sin(angle)], axis=1) * max(1.0, count / 5)


def _grid(fabric: Fabric) -> Points:
    """Lay two axes flat, lean the third into the distance, and set the tiles of the others side by side."""
    digits, rest = [], np.arange(fabric.gpus)
    for size in fabric.axes:
        digits.append(rest % size)
        rest = rest // size
    across, up, deep = (digits[axis] if axis < len(digits) else 0 * rest for axis in range(3))
    sizes = (*fabric.axes, 1, 1, 1)
    apart, lean = (2.0, 1.6 / sizes[2]) if sizes[2] > 1 else (1.0, 0.0)
    x = apart * across + lean * deep
    y = apart * up + 0.6 * lean * deep
    columns = math.ceil(math.sqrt(math.prod(fabric.axes[3:])))
    tile = sum(digit * math.prod(fabric.axes[3:axis]) for axis, digit in enumerate(digits) if axis >= 3)
    x = x + (tile % columns) * (apart * sizes[0] + 1.0)
    y = y + (tile // columns) * (apart * sizes[1] + 1.0)
    return np.stack([x, y], axis=1).astype(np.float64)


def _layers(fabric: Fabric) -> Points:
    """Put GPUs in a row, what the innermost dimension adds below, and all else above, tier by tier."""
    tier = _tiers(fabric)
    below = np.zeros(fabric.nodes, bool)
    if len(fabric.dimensions) > 1:
        inner = fabric.dimension == 0
        ends = np.concatenate([fabric.source[inner], fabric.destination[inner]])
        below[ends[ends >= fabric.gpus]] = True
    level = np.where(below, -tier, tier)
    x, width = np.arange(fabric.nodes, dtype=np.float64), max(fabric.gpus - 1, 1)
    for height in np.unique(level[fabric.gpus :]):
        members = np.flatnonzero(level == height)
        x[members] = _spread(fabric, members, x, tier, width)
    return np.stack([x, level * _storey(fabric)], axis=1).astype(np.float64)


def _storey(fabric: Fabric) -> float:
    return max(1.5, 0.16 * fabric.gpus)


def _tiers(fabric: Fabric) -> Int64s:
    """Return how far from the GPUs a node stands over NICs and switches alone."""
    tier = np.where(np.arange(fabric.nodes) < fabric.gpus, 0, -1)
    starts, links = compressed(fabric.source.astype(np.int64), fabric.nodes)
    frontier: Int64s = np.arange(fabric.gpus)
    while len(frontier):
        found = np.unique(fabric.destination[links[entries_of(starts, frontier)]]).astype(np.int64)
        found = found[tier[found] < 0]
        tier[found] = tier[frontier[0]] + 1
        frontier = found
    return np.maximum(tier, 1) * (np.arange(fabric.nodes) >= fabric.gpus)


def _spread(fabric: Fabric, members: Int64s, x: Points, tier: Int64s, width: float) -> Points:
    """Return even places for a tier's nodes, in the order of the middle of what they serve below."""
    lower = (tier[fabric.source] == tier[members[0]] - 1) & np.isin(fabric.destination, members)
    served = np.bincount(fabric.destination[lower], x[fabric.source[lower]], fabric.nodes)[members]
    count = np.maximum(np.bincount(fabric.destination[lower], minlength=fabric.nodes)[members], 1)
    order = np.lexsort((members, served / count))
    even = (np.arange(len(members)) + 0.5) / len(members) * (width + 1) - 0.5
    spread = np.empty(len(members))
    spread[order] = even
    return spread
