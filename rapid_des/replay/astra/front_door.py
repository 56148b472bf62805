"""The front door as one call: Chakra traces and ASTRA-sim's files in, its figures out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rapid_des.chakra.dialects import Dependencies
from rapid_des.chakra.options import ReadOptions
from rapid_des.chakra.reader import read_set
from rapid_des.chakra.trace import TraceSet
from rapid_des.replay.astra.files import Setup
from rapid_des.replay.astra.lower import lower
from rapid_des.replay.astra.result import AstraResult, result_of
from rapid_des.replay.deadlock import Namer, require_finished
from rapid_des.replay.program import NONE, Program, Records

Engine = Callable[[Program], Records]


def read_traces(prefix: str | Path, setup: Setup, *, dependencies: Dependencies = "both") -> TraceSet:
    """Read traces as ASTRA-sim does: data and control dependencies alike, and no order but theirs."""
    options = ReadOptions(
        dependencies=dependencies,
        groups=setup.files.groups,
        zero_is_world=setup.dialect == "stock",
        dimensions=setup.network.npus_count,
        streams="unordered",
    )
    return read_set(prefix, options)


def replay_astra(traces: TraceSet, setup: Setup, engine: Engine) -> AstraResult:
    """Replay traces on the machine that ASTRA-sim's files describe.

    `engine` runs a program to its end. A replay that can not finish is a `DeadlockError` that says who waits
    for whom (ASTRA-sim ends in silence); wrong files and traces are `InputError`s.
    """
    program = lower(traces, setup).program
    records = engine(program)
    require_finished(program, records, _namer(traces, program))
    return result_of(program, records, (*setup.notes, *traces.notes))


def _namer(traces: TraceSet, program: Program) -> Namer:
    def name(position: int, visit: int) -> str:
        trace, binding = traces.ranks[position], program.bindings[position]
        node = int(program.programs[binding.program].node[visit])
        if node == NONE:
            return f"rank {trace.rank} step {visit}"
        label = trace.nodes.names[int(trace.nodes.name[node])]
        return f"rank {trace.rank} node {int(trace.nodes.ids[node])} ({label})"

    return name
