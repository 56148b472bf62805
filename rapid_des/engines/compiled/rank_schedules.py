"""R8: the steps of ranks in replanned collectives, in columns that grow during the run."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import numpy as np

from rapid_des.engines.compiled.closure_tables import ClosureTables, GrowingArray
from rapid_des.engines.compiled.columns import Tasks
from rapid_des.engines.compiled.plan_tables import Replans
from rapid_des.program.faults.closures import Closures
from rapid_des.program.faults.planning import RankPhase, RoutedPhase
from rapid_des.program.program import NONE, Template

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
        columns = [getattr(template, name) for name in (*_SHARED, *_STARTS)]
        digest = sha256(b"".join(np.int64(len(column)).tobytes() + column.tobytes() for column in columns))
        key = digest.digest()  # of the content: templates of different phases are often equal
        if key not in self._shapes:
            self._shapes[key] = len(self._tasks["pair"].values), len(self._tasks["member_need"].values)
            for name in _STARTS:
                starts, had = getattr(template, name), self._tasks[name]
                had.extend(had.values[-1] + starts[1:] - starts[0])
            for name in _SHARED:
                self._tasks[name].extend(getattr(template, name))
        return self._shapes[key]
