"""The definition of replay: a SimPy simulation of a program, which can be read and stepped.

As in SimPy's examples the customers are processes, and resources serve them. Every *visit* is a process: it
asks its GPU stream or slot (a `Server`), starts, ends, and makes the visits ready that depend on it. Every
piece of a message is a process that asks link after link (`links`). A rank is not a process: the program's
dependencies contain the order of its visits.

The modules with the rules of `program.program`:

    here           R1 ready, R5 duration and instances of visits
    servers        R2 service, R3 choice and R4 instants of streams and slots, R6 what slows a rank's visits
    links          R3 to R6 of messages on links; `pieces` what crosses them
    collectives    R1 and R5 between a member's arrival and its end, R11 delays
    fluid_links    R7 links that all flows share
    link_closures  R8 messages on links that close; `replanned` collectives that start while links are closed
    queue_pairs    R9 queue pairs, R13 pause; `rates` R14
    spraying       R10 spraying, R12 load

Times are integer picoseconds.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
from simpy.events import Event, Timeout

from rapid_des.engines.simpy.collectives import CollectiveEngine
from rapid_des.engines.simpy.links import Links, Steps, TieCounter, trail_of
from rapid_des.engines.simpy.servers import Arbiter, InService, PicosecondEnvironment, Server, ServiceRequest
from rapid_des.program.program import (
    NONE,
    STEADY,
    Program,
    Progress,
    RankProgram,
    Records,
    VisitKind,
    WorkLevel,
)
from rapid_des.program.timetable import FOREVER, advance

if TYPE_CHECKING:
    from rapid_des.engines.simpy.collectives import Replanning
    from rapid_des.engines.simpy.fluid_links import FluidLinks
    from rapid_des.program.faults.closures import Closures


class RankTable:
    """A `RankProgram` as Python lists, which an interpreter reads several times faster than numpy scalars."""

    def __init__(self, program: RankProgram) -> None:
        self.kind = program.kind.tolist()
        self.server = program.server.tolist()
        self.work = program.work.tolist()
        self.priority = program.priority.tolist()
        self.link_priority = program.link_priority.tolist()
        self.release = program.release.tolist()
        self.slot = program.slot.tolist()
        self.parent = program.parent.tolist()
        self.occurrence = program.occurrence.tolist()
        self.sub = program.sub.tolist()
        self.template = program.template.tolist()
        self.node = program.node.tolist()
        self.need = program.need.tolist()
        self.servers = list(zip(program.server_capacity.tolist(), program.server_level.tolist(), strict=True))
        columns = (program.edge_target, program.edge_lag, program.edge_at_start)
        edges = list(zip(*(column.tolist() for column in columns), strict=True))
        starts = program.edge_starts.tolist()
        rows = [edges[first:last] for first, last in zip(starts, starts[1:], strict=False)]
        self.at_start = [[(target, lag) for target, lag, at_start in row if at_start] for row in rows]
        self.at_finish = [[(target, lag) for target, lag, at_start in row if not at_start] for row in rows]
        self.weight, self.slowed = _contention(program)


def _contention(program: RankProgram) -> tuple[list[int], list[list[int] | None]]:
    """Return each visit's weight in service, and its shares beside others; None for a full share."""
    contention = program.contention
    if contention is None:
        return [0] * len(program), [None] * len(program)
    shares = [*contention.shares.tolist(), None]
    return contention.weight.tolist(), [shares[kind] for kind in contention.kind.tolist()]


