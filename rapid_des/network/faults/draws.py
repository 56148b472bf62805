"""Numbers drawn from a seed that stay the same on every platform, library version and order of asking."""

from __future__ import annotations

import numpy as np

from rapid_des.network.fabric import Ints

_MASK = 2**64 - 1


def mixed(*numbers: int) -> int:
    """Return 64 well-mixed bits of the numbers: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), chained.

    >>> mixed(1, 2) != mixed(2, 1)
    True
    """
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def drawn(candidates: Ints, count: int, seed: int) -> Ints:
    """Return `count` different candidates, ascending: those whose mixed (seed, position) is smallest."""
    ranks = sorted(range(len(candidates)), key=lambda place: (mixed(seed, place), place))
    return np.sort(candidates[np.array(ranks[:count], np.int64)])
