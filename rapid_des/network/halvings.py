"""Narrow halvings of GPUs: all of a small fabric are tried, in larger ones swaps look for one."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np

from rapid_des.arrays import Bools, Floats, Int64s
from rapid_des.network.fabric import Fabric
from rapid_des.network.paths import UNREACHED, hops_from

_MOST_TRIED = 2**18
"""Halvings times ways to place the switches that are joined to each other, all of which are tried."""
_MOST_NODES = 1024
"""Nodes up to which swaps are looked for, in a table of all pairs."""
_STARTS = 8
_LOOKED_AT = 16
"""GPUs of each side, those that would gain most, of which the best pair is swapped."""


def narrowest(fabric: Fabric, alive: Bools, gpus: Int64s) -> int | None:
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
    one, other = near.astype(np.float64), (~near).astype(np.float64)
    direct = (one @ rates[np.ix_(gpus, gpus)] * other).sum(1)
    through = np.minimum(one @ rates[np.ix_(gpus, stars)], other @ rates[np.ix_(stars, gpus)].T).sum(1)
    into, out = one @ rates[np.ix_(gpus, joined)], other @ rates[np.ix_(joined, gpus)].T
    inner, least = rates[np.ix_(joined, joined)], np.full(len(near), np.inf)
    for placed in range(1 << len(joined)):
        here = placed >> np.arange(len(joined)) & 1 == 1
        between = into[:, ~here].sum(1) + out[:, here].sum(1) + inner[np.ix_(here, ~here)].sum()
        least = np.minimum(least, between)
    return float((direct + through + least).min())


def by_swaps(fabric: Fabric, alive: Bools, gpus: Int64s) -> tuple[Int64s, Int64s] | None:
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
