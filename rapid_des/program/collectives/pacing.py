"""How long collectives and messages last alone, and templates that then last so.

Either no link is taken at all, for a first look (`fixed_template`), or a collective keeps the pace of a
communication library (`paced`). A transfer takes its links for as long as its bytes need at their rates; what
a library takes beyond that (the kernel's start, waiting for flags, rates that its channels do not reach) are
lags. Alone, the collective then ends when the closed form says; among others its transfers queue, meet faults
and wait for late members like any. Where the links alone need longer than the closed form, nothing lags.

    arrival of a member ──start──► its first transfers ──crossing, lag──► those that follow ──► … ──► done
                             those that it could begin at once: one behind the other, at the library's rate
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Bools, Int32s, Int64s, fingerprint, ranges, starts_of
from rapid_des.bounded_cache import BoundedCache
from rapid_des.compiling import CompiledKernel
from rapid_des.compiling.kinds import Int32Column, Int64Column
from rapid_des.machine import Machine
from rapid_des.network.collectives.libraries.nccl import LibraryCost
from rapid_des.network.collectives.schedule import PAYLOADS, Schedule
from rapid_des.program.collectives.templates import pairs_of
from rapid_des.program.program import Template
from rapid_des.program.services import MessageSizes, message_table
from rapid_des.units import PS_PER_S
from rapid_des.values import replace

_SLACK = 1000
"""A pace may end later than the links' own time by one part in this many."""
_TRIES = 8
"""Iterations of the search for a lag, or for the share of the library's pace; it converges quickly."""
_INTERPRETED = 50_000
"""Up to this many tasks the longest chain is computed by Python; above, by compiled code."""


class Crossings(Struct, frozen=True):
    """Zero-load times in ps: each transfer's transit and slowest link, and each link's total service."""

    time: Int64s
    occupancy: Int64s
    load: Int64s


def crossings(schedule: Schedule, machine: Machine, members: Sequence[int]) -> Crossings:
    """Return the zero-load times of a schedule's transfers; `members` are nodes: GPUs, then switches."""
    sizes = MessageSizes()
    pairs, source, destination = pairs_of(schedule)
    if not len(source):
        none = np.zeros(len(schedule), np.int64)
        return Crossings(none, none, np.zeros(0, np.int64))
    nodes, rows = np.array(members, np.int64), sizes.rows(schedule.size)
    routes = machine.router.routes(np.stack((nodes[source], nodes[destination]), 1))
    hops, classes = message_table(machine.fabric, machine.switching, routes, sizes.all())
    return _zero_load((pairs, rows), hops, routes, classes)


def _zero_load(transfers: tuple[Int32s, Int32s], hops: Any, routes: Any, classes: Any) -> Crossings:
    """Return the zero-load times of transfers, given the route and the size row of each."""
    pairs, rows = transfers
    moves = np.flatnonzero(pairs >= 0)
    pair, size = pairs[moves], rows[moves]
    counts = (routes.starts[1:] - routes.starts[:-1])[pair]
    task = np.repeat(np.arange(len(moves)), counts)
    place = np.arange(len(task)) - np.repeat(np.cumsum(counts) - counts, counts)
    hop = routes.starts[pair][task] + place
    last = place == counts[task] - 1
    row, service = size[task], classes[hop]
    occupancy = hops.occupancy[row, service]
    step = np.where(last, occupancy, hops.head[row, service]) + hops.lag[row, service]
    crossing, slowest = np.zeros((2, len(pairs)), np.int64)
    np.add.at(crossing, moves[task], step)
    np.maximum.at(slowest, moves[task], occupancy)
    load = np.zeros(int(routes.links.max(initial=0)) + 1, np.int64)
    np.add.at(load, routes.links[hop], occupancy)
    return Crossings(crossing, slowest, load)


class PortQueues(Struct, frozen=True):
    """The order in which transfers begin, the port through which each goes, and for how long it takes it."""

    order: Int64s
    port: Int64s
    occupancy: Int64s


def finish_times(schedule: Schedule, crossing: Int64s, queues: PortQueues | None = None) -> Int64s:
    """Return when each transfer has arrived, given how long each takes; all members arrive at 0.

    With `queues` a transfer begins when its port is free of those before it, too.
    """
    queues = queues or PortQueues(np.arange(len(schedule)), *np.zeros((2, len(schedule)), np.int64))
    free, done = np.zeros(int(queues.port.max(initial=0)) + 1, np.int64), np.zeros(len(schedule), np.int64)
    columns: list[Any] = [schedule.dependency_starts, schedule.dependencies, crossing, queues.order]
    columns += [queues.port, queues.occupancy, free, done]
    compiled = _compiled_walk.is_loaded or len(schedule) > _INTERPRETED
    if not compiled:  # lists are indexed several times faster
        columns = [column.tolist() for column in columns]
    (_compiled_walk if compiled else _walk)(*columns)
    return np.array(columns[-1], np.int64)


