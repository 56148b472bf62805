"""What repeats with a period: a run, by what is under way, and a rank's program, by its visits.

A run has no memory except what is under way (R1 to R6), and its order among equals counts nothing from the
start of the run (R3). So let `end` be a period after `begin`. If the same visits are under way just before
both, each begun as long ago, and the same hops, then the run does after `end` what it did after `begin`,
until it meets a visit that has none a period later.

A program repeats where visits are alike at a distance: layers, or micro-batches.

    whole   before │ P P P P … P P │ behind       one P a layer, or a micro-batch
    short   before │ P P P │ behind               each visit that is left out is like one before it

Two visits are alike if they serve as long at the same server, in the same collective, and wait for visits at
the same distance before them, or for the same visit before the range. What waits for them stands at the same
distance behind them, or is one visit behind the range that waits for such a visit of every period.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Bools, Int64s, distinct_rows, entries_of, rows_of, starts_by
from rapid_des.program.program import NONE, LinkTrail, RankProgram, Records, TaskEdges
from rapid_des.values import replace


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


_PERIODS = 6
"""The number of period lengths that are tried of each kind, the most frequent ones."""


_ALIKE = ("kind", "server", "work", "priority", "link_priority", "slot", "sub", "template")
"""Columns that are equal in visits that are alike."""


class PeriodicRange(NamedTuple):
    """Visits from `start` to before `stop` that repeat with a period, and the number of periods left out."""

    start: int
    stop: int
    period: int
    left_out: int

    @property
    def visits(self) -> int:
        """The number of visits that are left out."""
        return self.period * self.left_out

    def shortened(self, before: int) -> PeriodicRange:
        """Return the range in the short program, of which `before` visits are left out before it."""
        return self._replace(start=self.start - before, stop=self.stop - before - self.visits)


def periodic_ranges(table: RankProgram, kept: int, least: int) -> list[PeriodicRange]:
    """Return the ranges of a program, ascending, of which `kept` periods stay and `least` or more go."""
    rows = _Rows.of(table)
    taken = np.zeros(len(table), np.bool_)
    chosen = []
    for each in rows.periods():
        for low, high in rows.alike(each):
            left_out = (high - low) // each - kept
            if left_out >= least and not taken[low:high].any():
                taken[low:high] = True
                chosen.append(PeriodicRange(low, high, each, left_out))
    return sorted(chosen)


def drop_periods(table: RankProgram, ranges: Sequence[PeriodicRange]) -> RankProgram | None:
    """Return a program without the periods that are left out; None if a visit needs one of them."""
    for chosen in reversed(ranges):
        shorter = _dropped(table, chosen)
        if shorter is None:
            return None
        table = shorter
    return table


class _Ends(Struct, frozen=True):
    """Edges ordered by one of their ends: the rows of each visit, and the visits at the other end."""

    starts: Int64s
    other: Int64s
    mark: Int64s
    """The lag and the anchor of each edge as one number."""

    @classmethod
    def of(cls, ends: Int64s, others: Int64s, mark: Int64s, visits: int) -> _Ends:
        order = np.lexsort((mark, others, ends))
        return cls(starts_by(ends, visits), others[order], mark[order])

    def agree(self, each: int) -> Bools:
        """Return whether the edges of each visit lead as far as those `each` later, or to the same visit."""
        counts = np.diff(self.starts)
        alike: Bools = counts[each:] == counts[:-each]
        visits = np.flatnonzero(alike)
        here, there = entries_of(self.starts, visits), entries_of(self.starts, visits + each)
        moved = self.other[there] - self.other[here]
        differs = (self.mark[here] != self.mark[there]) | ((moved != each) & (moved != 0))
        alike[visits[rows_of(counts[visits])[differs]]] = False
        return alike

    def fixed(self, low: int, high: int, each: int) -> Int64s:
        """Return the visits at the other end both of a visit of a range and of the one `each` later."""
        visits = np.arange(low, high - each)
        here, there = entries_of(self.starts, visits), entries_of(self.starts, visits + each)
        fixed: Int64s = self.other[here][self.other[here] == self.other[there]]
        return fixed


class _Rows(Struct, frozen=True):
    """The columns by which visits are compared."""

    number: Int64s
    """[visit] a number that is equal for visits that do the same, whatever they wait for."""
    after: _Ends
    before: _Ends

    @classmethod
    def of(cls, table: RankProgram) -> _Rows:
        visits = len(table)
        origin, target = edge_ends(table)
        mark = _marks(table)
        return cls(
            distinct_rows(*_columns(table))[1],
            _Ends.of(origin, target, mark, visits),
            _Ends.of(target, origin, mark, visits),
        )

    def periods(self) -> list[int]:
        """Return the most frequent distances from a visit to the next ones that do the same, ascending.

        Of two half-batches that take turns, the next but one is the same half's in the next layer.
        """
        order, chosen = np.argsort(self.number, kind="stable"), set[int]()
        for step in (1, 2):
            same = self.number[order][step:] == self.number[order][:-step]
            count = np.bincount((order[step:] - order[:-step])[same])
            likely = np.argsort(-count, kind="stable")[:_PERIODS]
            chosen.update(int(each) for each in likely if count[each])
        return sorted(chosen)

    def alike(self, each: int) -> Iterator[tuple[int, int]]:
        """Yield start and stop of each range with that period."""
        same = self.number[each:] == self.number[:-each]
        same &= self.after.agree(each) & self.before.agree(each)
        bounds = np.flatnonzero(np.diff(np.concatenate(([False], same, [False]))))
        for low, last in bounds.reshape(-1, 2).tolist():
            if last - low > each and self._is_closed(low, last + each, each):
                yield low, last + each

    def _is_closed(self, low: int, high: int, each: int) -> bool:
        """Return whether what all periods wait for is before the range, and what waits for all is behind it.

        Each visit also waits for one at most a period before it, so that none runs ahead of the others.
        """
        if (self.before.fixed(low, high, each) >= low).any():
            return False
        if (self.after.fixed(low, high, each) < high).any():
            return False
        last = np.arange(high - each, high)
        ends = self.before.starts[last + 1]
        waits = ends > self.before.starts[last]
        return bool(waits.all()) and bool((self.before.other[ends - 1] >= last - each).all())


def edge_ends(table: RankProgram) -> tuple[Int64s, Int64s]:
    """Return the origin and the target of each edge of a program."""
    return rows_of(np.diff(table.edge_starts)), table.edge_target.astype(np.int64)


def _marks(table: RankProgram) -> Int64s:
    """Return the lag and the anchor of each edge as one number."""
    return 2 * table.edge_lag + table.edge_at_start


def _columns(table: RankProgram) -> list[Int64s]:
    """Return the columns that are equal for visits that are alike, besides their edges."""
    place = np.arange(len(table))
    columns = [getattr(table, name).astype(np.int64) for name in (*_ALIKE, "need")]
    columns += [np.where(other == NONE, 0, other - place) for other in (table.release, table.parent)]
    columns.append((table.occurrence == NONE).astype(np.int64))
    if table.contention is not None:
        columns += [table.contention.weight.astype(np.int64), table.contention.kind.astype(np.int64)]
    return columns


def _dropped(table: RankProgram, chosen: PeriodicRange) -> RankProgram | None:
    low, high, each, _ = chosen
    cut = high - chosen.visits
    visits = np.arange(len(table))
    stays = (visits < cut) | (visits >= high)
    place = np.where(visits < cut, visits, visits - chosen.visits)
    origin, target = edge_ends(table)
    if (origin >= target).any() or (np.bincount(target, minlength=len(table)) != table.need).any():
        return None
    leads_out = (origin >= low) & (origin < high) & (target >= high)
    of_all = leads_out & _of_every_period(table, chosen)
    of_last = leads_out & ~of_all
    if (of_last & (origin < high - each)).any():
        return None
    # an edge of the last period now leads from the last period that stays
    moved = np.where(of_last, origin - chosen.visits, place[origin])
    used = stays[target] & (of_last | stays[origin])
    # what stays before the cut has its releases and parents as far from it as before
    others = {
        name: np.where((column == NONE) | (visits < cut), column, place[column])[stays].astype(np.int32)
        for name, column in (("release", table.release), ("parent", table.parent))
    }
    edges = TaskEdges(moved[used], place[target][used], table.edge_lag[used], table.edge_at_start[used])
    starts, targets, lag, at_start = edges.by_origin(int(stays.sum()))
    contention = table.contention
    if contention is not None:
        contention = replace(contention, weight=contention.weight[stays], kind=contention.kind[stays])
    columns: dict[str, Any] = {name: getattr(table, name)[stays] for name in (*_ALIKE, "occurrence", "node")}
    return replace(
        table,
        **(columns | others),
        need=np.bincount(targets, minlength=int(stays.sum())).astype(np.int32),
        edge_starts=starts,
        edge_target=targets,
        edge_lag=lag,
        edge_at_start=at_start,
        contention=contention,
    )


def _of_every_period(table: RankProgram, chosen: PeriodicRange) -> Bools:
    """Return whether each edge has a like one from every period of a range, all to one visit."""
    low, high, each, _ = chosen
    origin, target = edge_ends(table)
    inside = np.flatnonzero((origin >= low) & (origin < high))
    place = (origin[inside] - low) % each
    _, number = distinct_rows(target[inside], _marks(table)[inside], place)
    _, first = np.unique(np.stack((number, origin[inside])), axis=1, return_index=True)
    periods = np.bincount(number[first], minlength=len(number))
    every = np.zeros(len(origin), np.bool_)
    every[inside] = periods[number] == (high - low - place - 1) // each + 1
    return every
