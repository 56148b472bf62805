"""Schedules as data: what each stage runs in which order, and which part of the model its chunks are.

A pipeline cuts the model into parts. A stage holds one or several of them as its chunks; two stages may hold
copies of the same parts, each for micro-batches of its own. What an item consumes follows from the parts
alone, so messages may go to any stage. Orders may be written as runs: a pattern of items and how often it is
repeated.

A `PipelineSchedule` is a function that returns the orders, and what follows from them. The one that most jobs
run, 1F1B, stands here as the example; the table of all is `rapid_des.frontend.schedules.SCHEDULES`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct


class PipelineShape(NamedTuple):
    """Stages, micro-batches of a step, chunks of a stage, and micro-batches that pass a chunk together."""

    stages: int
    micro_batches: int
    chunks: int = 1
    group: int | None = None
    """Interleaving: micro-batches per group; None: the smallest group that `fits`, else as many as stages."""

    @property
    def in_group(self) -> int:
        """Number of micro-batches that pass a chunk consecutively.

        >>> [PipelineShape(4, micro_batches, 2).in_group for micro_batches in (8, 10, 9, 3)]
        [4, 5, 5, 4]
        """
        fits = (group for group in range(self.stages, self.micro_batches + 1) if self.fits(group))
        return self.group or next(fits, self.stages)

    def fits(self, group: int) -> bool:
        """Return whether the last group has as many micro-batches as stages or more, or is the only one."""
        return self.micro_batches < group or not 0 < self.micro_batches % group < self.stages


PassKind: TypeAlias = Literal["forward", "backward", "input_gradient", "weight_gradient", "wait"]
"""A backward is whole, or in two halves: that of inputs, which the stage before waits for, and that of
weights. `wait`: until all messages that the stage sent have left."""
Direction: TypeAlias = Literal["forward", "backward"]

LETTERS: Mapping[PassKind, str] = {
    "forward": "F", "backward": "B", "input_gradient": "I", "weight_gradient": "W", "wait": "wait"
}  # fmt: skip
PHASES: Mapping[str, PassKind] = {letter: phase for phase, letter in LETTERS.items()}


def direction_of(phase: PassKind) -> Direction:
    """Return the direction in which a pass goes through the model."""
    return "forward" if phase == "forward" else "backward"


class Item(NamedTuple):
    """One micro-batch in one chunk of one stage, in one phase.

    >>> str(Item("forward", 3)), str(Item("weight_gradient", 0, 1))
    ('F3', 'W0.1')
    """

    phase: PassKind
    micro_batch: int = 0
    chunk: int = 0
    paired: bool = False
    """Whether it is meant to run beside the next item of its stage."""

    @property
    def direction(self) -> Direction:
        """The direction in which it passes the model."""
        return direction_of(self.phase)

    def __str__(self) -> str:
        """Return the item as schedule files write it."""
        if self.phase == "wait":
            return LETTERS["wait"]
        return f"{LETTERS[self.phase]}{self.micro_batch}{f'.{self.chunk}' if self.chunk else ''}"


Order: TypeAlias = tuple[Item, ...]
Placement: TypeAlias = tuple[tuple[int, ...], ...]
"""The part of the model of each chunk, by stage and chunk."""


class PassResult(NamedTuple):
    """What an item passes on: an activation, or the gradient of its input."""

    direction: Direction
    micro_batch: int
    chunk: int = 0


class BlockedError(ValueError):
    """The orders of stages wait for each other in a circle."""


class StageOrders(Struct, frozen=True, dict=True):
    """One schedule for one number of stages and micro-batches."""

    placement: Placement
    orders: tuple[Order, ...]

    @cached_property
    def holders(self) -> Mapping[int, tuple[tuple[int, int], ...]]:
        """The stage and the chunk of each copy of each part."""
        stages: dict[int, tuple[tuple[int, int], ...]] = {}
        for stage, chunks in enumerate(self.placement):
            for chunk, part in enumerate(chunks):
                stages[part] = (*stages.get(part, ()), (stage, chunk))
        return stages

    @cached_property
    def _copy_of(self) -> Mapping[tuple[int, int], tuple[int, int]]:
        """The stage and the chunk of the copy that each (part, micro-batch) passes."""
        return {
            (self.placement[stage][item.chunk], item.micro_batch): (stage, item.chunk)
            for stage, order in enumerate(self.orders)
            for item in order
            if item.phase == "forward"
        }

    def holder(self, part: int, micro_batch: int) -> tuple[int, int]:
        """Return stage and chunk of the copy of a part that a micro-batch passes."""
        copies = self.holders[part]
        return copies[0] if len(copies) == 1 else self._copy_of[part, micro_batch]

    @cached_property
    def last_part(self) -> int:
        """The part that computes the loss."""
        return max(self.holders)

    def needs(self, stage: int, item: Item) -> tuple[int, PassResult] | None:
        """Return the stage and the result that an item consumes; None where the model begins.

        The last part's backward consumes its own forward.
        """
        if item.phase == "wait":
            return None
        if item.phase == "weight_gradient":
            return stage, PassResult("backward", item.micro_batch, item.chunk)
        part = self.placement[stage][item.chunk]
        direction: Direction = item.direction
        if direction == "backward" and part == self.last_part:
            return stage, PassResult("forward", item.micro_batch, item.chunk)
        part += 1 if direction == "backward" else -1
        if part < 0:
            return None
        source, chunk = self.holder(part, item.micro_batch)
        return source, PassResult(direction, item.micro_batch, chunk)

    def consumer(self, stage: int, item: Item) -> int | None:
        """Return the stage that consumes an item's result as the next part; None where the model ends."""
        if item.phase in ("weight_gradient", "wait"):
            return None
        part = self.placement[stage][item.chunk] + (1 if item.phase == "forward" else -1)
        return self.holder(part, item.micro_batch)[0] if 0 <= part <= self.last_part else None

    def completed_chunks(self, stage: int) -> list[int]:
        """Return the chunks of a stage in the order in which all gradients of their parts are there.

        Stages that hold the same parts agree: the first of them says the order.
        """
        held = self.placement[stage]
        leader = next(first for first, parts in enumerate(self.placement) if set(parts) == set(held))
        last = {
            self.placement[leader][item.chunk]: place
            for place, item in enumerate(self.orders[leader])
            if item.direction == "backward" and item.phase != "wait"
        }
        return sorted(range(len(held)), key=lambda chunk: last[held[chunk]])

    @cached_property
    def arrivals(self) -> tuple[tuple[tuple[int, PassResult], ...], ...]:
        """By stage: what comes from other stages, and from which, in the order in which it is made.

        Who asks in this order cannot be blocked: of all messages the first that is not there yet is asked
        for, and is made before anything that waits for a later one.
        """
        incoming: list[list[tuple[int, PassResult]]] = [[] for _ in self.orders]
        for stage, item in self.execution():
            target = self.consumer(stage, item)
            if target is not None and target != stage:
                incoming[target].append((stage, PassResult(item.direction, item.micro_batch, item.chunk)))
        return tuple(map(tuple, incoming))

    @cached_property
    def phases(self) -> frozenset[PassKind]:
        """The phases that occur among the items."""
        return frozenset(item.phase for order in self.orders for item in order)

    def execution(self) -> Iterator[tuple[int, Item]]:
        """Yield all items in one order in which they can run, each stage in its own order.

        Unit-time list scheduling; ties by stage. `BlockedError` names the stages that wait for each other.
        """
        position = [0] * len(self.orders)
        done: set[tuple[int, PassResult]] = set()
        left = sum(map(len, self.orders))
        while left:
            ready = [
                (stage, order[position[stage]])
                for stage, order in enumerate(self.orders)
                if position[stage] < len(order) and self._is_ready(stage, order[position[stage]], done)
            ]
            if not ready:
                raise BlockedError(self._blocked(position))
            for stage, item in ready:
                position[stage] += 1
                if item.phase not in ("weight_gradient", "wait"):
                    done.add((stage, PassResult(item.direction, item.micro_batch, item.chunk)))
            left -= len(ready)
            yield from ready

    def _is_ready(self, stage: int, item: Item, done: set[tuple[int, PassResult]]) -> bool:
        needed = self.needs(stage, item)
        if item.direction == "backward" and item.phase != "wait":
            made = (stage, PassResult("forward", item.micro_batch, item.chunk))
            return needed in done and made in done
        return needed is None or needed in done

    def _blocked(self, position: list[int]) -> str:
        """Return a description of the circular wait, from the first stage that is not done."""
        waits = []
        for stage, order in enumerate(self.orders):
            if position[stage] < len(order):
                item = order[position[stage]]
                needed = self.needs(stage, item)
                assert needed is not None
                source, result = needed
                what = "F" if result.direction == "forward" else "the gradient of micro-batch "
                waits.append(f"stage {stage} at {item} for {what}{result.micro_batch} from stage {source}")
        return "stages wait for each other: " + ", ".join(waits[:4])