def _walk(  # noqa: PLR0913 - columns, as kernels take them
    starts: Int64Column,
    awaited: Int32Column,
    crossing: Int64Column,
    order: Int64Column,
    port: Int64Column,
    occupancy: Int64Column,
    free: Int64Column,
    done: Int64Column,
) -> None:
    for place in range(len(order)):
        task, ready = order[place], 0
        for edge in range(starts[task], starts[task + 1]):
            ready = max(ready, done[awaited[edge]])
        if occupancy[task]:
            ready = max(ready, free[port[task]])
            free[port[task]] = ready + occupancy[task]
        done[task] = ready + crossing[task]


_compiled_walk = CompiledKernel(_walk)


class TransferPaths(Struct, frozen=True):
    """The zero-load timing and the ports of a schedule's transfers; arrays with one entry per transfer."""

    crossing: Int64s
    """Picoseconds from injection to arrival."""
    occupancy: Int64s
    """Picoseconds for which a transfer occupies the slowest link of its route."""
    inter_node: Bools
    """Whether the transfer goes to another node."""
    nic: Int64s
    """The NIC through which the transfer leaves its node, if it does."""
    send_order: Int64s
    """Its place in the order in which the source starts transfers: spread over peers, nodes and rails."""
    meshed: bool = False
    """Whether every two GPUs of a node have a link of their own, so that sends to several go at once."""


def paced(
    template: Template, schedule: Schedule, cost: LibraryCost, paths: TransferPaths, memory: BoundedCache
) -> Template:
    """Return the template of a schedule with the lags of a library, which `memory` keeps."""
    key = ("lags", cost, fingerprint(schedule, without=PAYLOADS), fingerprint(paths))
    start, before, after = memory.get_or_make(
        key,
        lambda: _UncontendedCollective(schedule, cost, paths).lags(cost),
        weight=lambda made: 1000 + made[1].nbytes,
    )
    before = np.append(before, np.zeros(template.members, np.int64))
    target = template.arrival_target
    return replace(
        template,
        edge_lag=template.edge_lag + after + before[template.edge_target],
        arrival_lag=template.arrival_lag + np.where(target < len(template), start, 0) + before[target],
        shape=None,
        ahead=True,
    )


