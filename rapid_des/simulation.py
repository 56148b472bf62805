"""The library's front: a job or a trace set and a machine in, a result out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rapid_des.errors import DeadlockError, InputError, TraceError, UnsupportedByEngine
from rapid_des.frontend import Job, JobTrace, check_memory
from rapid_des.frontend.build import check_size
from rapid_des.machine import Machine
from rapid_des.modes.blocks import RUNGS, run_hierarchical
from rapid_des.modes.execution import EngineChoice, Execution, execute
from rapid_des.modes.timed_faults import execute_on
from rapid_des.program.faults.gpus import stretched
from rapid_des.program.faults.pricing import blocks_of, trace_of
from rapid_des.program.lowering import Lowered, lower
from rapid_des.program.program import Program
from rapid_des.report.blocks import inside_times, with_inside
from rapid_des.report.breakdown import breakdown, busiest, critical_position, finish_times, operator_times
from rapid_des.report.fabric_picture import draw, picture
from rapid_des.report.figures import JobFigures, RequestTimes, job_figures, request_times, until_last_token
from rapid_des.report.links import utilisation, write_links
from rapid_des.report.timeline import write_timeline
from rapid_des.units import Duration, seconds

if TYPE_CHECKING:
    from rapid_des.chakra import ReadOptions, TraceSet

MODES = ("flattened", *RUNGS)
AUTO = EngineChoice()


@dataclass(frozen=True)
class Run:
    """What a flattened simulation leaves behind for timelines, link tables and further questions."""

    lowered: Lowered = field(repr=False)
    execution: Execution = field(repr=False)
    machine: Machine = field(repr=False)


@dataclass(frozen=True)
class Result:
    """A predicted step: how long, and where the time of its critical rank goes.

    Attributes:
        step_time: until the last rank finished.
        breakdown: compute, exposed communication by kind, bubble and idle; adds up to `step_time`.
        critical_rank: the rank that finishes last, the lowest of equals.
        finish: when each rank finished.
        busiest: the compute operators that take most of the critical rank's time.
        figures: what the step means for the job, if there is one.
    """

    step_time: Duration
    breakdown: Mapping[str, Duration]
    critical_rank: int
    finish: Mapping[int, Duration]
    busiest: Mapping[str, Duration]
    mode: str
    engine: str
    switching: str
    wall_s: float
    hops: int
    folded: float = 1.0
    """How many ranks each simulated rank stood for (symmetry folding, exact)."""
    figures: JobFigures | None = None
    notes: tuple[str, ...] = ()
    run: Run | None = field(default=None, repr=False)

    @property
    def bound(self) -> str:
        """The largest part of the breakdown."""
        return max(self.breakdown, key=lambda part: self.breakdown[part])

    def write_timeline(self, path: str | Path) -> None:
        """Write a timeline for ui.perfetto.dev; links and messages are on it if run with `trail=True`."""
        run = self._run("timeline")
        write_timeline(Path(path), run.lowered, run.execution.records, run.machine.fabric)

    def write_links(self, path: str | Path) -> None:
        """Write what every link carried, by kind of traffic: Parquet if so named, else CSV."""
        run = self._run("link table")
        write_links(Path(path), run.lowered.program, run.execution.records, run.machine.fabric)

    def draw_links(self, path: str | Path) -> None:
        """Draw the fabric with the links' utilisation as colour: PNG, SVG or PDF."""
        run = self._run("link table")
        busy = utilisation(run.execution.records)
        draw(picture(run.machine, busy), Path(path))

    def _run(self, what: str) -> Run:
        if self.run is None:
            raise UnsupportedByEngine(f"mode {self.mode} has no {what}; use mode flattened")
        return self.run

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        plain: dict[str, Any] = {
            "step_time_s": seconds(self.step_time),
            "step_time_ps": int(self.step_time),
            "breakdown_s": {part: seconds(spent) for part, spent in self.breakdown.items()},
            "bound": self.bound,
            "critical_rank": self.critical_rank,
            "busiest_operators_s": {name: seconds(spent) for name, spent in self.busiest.items()},
            "mode": self.mode,
            "engine": self.engine,
            "switching": self.switching,
            "hops": self.hops,
            "folded": self.folded,
            "simulation_wall_s": round(self.wall_s, 6),
            "notes": list(self.notes),
        }
        return plain | (self.figures.as_json() if self.figures else {})


def load_trace(reference: str | Path, options: ReadOptions | None = None) -> TraceSet:
    """Read the Chakra trace set that a prefix, a folder or a file stands for."""
    from rapid_des.chakra.reader import read_set  # protobuf is for those who read files

    return read_set(reference, options)


def replay(
    traces: TraceSet, machine: Machine, *, engine: str | EngineChoice = AUTO, trail: bool = False
) -> Result:
    """Replay traces on a machine.

    `engine` names an engine; `trail` records every hop, for timelines.
    Raises `DeadlockError` if the replay can not finish.
    """
    paced = stretched(traces, machine)
    lowered, execution = _executed(paced, machine, engine=engine, trail=trail)
    return _result(Run(lowered, execution, machine), notes=lowered.traces.notes)


