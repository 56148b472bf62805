"""The chain of visits that decides the end of a run, from the end back to time 0.

A visit that has started when it was ready started because of the last of its dependencies (R1). One that
started later waited for its server, and so for the visit that left the server at that moment (R2). The chain
follows that cause from visit to visit:

    end ── finish of a visit ── its start ── finish, or start plus a lag, of its cause ── … ── 0

Every step of the chain is a stretch of time that begins where the one before it ended, so that all steps add
up to the end. A collective is one step from the moment at which the last of those arrived for whom the
member waited (R5); the chain goes on at that one's rank.
"""

from __future__ import annotations

from bisect import bisect_right
from enum import Enum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rapid_des.arrays import Bools, Int32s, Int64s, equals_before, rows_of, starts_by
from rapid_des.program.program import NONE, Program, RankProgram, Records, Template, VisitKind


class MetMembers:
    """The collective instances of a run: the MEMBER visits that met, by flat visit."""

    def __init__(self, program: Program, records: Records) -> None:
        self._program = program
        self._start = records.start
        visit, columns = _members(program, records)
        order = np.lexsort((visit, *columns))
        self.visits = visit[order]
        """The members of all instances, one instance after the other."""
        changes = np.zeros(len(order), np.bool_)
        for column in columns:
            changes[1:] |= column[order][1:] != column[order][:-1]
        instance = np.cumsum(changes, dtype=np.int64)
        self.starts = starts_by(instance, int(instance[-1]) + 1 if len(instance) else 0)
        self._place = np.zeros(int(program.visits()[-1]), np.int64)
        self._place[self.visits] = instance
        self._awaited: dict[tuple[int, int], Bools] = {}

    def of(self, visit: int) -> Int64s:
        """Return the flat visits that met in the instance of a MEMBER visit."""
        place = int(self._place[visit])
        return self.visits[self.starts[place] : self.starts[place + 1]]

    def awaited(self, template: int, member: int) -> Bools:
        """Return which members of a template must arrive before a member can be done."""
        key = (template, member)
        if key not in self._awaited:
            self._awaited[key] = _awaited(self._program.templates[template].expanded(), member)
        return self._awaited[key]


def _members(program: Program, records: Records) -> tuple[Int64s, tuple[Int64s, Int64s, Int64s]]:
    """Return all MEMBER visits, with the sub-instance, the number and the group of each."""
    offsets = program.visits().tolist()
    visits, subs, numbers, groups = [], [], [], []
    for position, binding in enumerate(program.bindings):
        table = program.programs[binding.program]
        members = np.flatnonzero(table.kind == VisitKind.MEMBER)
        if not len(members):
            continue
        start = records.start[offsets[position] : offsets[position + 1]]
        call = np.where(table.parent[members] == NONE, members, table.parent[members])
        visits.append(members + offsets[position])
        subs.append(table.sub[members].astype(np.int64))
        numbers.append(_numbers(table.slot, table.occurrence, start, call))
        groups.append(binding.groups[table.slot[members]].astype(np.int64))
    empty = [np.zeros(0, np.int64)]
    visit, sub, number, group = (np.concatenate(rows or empty) for rows in (visits, subs, numbers, groups))
    return visit, (sub, number, group)


def _numbers(slot: Int32s, occurrence: Int32s, start: Int64s, call: Int64s) -> Int64s:
    """Return the instance number of each call: what the program states, else counted by start (R5)."""
    number = occurrence.astype(np.int64)
    counted = np.unique(call[occurrence[call] == NONE])
    if len(counted):
        counted = counted[np.lexsort((counted, start[counted]))]
        number[counted] = equals_before(slot[counted].astype(np.int64))
    return number[call]


