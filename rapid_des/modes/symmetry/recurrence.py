"""Runs of programs that repeat: few periods are simulated, and stand for all of them if that is proven.

All ranks run one program, so every collective is that of the same visit of each of its members. The program
with few periods is run (`periodic_ranges`). Let begin and end = begin + P be moments of that run at which the
same is under way, one period later (`modes.periodicity`). If moreover nothing of the last period, or behind
it, starts before `end`, then the whole and the short program do the same until `end`. From then on the whole
program repeats what happened since `begin`, P later each time, once for each period that is left out. Then it
does what the short run does from `begin` on.

A visit that has started may still hold back one that has not: by a dependency with a lag. Such dependencies
must agree a period later too. Those on what is before the range, such as a host that issues everything from
the start of the step, must not be the last that a visit waits for.

Times, hops, bytes and waits of the whole follow to the tick. What is not proven is simulated as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Bools, Int64s, distinct
from rapid_des.engines.compiled.engine import CompiledSimulation, KernelRun
from rapid_des.errors import TraceError
from rapid_des.modes.periodicity import Periodicity, PeriodicRange, drop_periods, edge_ends, periodic_ranges
from rapid_des.program.program import NONE, LinkTrail, Program, Progress, RankProgram, Records, VisitKind
from rapid_des.program.timetable import FOREVER
from rapid_des.values import fields, replace

KEPT = 14
"""The number of periods of each range that are simulated at most."""
FEW = 8
"""The number that is tried first: layers without sums of gradients recur from the second or third on."""
_LEAST = 8
"""The least number of periods that a range must leave out."""
_WATCHED, _NOTED = 3, 5
"""The run is compared with itself from the third last period on; hops are noted from the fifth last on."""
_LOOKS = 4
"""About how many times a period the progress of a run is checked."""
WORTH = 3
"""The number of events left out for each visit compared above which this pays. Comparing one took 0.12 to
0.29 us, an event takes 0.05 to 0.1 us. Programs seen so far leave out 150, or less than a tenth."""
_COUNTED = ("link_bytes", "link_busy", "link_wait", "hops", "events", "sent", "received", "ties")
"""The columns of records that count something."""


class ShortenedProgram(Struct, frozen=True):
    """A program with fewer periods; `ranges` are those of the whole program."""

    program: Program
    ranges: tuple[PeriodicRange, ...]


def shortened(
    program: Program, *, kept: int = KEPT, least: int = _LEAST, worth: int = 0
) -> ShortenedProgram | None:
    """Return a program with fewer periods; None if nothing repeats, or ranks might repeat differently.

    It leaves out more than `worth` events for each visit that `run_shortened` will compare.
    """
    # these remember more than what is under way, or go by the time since the start of the step
    apart = program.fluid or program.queue_pairs or program.spray or program.delays
    if apart or program.link_timetables or program.visit_timetables or not _in_step(program):
        return None
    number = program.bindings[0].program
    chosen = periodic_ranges(program.programs[number], kept, least)
    if not chosen or _left_out(program, chosen) <= worth * _compared(program, chosen):
        return None
    table = drop_periods(program.programs[number], chosen)
    if table is None:
        return None
    programs = (*program.programs[:number], table, *program.programs[number + 1 :])
    return ShortenedProgram(replace(program, programs=programs), tuple(chosen))


def _left_out(program: Program, chosen: Sequence[PeriodicRange]) -> int:
    """Return the least number of events that the program without some periods leaves out."""
    events = _least_events(program)
    return sum(int(events[each.stop - each.visits : each.stop].sum()) for each in chosen)


def _compared(program: Program, chosen: Sequence[PeriodicRange]) -> int:
    """Return the number of visits, over all ranks and ranges, that are compared in the short program."""
    visits = len(program.programs[program.bindings[0].program]) - sum(each.visits for each in chosen)
    return len(program.bindings) * visits * len(chosen)


def _in_step(program: Program) -> bool:
    """Return whether all ranks run one program, and members of a group have it in the same slot."""
    first = program.bindings[0]
    if any(binding.program != first.program for binding in program.bindings):
        return False
    groups = np.stack([binding.groups for binding in program.bindings])
    slots = np.broadcast_to(np.arange(groups.shape[1]), groups.shape)
    # a group in two slots would be in two pairs: then there are more pairs than groups
    pairs = np.unique(np.stack((groups[groups != NONE], slots[groups != NONE])), axis=1)
    return bool(len(np.unique(pairs[0])) == pairs.shape[1])


def run_shortened(short: ShortenedProgram, *, progress: Progress | None = None) -> Records | None:
    """Return the records of the whole program by a run of the short one; None if that is not proven."""
    simulation = CompiledSimulation(KernelRun(short.program, trail=True), progress=progress)
    simulation.kernel.note_hops(on=False)
    places, before = [], 0
    for each in short.ranges:
        places.append(each.shortened(before))
        before += each.visits
    events = _least_events(short.program)
    views = [_watch(simulation, place, int(events[place.start :][: place.period].sum())) for place in places]
    with suppress(TraceError):  # the whole run says what is wrong
        simulation.run()
    records = simulation.records()
    if not records.finished:
        return None
    table = short.program.programs[short.program.bindings[0].program]
    seen = _ShortRun(table, records, len(short.program.bindings))
    if not all(view is not None and seen.recurs(view) for view in views):
        return None
    return seen.prolonged([view for view in views if view is not None])


class _View(Struct, frozen=True):
    """What a run did in a range from `begin` on for one period, and before it for long enough."""

    range: PeriodicRange
    """The range in the short program."""
    begin: int
    period: int
    trail: LinkTrail
    counted: tuple[Int64s | int, ...]
    """What the run counted in that period, in the order of `_COUNTED`."""

    @property
    def end(self) -> int:
        return self.begin + self.period


def _least_events(program: Program) -> Int64s:
    """Return the least number of events of each visit, over all ranks: its own and parts of messages."""
    table, parts = program.programs[program.bindings[0].program], program.hops.parts
    sent = np.zeros(len(program.templates) + 1, np.int64)
    for number in distinct(table.template[table.template != NONE]).tolist():
        template = program.templates[number].expanded()
        messages = len(template) if parts is None else int(parts.count[template.size].sum())
        sent[number] = messages // template.members
    events: Int64s = len(program.bindings) * (1 + sent[table.template])
    return events


def _watch(simulation: CompiledSimulation, watched: PeriodicRange, events: int) -> _View | None:
    """Simulate until a period before the last ones of a range has passed; None if it is not reached.

    A period makes at least `events` events.
    """
    low, high, each, _ = watched
    head = [low + each * ((high - low) // each - back) for back in range(_NOTED + 1)]
    if not _play_to(simulation, low + each, events):
        return None
    made = simulation.kernel.events
    if not _play_to(simulation, low + 2 * each, max(1, events // _LOOKS)):
        return None
    events = max(events, simulation.kernel.events - made) // _LOOKS + 1
    if not _play_to(simulation, head[_NOTED], events):
        return None
    simulation.kernel.note_hops(on=True)
    if not _play_to(simulation, head[_WATCHED], events):
        return None
    start, begin = simulation.records().start, simulation.kernel.now
    period = int(start[head[_WATCHED]] - start[head[_WATCHED + 1]])
    before = _counts(simulation.records())
    simulation.advance(until=begin + period)
    records = simulation.records()
    assert records.trail is not None, "hops are noted"
    trail = LinkTrail(*(getattr(records.trail, column).copy() for column in fields(LinkTrail)))
    simulation.kernel.note_hops(on=False)
    counted = tuple(later - earlier for earlier, later in zip(before, _counts(records), strict=True))
    # events at `begin` itself have happened, so what is under way is looked at just after it
    return _View(watched, begin + 1, period, trail, counted)


def _play_to(simulation: CompiledSimulation, visit: int, events: int) -> bool:
    """Simulate, `events` at a time, until a visit of the first rank has started; return whether it has."""
    start = simulation.records().start
    while start[visit] == NONE:
        if not simulation.advance(events):
            return False
    return True


def _counts(records: Records) -> tuple[Int64s | int, ...]:
    """Return what was counted so far."""
    values = (getattr(records, name) for name in _COUNTED)
    return tuple(value.copy() if isinstance(value, np.ndarray) else value for value in values)


class _ShortRun:
    """A run of a short program, its columns by rank and visit."""

    def __init__(self, table: RankProgram, records: Records, ranks: int) -> None:
        self.table, self.records = table, records
        self.start, self.finish, self.met = (
            column.reshape(ranks, len(table)) for column in (records.start, records.finish, records.met)
        )

    def recurs(self, view: _View) -> bool:
        """Return whether the same is under way just before the end of a view as just before its start."""
        low, high, each, _ = view.range
        check = self._periodicity(view)
        under_way = check.under_way(view.begin).reshape(self.start.shape)
        # the last period has no later one to be compared with: nothing of it, nor behind it, may have begun
        apart = int(self.start[:, high - each :].min())
        begun = self.start < view.begin
        beside = np.flatnonzero(under_way[:, :low].any(axis=0))
        if view.period <= 0 or apart < view.end or not self._are_harmless(beside, view.begin):
            return False
        under_way[:, beside] = begun[:, beside] = False
        if max(self.finish[begun].max(), self.met[begun].max()) > apart:
            return False
        # what is over may still hold back others by lags, as long ago as the oldest under way began
        age = view.begin - int(self.start[under_way].min(initial=view.begin)) + 1
        return (
            self._visits_agree(view, check, age, beside)
            and check.hops_agree(view.begin, view.end, age)
            and self._waits_agree(view, check)
            and self._held_by_none(view)
        )

    def _periodicity(self, view: _View) -> Periodicity:
        """Return the run with, for each visit of the range and rank, the one a period later."""
        low, high, each, _ = view.range
        later = np.full(self.start.shape, NONE, np.int64)
        later[:, low : high - each] = np.arange(self.start.size).reshape(self.start.shape)[
            :, low + each : high
        ]
        return Periodicity(self.records, view.trail, later.reshape(-1))

    def _are_harmless(self, beside: Int64s, begin: int) -> bool:
        """Return whether visits under way before the range hold up other visits by edges only.

        They compute as fast beside others, slow none, and no visit that is left waits for their server.
        """
        table, left = self.table, self.start >= begin
        computes = table.kind[beside] == VisitKind.COMPUTE
        if table.contention is not None:
            computes &= (table.contention.weight[beside] == 0) & (table.contention.kind[beside] == NONE)
        # a visit under way before the range must not keep its server from those that are left
        free = [
            np.where(left & (table.server == table.server[visit]), self._ready, FOREVER).min(axis=1)
            >= self.finish[:, visit]
            for visit in beside.tolist()
        ]
        return bool(computes.all()) and bool(np.all(free))

    def _visits_agree(self, view: _View, check: Periodicity, age: int, beside: Int64s) -> bool:
        """Return whether recent visits are the same at both moments, and those that have not started."""
        low, high, each, _ = view.range
        left, still_left = self.start >= view.begin, self.start >= view.end
        if left[:, :low].any() or still_left[:, low : low + each].any():
            return False
        if (left[:, low : high - each] != still_left[:, low + each : high]).any():
            return False
        here, there = check.recent(view.begin, age), check.recent(view.end, age)
        for mask in (here, there):
            mask.reshape(self.start.shape)[:, beside] = False
        records = self.records
        return check.is_later(here, there, (records.start, records.finish, records.met), view.period)

    def _waits_agree(self, view: _View, check: Periodicity) -> bool:
        """Return whether the same visits wait for a server, and for the same visits of the range."""
        low, high, _, _ = view.range
        ready = self._ready
        here = (ready != NONE) & (ready < view.begin) & (self.start >= view.begin)
        there = (ready != NONE) & (ready < view.end) & (self.start >= view.end)
        if not check.is_later(here.reshape(-1), there.reshape(-1), (ready.reshape(-1),), view.period):
            return False
        inside = (self._origin >= low) & (self._target < high)
        for anchor, of in ((self.start, self._at_start), (self.finish, ~self._at_start)):
            here, there = (self._pending(anchor, inside & of, moment) for moment in (view.begin, view.end))
            if not check.is_later(here.reshape(-1), there.reshape(-1), (anchor.reshape(-1),), view.period):
                return False
        return True

    def _pending(self, anchor: Int64s, edges: Bools, moment: int) -> Bools:
        """Return the visits that had passed before a moment, and for which visits that start later wait."""
        origin, target = self._origin[edges], self._target[edges]
        rank, edge = np.nonzero((anchor[:, origin] < moment) & (self.start[:, target] >= moment))
        pending = np.zeros(anchor.shape, np.bool_)
        pending[rank, origin[edge]] = True
        return pending

    def _held_by_none(self, view: _View) -> bool:
        """Return whether visits that are left wait last for something that moves with the range.

        In the range, what is before it does not move; behind it, what had passed at the start does not.
        """
        low, high, _, _ = view.range
        latest, earliest = np.full((2, *self.start.shape), NONE, np.int64)
        # `earliest` is what stands still as periods pass, `latest` what moves with them: that must decide
        early = (self._origin < low) | ((self._target >= high) & (self._anchor < view.begin))
        np.maximum.at(earliest.T, self._target, np.where(early, self._moment, NONE).T)
        np.maximum.at(latest.T, self._target, np.where(early, NONE, self._moment).T)
        left = self.start >= view.begin
        return bool(((latest >= earliest) & (latest != NONE))[left].all())

    @cached_property
    def _edges(self) -> tuple[Int64s, Int64s]:
        return edge_ends(self.table)

    @property
    def _origin(self) -> Int64s:
        return self._edges[0]

    @property
    def _target(self) -> Int64s:
        return self._edges[1]

    @property
    def _at_start(self) -> Bools:
        return self.table.edge_at_start

    @cached_property
    def _anchor(self) -> Int64s:
        """[rank, edge] the time at which the anchor of the edge passed, in picoseconds."""
        anchor: Int64s = np.where(self._at_start, self.start[:, self._origin], self.finish[:, self._origin])
        return anchor

    @cached_property
    def _ready(self) -> Int64s:
        """[rank, visit] the time at which everything but its server was ready; NONE: it waits for nothing."""
        ready = np.full(self.start.shape, NONE, np.int64)
        np.maximum.at(ready.T, self._target, self._moment.T)
        return ready

    @cached_property
    def _moment(self) -> Int64s:
        """[rank, edge] the time at which the edge released its target."""
        moment: Int64s = self._anchor + self.table.edge_lag
        return moment

    def prolonged(self, views: Sequence[_View]) -> Records | None:
        """Return the records of the whole program; None if it lasts longer than a simulation may."""
        columns = [self.start, self.finish, self.met]
        for view in reversed(views):
            passed = _passed(columns[0], view)
            columns = [_prolonged(column, view, passed) for column in columns]
        if int(columns[1].max()) >= FOREVER:
            return None
        counted = {
            name: getattr(self.records, name)
            + sum(view.range.left_out * view.counted[place] for view in views)
            for place, name in enumerate(_COUNTED)
        }
        start, finish, met = (column.reshape(-1) for column in columns)
        return replace(self.records, start=start, finish=finish, met=met, trail=None, **counted)


def _passed(start: Int64s, view: _View) -> Int64s:
    """Return [rank, place in a period] the number of visits at that place that started before the view."""
    low, high, each, _ = view.range
    begun = start[:, low:high] < view.begin
    rows = np.zeros((len(start), -(-(high - low) // each) * each), np.int64)
    rows[:, : high - low] = begun
    passed: Int64s = rows.reshape(len(start), -1, each).sum(axis=1)
    return passed


def _prolonged(column: Int64s, view: _View, passed: Int64s) -> Int64s:
    """Return times of the visits of a program with all periods of a range."""
    low, high, each, left_out = view.range
    visits = np.arange(column.shape[1] + view.range.visits)
    number, place = np.divmod(visits - low, each)
    # a visit repeats one that was simulated, `later` periods before it
    later = np.clip(number - passed[:, place], 0, left_out)
    later[:, :low] = 0
    later[:, high + view.range.visits :] = left_out
    times = np.take_along_axis(column, visits - later * each, axis=1)
    whole: Int64s = np.where(times == NONE, NONE, times + later * view.period)
    return whole
