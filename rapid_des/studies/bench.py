"""The simulator's own speed: standard cases, each in a fresh process and checked against its answer."""

from __future__ import annotations

import math
import multiprocessing
import resource
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass

from rapid_des.errors import InputError, RapidDesError
from rapid_des.studies.bench_cases import CASES, Case, Outcome

_WARM_UP = "irregular_64"


@dataclass(frozen=True)
class Measurement:
    """One case as measured."""

    case: str
    right: bool
    """Whether it gave the stored answer."""
    finish: int
    hops: int
    events: int
    wall_s: float
    """Making the input, lowering and simulating, with everything imported."""
    simulation_s: float
    memory_mb: float
    """The process's peak."""

    @property
    def hops_per_s(self) -> float:
        """Link hops by second of simulation."""
        return self.hops / max(self.simulation_s, 1e-9)

    @property
    def events_per_s(self) -> float:
        """Events of the kernel by second of simulation; few hops need many."""
        return self.events / max(self.simulation_s, 1e-9)

    def as_json(self) -> dict[str, object]:
        """Return plain data."""
        return asdict(self) | {"hops_per_s": self.hops_per_s, "events_per_s": self.events_per_s}


@dataclass(frozen=True)
class Growth:
    """How the cost of a ladder grows: the slope of log(wall) over log(hops)."""

    ladder: str
    exponent: float
    cost_ratio: float
    """The largest case's cost a hop over the smallest's."""


def chosen_cases(names: Sequence[str], *, large: bool) -> list[str]:
    """Return the cases of the names, all usual ones without any; `InputError` for one that is none."""
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise InputError(f"bench: {unknown[0]!r} is not one of {', '.join(CASES)}")
    return list(names) or [name for name, case in CASES.items() if large or not case.large]


def measure(name: str) -> Measurement:
    """Run one case in this process, after a small one that loads everything it needs."""
    CASES[_WARM_UP].run()
    began = time.perf_counter()
    outcome = CASES[name].run()
    wall_s = time.perf_counter() - began
    unit = 2**20 if sys.platform == "darwin" else 2**10
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    return _measurement(name, CASES[name], outcome, (wall_s, memory_mb))


def _measurement(name: str, case: Case, outcome: Outcome, cost: tuple[float, float]) -> Measurement:
    return Measurement(
        case=name,
        right=outcome.finish == case.finish,
        finish=outcome.finish,
        hops=outcome.hops,
        events=outcome.events,
        wall_s=cost[0],
        simulation_s=outcome.simulation_s,
        memory_mb=cost[1],
    )


def measure_apart(names: Iterable[str]) -> Iterable[Measurement]:
    """Yield each case's measurement, every one in a fresh process, so that its peak memory is its own."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh, max_tasks_per_child=1) as workers:
        for name in names:
            yield workers.submit(measure, name).result()


def growth(measured: Sequence[Measurement]) -> list[Growth]:
    """Return how the ladders among the measured cases grow, by least squares.

    >>> rows = [Measurement("irregular_64", True, 1, hops, 0, hops / 1e6, 1, 1) for hops in (1000, 8000)]
    >>> [round(found.exponent, 3) for found in growth(rows)]
    [1.0]
    """
    found = []
    for ladder in dict.fromkeys(CASES[one.case].ladder for one in measured):
        steps = [one for one in measured if CASES[one.case].ladder == ladder]
        if ladder and len(steps) > 1:
            costs = [one.wall_s / one.hops for one in steps]
            found.append(Growth(ladder, _slope(steps), costs[-1] / costs[0]))
    return found


def _slope(steps: Sequence[Measurement]) -> float:
    points = [(math.log(one.hops), math.log(one.wall_s)) for one in steps]
    x, y = (sum(axis) / len(points) for axis in zip(*points, strict=True))
    spread = sum((one - x) ** 2 for one, _ in points)
    slope: float = sum((one - x) * (other - y) for one, other in points) / spread
    return slope


def tree(measured: Sequence[Measurement]) -> dict[str, object]:
    """Return plain data for JSON."""
    return {
        "cases": [one.as_json() for one in measured],
        "growth": [asdict(found) for found in growth(measured)],
    }


def require_right(measured: Sequence[Measurement]) -> None:
    """Raise `RapidDesError` if a case gave another answer than the stored one: a defect, however fast."""
    wrong = [one.case for one in measured if not one.right]
    if wrong:
        raise RapidDesError(f"bench: a wrong answer in {', '.join(wrong)}")
