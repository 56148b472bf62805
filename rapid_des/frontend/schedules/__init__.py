"""Pipeline schedules: their table, and the orders of each.

A new schedule is a function from a `PipelineShape` to one order for each stage, like
`schedule.one_forward_one_backward`, and its entry in `SCHEDULES`. Users write schedules as files (`files`).

Zero bubble and DualPipe take backwards apart, into gradients of inputs and of weights.

Zero bubble: weight gradients fill what stages would wait (Qi et al. 2023, arXiv 2401.10241).

With F, B and W for forward, input gradient and weight gradient, the bubble of a stage from its first item to
its last is (p - 1)·(F + B - W) in ZB-H1 and (p - 1)·(F + B - 2W) in ZB-H2; ZB-V has none where all three take
equally long. A step starts on all stages at once here: that a stage may begin the next one while others
still end this one, for which the paper validates the optimizer's step afterwards, is not part of an order.

DualPipe and DualPipeV: forwards of one chunk run beside backwards of the other (arXiv 2412.19437).

DualPipe feeds micro-batches from both ends: stage s holds parts s and p - 1 - s, the second for those that
come from the far end, so every part stands on two stages, which sum their gradients. DualPipeV is one half
of it, cut in the middle: stage s of h holds parts s and 2h - 1 - s, and all micro-batches go down and up
again. With a pair F&B, a whole backward B and a weight gradient W, the paper gives a bubble of
(p/2 - 1)·(F&B + B - 3W) and p + 1 chunks in flight, p being 2h in DualPipeV.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rapid_des.frontend.schedules.files import ScheduleSpec as ScheduleSpec
from rapid_des.frontend.schedules.files import from_file as from_file
from rapid_des.frontend.schedules.schedule import (
    Item,
    Order,
    PipelineShape,
    Placement,
    Run,
    always,
    one_forward_one_backward,
    order_of,
)
from rapid_des.frontend.schedules.schedule import PipelineSchedule as PipelineSchedule
from rapid_des.frontend.schedules.schedule import StageOrders as StageOrders
from rapid_des.values import replace


def v_shape(stages: int, chunks: int) -> Placement:
    """Return the placement that goes down the stages and back: stage s holds parts s and 2·stages - 1 - s.

    >>> v_shape(2, 2)
    ((0, 3), (1, 2))
    """
    assert chunks == 2
    return tuple((stage, 2 * stages - 1 - stage) for stage in range(stages))


def zb_h1(shape: PipelineShape) -> tuple[Order, ...]:
    """Return 1F1B whose stage s runs each weight gradient s micro-batches late: as much in flight as 1F1B.

    >>> [str(item) for item in zb_h1(PipelineShape(2, 3))[1]]
    ['F0', 'I0', 'F1', 'I1', 'W0', 'F2', 'I2', 'W1', 'W2']
    """
    return tuple(_late(shape, shape.stages - 1 - stage, stage) for stage in range(shape.stages))


def zb_h2(shape: PipelineShape) -> tuple[Order, ...]:
    """Return ZB-H1 with twice the warm-up and twice the delay: 2·stages - 1 micro-batches in flight."""
    return tuple(_late(shape, 2 * (shape.stages - 1 - stage), 2 * stage) for stage in range(shape.stages))


def _late(shape: PipelineShape, warm_up: int, delay: int) -> Order:
    count = shape.micro_batches
    runs = [("F0", warm_up), ("F0 I0", min(delay, count)), ("F0 I0 W", count), ("W", count)]
    return order_of(runs, [range(count)])


def zb_v(shape: PipelineShape) -> tuple[Order, ...]:
    """Return ZB-V: every stage fills its 2·stages chunks in flight until the first gradient is there.

    That arrives at stage s when it has run 2·stages chunks without a pause: the first chunk alone until the
    second's input has gone down the V and up again to s, then both in turn. Weight gradients follow their
    input gradients, but for those of the end, which fill it.
    """
    return tuple(_v_order(shape, stage) for stage in range(shape.stages))


def _v_order(shape: PipelineShape, stage: int) -> Order:
    stages, count = shape.stages, shape.micro_batches
    runs = [
        ("F0", 2 * (stages - stage) - 1),
        ("F1 F0", stage),
        ("F1 I1 W", stages - stage),
        ("F0 I0 W F1 I1 W", count - stages),
        ("I0 I1", stage),
        ("I0 W", stages - stage),
        ("I0 I1", count),
        ("W", 2 * count),
    ]
    return order_of(runs, [range(count)] * 2)


def mirrored(stages: int, chunks: int) -> Placement:
    """Return the placement with two copies of each part: stage s holds parts s and stages - 1 - s.

    >>> mirrored(4, 2)
    ((0, 3), (1, 2), (2, 1), (3, 0))
    """
    assert chunks == 2
    return tuple((stage, stages - 1 - stage) for stage in range(stages))


def _runs(half: int, distance: int, count: int) -> list[Run]:
    """Return a stage's runs, `distance` from its end of a half, for `count` micro-batches in each direction.

    Chunk 0 is the one whose micro-batches come from the stage's own end. Stages warm up with it, take turns
    until gradients arrive, pair forwards with backwards of the other chunk, and end on halves of backwards
    that fill the pauses.
    """
    inner = half - 1 - distance
    pairs = count - 2 * half + distance + 1
    first = ["F0 B1 F1&B0"] if inner == 0 and pairs > 0 else []
    return [
        ("F0", 2 * inner),
        ("F0 F1", distance + 1),
        ("I1 W F1", inner),
        *((pattern, 1) for pattern in first),
        ("F0&B1 F1&B0", pairs - len(first)),
        ("B1 F1&B0", inner),
        (_last_backwards(distance + 1), 1),
        ("W I0", inner),
        ("W", distance + 1),
    ]


def _last_backwards(pairs: int) -> str:
    """Return that many backwards of each chunk in turn, the second half of them without weight gradients."""
    words = [word for _ in range(pairs) for word in ("B1", "B0")]
    return " ".join(word if place < pairs else word.replace("B", "I") for place, word in enumerate(words))


def dual_pipe(shape: PipelineShape) -> tuple[Order, ...]:
    """Return DualPipe; even micro-batches enter at the first stage, odd ones at the last."""
    half, each = shape.stages // 2, shape.micro_batches // 2
    near, far = (range(end, shape.micro_batches, 2) for end in (0, 1))
    first = [order_of(_runs(half, stage, each), (near, far)) for stage in range(half)]
    second = [order_of(_runs(half, stage, each), (far, near)) for stage in reversed(range(half))]
    return (*first, *(_swapped(order) for order in second))


def _swapped(order: Order) -> Order:
    """Return an order with its chunks' numbers exchanged."""
    return tuple(item._replace(chunk=1 - item.chunk) for item in order)


