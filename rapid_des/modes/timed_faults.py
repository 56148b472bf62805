"""Playing a program whose machine has faults that come and go, as timetables (rule R6) up to a horizon."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rapid_des.errors import DeadlockError
from rapid_des.machine import Machine
from rapid_des.modes.execution import EngineChoice, Execution, execute, execute_closing
from rapid_des.network.faults import Fault, gpu_timetables, link_timetables, placed_in_time
from rapid_des.program.faults.closures import closures_of
from rapid_des.program.lowering import Lowered
from rapid_des.program.program import Program, Timetable, VisitKind
from rapid_des.units import Duration


def execute_under_timed_faults(
    lowered: Lowered, machine: Machine, choice: EngineChoice, *, trail: bool
) -> Execution:
    """Play a lowered program on a machine whose faults may come and go.

    Steps and progress are placed by a run without the timed faults. Flaps and jitter are laid out up to a
    horizon, and again up to a farther one as long as the run outlasts it.
    """
    run = _Run(lowered, machine, choice, trail)
    faults = tuple(fault for fault in machine.faults if fault.timed)
    horizon = 1
    if any(fault.relative or _repeats(fault) for fault in faults):
        steady = execute(lowered.program, choice, name=lowered.name).records.makespan
        faults = placed_in_time(faults, steady)
        horizon = 2 * max(steady, 1)
    while True:
        execution = run.up_to(horizon, faults)
        if execution.records.makespan <= horizon or not any(map(_repeats, faults)):
            return execution
        horizon = 2 * execution.records.makespan


def _repeats(fault: Fault) -> bool:
    return fault.every is not None or fault.jitter is not None


@dataclass(frozen=True)
class _Run:
    """What every try has in common."""

    lowered: Lowered
    machine: Machine
    choice: EngineChoice
    trail: bool

    def up_to(self, horizon: int, faults: tuple[Fault, ...]) -> Execution:
        """Play the program with the faults laid out up to a time."""
        program = with_timetables(self.lowered, self.machine, faults, horizon)
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


def with_timetables(lowered: Lowered, machine: Machine, faults: tuple[Fault, ...], horizon: int) -> Program:
    """Return the program with the timetables of its links, and of its ranks' compute streams.

    A GPU under a timed fault computes at the smaller of its arithmetic's and its memory's rate: what bounds
    an operator is not known to a program.
    """
    program, per_node = lowered.program, machine.spec.gpus_per_node
    links = {
        link: Timetable(*(np.array(column, np.int64) for column in zip(*table, strict=True)))
        for link, table in link_timetables(machine.fabric, faults, horizon, per_node).items()
    }
    gpus = gpu_timetables(machine.fabric, faults, horizon, per_node)
    streams = {}
    for position, binding in enumerate(program.bindings):
        table = gpus.get(binding.rank)
        if table is None:
            continue
        time, compute, hbm = (np.array(column, np.int64) for column in zip(*table, strict=True))
        rates = Timetable(time, np.minimum(compute, hbm), np.zeros_like(time))
        own = program.programs[binding.program]
        computes = (own.kind == VisitKind.COMPUTE) & (own.server >= 0)
        for server in np.unique(own.server[computes]).tolist():
            streams[position, server] = rates
    return replace(program, link_timetables=links, stream_timetables=streams)


def _gone(program: Program, machine: Machine) -> str:
    """Say what stops for ever, if something does."""
    tables = [(machine.fabric.link_name(link), table) for link, table in program.link_timetables.items()]
    tables += [
        (f"gpu{program.bindings[position].rank}", table)
        for (position, _), table in program.stream_timetables.items()
    ]
    for name, table in tables:
        if not table.rate[-1]:
            return f"{name} is down from {Duration(int(table.time[-1]))} on"
    return ""
