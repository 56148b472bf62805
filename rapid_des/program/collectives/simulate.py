"""What a plan of a collective takes by itself: its transfers on their links, served as they come.

A small engine for plans that are compared before a run begins: links serve messages, in segments or parts as
the machine sends them, first come first served, or those of earlier chunks first; all members arrive at the
beginning, and nothing else moves. Flows that share links (`fluid`) are taken for messages that cut through,
which they are where they are alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import cache
from math import isqrt
from typing import TypeAlias

import numpy as np
from msgspec import structs

from rapid_des.arrays import Int64s
from rapid_des.machine import Machine
from rapid_des.network.collectives.schedule import Schedule
from rapid_des.network.specs import Choice, Switching
from rapid_des.program.collectives.candidates import GroupCollective
from rapid_des.program.collectives.plans import (
    AxisPhase,
    CollectiveCall,
    as_chosen,
    chain_and_load,
    cut_in_chunks,
)
from rapid_des.program.collectives.templates import template_of
from rapid_des.program.program import NONE, Template
from rapid_des.program.services import MessageSizes, hop_table, services_of, uncongested
from rapid_des.program.switch_trees import with_switches
from rapid_des.units import Size, ceil_divide
from rapid_des.values import replace

MOST_SERVED = 100_000
"""Most visits to links that are simulated one by one, in about half a second."""
ScheduledLines: TypeAlias = Sequence[tuple[Schedule, Sequence[int]]]
"""Schedules that run side by side, each with its member ranks."""
Chunks: TypeAlias = Sequence[Sequence[ScheduledLines]]
"""Lines by chunk and phase. Chunks run side by side; a member begins a phase when the one before is done."""
Coming: TypeAlias = tuple[int, int, int, int, int, int, int]
"""(time, part, rank, injected, task, hop, size row): a part that asks a link, or with hop NONE has arrived.