def _awaited(template: Template, member: int) -> Bools:
    """Return the members from which edges lead to a member's end: a search against the edges."""
    tasks = len(template)
    # Edges from tasks, then from members' arrivals (numbered behind the tasks), sorted by their targets.
    origin = np.concatenate(
        [rows_of(np.diff(template.edge_starts)), tasks + rows_of(np.diff(template.arrival_starts))]
    )
    target = np.concatenate([template.edge_target, template.arrival_target]).astype(np.int64)
    order = np.argsort(target, kind="stable")
    starts, origin = starts_by(target[order], tasks + template.members), origin[order]
    seen = np.zeros(tasks, np.bool_)
    awaited = np.zeros(template.members, np.bool_)
    awaited[member] = True
    front = np.array([tasks + member])
    while len(front):
        # One step back from all that was found in the step before.
        rows = np.concatenate([origin[starts[one] : starts[one + 1]] for one in front.tolist()])
        awaited[rows[rows >= tasks] - tasks] = True
        found = np.unique(rows[rows < tasks])
        front = found[~seen[found]]
        seen[front] = True
    return awaited


_HOLD, _MEMBER = int(VisitKind.HOLD), int(VisitKind.MEMBER)
"""Plain integers: numpy compares them with array entries many times faster than members of an enum."""


class StepKind(Enum):
    """What a step of the chain is."""

    SERVICE = "service"
    """A visit is served; a member waits for messages."""
    ISSUE = "issue"
    """The host issues the visit, counted from the start of its stretch."""
    LAG = "lag"
    """The visit waits a stated time after the finish of another."""
    QUEUE = "queue"
    """The visit waits for its server, and no single visit made room for it."""


class Step(NamedTuple):
    """A stretch of the chain."""

    kind: StepKind
    visit: int
    """The flat visit that the stretch is about."""
    begin: int
    """The start of the stretch in picoseconds."""
    end: int


class _Cause(NamedTuple):
    """What a visit's readiness waited for."""

    ready: int
    origin: int
    """The flat visit whose start or finish made it ready; NONE: it was ready at 0."""
    lag: int = 0
    at_start: bool = False


class IncomingEdges:
    """The edges of a rank program by target."""

    def __init__(self, program: RankProgram) -> None:
        order = np.argsort(program.edge_target, kind="stable")
        self.starts: Int64s = starts_by(program.edge_target[order], len(program))
        self.origin: Int64s = rows_of(np.diff(program.edge_starts))[order]
        self.lag: Int64s = program.edge_lag[order]
        self.at_start: Bools = program.edge_at_start[order]
        self.need: Int32s = program.need


