"""Shorter steps that stand for long ones: fewer micro-batches, and which of their items repeat.

Between warm-up and cool-down every stage runs the same items over and over, each time for the next
micro-batches. A long step is then a shorter one with a period W of items inserted several times:

    long step     F1 … │ W  W  W … W │ … B        both start and end alike, item by item, on every stage
    short step    F1 … │ W │ … B

`steady` proves that a run of the short one stands for the long one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct, structs

from rapid_des.arrays import Bools, Int64s
from rapid_des.frontend.job import Job
from rapid_des.frontend.schedules.schedule import Order
from rapid_des.values import replace

WORTH = 4_000
"""The least number of items to leave out: fewer take less time to simulate than a shorter run to check."""
_LENGTHS = (3, 6)
"""The lengths of shorter runs, in pipeline depths or periods; at most half of the step."""


class ShortenedJob(Struct, frozen=True):
    """A job with fewer micro-batches, and which of its items repeat."""

    job: Job
    times: int
    micro_batches: int
    first: tuple[int, ...]
    """[stage] the first item that repeats."""
    last: tuple[int, ...]
    """[stage] the item up to which the job runs the same items as the long one."""
    items: tuple[int, ...]
    """[stage] the number of items in a period."""


def shortened(job: Job, *, worth: int = WORTH) -> Iterator[ShortenedJob]:
    """Yield shorter jobs that differ from a job by whole periods of items only, the shortest first.

    They leave out at least `worth` items.
    """
    if job.spec.training is None:
        return
    orders, count, shape = job.stage_orders.orders, job.micro_batches, job.shape
    for period in dict.fromkeys((1, 2, shape.in_group)):
        for factor in _LENGTHS:
            short = factor * max(period, job.stages)
            short += (count - short) % period
            if 2 * short > count or sum(map(len, orders)) * (count - short) < worth * count:
                continue
            if job.schedule.refusal(shape._replace(micro_batches=short)) is None:
                insertion = _insertion(job, _with_micro_batches(job, short), period)
                if insertion is not None:
                    yield insertion


def _with_micro_batches(job: Job, count: int) -> Job:
    training = job.training
    batch = training.global_batch // job.micro_batches * count
    return replace(
        job, spec=structs.replace(job.spec, training=structs.replace(training, global_batch=batch))
    )


def _insertion(job: Job, short: Job, period: int) -> ShortenedJob | None:
    """Return how the items of a short job become those of a long one; None if not by repeating a period."""
    left_out = job.micro_batches - short.micro_batches
    times = left_out // period
    ranges = []
    for long, fewer in zip(job.stage_orders.orders, short.stage_orders.orders, strict=True):
        items = (len(long) - len(fewer)) // times
        whole, part = _columns(long), _columns(fewer)
        alike = _leading((whole[: len(fewer)] == part).all(axis=1))
        later = part + _shift(part, left_out)
        ends = _leading((whole[::-1][: len(fewer)] == later[::-1]).all(axis=1))
        repeats = (whole[items:] == (whole + _shift(whole, period))[:-items]).all(axis=1)
        begin = alike - items
        if items * times != len(long) - len(fewer) or begin < max(0, len(fewer) - items - ends):
            return None
        if not repeats[begin : begin + times * items].all():
            return None
        first = begin - _leading(repeats[:begin][::-1])
        ranges.append((first, alike, items))
    begins, ends_at, each = zip(*ranges, strict=True)
    return ShortenedJob(short, times, period, begins, ends_at, each)


def _columns(order: Order) -> Int64s:
    """Return items as rows of numbers, the micro-batch last; items that wait have no micro-batch."""
    phases = {phase: sum(map(ord, phase)) for phase in {item.phase for item in order}}
    rows = [(phases[item.phase], item.chunk, item.paired, item.micro_batch) for item in order]
    return np.array(rows, np.int64).reshape(len(order), 4)


_WAIT = sum(map(ord, "wait"))


def _shift(columns: Int64s, micro_batches: int) -> Int64s:
    shift = np.zeros_like(columns)
    shift[:, 3] = np.where(columns[:, 0] == _WAIT, 0, micro_batches)
    return shift


def _leading(holds: Bools) -> int:
    """Return the number of leading entries for which something holds."""
    return len(holds) if holds.all() else int(np.argmin(holds))
