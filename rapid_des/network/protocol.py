"""The costs of a link protocol: packets, headers, acknowledgements, and the pipeline over hops.

Times are integer picoseconds, sizes bytes, rates bytes a second. Every link stores and forwards whole
*units*: packets in `cut_through` and `fluid`, whole segments in `store_and_forward`. At zero load the units
of a message pass its links l as `free[l] = max(free[l], arrival at l) + time[l]` says; `pipeline_time` is the
closed form of that recursion. Times are exact fractions until one rounding up at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, lcm
from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from rapid_des.config import Spec
from rapid_des.units import PS_PER_NS, PS_PER_S, Size, ceil_divide, serialization_time

_Time = TypeVar("_Time", int, Fraction)
Hops: TypeAlias = Sequence[tuple[int, int]]
"""The (bandwidth, latency) of each link on a route, in order."""

MOST_LATENCY = 3600 * PS_PER_S
"""The largest latency of one link in picoseconds."""
ACK_RATIO_ONE = 65_536
"""Acknowledgement ratios are integers in this unit."""


class Protocol(Spec, frozen=True):
    """The `protocol` block of a machine file."""

    payload: Size
    """The largest payload of a packet in bytes."""
    header: Size
    """The bytes that every packet adds on the wire."""
    acknowledgement: Size
    """The wire bytes of an acknowledgement; 0 B where the link layer sends none that cost bandwidth."""
    packets_per_acknowledgement: Annotated[int, msgspec.Meta(ge=1)]
    """The number of data packets that one acknowledgement covers."""
    packet_time: Literal["exact", "whole_ns"]
    """The rounding of packet times. `whole_ns`: to nanoseconds, as ns-3 does, but to at least one."""


class CutThrough(Struct, frozen=True):
    """One message's visits to the links of its route, forwarded once the first packet has arrived.

    Link l is busy for `occupancy[l]`; the next visit is ready `head[l] + lag[l]` after this one started, and
    the message has arrived `occupancy + lag` after the last visit started. The last lag also holds the time
    that the last packet trails behind on slower links before; at zero load the arrival is exact.
    """

    occupancy: tuple[int, ...]
    head: tuple[int, ...]
    lag: tuple[int, ...]


class FluidService(Struct, frozen=True):
    """One message in the fluid mode: when it takes its share of links, and of how much.

    It joins all links of its route `before` after it starts, and has arrived `after` its last byte is out.
    """

    wire: int
    """The bytes that its links carry."""
    ratio: int
    """The acknowledgement load on the route back as a share of its own load, in 1 / `ACK_RATIO_ONE`."""
    before: int
    after: int


def units(size: int, unit: int) -> tuple[int, int]:
    """Return how many units of at most `unit` bytes carry `size` bytes, and the size of the last.

    >>> units(10_000, 4096), units(0, 4096)
    ((3, 1808), (1, 0))
    """
    count = max(1, ceil_divide(size, unit))
    return count, size - (count - 1) * unit


def wire_bytes(protocol: Protocol, size: int) -> int:
    """Return the bytes that `size` payload bytes occupy on a link."""
    return size + units(size, protocol.payload)[0] * protocol.header


def packet_time(protocol: Protocol, payload: int, bandwidth: int) -> Fraction:
    """Return the exact time that one packet with `payload` bytes takes on a link."""
    return _time_on_link(protocol, payload + protocol.header, bandwidth)


def service_time(protocol: Protocol, size: int, bandwidth: int) -> int:
    """Return the time that a message's (or segment's) packets, back to back, take on a link."""
    return ceil(_service_time(protocol, size, bandwidth))


def effective_bandwidth(protocol: Protocol, bandwidth: int) -> int:
    """Return the wire bytes a second that full packets get through a link (rounding of packet times)."""
    if protocol.packet_time == "exact":
        return bandwidth
    packet = protocol.payload + protocol.header
    return int(packet * PS_PER_S / packet_time(protocol, protocol.payload, bandwidth))


def payload_bandwidth_bound(protocol: Protocol, bandwidth: int) -> int:
    """Return payload bytes a second that no packets pass: times are rounded down by at most 0.5 ns.

    A packet with a header of h ns and a payload of p takes at least max(1, p + h - 0.5) ns.
    """
    if protocol.packet_time == "exact":
        return bandwidth
    header = Fraction(protocol.header * PS_PER_S // PS_PER_NS, bandwidth)
    return ceil(bandwidth * (1 + max(Fraction(0), Fraction(1, 2) - header)))


def acknowledgement_ratio(protocol: Protocol, size: int, bandwidth: int) -> int:
    """Return a message's acknowledgement load on the route back, as a share of its own load.

    In units of 1 / `ACK_RATIO_ONE`; `bandwidth` is that of the slowest link of the route.
    """
    packets = units(size, protocol.payload)[0]
    acknowledgements = ceil_divide(packets, protocol.packets_per_acknowledgement)
    load = acknowledgements * _time_on_link(protocol, protocol.acknowledgement, bandwidth)
    service = _service_time(protocol, max(size, 1), bandwidth)
    return ceil(load * ACK_RATIO_ONE / service)


def acknowledgement_time(protocol: Protocol, hops_back: Hops) -> int:
    """Return the time that the last acknowledgement takes back to the sender at zero load."""
    return ceil(sum(_time_on_link(protocol, protocol.acknowledgement, rate) + lag for rate, lag in hops_back))


def cut_through_time(protocol: Protocol, size: int, hops: Hops) -> int:
    """Return the zero-load arrival of a message that is forwarded packet by packet."""
    count, last = units(size, protocol.payload)
    parts, full, rest = _in_parts(protocol, (protocol.payload, last), hops)
    return ceil_divide(pipeline_time(count, full, rest), parts) + sum(lag for _, lag in hops)


def _in_parts(protocol: Protocol, payloads: tuple[int, int], hops: Hops) -> tuple[int, list[int], list[int]]:
    """Return how many parts a picosecond has, and by hop how many of these packets of two payloads take.

    Such whole numbers are as exact as fractions, and a fraction of the work.
    """
    exact = protocol.packet_time == "exact"
    parts = lcm(*(rate for rate, _ in hops)) if exact else 1
    full, rest = (
        [
            wire * PS_PER_S * (parts // rate) if exact else int(_time_on_link(protocol, wire, rate))
            for rate, _ in hops
        ]
        for wire in (payload + protocol.header for payload in payloads)
    )
    return parts, full, rest


def pipeline_time(count: int, full: Sequence[_Time], last: Sequence[_Time]) -> _Time:
    """Return when the last of `count` units leaves the last link, latencies apart.

    Unit i passes link l in `full[l]`, the last unit in `last[l]` (no more than `full[l]`).

    >>> pipeline_time(3, [10, 30, 10], [10, 30, 10])
    110
    """
    rest = sum(last[1:], last[0])
    if count == 1:
        return rest
    latest = walked = slowest = full[0] * 0
    for full_time, last_time in zip(full, last, strict=True):
        walked += full_time
        slowest = max(slowest, full_time)
        latest = max(latest, walked + (count - 2) * slowest + rest)
        rest -= last_time
    return latest


def cut_through(protocol: Protocol, size: int, hops: Hops) -> CutThrough:
    """Return the visits of a message that the next hop may forward once its first packet has arrived."""
    count, last = units(size, protocol.payload)
    parts, full, rest = _in_parts(protocol, (protocol.payload, last), hops)
    return _forwarded(count, (full, rest), parts, [lag for _, lag in hops])


def in_segments(protocol: Protocol | None, size: int, hops: Hops, *, segment: int) -> CutThrough:
    """Return the visits of a message of which each hop forwards whole segments, as one that cuts through.

    A segment takes whole picoseconds on a link, as where each is simulated.
    """
    count, last = units(size, segment)
    full, rest = ([stored(protocol, each, rate) for rate, _ in hops] for each in (min(size, segment), last))
    return _forwarded(count, (full, rest), 1, [lag for _, lag in hops])


def stored(protocol: Protocol | None, size: int, bandwidth: int) -> int:
    """Return the time that a message (or segment) takes on a link that forwards it whole."""
    return (
        serialization_time(size, bandwidth) if protocol is None else service_time(protocol, size, bandwidth)
    )


def _forwarded(
    count: int, times: tuple[Sequence[int], Sequence[int]], parts: int, lags: Sequence[int]
) -> CutThrough:
    """Return the visits of `count` units; each link takes `times` for the first and for the last unit.

    Times are in units of 1 / `parts` picoseconds.
    """
    full, rest = times
    head = tuple(ceil_divide(first, parts) for first in (full if count > 1 else rest))
    together = zip(full, rest, strict=True)
    occupancy = tuple(ceil_divide((count - 1) * each + final, parts) for each, final in together)
    arrival = ceil_divide(pipeline_time(count, full, rest), parts) + sum(lags)
    last_start = sum(head[:-1]) + sum(lags[:-1])
    trailing = max(lags[-1], arrival - last_start - occupancy[-1])
    return CutThrough(occupancy, head, (*lags[:-1], trailing))


def tails(protocol: Protocol, size: int, hops: Hops) -> tuple[list[int], list[int]]:
    """Return (across, along) of each hop of a message in `cut_through`, as `program.TailTable` has them.

    At zero load the last packet leaves each link as `pipeline_time` says. A hop's `across` is the time from
    the end of its visit until then and the latency; `along` is that from one link to the next, but no more
    than the last packet needs by itself: so no visit at rate 1 ends too early for the one before it.
    """
    visit = cut_through(protocol, size, hops)
    last, left = units(size, protocol.payload)[1], left_after(protocol, size, hops)
    start = lags = crossed = 0
    across, along = list[int](), list[int]()
    for hop, (rate, lag) in enumerate(hops):
        rest = packet_time(protocol, last, rate)
        served = start + visit.occupancy[hop]
        passed = max(ceil(left[hop]) + lags, served) + lag
        across.append(passed - served)
        along.append(min(ceil(rest) + lag, passed - crossed) if hop else 0)
        crossed, lags, start = passed, lags + lag, start + visit.head[hop] + lag
    return across, along


def crossings(protocol: Protocol, size: int, hops: Hops) -> list[int]:
    """Return by hop how long after the hop before a message's last byte crosses it at zero load; 0 first."""
    visit = cut_through(protocol, size, hops)
    left = left_after(protocol, size, hops)
    start = lags = crossed = 0
    along = list[int]()
    for hop, (_, lag) in enumerate(hops):
        passed = max(ceil(left[hop]) + lags, start + visit.occupancy[hop]) + lag
        along.append(passed - crossed if hop else 0)
        crossed, lags, start = passed, lags + lag, start + visit.head[hop] + lag
    return along


