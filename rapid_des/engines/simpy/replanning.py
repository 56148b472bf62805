"""Policy `replan` in the SimPy engine: collectives that begin while a closure is noticed are planned anew.

A collective is planned once, when the first of its members arrives at it: as the machine says, or, if a
link whose policy is `replan` is closed and noticed then, for the fabric without all links that are closed
and noticed, as on a machine where those are down from the beginning under a constant fault with this policy
(see `survivors`). It keeps its plan to its end: of one that is under way when a closure is noticed, and of
one that outlasts the closure, only the transfers' ways change (see `rerouting`). So bytes that were sent stay
sent, no member has to forget what it holds, and every member follows the same plan whenever it arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from simpy.events import Event

from rapid_des.engines.deadlock import explain_disagreement
from rapid_des.engines.simpy.engine import Process, Simulation
from rapid_des.engines.simpy.instances import Instance
from rapid_des.engines.simpy.tables import TemplateTable
from rapid_des.errors import FabricCutError, TraceError
from rapid_des.program.faults.closures import cut_at
from rapid_des.program.faults.replanning import Course, Move
from rapid_des.program.program import NONE, Program

Whole = tuple[int, int]
"""A collective: its group and the instance number."""


class PlannedInstance(Instance):
    """A step, planned anew, in flight."""

    def __init__(self, course: Course, template: TemplateTable, *, first: bool) -> None:
        super().__init__(template, NONE, [])
        self.course = course
        self.first = first
        """Whether it is the first step, at which the members meet."""


@dataclass(eq=False)
class Choice:
    """How a collective that has begun is done."""

    dead: frozenset[int] | None
    """The links that it is planned around; None: as lowered."""
    template: int
    """That of its first visit: members must agree."""
    parts: dict[int, Part] = field(default_factory=dict)
    """Of the ranks, by position."""


@dataclass(eq=False)
class Part:
    """What one rank does in a collective that was planned anew."""

    done: Event
    visits: list[int]
    """Those that stand for it in the records."""


class PlanningSimulation(Simulation):
    """A run in which closures change the plans of collectives."""

    def __init__(self, program: Program, *, trail: bool = False) -> None:
        assert program.closures is not None
        super().__init__(program, trail=trail)
        self.closures = program.closures
        self.choices: dict[Whole, Choice] = {}
        self._table = cache(lambda course: TemplateTable(course.template))

    def _meet(self, position: int, visit: int, number: int) -> Event:
        """Return when a visit's part in a collective is done, by the plan that this was begun with."""
        table, binding = self.tables[position], self.program.bindings[position]
        own = visit if table.parent[visit] == NONE else table.parent[visit]
        anew = self.closures.anew
        if anew is None or not anew.is_collective(position, table.node[own]):
            return super()._meet(position, visit, number)
        whole, template = (int(binding.groups[table.slot[own]]), number), table.template[visit]
        choice = self.choices.get(whole)
        if choice is None:
            choice = self.choices[whole] = Choice(self.closures.planned_around(self.env.now), template)
        if choice.dead is None:
            return super()._meet(position, visit, number)
        return self._part(choice, whole, position, visit)

    def _part(self, choice: Choice, whole: Whole, position: int, visit: int) -> Event:
        """Return the end of a rank's part; all visits of one collective stand for the same."""
        flat = self.offsets[position] + visit
        part = choice.parts.get(position)
        if part is not None:
            part.visits.append(flat)
            self.met[flat] = self.met[part.visits[0]]
            return part.done
        template = self.tables[position].template[visit]
        if template != choice.template:
            raise TraceError(explain_disagreement(self.program, (*whole, 0), (choice.template, template)))
        chunks = self._moves(choice, position, visit)
        done = self.env.process(self._all(whole, chunks, position, flat))
        choice.parts[position] = Part(done, [flat])
        return done

    def _moves(self, choice: Choice, position: int, visit: int) -> list[list[Move]]:
        table = self.tables[position]
        own = visit if table.parent[visit] == NONE else table.parent[visit]
        assert self.closures.anew is not None
        assert choice.dead is not None
        try:
            return self.closures.anew.moves(position, table.node[own], choice.dead)
        except FabricCutError as error:
            raise cut_at(error, self.env.now) from None

    def _all(self, whole: Whole, chunks: list[list[Move]], position: int, flat: int) -> Process:
        first = chunks[0][0]
        yield from [self.env.process(self._chunk(whole, moves, first, flat)) for moves in chunks]
        for visit in self.choices[whole].parts[position].visits[1:]:
            self.met[visit] = self.met[flat]

    def _chunk(self, whole: Whole, moves: list[Move], first: Move, flat: int) -> Process:
        for move in moves:
            key = (*whole, move.number)
            instance = self.instances.get(key)
            if instance is None:
                instance = self.instances[key] = PlannedInstance(
                    move.course, self._table(move.course), first=move is first
                )
            yield self._join(key, instance, move.member, flat)

    def _assembled(self, instance: Instance) -> None:
        if not isinstance(instance, PlannedInstance) or instance.first:
            super()._assembled(instance)

    def _carried(self, instance: Instance, task: int) -> tuple[Sequence[int], tuple[int, ...]]:
        """Return the bytes of each part of a transfer, and its way while nothing is closed."""
        template = instance.template
        size, pair = template.size[task], template.pair[task]
        if isinstance(instance, PlannedInstance):
            return instance.course.parts[size], instance.course.ways[pair]
        hops = self.links.route(instance.routes[pair])
        parts = [row for _, row, _ in self.links.parts(hops, size)] if hops else [size]
        return [self.links.payload[row] for row in parts], tuple(link for link, _ in hops)