def in_flight(order: Order) -> int:
    """Return the most forwards of chunks that a stage holds at once before their backwards are done.

    >>> in_flight((Item("forward", 0), Item("input_gradient", 0), Item("forward", 1)))
    2
    """
    held = most = 0
    for item in order:
        held += (item.phase == "forward") - (item.phase in ("backward", "weight_gradient"))
        most = max(most, held)
    return most


Run = tuple[str, int]
"""A pattern such as "I1 W F1", and its number of repetitions (below 1: none)."""


@lru_cache(maxsize=256)
def _parsed(pattern: str) -> tuple[tuple[PassKind, int, bool], ...]:
    """Return phase, chunk and whether paired of each word; `F0&B1` are two."""
    words = [
        (word, place < len(group.split("&")) - 1)
        for group in pattern.split()
        for place, word in enumerate(group.split("&"))
    ]
    return tuple((PHASES[word[0]], int(word[1:] or 0), paired) for word, paired in words)


def order_of(runs: Iterable[Run], micro_batches: Sequence[Sequence[int]]) -> Order:
    """Return the items of runs, each the next micro-batch of its chunk in its direction.

    `micro_batches` are those that each chunk passes, in order. `F0`, `B0` and `I0` name a chunk; `W` is the
    weight gradient of the oldest input gradient that waits for it. What is over is left out.

    >>> [str(item) for item in order_of([("F0", 1), ("F0 I0 W", 2)], [range(2)])]
    ['F0', 'F1', 'I0', 'W0', 'I1', 'W1']
    """
    left = {
        (letter, chunk): deque(remaining) for chunk, remaining in enumerate(micro_batches) for letter in "FB"
    }
    deferred: deque[tuple[int, int]] = deque()
    items: list[Item] = []
    for pattern, times in runs:
        for _ in range(times):
            for phase, chunk, paired in _parsed(pattern):
                if phase == "weight_gradient":
                    if deferred:
                        items.append(Item(phase, *deferred.popleft()))
                    continue
                remaining = left["F" if phase == "forward" else "B", chunk]
                if remaining:
                    items.append(Item(phase, remaining.popleft(), chunk, paired))
                    if phase == "input_gradient":
                        deferred.append(items[-1][1:3])
    return tuple(items)


