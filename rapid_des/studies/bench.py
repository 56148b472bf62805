"""The simulator's own speed: standard cases, each in a fresh process and checked against its answer.

A case's cost is its processor time over that of a yardstick, a fixed piece of numpy and Python work that runs
in the same process: it depends little on the machine, so that it is compared with the stored one.
"""

from __future__ import annotations

import heapq
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from msgspec import Struct

from rapid_des.errors import InputError, RapidDesError
from rapid_des.processes import Worker
from rapid_des.studies.bench_cases import CASES, STATED_GROWTH
from rapid_des.values import asdict

_WARM_UP = "irregular_64"
_NUMBERS, _EVENTS, _REPEATS = 1 << 21, 1 << 17, 3
"""The yardstick's numbers that it sorts and sums, the events that it queues, and how often it runs."""


class Measurement(Struct, frozen=True):
    """The measurement of one case."""

    case: str
    right: bool
    """Whether it gave the stored answer."""
    finish: int
    hops: int
    events: int
    wall_s: float
    """The seconds for making the input, lowering and simulating, with everything imported."""
    processor_s: float
    """The same in seconds of the processor."""
    simulation_s: float
    memory_mb: float
    """The peak memory of the process in MB."""
    yardstick_s: float = 1.0
    """What the yardstick took in the same process, in seconds of the processor."""

    @property
    def hops_per_s(self) -> float:
        """Link hops by second of simulation."""
        return self.hops / max(self.simulation_s, 1e-9)

    @property
    def events_per_s(self) -> float:
        """Events of the kernel by second of simulation; few hops need many."""
        return self.events / max(self.simulation_s, 1e-9)

    @property
    def cost(self) -> float:
        """The processor time over the yardstick's."""
        return self.processor_s / self.yardstick_s

    @property
    def against_stored(self) -> float | None:
        """The cost over the stored one; None where none is stored."""
        stored = CASES[self.case].cost
        return self.cost / stored if stored else None

    def as_json(self) -> dict[str, object]:
        """Return plain data."""
        rates = {"hops_per_s": self.hops_per_s, "events_per_s": self.events_per_s}
        return asdict(self) | rates | {"cost": self.cost, "against_stored": self.against_stored}


class Growth(Struct, frozen=True):
    """How the cost of a ladder grows: the slope of log(processor time) over log(size)."""

    ladder: str
    exponent: float
    stated: float
    """The exponent that it may have at most."""
    cost_ratio: float
    """The time a unit of size costs in the largest case over that in the smallest."""

    @property
    def as_stated(self) -> bool:
        """Whether the cost grows no faster than stated."""
        return self.exponent <= self.stated


def yardstick_s() -> float:
    """Return the processor seconds that fixed work of the simulator's kinds takes here, the least of some."""
    return min(_yardstick() for _ in range(_REPEATS))


def _yardstick() -> float:
    began = time.process_time()
    numbers = np.arange(_NUMBERS, dtype=np.int64) * 2654435761 % _NUMBERS
    np.cumsum(numbers[np.argsort(numbers, kind="stable")])
    queue: list[int] = []
    for event in range(_EVENTS):
        heapq.heappush(queue, event * 40503 % 65536)
    while queue:
        heapq.heappop(queue)
    return time.process_time() - began


def chosen_cases(names: Sequence[str], *, large: bool) -> list[str]:
    """Return the named cases, or all usual ones if there are no names; `InputError` for an unknown name."""
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise InputError(f"bench: {unknown[0]!r} is not one of {', '.join(CASES)}")
    return list(names) or [name for name, case in CASES.items() if large or not case.large]


def measure(name: str) -> Measurement:
    """Run one case in this process, after a small one that loads everything it needs."""
    CASES[_WARM_UP].run()
    yardstick, began, began_s = yardstick_s(), time.perf_counter(), time.process_time()
    outcome = CASES[name].run()
    wall_s, processor_s = time.perf_counter() - began, time.process_time() - began_s
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return Measurement(
        case=name,
        right=outcome.finish == CASES[name].finish,
        finish=outcome.finish,
        hops=outcome.hops,
        events=outcome.events,
        wall_s=wall_s,
        processor_s=processor_s,
        simulation_s=outcome.simulation_s,
        memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit,
        yardstick_s=yardstick,
    )


def measure_apart(
    names: Sequence[str], on_progress: Callable[[str, int, int], None]
) -> Iterator[Measurement]:
    """Yield each case's measurement; each runs in a new process, so that its peak memory is its own."""
    for done, name in enumerate(names):
        on_progress(f"bench: {name}", done, len(names))
        with Worker() as worker:
            measurement: Measurement = worker.submit(measure, name).result()
        yield measurement


def growth(measured: Sequence[Measurement]) -> list[Growth]:
    """Return how the ladders among the measured cases grow, by least squares."""
    growths = []
    for ladder in dict.fromkeys(CASES[measurement.case].ladder for measurement in measured):
        steps = [measurement for measurement in measured if CASES[measurement.case].ladder == ladder]
        if ladder and len(steps) > 1:
            costs = [step.processor_s / CASES[step.case].size for step in steps]
            growths.append(Growth(ladder, _slope(steps), STATED_GROWTH[ladder], costs[-1] / costs[0]))
    return growths


def _slope(steps: Sequence[Measurement]) -> float:
    points = [(math.log(CASES[step.case].size), math.log(step.processor_s)) for step in steps]
    x, y = (sum(axis) / len(points) for axis in zip(*points, strict=True))
    spread = sum((this - x) ** 2 for this, _ in points)
    slope: float = sum((this - x) * (other - y) for this, other in points) / spread
    return slope


def tree(measured: Sequence[Measurement]) -> dict[str, object]:
    """Return plain data for JSON."""
    return {
        "cases": [measurement.as_json() for measurement in measured],
        "growth": [asdict(ladder) | {"as_stated": ladder.as_stated} for ladder in growth(measured)],
    }


def require_right(measured: Sequence[Measurement]) -> None:
    """Raise `RapidDesError` if an answer differs from the stored one."""
    wrong = [measurement for measurement in measured if not measurement.right]
    if wrong:
        answers = (f"{one.case} ({one.finish}, not {CASES[one.case].finish})" for one in wrong)
        raise RapidDesError(f"bench: a wrong answer in {', '.join(answers)}")


def require_growth(measured: Sequence[Measurement]) -> None:
    """Raise `RapidDesError` if the cost of a ladder grows faster than stated."""
    for ladder in growth(measured):
        if not ladder.as_stated:
            raise RapidDesError(
                f"bench: the cost of {ladder.ladder} grows with exponent {ladder.exponent:.2f}; "
                f"stated are at most {ladder.stated}"
            )