def left_after(protocol: Protocol, size: int, hops: Hops) -> list[Fraction]:
    """Return when the last packet leaves each link at zero load, latencies apart, as `pipeline_time` says."""
    count, last = units(size, protocol.payload)
    left = walked = slowest = Fraction(0)
    times = []
    for rate, _ in hops:
        full, rest = packet_time(protocol, protocol.payload, rate), packet_time(protocol, last, rate)
        walked, slowest = walked + full, max(slowest, full)
        left = left + rest if count == 1 else max(left, walked + (count - 2) * slowest) + rest
        times.append(left)
    return times


def window_bytes(protocol: Protocol, hops: Hops, bandwidth_delay_products: float) -> int:
    """Return the payload of a window: the slowest link's rate times the idle round trip of a packet."""
    slowest = min(rate for rate, _ in hops)
    round_trip = sum(2 * lag + protocol.payload * PS_PER_S // rate for rate, lag in hops)
    return int(round_trip * slowest // PS_PER_S * bandwidth_delay_products)


def fluid_service(protocol: Protocol, size: int, hops: Hops) -> FluidService:
    """Return the parameters of a message in the fluid mode; uncontended it arrives when its packets do.

    The latencies and the packet pipeline that a message needs besides its drain are cut in two: a link of its
    route is busy with it half of them after it starts, on average. Were they all to come after the drain, a
    full link would stand idle for as long.
    """
    wire = max(1, wire_bytes(protocol, size))  # a flow that drains nothing would never end
    slowest = min(effective_bandwidth(protocol, rate) for rate, _ in hops)
    rest = max(0, cut_through_time(protocol, size, hops) - serialization_time(wire, slowest))
    ratio = acknowledgement_ratio(protocol, size, min(rate for rate, _ in hops))
    return FluidService(wire=wire, ratio=ratio, before=rest // 2, after=rest - rest // 2)


def _service_time(protocol: Protocol, size: int, bandwidth: int) -> Fraction:
    count, last = units(size, protocol.payload)
    full = packet_time(protocol, protocol.payload, bandwidth)
    return (count - 1) * full + packet_time(protocol, last, bandwidth)


def _time_on_link(protocol: Protocol, wire: int, bandwidth: int) -> Fraction:
    if protocol.packet_time == "exact":
        return Fraction(wire * PS_PER_S, bandwidth)
    nanoseconds = (2 * wire * (PS_PER_S // PS_PER_NS) + bandwidth) // (2 * bandwidth)
    return Fraction((max(nanoseconds, 1) if wire else 0) * PS_PER_NS)