def dual_pipe_v(shape: PipelineShape) -> tuple[Order, ...]:
    """Return DualPipeV."""
    every = range(shape.micro_batches)
    return tuple(
        order_of(_runs(shape.stages, stage, shape.micro_batches), (every, every))
        for stage in range(shape.stages)
    )


def dual_pipe_refusal(shape: PipelineShape) -> str | None:
    """Return why the number of micro-batches does not fill both directions."""
    if shape.stages % 2 or shape.micro_batches % 2:
        return f"dualpipe needs pp and micro-batches even, they are {shape.stages} and {shape.micro_batches}"
    return _too_few("dualpipe", shape)


def dual_pipe_v_refusal(shape: PipelineShape) -> str | None:
    """Return why the number of micro-batches does not fill the V."""
    return _too_few("dualpipe_v", shape)


def _too_few(name: str, shape: PipelineShape) -> str | None:
    if shape.micro_batches < 2 * shape.stages:
        return (
            f"{name} needs at least 2·pp = {2 * shape.stages} micro-batches, there are {shape.micro_batches}"
        )
    return None


def gpipe(shape: PipelineShape) -> tuple[Order, ...]:
    """Return all forwards, then all backwards (Huang et al. 2019)."""
    return breadth_first(shape)


def breadth_first(shape: PipelineShape) -> tuple[Order, ...]:
    """Return all forwards chunk by chunk, then all backwards from the last chunk on (Lamy-Poirier 2022)."""
    count, chunks = shape.micro_batches, range(shape.chunks)
    runs = [(f"F{chunk}", count) for chunk in chunks] + [(f"B{chunk}", count) for chunk in reversed(chunks)]
    return (order_of(runs, [range(count)] * shape.chunks),) * shape.stages


