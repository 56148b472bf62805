"""How a collective of a trace becomes the visits of its chunks, with queues and priorities."""

from __future__ import annotations

from math import prod

from rapid_des.astra.algorithms import PhaseTemplates
from rapid_des.astra.collectives import (
    FIRST_ROUND,
    CollectivePlanner,
    RoundRobin,
    RoundRobinState,
    Scope,
)
from rapid_des.astra.files import Setup
from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import ConfigError
from rapid_des.program.builders import Expansion, MemberVisit
from rapid_des.program.groups import Along, SlotNumbers, Whole


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
        self.distinct: list[Expansion] = []
        self.capacity = -(-setup.system.active_chunks_per_dimension // setup.queues)

    def next(self, collective: CollectiveType, size: int, group: int, scope: Scope) -> int:
        """Return the number of the expansion of the next collective that the rank issues in a group slot."""
        key = (collective, size, group, scope, self._state)
        if key not in self._known:
            counts = RoundRobin.after(self._setup.queues, self._state)
            members = self._members(collective, size, group, scope, counts)
            self.distinct.append(Expansion(self._slots.number(Whole(group)), members))
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
