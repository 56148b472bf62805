"""How a collective of a trace becomes the steps of its chunks, with queues and priorities."""

from __future__ import annotations

from dataclasses import dataclass

from rapid_des.astra.collectives import NO_TURNS, Axis, Planner, Scope, State, Step, Turns
from rapid_des.astra.files import Setup
from rapid_des.astra.library import Library
from rapid_des.astra.slots import Along, SlotNumbers, Whole
from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import ConfigError


@dataclass(frozen=True)
class MemberStep:
    """One phase of one chunk as a visit."""

    slot: int
    template: int
    server: int
    priority: int
    chunk: int


@dataclass(frozen=True)
class Recipe:
    """The steps of a collective, chunk by chunk; none where there is nobody to talk to."""

    slot: int
    steps: tuple[MemberStep, ...]

    @property
    def extra(self) -> int:
        """Visits beyond the node's own: the steps and the join that ends them."""
        return len(self.steps) + 1 if self.steps else 0


@dataclass(frozen=True)
class Call:
    """A collective as a rank issues it."""

    collective: CollectiveType
    size: int
    group: int | None
    """Slot in the rank's groups; None for the world."""
    scope: Scope


class Recipes:
    """The recipes of one rank program, in the order that its collectives are issued."""

    def __init__(self, setup: Setup, library: Library, slots: SlotNumbers) -> None:
        self._setup = setup
        self._library = library
        self._slots = slots
        self._planner = Planner(setup)
        self._state: State = NO_TURNS
        self._known: dict[tuple[Call, State], tuple[int, State]] = {}
        self.recipes: list[Recipe] = []
        self.capacity = -(-setup.system.active_chunks_per_dimension // setup.queues)

    def next(self, call: Call) -> int:
        """Return the number of the recipe of the next collective that the rank issues."""
        key = (call, self._state)
        if key not in self._known:
            turns = Turns.after(self._setup.queues, self._state)
            self.recipes.append(self._recipe(call, turns))
            self._known[key] = len(self.recipes) - 1, turns.state()
        number, self._state = self._known[key]
        return number

    def _recipe(self, call: Call, turns: Turns) -> Recipe:
        count, size = self._planner.chunks(call.collective, call.size)
        plans = [self._planner.chunk(call.collective, size, call.scope, turns) for _ in range(count)]
        started: dict[int, int] = {}
        steps: list[MemberStep] = []
        for chunk, plan in enumerate(plans):
            for place, step in enumerate(plan):
                server = self._server(step)
                priority = self._priority(chunk)
                if place == 0:
                    started[server] = started.get(server, 0) + 1
                    if started[server] <= self.capacity:
                        priority = -count - 1
                steps.append(self._member_step(call, step, server=server, priority=priority, chunk=chunk))
        return Recipe(self._slots.number(Whole(call.group)), tuple(steps))

    def _member_step(self, call: Call, step: Step, *, server: int, priority: int, chunk: int) -> MemberStep:
        template = self._library.phase(step.phase)
        whole = call.scope.members is not None or self._spans_world(step.axis)
        slot = self._slots.use(Whole(call.group) if whole else Along(call.group, step.axis), template)
        return MemberStep(slot, template, server, priority, chunk)

    def _spans_world(self, axis: Axis) -> bool:
        total = 1
        for size in self._setup.network.npus_count:
            total *= size
        return axis.size == total

    def _server(self, step: Step) -> int:
        streams = 3
        return streams + step.axis.dimension * self._setup.queues + step.queue

    def _priority(self, chunk: int) -> int:
        """Return a chunk's place among those that wait for a queue.

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
