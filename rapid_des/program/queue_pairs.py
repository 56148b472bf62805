"""How far queue pairs run ahead of their acknowledgements, and what those cost (R9)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rapid_des.arrays import Int32s, Int64s
from rapid_des.network.congestion import Window
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
from rapid_des.program.profiles import by_route
from rapid_des.program.program import HopTable, PauseTable, QueuePairTable, RateTable, TailTable
from rapid_des.program.services import packets
from rapid_des.units import ceil_divide
from rapid_des.values import replace

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
    from rapid_des.program.rate_tables import rate_table

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
