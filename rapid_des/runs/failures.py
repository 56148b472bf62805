"""The failures of a run in the order of their times: a function of seed, replication and parts alone.

Each part is a renewal process: after a failure its replacement is of age 0. What is drawn for the n-th
failure of a part depends on nothing else: two runs that differ in anything but the rates have the same
failures, and a failure's numbers stay its own where rates change.
"""

from __future__ import annotations

import hashlib
import heapq
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from math import log1p
from zlib import crc32

import numpy as np
from msgspec import Struct, structs

from rapid_des.runs.laws import Law, Log
from rapid_des.runs.times import Time
from rapid_des.units import PS_PER_US

_DRAWN = 16
"""The number of uniform numbers of a failure."""
_FOLLOWS = 0
"""The ordinal of failures that follow others: they are no renewals of their part."""
_FIRST_WINDOW = 10**12
"""The end of the first stretch of time that is searched for failures, in microseconds; it doubles."""


class Draws(IntEnum):
    """What each of a failure's uniform numbers decides, by its place."""

    DETECTION = 0
    DIAGNOSIS = 1
    REPAIR = 2
    START = 3
    """The start of a spare node."""
    PHASES = 4
    """The first phase of a restart; those of the others follow."""
    RENEWAL = 11
    """The next failure of the part."""
    LASTS = 12
    MISDIAGNOSIS = 13
    WRONG = 14
    """The node that a wrong diagnosis names."""
    BURST = 15
    """Whether another failure follows, and when."""


class FailingParts(Struct, frozen=True):
    """The parts of one class in a job."""

    name: str
    parts: int
    law: Law
    mean: float
    """The mean time between failures of one part, in microseconds."""
    age: int = 0
    """The age of the parts at the start, in microseconds."""
    follow: float = 0.0
    """The probability that another failure follows one."""
    within: Time | None = None
    """The time until it follows."""
    unit: int | None = None
    """The number of parts of the unit from which the part of such a failure is drawn; None: all parts."""


class Failure(Struct, frozen=True, order=True):
    """One failure of one part."""

    at: int
    """The time since the start of the run, in picoseconds."""
    fleet: int
    """The place of the part's class among all classes."""
    part: int
    ordinal: int
    """The number of the part's failures so far, this one among them."""
    uniforms: tuple[float, ...]
    """Numbers between 0 and 1, from which all about this failure is drawn."""


def failures(fleets: Sequence[FailingParts], *, seed: int, replication: int) -> Iterator[Failure]:
    """Yield the failures of all parts in the order of time, without end unless no part fails any more."""
    waiting: list[Failure] = []
    sources = [_Source(place, fleet, (seed, replication)) for place, fleet in enumerate(fleets)]
    begin, end = -1.0, float(_FIRST_WINDOW)
    while waiting or any(source.left for source in sources):
        for source in sources:
            for failure in source.first_failures(begin, end):
                heapq.heappush(waiting, failure)
        while waiting and waiting[0].at <= end * PS_PER_US:
            failure = heapq.heappop(waiting)
            yield failure
            for renewed in sources[failure.fleet].after(failure):
                heapq.heappush(waiting, renewed)
        begin, end = end, 2 * end


def again(failure: Failure, at: int) -> Failure:
    """Return a failure that strikes once more at another time, with numbers of its own."""
    drawn = _uniforms((failure.fleet, failure.part, *(int(number * 2**53) for number in failure.uniforms)))
    return Failure(at, failure.fleet, failure.part, failure.ordinal, drawn)


class _Source:
    """The failures of one fleet."""

    def __init__(self, place: int, fleet: FailingParts, entropy: tuple[int, int]) -> None:
        self._place, self._fleet = place, fleet
        self._entropy = (*entropy, crc32(fleet.name.encode()))
        self.left = len(fleet.law.at) if isinstance(fleet.law, Log) else fleet.parts
        """The number of parts, or of logged failures, whose first failure is still to come."""
        if not isinstance(fleet.law, Log):
            self._hazards = np.random.default_rng(self._entropy).standard_exponential(fleet.parts)
            self._hazards += fleet.law.hazard(fleet.age, fleet.mean)

    def first_failures(self, begin: float, end: float) -> Iterator[Failure]:
        """Yield the first failures of parts after `begin` up to `end`, in microseconds, in any order."""
        law, mean, age = self._fleet.law, self._fleet.mean, self._fleet.age
        if not self.left:
            return
        if isinstance(law, Log):
            yield from self._logged(law, begin, end)
            return
        least = law.hazard(age + begin, mean) if begin >= 0 else -1.0
        due = np.flatnonzero((self._hazards > least) & (self._hazards <= law.hazard(age + end, mean)))
        self.left -= len(due)
        times = law.ages(self._hazards[due], mean) - age
        for part, time in zip(due.tolist(), times.tolist(), strict=True):
            yield self._failure(round(max(time, 0.0) * PS_PER_US), part, 1)

    def after(self, failure: Failure) -> Iterator[Failure]:
        """Yield the next failure of the part that took the place of a failed one, and one that follows it."""
        law = self._fleet.law
        if failure.uniforms[Draws.BURST] < self._fleet.follow:
            yield self._follower(failure)
        if not isinstance(law, Log) and failure.ordinal != _FOLLOWS:
            hazard = np.array([-log1p(-failure.uniforms[Draws.RENEWAL])])
            time = float(law.ages(hazard, self._fleet.mean)[0])
            yield self._failure(
                failure.at + max(1, round(time * PS_PER_US)), failure.part, failure.ordinal + 1
            )

    def _follower(self, failure: Failure) -> Failure:
        """Return the failure of a part that is drawn, which follows another one in a burst."""
        fleet = self._fleet
        assert fleet.within is not None, "it is stated with the probability"
        lasts = fleet.within.at(failure.uniforms[Draws.BURST] / fleet.follow)
        drawn = again(failure, failure.at + max(1, lasts))
        unit = fleet.unit or fleet.parts
        first = failure.part // unit * unit
        part = first + int(drawn.uniforms[Draws.RENEWAL] * min(unit, fleet.parts - first))
        return structs.replace(drawn, part=part, ordinal=_FOLLOWS)

    def _logged(self, law: Log, begin: float, end: float) -> Iterator[Failure]:
        for number, time in enumerate(law.at):
            if begin < time <= end:
                self.left -= 1
                drawn = int(_uniforms((*self._entropy, number))[0] * self._fleet.parts)
                part = law.parts[number] if law.parts else drawn
                yield self._failure(time.picoseconds, part, number + 1)

    def _failure(self, at: int, part: int, ordinal: int) -> Failure:
        return Failure(at, self._place, part, ordinal, _uniforms((*self._entropy, part, ordinal)))


def _uniforms(place: tuple[int, ...]) -> tuple[float, ...]:
    """Return uniform random numbers for one place in the sequence of draws, made of the bits of its hash.

    NOTE: a numpy generator for each failure would do the same and take ten times as long.
    """
    bits = hashlib.shake_128(struct.pack(f"<{len(place)}Q", *place)).digest(8 * _DRAWN)
    return tuple((number >> 11) * 2.0**-53 for number in struct.unpack(f"<{_DRAWN}Q", bits))
