"""How a model's parts and its replicas work together: pipeline schedules and sharding policies.

A pipeline stage holds `chunks` model chunks; chunk c of stage s is part c·stages + s of the model (virtual
stage). A new schedule is a function from (stages, micro_batches, chunks) to one list of items a stage, and
its entry in `SCHEDULES`.

The replicas of a part form the process group `group` of the traffic table. A sharding policy says which of
their states are split over that group, with which collective gradients are reduced, and with which, and when,
parameters are gathered. Checks, memory and the written step ask the policy, never for its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

from rapid_des.units import ceil_divide

Phase: TypeAlias = Literal["forward", "backward"]


class Item(NamedTuple):
    """One micro-batch through one chunk of one stage, in one direction."""

    phase: Phase
    micro_batch: int
    chunk: int = 0


Order: TypeAlias = tuple[Item, ...]
Orders: TypeAlias = Callable[[int, int, int], tuple[Order, ...]]
"""From stages, micro-batches and chunks to each stage's order."""


def part_of(stages: int, stage: int, chunk: int) -> int:
    """Return which part of the model a stage's chunk is."""
    return chunk * stages + stage


def gpipe(stages: int, micro_batches: int, chunks: int) -> tuple[Order, ...]:
    """Return all forwards, then all backwards (Huang et al. 2019).

    >>> [item.phase[0] + str(item.micro_batch) for item in gpipe(2, 2, 1)[0]]
    ['f0', 'f1', 'b0', 'b1']
    """
    del chunks
    forward = [Item("forward", index) for index in range(micro_batches)]
    backward = [Item("backward", index) for index in range(micro_batches)]
    return (tuple(forward + backward),) * stages


def one_forward_one_backward(stages: int, micro_batches: int, chunks: int) -> tuple[Order, ...]:
    """Return 1F1B (PipeDream-Flush): stage s warms up with stages - 1 - s forwards, then alternates.

    >>> [item.phase[0] + str(item.micro_batch) for item in one_forward_one_backward(2, 3, 1)[0]]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']
    """
    del chunks
    forward = [Item("forward", index) for index in range(micro_batches)]
    backward = [Item("backward", index) for index in range(micro_batches)]
    return tuple(_alternate(forward, backward, stages - 1 - stage) for stage in range(stages))


def interleaved(stages: int, micro_batches: int, chunks: int) -> tuple[Order, ...]:
    """Return interleaved 1F1B (Narayanan et al. 2021): groups of `stages` micro-batches pass chunk by chunk.

    Stage s warms up with 2·(stages - s - 1) + (chunks - 1)·stages forwards; needs micro_batches to be a
    multiple of stages.
    """
    forward = [
        Item("forward", group + index, chunk)
        for group in range(0, micro_batches, stages)
        for chunk in range(chunks)
        for index in range(min(stages, micro_batches - group))
    ]
    backward = [Item("backward", item.micro_batch, chunks - 1 - item.chunk) for item in forward]
    if micro_batches == stages:
        return (tuple(forward + backward),) * stages
    warm_up = [2 * (stages - stage - 1) + (chunks - 1) * stages for stage in range(stages)]
    return tuple(_alternate(forward, backward, count) for count in warm_up)


def _alternate(forward: Sequence[Item], backward: Sequence[Item], warm_up: int) -> Order:
    warm_up = min(warm_up, len(forward))
    steady = [item for pair in zip(forward[warm_up:], backward, strict=False) for item in pair]
    return (*forward[:warm_up], *steady, *backward[len(forward) - warm_up :])


def _interleaved_refusal(stages: int, micro_batches: int, chunks: int) -> str | None:
    if chunks < 2 or stages < 2:
        return f"interleaved_1f1b needs pp and chunks of at least 2, they are {stages} and {chunks}"
    if micro_batches % stages:
        return f"micro-batches {micro_batches} does not divide by pp {stages}"
    return None


def _no_refusal(stages: int, micro_batches: int, chunks: int) -> str | None:
    del stages, micro_batches, chunks
    return None


@dataclass(frozen=True)
class Schedule:
    """A schedule, and what follows from its order."""

    orders: Orders
    refusal: Callable[[int, int, int], str | None] = _no_refusal
    """Why it can not run (stages, micro-batches, chunks); None: it can."""
    interleaves: bool = False
    """Whether a stage holds several chunks. Messages are then asked for ahead of need (stages would block
    each other), and travel beside compute unless the job says otherwise, as in Megatron-LM."""
    backward_follows_loss: bool = False
    """Whether the last stage runs nothing between a micro-batch's loss and its backward."""


SCHEDULES: Mapping[str, Schedule] = {
    "gpipe": Schedule(gpipe),
    "1f1b": Schedule(one_forward_one_backward, backward_follows_loss=True),
    "interleaved_1f1b": Schedule(interleaved, _interleaved_refusal, interleaves=True),
}