class Simulation:
    """One run of a program; `run` plays it to the end or to a given time.

    `closures` are the links that close (R8). `trail` records every hop; `ties` counts how often a link chose
    by rank, which only folding asks.
    """

    def __init__(
        self,
        program: Program,
        *,
        closures: Closures | None = None,
        trail: bool = False,
        ties: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self.program = program
        self.env = PicosecondEnvironment(progress)
        self.offsets: list[int] = program.visits().tolist()
        tables = [RankTable(rank_program) for rank_program in program.programs]
        self.tables = [tables[binding.program] for binding in program.bindings]
        arbiters = [Arbiter(self.env, level) for level in WorkLevel]
        self.servers = self._rank_servers(arbiters)
        self.in_service = [InService(self.env) for _ in self.tables]
        self.pending = [list(table.need) for table in self.tables]
        self.ready = [[0] * len(table.need) for table in self.tables]
        self.start = [NONE] * self.offsets[-1]
        self.finish = [NONE] * self.offsets[-1]
        self.met = [NONE] * self.offsets[-1]
        self.finished: dict[int, Event] = {}
        self.counters: dict[tuple[int, int], int] = {}
        self.occurrence: dict[int, int] = {}
        self.ties = TieCounter() if ties else None
        self.links = _links_of(program)(
            program, arbiters[WorkLevel.LINK], trail=[] if trail else None, ties=self.ties
        )
        self.collectives = CollectiveEngine(
            program, self.links, self._fluid(arbiters[WorkLevel.LINK]), self.met
        )
        self.replanning = self._replanning(closures)
        for position, table in enumerate(self.tables):
            for visit, need in enumerate(table.need):
                if need == 0:
                    self._begin(position, visit)

    def _rank_servers(self, arbiters: list[Arbiter]) -> list[list[Server]]:
        order = count()
        return [
            [Server(arbiters[level], capacity, next(order)) for capacity, level in table.servers]
            for table in self.tables
        ]

    def _fluid(self, arbiter: Arbiter) -> FluidLinks | None:
        """Return the links if flows share them; only then is that imported."""
        if self.program.fluid is None:
            return None
        from rapid_des.engines.simpy.fluid_links import FluidLinks

        return FluidLinks(self.program, arbiter, self.links)

    def _replanning(self, closures: Closures | None) -> Replanning | None:
        """Return the replanning of collectives, if the program has closures; only then import its module."""
        if closures is None:
            return None
        from rapid_des.engines.simpy.collectives import Replanning
        from rapid_des.engines.simpy.link_closures import ClosingFlows, ClosingLinks

        if self.collectives.fluid is None:
            self.links.closing = ClosingLinks(self.links, closures)
        else:
            self.collectives.fluid.closing = ClosingFlows(self.collectives.fluid, closures)
        return Replanning(self.collectives, closures)

    def run(self, until: int | None = None) -> None:
        """Play until nothing is left to happen, or up to and including a time in picoseconds."""
        end = FOREVER if until is None else min(until + 1, FOREVER)
        if end > self.env.now:
            self.env.run(end)

    def records(self) -> Records:
        """Return the records of the simulation so far."""
        fluid = self.collectives.fluid
        return Records(
            start=np.array(self.start, np.int64),
            finish=np.array(self.finish, np.int64),
            met=np.array(self.met, np.int64),
            link_bytes=self.links.sums(0),
            link_busy=self.links.sums(1),
            link_wait=self.links.sums(2),
            hops=self.links.hops,
            events=self.env.actions,
            sent=self.collectives.sent,
            link_stopped=self.links.stopped(),
            rates=self.links.rates(),
            received=self.links.received,
            ties=0 if self.ties is None else self.ties.count,
            trail=None if self.links.trail is None else trail_of(self.links.trail),
            beyond=self.env.beyond(FOREVER) or (fluid is not None and fluid.never_end()),
        )

    def _begin(self, position: int, visit: int) -> None:
        self.env.process(self._visit(position, visit))

    def _visit(self, position: int, visit: int) -> Steps:
        """Live through one visit."""
        table, env, flat = self.tables[position], self.env, self.offsets[position] + visit
        server = None
        if table.server[visit] != NONE:
            server = self.servers[position][table.server[visit]]
            yield ServiceRequest(server, (table.priority[visit], env.now, flat))
            self.in_service[position].add(table.weight[visit])
        start = self.start[flat] = env.now
        self._pass(position, table.at_start[visit])
        kind = table.kind[visit]
        if kind == VisitKind.COMPUTE:
            yield from self._compute(position, visit)
        elif kind == VisitKind.JOIN:
            if table.work[visit]:
                yield Timeout(env, table.work[visit])
        elif kind == VisitKind.HOLD:
            self._number(position, visit)
            yield self._finish_of(self.offsets[position] + table.release[visit])
        else:
            yield self._member(position, visit)
        if server is not None:
            if env.now == start:
                yield Timeout(env, 1)
            self.in_service[position].add(-table.weight[visit])
            server.release()
        self._retire(position, visit)

    def _compute(self, position: int, visit: int) -> Steps:
        """Serve a COMPUTE visit until its work is done (R5, R6)."""
        table, now = self.tables[position], self.env.now
        on_server = table.server[visit] != NONE
        work = max(table.work[visit], 1) if on_server else table.work[visit]
        rates = self.program.visit_timetables.get((position, visit), STEADY)
        rated = rates.time.tolist(), rates.rate.tolist()
        shares = table.slowed[visit]
        if shares is None:
            yield Timeout(self.env, advance(*rated, now, work) - now if rated[0] else work)
        else:
            yield from self.in_service[position].compute(work, rated, shares, table.weight[visit])

    def _finish_of(self, flat: int) -> Event:
        if flat not in self.finished:
            self.finished[flat] = Event(self.env)
            if self.finish[flat] != NONE:
                self.finished[flat].succeed()
        return self.finished[flat]

    def _retire(self, position: int, visit: int) -> None:
        flat = self.offsets[position] + visit
        self.finish[flat] = self.env.now
        if flat in self.finished and not self.finished[flat].triggered:
            self.finished[flat].succeed()
        self._pass(position, self.tables[position].at_finish[visit])

    def _pass(self, position: int, edges: list[tuple[int, int]]) -> None:
        """Count the edges to other visits of the rank; one is ready when enough edges have passed (R1)."""
        pending, ready, now = self.pending[position], self.ready[position], self.env.now
        for target, lag in edges:
            if pending[target] == 0:
                continue  # a counting predecessor beyond the n that were needed
            pending[target] -= 1
            ready[target] = max(ready[target], now + lag)
            if pending[target] == 0:
                self.env.at(ready[target], partial(self._begin, position, target))

    def _number(self, position: int, visit: int) -> int:
        """Bind the instance number k of a visit (R5)."""
        table, flat = self.tables[position], self.offsets[position] + visit
        number = table.occurrence[visit]
        if number == NONE:
            slot = (position, table.slot[visit])
            number = self.counters.get(slot, 0)
            self.counters[slot] = number + 1
        self.occurrence[flat] = number
        return int(number)

    def _member(self, position: int, visit: int) -> Event:
        """Arrive at a collective; the event succeeds when this member is done."""
        table, binding, offset = (
            self.tables[position],
            self.program.bindings[position],
            self.offsets[position],
        )
        parent, template = table.parent[visit], table.template[visit]
        number = self._number(position, visit) if parent == NONE else self.occurrence[offset + parent]
        arrival = (position, offset + visit, table.link_priority[visit])
        if self.replanning is not None:
            call = visit if parent == NONE else parent
            key = (int(binding.groups[table.slot[call]]), number)
            replanned = self.replanning.meet(key, template, table.node[call], arrival)
            if replanned is not None:
                return replanned
        slot = table.slot[visit]
        group, member = int(binding.groups[slot]), int(binding.members[slot])
        return self.collectives.meet((group, number, table.sub[visit]), template, member, arrival)


def _links_of(program: Program) -> type[Links]:
    """Return the model of the links; queue pairs are imported only where a program has any."""
    if program.queue_pairs is None:
        return Links
    from rapid_des.engines.simpy.queue_pairs import PairedLinks

    return PairedLinks


def run(
    program: Program,
    *,
    closures: Closures | None = None,
    trail: bool = False,
    ties: bool = False,
    progress: Progress | None = None,
) -> Records:
    """Play a program to its end; visits that never finish are left at NONE in the records."""
    simulation = Simulation(program, closures=closures, trail=trail, ties=ties, progress=progress)
    simulation.run()
    return simulation.records()
