"""How long collectives and messages take alone: by closed forms, or simulated where that is quick."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from math import prod
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import NodeKind, RankTrace, TraceSet, node_table
from rapid_des.machine import Machine
from rapid_des.network.collectives.schedule import Schedule
from rapid_des.program.collectives.pacing import crossings, finish_times
from rapid_des.program.collectives.plans import AxisPhase, CollectiveCall, CollectivePlan
from rapid_des.program.collectives.templates import one_transfer
from rapid_des.program.switch_trees import with_switches

Play: TypeAlias = Callable[[TraceSet], int]
"""Simulates a trace and returns its duration in picoseconds."""
MOST_MEMBERS = 128
"""Largest group whose collective may be simulated by itself."""
MOST_WORK = 50_000
"""Largest number of messages, times their parts or shared links, that is simulated: about 50 ms."""


def alone(
    schedule: Schedule, machine: Machine, ranks: Sequence[int], *, below: Sequence[Sequence[int]] = ()
) -> int:
    """Return the picoseconds of a collective among `ranks` that all arrive at once, without congestion.

    The longer of the longest chain of transfers at zero load, and the busiest link's service of all that
    crosses it. `below`, see `with_switches`.
    """
    chain, load = chain_and_load(schedule, machine, ranks, below=below)
    return max(chain, int(load.max(initial=0)))


class PhaseAlone(Struct, frozen=True):
    """The time that one phase of a collective takes without other traffic."""

    axis: int | None
    """The dimension whose links the phase uses; None: the phase runs among the whole group."""
    time: int
    """Duration of the phase, in picoseconds."""
    load: int
    """Service time of the phase's busiest link, in picoseconds."""


def pipelined(chunks: Sequence[Sequence[PhaseAlone]]) -> int:
    """Return the picoseconds of chunks that follow each other through phases, without other traffic.

    That is the longest chunk, or a dimension whose links serve all chunks: with what comes before the first
    gets there and after the last has left.

    >>> inner, outer = PhaseAlone(0, 100, 90), PhaseAlone(1, 400, 400)
    >>> pipelined([[inner, outer, inner]]), pipelined([[inner, outer, inner]] * 4)
    (600, 1800)
    """
    longest = max(sum(phase.time for phase in chunk) for chunk in chunks)
    axes = {phase.axis for chunk in chunks for phase in chunk}
    return max(
        longest, *(_through([chunk for chunk in chunks if _places(axis, chunk)], axis) for axis in axes)
    )


def plan_alone(plan: CollectivePlan, extents: Sequence[int], machine: Machine, ranks: Sequence[int]) -> int:
    """Return the picoseconds of a plan among `ranks`, as many along each dimension as its extent says."""

    def phase_alone(phase: AxisPhase) -> PhaseAlone:
        line = ranks
        if phase.axis is not None:
            stride = prod(extents[: phase.axis])
            line = ranks[: stride * extents[phase.axis] : stride]
        chain, load = chain_and_load(phase.schedule(len(line)), machine, line)
        busiest = int(load.max(initial=0))
        return PhaseAlone(phase.axis, max(chain, busiest), busiest)

    return pipelined([[phase_alone(phase) for phase in chunk] for chunk in plan])


def _places(axis: int | None, chunk: Sequence[PhaseAlone]) -> list[int]:
    return [place for place, phase in enumerate(chunk) if phase.axis == axis]


def _through(chunks: Sequence[Sequence[PhaseAlone]], axis: int | None) -> int:
    before = min(sum(phase.time for phase in chunk[: _places(axis, chunk)[0]]) for chunk in chunks)
    after = min(sum(phase.time for phase in chunk[_places(axis, chunk)[-1] + 1 :]) for chunk in chunks)
    return before + sum(phase.load for chunk in chunks for phase in chunk if phase.axis == axis) + after


def chain_and_load(
    schedule: Schedule, machine: Machine, ranks: Sequence[int], *, below: Sequence[Sequence[int]] = ()
) -> tuple[int, Int64s]:
    """Return the end of the longest chain of transfers at zero load, and each link's total service time."""
    members = with_switches(machine.switch_trees, ranks, below) if schedule.switches else tuple(ranks)
    crossed = crossings(schedule, machine, members)
    return int(finish_times(schedule, crossed.time).max(initial=0)), crossed.load


def message_alone(size: int, machine: Machine, source: int, destination: int) -> int:
    """Return the picoseconds of one message between two GPUs at zero load."""
    if source == destination:
        return 0
    return alone(one_transfer(size), machine, (source, destination))


class IdleTimes(Struct, frozen=True):
    """Simulates collectives by themselves, each kind once: `memory` keeps what they last."""

    machine: Machine
    play: Play
    memory: BoundedCache
    libraries: Hashable
    """The communication libraries that serve collectives, as part of the cache key."""

    def of(self, call: CollectiveCall, kind: str, ranks: tuple[int, ...], routes_key: Hashable) -> int:
        """Return the picoseconds of a collective whose members all arrive at once.

        `kind` is the stream that it runs on, `routes_key` is equal for groups with equal routes.
        """
        key = ("idle", self.machine, self.libraries, call, kind, routes_key)
        return self.memory.get_or_make(key, lambda: self.play(_trace(call, kind, ranks)))

    def is_small(self, schedules: Iterable[Schedule]) -> bool:
        """Return whether the transfers are few enough to be simulated."""
        return sum(map(self._work, schedules)) <= MOST_WORK

    def _work(self, schedule: Schedule) -> int:
        switching = self.machine.switching
        if switching.mode == "fluid":
            return len(schedule) * schedule.members
        if switching.mode == "cut_through" or switching.segment is None:
            return (len(schedule) + len(schedule.dependencies)) * switching.parts
        segments: Int64s = -(-schedule.size // int(switching.segment))
        return int(segments.sum() + np.repeat(segments, np.diff(schedule.dependency_starts)).sum())


def plan_schedules(plan: CollectivePlan, extents: tuple[int, ...], members: int) -> Iterable[Schedule]:
    """Yield the transfers of every line of a plan's phases."""
    for phase in (phase for chunk in plan for phase in chunk):
        along = members if phase.axis is None else extents[phase.axis]
        schedule = phase.schedule(along)
        for _ in range(members // along):
            yield schedule


def _trace(call: CollectiveCall, kind: str, ranks: tuple[int, ...]) -> TraceSet:
    """Return the trace in which the members of a group call a collective once and do nothing else."""
    exchanges = () if call.exchange is None else (call.exchange,)
    nodes = node_table(
        [NodeKind.COLLECTIVE],
        [call.size],
        collective=[call.collective],
        group=[0],
        tag=[len(exchanges)],
        names=(call.collective.name.lower(),),
        streams=(kind,),
    )
    traces = tuple(RankTrace(rank, nodes, groups=("alone",)) for rank in sorted(ranks))
    return TraceSet(traces, {"alone": ranks}, exchanges=exchanges)
