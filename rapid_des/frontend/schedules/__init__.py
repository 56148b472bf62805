"""Pipeline schedules: each an order of items for every stage, with what it needs and what it holds.

A new schedule is a function from a `Shape` to one order a stage, and its entry in `SCHEDULES`; a schedule of
one's own is a file (`files`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from rapid_des.frontend.schedules import dual_pipe, looped, zero_bubble
from rapid_des.frontend.schedules.files import ScheduleSpec, plan_of, refusal
from rapid_des.frontend.schedules.looped import looping
from rapid_des.frontend.schedules.pairs import in_pairs, pairs_refusal
from rapid_des.frontend.schedules.plan import Order, Placement, Plan, in_flight
from rapid_des.frontend.schedules.shape import Shape

__all__ = [
    "SCHEDULES",
    "Plan",
    "Schedule",
    "ScheduleSpec",
    "Shape",
    "pairs_refusal",
    "schedule_of",
    "with_pairs",
]


def _no_refusal(shape: Shape) -> str | None:
    del shape
    return None


def _never(shape: Shape) -> bool:
    del shape
    return False


def _always(shape: Shape) -> bool:
    del shape
    return True


@dataclass(frozen=True)
class Schedule:
    """A schedule, its constraints, and what follows from its order."""

    orders: Callable[[Shape], tuple[Order, ...]]
    bound: Callable[[Shape], int]
    """The most chunks that a stage holds in flight: forwards whose backwards are not done."""
    placement: Callable[[int, int], Placement] = looping
    """From stages and chunks."""
    chunks: int | None = 1
    """Chunks a stage holds; None: as many as the job says."""
    refusal: Callable[[Shape], str | None] = _no_refusal
    """Why it can not run; None: it can."""
    ahead: bool = True
    """Messages are asked for ahead of need (stages would block each other), and travel beside compute unless
    the job says otherwise, as in Megatron-LM."""
    by_need: Callable[[Shape], bool] = _never
    """Whether stages may ask for messages in the order in which they need them without blocking each other;
    else they ask in the order in which these are made."""
    backward_follows_loss: bool = False
    """Whether the last stage runs nothing between a micro-batch's loss and its backward."""

    def plan(self, shape: Shape) -> Plan:
        """Return what each stage runs."""
        return Plan(self.placement(shape.stages, shape.chunks), self.orders(shape))


def schedule_of(chosen: str | ScheduleSpec) -> Schedule:
    """Return the schedule of a name, or that of a file."""
    if isinstance(chosen, str):
        return SCHEDULES[chosen]
    plan = plan_of(chosen)
    return Schedule(
        lambda _: plan.orders,
        bound=lambda _: max(map(in_flight, plan.orders)),
        placement=lambda _stages, _chunks: plan.placement,
        chunks=max(map(len, plan.placement)),
        refusal=lambda shape: refusal(chosen, shape),
    )


def with_pairs(schedule: Schedule) -> Schedule:
    """Return a schedule whose steady state runs each forward beside a backward of another micro-batch."""
    return replace(
        schedule,
        orders=lambda shape: tuple(map(in_pairs, schedule.orders(shape))),
        bound=lambda shape: schedule.bound(shape) + 1,
        backward_follows_loss=False,
    )


SCHEDULES: Mapping[str, Schedule] = {
    "gpipe": Schedule(
        looped.gpipe,
        bound=lambda shape: shape.micro_batches,
        ahead=False,
        by_need=_always,
    ),
    "1f1b": Schedule(
        looped.one_forward_one_backward,
        bound=lambda shape: min(shape.micro_batches, shape.stages),
        ahead=False,
        by_need=_always,
        backward_follows_loss=True,
    ),
    "interleaved_1f1b": Schedule(
        looped.interleaved,
        bound=looped.interleaved_bound,
        chunks=None,
        refusal=looped.interleaved_refusal,
        by_need=lambda shape: shape.in_group == shape.stages,
    ),
    "breadth_first": Schedule(
        looped.breadth_first,
        bound=lambda shape: shape.micro_batches * shape.chunks,
        chunks=None,
        refusal=looped.breadth_first_refusal,
    ),
    "zb_h1": Schedule(
        zero_bubble.zb_h1,
        bound=lambda shape: min(shape.micro_batches, shape.stages),
    ),
    "zb_h2": Schedule(
        zero_bubble.zb_h2,
        bound=lambda shape: min(shape.micro_batches, 2 * shape.stages - 1),
    ),
    "zb_v": Schedule(
        zero_bubble.zb_v,
        bound=lambda shape: 2 * min(shape.micro_batches, shape.stages),
        placement=zero_bubble.v_shape,
        chunks=2,
    ),
    "dualpipe": Schedule(
        dual_pipe.dual_pipe,
        bound=lambda shape: shape.stages + 1,
        placement=dual_pipe.mirrored,
        chunks=2,
        refusal=dual_pipe.dual_pipe_refusal,
    ),
    "dualpipe_v": Schedule(
        dual_pipe.dual_pipe_v,
        bound=lambda shape: 2 * shape.stages + 1,
        placement=zero_bubble.v_shape,
        chunks=2,
        refusal=dual_pipe.dual_pipe_v_refusal,
    ),
}
