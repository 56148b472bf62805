"""Which algorithm serves a collective of a trace on a machine: one template, or phases over dimensions.

What collectives and messages take alone is the longer of their chain and load, or simulated where that is
quick (`IdleTimes`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from math import prod
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import CollectiveType, Exchange, NodeKind, RankTrace, TraceSet, node_table
from rapid_des.errors import ConfigError, FabricCutError
from rapid_des.machine import Machine
from rapid_des.network.collectives import (
    HIERARCHICAL,
    IN_SWITCH,
    DimensionPhase,
    Hierarchy,
    Schedule,
    ShapedCollective,
    build_schedule,
    chunk_phases,
    collectives_of,
    fits,
)
from rapid_des.network.collectives.on_fabric import RingOrder, ordered_schedule
from rapid_des.network.specs import AUTO, Choice
from rapid_des.program.collectives.pacing import crossings, finish_times
from rapid_des.program.collectives.templates import one_transfer
from rapid_des.program.switch_trees import NO_TREES, Parents, TreesOver, with_switches
from rapid_des.values import replace

PLAIN: Mapping[CollectiveType, str] = {kind: "ring" for kind in CollectiveType} | {
    CollectiveType.BARRIER: "dissemination"
}
"""The algorithm for a dimension whose stated algorithm does not support the collective."""
SEND = "send"
"""The name of point-to-point messages in reports."""
SCALAR = "one_shot"
"""The algorithm of an all-reduce with fewer bytes than members, which cannot be split."""


class CollectiveCall(Struct, frozen=True):
    """A collective as a trace issues it: `size` is the input buffer of each member in bytes."""

    collective: CollectiveType
    size: int
    extents: tuple[int, ...]
    """The group's geometry: the grid of its members by position, innermost first, else (members,)."""
    dimensions: tuple[int, ...]
    """The flat axes of the fabric along which the group lies; empty for a group that is no such grid."""
    above: TreesOver = NO_TREES
    exchange: Exchange | None = None
    """How an all-to-all distributes its bytes where that is not evenly; None: evenly."""

    @property
    def members(self) -> int:
        """Number of ranks that take part."""
        return prod(self.extents)


class AxisPhase(Struct, frozen=True):
    """One phase of a chunk: a collective among those ranks that differ only along one axis of the group."""

    axis: int | None
    """Index into `CollectiveCall.extents`; None: all members on one logical ring."""
    collective: CollectiveType
    algorithm: str
    size: int
    chunks: int = 1
    extents: tuple[int, ...] = ()
    """The shape of the whole group, for algorithms that use it; empty: a plain group."""
    parents: Parents = ()
    """The tree of switches over the members, for algorithms that work in it."""
    order: RingOrder = ()
    """The member at each place of the algorithm's ring; empty: their own order."""

    def schedule(self, members: int) -> Schedule:
        """Return the phase's transfers among this many members."""
        if self.order:
            return ordered_schedule(
                self.algorithm, self.collective, self.size, self.order, chunks=self.chunks
            )
        return build_schedule(
            self.algorithm,
            ShapedCollective(
                self.collective,
                self.extents or (members,),
                self.size,
                chunks=self.chunks,
                parents=self.parents,
            ),
        )


CollectivePlan = tuple[tuple[AxisPhase, ...], ...]
"""The phases of each chunk, in order; chunks pipeline through them."""


def plan(call: CollectiveCall, machine: Machine, auto: Callable[[], Choice]) -> CollectivePlan:
    """Return how a machine does a collective; a `ConfigError` names a choice that does not fit.

    One algorithm serves all members as one logical ring; one for each dimension serves a group of several
    along each of them in turn, its chunks pipelining; a group along one dimension is served by that one's,
    whole. What the machine file leaves open `auto` chooses, with one algorithm or one for each of the group's
    own dimensions. `FabricCutError`: one inside switches has none left alive.
    """
    if call.collective is CollectiveType.ALL_REDUCE and call.size < call.members:
        return ((AxisPhase(None, call.collective, SCALAR, call.size),),)
    operation = call.collective.name.lower()
    choice = machine.collectives.choice(operation)
    stated = None if choice is None or choice.algorithm == AUTO else choice.algorithm
    chunks = 1 if choice is None else int(choice.chunks)
    several = len(set(call.dimensions)) > 1 and call.collective in HIERARCHICAL
    if isinstance(stated, tuple) and several:
        names = tuple(
            _serving(name, call, machine, axis=axis) or PLAIN[call.collective]
            for axis, name in enumerate(_per_axis(stated, call, machine))
        )
        return _along(names, chunks, call)
    if isinstance(stated, tuple):
        stated = _of_one_axis(stated, call, machine)
        chunks = chunks if stated in IN_SWITCH else 1
    elif stated is not None and call.collective not in collectives_of(stated) and _named(machine, operation):
        does = ", ".join(kind.name.lower() for kind in CollectiveType if kind in collectives_of(stated))
        problem = f"{stated!r} does not do {operation}; it does {does}"
        raise ConfigError(problem, file=str(machine.path), key=f"collectives.{operation}")
    name = None if stated is None else _serving(stated, call, machine, axis=None)
    if name is None:
        return as_chosen(auto(), call)
    parents = call.above.whole if name in IN_SWITCH else ()
    return ((AxisPhase(None, call.collective, name, call.size, chunks, call.extents, parents),),)