def simulate(
    job: Job,
    machine: Machine,
    *,
    mode: str = "flattened",
    engine: str | EngineChoice = AUTO,
    trail: bool = False,
) -> Result:
    """Predict one step of a job (or one batch of requests) on a machine.

    Raises `InfeasibleJobError` if it does not fit into the GPUs' memory.
    """
    if mode not in MODES:
        raise InputError(f"mode {mode!r} is not one of {', '.join(MODES)}")
    device = machine.device
    memory = check_memory(job, int(device.spec.hbm.capacity))
    if mode == "flattened":
        trace = trace_of(job, machine)
        lowered, execution = _executed(trace.traces, machine, engine=engine, trail=trail)
        requests = _requests(trace, lowered, execution)
        run = Run(lowered, execution, machine)
        result = _result(run, kinds=trace.stream_kinds, requests=requests, notes=trace.notes)
    else:
        result, requests = _hierarchical(job, machine, mode, _choice(engine))
    figures = job_figures(job, device, result.step_time, memory=memory, requests=requests)
    return replace(result, figures=figures)


def compare(job: Job, machine: Machine, *, engine: str | EngineChoice = AUTO) -> dict[str, Result | str]:
    """Return every mode's result for a job, or why the mode refuses it."""
    results: dict[str, Result | str] = {}
    for mode in MODES:
        try:
            results[mode] = simulate(job, machine, mode=mode, engine=engine)
        except UnsupportedByEngine as refusal:
            results[mode] = str(refusal)
    return results


def _executed(
    traces: TraceSet, machine: Machine, *, engine: str | EngineChoice, trail: bool
) -> tuple[Lowered, Execution]:
    lowered = lower(traces, machine)
    choice = _choice(engine)
    try:
        return lowered, _played(lowered, machine, choice, trail=trail)
    except TraceError as disagreement:
        if not traces.unordered_streams:
            raise
        return _overlapped(traces, machine, choice, trail=trail, disagreement=disagreement)


def _played(lowered: Lowered, machine: Machine, choice: EngineChoice, *, trail: bool) -> Execution:
    def run(program: Program) -> Execution:
        return execute(program, choice, trail=trail, name=lowered.name)

    return execute_on(lowered, machine, run)


def _choice(engine: str | EngineChoice) -> EngineChoice:
    return EngineChoice(engine) if isinstance(engine, str) else engine


def _requests(trace: JobTrace, lowered: Lowered, execution: Execution) -> RequestTimes | None:
    serves = trace.job.spec.phase == "inference"
    return request_times(trace, lowered, execution.records) if serves else None


def _hierarchical(
    job: Job, machine: Machine, mode: str, choice: EngineChoice
) -> tuple[Result, RequestTimes | None]:
    check_size(job, machine.fabric.gpus)
    began = time.perf_counter()
    rung = RUNGS[mode]
    taken, slow = blocks_of(job, machine)
    done = run_hierarchical(taken, machine, rung, choice, slow=slow)
    lowered, records = done.lowered, done.execution.records
    position = critical_position(lowered, records)
    requests = _requests(done.trace, lowered, done.execution)

    def parts(end: int | None) -> dict[str, int]:
        outside = breakdown(lowered, records, position, kinds=done.trace.stream_kinds, end=end)
        return with_inside(done, position, outside, end=end)

    step_time, spent = until_last_token(parts, requests, records.makespan)
    finish = finish_times(lowered, records).tolist()
    ranks = [binding.rank for binding in lowered.program.bindings]
    result = Result(
        step_time=Duration(step_time),
        breakdown={part: Duration(time) for part, time in spent.items()},
        critical_rank=ranks[position],
        finish={rank: Duration(end) for rank, end in zip(ranks, finish, strict=True)},
        busiest={name: Duration(time) for name, time in busiest(inside_times(done, position)).items()},
        mode=mode,
        engine=done.execution.engine,
        switching=machine.switching.mode,
        wall_s=time.perf_counter() - began,
        hops=done.simulated_hops,
        folded=done.execution.folded,
        notes=(f"mode {mode}: {rung.leaves_out}", *done.trace.notes),
    )
    return result, requests


def _overlapped(
    traces: TraceSet, machine: Machine, choice: EngineChoice, *, trail: bool, disagreement: TraceError
) -> tuple[Lowered, Execution]:
    """Run traces whose ranks reach a group's collectives in different orders: matched by kind and size."""
    note = f"{disagreement}; collectives of unordered streams were matched by kind and size and may overlap"
    lowered = lower(replace(traces, notes=(*traces.notes, note)), machine, overlap=True)
    try:
        return lowered, _played(lowered, machine, choice, trail=trail)
    except DeadlockError:
        raise disagreement from None


def _result(
    run: Run,
    *,
    kinds: Mapping[str, str] | None = None,
    requests: RequestTimes | None = None,
    notes: tuple[str, ...] = (),
) -> Result:
    lowered, records = run.lowered, run.execution.records
    position = critical_position(lowered, records)
    finish = finish_times(lowered, records).tolist()
    ranks = [binding.rank for binding in lowered.program.bindings]

    def parts(end: int | None) -> dict[str, int]:
        return breakdown(lowered, records, position, kinds=kinds, end=end)

    step_time, spent = until_last_token(parts, requests, records.makespan)
    return Result(
        step_time=Duration(step_time),
        breakdown={part: Duration(time) for part, time in spent.items()},
        critical_rank=ranks[position],
        finish={rank: Duration(end) for rank, end in zip(ranks, finish, strict=True)},
        busiest={
            name: Duration(time) for name, time in busiest(operator_times(lowered, records, position)).items()
        },
        mode="flattened",
        engine=run.execution.engine,
        switching=run.machine.switching.mode,
        wall_s=run.execution.wall_s,
        hops=records.hops,
        folded=run.execution.folded,
        notes=notes,
        run=run,
    )
