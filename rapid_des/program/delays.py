"""R11: how much later messages arrive than their last bytes, drawn by who sends what.

The functions with plain integers are shared by every engine; the tables are made before the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil
from typing import Any

import numpy as np

from rapid_des.arrays import Bools, starts_of
from rapid_des.network.fabric import Fabric, Routes
from rapid_des.network.jitter import Jitter, delay_quantile
from rapid_des.program.program import NONE, DelayTable

_WORD = 0xFFFFFFFF
_BITS = 32
_CELLS = 256
"""Steps by which a distribution stands for each halving of the probability of a longer delay."""


def mix(state: int) -> int:
    """Return 32 well-mixed bits of 32 (a multiplicative hash with shifts; no product reaches 2**63).

    >>> mix(1) != mix(2), mix(2**32 - 1) < 2**32
    (True, True)
    """
    state = ((state ^ (state >> 16)) * 0x21F0AAAD) & _WORD
    state = ((state ^ (state >> 15)) * 0x735A2D97) & _WORD
    return state ^ (state >> 15)


def draw_of(seed: int, rank: int, visit: int, task: int, which: int) -> int:
    """Return 32 bits of a message: who sends it in which visit, its number in the collective; and what for.

    >>> draw_of(7, 3, 12, 0, 0) == draw_of(7, 3, 12, 0, 0) != draw_of(7, 3, 12, 1, 0)
    True
    """
    state = mix(mix(mix(seed & _WORD) ^ (seed >> _BITS)) ^ rank)
    return mix(mix(mix(state ^ visit) ^ task) ^ which)


def first_above(limits: Any, first: int, last: int, draw: int) -> int:
    """Return the first place in first..last - 1, where limits ascend, at which the limit is above a draw.

    >>> first_above([5, 9, 2**32], 0, 3, 4), first_above([5, 9, 2**32], 0, 3, 9)
    (0, 2)
    """
    while first < last:
        middle = (first + last) >> 1
        if limits[middle] > draw:
            last = middle
        else:
            first = middle + 1
    return first


def delay_table(jitter: Jitter, fabric: Fabric, ranks: Sequence[int], routes: Routes) -> DelayTable | None:
    """Return the delays that are stated for the messages of a program, `ranks` by position; or None."""
    if jitter.message_delay is None:
        return None
    stated = jitter.message_delay
    limits, values = zip(*_steps(delay_quantile(stated), stated.share), strict=True)
    hit = _crossing(fabric, routes, stated.dimensions)
    return DelayTable(
        seed=np.array([jitter.seed], np.int64),
        rank=np.array(ranks, np.int32),
        starts=starts_of([len(limits)]),
        limits=np.array(limits, np.int64),
        values=np.array(values, np.int64),
        noise=np.where(hit, 0, NONE).astype(np.int32),
    )


def _crossing(fabric: Fabric, routes: Routes, dimensions: tuple[str, ...]) -> Bools:
    """Tell of each route whether it crosses a link of some dimensions, of any if none is named."""
    named = [fabric.dimensions.index(name) for name in dimensions]
    counts = np.isin(fabric.dimension, named) if named else np.ones(len(fabric), np.bool_)
    owner = np.repeat(np.arange(len(routes)), np.diff(routes.starts))
    return np.bincount(owner, counts[routes.links], len(routes)) > 0


def _steps(quantile: Callable[[float], float], share: float) -> Iterator[tuple[int, int]]:
    """Yield (limit, picoseconds): a draw below the limit, and not below the one before, takes the value.

    `quantile` is that of the probability of more, above which each halving has its own steps, so that tails
    are as fine as the middle; `share` of all draws are delayed.
    """
    late = round(share * 2**_BITS)
    before = 2**_BITS - late
    if before:
        yield before, 0
    for halving in range(_BITS):
        high = late >> halving
        low = late >> (halving + 1)
        for cell in range(_CELLS):
            upper, lower = (high - (high - low) * place // _CELLS for place in (cell, cell + 1))
            if upper > lower:
                yield 2**_BITS - lower, max(0, ceil(quantile((upper + lower) / 2 / late)))
    if low:
        yield 2**_BITS, ceil(quantile(low / 2 / late))