def as_chosen(choice: Choice, call: CollectiveCall) -> CollectivePlan:
    """Return the plan of an algorithm that `auto` chose, which never works inside switches."""
    name, chunks = choice.algorithm, int(choice.chunks)
    if isinstance(name, tuple):
        return _along(name, chunks, call)
    return ((AxisPhase(None, call.collective, name, call.size, chunks, call.extents),),)


def _along(names: tuple[str, ...], chunks: int, call: CollectiveCall) -> CollectivePlan:
    """Return the plan that goes through the dimensions of a group, each by its algorithm."""
    phases = chunk_phases(call.collective, Hierarchy(call.extents, names), call.size, chunks=chunks)
    return tuple(tuple(_phase(phase, call) for phase in chunk) for chunk in phases)


def _phase(phase: DimensionPhase, call: CollectiveCall) -> AxisPhase:
    parents = call.above.over(phase.dimension) if phase.algorithm in IN_SWITCH else ()
    return AxisPhase(phase.dimension, phase.collective, phase.algorithm, phase.size, parents=parents)


def _of_one_axis(stated: tuple[str, ...], call: CollectiveCall, machine: Machine) -> str | None:
    """Return the algorithm of the dimension that a group lies along, if it is one.

    A group in another order than that of the GPUs is served by it only inside switches.
    """
    if len(set(call.dimensions)) == 1:
        return _per_axis(stated, call, machine)[0]
    if call.above.axis is None:
        return None
    (name,) = _per_axis(stated, replace(call, dimensions=(call.above.axis,)), machine)
    return name if name in IN_SWITCH else None


def _named(machine: Machine, operation: str) -> bool:
    return getattr(machine.collectives, operation) is not None


def _serving(name: str, call: CollectiveCall, machine: Machine, *, axis: int | None) -> str | None:
    """Return the algorithm if it serves the collective in this group.

    One inside switches that the file names for the very collective is not replaced.
    """
    if call.collective not in collectives_of(name):
        return None
    members = call.members if axis is None else call.extents[axis]
    if name not in IN_SWITCH or members == 1 or fits(name, call.above.over(axis), members):
        return name
    operation = call.collective.name.lower()
    if not _named(machine, operation):
        return None
    need = "one switch that all members reach" if name == "nvls" else "switches that all members reach"
    who = f"{members} members of group {call.above.who!r}"
    problem = f"{name!r} needs {need} without passing a GPU; the {who} have none"
    if call.above.cut:
        raise FabricCutError(f"{machine.path}: collectives.{operation}: {problem} left, as links are dead")
    raise ConfigError(problem, file=str(machine.path), key=f"collectives.{operation}")


def _per_axis(stated: tuple[str, ...], call: CollectiveCall, machine: Machine) -> tuple[str, ...]:
    axes = len(machine.fabric.axes)
    if len(stated) == len(machine.fabric.extents) != axes:
        stated = tuple(
            name for name, extent in zip(stated, machine.fabric.extents, strict=True) for _ in extent
        )
    return tuple(stated[axis] for axis in call.dimensions)


class ServedCollective(Struct, frozen=True, order=True):
    """What served a collective of a size, or a send, in a run, and the GPU resources that it took."""

    operation: str
    ranks: int
    size_bytes: int
    """Bytes of each rank's input buffer; for a send, of the message."""
    algorithm: str
    """One algorithm for each dimension of the group, innermost first, or one for all."""
    protocol: str = ""
    """The library's protocol (ll, ll128, simple, …); empty for the machine's own algorithms."""
    channels: int = 0
    """The library's CTAs (thread blocks), each on an SM of its own."""
    hbm_bytes: int = 0
    """Bytes that a library reads from and writes to each GPU's HBM."""


def served_by(call: CollectiveCall, chunks: CollectivePlan) -> ServedCollective:
    """Return what serves a call by its plan."""
    along = {phase.axis or 0: phase.algorithm for phase in chunks[0]}
    algorithm = "/".join(along[axis] for axis in sorted(along))
    return ServedCollective(call.collective.name.lower(), call.members, call.size, algorithm)


def cut_in_chunks(chunks: CollectivePlan) -> bool:
    """Return whether chunks follow one another: their messages then leave in order, not in turns of parts."""
    return len(chunks) > 1 or chunks[0][0].chunks > 1


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

    def of(
        self,
        call: CollectiveCall,
        kind: str,
        ranks: tuple[int, ...],
        routes_key: Hashable,
        schedules: Callable[[], Iterable[Schedule]],
    ) -> int | None:
        """Return the picoseconds of a collective whose members all arrive at once; None if it is large.

        `kind` is the stream that it runs on, `routes_key` is equal for groups with equal routes, `schedules`
        returns the transfers.
        """

        def played() -> int | None:
            is_small = sum(map(self._work, schedules())) <= MOST_WORK
            return self.play(_trace(call, kind, ranks)) if is_small else None

        key = ("idle", self.machine.network, self.libraries, call, kind, routes_key)
        return self.memory.get_or_make(key, played)

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