def interleaved(shape: PipelineShape) -> tuple[Order, ...]:
    """Return interleaved 1F1B (Narayanan et al. 2021): groups of micro-batches pass chunk by chunk.

    The last group has what is left. Stage s warms up with 2·(stages - s - 1) + (chunks - 1)·group forwards,
    also where there is one group: PyTorch (`ScheduleInterleaved1F1B`) and Megatron Core since it has groups.
    """
    stages, micro_batches, chunks, group = shape.stages, shape.micro_batches, shape.chunks, shape.in_group
    forward = [
        Item("forward", first + index, chunk)
        for first in range(0, micro_batches, group)
        for chunk in range(chunks)
        for index in range(min(group, micro_batches - first))
    ]
    backward = [Item("backward", item.micro_batch, chunks - 1 - item.chunk) for item in forward]
    warm_up = [2 * (stages - stage - 1) + (chunks - 1) * group for stage in range(stages)]
    return tuple(_alternate(forward, backward, count) for count in warm_up)


def _alternate(forward: Sequence[Item], backward: Sequence[Item], warm_up: int) -> Order:
    warm_up = min(warm_up, len(forward))
    steady = [item for pair in zip(forward[warm_up:], backward, strict=False) for item in pair]
    return (*forward[:warm_up], *steady, *backward[len(forward) - warm_up :])


def interleaved_bound(shape: PipelineShape) -> int:
    """Return the peak of the first stage: its warm-up and one (Korthikanti et al. 2022, section 4.2.3)."""
    warm_up = 2 * (shape.stages - 1) + (shape.chunks - 1) * shape.in_group
    return min(shape.micro_batches * shape.chunks, warm_up + 1)


def interleaved_refusal(shape: PipelineShape) -> str | None:
    """Return why micro-batches do not pass in groups, as Megatron Core refuses them."""
    stages, group = shape.stages, shape.in_group
    if shape.chunks < 2 or stages < 2:
        return f"interleaved_1f1b needs pp and chunks of at least 2, they are {stages} and {shape.chunks}"
    if not stages <= group <= max(shape.micro_batches, stages):
        return f"groups of {group} micro-batches; allowed: from pp {stages} to all {shape.micro_batches}"
    if not shape.fits(group):
        return (
            f"micro-batches {shape.micro_batches} in groups of {group} leave {shape.micro_batches % group}, "
            f"fewer than pp {stages}, whose stages would wait for each other{_groups(shape)}"
        )
    return None


def _groups(shape: PipelineShape) -> str:
    """Return the group sizes that could be chosen instead, in words."""
    fits = [group for group in range(shape.stages, shape.micro_batches + 1) if shape.fits(group)]
    return f"; training.micro_batch_group may be {', '.join(map(str, fits[:6]))}" if fits else ""


def breadth_first_refusal(shape: PipelineShape) -> str | None:
    """Return why the schedule cannot run; None if it can."""
    if shape.chunks < 2 or shape.stages < 2:
        return (
            f"breadth_first needs pp and chunks of at least 2, they are {shape.stages} and {shape.chunks}; "
            "with one chunk it is gpipe"
        )
    return None


PAIRABLE = ("1f1b", "interleaved_1f1b")
"""Schedules that warm up and then alternate one forward and one whole backward."""


