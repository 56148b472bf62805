"""Lower bounds on the time of a collective: no algorithm can be faster.

Three arguments, each valid on its own: what members must send and receive over their own links (bandwidth),
the longest path that somebody's data must take (latency), and what must cross the fabric's narrowest halving
(bisection). Switches that reduce and multiply data spare members to send or receive on behalf of others: then
the first counts what each member must send and receive itself. Headers are not counted.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from rapid_des.chakra.trace import CollectiveType
from rapid_des.network.fabric import Fabric
from rapid_des.units import PS_PER_S

C = CollectiveType
_MOST_SOURCES = 64
"""Members whose distances are computed; with more members the latency bound stays valid, if not tight."""


@dataclass(frozen=True)
class Bounds:
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
        """Which one that is."""
        if self.time == self.bandwidth:
            return "bandwidth"
        return "bisection" if self.time == self.bisection else "latency"


@dataclass(frozen=True)
class Traffic:
    """Bytes that must move, whatever the algorithm."""

    total: Fraction
    """Sent (and received) by all members together."""
    send: Fraction
    """By the member that must send most."""
    receive: Fraction
    """By the member that must receive most."""
    crossing: Fraction
    """From one half of the members to the other, one way."""


def traffic(collective: CollectiveType, members: int, size: int) -> Traffic:
    """Return what must move for an input buffer of `size` bytes a member (a shard for all-gather, gather)."""
    n, s = Fraction(members), Fraction(size)
    half, nothing = n // 2, Fraction(0)
    rest = (n - 1) / n * s
    return {
        C.ALL_REDUCE: Traffic(2 * (n - 1) * s, s, s, s),
        C.ALL_GATHER: Traffic(n * (n - 1) * s, s, (n - 1) * s, half * s),
        C.REDUCE_SCATTER: Traffic(n * rest, rest, s / n, half * s / n),
        C.REDUCE_SCATTER_BLOCK: Traffic(n * rest, rest, s / n, half * s / n),
        C.ALL_TO_ALL: Traffic(n * rest, rest, rest, half * (n - half) * s / n),
        C.BROADCAST: Traffic((n - 1) * s, s, s, s),
        C.REDUCE: Traffic((n - 1) * s, s, s, s),
        C.GATHER: Traffic((n - 1) * s, s, (n - 1) * s, half * s),
        C.SCATTER: Traffic(rest, rest, s / n, half * s / n),
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

    `in_switch`: for algorithms whose switches reduce and multiply data. Links of 0 bytes/s do not count. A
    group of one needs no time.
    """
    if len(group) < 2:
        return Bounds(0, 0, 0)
    need = traffic(collective, len(group), size)
    outward, inward = _rates(fabric, fabric.source, group), _rates(fabric, fabric.destination, group)
    bandwidth = max(_time(need.send, max(outward)), _time(need.receive, max(inward)))
    if not in_switch:
        bandwidth = max(bandwidth, _time(need.total, sum(outward)), _time(need.total, sum(inward)))
    bisection = _time(need.crossing, halving) if halving else 0
    return Bounds(bandwidth, _farthest(fabric, group), bisection)


def _rates(fabric: Fabric, ends: np.ndarray, group: Sequence[int]) -> list[int]:
    """Return the rate of each member's links, out or in."""
    total = np.zeros(fabric.nodes, dtype=np.int64)
    np.add.at(total, ends, fabric.bandwidth)
    return [int(total[member]) for member in group]


def _time(size: Fraction, rate: int) -> int:
    return -(-size.numerator * PS_PER_S // (size.denominator * rate)) if rate else 0


def _farthest(fabric: Fabric, group: Sequence[int]) -> int:
    """Return the greatest least latency from one of the (first) members to another."""
    outgoing: list[list[tuple[int, int]]] = [[] for _ in range(fabric.nodes)]
    for link in np.flatnonzero(fabric.bandwidth).tolist():
        hop = int(fabric.latency[link]), int(fabric.destination[link])
        outgoing[int(fabric.source[link])].append(hop)
    distances = [_distances(outgoing, source) for source in group[:_MOST_SOURCES]]
    return max(distance.get(member, 0) for distance in distances for member in group)


def _distances(outgoing: list[list[tuple[int, int]]], source: int) -> dict[int, int]:
    settled: dict[int, int] = {}
    waiting = [(0, source)]
    while waiting:
        distance, node = heapq.heappop(waiting)
        if node in settled:
            continue
        settled[node] = distance
        for latency, neighbour in outgoing[node]:
            if neighbour not in settled:
                heapq.heappush(waiting, (distance + latency, neighbour))
    return settled
