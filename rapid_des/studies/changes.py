"""The changes of a machine or a job that shorten a step the most, each checked by simulating it.

Candidates come from the critical path. What a change makes twice as fast can save half of its time on that
path at most. So candidates are simulated in the order of what they can save, until none of the others can be
among the best. Free messages no longer slow the kernels beside them, so for them no such limit is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct

from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import RapidDesError
from rapid_des.frontend import Job
from rapid_des.machine import Machine
from rapid_des.modes.execution import EngineChoice, Run, execute
from rapid_des.program.free_messages import with_free_messages
from rapid_des.report.colours import COMPUTE, HOST
from rapid_des.report.critical_path import CriticalPath
from rapid_des.report.result import Result
from rapid_des.simulation import timed
from rapid_des.studies.parameters import (
    Parameter,
    ParameterScaler,
    Settings,
    grouped_by_library,
    parameters_of,
)
from rapid_des.studies.points import Point
from rapid_des.units import Duration, seconds

TOP = 3
"""The number of changes that are reported."""
_TWICE = 2.0
_FASTER = {"rate": _TWICE, "clock": _TWICE, "time": 1 / _TWICE}


class PossibleChange(Struct, frozen=True):
    """A change that may shorten the step."""

    what: str
    saves: int
    """The time that the change can save at most, in picoseconds."""
    settings: Settings = ()
    free: str = ""
    """The kind of messages that cost nothing; empty: the settings are the change."""


class CheckedChange(Struct, frozen=True):
    """A change with the step time that a simulation gives."""

    what: str
    step_time: Duration
    bound: str = ""
    """The largest part of the changed step; empty where it is not known."""

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        return {
            "what": self.what,
            "step_time_s": seconds(self.step_time),
            "step_time_ps": int(self.step_time),
            "bound": self.bound or None,
        }


def best_changes(
    job: Job, machine: Machine, result: Result, path: CriticalPath, choice: EngineChoice
) -> tuple[CheckedChange, ...]:
    """Return up to `TOP` changes that shorten a simulated step the most, the best first."""
    found: list[CheckedChange] = []
    cache = BoundedCache(1 << 28)
    with TemporaryDirectory() as folder:
        candidates = [*_of_parameters(job, machine, path, Path(folder)), *_of_job(job, path)]
        candidates += _free_messages(result, path)
        for candidate in sorted(candidates, key=lambda one: (-one.saves, one.what)):
            if len(found) >= TOP and path.step_time - candidate.saves >= found[TOP - 1].step_time:
                break
            try:
                checked = _check(candidate, Point(job, machine, candidate.settings), result, (choice, cache))
            except RapidDesError:
                continue  # a value that a file does not allow, or a job that no longer fits
            if checked.step_time < path.step_time:
                found = sorted([*found, checked], key=lambda one: int(one.step_time))
    return tuple(found[:TOP])


def _check(
    candidate: PossibleChange, point: Point, result: Result, how: tuple[EngineChoice, BoundedCache]
) -> CheckedChange:
    """Simulate a candidate."""
    choice, cache = how
    if candidate.free:
        assert result.run is not None, "only runs of all ranks have candidates of free messages"
        program = with_free_messages(result.run.lowered, _streams(result, result.run)[candidate.free])
        return CheckedChange(candidate.what, Duration(execute(program, choice).records.makespan))
    job, machine = point.resolved(cache)
    changed = timed(job, machine, mode=result.mode, engine=choice, allow_oom=True, cache=cache)
    return CheckedChange(candidate.what, changed.step_time, changed.bound)


def _of_parameters(job: Job, machine: Machine, path: CriticalPath, folder: Path) -> Iterator[PossibleChange]:
    """Yield candidates that make a part of the machine twice as fast."""
    every, scaler = grouped_by_library(parameters_of(job, machine)), ParameterScaler(machine, folder)
    talks = _messages_time(path)
    computes = path.by_cause.get(COMPUTE, 0)
    # In modes of blocks the messages inside blocks count for compute on the path.
    for what, names, time in (
        ("tensor cores twice as fast", ("device.tensor_peak",), computes),
        ("vector units twice as fast", ("device.vector_peak",), computes),
        ("memory bandwidth twice as high", ("device.hbm.bandwidth",), computes),
        *_fabric(machine, talks + computes * (path.has_blocks)),
        ("kernel launches and the host twice as fast", ("device.launch", "job.host"), int(path.step_time)),
    ):
        settings = tuple(
            setting
            for parameter in every
            if parameter.name.startswith(names) and _is_moved(what, parameter)
            for setting in scaler.settings(parameter, _FASTER[parameter.kind])
        )
        if settings:
            yield PossibleChange(what, time // 2, settings)


def _fabric(machine: Machine, time: int) -> Iterator[tuple[str, tuple[str, ...], int]]:
    dimensions = machine.spec.fabric if isinstance(machine.spec.fabric, tuple | list) else ()
    for number, dimension in enumerate(dimensions):
        name = getattr(dimension, "name", None) or f"dimension {number}"
        yield f"links of {name} twice as fast", (f"machine.fabric.{number}.",), time
    yield "half the latency of all links", ("machine.fabric.",), time
    yield "twice the rates of the communication library", ("machine.collectives.",), time
    yield "half the fixed times of the communication library", ("machine.collectives.",), time


def _is_moved(what: str, parameter: Parameter) -> bool:
    """Return whether a change is about times, or about rates."""
    return parameter.kind == ("time" if what.startswith(("half", "kernel")) else "rate")


def _of_job(job: Job, path: CriticalPath) -> Iterator[PossibleChange]:
    training = job.spec.training
    if training is None or training.micro_batch % 2 or job.spec.parallelism.pp == 1:
        return
    settings = (("job.training.micro_batch", str(training.micro_batch // 2)),)
    yield PossibleChange("twice as many micro-batches of half the size", int(path.step_time), settings)


def _free_messages(result: Result, path: CriticalPath) -> Iterator[PossibleChange]:
    """Yield candidates without the cost of one kind of messages, where all of them are in the run."""
    if result.run is None or any(fault.timed for fault in result.run.machine.faults):
        return
    if result.run.execution.records.makespan != path.step_time:
        return  # decode steps that were not simulated would not be free
    for kind in _streams(result, result.run):
        if kind in path.by_cause:
            yield PossibleChange(f"{kind} messages free", int(path.step_time), free=kind)


def _streams(result: Result, run: Run) -> Mapping[str, set[str]]:
    """Return the streams of each kind of messages."""
    kinds = result.stream_kinds or {}
    streams: dict[str, set[str]] = {}
    for name in {name for trace in run.lowered.traces.ranks for name in trace.nodes.streams}:
        streams.setdefault(kinds.get(name, name), set()).add(name)
    return streams


def _messages_time(path: CriticalPath) -> int:
    return sum(time for cause, time in path.by_cause.items() if cause not in (COMPUTE, HOST))