def in_flight(order: Order) -> int:
    """Return the most forwards that a stage holds at once before their backwards have run.

    >>> in_flight(one_forward_one_backward(4, 8, 1)[0]), in_flight(gpipe(4, 8, 1)[0])
    (4, 8)
    """
    held = most = 0
    for item in order:
        held += 1 if item.phase == "forward" else -1
        most = max(most, held)
    return most


def predecessor(stages: int, chunks: int, stage: int, item: Item) -> tuple[int, Item] | None:
    """Return the stage and item whose result `item` consumes; None where the model begins.

    The last part's backward consumes its own forward.
    """
    part = part_of(stages, stage, item.chunk)
    last = stages * chunks - 1
    if item.phase == "forward":
        part -= 1
        phase: Phase = "forward"
    elif part == last:
        phase = "forward"
    else:
        part += 1
        phase = "backward"
    if part < 0:
        return None
    return part % stages, Item(phase, item.micro_batch, part // stages)


def execution_order(orders: tuple[Order, ...], chunks: int) -> tuple[tuple[int, Item], ...]:
    """Return one order in which all items can run, each stage in its own order.

    Unit-time list scheduling; ties by stage. `ValueError` if the lists block each other.
    """
    stages = len(orders)
    position = [0] * stages
    done: set[tuple[int, Item]] = set()
    ran: list[tuple[int, Item]] = []
    while len(ran) < sum(map(len, orders)):
        ready = []
        for stage, order in enumerate(orders):
            if position[stage] < len(order):
                needs = predecessor(stages, chunks, stage, order[position[stage]])
                if needs is None or needs in done:
                    ready.append((stage, order[position[stage]]))
        if not ready:
            raise ValueError("the stages' orders wait for each other")
        for stage, item in ready:
            position[stage] += 1
            done.add((stage, item))
        ran += ready
    return tuple(ran)


State: TypeAlias = Literal["parameters", "gradients", "optimizer"]


@dataclass(frozen=True)
class ShardingPolicy:
    """One way to hold a model's state on its replicas."""

    split: frozenset[State]
    """Of which states a replica holds only its part from step to step."""
    reduce: str
    """The role (in `TRAFFIC`) by which a bucket of gradients is summed."""
    gather: str | None = None
    """The role by which updated parameters come back; None: every replica updates all of them."""

    @property
    def by_unit(self) -> bool:
        """Whether parameters are whole only while their unit (a layer) computes, and gathered for that."""
        return "parameters" in self.split


REPLICATED = ShardingPolicy(split=frozenset(), reduce="dp.reduce")
DISTRIBUTED_OPTIMIZER = ShardingPolicy(
    split=frozenset({"optimizer"}), reduce="dp.scatter", gather="dp.gather"
)


def for_experts(policy: ShardingPolicy) -> ShardingPolicy:
    """Return the policy with the messages of routed experts' replicas."""
    gather = None if policy.gather is None else f"e{policy.gather}"
    return replace(policy, reduce=f"e{policy.reduce}", gather=gather)


ZERO_STAGES: Mapping[int, ShardingPolicy] = {
    0: REPLICATED,
    1: DISTRIBUTED_OPTIMIZER,
    2: replace(DISTRIBUTED_OPTIMIZER, split=frozenset({"optimizer", "gradients"})),
    3: replace(DISTRIBUTED_OPTIMIZER, split=frozenset({"optimizer", "gradients", "parameters"})),
}
"""By `training.zero_stage` (Rajbhandari et al. 2020); 3 is what FSDP shards fully (Zhao et al. 2023)."""


@dataclass(frozen=True)
class Sharding:
    """A policy as one job uses it."""

    policy: ShardingPolicy
    group: str
    """The process group that holds the replicas: a key of `GROUPS`."""
    replicas: int
    ahead: bool
    """Gathers stand before the next forward, beside compute; otherwise after the optimizer."""

    each: bool = False
    """Gradients are reduced after every micro-batch's backward, not only after the last one's."""

    @property
    def gathers(self) -> str | None:
        """The role by which parameters are gathered once a step; None where nothing has to travel then."""
        return None if self.policy.by_unit else self.unit_gathers

    @property
    def unit_gathers(self) -> str | None:
        """The role by which parameters are gathered, of a unit or once a step; None where none travel."""
        return self.policy.gather if self.replicas > 1 else None

    @property
    def norm_groups(self) -> tuple[str, ...]:
        """The groups that the gradient norm is summed over: replicas where each knows only its part."""
        return (self.group, "model") if "optimizer" in self.policy.split else ("model",)

    def held(self, state: State, elements: int) -> int:
        """Return how many of a rank's `elements` it holds of one state."""
        whole = state not in self.policy.split or (state == "gradients" and not self.each)
        return elements if whole else ceil_divide(elements, self.replicas)
