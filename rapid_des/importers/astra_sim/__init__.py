"""ASTRA-sim as a front door: its input files and its rules, lowered to our program.

What is that simulator's own stands here; slots, groups, routes, expansions, templates' and rank programs'
builders are those of `program`.

    files, topology     its network, system, groups and memory files; its links and their times
    lowering            groups by its names, one program for all ranks that run the same, remote memory
    ranks               who runs what for how long: CPU, GPU and communication, in the order of node ids
    collectives         a collective to chunks and phases, phases to the queues of their dimension
    expansions          the same as member visits, with queues as servers and priorities
    statistics          what its log prints of each rank
    algorithms          the templates of phases by the names in the system file: lockstep, direct, tree
    here                traces and files in, its figures out
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.chakra.dialects import ReadOptions
from rapid_des.chakra.reader import read_set
from rapid_des.chakra.trace import TraceSet
from rapid_des.importers.astra_sim.files import Dialect as Dialect
from rapid_des.importers.astra_sim.files import Files as Files
from rapid_des.importers.astra_sim.files import Setup as Setup
from rapid_des.importers.astra_sim.files import read_setup as read_setup
from rapid_des.importers.astra_sim.lowering import lower as lower
from rapid_des.importers.astra_sim.lowering import lower_with_network
from rapid_des.importers.astra_sim.ranks import GPU
from rapid_des.importers.astra_sim.statistics import AstraTimes, statistics_of
from rapid_des.importers.keys import Ignored
from rapid_des.modes.execution import EngineChoice, Execution, execute
from rapid_des.network.fabric import Fabric
from rapid_des.program.lowering import Lowered
from rapid_des.program.program import Program, Records, VisitKind
from rapid_des.units import PS_PER_NS
from rapid_des.values import replace

_AS_FILES_SAY = ReadOptions()
_FASTEST = EngineChoice()


class AstraRun(Struct, frozen=True):
    """The program and records of a replay, for link tables and further analysis."""

    lowered: Lowered
    fabric: Fabric
    execution: Execution


@dataclass(frozen=True)
class AstraResult:
    """Times in nanoseconds by position in `ranks`, and notes on what was not followed."""

    ranks: tuple[int, ...]
    finish_ns: tuple[int, ...]
    exposed_communication_ns: tuple[int, ...]
    hops: int
    notes: tuple[str, ...] = ()
    ignored: tuple[Ignored, ...] = ()
    engine: str = ""
    wall_s: float = 0.0
    run: AstraRun | None = field(default=None, repr=False)

    @cached_property
    def statistics(self) -> list[AstraTimes]:
        """What ASTRA-sim's log prints of each rank; empty without a run."""
        if self.run is None:
            return []
        return statistics_of(self.run.lowered, self.run.execution.records)

    def tree(self) -> dict[str, object]:
        """Return the result as plain data for JSON."""
        more = [msgspec.to_builtins(each) for each in self.statistics] or [{} for _ in self.ranks]
        rows = zip(self.ranks, self.finish_ns, self.exposed_communication_ns, more, strict=True)
        return {
            "ranks": {
                str(rank): {"finish_ns": finish, "exposed_communication_ns": exposed, **others}
                for rank, finish, exposed, others in rows
            },
            "finish_ns": max(self.finish_ns, default=0),
            "engine": self.engine,
            "hops": self.hops,
            "simulation_wall_s": round(self.wall_s, 6),
            "notes": list(self.notes),
            "ignored": [msgspec.to_builtins(each) for each in self.ignored],
        }


def replay_astra(
    prefix: str | Path,
    files: Files,
    *,
    engine: EngineChoice = _FASTEST,
    reading: ReadOptions = _AS_FILES_SAY,
) -> AstraResult:
    """Replay the traces PREFIX.<rank>.et on the machine that ASTRA-sim's files describe.

    `reading` says how to read the traces where it should not be as ASTRA-sim does. A replay that cannot
    finish is a `DeadlockError` that says who waits for whom (ASTRA-sim ends in silence); wrong files and
    traces are `InputError`s.
    """
    setup = read_setup(files)
    return replay_traces(read_traces(prefix, setup, reading), setup, engine)


def read_traces(prefix: str | Path, setup: Setup, reading: ReadOptions = _AS_FILES_SAY) -> TraceSet:
    """Read traces as ASTRA-sim does where `reading` leaves it open.

    That is: data and control dependencies alike, no order but theirs, and group "0" for all ranks.
    """
    options = replace(
        reading,
        dependencies="both" if reading.dependencies == "auto" else reading.dependencies,
        groups=setup.files.groups or reading.groups,
        zero_is_world=setup.dialect == "stock",
        dimensions=setup.network.npus_count,
        streams="unordered",
    )
    return read_set(prefix, options)


def replay_traces(traces: TraceSet, setup: Setup, engine: EngineChoice = _FASTEST) -> AstraResult:
    """Replay traces that are in memory; see `replay_astra`."""
    lowered, network = lower_with_network(traces, setup)
    execution = execute(lowered.program, engine, name=lowered.name)
    return replace(
        result_of(lowered.program, execution.records),
        notes=(*setup.notes, *traces.notes),
        ignored=setup.ignored,
        engine=execution.engine,
        wall_s=execution.wall_s,
        run=AstraRun(lowered, network.fabric, execution),
    )


def result_of(program: Program, records: Records) -> AstraResult:
    """Summarise a finished run by rank."""
    offsets = program.visits().tolist()
    finish, exposed = [], []
    for position, binding in enumerate(program.bindings):
        window = slice(offsets[position], offsets[position + 1])
        end = int(records.finish[window].max(initial=0)) // PS_PER_NS
        computes = _gpu_operators(program, binding.program)
        busy = int((records.finish[window] - records.start[window])[computes].sum()) // PS_PER_NS
        finish.append(end)
        exposed.append(end - busy)
    ranks = tuple(binding.rank for binding in program.bindings)
    return AstraResult(ranks, tuple(finish), tuple(exposed), records.hops)


def _gpu_operators(program: Program, number: int) -> Int64s:
    table = program.programs[number]
    return np.flatnonzero((table.kind == VisitKind.COMPUTE) & (table.server == GPU))
