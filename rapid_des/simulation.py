"""The library's interface: functions from a job or a trace set, and a machine, to a result.

    price ──► lower ──► execute ──► result
    modes.pricing  program.lowering  modes.execution  report.result

A job is priced first: with `price`, or with `price_blocks` in modes that simulate blocks separately. Traces
that were read from files have durations. From `lower` on jobs and traces take the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import (
    DeadlockError,
    FabricCutError,
    InputError,
    TraceError,
    UnsupportedByEngine,
)
from rapid_des.frontend import Job, JobMemory, JobTrace, check_memory, memory
from rapid_des.frontend.build import in_passes
from rapid_des.machine import Machine
from rapid_des.modes.execution import EngineChoice, Execution, Run, TooManyHopsError, execute
from rapid_des.modes.mode_bound import ModeBound
from rapid_des.modes.pricing import pace, price, price_blocks
from rapid_des.network.faults import drawn_names
from rapid_des.program.lowering import Lowered, lower
from rapid_des.report.notes import drawn_line, jitter_lines, late_lines, unmarked_line
from rapid_des.report.result import Result, result_of
from rapid_des.values import replace

if TYPE_CHECKING:
    from rapid_des.chakra import ReadOptions, TraceSet
    from rapid_des.program.faults.slow_gpus import Pace

FLATTENED = "flattened"
MODES = (FLATTENED, "hierarchical", "hybrid", "analytical")
FINEST = "finest"
"""The mode of `plan`: flattened where that takes seconds, else hierarchical."""
AUTO = EngineChoice()
_MOST_HOPS, _MOST_RANKS = 100_000_000, 256
"""The numbers of hops and of ranks up to which a flattened run takes seconds."""


def load_trace(reference: str | Path, options: ReadOptions | None = None) -> TraceSet:
    """Read the Chakra trace set that a prefix, a folder, a file or a preset's name refers to.

    Durations are picoseconds, sizes bytes; `options` decide what the files do not state. A `TraceError` names
    the file and the place, or states that no rank has any work.

    >>> [len(rank.nodes) for rank in load_trace("workloads/traces/two_stages").ranks]
    [4, 4]
    """
    from rapid_des.chakra.reader import read_set  # protobuf is for those who read files

    traces = read_set(reference, options)
    if not any(rank.nodes.has_work for rank in traces.ranks):
        nodes = sum(len(rank.nodes) for rank in traces.ranks)
        raise TraceError(
            f"{reference}: nothing to replay: {nodes} nodes on {len(traces.ranks)} ranks, and none computes "
            "for any time, communicates or moves memory (`rapid-des trace show` lists them)"
        )
    return traces


def replay(
    traces: TraceSet,
    machine: Machine,
    *,
    engine: str | EngineChoice = AUTO,
    trail: bool = False,
    cache: BoundedCache | None = None,
) -> Result:
    """Replay traces on a machine.

    `engine` names an engine; `trail` records every hop, for timelines; for `cache` see `simulate`.
    Raises `DeadlockError` if the replay cannot finish, `FabricCutError` if a message has no route left.

    >>> from rapid_des.machine import load_machine
    >>> result = replay(load_trace("workloads/traces/two_stages"), load_machine("dgx_a100"))
    >>> result.step_time, result.critical_rank
    (Duration('633.6 us'), 0)
    """
    require_kind(machine, Machine, "load_machine")

    def run(machine: Machine) -> Result:
        paced, stated = None, traces
        if machine.faults:
            from rapid_des.program.faults.slow_gpus import pace_of, stretched

            paced, stated = pace_of(traces, machine), stretched(traces, machine)
        return result_of(
            run_traces(stated, machine, EngineChoice.of(engine), trail=trail, cache=cache, pace=paced)
        )

    return _with_notes(_with_lasting_faults(machine, run), machine)


def simulate(  # noqa: PLR0913 - options by name
    job: Job,
    machine: Machine,
    *,
    mode: str = FLATTENED,
    engine: str | EngineChoice = AUTO,
    trail: bool = False,
    strict: bool = False,
    allow_oom: bool = False,
    cache: BoundedCache | None = None,
) -> Result:
    """Predict one step of a job (or one batch of requests) on a machine.

    Simulations with one `cache` share prices of operators, blocks on equal machines, and templates of
    collectives. Results do not depend on it.
    Raises `InfeasibleJobError` if the job does not fit into the GPUs' memory (with `allow_oom` the result
    warns instead), `UnsupportedByEngine` if the mode (one of `MODES`, or `FINEST`) does not model
    what the job asks for; with `strict` also where the result would contain a note with a bound.

    >>> from rapid_des.frontend import load_job
    >>> from rapid_des.machine import load_machine
    >>> result = simulate(load_job("llama2_7b_train"), load_machine("dgx_a100"), mode="analytical")
    >>> result.bound, sum(result.breakdown.values()) == result.step_time
    ('compute', True)
    """
    require_kind(job, Job, "load_job")
    require_kind(machine, Machine, "load_machine")
    if mode not in (*MODES, FINEST):
        raise InputError(f"mode {mode!r} is not one of {', '.join(MODES)}")
    job, needed = _fitting(job, machine, cache, allow_oom=allow_oom)
    options = _Options(mode, EngineChoice.of(engine), needed, trail, strict, cache)
    result = _with_notes(_simulated_with_faults(job, machine, options), machine)
    congestion = machine.switching.congestion
    if congestion is not None and congestion.dcqcn is not None:
        without = _simulated_with_faults(job, unmarked(machine), replace(options, trail=False)).step_time
        result = replace(result, notes=(*result.notes, unmarked_line(result.step_time, without)))
    if machine.spec.jitter is None:
        return result
    even = _simulated_with_faults(job, machine.even, replace(options, trail=False))
    lines = jitter_lines(machine, job.gpus, result.step_time, even.step_time)
    return replace(result, notes=(*result.notes, *lines))


def _fitting(
    job: Job, machine: Machine, cache: BoundedCache | None, *, allow_oom: bool
) -> tuple[Job, JobMemory]:
    """Return a job in passes that fit into the GPUs' memory, if it infers, and the memory that it needs."""
    capacity = int(machine.device.spec.hbm.capacity)
    remembered = BoundedCache() if cache is None else cache
    fitting = job
    if job.spec.inference is not None and not allow_oom:
        fitting = remembered.get_or_make(("passes", job, capacity), lambda: in_passes(job, capacity))
    key = ("memory", fitting, None if allow_oom else capacity)
    return fitting, remembered.get_or_make(
        key, lambda: memory(fitting) if allow_oom else check_memory(fitting, capacity)
    )


