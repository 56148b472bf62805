"""The changes of a machine or a job that shorten a step the most, each checked by simulating it.

What a change can save at most is estimated from the critical path first: what becomes twice as fast saves
half of its time there. Candidates are simulated in that order, until none of the others can be among the
best. Those that rarely matter are tried together: if all of them save too little, none is simulated alone.

A run of more than `MOST_HOPS` link hops is too dear to repeat: its changes are simulated by closed forms, and
compared with the step by closed forms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct, field

from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import RapidDesError
from rapid_des.frontend import Job
from rapid_des.machine import Machine
from rapid_des.modes.execution import EngineChoice, Run, execute
from rapid_des.program.free_messages import with_free_messages
from rapid_des.report.colours import COMPUTE, HOST, KIND_ORDER
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
MOST_HOPS = 4_000_000
"""Link hops that a run simulates, up to which its changes are simulated in its own mode."""
_TWICE = 2.0
_FASTER = {"rate": _TWICE, "clock": _TWICE, "time": 1 / _TWICE}


class PossibleChange(Struct, frozen=True):
    """A change that may shorten the step."""

    what: str
    saves: int
    """The time that the change is estimated to save at most, in picoseconds."""
    parameters: tuple[Parameter, ...] = ()
    """What becomes twice as fast."""
    settings: Settings = ()
    free: str = ""
    """The kind of messages that cost nothing; empty: none."""


class CheckedChange(Struct, frozen=True):
    """A change with the step time that a simulation gives."""

    what: str
    step_time: Duration
    bound: str = ""
    """The largest part of the changed step; empty where it is not known."""
    before: Duration = Duration(0)
    """The step time without the change in the mode that simulated it."""
    mode: str = ""
    """The mode that simulated it, where that is not the run's own; else empty."""

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        return {
            "what": self.what,
            "step_time_s": seconds(self.step_time),
            "step_time_ps": int(self.step_time),
            "before_s": seconds(self.before),
            "bound": self.bound or None,
            "mode": self.mode or None,
        }


def best_changes(
    inputs: tuple[Job, Machine],
    result: Result,
    path: CriticalPath,
    choice: EngineChoice,
    on_change: Callable[[str], object] = str,
) -> tuple[CheckedChange, ...]:
    """Return up to `TOP` changes of a job or machine that shorten a simulated step the most, best first.

    `on_change` is called with the name of what is simulated next.
    """
    with TemporaryDirectory() as folder:
        scaler = ParameterScaler(inputs[1], Path(folder))
        trial = _Trial(inputs, result, choice, scaler, on_change)
        found = trial.best([*_groups(*inputs, result, path)])
    return tuple(found[:TOP])


_Group = tuple[PossibleChange, ...]


