"""How far queue pairs run ahead of their acknowledgements, and what those cost (R9).

A machine's `dcqcn` block becomes tables of the links and routes whose senders slow down at marks (R14).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rapid_des.arrays import Bools, Int32s, Int64s
from rapid_des.network.congestion import Dcqcn, Window
from rapid_des.network.fabric import Fabric, Routes
from rapid_des.network.protocol import (
    Hops,
    Protocol,
    acknowledgement_time,
    crossings,
    service_time,
    units,
    window_bytes,
)
from rapid_des.network.specs import Switching
from rapid_des.program import rates
from rapid_des.program.program import NONE, HopTable, PauseTable, QueuePairTable, RateTable, TailTable
from rapid_des.program.services import by_route, packets
from rapid_des.program.timetable import FULL_RATE
from rapid_des.units import PS_PER_S, ceil_divide
from rapid_des.values import replace


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
    # a route's sum is the difference of two running sums over the links of all routes
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
    # all routes advance link by link at once, until each has passed its first link that marks
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


_ALL = 2**31
"""A number of parts that no message reaches."""


def queue_pair_table(
    fabric: Fabric, switching: Switching, routes: Routes, hops: HopTable, back: Int32s
) -> tuple[HopTable, QueuePairTable]:
    """Return the hop table with its last bytes followed, and what holds senders back.

    `back` is the route back of each route. A round trip is counted with the latencies of the route there.
    """
    protocol, sizes = packets(switching), hops.bytes.tolist()
    profiles, _ = by_route(fabric, routes)
    held = [_held(protocol, switching, profile, sizes) for profile in profiles]
    crossed = [[crossings(protocol, size, profile) for size in sizes] for profile in profiles]
    latency = np.array([lag for profile in profiles for _, lag in profile], np.int64)
    lag = np.ascontiguousarray(np.broadcast_to(latency, (len(sizes), len(latency))))
    times = {
        rate: acknowledgement_time(protocol, [(rate, 0)]) for rate in np.unique(fabric.bandwidth).tolist()
    }
    allowance, answer = (
        _columns(
            [
                [[row[which]] * len(profile) for row in rows]
                for rows, profile in zip(held, profiles, strict=True)
            ],
            len(sizes),
        )
        for which in (0, 1)
    )
    table = QueuePairTable(
        allowance,
        answer,
        acknowledgements=np.array([_answers(protocol, size) for size in sizes], np.int64),
        acknowledgement_time=np.array([times[rate] for rate in fabric.bandwidth.tolist()], np.int64),
        back=back,
        pause=_pauses(fabric, switching),
        rates=_rates(fabric, switching, routes, (sizes, back)),
    )
    return replace(hops, lag=lag, tails=TailTable(lag, _columns(crossed, len(sizes)))), table


def _pauses(fabric: Fabric, switching: Switching) -> PauseTable | None:
    pause = None if switching.congestion is None else switching.congestion.pause
    if pause is None:
        return None
    latency = np.maximum(fabric.latency, 1).astype(np.int64)
    return PauseTable(int(pause.stop_above), int(pause.go_at), latency)


def _rates(
    fabric: Fabric, switching: Switching, routes: Routes, parts: tuple[Sequence[int], Int32s]
) -> RateTable | None:
    """Return the marking table, if anything marks (`parts`: bytes by size row and return routes)."""
    if switching.congestion is None or switching.congestion.dcqcn is None:
        return None
    return rate_table(fabric, switching.congestion.dcqcn.whole(), packets(switching), routes, parts)


def _answers(protocol: Protocol, size: int) -> int:
    return ceil_divide(units(size, protocol.payload)[0], protocol.packets_per_acknowledgement)


def _columns(blocks: Sequence[Sequence[Sequence[int]]], rows: int) -> Int64s:
    """Return an array [size row, class] of a value that depends on profile, size and hop."""
    parts = [np.array(block, np.int64).reshape(rows, -1) for block in blocks]
    return np.ascontiguousarray(np.concatenate([np.zeros((rows, 0), np.int64), *parts], axis=1))


def _held(
    protocol: Protocol, switching: Switching, hops: Hops, sizes: Sequence[int]
) -> list[tuple[int, int]]:
    """Return (allowance, answer) of parts of every size on one kind of route.

    A part begins a window after a byte within the part that is `allowance` before it: the time until its
    acknowledgement is back counts from that part's arrival, less what its later bytes take.
    """
    if not isinstance(switching.congestion, Window):
        return [(_ALL, 0)] * len(sizes)
    window = window_bytes(protocol, hops, switching.congestion.bandwidth_delay_products)
    slowest = min(rate for rate, _ in hops)
    back = acknowledgement_time(protocol, hops)
    held = []
    for size in sizes:
        ahead, rest = divmod(window, max(size, 1))
        later = rest * service_time(protocol, size, slowest) // max(size, 1)
        held.append((min(ahead + 1, _ALL), back - later))
    return held
