"""Schedules whose stages hold every pp-th part, with whole backwards."""

from __future__ import annotations

from collections.abc import Sequence

from rapid_des.frontend.schedules.plan import Item, Order, Placement
from rapid_des.frontend.schedules.runs import order_of
from rapid_des.frontend.schedules.shape import Shape


def looping(stages: int, chunks: int) -> Placement:
    """Return the placement in which chunk c of stage s is part c·stages + s.

    >>> looping(2, 2)
    ((0, 2), (1, 3))
    """
    return tuple(tuple(range(stage, stages * chunks, stages)) for stage in range(stages))


def gpipe(shape: Shape) -> tuple[Order, ...]:
    """Return all forwards, then all backwards (Huang et al. 2019)."""
    return breadth_first(shape)


def breadth_first(shape: Shape) -> tuple[Order, ...]:
    """Return all forwards chunk by chunk, then all backwards from the last chunk on (Lamy-Poirier 2022)."""
    count, chunks = shape.micro_batches, range(shape.chunks)
    runs = [(f"F{chunk}", count) for chunk in chunks] + [(f"B{chunk}", count) for chunk in reversed(chunks)]
    return (order_of(runs, [range(count)] * shape.chunks),) * shape.stages


def one_forward_one_backward(shape: Shape) -> tuple[Order, ...]:
    """Return 1F1B (PipeDream-Flush): stage s warms up with stages - 1 - s forwards, then alternates.

    >>> [str(item) for item in one_forward_one_backward(Shape(2, 3))[0]]
    ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']
    """
    count = shape.micro_batches
    return tuple(
        order_of([("F0", shape.stages - 1 - stage), ("F0 B0", count)], [range(count)])
        for stage in range(shape.stages)
    )


def interleaved(shape: Shape) -> tuple[Order, ...]:
    """Return interleaved 1F1B (Narayanan et al. 2021): groups of micro-batches pass chunk by chunk.

    A group is `stages` micro-batches unless the job says more; the last one has what is left. Stage s warms
    up with 2·(stages - s - 1) + (chunks - 1)·group forwards.
    """
    stages, micro_batches, chunks, group = shape.stages, shape.micro_batches, shape.chunks, shape.in_group
    forward = [
        Item("forward", first + index, chunk)
        for first in range(0, micro_batches, group)
        for chunk in range(chunks)
        for index in range(min(group, micro_batches - first))
    ]
    backward = [Item("backward", item.micro_batch, chunks - 1 - item.chunk) for item in forward]
    if micro_batches == stages:
        return (tuple(forward + backward),) * stages
    warm_up = [2 * (stages - stage - 1) + (chunks - 1) * group for stage in range(stages)]
    return tuple(_alternate(forward, backward, count) for count in warm_up)


def _alternate(forward: Sequence[Item], backward: Sequence[Item], warm_up: int) -> Order:
    warm_up = min(warm_up, len(forward))
    steady = [item for pair in zip(forward[warm_up:], backward, strict=False) for item in pair]
    return (*forward[:warm_up], *steady, *backward[len(forward) - warm_up :])


def interleaved_bound(shape: Shape) -> int:
    """Return what the first stage holds: its warm-up and one (Korthikanti et al. 2022, section 4.2.3)."""
    warm_up = 2 * (shape.stages - 1) + (shape.chunks - 1) * shape.in_group
    most = shape.micro_batches * shape.chunks
    return most if shape.micro_batches == shape.stages else min(most, warm_up + 1)


def interleaved_refusal(shape: Shape) -> str | None:
    """Return why micro-batches do not pass in groups, as Megatron Core refuses them."""
    stages, group = shape.stages, shape.in_group
    if shape.chunks < 2 or stages < 2:
        return f"interleaved_1f1b needs pp and chunks of at least 2, they are {stages} and {shape.chunks}"
    if not stages <= group <= max(shape.micro_batches, stages):
        return f"groups of {group} micro-batches; allowed: from pp {stages} to all {shape.micro_batches}"
    rest = shape.micro_batches % group
    if 0 < rest < stages and group == stages:
        return f"micro-batches {shape.micro_batches} does not divide by pp {stages}{_groups(shape)}"
    if 0 < rest < stages:
        return (
            f"micro-batches {shape.micro_batches} in groups of {group} leave {rest}, fewer than pp {stages}"
            f"{_groups(shape)}"
        )
    return None


def _groups(shape: Shape) -> str:
    """Return what else could be chosen."""
    fits = [
        group
        for group in range(shape.stages, shape.micro_batches + 1)
        if not 0 < shape.micro_batches % group < shape.stages
    ]
    return f"; training.micro_batch_group may be {', '.join(map(str, fits[:6]))}" if fits else ""


def breadth_first_refusal(shape: Shape) -> str | None:
    """Return why there is no loop."""
    if shape.chunks < 2 or shape.stages < 2:
        return (
            f"breadth_first needs pp and chunks of at least 2, they are {shape.stages} and {shape.chunks}; "
            "with one chunk it is gpipe"
        )
    return None