class _Trial(Struct):
    """Simulates changes of a job on a machine."""

    inputs: tuple[Job, Machine]
    result: Result
    choice: EngineChoice
    scaler: ParameterScaler
    on_change: Callable[[str], object]
    cache: BoundedCache = field(default_factory=lambda: BoundedCache(1 << 28))
    mode: str = ""
    before: Duration = Duration(0)

    def best(self, groups: list[_Group]) -> list[CheckedChange]:
        """Simulate groups, those that can save the most first; return the changes that shorten the step."""
        self.mode, self.before = self.result.mode, self.result.step_time
        if self.result.hops / self.result.folded > MOST_HOPS:
            self.mode = "analytical"
            self.on_change(f"the step in mode {self.mode}")
            self.before = self._timed(()).step_time
        found: list[CheckedChange] = []
        waiting: list[tuple[int, str, _Group]] = []
        for group in groups:
            heappush(waiting, (-max(one.saves for one in group), group[0].what, group))
        while waiting:
            saves, _, group = heappop(waiting)
            if len(found) >= TOP and self.before + saves >= found[TOP - 1].step_time:
                break
            try:
                checked = self._check(group)
            except RapidDesError:
                continue  # a value that a file does not allow, or a job that no longer fits
            saved = int(self.before) - int(checked.step_time)
            if saved > 0 and len(group) == 1:
                found = sorted([*found, checked], key=lambda one: int(one.step_time))
            for half in (group[: len(group) // 2], group[len(group) // 2 :]) if len(group) > 1 else ():
                heappush(waiting, (-saved, half[0].what, half))
        return found

    def _check(self, group: _Group) -> CheckedChange:
        """Simulate a candidate, or several at once."""
        first, mode = group[0], self.mode if self.mode != self.result.mode else ""
        self.on_change(" and ".join(one.what for one in group))
        if first.free:
            assert self.result.run is not None, "only runs of all ranks have candidates of free messages"
            program = with_free_messages(
                self.result.run.lowered, _streams(self.result.run, self.result)[first.free]
            )
            step = Duration(execute(program, self.choice).records.makespan)
            return CheckedChange(first.what, step, before=self.before)
        faster = ((each, _FASTER[each.kind]) for one in group for each in one.parameters)
        changed = self._timed((*first.settings, *self.scaler.together(faster)))
        return CheckedChange(first.what, changed.step_time, changed.bound, self.before, mode)

    def _timed(self, settings: Settings) -> Result:
        job, machine = Point(*self.inputs, settings).resolved(self.cache)
        return timed(job, machine, mode=self.mode, engine=self.choice, allow_oom=True, cache=self.cache)


def _groups(job: Job, machine: Machine, result: Result, path: CriticalPath) -> Iterator[_Group]:
    """Yield candidates; several at once are those that rarely matter."""
    every, computes = grouped_by_library(parameters_of(job, machine)), _computing(result, path)
    talks = _messages_time(result, path)
    for what, names, time in (
        ("tensor cores twice as fast", ("device.tensor_peak",), computes["tensor"]),
        ("vector units twice as fast", ("device.vector_peak",), computes["vector"]),
        ("memory bandwidth twice as high", ("device.hbm.bandwidth",), computes["hbm"]),
        (
            "kernel launches and the host twice as fast",
            ("device.launch", "job.host"),
            computes["launch"] + path.by_cause.get(HOST, 0) + int(result.breakdown.get(HOST, 0)),
        ),
        *((what, names, talks) for what, names in _links(machine)),
    ):
        yield from _faster(what, names, every, time // 2)
    of_libraries = "machine.collectives."
    rarely = tuple(
        one
        for what, name in (
            ("twice the rates of the communication library", of_libraries),
            ("half the fixed times of the communication library", of_libraries),
            ("half the latency of all links", "machine.fabric."),
        )
        for group in _faster(what, (name,), every, talks // 2)
        for one in group
    )
    if rarely:
        yield rarely
    yield from ((one,) for one in _of_job(job, path))
    yield from ((one,) for one in _free_messages(result, path, talks))


def _faster(what: str, names: tuple[str, ...], every: list[Parameter], saves: int) -> Iterator[_Group]:
    """Yield the candidate that makes parameters with some names twice as fast, if there are any."""
    kind = "time" if what.startswith(("half", "kernel")) else "rate"
    parts = tuple(one for one in every if one.name.startswith(names) and one.kind == kind)
    if parts:
        yield (PossibleChange(what, saves, parts),)


def _links(machine: Machine) -> Iterator[tuple[str, tuple[str, ...]]]:
    dimensions = machine.spec.fabric if isinstance(machine.spec.fabric, tuple | list) else ()
    for number, dimension in enumerate(dimensions):
        name = getattr(dimension, "name", None) or f"dimension {number}"
        yield f"links of {name} twice as fast", (f"machine.fabric.{number}.",)


def _computing(result: Result, path: CriticalPath) -> Mapping[str, int]:
    """Return the picoseconds of the path's kernels by what bounds them; launches are part of every kernel.

    The critical rank's kernels, which are known inside blocks too, stand for those of the path.
    """
    found = dict.fromkeys(("tensor", "vector", "hbm", "launch"), 0)
    computes = path.by_cause.get(COMPUTE, 0)
    if result.basis is None or result.basis.device is None or not result.priced:
        return dict.fromkeys(found, computes)
    launch, whole = result.basis.device.launch_overhead, max(sum(result.computed.values()), 1)
    alike: dict[str, list[tuple[int, str]]] = {}
    for kernel in result.priced:
        alike.setdefault(kernel.name, []).append((kernel.duration, kernel.bound))
    for name, kernels in alike.items():
        share = computes * result.computed.get(name, 0) // whole / max(sum(time for time, _ in kernels), 1)
        for time, bound in kernels:
            kind = "launch" if bound in ("latency", "host") else bound if bound in found else "tensor"
            found[kind] += round(share * time)
            found["launch"] += round(share * min(launch, time)) if kind != "launch" else 0
    return found


def _of_job(job: Job, path: CriticalPath) -> Iterator[PossibleChange]:
    training = job.spec.training
    if training is None or training.micro_batch % 2 or job.spec.parallelism.pp == 1:
        return
    settings = (("job.training.micro_batch", str(training.micro_batch // 2)),)
    what = "twice as many micro-batches of half the size"
    yield PossibleChange(what, int(path.step_time), settings=settings)


def _free_messages(result: Result, path: CriticalPath, talks: int) -> Iterator[PossibleChange]:
    """Yield candidates without the cost of one kind of messages, where all of them are in the run."""
    run = result.run
    if run is None or any(fault.timed for fault in run.machine.faults):
        return
    if result.hops / result.folded > MOST_HOPS or run.execution.records.makespan != path.step_time:
        return  # too dear; or decode steps that were not simulated, which would not be free
    for kind in _streams(run, result):
        if kind in path.by_cause and kind not in (COMPUTE, HOST):
            yield PossibleChange(f"{kind} messages free", talks, free=kind)


def _streams(run: Run, result: Result) -> Mapping[str, set[str]]:
    """Return the streams of each kind of messages."""
    kinds = result.stream_kinds or {}
    streams: dict[str, set[str]] = {}
    for name in {name for trace in run.lowered.traces.ranks for name in trace.nodes.streams}:
        streams.setdefault(kinds.get(name, name), set()).add(name)
    return streams


def _messages_time(result: Result, path: CriticalPath) -> int:
    """Return what messages take of the path, in blocks too, and by how much they may slow kernels."""
    outside = sum(time for cause, time in path.by_cause.items() if cause not in (COMPUTE, HOST))
    inside = sum(int(time) for part, time in result.breakdown.items() if part in KIND_ORDER)
    return max(outside, inside if path.has_blocks else 0)
