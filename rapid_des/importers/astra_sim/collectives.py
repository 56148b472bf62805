"""A collective to chunks, chunks to phases over the dimensions, phases to visits, as the system file says.

A collective is cut into chunks of floor(size / splits) bytes; a remainder costs one more whole chunk. Each
chunk runs through its phases in order. In every dimension phases take its queues round robin, and wait for
them by priority.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TypeAlias, TypeVar

from msgspec import Struct, field

from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import ConfigError
from rapid_des.importers.astra_sim.algorithms import PhaseTemplates, is_flat
from rapid_des.importers.astra_sim.files import Setup
from rapid_des.importers.astra_sim.phases import A2A, AG, AR, RS, CollectivePhase, Endpoint, final_size
from rapid_des.program.builders import MemberVisit, NodeExpansion
from rapid_des.program.groups import Along, SlotNumbers, Whole
from rapid_des.units import PS_PER_NS

T = TypeVar("T")

_LOCAL_DELAY_NS = 10
"""Delay in nanoseconds of messages in explicit process groups, whatever endpoint-delay states."""

_KEYS = {
    AR: "all-reduce-implementation",
    AG: "all-gather-implementation",
    RS: "reduce-scatter-implementation",
    A2A: "all-to-all-implementation",
}


class GroupAxis(Struct, frozen=True):
    """A direction along which members of a group differ: neighbours are `stride` apart in it."""

    size: int
    stride: int
    dimension: int
    """The dimension whose queues the phases use."""


class Scope(Struct, frozen=True):
    """The members of a collective: an explicit group, or the world along some or all dimensions."""

    members: int | None = None
    """Number of members; None: the world."""
    dimensions: tuple[bool, ...] | None = None
    """Whether each of the world's dimensions takes part; None: all do."""

    def involves(self, dimension: int) -> bool:
        """Return whether the world's collective runs along a dimension."""
        return self.dimensions is None or (dimension < len(self.dimensions) and self.dimensions[dimension])


class QueuedPhase(Struct, frozen=True):
    """One phase of one chunk, and the queue that it uses."""

    phase: CollectivePhase
    axis: GroupAxis
    queue: int


RoundRobinState: TypeAlias = tuple[tuple[tuple[int, int], ...], ...]

FIRST_ROUND: RoundRobinState = ((), (), (), ())


