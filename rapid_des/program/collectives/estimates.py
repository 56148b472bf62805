"""How long an algorithm takes on the links of a group, from the routes that it uses: for choosing one.

A zero-load estimate of a phase is its longest chain of transfers and what its busiest link serves. A message
takes its route's latencies, a packet's time on all links but the slowest, and there its own. Rings, buckets
and direct exchanges are closed forms over the routes between neighbours, or between all; other algorithms
have n log n transfers or fewer and are walked. All times here are picoseconds in floating point.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Floats, Int64s
from rapid_des.chakra.trace import CollectiveType
from rapid_des.machine import Machine
from rapid_des.network.collectives import Schedule, ShapedCollective, build_schedule
from rapid_des.network.fabric import Fabric, Routes
from rapid_des.network.specs import Switching
from rapid_des.units import PS_PER_S

C = CollectiveType
MOST_PAIRS = 1 << 16
"""Up to this many pairs of members a direct exchange is summed completely; above, distances are sampled."""
_BLOCKWISE = frozenset({C.ALL_REDUCE, C.ALL_GATHER, C.REDUCE_SCATTER, C.REDUCE_SCATTER_BLOCK})
_EXCHANGES = _BLOCKWISE | {C.ALL_TO_ALL, C.BARRIER}
_DIRECTIONS = {"ring": (1,), "bidirectional_ring": (1, -1), "bucket": (1, -1)}


class LinkLoad(Struct, frozen=True, eq=False):
    """Service times of some links; each link stands at most once."""

    links: Int64s
    service: Floats

    @property
    def busiest(self) -> float:
        """Service of the busiest link."""
        return float(self.service.max(initial=0))

    def times(self, factor: float) -> LinkLoad:
        """Return the load of this many repetitions."""
        return LinkLoad(self.links, self.service * factor)


def summed_loads(loads: Sequence[LinkLoad]) -> LinkLoad:
    """Return the sum of loads, link by link."""
    if len(loads) == 1:
        return loads[0]
    links, place = np.unique(np.concatenate([load.links for load in loads]), return_inverse=True)
    return LinkLoad(links, _summed(place, np.concatenate([load.service for load in loads]), len(links)))


def _summed(place: Int64s, work: Floats, places: int) -> Floats:
    return np.bincount(place, weights=work, minlength=places).astype(np.float64)


class PhaseEstimate(Struct, frozen=True, eq=False):
    """What a phase of a collective takes: the longest chain of its transfers at zero load, and links."""

    chain: float
    load: LinkLoad

    @property
    def time(self) -> float:
        """The time that the phase takes alone."""
        return max(self.chain, self.load.busiest)


class _Wire(Struct, frozen=True):
    """What links forward: `unit` bytes at once (None: whole messages), a header a `payload` of these."""

    unit: int | None
    payload: int
    header: int

    @classmethod
    def of(cls, switching: Switching) -> _Wire:
        protocol, segment = switching.protocol, switching.segment
        unit = segment if protocol is None else protocol.payload
        payload = 1 if unit is None else int(unit)  # a flow passes on what it has
        header = 0 if protocol is None else int(protocol.header)
        return cls(segment if switching.mode == "store_and_forward" else payload, payload, header)

    def bytes_of(self, size: Floats) -> tuple[Floats, Floats]:
        """Return the bytes on the wire of messages, and of what of each is forwarded first."""
        first = size if self.unit is None else np.minimum(size, self.unit)
        return self._on_wire(size), self._on_wire(first)

    def _on_wire(self, size: Floats) -> Floats:
        wire: Floats = size + np.ceil(size / self.payload) * self.header
        return wire


class _RoutedLoads:
    """Routes with the time per byte of their links."""

    def __init__(self, fabric: Fabric, routes: Routes) -> None:
        first, inverse = routes.starts[:-1], PS_PER_S / fabric.bandwidth[routes.links]
        self._lengths = np.diff(routes.starts)
        self._links, place = np.unique(routes.links, return_inverse=True)
        self._place: Int64s = place.reshape(-1)
        self._inverse = inverse
        self.latency: Floats = np.add.reduceat(fabric.latency[routes.links], first).astype(np.float64)
        self.slowest: Floats = np.maximum.reduceat(inverse, first)
        self.others: Floats = np.add.reduceat(inverse, first) - self.slowest

    def times(self, wire: Floats, head: Floats, places: Int64s | slice) -> Floats:
        """Return how long messages take on some of the routes, in picoseconds."""
        return self.latency[places] + head * self.others[places] + wire * self.slowest[places]

    def load(self, wire: Floats) -> LinkLoad:
        """Return the load of the links if each route carries this many bytes."""
        work = self._inverse * np.repeat(wire, self._lengths)
        return LinkLoad(self._links, _summed(self._place, work, len(self._links)))


class GroupLines:
    """Groups of equally many members that do the same at once: `members[line, place]` are GPUs."""

    def __init__(self, machine: Machine, members: Int64s) -> None:
        self._machine = machine
        self._members = members
        self._wire = _Wire.of(machine.switching)
        self._loads: dict[tuple[str, int], LinkLoad] = {}
        self._walked: dict[tuple[CollectiveType, str], _Walked] = {}

    @property
    def size(self) -> int:
        """The number of members of a line."""
        return int(self._members.shape[1])

    def traffic(
        self, collective: CollectiveType, name: str, size: float, extents: Sequence[int] = ()
    ) -> PhaseEstimate:
        """Return what an algorithm takes for an input buffer of `size` bytes a member, on all lines at once.

        `extents` are the shape of the group, for algorithms that use it.
        """
        if name in _DIRECTIONS and (collective in _BLOCKWISE or collective is C.ALL_TO_ALL):
            return self._round(collective, name, size)
        if name == "one_shot" or (name == "direct" and collective in _EXCHANGES):
            return self._direct(collective, name, size)
        key = collective, name
        if key not in self._walked:
            shape = tuple(extents) or (self.size,)
            unit = ShapedCollective(collective, shape, _UNIT)
            self._walked[key] = _Walked(self._machine, self._members, unit, name)
        return self._walked[key].traffic(self._wire, size)

    def _round(self, collective: CollectiveType, name: str, size: float) -> PhaseEstimate:
        """Return the traffic of a ring, or of a line that does not close: rounds among neighbours."""
        chain, loads = 0.0, list[LinkLoad]()
        for direction in _DIRECTIONS[name]:
            rounds, message, times = _rounds(collective, name, self.size, direction, size)
            if rounds:
                routed = self._forth if direction == 1 else self._back
                wire, head = self._wire.bytes_of(np.array([message]))
                alone = routed.times(wire, head, slice(None)).reshape(self._members.shape)
                walk = times * _line(alone) if name == "bucket" else _walk(alone, rounds * times)
                chain = max(chain, walk)
                load = (
                    self._line_load(collective, direction) if name == "bucket" else self._ring_load(direction)
                )
                loads.append(load.times(float(wire[0]) * (1 if name == "bucket" else rounds * times)))
        return PhaseEstimate(chain, summed_loads(loads))

    def _ring_load(self, direction: int) -> LinkLoad:
        """Return what links serve in one round of a ring, for a byte in every message."""
        return self._sent(("ring", direction), np.ones(self.size), direction)

    def _line_load(self, collective: CollectiveType, direction: int) -> LinkLoad:
        """Return what links serve in all rounds of a bucket, for a byte in every message."""
        after = np.arange(
            self.size - 1.0, -1, -1
        )  # blocks of members behind the next one go in that direction
        before = np.arange(1.0, self.size + 1) % self.size
        rows = {C.ALL_GATHER: before, C.ALL_REDUCE: before + after}
        return self._sent((collective.name, direction), rows.get(collective, after), direction)

    def _sent(self, key: tuple[str, int], row: Floats, direction: int) -> LinkLoad:
        """Return the load of the links if the members of each line send this many bytes to the next one."""
        if key not in self._loads:
            routed = self._forth if direction == 1 else self._back
            self._loads[key] = routed.load(np.broadcast_to(row[::direction], self._members.shape).ravel())
        return self._loads[key]

    def _direct(self, collective: CollectiveType, name: str, size: float) -> PhaseEstimate:
        """Return the traffic of messages from every member to every other, once or twice."""
        whole = name == "one_shot" or collective in (C.ALL_GATHER, C.BARRIER)
        shots = 2 if collective is C.ALL_REDUCE and name == "direct" else 1
        wire, head = self._wire.bytes_of(np.array([max(1.0, size if whole else size / self.size)]))
        routed, share = self._all
        if ("all", 1) not in self._loads:
            self._loads["all", 1] = routed.load(np.full(len(routed.latency), share))
        chain = float(routed.times(wire, head, slice(None)).max(initial=0))
        return PhaseEstimate(shots * chain, self._loads["all", 1].times(shots * float(wire[0])))

    @cached_property
    def _forth(self) -> _RoutedLoads:
        return _routed(self._machine, self._members, np.roll(self._members, -1, axis=1))

    @cached_property
    def _back(self) -> _RoutedLoads:
        return _routed(self._machine, self._members, np.roll(self._members, 1, axis=1))

    @cached_property
    def _all(self) -> tuple[_RoutedLoads, float]:
        """Return routes from all members to those at each distance, and how many of these each stands for.

        Above `MOST_PAIRS` the distances are a sample: multiples of about the golden section of them all,
        which meet every row of a grid alike.
        """
        distances = np.arange(1, self.size)
        most = max(1, MOST_PAIRS // self._members.size)
        if len(distances) > most:
            step = round(0.618 * len(distances))
            distances = 1 + np.arange(most) * step % len(distances)
        # [distance, place]: the member that is this many places on, round the group.
        others = (np.arange(self.size) + distances[:, None]) % self.size
        targets = self._members[:, others]
        sources = np.broadcast_to(self._members[:, None, :], targets.shape)
        return _routed(self._machine, sources, targets), (self.size - 1) / len(distances)


class _Walked:
    """An algorithm that is estimated transfer by transfer: its schedule for `_UNIT` bytes, and its routes."""

    def __init__(self, machine: Machine, members: Int64s, unit: ShapedCollective, name: str) -> None:
        schedule = build_schedule(name, unit)
        self._moves = np.flatnonzero(schedule.source != schedule.destination)
        source, destination = schedule.source[self._moves], schedule.destination[self._moves]
        keys = source.astype(np.int64) * members.shape[1] + destination
        # Many transfers run between the same two members: look up each pair once.
        keys, self._pair = np.unique(keys, return_inverse=True)
        ends = np.divmod(keys, members.shape[1])
        self._routed = _routed(machine, members[:, ends[0]], members[:, ends[1]])
        self._lines, self._pairs = len(members), len(keys)
        self._share = schedule.size[self._moves] / _UNIT
        self._schedule = schedule

    def traffic(self, over: _Wire, size: float) -> PhaseEstimate:
        wire, head = over.bytes_of(np.maximum(self._share * size, 1.0))
        # The lines run in step: a transfer counts with its longest time over all lines.
        crossing = np.zeros(len(self._schedule))
        for line in range(self._lines):
            times = self._routed.times(wire, head, line * self._pairs + self._pair)
            crossing[self._moves] = np.maximum(crossing[self._moves], times)
        carried = np.bincount(self._pair, weights=wire, minlength=self._pairs)
        load = self._routed.load(np.tile(carried, self._lines))
        return PhaseEstimate(_longest_chain(self._schedule, crossing), load)


_UNIT = 1 << 40
"""Size of the collective in bytes; large enough that rounding of its blocks does not matter."""


def _routed(machine: Machine, sources: Int64s, targets: Int64s) -> _RoutedLoads:
    pairs = np.stack((sources.ravel(), targets.ravel()), 1)
    return _RoutedLoads(machine.fabric, machine.router.routes(pairs))


def _rounds(
    collective: CollectiveType, name: str, members: int, direction: int, size: float
) -> tuple[int, float, int]:
    """Return (rounds, bytes of a message, how often) of one direction; where messages differ, their mean."""
    block = size if collective is C.ALL_GATHER else size / members
    if collective is C.ALL_TO_ALL:
        up = members // 2 if name == "bidirectional_ring" else members - 1
        reach = up if direction == 1 else members - 1 - up
        return reach, max(1.0, block * (reach + 1) / 2), 1
    times = 2 if collective is C.ALL_REDUCE else 1
    both = 2 if name == "bidirectional_ring" else 1
    return members - 1, max(1.0, block / both), times


def _line(alone: Floats) -> float:
    """Return the longest walk along one of the lines, `alone[line, place]`, that do not close."""
    return float((alone.sum(axis=1) - alone.max(axis=1)).max())


def _walk(alone: Floats, rounds: int) -> float:
    """Return the longest walk of this many steps round one of the lines: `alone[line, place]`."""
    rounds_full, rest = divmod(rounds, alone.shape[1])
    sums = np.concatenate((np.zeros((len(alone), 1)), alone, alone), axis=1).cumsum(axis=1)
    window = sums[:, rest:] - sums[:, : sums.shape[1] - rest]
    return float((rounds_full * alone.sum(axis=1) + window.max(axis=1)).max())


def _longest_chain(schedule: Schedule, crossing: Floats) -> float:
    """Return the end of the last transfer if each takes `crossing` after the last one that it waits for."""
    starts = schedule.dependency_starts
    waits = np.flatnonzero(starts[1:] > starts[:-1])
    done, later = crossing, crossing.copy()
    while len(waits):
        later = crossing.copy()
        later[waits] += np.maximum.reduceat(done[schedule.dependencies], starts[waits])
        if (later == done).all():
            break
        done = later
    return float(done.max(initial=0))
