"""Whether a run repeats itself: what is under way at one moment is what was under way a period before.

A run has no memory except what is under way (R1 to R6), and its order among equals counts nothing from the
start of the run (R3). So let `end` be a period after `begin`. If the same visits are under way just before
both, each begun as long ago, and the same hops, then the run does after `end` what it did after `begin`,
until it meets a visit that has none a period later.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Bools, Int64s
from rapid_des.program.program import NONE, LinkTrail, Records


class Periodicity(Struct, frozen=True):
    """The visits and hops of a run, and which visit does the same a period later."""

    records: Records
    trail: LinkTrail
    later: Int64s
    """[visit] the visit that does the same a period later; NONE: there is none."""

    def under_way(self, moment: int) -> Bools:
        """Return whether each visit started before a moment and is not over, or has messages under way."""
        started = self.records.start < moment
        # a visit is over when it has finished and all members of its collective have met
        under_way = started & ((self.records.finish >= moment) | (self.records.met >= moment))
        sent = self.trail.visit[self.trail.arrival >= moment]
        under_way[sent[started[sent]]] = True
        return under_way

    def recent(self, moment: int, age: int) -> Bools:
        """Return whether each visit started before a moment and was not over `age` picoseconds before it."""
        return (self.records.start < moment) & (self.records.finish >= moment - age)

    def is_later(self, here: Bools, there: Bools, columns: Sequence[Int64s], period: int) -> bool:
        """Return whether visits `there` are those `here` one period later, with times that much later."""
        visits = np.flatnonzero(here)
        later = self.later[visits]
        if (later == NONE).any():
            return False
        expected = np.zeros(len(there), np.bool_)
        expected[later] = True
        if (expected != there).any():
            return False
        return all(
            (np.where(column[visits] == NONE, NONE, column[visits] + period) == column[later]).all()
            for column in columns
        )

    def hops_agree(self, begin: int, end: int, age: int) -> bool:
        """Return whether the hops in the last `age` picoseconds before both moments are the same."""
        here, there = self._hops(begin, age), self._hops(end, age)
        here[0] = self.later[here[0]]
        # hops of one moment have no order: rows are compared as sets
        return here.shape == there.shape and bool((_sorted(here) == _sorted(there)).all())

    def _hops(self, moment: int, age: int) -> Int64s:
        """Return [column, hop] visit, link, task, position, and times from the moment on, of recent hops."""
        trail = self.trail
        rows = (trail.start < moment) & (np.maximum(trail.finish, trail.arrival) >= moment - age)
        names = np.stack((trail.visit, trail.link, trail.task, trail.position))[:, rows]
        times = np.stack((trail.start, trail.finish, trail.arrival))[:, rows] - moment
        return np.concatenate((names, times)).astype(np.int64)


def _sorted(rows: Int64s) -> Int64s:
    return rows[:, np.lexsort(rows)]
