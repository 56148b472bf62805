"""R8 in the compiled engine: collectives that begin while a closure is noticed follow another plan.

The kernel asks once what a rank does in a collective under a plan; then it plays that for all its collectives
that are alike.
"""

from __future__ import annotations

import numpy as np

from rapid_des.arrays import Int64s, starts_of
from rapid_des.engines.compiled import work
from rapid_des.engines.compiled.closing import ClosingSimulation
from rapid_des.engines.compiled.engine import with_parts
from rapid_des.engines.compiled.plan_tables import AS_LOWERED, NO_REPLANS
from rapid_des.engines.compiled.rank_schedules import RankSchedules
from rapid_des.program.faults.closures import Closures
from rapid_des.program.faults.planning import CollectiveReplanner
from rapid_des.program.faults.rerouting import planned_around
from rapid_des.program.program import NONE, Program, Progress, RankProgram, Records, VisitKind


class ReplanningSimulation(ClosingSimulation):
    """One run of a program whose links may close, with collectives that are planned for what survives."""

    def __init__(
        self, program: Program, closures: Closures, *, trail: bool = False, progress: Progress | None = None
    ) -> None:
        super().__init__(program, closures, trail=trail, progress=progress)
        assert closures.collectives is not None, "nothing asks to replan"
        self._planner = closures.collectives
        kinds = _kinds(program, self._planner)
        flat = self._tables.flat
        firsts = [_firsts(part, kind) for part, kind in zip(program.programs, kinds, strict=True)]
        replans = NO_REPLANS._replace(
            stands=np.concatenate([np.zeros(0, np.int64), *firsts]),
            calls=_calls(program, kinds),
            schedules=np.zeros(1, np.int64),
        )
        self._kinds = kinds
        self._tables.flat = self._flat = flat._replace(replans=replans)
        self._schedules = RankSchedules(self._tables, closures, fluid=program.fluid is not None)
        self._plans: dict[frozenset[int], int] = {}
        self._state.flags[work.REPLANNING] = True
        calls, records = int(replans.calls[-1]), len(self._state.start)
        self._state = self._state._replace(
            planned=np.zeros(calls, np.int32),
            called=np.zeros(calls, np.int32),
            schedule=np.zeros(records, np.int32),
            schedule_plan=np.zeros(records, np.int32),
            part=np.full(records, NONE, np.int32),
            beside=np.full(records, NONE, np.int32),
        )

    def _change(self, moment: int) -> None:
        super()._change(moment)
        dead = self._closures.planned_around(moment)
        plan = 0 if dead is None else self._plans.setdefault(dead, AS_LOWERED + 1 + len(self._plans))
        self._state.cursor[work.PLAN] = plan

    def _answer(self, status: int, wanted: int) -> None:
        if status == work.NO_SCHEDULE:
            visit, plan = self._state.totals[3:5].tolist()
            self._add_schedule(wanted, visit, plan)
        elif status == work.MORE_PARTS:
            self._pools = with_parts(self._pools)
        else:
            super()._answer(status, wanted)

    def _add_schedule(self, position: int, visit: int, plan: int) -> None:
        """Find out what a rank does under a plan in all collectives that are like one of its visits'."""
        number = self.program.bindings[position].program
        part, kinds = self.program.programs[number], self._kinds[number]
        dead = next(links for links, known in self._plans.items() if known == plan)
        caller = int(_callers(part)[visit])
        node, now = int(part.node[caller]), int(self._state.cursor[work.NOW])
        if self._planner.cut(position, node, dead):
            around = planned_around((position, node), self._closures, self.program.link_timetables, now)
            assert around is None, "what is cut apart keeps its plan, or is an error"
            self._state.planned[self._call(position, visit, caller)] = AS_LOWERED
            return
        schedule = self._schedules.add(self._planner.steps_of(position, node, dead))
        self._flat = self._tables.flat
        alike = int(self._flat.ranks.flat[position]) + np.flatnonzero(kinds == kinds[visit])
        self._state.schedule[alike], self._state.schedule_plan[alike] = schedule, plan
        short = self._schedules.templates - len(self._state.free)
        if short > 0:
            free = np.pad(self._state.free, (0, short + len(self._state.free)), constant_values=NONE)
            self._state = self._state._replace(free=free)

    def _call(self, position: int, visit: int, caller: int) -> int:
        """Return which collective the visit that a rank begins now is a part of, by group and number."""
        binding, flat = self.program.bindings[position], self._flat
        part, slot = self.program.programs[binding.program], int(flat.ranks.slot[position])
        number = int(part.occurrence[visit])
        slot_of_caller = int(part.slot[caller])
        if caller != visit:
            number = int(self._state.number[flat.ranks.flat[position] + caller])
        elif number == NONE:
            number = int(self._state.counter[slot + slot_of_caller])
        return int(flat.replans.calls[binding.groups[slot_of_caller]]) + number


def _callers(part: RankProgram) -> Int64s:
    """Return the visit that stands for the collective of each MEMBER: its HOLD, or itself."""
    return np.where(part.parent == NONE, np.arange(len(part)), part.parent)


def _kinds(program: Program, planner: CollectiveReplanner) -> list[Int64s]:
    """Return, by program and visit, a number of each MEMBER's collective among the rank's; else NONE."""
    first = {binding.program: position for position, binding in reversed(list(enumerate(program.bindings)))}
    kinds = []
    for number, part in enumerate(program.programs):
        kind, members = np.full(len(part), NONE, np.int64), np.flatnonzero(part.kind == VisitKind.MEMBER)
        if number in first and len(members):
            kind[members] = planner.kinds(first[number], part.node[_callers(part)[members]])
        kinds.append(kind)
    return kinds


def _firsts(part: RankProgram, kind: Int64s) -> Int64s:
    """Return the first MEMBER of the collective that each one has a part in, else NONE."""
    members, stands = np.flatnonzero(kind != NONE), np.full(len(part), NONE, np.int64)
    _, first, place = np.unique(_callers(part)[members], return_index=True, return_inverse=True)
    stands[members] = members[first][place.reshape(-1)]
    return stands


def _calls(program: Program, kinds: list[Int64s]) -> Int64s:
    """Return where the collectives of each group begin that may be replanned."""
    most = np.zeros(len(program.groups), np.int64)
    by_slot = [_numbers(part, kind) for part, kind in zip(program.programs, kinds, strict=True)]
    for binding in program.bindings:
        slots, numbers = by_slot[binding.program]
        np.maximum.at(most, binding.groups[slots], numbers)
    return starts_of(most)


def _numbers(part: RankProgram, kind: Int64s) -> tuple[Int64s, Int64s]:
    """Return the slots by which a rank calls collectives, and how many numbers those may have."""
    callers = np.unique(_callers(part)[kind != NONE])
    slots, place = np.unique(part.slot[callers], return_inverse=True)
    numbers = np.bincount(place.reshape(-1), minlength=len(slots)).astype(np.int64)
    np.maximum.at(numbers, place.reshape(-1), part.occurrence[callers] + 1)
    return slots.astype(np.int64), numbers


def run(
    program: Program, closures: Closures, *, trail: bool = False, progress: Progress | None = None
) -> Records:
    """Play a program to its end; visits that never finish are left at NONE in the records."""
    kind = ClosingSimulation if closures.collectives is None else ReplanningSimulation
    simulation = kind(program, closures, trail=trail, progress=progress)
    simulation.run()
    return simulation.records()