class _DependencyLevel(Struct, frozen=True):
    """The transfers at one depth of the dependency graph, and what they wait for: each something, or none."""

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

    `hops` are the picoseconds that a block takes from each member to the next, all round; it makes this many
    `steps` of them.
    """
    # Prefix sums over enough turns of the ring: the time of `steps` hops from any member is a difference.
    around = np.concatenate(([0], np.cumsum(np.tile(hops, 1 + -(-steps // len(hops))))))
    alone = int((around[steps : steps + len(hops)] - around[: len(hops)]).max())
    # What the closed form has beyond the links is the start, then an equal lag for each step.
    start = max(0, min(cost.start, cost.duration - alone))
    lag = max(0, cost.duration - alone - start) // steps
    return replace(
        template,
        edge_lag=template.edge_lag + lag,
        arrival_lag=template.arrival_lag + np.where(template.arrival_target < len(template), start, 0),
        shape=None,
        ahead=True,
    )


class _UncontendedCollective:
    """A collective that has all links for itself: when each transfer begins and arrives.

    The sends of a rank that could begin at once leave one behind the other, to its node and beyond apart, and
    so do those through one NIC; what comes to a rank at once arrives so. Ports of a switch are apart.
    """

    def __init__(self, schedule: Schedule, cost: LibraryCost, paths: TransferPaths) -> None:
        self._schedule, self._paths = schedule, paths
        rate = np.where(paths.inter_node, cost.inter_node_rate, cost.rate)
        pace = np.where(rate > 0, schedule.size * (PS_PER_S / np.maximum(rate, 1)), 0)
        # Copies that a switch makes have no pace of their own.
        self._pace = np.where(schedule.source < schedule.members, pace, 0).astype(np.int64)
        width, each = schedule.members + schedule.switches, np.arange(len(schedule))
        multicast = schedule.source >= schedule.members
        # Ports are numbered sender * 2 + (inter-node), so that each rank has one port for either.
        # A multicast from a switch leaves through one port for each destination.
        senders = np.where(multicast, width + schedule.destination, schedule.source)
        self._leaves = senders * 2 + paths.inter_node
        self._nics = np.where(paths.inter_node, paths.nic, paths.nic.max(initial=0) + 1 + each)
        reached = np.where(schedule.destination < schedule.members, schedule.destination, width + each)
        self._comes = reached * 2 + paths.inter_node
        if paths.meshed:
            self._use_links_apart(schedule)
        level = finish_times(schedule, np.ones(len(schedule), np.int64))
        self._depth = int(level.max(initial=0))
        # The service of all transfers of each NIC: a lower bound of the whole collective.
        through = np.zeros(int(self._nics.max(initial=0)) + 1, np.int64)
        np.add.at(through, self._nics, paths.occupancy)
        self._busiest = int(through.max())
        # Only the first transfers keep the pace: those after them are paced by what they wait for.
        self._pace = np.where(level == 1, self._pace, 0)
        self._queues = any(
            _meet(port * self._depth + level) for port in (self._leaves, self._nics, self._comes)
        )
        self._port_queues = PortQueues(np.argsort(level, kind="stable"), self._nics, paths.occupancy)
        self._levels = list(_by_level(schedule, level)) if self._queues else []

    def _use_links_apart(self, schedule: Schedule) -> None:
        """Give every peer in the node a port of its own, at its share of the pace of them all."""
        intra_node = ~self._paths.inter_node
        ends = (
            schedule.source.astype(np.int64) * (schedule.members + schedule.switches) + schedule.destination
        )
        pairs, port = np.unique(ends, return_inverse=True)
        first = 1 + max(int(self._leaves.max(initial=0)), int(self._comes.max(initial=0)))
        self._leaves = np.where(intra_node, first + port, self._leaves)
        self._comes = np.where(intra_node, first + port, self._comes)
        sources, sends = np.unique(pairs // (schedule.members + schedule.switches), return_counts=True)
        peers = np.ones(schedule.members + schedule.switches, np.int64)
        peers[sources] = sends
        self._pace = np.where(intra_node, self._pace * peers[schedule.source], self._pace)

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
        """Return the largest share of the library's pace that ends in time, and how it plays.

        Where links alone need longer than that, in (nearly) their time: sent all at once, transfers would
        come in turns, and what waits for the first ones would wait for all.
        """
        high, played = 1.0, self._played(0, 1.0)
        if played[1] <= wanted or not self._queues:
            return high, played
        low, played = 0.0, self._played(0, 0.0)
        wanted = max(wanted, played[1] + played[1] // _SLACK)
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
            done = finish_times(self._schedule, self._paths.crossing + lag, self._port_queues)
            return before, int(done.max(initial=0))
        paced = (self._pace * share).astype(np.int64)
        hold = np.where(self._paths.inter_node, paced, np.maximum(self._paths.occupancy, paced))
        done = np.zeros(len(self._schedule), np.int64)
        for level in self._levels:
            tasks, ready = level.tasks, level.ready(done)
            # A transfer leaves its rank, then its NIC, travels, and then enters the port of the destination.
            sent = _one_by_one(self._leaves[tasks], ready, hold[tasks], self._paths.send_order[tasks])
            before[tasks] = sent - ready
            occupancy, send_order = self._paths.occupancy[tasks], self._paths.send_order[tasks]
            left = _one_by_one(self._nics[tasks], sent, occupancy, send_order)
            behind = self._paths.crossing[tasks] - occupancy
            come = _one_by_one(self._comes[tasks], left + behind, occupancy, send_order) + occupancy
            done[tasks] = come + lag
        return before, max(int(done.max(initial=0)), self._busiest + self._depth * lag)


def _meet(places: Int64s) -> bool:
    ordered = np.sort(places)
    return bool((ordered[1:] == ordered[:-1]).any())


def _by_level(schedule: Schedule, level: Int64s) -> Iterator[_DependencyLevel]:
    order = np.argsort(level, kind="stable")
    # Levels count from 1: rows bounds[k] to bounds[k + 1] of the sorted tasks are those of level k + 1.
    bounds = np.searchsorted(level[order], np.arange(1, int(level.max(initial=0)) + 2))
    lengths = np.diff(schedule.dependency_starts)
    for first, last in zip(bounds[:-1], bounds[1:], strict=True):
        tasks = order[first:last]
        awaited = schedule.dependencies[ranges(schedule.dependency_starts[tasks], lengths[tasks])]
        yield _DependencyLevel(tasks, awaited.astype(np.int64), starts_of(lengths[tasks])[:-1])


def _one_by_one(port: Int64s, ready: Int64s, hold: Int64s, send_order: Int64s) -> Int64s:
    """Return when each transfer begins if a port serves one at a time, in the order of (ready, turn)."""
    order = np.lexsort((send_order, ready, port))
    # In a queue, begin[k] = max(ready[k], begin[k-1] + hold[k-1]). Let `behind` be the sum of the holds
    # before k: then begin[k] - behind[k] is the running maximum of ready - behind. Multiples of `apart` lift
    # each port above the one before, so that one running maximum serves all ports.
    behind = np.cumsum(hold[order]) - hold[order]
    group = np.cumsum(np.append(False, port[order][1:] != port[order][:-1]))
    earliest = ready[order] - behind
    apart = int(earliest.max(initial=0) - earliest.min(initial=0)) + 1
    begins = np.empty_like(ready)
    begins[order] = np.maximum.accumulate(earliest + group * apart) - group * apart + behind
    return begins
