"""Which visits met in a collective, and whose arrival each member waited for (R5)."""

from __future__ import annotations

import numpy as np

from rapid_des.arrays import Bools, Int32s, Int64s, equals_before, rows_of, starts_by
from rapid_des.program.program import NONE, Program, Records, Template, VisitKind


class MetMembers:
    """The collective instances of a run: the MEMBER visits that met, by flat visit."""

    def __init__(self, program: Program, records: Records) -> None:
        self._program = program
        self._start = records.start
        visit, columns = _members(program, records)
        order = np.lexsort((visit, *columns))
        self._visit = visit[order]
        changes = np.zeros(len(order), np.bool_)
        for column in columns:
            changes[1:] |= column[order][1:] != column[order][:-1]
        instance = np.cumsum(changes, dtype=np.int64)
        self._starts = starts_by(instance, int(instance[-1]) + 1 if len(instance) else 0)
        self._place = np.zeros(int(program.visits()[-1]), np.int64)
        self._place[self._visit] = instance
        self._awaited: dict[tuple[int, int], Bools] = {}

    def of(self, visit: int) -> Int64s:
        """Return the flat visits that met in the instance of a MEMBER visit."""
        place = int(self._place[visit])
        return self._visit[self._starts[place] : self._starts[place + 1]]

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
        rows = np.concatenate([origin[starts[one] : starts[one + 1]] for one in front.tolist()])
        awaited[rows[rows >= tasks] - tasks] = True
        found = np.unique(rows[rows < tasks])
        front = found[~seen[found]]
        seen[front] = True
    return awaited
