"""The outer half: the pipeline, context- and data-parallel graph with the blocks' durations.

Sums over a model (of gradient norms) take longer than block modes let them: block modes sum over one rank of
each inner group, a flattened run over all ranks of the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import CollectiveType, NodeKind, RankTrace, TraceSet, one_collective
from rapid_des.errors import UnsupportedByEngine
from rapid_des.frontend.blocks import EXPERT_LINES, OUTER_LINES, Cuts, JobBlocks
from rapid_des.frontend.job import Job
from rapid_des.frontend.parts import PieceKey
from rapid_des.frontend.trace import FinishedProgram, JobTrace
from rapid_des.machine import Machine
from rapid_des.modes.blocks.bounds import Meetings, bound_of, meetings
from rapid_des.modes.blocks.inner import (
    BlockMode,
    BlockRun,
    BlockTimes,
    block_times,
    places_notes,
    representatives,
    times_alone,
)
from rapid_des.modes.blocks.reach import (
    BYTES_A_NODE,
    Outside,
    keeps_routes,
    kept,
    lowered_on,
    run_again,
    sharing,
)
from rapid_des.modes.blocks.replicas import run_first_replica, run_one_of_each
from rapid_des.modes.blocks.steady import WORTH, Repetition, repetition, shortened
from rapid_des.modes.execution import EngineChoice, Run, alone, execute, on_idle_links
from rapid_des.modes.pricing import PricedBlocks
from rapid_des.network.jitter import draws_delays
from rapid_des.network.specs import AUTO
from rapid_des.program.collectives.library import libraries_of
from rapid_des.program.collectives.plans import MOST_MEMBERS
from rapid_des.program.lowering import Lowered, lower
from rapid_des.values import replace

_SUMMED = "model."
"""What names of groups of a whole model begin with."""


def left_out_of_sums(
    done: BlockRun, met: Mapping[str, Meetings], choice: EngineChoice, cache: BoundedCache
) -> tuple[int, int]:
    """Return by how many picoseconds the sums over a model may be shorter, or longer, over all of its ranks.

    Members that come early send early: a sum may be over as the last member comes, and in the run sums of few
    ranks may be shorter than alone.
    """
    first, machine, shorter, longer = done.trace.traces.ranks[0], done.run.machine, 0, 0
    nodes, libraries = first.nodes, done.trace.traces.libraries
    summed = [place for place, name in enumerate(first.groups) if name.startswith(_SUMMED)]
    sums = np.flatnonzero((nodes.kind == NodeKind.COLLECTIVE) & np.isin(nodes.group, summed)).tolist()
    for node, (least, most) in zip(sums, _took(met), strict=True):
        name = first.groups[nodes.group[node]]
        few, models = done.trace.traces.groups[name], done.blocks.job.rows("model")
        if len(few) == models.shape[1]:
            continue
        if models.size > MOST_MEMBERS:  # too many to play at once: they hardly meet
            models = models[[int(name.removeprefix(_SUMMED))]]
        stream, size = nodes.streams[nodes.stream[node]], int(nodes.size[node])

        def lasts(groups: Int64s, stream: str = stream, size: int = size) -> int:
            key = ("sums", machine.network, libraries, groups.tobytes(), groups.shape, stream, size)
            traces = replace(_sums(groups, stream, size), libraries=libraries)
            return cache.get_or_make(key, lambda: _lasts(traces, machine, choice, cache, key[2:]))

        shorter, longer = shorter + most, longer + max(lasts(models) - least, 0)
    return shorter, longer


def _took(met: Mapping[str, Meetings]) -> list[tuple[int, int]]:
    """Return how long each sum over a model took once all had come, in the fastest and the slowest group."""
    lasted = [each.end - each.last for name, each in met.items() if name.startswith(_SUMMED)]
    if not lasted:
        return []
    return list(zip(np.min(lasted, axis=0).tolist(), np.max(lasted, axis=0).tolist(), strict=True))


def _sums(groups: Int64s, stream: str, size: int) -> TraceSet:
    """Return the trace in which each row of ranks sums this many bytes once and does nothing else."""
    nodes = one_collective((0,), CollectiveType.ALL_REDUCE, size, stream=stream).ranks[0].nodes
    members = {str(number): tuple(row) for number, row in enumerate(groups.tolist())}
    ranks = sorted((rank, name) for name, row in members.items() for rank in row)
    return TraceSet(tuple(RankTrace(rank, nodes, groups=(name,)) for rank, name in ranks), members)


def _lasts(
    traces: TraceSet, machine: Machine, choice: EngineChoice, cache: BoundedCache, key: Hashable
) -> int:
    """Return how many picoseconds sums last where nothing else is under way; `key` stands for `traces`."""
    if len(traces.ranks) <= MOST_MEMBERS:

        def make(wanted: Machine) -> Lowered:
            return lower(traces, wanted, cache=cache)

        weight = BYTES_A_NODE * len(traces.ranks)
        lowered = lowered_on(machine, cache, ("sums", key), make, weight)
        return execute(lowered.program, alone(choice), name=lowered.name).records.makespan
    play = on_idle_links(traces, machine, choice, cache)
    return int(next(times_alone(lower(traces, machine, analytic=True, play=play, cache=cache))).sum())


_MOST_WHOLE = 1024
"""Ranks of an outer graph up to which `auto` may choose what must be lowered for every replica."""
_REPEATS = (
    f"above {_MOST_WHOLE:,} ranks outside blocks, auto chooses between rings there: of those one replica "
    "stands for all"
)
_ONE_OF_EACH = (
    f"above {_MOST_WHOLE:,} ranks outside blocks, collectives there have up to a thousandth more bytes, "
    "equal shares for all rails of a node, so that one of its GPUs may stand for others (here for {:g})"
)


def run_blocks(  # noqa: PLR0913 - what blocks are run with, by name
    priced: PricedBlocks,
    machine: Machine,
    mode: BlockMode,
    choice: EngineChoice,
    *,
    strict: bool = False,
    worth: int = WORTH,
    cache: BoundedCache | None = None,
) -> BlockRun:
    """Run a job as blocks and the graph around them; `cache` keeps blocks and templates between runs.

    Items that provably repeat others are not simulated if they are at least `worth`. `bounded` says how far
    the flattened step may be. Raises `UnsupportedByEngine` where faults come and go, and if `strict`
    where they hit members of a block differently.
    """
    began = time.perf_counter()
    cache = BoundedCache() if cache is None else cache
    blocks, slow = priced.blocks, priced.on_slow_gpus
    _require_steady(machine)
    divided = (blocks.job, blocks.inside)  # what groups follow from, whatever their blocks last
    places = cache.get_or_make(("places", divided), lambda: _places(blocks))
    chosen = representatives(machine, places, cache, strict=strict)
    make = partial(sharing, machine, tuple(dict.fromkeys(blocks.run_groups)), places)
    shared = kept(machine, cache, ("sharing", divided), make, 40 * len(machine.fabric))
    kinds, times = block_times(blocks, machine, choice, analytic=mode.inner_analytic, slow=slow, cache=cache)

    def at(place: int) -> BlockRun:
        def run_of(job: Job, *, trail: bool) -> tuple[JobTrace, Run]:
            slowed = {rank: other.of(job) for rank, other in slow.items()}
            mine = blocks if job is blocks.job else blocks.of(job)
            trace = _outer(mine, kinds, times, slowed, cache, place=place)
            trace = replace(trace, notes=(*trace.notes, *priced.notes))
            return _run(trace, machine, mode, choice, cache, trail=trail)

        shortened_run = _repeated(blocks.job, run_of, worth) if choice.fold else None
        (trace, run), repeated = shortened_run or (run_of(blocks.job, trail=False), None)
        kind_of = dict(zip((group[place] for group in blocks.inner_groups), kinds, strict=True))
        followed = [kind_of[rank.rank] for rank in trace.traces.ranks]
        return BlockRun(mode, blocks, slow, trace, run, followed, times, 0.0, shared, repeated)

    runs = [at(place) for place in chosen]
    done = max(runs, key=lambda candidate: candidate.step)
    notes = places_notes(chosen, [run.step for run in runs])
    trace = replace(done.trace, notes=(*done.trace.notes, *notes))
    return replace(done, trace=trace, wall_s=time.perf_counter() - began)


def bounded(done: BlockRun, choice: EngineChoice, cache: BoundedCache | None = None) -> BlockRun:
    """Return a run with the bound of the flattened step, and a note of it."""
    began = time.perf_counter()
    cache, met = BoundedCache() if cache is None else cache, meetings(done.run)
    bound = bound_of(done, met, left_out_of_sums(done, met, choice, cache))
    said = bound.note(done.step)
    trace = replace(done.trace, notes=(*done.trace.notes, *([said] if said else [])))
    return replace(done, trace=trace, bound=bound, wall_s=done.wall_s + time.perf_counter() - began)


def _repeated(
    job: Job, run_of: Callable[..., tuple[JobTrace, Run]], worth: int
) -> tuple[tuple[JobTrace, Run], Repetition] | None:
    """Return the run of a shorter step that stands for the whole, and what repeats of it; None: nothing."""
    for short in shortened(job, worth=worth):
        trace, run = run_of(short.job, trail=True)
        repeats = repetition(short, trace, run)
        if repeats is not None:
            records = replace(run.execution.records, trail=None)
            run = replace(run, execution=replace(run.execution, records=records))
            whole = replace(
                trace,
                job=job,
                tokens=job.tokens,
                model_flops=job.model_flops,
                notes=(*trace.notes, repeats.note),
            )
            return (whole, run), repeats
    return None


def _run(  # noqa: PLR0913 - what a graph is run with
    trace: JobTrace,
    machine: Machine,
    mode: BlockMode,
    choice: EngineChoice,
    cache: BoundedCache,
    *,
    trail: bool,
) -> tuple[JobTrace, Run]:
    """Run an outer graph, its first replica for all where they cannot differ."""
    repeats = _repeats(trace, machine, mode)
    trace = replace(trace, notes=(*trace.notes, *((_REPEATS,) if repeats else ())))
    if choice.fold:
        first = run_first_replica(
            trace, machine, choice, analytic=mode.outer_analytic, repeats=repeats, trail=trail, cache=cache
        )
        if first is not None:
            return first
    if machine.faults and not mode.outer_analytic and keeps_routes(machine):
        return trace, run_again(trace, machine, choice, cache, (repeats, trail))
    play = on_idle_links(trace.traces, machine, choice, cache) if mode.outer_analytic else None
    even = choice.fold and not trail and not mode.outer_analytic and len(trace.traces.ranks) > _MOST_WHOLE
    analytic = mode.outer_analytic
    lowered = lower(
        trace.traces, machine, analytic=analytic, play=play, repeats=repeats, even=even, cache=cache
    )
    if not even:
        return trace, Run(lowered, execute(lowered.program, choice, trail=trail, name=lowered.name), machine)
    trace, run = run_one_of_each(trace, lowered, machine, choice)
    note = _ONE_OF_EACH.format(run.execution.folded)
    return replace(trace, notes=(*trace.notes, note)), run


def _repeats(trace: JobTrace, machine: Machine, mode: BlockMode) -> bool:
    """Return whether `auto` keeps to algorithms that lower one replica, because all would take long."""
    choices = (machine.collectives.choice(kind.name.lower()) for kind in CollectiveType)
    libraries = bool(libraries_of(trace.traces, machine).stated())
    opened = any(choice.algorithm == AUTO if choice else not libraries for choice in choices)
    return opened and not mode.outer_analytic and len(trace.traces.ranks) > _MOST_WHOLE


def _require_steady(machine: Machine) -> None:
    if any(fault.timed for fault in machine.faults):
        raise UnsupportedByEngine(
            f"{machine.path}: a fault comes or goes during the step, blocks are simulated once for all their "
            "repetitions: use --mode flattened"
        )
    if (machine.faults or machine.spec.jitter) and draws_delays(machine.spec.jitter, machine.faults):
        what = "jitter.message_delay draws" if machine.spec.jitter else "losses with timeout draw"
        raise UnsupportedByEngine(
            f"{machine.path}: {what} for every message, blocks are simulated once for all their "
            "repetitions: use --mode flattened"
        )


def _places(blocks: JobBlocks) -> list[Outside]:
    """Return for each place in an inner group the groups outside blocks of the ranks there."""
    return [_lines(blocks, place) for place in zip(*blocks.inner_groups, strict=True)]


def _lines(blocks: JobBlocks, ranks: Sequence[int]) -> Outside:
    """Return the groups outside blocks of the ranks at one place of their inner groups, a table an axis.

    Replicas that infer exchange nothing.
    """
    job = blocks.job
    training = job.spec.phase == "training"
    lines = [axes for axes in OUTER_LINES if training or "dp" not in axes]
    tables = [
        (axes[-1], job.layout.rows(axes))
        for axes in lines
        if not (job.spec.parallelism.passes_blocks and axes == ("cp",))
    ]
    if job.model.has_experts:
        outside = [axes for axes in EXPERT_LINES if blocks.inside.isdisjoint(axes)]
        kinds = [(axes, "dp" if "edp" in axes else "ep") for axes in outside]
        tables += [(kind, job.expert_layout.rows(axes)) for axes, kind in kinds if training or kind == "ep"]
    if training and len(job.copies[0]) > 1:
        tables += [("dp", job.rows(group)) for group in sorted(job.replica_groups)]
    is_here = np.zeros(job.gpus, np.bool_)
    is_here[np.array(ranks)] = True
    return [(kind, table[is_here[table[:, 0]]]) for kind, table in tables if table.shape[1] > 1]


def _pace(blocks: JobBlocks) -> int:
    """Return how long all blocks compute at a pace: the larger the slower."""
    tables = [block.table for block in blocks.blocks.values()]
    return sum(int(table.duration[table.kind == NodeKind.COMPUTE].sum()) for table in tables)


def _outer(  # noqa: PLR0913 - what stands in it, by name
    blocks: JobBlocks,
    kinds: Sequence[bytes],
    times: Mapping[tuple[bytes, PieceKey], BlockTimes],
    slow: Mapping[int, JobBlocks],
    cache: BoundedCache,
    *,
    place: int,
) -> JobTrace:
    """Return the outer graph; inner groups of one stage and one kind share a program.

    What is outside the blocks (the optimizer) runs at the pace of the slowest member.
    """
    programs: dict[tuple[int, bytes], FinishedProgram] = {}
    for index, kind in enumerate(kinds):
        stage = blocks.stage(index)
        if (stage, kind) not in programs:
            durations = {key: times[kind, key].cuts for key in blocks.keys(stage)}
            paced = [slow[rank] for rank in blocks.inner_groups[index] if rank in slow]
            slowest = max([blocks, *paced], key=_pace) if paced else blocks
            programs[stage, kind] = _outer_program(slowest, stage, durations, cache)
    by_stage: dict[int, FinishedProgram] = {}
    for (stage, _), program in programs.items():
        by_stage.setdefault(stage, program)
    trace = blocks.assembled([by_stage[stage] for stage in range(blocks.job.stages)], place)
    ranks = tuple(
        replace(rank, nodes=programs[blocks.stage(index), kinds[index]].table)
        for index, rank in enumerate(trace.traces.ranks)
    )
    return replace(trace, traces=replace(trace.traces, ranks=ranks))


def _outer_program(
    blocks: JobBlocks, stage: int, durations: Mapping[PieceKey, Cuts], cache: BoundedCache
) -> FinishedProgram:
    """Return a stage's program, the same object for the same blocks and durations."""

    def make() -> FinishedProgram:
        return blocks.outer_program(stage, durations)

    key = ("outer", blocks, stage, tuple(durations.items()))
    return cache.get_or_make(key, make, weight=lambda made: BYTES_A_NODE * len(made.table))
