"""How far a prediction may be off: residuals of measured kernels, collectives and jobs, carried to a run.

    work of a run ──► spread: residuals of its kernels and collectives, resampled ──► interval
                                                 measured jobs' errors in spreads ──┘

A run's spread is the standard deviation of its logarithmic time when each class of its critical rank's work
takes the residual of a measured case of that class, drawn with replacement (a bootstrap over cases). What
no measured kernel shows (hosts, what frameworks do between kernels) measured jobs do: their errors, in
spreads of their own, are the quantiles of which an interval is made. That is split conformal prediction with
the spread as the scale (Lei et al., Distribution-free predictive inference for regression, JASA 113 (2018),
section 5.2). Both come from calibration cases alone; `validation/fit_intervals.py` wrote `residuals.json`.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from rapid_des.units import Duration, seconds

LEVEL = 0.8
"""Of how many like jobs an interval holds the measurement."""
STEP, FIRST_TOKEN, PER_TOKEN = "step", "first_token", "per_token"
COMMUNICATION = "communication"
ROUTER = "router"
"""Kernels that choose experts: of all mixtures, whatever computes their experts."""
_ENOUGH = 9
"""Cases from which on the tenth and the ninetieth percentile are within a sample: 1 / (n + 1) is a tenth."""
_DRAWS = 200
_CLASSES = {"gemm": "gemm", "grouped": "experts", "attention": "attention", "vector": "vector"}
_WAITING = ("bubble", "host", "idle")


@dataclass(frozen=True)
class Interval:
    """Where a predicted time's measurement is expected, of jobs like it.

    >>> Interval(Duration(100), Duration(90), Duration(120), 12, "vLLM 0.x on A100").holds(1.1)
    True
    """

    time: Duration
    low: Duration
    high: Duration
    cases: int
    """Measured jobs behind it."""
    source: str
    """What those ran."""

    def holds(self, ratio: float) -> bool:
        """Return whether the time times this, a measured ratio to it, lies inside."""
        return self.low <= ratio * self.time <= self.high

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        ends = [seconds(self.low), seconds(self.high)]
        return {"level": LEVEL, "seconds": ends, "cases": self.cases, "source": self.source}


@dataclass(frozen=True)
class Origin:
    """Whose measurements a run's are like: its device, its job's software, and what the time is of."""

    device: str
    software: str
    figure: str = STEP


def work_of(
    times: Mapping[str, int], models: Mapping[str, str], breakdown: Mapping[str, int]
) -> dict[str, int]:
    """Return the picoseconds of a critical rank's work by class: kernels by model, exposed communication.

    `times` are those of its operators, `models` which model priced each, `breakdown` where its time goes.

    >>> work_of({"a": 30, "b": 10}, {"a": "attention.flash", "b": "gemm"}, {"compute": 20, "tp": 5})
    {'attention': 15, 'gemm': 5, 'communication': 5}
    """
    sums: dict[str, int] = {}
    for name, time in times.items():
        kind = ROUTER if ".router" in name else _CLASSES.get(models.get(name, "").partition(".")[0])
        if kind is not None and time:
            sums[kind] = sums.get(kind, 0) + time
    computed, shown = max(sum(times.values()), 1), breakdown.get("compute", 0)
    work = {kind: time * shown // computed for kind, time in sums.items()}
    sent = sum(time for part, time in breakdown.items() if part not in (*_WAITING, "compute"))
    return work | ({COMMUNICATION: sent} if sent else {})


def spread(work: Mapping[str, int], device: str) -> float:
    """Return the standard deviation of the logarithm of a run's time, as measured kernels' residuals have it.

    What waits, waits for work like the rank's own, and has its errors. 0 where nothing like it was measured.
    """
    known = {kind: factors for kind in work if (factors := _factors(kind, device))}
    whole = sum(work[kind] for kind in known)
    if not whole:
        return 0.0
    weighted = ([work[kind] / whole * factor for factor in factors] for kind, factors in known.items())
    logs = [math.log(sum(drawn)) for drawn in zip(*weighted, strict=True)]
    mean = sum(logs) / _DRAWS
    return math.sqrt(sum((log - mean) ** 2 for log in logs) / _DRAWS)


@cache
def _factors(kind: str, device: str) -> tuple[float, ...]:
    """Return what a class's times are multiplied by in each draw, the same for every run; () if unknown."""
    devices = residuals()["kernels"].get(kind, {})
    sample = devices.get(device, [])
    if len(sample) < _ENOUGH:
        sample = [error for errors in devices.values() for error in errors]
    drawn = random.Random(kind)  # noqa: S311 - no secret
    return tuple(math.exp(drawn.choice(sample)) for _ in range(_DRAWS)) if sample else ()


