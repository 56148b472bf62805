"""The front door as one call: Chakra traces and ASTRA-sim's files in, its figures out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rapid_des.astra.files import Files, Setup, read_setup
from rapid_des.astra.lower import lower
from rapid_des.astra.result import AstraResult, AstraRun, result_of
from rapid_des.chakra.dialects import ReadOptions
from rapid_des.chakra.reader import read_set
from rapid_des.chakra.trace import TraceSet
from rapid_des.modes.execution import EngineChoice, execute
from rapid_des.program.program import NONE, Namer, Program

_AS_FILES_SAY = ReadOptions()
_FASTEST = EngineChoice()


def replay_astra(
    prefix: str | Path,
    files: Files,
    *,
    engine: EngineChoice = _FASTEST,
    reading: ReadOptions = _AS_FILES_SAY,
) -> AstraResult:
    """Replay the traces PREFIX.<rank>.et on the machine that ASTRA-sim's files describe.

    `reading` says how to read the traces where ASTRA-sim's own way is not wanted. A replay that can not
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
    lowered = lower(traces, setup)
    execution = execute(lowered.program, engine, name=_namer(traces, lowered.program))
    return replace(
        result_of(lowered.program, execution.records),
        notes=(*setup.notes, *traces.notes),
        engine=execution.engine,
        wall_s=execution.wall_s,
        run=AstraRun(lowered, execution),
    )


def _namer(traces: TraceSet, program: Program) -> Namer:
    def name(position: int, visit: int) -> str:
        trace, binding = traces.ranks[position], program.bindings[position]
        node = int(program.programs[binding.program].node[visit])
        if node == NONE:
            return f"rank {trace.rank} step {visit}"
        label = trace.nodes.names[int(trace.nodes.name[node])]
        return f"rank {trace.rank} node {int(trace.nodes.ids[node])} ({label})"

    return name
