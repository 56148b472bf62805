"""R10 to R12: which of several routes a message takes, and how much later than its last byte it arrives.

Both are drawn by who sends what.

The functions with plain integers are shared by every engine; the tables are made before the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil, exp, lgamma, log, log1p
from typing import Any

import numpy as np

from rapid_des.arrays import Bools, Int32s, starts_of
from rapid_des.errors import InputError
from rapid_des.machine import Machine
from rapid_des.network.fabric import Fabric, Routes
from rapid_des.network.faults import Fault, hits
from rapid_des.network.jitter import delay_quantile, draws_delays
from rapid_des.program.program import NONE, DelayTable

_WORD = 0xFFFFFFFF
_BITS = 32
NOISE, RETRIES = 0, 1
"""The purposes of a draw: noise of a message, or its retransmissions."""
_MOST_TIMEOUTS = 64
_CELLS = 256
"""Number of steps that approximate a distribution for each halving of the tail probability."""


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


def limit_above(limits: Any, first: int, last: int, draw: int) -> int:
    """Return the first place in first..last - 1, where limits ascend, at which the limit is above a draw.

    >>> limit_above([5, 9, 2**32], 0, 3, 4), limit_above([5, 9, 2**32], 0, 3, 9)
    (0, 2)
    """
    while first < last:
        middle = (first + last) >> 1
        if limits[middle] > draw:
            last = middle
        else:
            first = middle + 1
    return first


def delay_table(
    machine: Machine, ranks: Sequence[int], routes: Routes, sizes: Sequence[int]
) -> DelayTable | None:
    """Return the delays that a machine states for the messages of a program; None if it states none.

    `ranks` are those by position, `sizes` the payload of each size row in bytes.
    """
    if not draws_delays(machine.spec.jitter, machine.faults):
        return None
    jitter, rows = machine.spec.jitter, _RetryRows()
    stated = jitter.message_delay if jitter is not None else None
    noise = np.full(len(routes), NONE, np.int32)
    if stated is not None:
        row = rows.add(_steps(delay_quantile(stated), stated.share))
        noise[_crossing(machine.fabric, routes, stated.dimensions)] = row
    losses, columns = _losses(machine, routes)
    retries = [[rows.add(retry_steps(fault, lost, size)) for fault, lost in columns] for size in sizes]
    return DelayTable(
        seed=np.array([0 if jitter is None else jitter.seed], np.int64),
        rank=np.array(ranks, np.int32),
        starts=starts_of(rows.lengths),
        limits=np.array(rows.limits, np.int64),
        values=np.array(rows.values, np.int64),
        noise=noise,
        losses=losses,
        retries=np.array(retries, np.int32).reshape(len(sizes), len(columns)),
        loss_seed=np.array([fault.seed for fault, _ in columns], np.int64),
    )


class _RetryRows:
    """Rows of (limit, value) in one table; equal rows are stored once."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.limits: list[int] = []
        self.values: list[int] = []
        self._known: dict[tuple[tuple[int, int], ...], int] = {}

    def add(self, steps: Iterable[tuple[int, int]]) -> int:
        """Add a row if it is new; return its number."""
        row = tuple(steps)
        if row not in self._known:
            self._known[row] = len(self.lengths)
            self.lengths.append(len(row))
            self.limits += [limit for limit, _ in row]
            self.values += [value for _, value in row]
        return self._known[row]


def _losses(machine: Machine, routes: Routes) -> tuple[Int32s, list[tuple[Fault, float]]]:
    """Return each route's column, and the fault and packet loss rate of each column."""
    lossy: dict[int, Fault] = {}
    for fault, hit in hits(machine.healthy, machine.faults, machine.spec.gpus_per_node):
        for link in hit.links.tolist() if fault.timeout else ():
            if link in lossy:
                problem = f"two faults state a timeout for {machine.healthy.link_name(link)}; allowed: one"
                raise InputError(f"{machine.path}: {problem}")
            lossy[link] = fault
    if lossy and machine.switching.spray is not None:
        problem = "faults with timeout do not go with switching.spray: which route's packets are lost is open"
        raise InputError(f"{machine.path}: {problem}")
    columns: dict[tuple[Fault, int], int] = {}
    column_of = np.full(len(routes), NONE, np.int32)
    for route in range(len(routes)) if lossy else ():
        crossed = [lossy[link] for link in routes.of(route) if link in lossy]
        if any(fault != crossed[0] for fault in crossed):
            both = f"{crossed[0].words!r} and another one with timeout"
            raise InputError(f"{machine.path}: a message crosses links of {both}; allowed: one for its route")
        if crossed:
            # A column for each fault and number of lossy links: losses on several links are independent.
            column_of[route] = columns.setdefault((crossed[0], len(crossed)), len(columns))
    return column_of, [(fault, 1 - (1 - float(fault.loss)) ** count) for fault, count in columns]


