"""One replica of an outer graph for all of them, and one rank for its stage, where they can not differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from math import prod

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import UnsupportedByEngine
from rapid_des.frontend.groups import PARTS, Layout
from rapid_des.frontend.trace import JobTrace
from rapid_des.machine import Machine
from rapid_des.modes.execution import EngineChoice, Execution, Run, execute
from rapid_des.program.lasting import Lasting
from rapid_des.program.lowering import lower
from rapid_des.program.replicas import Mates, Replicas
from rapid_des.program.routes import signatures


def run_first_replica(  # noqa: PLR0913 - what the graph is lowered with, by name
    trace: JobTrace,
    machine: Machine,
    choice: EngineChoice,
    *,
    analytic: bool = False,
    repeats: bool = False,
    trail: bool = False,
    cache: BoundedCache,
) -> tuple[JobTrace, Run] | None:
    """Run the first replica of an outer graph for all; None if they might differ.

    Its records count the hops and bytes of all replicas. With `analytic` nothing takes a link.
    """
    switching = machine.switching
    if trace.job.model.has_experts and trace.job.members("ep") > 1:
        # experts are spread over some replicas and not over others
        return _run_mates(trace, machine, choice, trail=trail, cache=cache) if analytic else None
    replicas = _replicas(trace.job.layout)
    kinds = {group.partition(".")[0] for group in trace.traces.groups}
    if any(PARTS[kind][0] != "cp" for kind in kinds & PARTS.keys()):
        return None  # some replicas share a state, or part of it, and others another
    shares_links = (
        switching.mode == "fluid" or switching.congestion is not None or switching.spray is not None
    )
    if replicas.count < 3 or machine.faults or machine.slowed or shares_links:
        return None
    traces = trace.traces
    tables = {rank.rank: rank.nodes for rank in traces.ranks}
    if any(tables[int(replicas.image[rank])] is not table for rank, table in tables.items()):
        return None
    digit = trace.job.layout.coordinates("dp")[list(tables)]
    first = _some_of(trace, np.flatnonzero(digit == digit[0]).tolist())
    try:
        lowered = lower(
            first.traces, machine, analytic=analytic, replicas=replicas, repeats=repeats, cache=cache
        )
    except UnsupportedByEngine:
        return None
    execution = execute(lowered.program, choice, trail=trail, ties=True, name=lowered.name)
    if execution.records.ties:
        return None
    return first, Run(lowered, _of_all(execution, replicas.count), machine)


def _some_of(trace: JobTrace, places: Sequence[int]) -> JobTrace:
    """Return the trace of some ranks of an outer graph."""
    ranks = tuple(trace.traces.ranks[place] for place in places)
    stages = tuple(trace.stage_of_rank[place] for place in places)
    return replace(trace, traces=replace(trace.traces, ranks=ranks), stage_of_rank=stages)


def _of_all(execution: Execution, count: int) -> Execution:
    """Return what all replicas see of a run of the first."""
    records = execution.records
    records = replace(
        records, hops=records.hops * count, sent=records.sent * count, received=records.received * count
    )
    return replace(execution, records=records, folded=execution.folded * count)


def _run_mates(
    trace: JobTrace, machine: Machine, choice: EngineChoice, *, trail: bool, cache: BoundedCache
) -> tuple[JobTrace, Run] | None:
    """Run one rank of each stage for all of its stage; None if some might live otherwise.

    That needs that nothing takes a link, that all ranks of a stage run one program, and that what the groups
    of a kind in a stage do, and its messages, last as long: then members reach everything together.
    """
    stages = np.array(trace.stage_of_rank)
    firsts = [int(np.flatnonzero(stages == stage)[0]) for stage in range(trace.job.stages)]
    ranks = trace.traces.ranks
    if machine.faults or any(rank.nodes is not ranks[firsts[at]].nodes for rank, at in zip(ranks, stages)):  # noqa: B905
        return None
    numbers = np.array([rank.rank for rank in ranks], np.int64)
    lines = [numbers[stages == stage] for stage in range(trace.job.stages)]
    if len({len(line) for line in lines}) > 1 or not _groups_alike(trace, machine, stages, numbers):
        return None
    if not _messages_alike(trace, machine, stages):
        return None
    image = np.arange(trace.job.gpus)
    for line in lines:
        image[line] = np.roll(line, -1)
    mates = Mates(len(lines[0]), image)
    first = _some_of(trace, firsts)
    try:
        lowered = lower(first.traces, machine, analytic=True, replicas=mates, cache=cache)
    except UnsupportedByEngine:
        return None
    execution = execute(lowered.program, choice, trail=trail, name=lowered.name)
    return first, Run(lowered, _of_all(execution, mates.count), machine)


def _groups_alike(trace: JobTrace, machine: Machine, stages: Int64s, numbers: Int64s) -> bool:
    """Tell whether what the process groups of one kind and one set of stages do takes all of them as long."""
    stage_of = np.full(trace.job.gpus, -1, np.int64)
    stage_of[numbers] = stages
    kinds: dict[tuple[object, ...], dict[tuple[int, ...], str]] = {}
    for name, ranks in trace.traces.groups.items():
        if len(ranks) > 1:
            where = tuple(sorted(set(stage_of[list(ranks)].tolist())))
            kinds.setdefault((name.partition(".")[0], where, len(ranks)), {})[ranks] = name
    return all(_last_alike(trace, machine, groups) for groups in kinds.values())


def _last_alike(trace: JobTrace, machine: Machine, groups: Mapping[tuple[int, ...], str]) -> bool:
    """Tell whether groups have equal routes, or what libraries do in them lasts as long on any routes."""
    likes = dict(zip(signatures(machine, list(groups)), groups.items(), strict=True))
    if len(likes) == 1:
        return True
    place = {rank.rank: number for number, rank in enumerate(trace.traces.ranks)}
    by_stage: dict[int, set[tuple[object, ...]]] = {}
    for ranks, name in likes.values():
        for stage, rank in {trace.stage_of_rank[place[rank]]: rank for rank in ranks}.items():
            durations = Lasting(trace.traces, machine, trace.traces.ranks[place[rank]])
            by_stage.setdefault(stage, set()).add(durations.collectives(name))
    return all(map(_known_to_be_one, by_stage.values()))


def _messages_alike(trace: JobTrace, machine: Machine, stages: Int64s) -> bool:
    """Tell whether the messages of all ranks of a stage to one other last as long."""
    ranks = trace.traces.ranks
    for stage in range(trace.job.stages):
        stage_ranks = [ranks[at] for at in np.flatnonzero(stages == stage).tolist()]
        for peer in range(len(stage_ranks[0].peers)):
            pairs = {tuple(dict.fromkeys((rank.rank, rank.peers[peer]))): rank for rank in stage_ranks}
            likes = dict(zip(signatures(machine, list(pairs)), pairs.values(), strict=True))
            lasts = {Lasting(trace.traces, machine, rank).messages(peer) for rank in likes.values()}
            if len(likes) > 1 and not _known_to_be_one(lasts):
                return False
    return True


def _known_to_be_one(signatures: Set[tuple[object, ...]]) -> bool:
    return len(signatures) == 1 and None not in next(iter(signatures))


def _replicas(layout: Layout) -> Replicas:
    """Return the replicas that a job has by data parallelism."""
    count, digit = layout.size("dp"), layout.coordinates("dp")
    stride = prod(layout.sizes[: layout.axes.index("dp")])
    return Replicas(count, np.arange(layout.ranks) + stride * np.where(digit == count - 1, 1 - count, 1))