class Chain:
    """The chain of a finished run; `steps` returns it in the order of time."""

    def __init__(self, program: Program, records: Records) -> None:
        self._program, self._records = program, records
        self._offsets: list[int] = program.visits().tolist()
        self._edges: dict[int, IncomingEdges] = {}
        self._left: dict[int, tuple[Int64s, Int64s]] = {}
        self._steps: list[Step] = []

    @cached_property
    def _meetings(self) -> MetMembers:
        return MetMembers(self._program, self._records)

    def steps(self) -> list[Step]:
        """Return the steps from time 0 to the end; those that take no time are left out."""
        self._steps = []
        begun = self._served(int(self._records.finish.argmax()))
        while begun != NONE:
            begun = self._waited(begun)
        return self._steps[::-1]

    def place(self, visit: int) -> tuple[int, int]:
        """Return the position of a flat visit's rank in the bindings, and its number in that program."""
        position = bisect_right(self._offsets, visit) - 1
        return position, visit - self._offsets[position]

    def instance(self, visit: int) -> list[int]:
        """Return the flat visits that met in the collective of a visit; of a kernel itself."""
        position, number = self.place(visit)
        if int(self._table(position).kind[number]) != _MEMBER:
            return [visit]
        met: list[int] = self._meetings.of(visit).tolist()
        return met

    def _table(self, position: int) -> RankProgram:
        return self._program.programs[self._program.bindings[position].program]

    def _add(self, kind: StepKind, visit: int, begin: int, end: int) -> None:
        if end > begin:
            self._steps.append(Step(kind, visit, begin, end))

    def _served(self, visit: int) -> int:
        """Go back from a visit's finish; return the visit at whose start the chain goes on."""
        finish = self._records.finish
        position, number = self.place(visit)
        table = self._table(position)
        while int(table.kind[number]) == _HOLD:
            released = visit - number + int(table.release[number])
            self._add(StepKind.SERVICE, visit, int(finish[released]), int(finish[visit]))
            visit, number = released, int(table.release[number])
        begun = visit
        if int(table.kind[number]) == _MEMBER:
            begun = self._last_to_arrive(visit, int(table.template[number]), int(table.slot[number]))
        self._add(StepKind.SERVICE, visit, int(self._records.start[begun]), int(finish[visit]))
        return begun

    def _last_to_arrive(self, visit: int, template: int, slot: int) -> int:
        """Return the visit that arrived last of those for whom a member waited; itself of equals."""
        position, _ = self.place(visit)
        member = int(self._program.bindings[position].members[slot])
        met, start = self._meetings.of(visit), self._records.start
        if len(met) == self._program.templates[template].members:
            numbers = np.array([self._member(one) for one in met.tolist()])
            met = met[self._meetings.awaited(template, member)[numbers]]
        met = met[start[met] < self._records.finish[visit]]
        if not len(met) or start[visit] == start[met].max():
            return visit
        return int(met[start[met].argmax()])

    def _member(self, visit: int) -> int:
        position, number = self.place(visit)
        binding = self._program.bindings[position]
        return int(binding.members[self._table(position).slot[number]])

    def _waited(self, visit: int) -> int:
        """Go back from a visit's start; return the visit at whose start the chain goes on, or NONE at 0."""
        start = int(self._records.start[visit])
        cause = self._cause(visit)
        if start > cause.ready:
            before = self._left_server(visit, start)
            if before != NONE:
                return self._served(before)
            self._add(StepKind.QUEUE, visit, cause.ready, start)
        if cause.origin == NONE:
            return NONE
        kind = StepKind.ISSUE if cause.at_start else StepKind.LAG
        self._add(kind, visit, cause.ready - cause.lag, cause.ready)
        return cause.origin if cause.at_start else self._served(cause.origin)

    def _cause(self, visit: int) -> _Cause:
        """Return when a visit was ready, and the edge that passed last (R1), of equals with the least lag."""
        position, number = self.place(visit)
        key = self._program.bindings[position].program
        if key not in self._edges:
            self._edges[key] = IncomingEdges(self._program.programs[key])
        edges, offset = self._edges[key], visit - number
        rows = slice(int(edges.starts[number]), int(edges.starts[number + 1]))
        if rows.start == rows.stop:
            return _Cause(0, NONE)
        origin, lag, at_start = edges.origin[rows] + offset, edges.lag[rows], edges.at_start[rows]
        anchor = np.where(at_start, self._records.start[origin], self._records.finish[origin])
        if edges.need[number] < len(anchor):  # those beyond the ones that were needed change nothing
            first = np.argsort(anchor, kind="stable")[: int(edges.need[number])]
            origin, lag, at_start, anchor = origin[first], lag[first], at_start[first], anchor[first]
        last = int(np.lexsort((origin, -lag, anchor + lag))[-1])
        return _Cause(int(anchor[last] + lag[last]), int(origin[last]), int(lag[last]), bool(at_start[last]))

    def _left_server(self, visit: int, moment: int) -> int:
        """Return the visit that left the server of `visit` at a moment; NONE if none did."""
        position, number = self.place(visit)
        table, offset = self._table(position), visit - number
        if position not in self._left:
            order = np.lexsort((self._records.finish[offset : offset + len(table)], table.server))
            self._left[position] = order, table.server[order].astype(np.int64)
        order, server = self._left[position]
        rows = slice(*np.searchsorted(server, [table.server[number], table.server[number] + 1]).tolist())
        finish = self._records.finish[order[rows] + offset]
        found = int(np.searchsorted(finish, moment))
        while found < len(finish) and finish[found] == moment:
            before = int(order[rows][found]) + offset
            if self._records.start[before] < moment:
                return before
            found += 1
        return NONE