In the order in which links take them (R3)."""
_CHOOSES = -2
"""Hop of the entry that makes a link, given in place of the task, choose."""
_LAST = 1 << 62
"""Part number of that entry, so that it comes after all others of its instant."""
Leg: TypeAlias = tuple[int, int, int, int]
"""A link, and the occupancy, head and lag of a part on it."""
MOST_PAIRS = 1 << 14
"""Most pairs of members, over all groups, for which collectives are simulated."""
MOST_VISITS = 1 << 14
"""Most link visits of one simulation; with more, messages are split into fewer parts."""
_MOST_WAITS = 1 << 16
"""Most pairs of segments that wait for one another in one simulation; with more, segments are longer."""
_FEWEST_SEGMENTS = 8
"""Fewest segments of a message that show how it is pipelined over hops; with fewer, estimates are used."""
Groups = Sequence[tuple[int, ...]]


def duration_alone(chunks: Chunks, machine: Machine, *, whole: bool) -> int:
    """Return the picoseconds until all members are done; `whole`: messages never go in parts.

    What visits links too often to be played takes the longest chain of transfers or the service of the
    busiest link, whichever is longer: no less than it would.
    """
    play = LinkSimulation(chunks, machine, whole=whole)
    if play.visits > MOST_SERVED:
        return _at_least(chunks, machine)
    return play.duration()


def _at_least(chunks: Chunks, machine: Machine) -> int:
    longest, load = 0, np.zeros(len(machine.fabric), np.int64)
    for chunk in chunks:
        chain = 0
        for lines in chunk:
            bounds = [chain_and_load(schedule, machine, ranks) for schedule, ranks in lines]
            chain += max(alone for alone, _ in bounds)
            for _, mine in bounds:
                load[: len(mine)] += mine
        longest = max(longest, chain)
    return max(longest, int(load.max(initial=0)))


class LinkSimulation:
    """Transfers, and behind those of each line its members, that wait for one another and for links.

    With `in_order` a link takes what waits there chunk by chunk, as engines do (R3); else as it came.
    """

    def __init__(self, chunks: Chunks, machine: Machine, *, whole: bool, in_order: bool = False) -> None:
        self._machine, self._whole = machine, whole
        self._in_order = in_order and len(chunks) > 1
        self._switching = uncongested(machine.switching)
        stores = self._switching.mode == "store_and_forward"
        self._segment = self._switching.segment if stores else None
        self._sizes = MessageSizes()
        self._ends: list[Int64s] = [np.zeros((0, 2), np.int64)]
        self._need: list[int] = []
        self._edges: list[list[tuple[int, int, bool]]] = []
        self._rank: list[int] = []
        self._route: list[int] = []
        self._row: list[int] = []
        self._first: list[list[tuple[int, int]]] = []
        """The edges from each member's arrival."""
        self._chunk: list[int] = []
        self._templates: dict[int, Template] = {}
        """The template of each schedule, by the schedule's id."""
        for number, chunk in enumerate(chunks):
            before: dict[int, int] = {}
            for lines in chunk:
                before = {rank: done for line in lines for rank, done in self._add(*line, before)}
            self._chunk += [number] * (len(self._need) - len(self._chunk))
        routes = machine.router.routes(np.concatenate(self._ends))
        self.visits = int(np.diff(routes.starts)[[route for route in self._route if route != NONE]].sum())
        self.visits *= 1 if whole else self._switching.parts
        self._routes = routes

    def _add(self, schedule: Schedule, ranks: Sequence[int], before: dict[int, int]) -> list[tuple[int, int]]:
        """Add a line whose members begin as they are done with the one before; return who is done when."""
        template = self._template(schedule)
        base, first_route = len(self._need), sum(map(len, self._ends))
        tree = self._machine.switch_trees
        nodes = np.array(with_switches(tree, ranks) if schedule.switches else ranks, np.int64)
        self._ends.append(nodes[np.stack((template.pair_source, template.pair_destination), 1)])
        self._need += [*template.need.tolist(), *template.member_need.tolist()]
        nowhere = [NONE] * template.members
        self._rank += [*nodes[template.source].tolist(), *nowhere]
        self._route += [*np.where(template.pair == NONE, NONE, template.pair + first_route), *nowhere]
        self._row += [*template.size.tolist(), *nowhere]
        self._edges += [*_edges(template, base), *([] for _ in range(template.members))]
        for rank, begins in zip(ranks, _arrivals(template, base), strict=True):
            if before:
                self._edges[before[rank]] += [(target, lag, False) for target, lag in begins]
            else:
                self._first.append(begins)
        return [(rank, base + len(template) + member) for member, rank in enumerate(ranks)]

    def _template(self, schedule: Schedule) -> Template:
        if id(schedule) not in self._templates:
            template = template_of(schedule, self._sizes, name="", segment=self._segment)
            self._templates[id(schedule)] = template
        return self._templates[id(schedule)]

    def duration(self) -> int:
        """Return when the last member is done."""
        sizes = self._sizes.all()
        whole = range(len(sizes)) if self._whole else ()
        fabric = self._machine.fabric
        self._hops, self._classes = hop_table(fabric, self._switching, self._routes, sizes, whole=whole)
        self._legs: dict[tuple[int, int], list[Leg]] = {}
        self._ready = [0] * len(self._need)
        self._missing = [1] * len(self._need)
        self._busy: dict[int, int] = {}
        self._coming: list[Coming] = []
        self._waiting: dict[int, list[tuple[int, Coming]]] = {}
        """What waits at each link that is busy or chooses at this instant, with the chunk before all else."""
        # One heap holds all that is to come, in the order in which links take it; see `Coming`.
        end = 0
        for target, lag in (edge for begins in self._first for edge in begins):
            self._pass(target, lag)
        while self._coming:
            coming = heapq.heappop(self._coming)
            end, task, hop = coming[0], coming[4], coming[5]
            if hop == _CHOOSES:
                self._choose(end, task)
                continue
            if hop != NONE:
                (self._queue if self._in_order else self._serve)(coming)
                continue
            self._missing[task] -= 1
            for target, lag, early in self._edges[task] if not self._missing[task] else ():
                if not early:
                    self._pass(target, end + lag)
        return end

    def _pass(self, task: int, moment: int) -> None:
        """Have an edge to a task pass; with the last one its parts start."""
        self._need[task] -= 1
        self._ready[task] = moment = max(self._ready[task], moment)
        if self._need[task]:
            return
        for target, lag, early in self._edges[task]:
            if early:
                self._pass(target, moment + lag)
        route, row, parts = self._route[task], self._row[task], self._hops.parts
        if route == NONE or not self._legs_of(route, row):
            heapq.heappush(self._coming, (moment, 0, NONE, moment, task, NONE, row))
            return
        rows = [row]
        if parts is not None:
            rows = [int(parts.first[row])] * (int(parts.count[row]) - 1) + [int(parts.last[row])]
        self._missing[task] = len(rows)  # the task has arrived when all its parts have
        # parts are injected at the pace of the slowest link of their route
        pace = max(occupancy for _, occupancy, _, _ in self._legs_of(route, rows[0]))
        for part, size in enumerate(rows):
            asks = (moment + part * pace, part, self._rank[task], moment, task, 0, size)
            heapq.heappush(self._coming, asks)

    def _queue(self, coming: Coming) -> None:
        """Queue a part at its link, which chooses when it is free and all arrivals of the instant are in."""
        time, task, hop, row = coming[0], coming[4], coming[5], coming[6]
        link = self._legs_of(self._route[task], row)[hop][0]
        if link not in self._waiting:
            self._waiting[link] = []
            self._chooses(link, max(time, self._busy.get(link, 0)))
        heapq.heappush(self._waiting[link], (self._chunk[task], coming))

    def _chooses(self, link: int, moment: int) -> None:
        heapq.heappush(self._coming, (moment, _LAST, 0, 0, link, _CHOOSES, 0))

    def _choose(self, time: int, link: int) -> None:
        """Serve the first of the parts that wait for a link."""
        waiting = self._waiting[link]
        coming = heapq.heappop(waiting)[1]
        self._serve((time, *coming[1:]))
        if waiting:
            self._chooses(link, self._busy[link])
        else:
            del self._waiting[link]

    def _serve(self, coming: Coming) -> None:
        time, part, rank, injected, task, hop, row = coming
        legs = self._legs_of(self._route[task], row)
        link, occupancy, head, lag = legs[hop]
        start = max(time, self._busy.get(link, 0))
        self._busy[link] = start + occupancy
        last = hop + 1 == len(legs)  # on the last link the whole part must be in, before that its head
        onward = start + (occupancy if last else head) + lag
        heapq.heappush(self._coming, (onward, part, rank, injected, task, NONE if last else hop + 1, row))

    def _legs_of(self, route: int, row: int) -> list[Leg]:
        if (route, row) not in self._legs:
            hops = slice(self._routes.starts[route], self._routes.starts[route + 1])
            services = services_of(self._hops, row, self._classes[hops])
            links = self._routes.links[hops].tolist()
            self._legs[route, row] = [
                (link, *service[:3]) for link, service in zip(links, services, strict=True)
            ]
        return self._legs[route, row]