def step_time(
    job: Job,
    machine: Machine,
    *,
    mode: str = FLATTENED,
    engine: str | EngineChoice = AUTO,
    cache: BoundedCache | None = None,
) -> int:
    """Return the picoseconds of a step as `simulate` does with `allow_oom`; no other figure is computed."""
    options = _Options(mode, EngineChoice.of(engine), None, trail=False, strict=False, cache=cache)
    return int(_simulated_with_faults(job, machine, options).step_time)


def timed(  # noqa: PLR0913 - options by name
    job: Job,
    machine: Machine,
    *,
    mode: str = FLATTENED,
    engine: str | EngineChoice = AUTO,
    strict: bool = False,
    allow_oom: bool = False,
    cache: BoundedCache | None = None,
) -> Result:
    """Return what `simulate` does, without figures of the job, bounds of a mode and notes on the machine.

    Studies of many runs compare their times alone.
    """
    job, _ = _fitting(job, machine, cache, allow_oom=allow_oom)
    options = _Options(mode, EngineChoice.of(engine), None, trail=False, strict=strict, cache=cache)
    return _simulated_with_faults(job, machine, options)


def require_kind(value: object, kind: type, maker: str) -> None:
    """Raise `InputError` if a value is not of a kind; the message names the function that makes one.

    >>> require_kind("dgx_a100", dict, "load_machine")
    Traceback (most recent call last):
    rapid_des.errors.InputError: 'dgx_a100' is no dict: rapid_des.load_machine makes one
    """
    if not isinstance(value, kind):
        shown = repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
        raise InputError(f"{shown} is no {kind.__name__}: rapid_des.{maker} makes one")


def unmarked(machine: Machine) -> Machine:
    """Return the machine without marking, and so without rate cuts."""
    assert machine.switching.congestion is not None, "the caller checks this"
    congestion = structs.replace(machine.switching.congestion, dcqcn=None)
    switching = structs.replace(machine.switching, congestion=congestion)
    return replace(machine, spec=structs.replace(machine.spec, switching=switching))


class _Options(Struct, frozen=True):
    """The options of a job's simulation."""

    mode: str
    """One of `MODES`, or `FINEST`."""
    choice: EngineChoice
    """The engine and its limits."""
    memory: JobMemory | None
    """The memory that the job needs; None: nothing is wanted but times, and no bound of the mode's."""
    trail: bool
    """Whether every hop is recorded."""
    strict: bool
    """Whether a job is refused that the mode models with a bound only."""
    cache: BoundedCache | None
    """The cache that simulations share, if any."""


def _with_lasting_faults(machine: Machine, run: Callable[[Machine], Result]) -> Result:
    """Return a run's result; a fault from 0 s on that outlasts the run is replaced by a constant fault.

    A constant fault is part of the prices and routes, so the run needs no timetable for it.
    """
    lasts, first_end = machine.outlasted(0)
    while lasts is not machine:
        try:
            result = run(lasts)
        except (DeadlockError, FabricCutError):
            break  # the run might have ended if the faults had ended too
        if result.step_time <= first_end:
            return result
        lasts, first_end = machine.outlasted(int(result.step_time))
    return run(machine)


def _simulated_with_faults(job: Job, machine: Machine, options: _Options) -> Result:
    return _with_lasting_faults(machine, lambda lasts: _simulated(job, lasts, options))


