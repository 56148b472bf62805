"""Runs of programs whose stretches recur: few periods are simulated, and stand for all if that is proven.

All ranks run one program, so every collective is that of the same visit of each of its members. The program
with few periods is run (`stretches`). Let begin and end = begin + P be moments of that run at which the same
is under way, of visits a period later: the same visits, begun as long ago, and the same hops. If moreover
nothing of the last period, or behind it, starts before `end`, then whole and short program live alike until
`end`; from then on what happened since `begin` happens again, P later, as often as periods are left out; and
then what the short run does from `begin` on. For a run has no memory but what is under way (R1 to R6), and
its order among equals counts nothing from the begin of the run (R3).

What is behind a visit that already started may still hold one back that has not: a dependency with a lag.
Such dependencies agree a period later too; those on what is before the stretch, as a host that issues all
from the begin of the step, must not be the last that a visit waits for.

Times, hops, bytes and waits of the whole follow to the tick; what is not proven is simulated as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Bools, Int64s, distinct
from rapid_des.engines.compiled.engine import CompiledSimulation
from rapid_des.errors import TraceError
from rapid_des.modes.symmetry.stretches import Stretch, edge_ends, stretches, without
from rapid_des.program.program import NONE, Program, Progress, RankProgram, Records, Trail, VisitKind
from rapid_des.program.timetable import FOREVER
from rapid_des.values import fields, replace

KEPT = 14
"""Periods of each stretch that are simulated."""
_LEAST = 8
"""Periods that a stretch must leave out."""
_WATCHED, _NOTED = 3, 5
"""From which of the last periods on the run is compared with itself, and from which on hops are noted."""
_LOOKS = 4
"""How often in a period, about, it is looked how far a run is."""
_WORTH = 3
"""Events that must be left out for each visit that is looked at (0.12 and 0.29 us on two graphs, an event
0.05 to 0.1); programs seen so far leave out 150, or less than a tenth."""
_COUNTED = ("link_bytes", "link_busy", "link_wait", "hops", "events", "sent", "received", "ties")
"""What a run counts."""


class Shortened(Struct, frozen=True):
    """A program with fewer periods of its stretches, as the whole one has them."""

    program: Program
    stretches: tuple[Stretch, ...]

    def pays(self, whole: Program) -> bool:
        """Tell whether the events that are left out take longer than looking at all stretches."""
        few, many = (int(_least_events(program).sum()) for program in (self.program, whole))
        ranks, number = len(whole.bindings), whole.bindings[0].program
        looked_at = ranks * len(self.program.programs[number]) * len(self.stretches)
        return many - few > _WORTH * looked_at


def shortened(program: Program, *, kept: int = KEPT, least: int = _LEAST) -> Shortened | None:
    """Return a program with fewer periods; None if it has no stretches, or ranks might take unlike ones."""
    apart = program.fluid or program.queue_pairs or program.spray or program.delays
    if apart or program.link_timetables or program.visit_timetables or not _in_step(program):
        return None
    number = program.bindings[0].program
    chosen = stretches(program.programs[number], kept, least)
    table = without(program.programs[number], chosen) if chosen else None
    if table is None:
        return None
    programs = (*program.programs[:number], table, *program.programs[number + 1 :])
    return Shortened(replace(program, programs=programs), tuple(chosen))


def _in_step(program: Program) -> bool:
    """Tell whether all ranks run one program, and members of a group have it in the same slot."""
    first = program.bindings[0]
    if any(binding.program != first.program for binding in program.bindings):
        return False
    groups = np.stack([binding.groups for binding in program.bindings])
    slots = np.broadcast_to(np.arange(groups.shape[1]), groups.shape)
    pairs = np.unique(np.stack((groups[groups != NONE], slots[groups != NONE])), axis=1)
    return bool(len(np.unique(pairs[0])) == pairs.shape[1])


def run_shortened(short: Shortened, *, progress: Progress | None = None) -> Records | None:
    """Return the records of the whole program by a run of the short one; None if that is not proven."""
    simulation = CompiledSimulation(short.program, trail=True, progress=progress)
    simulation.note_hops(on=False)
    places, before = [], 0
    for stretch in short.stretches:
        places.append(stretch.shortened(before))
        before += stretch.visits
    events = _least_events(short.program)
    views = [_watch(simulation, place, int(events[place.low :][: place.each].sum())) for place in places]
    with suppress(TraceError):  # the whole run says what is wrong
        simulation.run()
    records = simulation.records()
    if not records.finished:
        return None
    table = short.program.programs[short.program.bindings[0].program]
    seen = _Seen(table, records, len(short.program.bindings))
    if not all(view is not None and seen.recurs(view) for view in views):
        return None
    return seen.prolonged([view for view in views if view is not None])


class _View(Struct, frozen=True):
    """What a run did in a stretch from `begin` on for one period, and before it for long enough."""

    stretch: Stretch
    """In the short program."""
    begin: int
    period: int
    trail: Trail
    counted: tuple[Int64s | int, ...]
    """In that period."""

    @property
    def end(self) -> int:
        return self.begin + self.period


def _least_events(program: Program) -> Int64s:
    """Return how many events each visit of all ranks makes at least: its own, and parts of messages."""
    table, parts = program.programs[program.bindings[0].program], program.hops.parts
    sent = np.zeros(len(program.templates) + 1, np.int64)
    for number in distinct(table.template[table.template != NONE]).tolist():
        template = program.templates[number].expanded()
        messages = len(template) if parts is None else int(parts.count[template.size].sum())
        sent[number] = messages // template.members
    events: Int64s = len(program.bindings) * (1 + sent[table.template])
    return events


def _watch(simulation: CompiledSimulation, stretch: Stretch, events: int) -> _View | None:
    """Play on until a period before the last ones of a stretch has passed; None if that is not seen.

    A period makes so many events or more.
    """
    low, high, each, _ = stretch
    head = [low + each * ((high - low) // each - back) for back in range(_NOTED + 1)]
    if not _play_to(simulation, low + each, events):
        return None
    made = simulation.events
    if not _play_to(simulation, low + 2 * each, max(1, events // _LOOKS)):
        return None
    events = max(events, simulation.events - made) // _LOOKS + 1
    if not _play_to(simulation, head[_NOTED], events):
        return None
    simulation.note_hops(on=True)
    if not _play_to(simulation, head[_WATCHED], events):
        return None
    start, begin = simulation.records().start, simulation.now
    period = int(start[head[_WATCHED]] - start[head[_WATCHED + 1]])
    before = _counts(simulation.records())
    simulation.advance(until=begin + period)
    records = simulation.records()
    assert records.trail is not None, "hops are noted"
    trail = Trail(*(getattr(records.trail, column).copy() for column in fields(Trail)))
    simulation.note_hops(on=False)
    counted = tuple(later - earlier for earlier, later in zip(before, _counts(records), strict=True))
    return _View(stretch, begin + 1, period, trail, counted)


def _play_to(simulation: CompiledSimulation, visit: int, events: int) -> bool:
    """Play, so many events at a time, until a visit of the first rank has started; tell whether it has."""
    start = simulation.records().start
    while start[visit] == NONE:
        if not simulation.advance(events):
            return False
    return True


def _counts(records: Records) -> tuple[Int64s | int, ...]:
    """Return what was counted so far."""
    values = (getattr(records, name) for name in _COUNTED)
    return tuple(value.copy() if isinstance(value, np.ndarray) else value for value in values)


class _Seen:
    """A run of a short program, by rank and visit."""

    def __init__(self, table: RankProgram, records: Records, ranks: int) -> None:
        self.table, self.records = table, records
        self.start, self.finish, self.met = (
            column.reshape(ranks, len(table)) for column in (records.start, records.finish, records.met)
        )

    def recurs(self, view: _View) -> bool:
        """Tell whether what is under way just before the end of a view is what was just before its begin."""
        low, high, each, _ = view.stretch
        under_way = self._under_way(view)
        apart = int(self.start[:, high - each :].min())
        begun = self.start < view.begin
        beside = np.flatnonzero(under_way[:, :low].any(axis=0))
        if view.period <= 0 or apart < view.end or not self._are_harmless(beside, view.begin):
            return False
        under_way[:, beside] = begun[:, beside] = False
        if max(self.finish[begun].max(), self.met[begun].max()) > apart:
            return False
        age = view.begin - int(self.start[under_way].min(initial=view.begin)) + 1
        return (
            self._visits_agree(view, age, beside)
            and self._hops_agree(view, age)
            and self._waits_agree(view)
            and self._held_by_none(view)
        )

    def _under_way(self, view: _View) -> Bools:
        """Tell which visits have begun by then and are not over, or have messages on their way."""
        trail = view.trail
        under_way = (self.start < view.begin) & ((self.finish >= view.begin) | (self.met >= view.begin))
        sent = np.zeros(under_way.size, np.bool_)
        sent[trail.visit[trail.arrival >= view.begin]] = True
        return under_way | (sent.reshape(under_way.shape) & (self.start < view.begin))

    def _later(self, view: _View, here: Bools, there: Bools, columns: Sequence[Int64s]) -> bool:
        """Tell whether visits `there` are those `here` a period on, all in the stretch, and as much later."""
        low, high, each, _ = view.stretch
        inside, moved = slice(low, high - each), slice(low + each, high)
        outside = here[:, :low].any() or here[:, high - each :].any()
        if outside or there[:, : low + each].any() or there[:, high:].any():
            return False
        if (here[:, inside] != there[:, moved]).any():
            return False
        return all(
            (np.where(first == NONE, NONE, first + view.period) == second).all()
            for first, second in (
                (column[:, inside][here[:, inside]], column[:, moved][there[:, moved]]) for column in columns
            )
        )

    def _are_harmless(self, beside: Int64s, begin: int) -> bool:
        """Tell whether visits under way that are before the stretch hold up nobody but by edges.

        They compute as fast beside others, slow none, and no visit that is left waits for their server.
        """
        table, left = self.table, self.start >= begin
        computes = table.kind[beside] == VisitKind.COMPUTE
        if table.contention is not None:
            computes &= (table.contention.weight[beside] == 0) & (table.contention.kind[beside] == NONE)
        free = [
            np.where(left & (table.server == table.server[visit]), self._ready, FOREVER).min(axis=1)
            >= self.finish[:, visit]
            for visit in beside.tolist()
        ]
        return bool(computes.all()) and bool(np.all(free))

    def _visits_agree(self, view: _View, age: int, beside: Int64s) -> bool:
        """Tell whether visits of the time before are alike, and those that have not begun."""
        low, high, each, _ = view.stretch
        left, still_left = self.start >= view.begin, self.start >= view.end
        if left[:, :low].any() or still_left[:, low : low + each].any():
            return False
        if (left[:, low : high - each] != still_left[:, low + each : high]).any():
            return False
        here = (self.start < view.begin) & (self.finish >= view.begin - age)
        there = (self.start < view.end) & (self.finish >= view.end - age)
        here[:, beside] = there[:, beside] = False
        return self._later(view, here, there, (self.start, self.finish, self.met))

    def _hops_agree(self, view: _View, age: int) -> bool:
        """Tell whether hops of the time before are alike."""
        rows, other = _hops(view.trail, view.begin, age), _hops(view.trail, view.end, age)
        rows[0] += view.stretch.each
        return rows.shape == other.shape and bool((_sorted(rows) == _sorted(other)).all())

    def _waits_agree(self, view: _View) -> bool:
        """Tell whether those that wait for a server, and what visits of the stretch wait for, are alike."""
        low, high, _, _ = view.stretch
        ready = self._ready
        here = (ready != NONE) & (ready < view.begin) & (self.start >= view.begin)
        there = (ready != NONE) & (ready < view.end) & (self.start >= view.end)
        if not self._later(view, here, there, (ready,)):
            return False
        inside = (self._origin >= low) & (self._target < high)
        for anchor, of in ((self.start, self._at_start), (self.finish, ~self._at_start)):
            here, there = (self._pending(anchor, inside & of, moment) for moment in (view.begin, view.end))
            if not self._later(view, here, there, (anchor,)):
                return False
        return True

    def _pending(self, anchor: Int64s, edges: Bools, moment: int) -> Bools:
        """Tell which visits were passed before a moment that others wait for which start later."""
        origin, target = self._origin[edges], self._target[edges]
        rank, edge = np.nonzero((anchor[:, origin] < moment) & (self.start[:, target] >= moment))
        pending = np.zeros(anchor.shape, np.bool_)
        pending[rank, origin[edge]] = True
        return pending

    def _held_by_none(self, view: _View) -> bool:
        """Tell whether nothing that is left to start waits for what does not get later with the stretch.

        In the stretch that is what is before it; behind the stretch all that was passed by the begin.
        """
        low, high, _, _ = view.stretch
        latest, earliest = np.full((2, *self.start.shape), NONE, np.int64)
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
        """[rank, edge] when its anchor passed."""
        anchor: Int64s = np.where(self._at_start, self.start[:, self._origin], self.finish[:, self._origin])
        return anchor

    @cached_property
    def _ready(self) -> Int64s:
        """[rank, visit] when all that it waits for but its server had passed; NONE: it waits for nothing."""
        ready = np.full(self.start.shape, NONE, np.int64)
        np.maximum.at(ready.T, self._target, self._moment.T)
        return ready

    @cached_property
    def _moment(self) -> Int64s:
        """[rank, edge] when it let its target go."""
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
            + sum(view.stretch.left_out * view.counted[place] for view in views)
            for place, name in enumerate(_COUNTED)
        }
        start, finish, met = (column.reshape(-1) for column in columns)
        return replace(self.records, start=start, finish=finish, met=met, trail=None, **counted)


def _hops(trail: Trail, moment: int, age: int) -> Int64s:
    """Return the hops that began before a moment and lasted until a given age before it, by what they are."""
    rows = (trail.start < moment) & (np.maximum(trail.finish, trail.arrival) >= moment - age)
    names = np.stack((trail.visit, trail.link, trail.task, trail.position))[:, rows]
    times = np.stack((trail.start, trail.finish, trail.arrival))[:, rows] - moment
    return np.concatenate((names, times)).astype(np.int64)


def _sorted(rows: Int64s) -> Int64s:
    return rows[:, np.lexsort(rows)]


def _passed(start: Int64s, view: _View) -> Int64s:
    """Return [rank, place in a period] how many visits of the stretch at that place began before the view."""
    low, high, each, _ = view.stretch
    begun = start[:, low:high] < view.begin
    rows = np.zeros((len(start), -(-(high - low) // each) * each), np.int64)
    rows[:, : high - low] = begun
    passed: Int64s = rows.reshape(len(start), -1, each).sum(axis=1)
    return passed


def _prolonged(column: Int64s, view: _View, passed: Int64s) -> Int64s:
    """Return times of the visits of a program with all periods of a stretch."""
    low, high, each, left_out = view.stretch
    visits = np.arange(column.shape[1] + view.stretch.visits)
    number, place = np.divmod(visits - low, each)
    later = np.clip(number - passed[:, place], 0, left_out)
    later[:, :low] = 0
    later[:, high + view.stretch.visits :] = left_out
    times = np.take_along_axis(column, visits - later * each, axis=1)
    whole: Int64s = np.where(times == NONE, NONE, times + later * view.period)
    return whole
