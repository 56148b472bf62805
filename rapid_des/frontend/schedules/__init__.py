"""Pipeline schedules: the table of those there are, and the orders of the older ones.

A new schedule is a function from a `PipelineShape` to one order for each stage, like
`schedule.one_forward_one_backward`, and its entry in `SCHEDULES`. Users write schedules as files (`files`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rapid_des.frontend.schedules import in_halves
from rapid_des.frontend.schedules.files import ScheduleSpec as ScheduleSpec
from rapid_des.frontend.schedules.files import from_file as from_file
from rapid_des.frontend.schedules.schedule import Item, Order, always, one_forward_one_backward, order_of
from rapid_des.frontend.schedules.schedule import PipelineSchedule as PipelineSchedule
from rapid_des.frontend.schedules.schedule import PipelineShape as PipelineShape
from rapid_des.frontend.schedules.schedule import StageOrders as StageOrders
from rapid_des.values import replace


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

    The last group has what is left. Stage s warms
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


def interleaved_bound(shape: PipelineShape) -> int:
    """Return the peak of the first stage: its warm-up and one (Korthikanti et al. 2022, section 4.2.3)."""
    warm_up = 2 * (shape.stages - 1) + (shape.chunks - 1) * shape.in_group
    most = shape.micro_batches * shape.chunks
    return most if shape.micro_batches == shape.stages else min(most, warm_up + 1)


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
    """Return why the schedule can not run; None if it can."""
    if shape.chunks < 2 or shape.stages < 2:
        return (
            f"breadth_first needs pp and chunks of at least 2, they are {shape.stages} and {shape.chunks}; "
            "with one chunk it is gpipe"
        )
    return None


PAIRABLE = ("1f1b", "interleaved_1f1b")
"""Schedules that warm up and then alternate one forward and one whole backward."""


def pairs_refusal(chosen: object, stages: int, *, ep: int, by_unit: bool) -> str | None:
    """Return why a job can not run forwards beside backwards; None if it can."""
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
        in_halves.zb_h1,
        bound=lambda shape: min(shape.micro_batches, shape.stages),
    ),
    "zb_h2": PipelineSchedule(
        in_halves.zb_h2,
        bound=lambda shape: min(shape.micro_batches, 2 * shape.stages - 1),
    ),
    "zb_v": PipelineSchedule(
        in_halves.zb_v,
        bound=lambda shape: 2 * min(shape.micro_batches, shape.stages),
        placement=in_halves.v_shape,
        chunks=2,
    ),
    "dualpipe": PipelineSchedule(
        in_halves.dual_pipe,
        bound=lambda shape: shape.stages + 1,
        placement=in_halves.mirrored,
        chunks=2,
        refusal=in_halves.dual_pipe_refusal,
    ),
    "dualpipe_v": PipelineSchedule(
        in_halves.dual_pipe_v,
        bound=lambda shape: 2 * shape.stages + 1,
        placement=in_halves.v_shape,
        chunks=2,
        refusal=in_halves.dual_pipe_v_refusal,
    ),
}