def interval(time: int, work: Mapping[str, int], origin: Origin) -> Interval | None:
    """Return where a time's measurement is expected; None where too few such jobs were measured."""
    scale, (errors, source) = spread(work, origin.device), _errors(origin, stratum(origin.figure, work))
    if not scale or len(errors) < _ENOUGH:
        return None
    low, high = quantiles(errors)
    ends = [Duration(round(time * math.exp(scale * error))) for error in (low, high)]
    return Interval(Duration(time), ends[0], ends[1], len(errors), source)


def intervals(times: Mapping[str, int], work: Mapping[str, int], origin: Origin) -> dict[str, Interval]:
    """Return the intervals of a run's times by figure, of those that measurements support."""
    each = {name: interval(time, work, replace(origin, figure=name)) for name, time in times.items()}
    return {name: found for name, found in each.items() if found is not None}


def in_order(intervals: Mapping[str, Interval]) -> list[Interval]:
    """Return intervals as reports list the times: first token, each next one, the whole."""
    return [intervals[figure] for figure in (FIRST_TOKEN, PER_TOKEN, STEP) if figure in intervals]


def quantiles(errors: Sequence[float]) -> tuple[float, float]:
    """Return the ends that hold the next of like errors in `LEVEL` of all cases, both tails alike.

    >>> quantiles([float(number) for number in range(9)])
    (0.0, 8.0)
    """
    ranked, tail = sorted(errors), (1 - LEVEL) / 2
    place = min(max(int(tail * (len(ranked) + 1)), 1), len(ranked))
    return ranked[place - 1], ranked[-place]


def told_apart(
    times: tuple[int, int], works: tuple[Mapping[str, int], Mapping[str, int]], origin: Origin
) -> bool | None:
    """Return whether who is faster of two layouts of a job is so in measurements too, `LEVEL` sure.

    None where no layouts of such jobs were compared.
    """
    pairs: Mapping[str, Sequence[float]] = residuals()["pairs"]
    errors = pairs.get(origin.software) or pairs.get("", [])
    scale = math.hypot(*(spread(work, origin.device) for work in works))
    if len(errors) < _ENOUGH or not scale:
        return None
    place = min(math.ceil(LEVEL * (len(errors) + 1)), len(errors))
    return abs(math.log(times[0] / times[1])) > scale * sorted(errors)[place - 1]


def stratum(figure: str, work: Mapping[str, int]) -> str:
    """Return which jobs' errors a time's are like: mixtures of experts are predicted less well than others.

    >>> stratum(STEP, {"gemm": 5, "router": 3})
    'step with experts'
    """
    return f"{figure} with experts" if ROUTER in work else figure


def _errors(origin: Origin, group: str) -> tuple[Sequence[float], str]:
    """Return measured jobs' errors in spreads: of this software here, else anywhere, else of all."""
    jobs = residuals()["jobs"].get(group, {})
    mine = jobs.get(origin.software, {})
    here = mine.get(origin.device, [])
    if len(here) >= _ENOUGH:
        return here, f"{origin.software} on {origin.device}"
    anywhere = [error for errors in mine.values() for error in errors]
    if len(anywhere) >= _ENOUGH:
        return anywhere, origin.software
    every = (error for devices in jobs.values() for errors in devices.values() for error in errors)
    return list(every), "all software"


@cache
def residuals() -> Mapping[str, Any]:
    """Return what the fit wrote: residuals of kernels, errors of jobs and of pairs of their layouts."""
    tree: Mapping[str, Any] = json.loads(files(__package__).joinpath("residuals.json").read_text("utf-8"))
    return tree


def forget() -> None:
    """Have `residuals.json` read again, which somebody wrote."""
    residuals.cache_clear()
    _factors.cache_clear()
