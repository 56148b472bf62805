"""The pace of a communication library: lags by which a collective lasts as long as its closed form says.

A transfer takes its links for as long as its bytes need at their rates; what a library takes beyond that (the
kernel's start, waiting for flags, rates that its channels do not reach) are lags. Alone, the collective then
ends when the closed form says; among others its transfers queue, meet faults and wait for late members like
any. Where the links alone need longer than the closed form, nothing lags.

    arrival of a member ──start──► its first transfers ──crossing, lag──► those that follow ──► … ──► done
                             those that it could begin at once: one behind the other, at the library's rate
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from rapid_des.arrays import Bools, Int64s, ranges, starts_of
from rapid_des.network.collectives.libraries.nccl import LibraryCost
from rapid_des.network.collectives.schedule import Schedule
from rapid_des.program.analytic import Turns, finish_times
from rapid_des.program.program import Template
from rapid_des.units import PS_PER_S

_TRIES = 8
"""Steps towards a lag, or towards the share of the library's pace that fits: few, as both are near linear."""


@dataclass(frozen=True)
class Ways:
    """What the transfers of a schedule meet while nothing else is there, one row each."""

    crossing: Int64s
    """Picoseconds on the way."""
    occupancy: Int64s
    """Picoseconds for which a transfer takes the slowest of its links."""
    far: Bools
    """Whether it goes to another node."""
    nic: Int64s
    """The NIC through which it leaves its node, if it does."""
    turn: Int64s
    """The order in which its source would begin it among others: spread over peers, nodes and rails."""
    meshed: bool = False
    """Whether every two GPUs of a node have a link of their own, so that sends to several go at once."""


def paced(template: Template, schedule: Schedule, cost: LibraryCost, ways: Ways) -> Template:
    """Return the template of a schedule with the lags of a library."""
    alone = _Alone(schedule, cost, ways)
    start, before, after = alone.lags(cost)
    before = np.append(before, np.zeros(template.members, np.int64))
    target = template.arrival_target
    return replace(
        template,
        edge_lag=template.edge_lag + after + before[template.edge_target],
        arrival_lag=template.arrival_lag + np.where(target < len(template), start, 0) + before[target],
        shape=None,
    )


@dataclass(frozen=True)
class _Level:
    """The transfers that are as many steps from the start, and what they await: each something, or none."""

    tasks: Int64s
    awaited: Int64s
    starts: Int64s

    def ready(self, done: Int64s) -> Int64s:
        """Return when each of them may begin, given when the others have arrived."""
        if not len(self.awaited):
            return np.zeros(len(self.tasks), np.int64)
        return np.maximum.reduceat(done[self.awaited], self.starts)


