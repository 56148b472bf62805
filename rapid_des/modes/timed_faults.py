"""Playing a program whose machine has faults that come and go, as timetables (rule R6) up to a horizon."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.errors import DeadlockError
from rapid_des.machine import Machine
from rapid_des.modes.execution import EngineChoice, Execution, execute, execute_closing
from rapid_des.network.fabric import Routes
from rapid_des.network.faults import (
    Fault,
    GpuFactors,
    GpuTimetable,
    gpu_timetables,
    link_timetables,
    placed_in_time,
)
from rapid_des.program.faults.closures import closures_of
from rapid_des.program.faults.slow_gpus import Pace
from rapid_des.program.lowering import Lowered
from rapid_des.program.program import Program, RankProgram, Timetable, VisitKind
from rapid_des.program.services import with_tails
from rapid_des.program.timetable import FULL_RATE
from rapid_des.units import Duration
from rapid_des.values import replace


def execute_under_timed_faults(
    lowered: Lowered, machine: Machine, choice: EngineChoice, *, pace: Pace, trail: bool
) -> Execution:
    """Play a lowered program on a machine whose faults may come and go; `pace` prices ranks on slowed GPUs.

    Steps and progress are placed by a run without the timed faults. Flaps and jitter are laid out up to a
    horizon, and again up to a farther one as long as the run outlasts it.
    """
    attempt = _Attempt(lowered, machine, choice, pace, trail)
    faults = tuple(fault for fault in machine.faults if fault.timed)
    horizon = 1
    if any(fault.relative or _repeats(fault) for fault in faults):
        steady = execute(lowered.program, choice, name=lowered.name).records.makespan
        faults = placed_in_time(faults, steady)
        horizon = 2 * max(steady, 1)
    while True:
        execution = attempt.up_to(horizon, faults)
        if execution.records.makespan <= horizon or not any(map(_repeats, faults)):
            return execution
        horizon = 2 * execution.records.makespan


def _repeats(fault: Fault) -> bool:
    return any(drawn is not None for drawn in (fault.every, fault.jitter, fault.burst))


class _Attempt(Struct, frozen=True):
    """What every try has in common."""

    lowered: Lowered
    machine: Machine
    choice: EngineChoice
    pace: Pace
    trail: bool

    def up_to(self, horizon: int, faults: tuple[Fault, ...]) -> Execution:
        """Play the program with the faults laid out up to a time."""
        program = with_timetables(self.lowered, self.machine, faults, horizon, self.pace)
        closures = closures_of(self.machine, faults, horizon, self.lowered.traces)
        name, trail = self.lowered.name, self.trail
        try:
            if closures is None:
                return execute(program, self.choice, trail=trail, name=name)
            return execute_closing(program, closures, self.choice, trail=trail, name=name)
        except DeadlockError as error:
            gone = _gone(program, self.machine)
            if gone:
                raise DeadlockError(f"{gone} and stays down; {error}") from None
            raise


def with_timetables(
    lowered: Lowered, machine: Machine, faults: tuple[Fault, ...], horizon: int, pace: Pace
) -> Program:
    """Return the program with the timetables of its links, and of the work of ranks on slowed GPUs.

    An operator under way when its GPU slows has done the share of its work that the time was of its duration;
    the rest goes on at the rate that its duration on the slowed GPU, by `pace`, makes of it.
    """
    program, per_node = lowered.program, machine.spec.gpus_per_node
    links = _link_timetables(machine, faults, horizon)
    stays = tuple(fault for fault in faults if fault.policy == "wait")
    pace_of_links = None if stays == faults else _link_timetables(machine, stays, horizon)
    gpus = gpu_timetables(machine.fabric, faults, horizon, per_node)
    visits = {}
    for position, binding in enumerate(program.bindings):
        table = gpus.get(binding.rank)
        if table is not None:
            rank_program = program.programs[binding.program]
            before = machine.slowed.get(binding.rank, GpuFactors.whole())
            for visit, rates in _visit_timetables(rank_program, table, position, before, pace).items():
                visits[position, visit] = rates
    hops = program.hops
    if links and program.fluid is None and program.queue_pairs is None:
        routes = Routes(program.route_starts, program.route_links.astype(np.int64))
        hops = with_tails(hops, machine.fabric, machine.switching, routes)
    return replace(
        program, hops=hops, link_timetables=links, stated_pace=pace_of_links, visit_timetables=visits
    )


def _link_timetables(machine: Machine, faults: tuple[Fault, ...], horizon: int) -> dict[int, Timetable]:
    tables = link_timetables(machine.fabric, faults, horizon, machine.spec.gpus_per_node)
    return {
        link: Timetable(*(np.array(column, np.int64) for column in zip(*table, strict=True)))
        for link, table in tables.items()
    }


def _visit_timetables(
    program: RankProgram, table: GpuTimetable, position: int, before: GpuFactors, pace: Pace
) -> dict[int, Timetable]:
    """Return the timetable of each visit of a rank that computes; visits that slow alike share one."""
    computes = np.flatnonzero((program.kind == VisitKind.COMPUTE) & (program.server >= 0))
    time = np.array([moment for moment, _ in table], np.int64)
    left = list(dict.fromkeys(factors for _, factors in table))
    rates = np.stack(
        [_rates(program, computes, position, before.combined(fault_state), pace) for fault_state in left]
    )
    state = np.array([left.index(factors) for _, factors in table], np.int64)
    kinds, kind = np.unique(rates, axis=1, return_inverse=True)
    tables = [
        Timetable(time, kinds[state, fault_state], np.zeros_like(time))
        for fault_state in range(kinds.shape[1])
    ]
    return {
        visit: tables[fault_state]
        for visit, fault_state in zip(computes.tolist(), kind.reshape(-1).tolist(), strict=True)
    }


def _rates(program: RankProgram, computes: Int64s, position: int, factors: GpuFactors, pace: Pace) -> Int64s:
    """Return the rate of each of some visits on what is left of a GPU, in 1 / `FULL_RATE`."""
    if not factors.compute:
        return np.zeros(len(computes), np.int64)
    slow = np.maximum(pace(position, factors)[program.node[computes]], 1)
    healthy = np.maximum(program.work[computes], 1)
    return np.maximum(np.rint(FULL_RATE * (healthy / slow)).astype(np.int64), 1)


def _gone(program: Program, machine: Machine) -> str:
    """Say what stops for ever, if something does."""
    tables = [(machine.fabric.link_name(link), table) for link, table in program.link_timetables.items()]
    tables += [
        (f"gpu{program.bindings[position].rank}", table)
        for (position, _), table in program.visit_timetables.items()
    ]
    for name, table in tables:
        if not table.rate[-1]:
            return f"{name} is down from {Duration(int(table.time[-1]))} on"
    return ""
