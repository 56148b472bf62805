"""R8 in the compiled engine: collectives that start while a closure is noticed follow another plan.

The kernel asks once for the steps of a rank in a collective under a plan; it then uses them for all of the
rank's collectives of that kind.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rapid_des.arrays import Int64s, digest, starts_of
from rapid_des.engines.compiled import work
from rapid_des.engines.compiled.calendar import HEAP
from rapid_des.engines.compiled.closure_tables import ClosureTables, GrowingArray
from rapid_des.engines.compiled.columns import AS_LOWERED, NO_REPLANS, Replans, Tasks
from rapid_des.engines.compiled.engine import CompiledSimulation, KernelRun
from rapid_des.engines.compiled.link_closures import LinkClosures
from rapid_des.engines.compiled.stopping import StoppedTransfers
from rapid_des.program.faults.closures import Closures, planned_around
from rapid_des.program.faults.planning import CollectiveReplanner, RankPhase, RoutedPhase
from rapid_des.program.program import NONE, Program, Progress, RankProgram, Records, Template, VisitKind

_SHARED = ("pair", "source", "need", "edge_target", "edge_lag", "edge_at_injection", "arrival_target",
           "arrival_lag", "member_need")  # fmt: skip
_STARTS = ("edge_starts", "arrival_starts")


class RankSchedules:
    """Adds steps of ranks, and their templates, behind those of the program."""

    def __init__(self, tables: ClosureTables, closures: Closures, *, fluid: bool) -> None:
        self._tables, self._closures, self._fluid = tables, closures, fluid
        self._tasks = {name: GrowingArray(getattr(tables.flat.tasks, name)) for name in Tasks._fields}
        self._replans = {name: GrowingArray(getattr(tables.flat.replans, name)) for name in Replans._fields}
        self._shapes: dict[bytes, tuple[int, int]] = {}
        self._phases: dict[RoutedPhase, tuple[int, int]] = {}

    @property
    def templates(self) -> int:
        """The number of templates so far."""
        return len(self._tasks["members"].values)

    def add(self, chunks: list[list[RankPhase]]) -> int:
        """Add a rank's steps in a collective, by chunk; return the number of that schedule."""
        firsts = [self._add_chunk(number, chunk, begins=number == 0) for number, chunk in enumerate(chunks)]
        self._replans["first"].extend(firsts)
        schedule = self._replans["schedules"].extend([len(self._replans["first"].values)]) - 1
        columns = {name: column.values for name, column in self._replans.items()}
        tasks = Tasks(**{name: column.values for name, column in self._tasks.items()})
        self._tables.flat = self._tables.flat._replace(replans=Replans(**columns), tasks=tasks)
        return schedule

    def _add_chunk(self, number: int, chunk: list[RankPhase], *, begins: bool) -> int:
        """Add the steps of a chunk, each of which follows the one before; return the first."""
        known = [self._phase(step.phase) for step in chunk]
        first, steps = len(self._replans["next"].values), len(chunk)
        rows: dict[str, Sequence[int]] = {
            "template": [template for template, _ in known],
            "use": [use for _, use in known],
            "member": [step.member for step in chunk],
            "sub": [step.number for step in chunk],
            "chunk": [number] * steps,
            "meets": [begins and step is chunk[0] for step in chunk],
            "next": [*range(first + 1, first + steps), NONE],
        }
        for name, values in rows.items():
            self._replans[name].extend(values)
        return first

    def _phase(self, phase: RoutedPhase) -> tuple[int, int]:
        """Return the number of a phase's template, and the row of the first of its pairs' routes."""
        if phase not in self._phases:
            routes = [self._tables.route(links, self._return_route(links)) for links in phase.routes]
            self._phases[phase] = self._template(phase), self._tables.pairs(routes)
        return self._phases[phase]

    def _return_route(self, links: tuple[int, ...]) -> tuple[int, ...]:
        """Return the route of acknowledgements of flows while no link is closed."""
        return self._closures.return_route(links, frozenset()) if self._fluid and links else ()

    def _template(self, phase: RoutedPhase) -> int:
        template, tasks = phase.template.expanded(), self._tasks
        rows = np.array([self._tables.message(parts) for parts in phase.parts], np.int32)
        first_task, first_member = self._shape(template)
        tasks["first_size"].extend([len(tasks["size"].values) + len(template)])
        tasks["size"].extend(rows[template.size])
        tasks["first_task"].extend([first_task])
        tasks["first_member"].extend([first_member])
        tasks["tasks"].extend([len(template)])
        tasks["ahead"].extend([template.ahead])
        return tasks["members"].extend([template.members])

    def _shape(self, template: Template) -> tuple[int, int]:
        """Return the first rows of a template's task and member columns; equal templates share them."""
        # by what is kept of it: templates of different phases are often equal
        key = digest(*(getattr(template, name) for name in (*_SHARED, *_STARTS)))
        if key not in self._shapes:
            self._shapes[key] = len(self._tasks["pair"].values), len(self._tasks["member_need"].values)
            for name in _STARTS:
                starts, had = getattr(template, name), self._tasks[name]
                had.extend(had.values[-1] + starts[1:] - starts[0])
            for name in _SHARED:
                self._tasks[name].extend(getattr(template, name))
        return self._shapes[key]


