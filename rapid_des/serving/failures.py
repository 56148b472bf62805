"""Failures of a reliability file as outages of a server's replicas.

A failure stops the replicas that have a GPU in the unit that fails, from the failure until its detection and
diagnosis are over and, where nodes are replaced, a spare one is ready. Then the replica starts (`startup`).
Classes `per: job` are of each replica. Checkpoints and the phases of a restart are of training alone.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from math import exp, fsum, lgamma, log, log1p

from msgspec import Struct, structs

from rapid_des.errors import InputError
from rapid_des.machine import Machine
from rapid_des.runs.failures import Draws, Failure, failures
from rapid_des.runs.loading import Reliability, fleets, gpus_of_unit, slow_classes, tiers, treatments
from rapid_des.units import PS_PER_US

_MOST_DRAWN = 20_000
"""The failures after which a replica that none of them hits counts as one that never fails."""

_LEAST_AVAILABILITY = 0.01
"""The share of the time in which a replica runs below which no fleet is stated."""


class Event(Struct, frozen=True):
    """One outage of one replica, in picoseconds."""

    at: int
    replica: int
    down: int
    fault: str | None


class ServerFailures:
    """What a reliability file says about the replicas of a server, whose GPUs are `replicas`."""

    def __init__(self, reliability: Reliability, machine: Machine, replicas: Sequence[range]) -> None:
        self._replicas, spec = replicas, reliability.spec
        self._treated = treatments(reliability, machine)
        self._slow, self._tiers = slow_classes(reliability, machine), tiers(reliability)
        parts = fleets(reliability, max(gpus.stop for gpus in replicas), machine)
        self._units = [
            0 if part.per == "job" else gpus_of_unit(reliability, place, "per", machine)
            for place, part in enumerate(spec.classes)
        ]
        self._counts = [part.count for part in spec.classes]
        self._parts = tuple(
            each if unit else structs.replace(each, parts=each.parts * len(replicas))
            for each, unit in zip(parts, self._units, strict=True)
        )

    def outages(self, seed: int, meets: Callable[[int, str], bool]) -> Iterator[Iterator[Event]]:
        """Yield the outages of each replica in the order of time, drawn when they are asked for."""
        drawn, waiting = self._drawn(seed, meets), [deque[Event]() for _ in self._replicas]

        def of(replica: int) -> Iterator[Event]:
            while True:
                for event in () if waiting[replica] else islice(drawn, _MOST_DRAWN):
                    waiting[event.replica].append(event)
                    if event.replica == replica:
                        break
                if not waiting[replica]:
                    return
                yield waiting[replica].popleft()

        return map(of, range(len(self._replicas)))

    def availability(self, startup: int) -> float:
        """Return the share of the time in which a replica runs, by the means of all times."""
        down, replicas = 0.0, len(self._replicas)
        classes = zip(self._parts, self._treated, self._units, self._counts, strict=True)
        for fleet, treated, unit, count in classes:
            if treated.effect == "slows" or not fleet.parts:
                continue
            hit = sum(len(self._hit(gpus, unit)) if unit else 1 for gpus in self._replicas) / replicas
            lasts = treated.lasts.mean if treated.lasts else treated.detection.mean + treated.diagnosis.mean
            each = 1 / (1 - fleet.follow)
            down += each * hit * count / (fleet.mean * PS_PER_US) * (lasts + startup)
        return 1 / (1 + down)

    @staticmethod
    def _hit(gpus: range, unit: int) -> range:
        """Return the units that have a GPU of a replica."""
        return range(gpus.start // unit, (gpus.stop - 1) // unit + 1)

    def _drawn(self, seed: int, meets: Callable[[int, str], bool]) -> Iterator[Event]:
        ready = [(0, tier) for tier, nodes in enumerate(self._tiers) for _ in range(nodes.count)]
        for failure in failures(self._parts, seed=seed, replication=0):
            treated, drawn = self._treated[failure.fleet], failure.uniforms
            detected, begin = treated.detection.at(drawn[Draws.DETECTION]), failure.at
            down = detected + treated.diagnosis.at(drawn[Draws.DIAGNOSIS])
            fault = self._fault(failure)
            if treated.effect == "corrupts":
                begin, down = begin + detected, down - detected
            if treated.lasts is not None:
                down = treated.lasts.at(drawn[Draws.LASTS])
            elif fault is None and self._tiers and treated.nodes:
                back = failure.at + treated.repair.at(drawn[Draws.REPAIR])
                down += self._spare(ready, begin + down, back, failure)
            for replica in self._struck(failure):
                if fault is None or meets(replica, fault):
                    yield Event(begin, replica, down, fault)

    def _spare(self, ready: list[tuple[int, int]], now: int, back: int, failure: Failure) -> int:
        """Return how long a replica waits for a spare node; the failed one is a hot spare once repaired."""
        heapq.heappush(ready, (back, 0))
        free = [each for each in ready if each[0] <= now]
        chosen = min(free, key=lambda each: each[1]) if free else min(ready)
        ready.remove(chosen)
        heapq.heapify(ready)
        start = self._tiers[chosen[1]].start.at(failure.uniforms[Draws.START])
        return max(chosen[0] - now, 0) + start

    def _struck(self, failure: Failure) -> Iterator[int]:
        """Yield the replicas that a failure hits."""
        unit, number = self._units[failure.fleet], failure.part // self._counts[failure.fleet]
        if not unit:
            yield number
            return
        for replica, gpus in enumerate(self._replicas):
            if number in self._hit(gpus, unit):
                yield replica

    def _fault(self, failure: Failure) -> str | None:
        slow = self._slow.get(failure.fleet)
        return slow.at(slow.first_gpu(failure.part), slow.number(failure.part)) if slow else None


def replicas_held(replicas: int, availability: float, share: float) -> int:
    """Return how many replicas a fleet has so that enough of them run for a share of the time.

    `InputError` for replicas that hardly ever run.

    >>> replicas_held(10, 1.0, 0.99), replicas_held(10, 0.99, 0.99), replicas_held(3000, 0.4, 0.99)
    (10, 11, 7750)
    """
    if availability == 1:
        return replicas
    if availability < _LEAST_AVAILABILITY:
        problem = f"a replica runs {availability:.2%} of the time; allowed: {_LEAST_AVAILABILITY:.0%} or more"
        raise InputError(f"--reliability: {problem}")
    fewer, more = replicas - 1, replicas
    while _enough(more, replicas, availability) < share:
        fewer, more = more, 2 * more
    while more - fewer > 1:  # by halves: each more makes it likelier that enough run
        middle = (fewer + more) // 2
        fewer, more = (fewer, middle) if _enough(middle, replicas, availability) >= share else (middle, more)
    return more


def _enough(held: int, replicas: int, availability: float) -> float:
    """Return the probability that at least `replicas` of the replicas that are held run, by logarithms."""
    runs, out, whole = log(availability), log1p(-availability), lgamma(held + 1)
    return fsum(
        exp(whole - lgamma(down + 1) - lgamma(held - down + 1) + down * out + (held - down) * runs)
        for down in range(held - replicas + 1)
    )