def _edges(template: Template, base: int) -> list[list[tuple[int, int, bool]]]:
    columns = template.edge_target + base, template.edge_lag, template.edge_at_injection
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    starts = template.edge_starts.tolist()
    return [rows[first:last] for first, last in zip(starts, starts[1:], strict=False)]


def _arrivals(template: Template, base: int) -> list[list[tuple[int, int]]]:
    rows = list(zip((template.arrival_target + base).tolist(), template.arrival_lag.tolist(), strict=True))
    starts = template.arrival_starts.tolist()
    return [rows[first:last] for first, last in zip(starts, starts[1:], strict=False)]


def can_be_simulated(machine: Machine, groups: Groups, size: int) -> bool:
    """Return whether collectives of `size` bytes a member are few enough transfers to be played."""
    members = len(groups[0])
    if len(groups) * members * (members - 1) > MOST_PAIRS:
        return False
    segments, most = _segments(machine, groups, size)
    return segments <= most or most >= _FEWEST_SEGMENTS


def _segments(machine: Machine, groups: Groups, size: int) -> tuple[int, int]:
    """Return the segments of a message of `store_and_forward`, and how many of them can be played.

    A ring or a direct exchange sends 2 (n - 1) messages of 1/n of the size from each of n members. Each
    segment of a message waits for all segments of the one before it.
    """
    segment, members = machine.switching.segment, len(groups[0])
    if machine.switching.mode != "store_and_forward" or segment is None or members < 2:
        return 1, 1
    messages = len(groups) * members * 2 * (members - 1)
    return ceil_divide(size, members * int(segment)), max(1, isqrt(_MOST_WAITS // messages))


def _coarsening(machine: Machine, groups: Groups, size: int) -> int:
    """Return how many segments are played as one, a power of two."""
    segments, most = _segments(machine, groups, size)
    return 1 << (ceil_divide(segments, most) - 1).bit_length()


class ChoiceSimulator:
    """Plays collectives among groups of one shape on a machine."""

    def __init__(self, machine: Machine, groups: Groups) -> None:
        self._machine, self._groups = machine, groups
        self._in_parts = cache(self._with_parts)
        self._in_segments = cache(self._with_segments)

    def time(self, choice: Choice, asked: GroupCollective) -> int:
        """Return the picoseconds until all groups are done."""
        call = CollectiveCall(asked.collective, asked.size, asked.extents, ())
        plan, made = as_chosen(choice, call), cache(self._lines)
        chunks = [[made(phase, asked.extents) for phase in chunk] for chunk in plan]
        whole = cut_in_chunks(plan)
        machine = self._in_segments(_coarsening(self._machine, self._groups, asked.size))
        play = LinkSimulation(chunks, machine, whole=whole, in_order=True)
        parts = self._machine.switching.parts
        if not whole and parts > 1 and play.visits > MOST_VISITS:
            fewer = max(1, parts * MOST_VISITS // play.visits)
            play = LinkSimulation(chunks, self._in_parts(fewer), whole=whole, in_order=True)
        return play.duration()

    def _lines(self, phase: AxisPhase, extents: tuple[int, ...]) -> ScheduledLines:
        """Return the schedule of a phase for all groups, or for all their lines along its axis."""
        lines = np.array(self._groups, np.int64)
        if phase.axis is not None:
            grids = lines.reshape(-1, *extents[::-1])
            lines = np.moveaxis(grids, -1 - phase.axis, -1).reshape(-1, extents[phase.axis])
        schedule: Schedule = phase.schedule(lines.shape[1])
        return [(schedule, tuple(line)) for line in lines.tolist()]

    def _with_parts(self, parts: int) -> Machine:
        return self._switching_by(structs.replace(self._machine.spec.switching, parts=parts))

    def _with_segments(self, coarsening: int) -> Machine:
        switching = self._machine.spec.switching
        if coarsening == 1 or switching.segment is None:
            return self._machine
        return self._switching_by(
            structs.replace(switching, segment=Size(int(switching.segment) * coarsening))
        )

    def _switching_by(self, switching: Switching) -> Machine:
        return replace(self._machine, spec=structs.replace(self._machine.spec, switching=switching))