class ReplannedCollectives:
    """Plans collectives for the links that are open; plays the kernel of `StoppedTransfers` (`Player`)."""

    def __init__(self, stopped: StoppedTransfers, planner: CollectiveReplanner) -> None:
        self._stopped, self._kernel, self._closures = stopped, stopped.kernel, stopped.closures
        self._tables, self._planner = stopped.tables, planner
        program = self._kernel.program
        self._kinds = kinds = _kinds(program, planner)
        firsts = [_first_members(part, kind) for part, kind in zip(program.programs, kinds, strict=True)]
        replans = NO_REPLANS._replace(
            first_member_visit=np.concatenate([np.zeros(0, np.int64), *firsts]),
            first_call=_first_calls(program, kinds),
            schedules=np.zeros(1, np.int64),
        )
        self._tables.flat = self._tables.flat._replace(replans=replans)
        self._schedules = RankSchedules(self._tables, self._closures, fluid=program.fluid is not None)
        self._plans: dict[frozenset[int], int] = {}
        self._kernel.state.flags[work.REPLANNING] = True
        calls, records = int(replans.first_call[-1]), len(self._kernel.state.start)
        self._kernel.state = self._kernel.state._replace(
            call_plan=np.zeros(calls, np.int32),
            call_template=np.zeros(calls, np.int32),
            schedule=np.zeros(records, np.int32),
            schedule_plan=np.zeros(records, np.int32),
            rank_part=np.full(records, NONE, np.int32),
            next_in_part=np.full(records, NONE, np.int32),
        )

    def change(self, moment: int) -> None:
        """Let collectives that start from a moment on follow the plan for the links that are open then."""
        dead = self._closures.planned_around(moment)
        plan = 0 if dead is None else self._plans.setdefault(dead, AS_LOWERED + 1 + len(self._plans))
        self._kernel.state.cursor[work.PLAN] = plan

    def play(self, limit: int) -> None:
        """Call the kernel."""
        self._stopped.play(limit)

    def provide(self, status: int, wanted: int) -> None:
        """Add a rank's steps in a collective under a plan, or provide what closed links need."""
        if status == work.NO_SCHEDULE:
            visit, plan = self._kernel.state.totals[3:5].tolist()
            self._add_schedule(wanted, visit, plan)
        else:
            self._stopped.provide(status, wanted)

    def _add_schedule(self, position: int, visit: int, plan: int) -> None:
        """Add the steps of a rank under a plan, for all its collectives of the same kind as a visit's."""
        number = self._kernel.program.bindings[position].program
        part, kinds = self._kernel.program.programs[number], self._kinds[number]
        dead = next(links for links, known in self._plans.items() if known == plan)
        caller = int(_callers(part)[visit])
        node, now = int(part.node[caller]), int(self._kernel.state.cursor[work.NOW])
        if self._planner.cut(position, node, dead):
            around = planned_around(
                (position, node), self._closures, self._kernel.program.link_timetables, now
            )
            assert around is None, "a group that is cut apart keeps its plan, or is an error"
            self._kernel.state.call_plan[self._call_number(position, visit, caller)] = AS_LOWERED
            return
        schedule = self._schedules.add(self._planner.steps_of(position, node, dead))
        # The kernel asks once for each kind of collective, not for each visit.
        alike = int(self._tables.flat.ranks.flat[position]) + np.flatnonzero(kinds == kinds[visit])
        self._kernel.state.schedule[alike], self._kernel.state.schedule_plan[alike] = schedule, plan
        # The schedule may have added templates, which have no free instances yet.
        short = self._schedules.templates - len(self._kernel.state.free)
        if short > 0:
            free = np.pad(
                self._kernel.state.free, (0, short + len(self._kernel.state.free)), constant_values=NONE
            )
            self._kernel.state = self._kernel.state._replace(free=free)

    def _call_number(self, position: int, visit: int, caller: int) -> int:
        """Return the row in `State.call_plan` of the collective whose visit a rank starts now."""
        binding, flat = self._kernel.program.bindings[position], self._tables.flat
        part, slot = self._kernel.program.programs[binding.program], int(flat.ranks.slot[position])
        number = int(part.occurrence[visit])
        slot_of_caller = int(part.slot[caller])
        if caller != visit:
            number = int(self._kernel.state.number[flat.ranks.flat[position] + caller])
        elif number == NONE:
            number = int(self._kernel.state.counter[slot + slot_of_caller])
        return int(flat.replans.first_call[binding.groups[slot_of_caller]]) + number


