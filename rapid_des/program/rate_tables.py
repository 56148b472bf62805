"""What a machine's `dcqcn` block means for the links and routes of a program (R14)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rapid_des.arrays import Bools, Int32s, Int64s
from rapid_des.network.congestion import Dcqcn
from rapid_des.network.fabric import Fabric, Routes
from rapid_des.network.protocol import Protocol, acknowledgement_time, units
from rapid_des.program import rates
from rapid_des.program.program import NONE, RateTable
from rapid_des.program.timetable import FULL_RATE
from rapid_des.units import PS_PER_S, ceil_divide


def rate_table(
    fabric: Fabric, stated: Dcqcn, protocol: Protocol, routes: Routes, parts: tuple[Sequence[int], Int32s]
) -> RateTable:
    """Return the table of a whole `dcqcn` block; `parts` are the bytes of each size row and routes back."""
    sizes, back = parts
    marking = np.ones(len(fabric), np.bool_)
    if stated.dimensions is not None:
        chosen = [place for place, name in enumerate(fabric.dimensions) if name in stated.dimensions]
        marking = np.isin(fabric.dimension, chosen)
    assert stated.kmin is not None and stated.kmax is not None, "it is whole"
    return RateTable(
        first=np.where(marking, _queue(int(stated.kmin), fabric.bandwidth), NONE),
        full=_queue(int(stated.kmax), fabric.bandwidth),
        packets=np.array([units(size, protocol.payload)[0] for size in sizes], np.int64),
        echo=_echo(fabric, protocol, routes)[back],
        control=_control(stated),
        rows=_rows(fabric, stated, routes, marking),
    )


def _queue(size: int, bandwidth: Int64s) -> Int64s:
    """Return the time that each link needs for this many bytes, in picoseconds."""
    times = [min(ceil_divide(size * PS_PER_S, rate), rates.LONGEST) for rate in bandwidth.tolist()]
    return np.array(times, np.int64)


def _echo(fabric: Fabric, protocol: Protocol, routes: Routes) -> Int64s:
    """Return a notice's time on each route: that of an acknowledgement on idle links, at least 1 ps."""
    known = {
        rate: acknowledgement_time(protocol, [(rate, 0)]) for rate in np.unique(fabric.bandwidth).tolist()
    }
    of_link = np.array([known[rate] for rate in fabric.bandwidth.tolist()], np.int64) + fabric.latency
    sums = np.concatenate(([0], np.cumsum(of_link[routes.links])))
    times: Int64s = np.maximum(sums[routes.starts[1:]] - sums[routes.starts[:-1]], 1)
    return times


def _control(stated: Dcqcn) -> Int64s:
    assert stated.gain is not None and stated.pmax is not None, "it is whole"
    control = {
        rates.GAIN: max(1, round(stated.gain * rates.ONE)),
        rates.ALPHA_TIMER: stated.alpha_timer,
        rates.TIMER: stated.rate_timer,
        rates.BYTES: stated.byte_counter,
        rates.FAST: stated.fast_recovery,
        rates.CLAMPS: stated.clamp == "every_cut",
        rates.INTERVAL: stated.cnp_interval,
        rates.MOST: round(stated.pmax * rates.ONE),
        rates.SEED: stated.seed,
    }
    return np.array([int(control[place] or 0) for place in sorted(control)], np.int64)


def _rows(fabric: Fabric, stated: Dcqcn, routes: Routes, marking: Bools) -> Int64s:
    """Return the initial state of each route's rate: the rate of its NIC."""
    injection, line = _line_rates(fabric, routes, marking)
    rows = np.zeros((len(injection), rates.COLUMNS), np.int64)
    cap = _shares(line.tolist(), injection)
    for column in (rates.CAP, rates.CURRENT, rates.TARGET, rates.SLOWEST):
        rows[:, column] = cap
    for column, rate in (
        (rates.LEAST, stated.minimum_rate),
        (rates.STEP, stated.additive_increase),
        (rates.LEAP, stated.hyper_increase),
    ):
        rows[:, column] = np.minimum(_shares([int(rate or 0)] * len(injection), injection), cap)
    rows[:, rates.NOTICED_AT] = NONE
    return rows


def _line_rates(fabric: Fabric, routes: Routes, marking: Bools) -> tuple[Int64s, Int64s]:
    """Return each route's first rate, and the slowest up to its first link that marks, which is the NIC's.

    Where no link marks both are the same, as on a route without links, where they are 1.
    """
    starts, lengths = routes.starts[:-1], np.diff(routes.starts)
    injection, passed = np.ones(len(starts), np.int64), np.zeros(len(starts), np.bool_)
    crosses = np.flatnonzero(lengths)
    injection[crosses] = fabric.bandwidth[routes.links[starts[crosses]]]
    slowest = injection.copy()
    for place in range(int(lengths.max(initial=0))):
        here = np.flatnonzero(~passed & (lengths > place))
        links = routes.links[starts[here] + place]
        slowest[here] = np.minimum(slowest[here], fabric.bandwidth[links])
        passed[here] = marking[links]
    return injection, np.where(passed, slowest, injection)


def _shares(values: Sequence[int], wholes: Int64s) -> Int64s:
    """Return rates as shares of others, at least the least and at most all."""
    pairs = zip(values, wholes.tolist(), strict=True)
    shares = [min(max(value * FULL_RATE // whole, 1), FULL_RATE) for value, whole in pairs]
    return np.array(shares, np.int64)