@lru_cache(maxsize=256)
def looping(stages: int, chunks: int) -> Placement:
    """Return the placement in which chunk c of stage s is part c·stages + s.

    >>> looping(2, 2)
    ((0, 2), (1, 3))
    """
    return tuple(tuple(range(stage, stages * chunks, stages)) for stage in range(stages))


def one_forward_one_backward(shape: PipelineShape) -> tuple[Order, ...]:
    """Return 1F1B (PipeDream-Flush): stage s warms up with stages - 1 - s forwards, then alternates.

    >>> [str(item) for item in one_forward_one_backward(PipelineShape(2, 3))[0]]
    ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']
    """
    count = shape.micro_batches
    return tuple(
        order_of([("F0", shape.stages - 1 - stage), ("F0 B0", count)], [range(count)])
        for stage in range(shape.stages)
    )


def _no_refusal(shape: PipelineShape) -> str | None:
    del shape
    return None


def _never(shape: PipelineShape) -> bool:
    del shape
    return False


def always(shape: PipelineShape) -> bool:
    """Return True, whatever the shape."""
    del shape
    return True


class PipelineSchedule(Struct, frozen=True):
    """A schedule, its constraints, and what follows from its order."""

    orders: Callable[[PipelineShape], tuple[Order, ...]]
    bound: Callable[[PipelineShape], int]
    """Returns the most chunks that a stage holds in flight: forwards whose backwards are not done."""
    placement: Callable[[int, int], Placement] = looping
    """Returns the placement for a number of stages and chunks."""
    chunks: int | None = 1
    """Number of chunks of a stage; None: as the job states."""
    refusal: Callable[[PipelineShape], str | None] = _no_refusal
    """Returns why the schedule cannot run for a shape; None: it can."""
    ahead: bool = True
    """Messages are asked for ahead of need (stages would block each other), and travel beside compute unless
    the job says otherwise, as in Megatron-LM."""
    by_need: Callable[[PipelineShape], bool] = _never
    """Whether stages may ask for messages in the order in which they need them without blocking each other;
    else they ask in the order in which these are made."""
    backward_follows_loss: bool = False
    """Whether the last stage runs nothing between a micro-batch's loss and its backward."""

    def stage_orders(self, shape: PipelineShape) -> StageOrders:
        """Return the orders of all stages; recently used short ones are cached."""
        passes = shape.stages * shape.chunks * shape.micro_batches
        return (_kept if passes <= _SHORT else _stage_orders)(self, shape)


_SHORT = 1 << 13
"""Largest number of passes in one direction for which orders are cached."""


def _stage_orders(schedule: PipelineSchedule, shape: PipelineShape) -> StageOrders:
    return StageOrders(schedule.placement(shape.stages, shape.chunks), schedule.orders(shape))


_kept = lru_cache(maxsize=16)(_stage_orders)