def _callers(part: RankProgram) -> Int64s:
    """Return for each MEMBER the visit that counts its collective: its HOLD, or itself."""
    return np.where(part.parent == NONE, np.arange(len(part)), part.parent)


def _kinds(program: Program, planner: CollectiveReplanner) -> list[Int64s]:
    """Return, by program and visit, the kind of each MEMBER's collective as a number; else NONE."""
    first = {binding.program: position for position, binding in reversed(list(enumerate(program.bindings)))}
    kinds = []
    for number, part in enumerate(program.programs):
        kind, members = np.full(len(part), NONE, np.int64), np.flatnonzero(part.kind == VisitKind.MEMBER)
        if number in first and len(members):
            kind[members] = planner.kinds(first[number], part.node[_callers(part)[members]])
        kinds.append(kind)
    return kinds


def _first_members(part: RankProgram, kind: Int64s) -> Int64s:
    """Return for each MEMBER the rank's first MEMBER of the same collective; else NONE."""
    members, first_visits = np.flatnonzero(kind != NONE), np.full(len(part), NONE, np.int64)
    _, first, place = np.unique(_callers(part)[members], return_index=True, return_inverse=True)
    first_visits[members] = members[first][place.reshape(-1)]
    return first_visits


def _first_calls(program: Program, kinds: list[Int64s]) -> Int64s:
    """Return the first row of each group's collectives in `State.call_plan`, and the total."""
    most = np.zeros(len(program.groups), np.int64)
    by_slot = [_numbers(part, kind) for part, kind in zip(program.programs, kinds, strict=True)]
    for binding in program.bindings:
        slots, numbers = by_slot[binding.program]
        np.maximum.at(most, binding.groups[slots], numbers)
    return starts_of(most)


def _numbers(part: RankProgram, kind: Int64s) -> tuple[Int64s, Int64s]:
    """Return the slots of a rank's replannable collectives, and the number of collectives of each slot."""
    callers = np.unique(_callers(part)[kind != NONE])
    slots, place = np.unique(part.slot[callers], return_inverse=True)
    numbers = np.bincount(place.reshape(-1), minlength=len(slots)).astype(np.int64)
    np.maximum.at(numbers, place.reshape(-1), part.occurrence[callers] + 1)
    return slots.astype(np.int64), numbers


class ClosingSimulation:
    """One run of a program whose links may close; `run` plays it to the end or to a given time."""

    def __init__(
        self, program: Program, closures: Closures, *, trail: bool = False, progress: Progress | None = None
    ) -> None:
        self._kernel = KernelRun(program, trail=trail)
        stopped, planner = StoppedTransfers(self._kernel, closures), closures.collectives
        self._closures = LinkClosures(stopped)
        self._replanned = None if planner is None else ReplannedCollectives(stopped, planner)
        self._simulation = CompiledSimulation(
            self._kernel, player=self._replanned or stopped, progress=progress
        )
        self._moments = self._closures.moments[::-1]

    def run(self, until: int | None = None) -> None:
        """Play until no event is left, or up to and including a time in picoseconds."""
        while self._moments and (until is None or self._moments[-1] <= until):
            moment = self._moments.pop()
            if moment:
                self._simulation.run(moment - 1)
            if self._is_over():
                break
            self._closures.change(moment)
            if self._replanned is not None:
                self._replanned.change(moment)
        self._simulation.run(until)

    def _is_over(self) -> bool:
        """Return whether no event is left and no transfer is stopped."""
        depth, stopped = self._kernel.state.cursor[[work.DEPTH, work.STOPPED]].tolist()
        return not depth and stopped == NONE and not self._kernel.pools.calendar.counts[HEAP]

    def records(self) -> Records:
        """Return the records of the simulation so far."""
        return self._kernel.records()


def run(
    program: Program, closures: Closures, *, trail: bool = False, progress: Progress | None = None
) -> Records:
    """Play a program to its end; visits that never finish are left at NONE in the records."""
    simulation = ClosingSimulation(program, closures, trail=trail, progress=progress)
    simulation.run()
    return simulation.records()