def retry_steps(fault: Fault, lost: float, size: int) -> Iterator[tuple[int, int]]:
    """Yield the steps of what timeouts add to a message of `size` bytes whose packets are lost so often.

    Selective repeat sends what is missing together, once a timeout, each `backoff` times as long as the one
    before: t timeouts are enough with (1 - lost^(t + 1))^packets. Go-back-N waits for each loss by itself,
    and what follows it is lost with it: their number before this many successes is negative binomial.
    """
    assert fault.packet is not None and fault.timeout is not None, "a fault with timeouts states both"
    packets = max(1, -(-size // int(fault.packet)))
    selective = fault.retransmission == "selective_repeat"
    times = _in_a_row(lost, packets) if selective else _one_by_one(lost, packets)
    pause, late, before = float(fault.timeout), 0.0, 0
    for number, reached in times:
        if not selective:
            late = number * pause
        limit = min(2**_BITS, round(reached * 2**_BITS))
        if limit > before:
            yield limit, ceil(late)
            before = limit
        if selective:
            late, pause = late + pause, pause * (fault.backoff or 1.0)
    if before < 2**_BITS:
        yield 2**_BITS, ceil(late)


def _in_a_row(lost: float, packets: int) -> Iterator[tuple[int, float]]:
    """Yield (timeouts in a row, the probability that these suffice), until that rounds to 1 in 32 bits."""
    for number in range(_MOST_TIMEOUTS):
        reached = exp(packets * log1p(-(lost ** (number + 1))))
        yield number, reached
        if reached > 1 - 2.0**-_BITS:
            return


def _one_by_one(lost: float, packets: int) -> Iterator[tuple[int, float]]:
    """Yield (losses, the probability of no more), from ten standard deviations below the mean upwards."""
    mean = packets * lost / (1 - lost)
    spread = 10 * (mean / (1 - lost)) ** 0.5
    reached = 0.0
    for number in range(max(0, int(mean - spread)), int(mean + spread) + _MOST_TIMEOUTS):
        # Negative binomial in logarithms: C(packets + n - 1, n) lost^n (1 - lost)^packets.
        log_coefficient = lgamma(packets + number) - lgamma(number + 1) - lgamma(packets)
        reached += exp(log_coefficient + number * log(lost) + packets * log1p(-lost))
        yield number, min(reached, 1.0)
        if reached > 1 - 2.0**-_BITS:
            return


def _crossing(fabric: Fabric, routes: Routes, dimensions: tuple[str, ...]) -> Bools:
    """Return for each route whether it crosses a link of some dimensions, of any if none is named."""
    named = [fabric.dimensions.index(name) for name in dimensions]
    counts = np.isin(fabric.dimension, named) if named else np.ones(len(fabric), np.bool_)
    owner = np.repeat(np.arange(len(routes)), np.diff(routes.starts))
    return np.bincount(owner, counts[routes.links], len(routes)) > 0


def _steps(quantile: Callable[[float], float], share: float) -> Iterator[tuple[int, int]]:
    """Yield (limit, picoseconds): a draw below the limit, and not below the one before, takes the value.

    `quantile` is that of the probability of more, above which each halving has its own steps, so that tails
    are as fine as the middle; `share` of all draws are delayed.
    """
    # Draws below `before` are not delayed; the rest covers the distribution from short delays to long.
    late = round(share * 2**_BITS)
    before = 2**_BITS - late
    if before:
        yield before, 0
    for halving in range(_BITS):
        # Each halving of the tail is cut into _CELLS cells; a cell takes the quantile of its middle.
        high = late >> halving
        low = late >> (halving + 1)
        for cell in range(_CELLS):
            upper, lower = (high - (high - low) * place // _CELLS for place in (cell, cell + 1))
            if upper > lower:
                yield 2**_BITS - lower, max(0, ceil(quantile((upper + lower) / 2 / late)))
    if low:
        yield 2**_BITS, ceil(quantile(low / 2 / late))


_GOLDEN = 0x61C88647
"""A constant of 32-bit multiplicative hashing: no product reaches 2**63."""


def message_hash(position: int, injected: int, task: int) -> int:
    """Return 32 bits of who sends a message: position of its rank, time of its injection, its task.

    >>> message_hash(3, 10**12, 0) == message_hash(3, 10**12, 0) != message_hash(3, 10**12, 1)
    True
    """
    state = ((injected & _WORD) * _GOLDEN >> 13) & _WORD
    state = ((state ^ (injected >> 32)) * _GOLDEN >> 13) & _WORD
    state = ((state ^ position) * _GOLDEN >> 13) & _WORD
    return ((state ^ task) * _GOLDEN >> 13) & _WORD


def column_of(number: int, place: int, minimal: int, count: int) -> int:
    """Return which column of a row is looked at: those that are no detours first, each from a number.

    >>> [column_of(7, place, 2, 5) for place in range(5)]
    [1, 0, 2, 3, 4]
    """
    return (number + place) % minimal if place < minimal else minimal + (number + place) % (count - minimal)