def _simulated(job: Job, machine: Machine, options: _Options) -> Result:
    if options.mode == FLATTENED:
        return _flattened(job, machine, options)
    if job.spec.parallelism.placement is not None:
        problem = f"mode {options.mode} has ranks stand as they come; take mode {FLATTENED}"
        raise UnsupportedByEngine(f"{job.file}: parallelism.placement: {problem}")
    if options.mode == FINEST:
        return _finest(job, machine, options)
    from rapid_des.modes import blocks as modes

    cache = options.cache
    blocks = modes.run_blocks(
        price_blocks(job, machine, cache=cache),
        machine,
        modes.BLOCK_MODES[options.mode],
        options.choice,
        strict=options.strict,
        cache=cache,
    )
    if options.memory is not None or options.strict or modes.may_pay_whole(blocks):
        blocks = modes.bounded(blocks, options.choice, cache)
    if not modes.pays_whole(blocks, strict=options.strict):
        if options.strict:
            modes.require_own_links(blocks)
        return result_of(blocks.run, trace=blocks.trace, memory=options.memory, blocks=blocks)
    whole = _flattened(job, machine, options)
    step = int(whole.step_time)
    return replace(
        whole,
        mode=options.mode,
        wall_s=whole.wall_s + blocks.wall_s,
        mode_bound=ModeBound(step, step, None, "all was simulated at once"),
        notes=(modes.whole_note(blocks), *whole.notes),
    )


def _finest(job: Job, machine: Machine, options: _Options) -> Result:
    """Return the flattened result where that takes seconds, else the hierarchical one."""
    if job.gpus <= _MOST_RANKS:
        try:
            choice = replace(options.choice, most_hops=_MOST_HOPS)
            return _flattened(job, machine, replace(options, choice=choice))
        except TooManyHopsError:
            pass
    return _simulated(job, machine, replace(options, mode="hierarchical"))


def _flattened(job: Job, machine: Machine, options: _Options) -> Result:
    cache = options.cache
    trace = price(job, machine, cache=cache)
    if job.spec.parallelism.placement is not None:
        return _placed(job, trace, machine, options)
    paced = pace(job, machine, cache=cache)
    run = run_traces(trace.traces, machine, options.choice, trail=options.trail, cache=cache, pace=paced)
    return result_of(run, trace=trace, memory=options.memory)


def _placed(job: Job, trace: JobTrace, machine: Machine, options: _Options) -> Result:
    """Return the shortest step of the placements that a job states or that its traffic asks for."""
    from rapid_des.modes.placement import placed, placements

    results = []
    for gpus in placements(job, trace, machine):
        moved = placed(trace, gpus)
        run = run_traces(moved.traces, machine, options.choice, trail=options.trail, cache=options.cache)
        results.append(result_of(run, trace=moved, memory=options.memory))
    return min(results, key=lambda result: int(result.step_time))


def _with_notes(result: Result, machine: Machine) -> Result:
    """Return the result with notes on the machine's `random` faults, and on faults after its end."""
    if not machine.faults:
        return result
    drawn = drawn_names(machine.healthy, machine.faults, machine.spec.gpus_per_node)
    notes = [drawn_line(drawn)] if drawn else []
    return replace(result, notes=(*result.notes, *notes, *late_lines(machine.faults, result.step_time)))


def compare(job: Job, machine: Machine, *, engine: str | EngineChoice = AUTO) -> dict[str, Result | str]:
    """Return every mode's result for a job by the mode's name, or the reason why the mode refuses it.

    >>> from rapid_des.frontend import load_job
    >>> from rapid_des.machine import load_machine
    >>> results = compare(load_job("llama2_7b_train"), load_machine("dgx_a100"))
    >>> list(results), results["flattened"].step_time >= results["analytical"].step_time
    (['flattened', 'hierarchical', 'hybrid', 'analytical'], True)
    """
    return dict(each_mode(job, machine, engine=engine))


def each_mode(
    job: Job, machine: Machine, *, engine: str | EngineChoice
) -> Iterator[tuple[str, Result | str]]:
    """Yield every mode with its result, or with the reason why it refuses the job."""
    cache = BoundedCache()
    for mode in MODES:
        try:
            yield mode, simulate(job, machine, mode=mode, engine=engine, cache=cache)
        except UnsupportedByEngine as refusal:
            yield mode, str(refusal)


def run_traces(  # noqa: PLR0913 - options by name
    traces: TraceSet,
    machine: Machine,
    choice: EngineChoice,
    *,
    trail: bool = False,
    cache: BoundedCache | None = None,
    pace: Pace | None = None,
) -> Run:
    """Lower traces to a program and execute it; `trail` records every hop, `cache` keeps templates.

    `pace` prices the work of GPUs that faults slow for a while; without it stated durations are stretched.
    If ranks issue a group's collectives in different orders on unordered streams, the collectives are matched
    by kind and size. Raises `DeadlockError` if the replay cannot finish.
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