def paced_ring(template: Template, cost: LibraryCost, hops: Int64s, steps: int) -> Template:
    """Return the template of a ring, or of a cut of it, with the lags of a library.

    `hops` are the picoseconds that a block takes from each member to the next, all round; it makes so many
    `steps` of them.
    """
    around = np.concatenate(([0], np.cumsum(np.tile(hops, 1 + -(-steps // len(hops))))))
    alone = int((around[steps : steps + len(hops)] - around[: len(hops)]).max())
    start = max(0, min(cost.start, cost.duration - alone))
    lag = max(0, cost.duration - alone - start) // steps
    return replace(
        template,
        edge_lag=template.edge_lag + lag,
        arrival_lag=template.arrival_lag + np.where(template.arrival_target < len(template), start, 0),
        shape=None,
    )


class _Alone:
    """A collective that has all links for itself: when each transfer begins and arrives.

    The sends of a rank that could begin at once leave one behind the other, to its node and beyond apart, and
    so do those through one NIC; what comes to a rank at once arrives so. Ports of a switch are apart.
    """

    def __init__(self, schedule: Schedule, cost: LibraryCost, ways: Ways) -> None:
        self._schedule, self._ways = schedule, ways
        rate = np.where(ways.far, cost.far_rate, cost.rate)
        pace = np.where(rate > 0, schedule.size * (PS_PER_S / np.maximum(rate, 1)), 0)
        self._pace = np.where(schedule.source < schedule.members, pace, 0).astype(np.int64)
        width, each = schedule.members + schedule.switches, np.arange(len(schedule))
        multicast = schedule.source >= schedule.members
        self._leaves = np.where(multicast, width + schedule.destination, schedule.source) * 2 + ways.far
        self._nics = np.where(ways.far, ways.nic, ways.nic.max(initial=0) + 1 + each)
        reached = np.where(schedule.destination < schedule.members, schedule.destination, width + each)
        self._comes = reached * 2 + ways.far
        if ways.meshed:
            self._use_links_apart(schedule)
        level = finish_times(schedule, np.ones(len(schedule), np.int64))
        self._depth = int(level.max(initial=0))
        self._pace = np.where(level == 1, self._pace, 0)
        self._queues = any(
            _meet(port * self._depth + level) for port in (self._leaves, self._nics, self._comes)
        )
        self._turns = Turns(np.argsort(level, kind="stable"), self._nics, ways.occupancy)
        self._levels = list(_by_level(schedule, level)) if self._queues else []

    def _use_links_apart(self, schedule: Schedule) -> None:
        """Give every peer in the node a port of its own, at its share of the pace of them all."""
        near = ~self._ways.far
        ends = (
            schedule.source.astype(np.int64) * (schedule.members + schedule.switches) + schedule.destination
        )
        pairs, port = np.unique(ends, return_inverse=True)
        first = 1 + max(int(self._leaves.max(initial=0)), int(self._comes.max(initial=0)))
        self._leaves = np.where(near, first + port, self._leaves)
        self._comes = np.where(near, first + port, self._comes)
        sources, sends = np.unique(pairs // (schedule.members + schedule.switches), return_counts=True)
        peers = np.ones(schedule.members + schedule.switches, np.int64)
        peers[sources] = sends
        self._pace = np.where(near, self._pace * peers[schedule.source], self._pace)

    def lags(self, cost: LibraryCost) -> tuple[int, Int64s, int]:
        """Return the picoseconds before the first transfers, before each one, and after each one."""
        wanted = cost.duration - cost.slack
        share, (before, end) = self._share(wanted)
        start, lag = max(0, min(cost.start, wanted - end)), 0
        for _ in range(_TRIES):
            step = (wanted - start - end) // self._depth
            if step <= 0:
                break
            lag += step
            before, end = self._played(lag, share)
        return max(0, wanted - end), before, lag

    def _share(self, wanted: int) -> tuple[float, tuple[Int64s, int]]:
        """Return the largest share of the library's pace that ends in time, and how it plays."""
        high, played = 1.0, self._played(0, 1.0)
        if played[1] <= wanted or not self._queues:
            return high, played
        low, played = 0.0, self._played(0, 0.0)
        for _ in range(_TRIES):
            middle = (low + high) / 2
            other = self._played(0, middle)
            if other[1] <= wanted:
                low, played = middle, other
            else:
                high = middle
        return low, played

    def _played(self, lag: int, share: float) -> tuple[Int64s, int]:
        """Return how long each transfer waits for its turn, and when the last one has arrived.

        `lag` follows each of them; ports keep that `share` of the library's pace.
        """
        before = np.zeros(len(self._schedule), np.int64)
        if not self._queues:
            done = finish_times(self._schedule, self._ways.crossing + lag, self._turns)
            return before, int(done.max(initial=0))
        paced = (self._pace * share).astype(np.int64)
        hold = np.where(self._ways.far, paced, np.maximum(self._ways.occupancy, paced))
        done = np.zeros(len(self._schedule), np.int64)
        for level in self._levels:
            tasks, ready = level.tasks, level.ready(done)
            sent = _one_by_one(self._leaves[tasks], ready, hold[tasks], self._ways.turn[tasks])
            before[tasks] = sent - ready
            taken, turn = self._ways.occupancy[tasks], self._ways.turn[tasks]
            left = _one_by_one(self._nics[tasks], sent, taken, turn)
            behind = self._ways.crossing[tasks] - taken
            come = _one_by_one(self._comes[tasks], left + behind, taken, turn) + taken
            done[tasks] = come + lag
        return before, int(done.max(initial=0))


def _meet(places: Int64s) -> bool:
    ordered = np.sort(places)
    return bool((ordered[1:] == ordered[:-1]).any())


def _by_level(schedule: Schedule, level: Int64s) -> Iterator[_Level]:
    order = np.argsort(level, kind="stable")
    bounds = np.searchsorted(level[order], np.arange(1, int(level.max(initial=0)) + 2))
    lengths = np.diff(schedule.dependency_starts)
    for first, last in zip(bounds[:-1], bounds[1:], strict=True):
        tasks = order[first:last]
        awaited = schedule.dependencies[ranges(schedule.dependency_starts[tasks], lengths[tasks])]
        yield _Level(tasks, awaited.astype(np.int64), starts_of(lengths[tasks])[:-1])


def _one_by_one(port: Int64s, ready: Int64s, hold: Int64s, turn: Int64s) -> Int64s:
    """Return when each begins of those that a port takes in the order of (ready, turn), one at a time."""
    order = np.lexsort((turn, ready, port))
    behind = np.cumsum(hold[order]) - hold[order]
    group = np.cumsum(np.append(False, port[order][1:] != port[order][:-1]))
    earliest = ready[order] - behind
    apart = int(earliest.max(initial=0) - earliest.min(initial=0)) + 1
    begins = np.empty_like(ready)
    begins[order] = np.maximum.accumulate(earliest + group * apart) - group * apart + behind
    return begins
