"""Schedules from files: where the parts stand, and the items of each stage as words.

placement: [[0, 3], [1, 2]]   # parts of each stage's chunks; unset: stage s holds part s
orders:                       # F forward, B backward, or I and W: its halves for inputs and weights
  - F0-2 F0.1 I0.1 W0.1 ...   # micro-batch 0 (0 to 2) through chunk 0 (.1: chunk 1)
  - F0 F0.1 F1&B0.1 wait ...  # the two of a pair are meant to run beside each other
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache

from rapid_des.config import Spec
from rapid_des.frontend.schedules.schedule import (
    LETTERS,
    PHASES,
    BlockedError,
    Item,
    Order,
    PipelineSchedule,
    PipelineShape,
    Placement,
    StageOrders,
    in_flight,
)

_WORD = re.compile(r"([FBIW])(\d{1,7})(?:-(\d{1,7}))?(?:\.(\d{1,4}))?")
_ALLOWED = "allowed: F0, B0, I0 and W0, F0-3 for a run of them, F0.1 for chunk 1, F1&B0 for a pair, wait"
_MOST = 2**22
"""Most items of a stage."""


class ScheduleSpec(Spec, frozen=True):
    """A schedule file."""

    orders: tuple[str, ...]
    """The items of each stage, as words: F0 B0 (or I0 W0), F0-3, F0.1 of chunk 1, pairs F1&B0, wait."""
    placement: tuple[tuple[int, ...], ...] | None = None
    """The part of the model that each chunk of a stage is, by stage; two stages may hold the same parts.
    Unset: stage s holds part s."""

    def __post_init__(self) -> None:
        """Refuse words that are no items, and placements that miss a part."""
        for stage, problem in enumerate(map(_unreadable, self.orders)):
            if problem:
                raise ValueError(f"orders[{stage}]: {problem}")
        problem = _misplaced(placement_of(self))
        if problem:
            raise ValueError(problem)


def placement_of(spec: ScheduleSpec) -> Placement:
    """Return which part each chunk of each stage is."""
    return spec.placement or tuple((stage,) for stage in range(len(spec.orders)))


@lru_cache(maxsize=32)
def stage_orders_of(spec: ScheduleSpec) -> StageOrders:
    """Return what the stages of a file's schedule run."""
    return StageOrders(placement_of(spec), tuple(tuple(_items(order)) for order in spec.orders))


def from_file(spec: ScheduleSpec) -> PipelineSchedule:
    """Return a file's schedule with its constraints."""
    stage_orders = stage_orders_of(spec)
    return PipelineSchedule(
        lambda _: stage_orders.orders,
        bound=lambda _: max(map(in_flight, stage_orders.orders)),
        placement=lambda _stages, _chunks: stage_orders.placement,
        chunks=max(map(len, stage_orders.placement)),
        refusal=lambda shape: refusal(spec, shape),
    )


def _unreadable(order: str) -> str | None:
    """Return why an order cannot be parsed."""
    count = 0
    for word in order.replace("&", " ").split():
        match = _WORD.fullmatch(word)
        if match is None and word != LETTERS["wait"]:
            return f"{word[:20]!r} is no item; {_ALLOWED}"
        if match is not None:
            last = int(match[3] or match[2])
            count += last - int(match[2]) + 1
            if last < int(match[2]) or count > _MOST:
                return f"{word!r} runs backwards, or makes more than {_MOST} items"
    wrong = next((word for word in order.split() if "&" in word and not _is_pair(word)), None)
    return wrong and f"{wrong[:20]!r} is no pair of one forward and one backward, as F1&B0"


def _is_pair(word: str) -> bool:
    halves = word.split("&")
    return len(halves) == 2 and {half[:1] == "F" for half in halves} == {True, False} and "-" not in word


def _items(order: str) -> Iterator[Item]:
    for group in order.split():
        words = group.split("&")
        for place, word in enumerate(words):
            if word == LETTERS["wait"]:
                yield Item("wait")
                continue
            match = _WORD.fullmatch(word)
            assert match is not None
            first, chunk = int(match[2]), int(match[4] or 0)
            for number in range(first, int(match[3] or first) + 1):
                yield Item(PHASES[match[1]], number, chunk, place < len(words) - 1)