class RoundRobin(Struct):
    """Which queue of each dimension is next, and which of the two trees.

    The counts run on from collective to collective, as that simulator's do.
    """

    queues: int
    any_queue: dict[int, int] = field(default_factory=dict)
    lower: dict[int, int] = field(default_factory=dict)
    upper: dict[int, int] = field(default_factory=dict)
    tree: dict[int, int] = field(default_factory=dict)

    @staticmethod
    def after(queues: int, state: RoundRobinState) -> RoundRobin:
        """Return the counts of a former `state`."""
        return RoundRobin(queues, *(dict(kind) for kind in state))

    def state(self) -> RoundRobinState:
        """Return the counts on which the next collective's chunks depend."""
        kinds = (self.any_queue, self.lower, self.upper, self.tree)
        return tuple(tuple(sorted((key, count) for key, count in kind.items() if count)) for kind in kinds)

    def next_queue(self, dimension: int) -> tuple[int, bool]:
        """Return the next of all queues, and whether it runs upwards: the upper half runs downwards."""
        queue = self._next(self.any_queue, dimension, self.queues)
        return queue, self.queues == 1 or queue < self.queues // 2

    def next_lower(self, dimension: int) -> int:
        """Return the next of the lower half's queues."""
        return self._next(self.lower, dimension, max(1, self.queues // 2))

    def next_upper(self, dimension: int) -> int:
        """Return the next of the upper half's queues."""
        half = self.queues // 2
        return half + self._next(self.upper, dimension, self.queues - half) if half else 0

    def next_tree(self, dimension: int) -> int:
        """Return the tree that the next chunk uses."""
        return self._next(self.tree, dimension, 2)

    @staticmethod
    def _next(counts: dict[int, int], dimension: int, wrap: int) -> int:
        count = counts.get(dimension, 0)
        counts[dimension] = (count + 1) % wrap
        return count


class CollectivePlanner:
    """Plans collectives of the world (dimension by dimension) and of other groups (one logical ring)."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._system = setup.system
        self._sizes = setup.network.npus_count
        self._gpus = prod(self._sizes)

    def chunks(self, collective: CollectiveType, size: int) -> tuple[int, int]:
        """Return the number of chunks and the bytes of each."""
        splits = self._stated("preferred-dataset-splits", self._system.preferred_dataset_splits)
        chunk = size // splits
        if collective is not AG and chunk < self._gpus:
            chunk, size = self._gpus, splits * self._gpus
        if chunk == 0:
            raise ConfigError(f"{size} B in {splits} splits: a chunk would be empty")
        return -(-size // chunk), chunk

    def axes(self, collective: CollectiveType, scope: Scope) -> tuple[GroupAxis, ...]:
        """Return the axes that a collective runs along."""
        if scope.members is not None:
            return (GroupAxis(scope.members, 1, 0),) if scope.members > 1 else ()
        if is_flat(self._names(collective)[0]):
            return (GroupAxis(self._gpus, 1, 0),) if self._gpus > 1 else ()
        axes, stride = [], 1
        for dimension, size in enumerate(self._sizes):
            if size > 1 and scope.involves(dimension):
                axes.append(GroupAxis(size, stride, dimension))
                stride *= size
        return tuple(axes)

    def chunk(
        self, collective: CollectiveType, size: int, scope: Scope, counts: RoundRobin
    ) -> tuple[QueuedPhase, ...]:
        """Return the phases of one chunk of a collective."""
        phases: list[QueuedPhase] = []
        for kind, axis, (queue, ascending) in self._order(collective, self.axes(collective, scope), counts):
            name = self._algorithm(collective, axis, scope)
            tree = counts.next_tree(axis.dimension) if name == "doubleBinaryTree" else 0
            phase = CollectivePhase(
                collective=kind,
                algorithm=name,
                members=axis.size,
                size=size,
                ascending=ascending,
                endpoint=self._endpoint(local=scope.members is not None),
                dialect=self._setup.dialect,
                port=self._port(axis, scope),
                tree=tree,
            )
            phases.append(QueuedPhase(phase, axis, queue))
            size = final_size(phase)
        return tuple(phases)

    def _order(
        self, collective: CollectiveType, axes: tuple[GroupAxis, ...], counts: RoundRobin
    ) -> Iterator[tuple[CollectiveType, GroupAxis, tuple[int, bool]]]:
        """Yield each phase's collective, axis, queue and direction."""
        optimization = self._stated("collective-optimization", self._system.collective_optimization)
        if collective is not AR or optimization == "baseline":
            for axis in reversed(axes) if collective is AG else axes:
                yield collective, axis, counts.next_queue(axis.dimension)
            return
        for axis in axes[:-1]:
            yield RS, axis, (counts.next_lower(axis.dimension), True)
        for axis in axes[-1:]:
            yield AR, axis, (counts.next_lower(axis.dimension), True)
        for axis in reversed(axes[:-1]):
            yield AG, axis, (counts.next_upper(axis.dimension), False)

    def _algorithm(self, collective: CollectiveType, axis: GroupAxis, scope: Scope) -> str:
        names = self._names(collective)
        if scope.members is None:
            return names[axis.dimension]
        return "ring" if self._setup.dialect == "stock" and len(names) > 1 else names[0]

    def _names(self, collective: CollectiveType) -> tuple[str, ...]:
        key = _KEYS[collective]
        names: tuple[str, ...] = self._stated(key, getattr(self._system, key.replace("-", "_")))
        dimensions = len(self._sizes)
        if not names or (len(names) < dimensions and not is_flat(names[0])):
            raise ConfigError(
                f"{len(names)} entries for {dimensions} dimensions",
                file=str(self._setup.files.system),
                key=key,
            )
        return names

    def _port(self, axis: GroupAxis, scope: Scope) -> float:
        network = self._setup.network
        spans_more = len(self._sizes) > 1 and (scope.members is not None or axis.size == self._gpus)
        if network.topology[axis.dimension] != "Switch" or spans_more:
            return 0.0
        return network.bandwidth[axis.dimension] * 2**30 / 1e9

    def _endpoint(self, *, local: bool) -> Endpoint:
        delay = _LOCAL_DELAY_NS if local else self._system.endpoint_delay
        return Endpoint(delay * PS_PER_NS, self._system.local_mem_bw * 1e9, local)

    def _stated(self, key: str, value: T | None) -> T:
        if value is None:
            raise ConfigError(
                f"missing key {key!r}, which the trace's collectives need", file=str(self._setup.files.system)
            )
        return value


class CollectiveExpansions:
    """The expansions of one rank program, in the order that its collectives are issued.

    The queues of all dimensions are the rank's servers from `first_queue` on.
    """

    def __init__(
        self, setup: Setup, templates: PhaseTemplates, slots: SlotNumbers, *, first_queue: int
    ) -> None:
        self._setup = setup
        self._templates = templates
        self._slots = slots
        self._first_queue = first_queue
        self._gpus = prod(setup.network.npus_count)
        self._planner = CollectivePlanner(setup)
        self._state: RoundRobinState = FIRST_ROUND
        self._known: dict[object, tuple[int, RoundRobinState]] = {}
        self.distinct: list[NodeExpansion] = []
        self.capacity = -(-setup.system.active_chunks_per_dimension // setup.queues)

    def next(self, collective: CollectiveType, size: int, group: int, scope: Scope) -> int:
        """Return the number of the expansion of the next collective that the rank issues in a group slot."""
        key = (collective, size, group, scope, self._state)
        if key not in self._known:
            counts = RoundRobin.after(self._setup.queues, self._state)
            members = self._members(collective, size, group, scope, counts)
            self.distinct.append(NodeExpansion(self._slots.number(Whole(group)), members))
            self._known[key] = len(self.distinct) - 1, counts.state()
        number, self._state = self._known[key]
        return number

    def _members(
        self, collective: CollectiveType, size: int, group: int, scope: Scope, counts: RoundRobin
    ) -> tuple[MemberVisit, ...]:
        count, size = self._planner.chunks(collective, size)
        chunks = [self._planner.chunk(collective, size, scope, counts) for _ in range(count)]
        started: dict[int, int] = {}
        members: list[MemberVisit] = []
        for chunk, phases in enumerate(chunks):
            for position, queued in enumerate(phases):
                axis = queued.axis
                server = self._first_queue + axis.dimension * self._setup.queues + queued.queue
                priority = self._priority(chunk)
                if position == 0:
                    started[server] = started.get(server, 0) + 1
                    if started[server] <= self.capacity:
                        priority = -count - 1
                template = self._templates.phase(queued.phase)
                whole = scope.members is not None or axis.size == self._gpus
                along = Along(group, axis.dimension, axis.size, axis.stride)
                slot = self._slots.number(Whole(group) if whole else along)
                self._slots.use(slot, template)
                members.append(MemberVisit(slot, template, chunk, server, priority))
        return tuple(members)

    def _priority(self, chunk: int) -> int:
        """Return the rank of a chunk among those that wait for a queue.

        Chunks are queued as they are cut, so that the first that a queue can hold are taken at once; after
        that the last cut goes first (LIFO) or the first.
        """
        policy = self._setup.system.scheduling_policy
        if policy is None:
            raise ConfigError(
                "missing key 'scheduling-policy', which the trace's collectives need",
                file=str(self._setup.files.system),
            )
        return -chunk if policy == "LIFO" else chunk
