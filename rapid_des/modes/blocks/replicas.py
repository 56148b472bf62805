"""One replica of an outer graph for all of them, and one rank for its stage, where they cannot differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import cache as remembered
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rapid_des.arrays import Int64s
from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import UNSTATED, CollectiveType, NodeKind, NodeTable, RankTrace, TraceSet
from rapid_des.errors import UnsupportedByEngine
from rapid_des.frontend.blocks import followed_groups
from rapid_des.frontend.groups import PARTS, RankLayout
from rapid_des.frontend.trace import JobTrace
from rapid_des.machine import Machine
from rapid_des.modes.execution import (
    EngineChoice,
    Execution,
    Run,
    execute,
    execute_folded,
    on_idle_links,
)
from rapid_des.program.collectives.library import libraries_of
from rapid_des.program.collectives.lower import Communication, TimeAlone
from rapid_des.program.collectives.plans import CollectiveCall, Play
from rapid_des.program.groups import GroupTable
from rapid_des.program.lowering import Lowered, lower
from rapid_des.program.replicas import Mates, Replicas
from rapid_des.program.routes import geometry, signatures
from rapid_des.program.switch_trees import NO_TREES
from rapid_des.values import replace


def run_first_replica(  # noqa: PLR0913 - what the graph is lowered with, by name
    trace: JobTrace,
    machine: Machine,
    choice: EngineChoice,
    *,
    analytic: bool,
    repeats: bool,
    trail: bool,
    cache: BoundedCache,
) -> tuple[JobTrace, Run] | None:
    """Run the first replica of an outer graph for all; None if they might differ.

    Its records count the hops and bytes of all replicas. With `analytic` nothing takes a link.
    """
    switching = machine.switching
    mates = _run_mates(trace, machine, choice, trail=trail, cache=cache) if analytic else None
    if mates is not None:
        return mates
    if trace.job.model.has_experts and trace.job.members("ep") > 1:
        return None  # experts are spread over some replicas and not over others
    replicas = _replicas(trace.job.layout)
    if _is_grouped(trace):
        return None
    shares_links = (
        switching.mode == "fluid" or switching.congestion is not None or switching.spray is not None
    )
    if replicas.count < 3 or machine.faults or machine.slowed or shares_links:
        return None
    traces = trace.traces
    play = on_idle_links(traces, machine, choice, cache) if analytic else None
    tables = {rank.rank: rank.nodes for rank in traces.ranks}
    if any(tables[int(replicas.image[rank])] is not table for rank, table in tables.items()):
        return None
    digit = trace.job.layout.coordinates("dp")[list(tables)]
    first = _some_of(trace, np.flatnonzero(digit == digit[0]).tolist())
    try:
        lowered = lower(
            first.traces,
            machine,
            analytic=analytic,
            play=play,
            replicas=replicas,
            repeats=repeats,
            cache=cache,
        )
    except UnsupportedByEngine:
        return None
    execution = execute(lowered.program, choice, trail=trail, ties=True, name=lowered.name)
    if execution.records.ties:
        return None
    return first, Run(lowered, _of_all(execution, replicas.count), machine)


def run_one_of_each(
    trace: JobTrace, lowered: Lowered, machine: Machine, choice: EngineChoice
) -> tuple[JobTrace, Run]:
    """Run an outer graph folded, and keep of it only the ranks that stand for others.

    Times of all visits of many thousands of ranks would take gigabytes.
    """
    folding, execution = execute_folded(lowered.program, choice, name=lowered.name)
    if folding is None:
        return trace, Run(lowered, execution, machine)
    positions = np.unique(folding.stands_for, return_index=True)[1]
    first = _some_of(trace, positions.tolist())
    count = len(folding.stands_for) // len(positions)
    # Each rank goes to the next one that the same rank stands for, the last one to the first; all ranks that
    # it is followed for go with it.
    groups = np.array(followed_groups(trace.job), np.int64)
    orbits = groups[np.argsort(folding.stands_for, kind="stable")].reshape(-1, count, groups.shape[1])
    image = np.arange(trace.job.gpus)
    image[orbits] = np.roll(orbits, -1, axis=1)
    replicas = Replicas(count, image)
    lowered = replace(lowered, program=folding.program, traces=first.traces, replicas=replicas)
    execution = _of_all(replace(execution, folded=1.0), count)
    return first, Run(lowered, replace(execution, records=folding.on_all_links(execution.records)), machine)


def _is_grouped(trace: JobTrace) -> bool:
    """Return whether some replicas share a state, or part of it, and others another."""
    kinds = {group.partition(".")[0] for group in trace.traces.groups}
    return any(PARTS[kind][0] != "cp" for kind in kinds & PARTS.keys())


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
    play = on_idle_links(trace.traces, machine, choice, cache)
    numbers, alone = (
        np.array([rank.rank for rank in ranks], np.int64),
        TimesAlone(trace.traces, machine, play, cache),
    )
    lines = [numbers[stages == stage] for stage in range(trace.job.stages)]
    if len({len(line) for line in lines}) > 1 or not _groups_alike(trace, alone, stages, numbers):
        return None
    if not _messages_alike(trace, alone, stages):
        return None
    image = np.arange(trace.job.gpus)
    for line in lines:
        image[line] = np.roll(line, -1)
    mates = Mates(len(lines[0]), image)
    first = _some_of(trace, firsts)
    try:
        lowered = lower(first.traces, machine, analytic=True, play=play, replicas=mates, cache=cache)
    except UnsupportedByEngine:
        return None
    execution = execute(lowered.program, choice, trail=trail, name=lowered.name)
    return first, Run(lowered, _of_all(execution, mates.count), machine)


def _groups_alike(trace: JobTrace, alone: TimesAlone, stages: Int64s, numbers: Int64s) -> bool:
    """Return whether all process groups of one kind and one set of stages take equally long."""
    stage_of = np.full(trace.job.gpus, -1, np.int64)
    stage_of[numbers] = stages
    kinds: dict[tuple[object, ...], dict[tuple[int, ...], str]] = {}
    for name, ranks in trace.traces.groups.items():
        if len(ranks) > 1:
            where = tuple(sorted(set(stage_of[list(ranks)].tolist())))
            kinds.setdefault((name.partition(".")[0], where, len(ranks)), {})[ranks] = name
    return all(_last_alike(trace, alone, groups) for groups in kinds.values())


def _last_alike(trace: JobTrace, alone: TimesAlone, groups: Mapping[tuple[int, ...], str]) -> bool:
    """Return whether groups have equal routes, or their libraries take equally long on any routes."""
    likes = dict(zip(signatures(alone.machine, list(groups)), groups.items(), strict=True))
    if len(likes) == 1:
        return True
    place = {rank.rank: number for number, rank in enumerate(trace.traces.ranks)}
    by_stage: dict[int, set[tuple[object, ...]]] = {}
    for ranks, name in likes.values():
        for stage, rank in {trace.stage_of_rank[place[rank]]: rank for rank in ranks}.items():
            times = alone.collectives(trace.traces.ranks[place[rank]], name)
            by_stage.setdefault(stage, set()).add(times)
    return all(map(_are_known_and_equal, by_stage.values()))


def _messages_alike(trace: JobTrace, alone: TimesAlone, stages: Int64s) -> bool:
    """Return whether the messages of all ranks of a stage to one other last as long."""
    ranks = trace.traces.ranks
    for stage in range(trace.job.stages):
        stage_ranks = [ranks[at] for at in np.flatnonzero(stages == stage).tolist()]
        for peer in range(len(stage_ranks[0].peers)):
            pairs = {tuple(dict.fromkeys((rank.rank, rank.peers[peer]))): rank for rank in stage_ranks}
            likes = dict(zip(signatures(alone.machine, list(pairs)), pairs.values(), strict=True))
            if len(likes) > 1 and not _are_known_and_equal(
                {alone.messages(rank, peer) for rank in likes.values()}
            ):
                return False
    return True


def _are_known_and_equal(times: Set[tuple[object, ...]]) -> bool:
    return len(times) == 1 and None not in next(iter(times))


def _replicas(layout: RankLayout) -> Replicas:
    """Return the replicas that a job has by data parallelism."""
    count, digit = layout.size("dp"), layout.coordinates("dp")
    stride = prod(layout.sizes[: layout.axes.index("dp")])
    return Replicas(count, np.arange(layout.ranks) + stride * np.where(digit == count - 1, 1 - count, 1))


class TimesAlone:
    """What collectives and messages of ranks take alone, where that does not depend on where groups lie.

    What libraries do follows from sizes and counts of ranks and nodes. Ranks whose routes are unlike, as
    where the groups of some cross one switch more, still live alike if all that they do lasts as long.
    """

    def __init__(
        self,
        traces: TraceSet,
        machine: Machine,
        play: Play | None = None,
        cache: BoundedCache | None = None,
    ) -> None:
        cache = BoundedCache() if cache is None else cache
        self.machine, self._groups, self._exchanges = machine, GroupTable(traces, machine), traces.exchanges
        libraries = libraries_of(traces, machine)
        self._communication = Communication(
            machine, self._groups, cache, analytic=True, libraries=libraries, play=play
        )
        self._calls = remembered(_calls)

    def collectives(self, rank: RankTrace, name: str) -> tuple[TimeAlone | None, ...]:
        """Return what each distinct collective of a rank's group takes alone; None: its routes decide."""
        nodes, durations = rank.nodes, list[TimeAlone | None]()
        members = self._groups.members(name)
        extents, axes = geometry(self.machine, members)
        for kind, size, stream, tag in self._calls(nodes, rank.groups.index(name)):
            if UNSTATED in (kind, size) or tag > len(self._exchanges) or self.machine.in_switches:
                durations.append(None)
                continue
            spread = self._exchanges[tag - 1] if tag else None
            call = CollectiveCall(CollectiveType(kind), size, extents, axes, NO_TREES, spread)
            durations.append(self._communication.collective_alone(call, nodes.streams[stream], members))
        return tuple(durations)

    def messages(self, rank: RankTrace, peer: int) -> tuple[TimeAlone | None, ...]:
        """Return what each distinct message to or from one of a rank's peers, by slot, takes alone."""
        nodes, durations = rank.nodes, list[TimeAlone | None]()
        here = ((nodes.kind == NodeKind.SEND) | (nodes.kind == NodeKind.RECV)) & (nodes.peer == peer)
        for kind, size, stream, group in _distinct(here, nodes.kind, nodes.size, nodes.stream, nodes.group):
            ends = (rank.rank, rank.peers[peer])
            within = None if group == UNSTATED else self._groups.members(rank.groups[group])
            name = nodes.streams[stream].removesuffix("-send").removesuffix("-recv")
            sent = ends if kind == NodeKind.SEND else ends[::-1]
            durations.append(self._communication.message_alone(size, name, sent, within))
        return tuple(durations)


def _calls(nodes: NodeTable, group: int) -> list[tuple[int, ...]]:
    """Return the distinct collectives of a group that a table states: kind, size, stream and tag."""
    here = (nodes.kind == NodeKind.COLLECTIVE) & (nodes.group == group)
    return _distinct(here, nodes.collective, nodes.size, nodes.stream, nodes.tag)


def _distinct(here: NDArray[np.bool_], *columns: NDArray[np.integer[Any]]) -> list[tuple[int, ...]]:
    """Return the distinct rows of some columns, in order."""
    return sorted(set(zip(*(column[here].tolist() for column in columns), strict=True)))
