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
from rapid_des.program.routes import geometry, known_signatures
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
    """Run one rank of each stage for all of its stage; None if some might live otherwise."""
    play = on_idle_links(trace.traces, machine, choice, cache)
    mates = lowered_mates(trace.traces, trace.stage_of_rank, machine, play, cache)
    if mates is None:
        return None
    lowered, firsts = mates
    execution = execute(lowered.program, choice, trail=trail, name=lowered.name)
    return _some_of(trace, firsts), Run(lowered, _of_all(execution, lowered.copies), machine)


def lowered_mates(
    traces: TraceSet, line_of_rank: Sequence[int], machine: Machine, play: Play, cache: BoundedCache
) -> tuple[Lowered, list[int]] | None:
    """Return one rank of each line, lowered for all of its line where nothing takes a link, and its place.

    `line_of_rank` is a number from 0 for each rank. None unless all lines are as long, all ranks of a line
    run one program, and what the groups of a kind in a line do, and its messages, last as long: then members
    reach everything together.
    """
    ranks, lines = traces.ranks, np.array(line_of_rank)
    firsts = [line_of_rank.index(line) for line in range(max(line_of_rank) + 1)]
    if machine.faults or any(rank.nodes is not ranks[firsts[at]].nodes for rank, at in zip(ranks, lines)):  # noqa: B905
        return None
    alone = TimesAlone(traces, machine, play, cache)
    if len(set(np.bincount(lines).tolist())) > 1:
        return None
    if not (_groups_alike(traces, lines, alone) and _messages_alike(traces, lines, alone)):
        return None
    numbers, image = np.array([rank.rank for rank in ranks]), np.arange(machine.fabric.gpus)
    for line in range(len(firsts)):
        image[numbers[lines == line]] = np.roll(numbers[lines == line], -1)
    mates = Mates(len(ranks) // len(firsts), image)
    first = replace(traces, ranks=tuple(ranks[place] for place in firsts))
    try:
        lowered = lower(first, machine, analytic=True, play=play, replicas=mates, cache=cache)
    except UnsupportedByEngine:
        return None
    return lowered, firsts


def _groups_alike(traces: TraceSet, lines: Int64s, alone: TimesAlone) -> bool:
    """Return whether all process groups of one kind and one set of lines take equally long."""
    line_of = dict(zip((rank.rank for rank in traces.ranks), lines.tolist(), strict=True))
    kinds: dict[tuple[object, ...], dict[tuple[int, ...], str]] = {}
    for name, ranks in traces.groups.items():
        if len(ranks) > 1:
            where = tuple(sorted({line_of.get(rank, -1) for rank in ranks}))
            kinds.setdefault((name.partition(".")[0], where, len(ranks)), {})[ranks] = name
    return all(_last_alike(traces, lines, alone, groups) for groups in kinds.values())


def _last_alike(
    traces: TraceSet, lines: Int64s, alone: TimesAlone, groups: Mapping[tuple[int, ...], str]
) -> bool:
    """Return whether groups have equal routes, or their libraries take equally long on any routes."""
    likes = dict(zip(alone.signatures(list(groups)), groups.items(), strict=True))
    if len(likes) == 1:
        return True
    place = {rank.rank: number for number, rank in enumerate(traces.ranks)}
    by_line: dict[int, set[tuple[object, ...]]] = {}
    for ranks, name in likes.values():
        for line, rank in {int(lines[place[rank]]): rank for rank in ranks}.items():
            times = alone.collectives(traces.ranks[place[rank]], name)
            by_line.setdefault(line, set()).add(times)
    return all(map(_are_known_and_equal, by_line.values()))


def _messages_alike(traces: TraceSet, lines: Int64s, alone: TimesAlone) -> bool:
    """Return whether the messages of all ranks of a line to one other last as long, and leave the line."""
    for line in range(int(lines.max()) + 1):
        mates = [traces.ranks[at] for at in np.flatnonzero(lines == line).tolist()]
        here = {rank.rank for rank in mates}
        for peer in range(len(mates[0].peers)):
            if mates[0].peers[peer] in here:  # a ring: the one that stands for all would wait for itself
                return False
            pairs = {tuple(dict.fromkeys((rank.rank, rank.peers[peer]))): rank for rank in mates}
            likes = dict(zip(alone.signatures(list(pairs)), pairs.values(), strict=True))
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
        self._cache = cache
        libraries = libraries_of(traces, machine)
        self._communication = Communication(
            machine, self._groups, cache, analytic=True, libraries=libraries, play=play
        )
        self._calls = remembered(_calls)

    def signatures(self, groups: Sequence[tuple[int, ...]]) -> list[bytes]:
        """Return a key of the routes of each group, all of one size."""
        return known_signatures(self.machine, groups, self._cache)

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
