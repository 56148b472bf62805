"""What a collective lasts on idle links: simulated by itself where that takes milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.made import node_table
from rapid_des.chakra.trace import NodeKind, RankTrace, TraceSet
from rapid_des.machine import Machine
from rapid_des.network.collectives.schedule import Schedule
from rapid_des.program.plans import Call, CollectivePlan

Play: TypeAlias = Callable[[TraceSet], int]
"""Simulates a trace and returns its duration in picoseconds."""
MOST_MEMBERS = 128
"""Largest group whose collective may be simulated by itself."""
MOST_WORK = 50_000
"""Largest number of messages, times their parts or shared links, that is simulated: about 50 ms."""


class IdleTimes(Struct, frozen=True):
    """Simulates collectives by themselves, each kind once: `memory` keeps what they last."""

    machine: Machine
    play: Play
    memory: BoundedCache
    libraries: Hashable
    """The communication libraries that serve collectives, as part of the cache key."""

    def of(self, call: Call, kind: str, ranks: tuple[int, ...], likeness: Hashable) -> int:
        """Return the picoseconds of a collective whose members all arrive at once.

        `kind` is the stream that it runs on, `likeness` tells apart what routes the group has.
        """
        key = ("idle", self.machine, self.libraries, call, kind, likeness)
        return self.memory.get_or_make(key, lambda: self.play(_trace(call, kind, ranks)))

    def is_small(self, schedules: Iterable[Schedule]) -> bool:
        """Tell whether the transfers are few enough to be simulated."""
        return sum(map(self._work, schedules)) <= MOST_WORK

    def _work(self, schedule: Schedule) -> int:
        switching = self.machine.switching
        if switching.mode == "fluid":
            return len(schedule) * schedule.members
        if switching.mode == "cut_through" or switching.segment is None:
            return (len(schedule) + len(schedule.dependencies)) * switching.parts
        segments: Int64s = -(-schedule.size // int(switching.segment))
        later = np.repeat(segments, np.diff(schedule.dependency_starts))
        return int(segments.sum() + (later * segments[schedule.dependencies]).sum())


def plan_schedules(plan: CollectivePlan, extents: tuple[int, ...], members: int) -> Iterable[Schedule]:
    """Yield the transfers of every line of a plan's phases."""
    for phase in (phase for chunk in plan for phase in chunk):
        along = members if phase.axis is None else extents[phase.axis]
        schedule = phase.schedule(along)
        for _ in range(members // along):
            yield schedule


def _trace(call: Call, kind: str, ranks: tuple[int, ...]) -> TraceSet:
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
