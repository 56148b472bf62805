"""Every rank, every node and every transfer of a trace set on one timeline."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import TraceSet
from rapid_des.errors import DeadlockError, TraceError
from rapid_des.machine import Machine
from rapid_des.modes.execution import EngineChoice, Execution, execute
from rapid_des.program.lowering import Lowered, lower

if TYPE_CHECKING:
    from rapid_des.program.faults.slow_gpus import Pace


@dataclass(frozen=True)
class Run:
    """A program, what an engine saw of it, and the machine: what results and timelines are read from."""

    lowered: Lowered = field(repr=False)
    execution: Execution = field(repr=False)
    machine: Machine = field(repr=False)


def run_traces(  # noqa: PLR0913 - what is asked for, by name
    traces: TraceSet,
    machine: Machine,
    choice: EngineChoice,
    *,
    trail: bool = False,
    cache: BoundedCache | None = None,
    pace: Pace | None = None,
) -> Run:
    """Lower traces to a program and execute it; `trail` records every hop, `cache` keeps templates.

    `pace` prices the ranks of GPUs that faults slow for a while; without it their stated durations stretch.
    Traces whose ranks reach a group's collectives in different orders on unordered streams are matched by
    kind and size. Raises `DeadlockError` if the replay can not finish.
    """
    lowered = lower(traces, machine, cache=cache)
    if choice.inspect is not None:
        choice.inspect(lowered)
    try:
        return Run(lowered, _execute(lowered, machine, choice, pace, trail=trail), machine)
    except TraceError as disagreement:
        if not traces.unordered_streams:
            raise
        matched = "collectives of unordered streams were matched by kind and size and may overlap"
        notes = (*traces.notes, f"{disagreement}; {matched}")
        lowered = lower(replace(traces, notes=notes), machine, overlap=True)
        try:
            return Run(lowered, _execute(lowered, machine, choice, pace, trail=trail), machine)
        except DeadlockError:
            raise disagreement from None


def _execute(
    lowered: Lowered, machine: Machine, choice: EngineChoice, pace: Pace | None, *, trail: bool
) -> Execution:
    if not any(fault.timed for fault in machine.faults):
        return execute(lowered.program, choice, trail=trail, name=lowered.name)
    from rapid_des.modes.timed_faults import execute_under_timed_faults
    from rapid_des.program.faults.slow_gpus import pace_of

    pace = pace or pace_of(lowered.traces, machine)
    return execute_under_timed_faults(lowered, machine, choice, pace=pace, trail=trail)
