"""Lower bounds on the time of a collective: no algorithm can be faster.

Three arguments, each valid on its own: what members must send and receive over their own links (bandwidth),
the longest path that somebody's data must take (latency), and what must cross the fabric's narrowest halving
(bisection). Switches that reduce and multiply data spare members to send or receive on behalf of others: then
the first counts what each member must send and receive itself. Headers are not counted. Who has a part of
less than a byte may have none: latency then counts to the nearest member, or not at all. What one root sends
or receives crosses a halving in one direction only, which need not be the narrow one: it has no such bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from math import ceil
from typing import Literal

import numpy as np
from msgspec import Struct

from rapid_des.chakra.trace import CollectiveType
from rapid_des.network.fabric import Fabric
from rapid_des.units import PS_PER_S

C = CollectiveType
_FROM_ROOT = frozenset({C.BROADCAST, C.SCATTER})
_TO_ROOT = frozenset({C.REDUCE, C.GATHER})
_IN_PARTS = frozenset({C.REDUCE_SCATTER, C.REDUCE_SCATTER_BLOCK, C.ALL_TO_ALL, C.SCATTER})
_MOST_SOURCES = 64
"""The most members whose distances are computed; with more members the latency bound stays valid but may be
loose.
"""


class Bounds(Struct, frozen=True):
    """Picoseconds; `bisection` is 0 where no cut is known."""

    bandwidth: int
    latency: int
    bisection: int

    @property
    def time(self) -> int:
        """The greatest of them."""
        return max(self.bandwidth, self.latency, self.bisection)

    @property
    def kind(self) -> Literal["bandwidth", "latency", "bisection"]:
        """The name of the longest bound."""
        if self.time == self.bandwidth:
            return "bandwidth"
        return "bisection" if self.time == self.bisection else "latency"


class Traffic(Struct, frozen=True):
    """Bytes that must move, whatever the algorithm."""

    total: Fraction
    """The bytes that all members together send (and receive)."""
    send: Fraction
    """The bytes that the busiest sender sends."""
    receive: Fraction
    """The bytes that the busiest receiver receives."""
    crossing: Fraction
    """The bytes that cross a halving of the members in one direction."""


def traffic(collective: CollectiveType, members: int, size: int) -> Traffic:
    """Return the bytes to move for an input buffer of `size` bytes a member (a shard for all-gather, gather).

    Parts are whole bytes: one of n has size / n rounded up or down, and the root may keep a larger one.
    """
    n, s = Fraction(members), Fraction(size)
    half, nothing = n // 2, Fraction(0)
    rest, part, scattered = (n - 1) / n * s, Fraction(size // members), s - ceil(s / n)
    return {
        C.ALL_REDUCE: Traffic(2 * (n - 1) * s, s, s, s),
        C.ALL_GATHER: Traffic(n * (n - 1) * s, s, (n - 1) * s, half * s),
        C.REDUCE_SCATTER: Traffic(n * rest, rest, s / n, half * part),
        C.REDUCE_SCATTER_BLOCK: Traffic(n * rest, rest, s / n, half * part),
        C.ALL_TO_ALL: Traffic(n * rest, rest, rest, half * (n - half) * part),
        C.BROADCAST: Traffic((n - 1) * s, s, s, s),
        C.REDUCE: Traffic((n - 1) * s, s, s, s),
        C.GATHER: Traffic((n - 1) * s, s, (n - 1) * s, half * s),
        C.SCATTER: Traffic(scattered, scattered, scattered / (n - 1), half * part),
        C.BARRIER: Traffic(nothing, nothing, nothing, nothing),
    }[collective]


def bounds(  # noqa: PLR0913 - the last two by name
    fabric: Fabric,
    group: Sequence[int],
    collective: CollectiveType,
    size: int,
    *,
    halving: int = 0,
    in_switch: bool = False,
) -> Bounds:
    """Return the lower bounds for the GPUs `group`; `halving` bytes/s cross their narrowest known halving.

    `in_switch`: for algorithms whose switches reduce and multiply data. Links of 0 bytes/s do not count. The
    first of `group` is the root. A group of one, and one that moves no bytes, needs no time.
    """
    if len(group) < 2:
        return Bounds(0, 0, 0)
    need = traffic(collective, len(group), size)
    outward, inward = _rates(fabric, fabric.source, group), _rates(fabric, fabric.destination, group)
    bandwidth = max(_time(need.send, max(outward)), _time(need.receive, max(inward)))
    if not in_switch:
        bandwidth = max(bandwidth, _time(need.total, sum(outward)), _time(need.total, sum(inward)))
    rooted = collective in _FROM_ROOT | _TO_ROOT
    bisection = _time(need.crossing, halving) if halving and not rooted else 0
    return Bounds(bandwidth, _latency(fabric, group, collective, size), bisection)


def _rates(fabric: Fabric, ends: np.ndarray, group: Sequence[int]) -> list[int]:
    """Return the rate of each member's links, out or in."""
    total = np.bincount(ends, fabric.bandwidth, fabric.nodes)  # as floats: no sum wraps
    return [int(total[member]) for member in group]


def _time(size: Fraction, rate: int) -> int:
    return -(-size.numerator * PS_PER_S // (size.denominator * rate)) if rate else 0


def _latency(fabric: Fabric, group: Sequence[int], collective: CollectiveType, size: int) -> int:
    """Return the longest of the least latencies that any required transfer of data has."""
    if size == 0 and collective != C.BARRIER:
        return 0
    all_have_parts = collective not in _IN_PARTS or size >= len(group)
    if collective in _FROM_ROOT:
        return max(_farthest(fabric, group[:1], group)) if all_have_parts else 0
    if collective in _TO_ROOT:
        return max(_farthest(fabric, group, group[:1]))
    farthest = _farthest(fabric, group, group)
    return max(farthest) if all_have_parts else min(farthest)


def _farthest(fabric: Fabric, sources: Sequence[int], destinations: Sequence[int]) -> list[int]:
    """Return, for each destination, the least latency from the farthest of the (first) sources."""
    starts, links = fabric.outgoing
    wanted = set(destinations)

    @cache
    def hops(node: int) -> list[tuple[int, int]]:
        leaving = links[starts[node] : starts[node + 1]]
        living = leaving[fabric.bandwidth[leaving] > 0]
        return list(zip(fabric.latency[living].tolist(), fabric.destination[living].tolist(), strict=True))

    distances = [_distances(hops, source, wanted) for source in sources[:_MOST_SOURCES]]
    return [max(distance.get(member, 0) for distance in distances) for member in destinations]


def _distances(hops: Callable[[int], list[tuple[int, int]]], source: int, wanted: set[int]) -> dict[int, int]:
    """Return the least latency to every wanted node that is reached, and to the nodes before them."""
    settled: dict[int, int] = {}
    waiting, missing = [(0, source)], set(wanted)
    while waiting and missing:
        distance, node = heapq.heappop(waiting)
        if node in settled:
            continue
        settled[node] = distance
        missing.discard(node)
        for latency, neighbour in hops(node):
            if neighbour not in settled:
                heapq.heappush(waiting, (distance + latency, neighbour))
    return settled
