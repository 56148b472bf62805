"""When every stage is done at the earliest where passes run in pairs, or backwards in two halves.

Items are walked in the order of their schedule. An item by itself takes all its kernels and its messages one
after the other; what follows it on its stage need not wait for a message at its end. Of a pair each pass
takes that alone, and both together all kernels: messages of one may hide behind the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rapid_des.frontend import Job
from rapid_des.frontend.parts import Section
from rapid_des.frontend.schedules.schedule import Item, PassKind, Result

_MOST = 1 << 14
"""Items up to which a schedule is walked."""


class PassTime(NamedTuple):
    """What a pass takes alone, in picoseconds."""

    kernels: int
    whole: int
    """With its messages."""
    tail: int
    """Of that at most stands after its last kernel."""


PassTimes = Mapping[tuple[Section, PassKind], PassTime]


def walks_in_pairs(job: Job) -> bool:
    """Tell whether a schedule is walked here: of passes that others fill, and not too long."""
    items = 4 * job.micro_batches * job.stages * job.shape.chunks
    return items <= _MOST and not job.training.offload_activations


def drained_in_pairs(
    job: Job,
    parts: Sequence[Sequence[Section]],
    times: PassTimes,
    message: Mapping[tuple[int, int], int],
) -> list[int]:
    """Return when the last kernel of each stage's passes is done at the earliest.

    `parts` are the sections of each part of the model, `message` what one takes from a stage to another.
    """
    phases = {phase for _, phase in times}
    of_part = {
        (part, phase): _joined([times[section, phase] for section in sections if (section, phase) in times])
        for part, sections in enumerate(parts)
        for phase in phases
    }
    walk = _Walk(job, of_part, message)
    walk.run()
    return walk.free


def _joined(passes: Sequence[PassTime]) -> PassTime:
    return PassTime(
        sum(each.kernels for each in passes),
        sum(each.whole for each in passes),
        max((each.tail for each in passes), default=0),
    )


@dataclass
class _Walk:
    job: Job
    times: Mapping[tuple[int, PassKind], PassTime]
    message: Mapping[tuple[int, int], int]
    made: dict[tuple[int, Result], int] = field(default_factory=dict)
    """When what a stage made is where it is needed."""

    def __post_init__(self) -> None:
        self.orders = [
            [item for item in order if item.phase != "wait"] for order in self.job.stage_orders.orders
        ]
        self.free = [0] * len(self.orders)

    def run(self) -> None:
        """Run all stages, each as far as it gets, until all are done."""
        place, moved = [0] * len(self.orders), True
        while moved:
            moved = False
            for stage, order in enumerate(self.orders):
                while place[stage] < len(order):
                    items = order[place[stage] : place[stage] + 1 + order[place[stage]].paired]
                    there = [self._there(stage, item) for item in items]
                    known = [moment for moment in there if moment is not None]
                    if len(known) < len(items):
                        break
                    self._pass(stage, items, known)
                    place[stage] += len(items)
                    moved = True

    def _there(self, stage: int, item: Item) -> int | None:
        needed = self.job.stage_orders.needs(stage, item)
        return 0 if needed is None else self.made.get(needed)

    def _pass(self, stage: int, items: Sequence[Item], there: Sequence[int]) -> None:
        """Run an item, or a pair, whose inputs are there, and send on what it makes."""
        free, parts = self.free[stage], self.job.placement[stage]
        times = [self.times[parts[item.chunk], item.phase] for item in items]
        ends = [max(free, moment) + time.whole for moment, time in zip(there, times, strict=True)]
        computed = max(free, min(there)) + sum(time.kernels for time in times)
        self.free[stage] = max(computed, *(end - time.tail for end, time in zip(ends, times, strict=True)))
        for item, end in zip(items, ends, strict=True):
            if item.phase != "weight_gradient":
                target = self.job.stage_orders.consumer(stage, item)
                way = 0 if target is None else self.message.get((stage, target), 0)
                self.made[stage, Result(item.direction, item.micro_batch, item.chunk)] = end + way