def pairs_refusal(chosen: object, stages: int, *, ep: int, by_unit: bool) -> str | None:
    """Return why a job cannot run forwards beside backwards; None if it can."""
    if chosen not in PAIRABLE:
        other = chosen if isinstance(chosen, str) else "a file's own"
        return f"forwards and backwards are paired in {' and '.join(PAIRABLE)}, not in {other}"
    if chosen == "1f1b" and stages > 1:
        problem = f"pairs of 1f1b would wait for each other's stages (pp {stages})"
        return f"{problem}; interleaved_1f1b warms up far enough"
    if ep == 1:
        return "no tokens travel among experts (ep 1), beside which the other batch could compute"
    return "parameters are gathered unit by unit, of one micro-batch at a time" if by_unit else None


def in_pairs(order: Order) -> Order:
    """Return an order of whole backwards whose steady state runs forward and backward beside each other.

    >>> from rapid_des.frontend.schedules.schedule import Item
    >>> order = tuple(Item(phase, index) for index in range(3) for phase in ("forward", "backward"))
    >>> [str(item) + "&" * item.paired for item in in_pairs(order)]
    ['F0', 'F1&', 'B0', 'F2&', 'B1', 'B2']
    """
    forwards = [item for item in order if item.phase == "forward"]
    backwards = [item for item in order if item.phase != "forward"]
    first = next((place for place, item in enumerate(order) if item.phase != "forward"), len(order))
    early = forwards[:first]
    steady = [item._replace(paired=True) for item in forwards[first:]]
    pairs = [item for pair in zip(steady, backwards, strict=False) for item in pair]
    return (*early, *pairs, *backwards[len(steady) :])


def with_pairs(schedule: PipelineSchedule) -> PipelineSchedule:
    """Return a schedule whose steady state runs each forward beside a backward of another micro-batch.

    Megatron Core's batch-level overlap (`overlap_moe_expert_parallel_comm`): every stage warms up with one
    forward more than its schedule says, so that no backward waits for the forward beside it.
    """
    return replace(
        schedule,
        orders=lambda shape: tuple(map(in_pairs, schedule.orders(shape))),
        bound=lambda shape: schedule.bound(shape) + 1,
        backward_follows_loss=False,
    )


SCHEDULES: Mapping[str, PipelineSchedule] = {
    "gpipe": PipelineSchedule(
        gpipe,
        bound=lambda shape: shape.micro_batches,
        ahead=False,
        by_need=always,
    ),
    "1f1b": PipelineSchedule(
        one_forward_one_backward,
        bound=lambda shape: min(shape.micro_batches, shape.stages),
        ahead=False,
        by_need=always,
        backward_follows_loss=True,
    ),
    "interleaved_1f1b": PipelineSchedule(
        interleaved,
        bound=interleaved_bound,
        chunks=None,
        refusal=interleaved_refusal,
        by_need=lambda shape: shape.in_group == shape.stages,
    ),
    "breadth_first": PipelineSchedule(
        breadth_first,
        bound=lambda shape: shape.micro_batches * shape.chunks,
        chunks=None,
        refusal=breadth_first_refusal,
    ),
    "zb_h1": PipelineSchedule(
        zb_h1,
        bound=lambda shape: min(shape.micro_batches, shape.stages),
    ),
    "zb_h2": PipelineSchedule(
        zb_h2,
        bound=lambda shape: min(shape.micro_batches, 2 * shape.stages - 1),
    ),
    "zb_v": PipelineSchedule(
        zb_v,
        bound=lambda shape: 2 * min(shape.micro_batches, shape.stages),
        placement=v_shape,
        chunks=2,
    ),
    "dualpipe": PipelineSchedule(
        dual_pipe,
        bound=lambda shape: shape.stages + 1,
        placement=mirrored,
        chunks=2,
        refusal=dual_pipe_refusal,
    ),
    "dualpipe_v": PipelineSchedule(
        dual_pipe_v,
        bound=lambda shape: 2 * shape.stages + 1,
        placement=v_shape,
        chunks=2,
        refusal=dual_pipe_v_refusal,
    ),
}