def _misplaced(placement: Placement) -> str | None:
    """Return why a placement is invalid."""
    held = [part for parts in placement for part in parts]
    missing = sorted(set(range(max(held, default=0) + 1)) - set(held))
    if missing:
        return f"placement: no stage holds part {missing[0]}"
    for stage, parts in enumerate(placement):
        if not parts or len(set(parts)) < len(parts):
            return f"placement[{stage}]: {list(parts)} must be one part or several, each once"
        others = [other for other, theirs in enumerate(placement) if set(theirs) & set(parts)]
        unlike = [other for other in others if set(placement[other]) != set(parts)]
        if unlike:
            return f"placement[{stage}]: stage {unlike[0]} shares some of its parts {list(parts)} and not all"
    if len({sum(set(other) == set(devices) for other in placement) for devices in placement}) > 1:
        return "placement: some parts have more copies than others"
    return None


def refusal(spec: ScheduleSpec, shape: PipelineShape) -> str | None:
    """Return why a job cannot run a file's schedule: a size, a missing item, a deadlock."""
    stage_orders = stage_orders_of(spec)
    if len(stage_orders.orders) != shape.stages or len(stage_orders.placement) != shape.stages:
        counts = f"orders of {len(stage_orders.orders)} stages and places of {len(stage_orders.placement)}"
        return f"{counts}, parallelism.pp is {shape.stages}"
    for stage, order in enumerate(stage_orders.orders):
        problem = _incomplete(order, len(stage_orders.placement[stage]))
        if problem:
            return f"orders[{stage}]: {problem}"
    return _missing(stage_orders, shape.micro_batches) or _blocked(stage_orders)


def _incomplete(order: Order, chunks: int) -> str | None:
    """Return which items of a stage are duplicated, lack their other direction, or name a missing chunk."""
    for item, times in Counter(item[:3] for item in order if item.phase != "wait").items():
        if times > 1:
            return f"{Item(*item)} stands there {times} times"
        if item[2] >= chunks:
            return f"{Item(*item)} is of chunk {item[2]}, the stage has {chunks}"
    passes = {phase: {item[1:3] for item in order if item.phase == phase} for phase in LETTERS}
    whole, halves = passes["backward"], (passes["input_gradient"], passes["weight_gradient"])
    for both in sorted(passes["forward"] | whole | halves[0] | halves[1]):
        name = f"{both[0]}{f'.{both[1]}' if both[1] else ''}"
        if both not in passes["forward"]:
            return f"no F{name} for its backward"
        if (both in whole) == (both in halves[0] or both in halves[1]):
            return f"F{name} needs B{name}, or I{name} and W{name}" + " and not both" * (both in whole)
        if both not in whole and not (both in halves[0] and both in halves[1]):
            return f"no {'W' if both in halves[0] else 'I'}{name}"
    return None


def _missing(stage_orders: StageOrders, micro_batches: int) -> str | None:
    """Return which micro-batch does not pass a part exactly once."""
    passed = Counter(
        (stage_orders.placement[stage][item.chunk], item.micro_batch)
        for stage, order in enumerate(stage_orders.orders)
        for item in order
        if item.phase == "forward"
    )
    count = 1 + max((number for _, number in passed), default=-1)
    if count != micro_batches:
        return f"orders of {count} micro-batches, the job has {micro_batches} a step"
    for part, copies in stage_orders.holders.items():
        for number in range(micro_batches):
            if passed[part, number] != 1:
                stages = _listed([stage for stage, _ in copies])
                return f"F{number} of part {part} stands {passed[part, number]} times on {stages}, not once"
    return None


def _listed(stages: Sequence[int]) -> str:
    return f"stage{'s' * (len(stages) > 1)} {' and '.join(map(str, stages))}"


def _blocked(stage_orders: StageOrders) -> str | None:
    try:
        for _ in stage_orders.execution():
            pass
    except BlockedError as error:
        return str(error)
    return None
