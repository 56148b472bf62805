"""Equal-cost multi-path: which of several equal ways a flow takes."""

from __future__ import annotations

import numpy as np

from rapid_des.network.fabric import Ints
from rapid_des.network.specs import Routing

_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


def pick(routing: Routing, source: Ints, destination: Ints, salt: Ints | int, ways: Ints | int) -> Ints:
    """Return a way of 0..ways-1 for each flow: the first, or the SplitMix64 finaliser of (flow, salt).

    All messages between two endpoints take one way, on every machine and in every run the same.
    """
    if routing.ecmp == "lowest_id":
        return np.zeros(len(source), np.int64)
    state = (source * 2**32 + destination).astype(np.uint64)
    for number in (np.zeros(len(source), np.uint64), np.broadcast_to(salt, len(source)).astype(np.uint64)):
        state = state + number + np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in _STEPS:
            state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    return (state >> np.uint64(1)).astype(np.int64) % ways
