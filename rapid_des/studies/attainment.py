"""The highest rate at which enough requests keep limits in the long run, with an interval.

A rate is tried with one run. Counted are the requests between its start and its drain: the start is cut off
where the standard error of the rest is least (MSER-5: White, "An effective truncation heuristic", 1997, over
means of five), the end by the mean time of a request. Of the largest part of a limit that each request takes,
the quantile of the wanted share says by how much limits are kept or broken. Its interval is that of the
share, of means of batches of consecutive requests (Woodruff, "Confidence intervals for medians and other
position measures", 1952).

Bisection with short runs finds about where that part is one. Longer runs go on from there, or from the
highest rate, until one keeps the limits and one breaks them, and a last one is between these; the logarithm
of the part is linear in that of the rate between two runs. All runs have the same requests, as far as they
go, at all rates and for all layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rapid_des.means import student
from rapid_des.serving.result import ServeResult
from rapid_des.serving.slo import Slo

_LOWEST = 2**-10
"""The lowest rate that is tried, over the highest: at this rate requests run alone."""
_BRACKET = 1.25
"""Bisection ends where the rates that keep and break the limits are nearer than this factor."""
LONG = 8
"""Length of the longer runs, over that of the short ones."""
_STEP = 1.12
"""Factor from the rate of the first long run to the next; it is squared for each further one."""
_MOST_BATCHES, _FEWEST_BATCHES = 8, 5
_WIDER = 2.0
"""Factor of intervals for the errors of slopes, set on seeds 100 to 299 of queues of 1,000 services a second.

On seeds 1000 to 1999 and runs of 1,000 and 8,000 requests, 99 % within 20 services, intervals hold the rate
of M/M/1 queues in 96 % and of M/D/1 queues in 92 %; within 10 services in 99 % and 98 %. They hold 87 % of
M/M/1 queues within 60 services (at 92 % utilization), where runs are too short. Rates that are missed are
nearly always below the interval.
"""
_LEAST_SLOPE = 0.05
"""The least slope by which an error is divided: the interval is then as wide as the rates are."""


class Trial(Struct, frozen=True):
    """A run at a rate."""

    rate: float
    share: float
    """The share of the requests that keep all limits."""
    excess: float
    """The logarithm of the largest part of a limit that the wanted share of the requests takes."""
    reach: float
    """Half of the width of its 95 % interval."""

    @property
    def keeps(self) -> bool:
        """Whether the wanted share of the requests keeps all limits."""
        return self.excess <= 0

    @classmethod
    def of(cls, rate: float, result: ServeResult, slo: Slo, wanted: float) -> Trial:
        """Return what a run says of a rate."""
        used = long_run(result, slo)
        # Requests that are served together are alike: batches are longer than that.
        inside = max(1.0, result.inside / max(result.elapsed, 1))
        count = int(min(max(_FEWEST_BATCHES, len(used) / (4 * inside)), _MOST_BATCHES, len(used)))
        at = _quantile(used, wanted)
        over, broken = np.log(used) > at, max(1 - wanted, 1 / len(used))
        means = [float(batch.mean()) for batch in np.array_split(over, count)]
        error = float(np.std(means, ddof=1)) / count**0.5 / broken if count > 1 else 0.0
        # Limits are broken in clusters: the number in all of them, of geometric sizes, varies like this.
        clusters = 1 + int((np.diff(np.flatnonzero(over)) > inside).sum())
        factor = exp(student(max(count - 1, 1)) * max(error, (2 / clusters) ** 0.5))
        above, below = (_quantile(used, 1 - part) for part in (broken / factor, min(broken * factor, 1.0)))
        return cls(rate, float((used <= 1).mean()), at, _WIDER * max(above - at, at - below))


def _quantile(used: NDArray[np.float64], wanted: float) -> float:
    """Return the logarithm of the part of a limit that the wanted share does not exceed."""
    return float(np.log(np.quantile(used, wanted, method="inverted_cdf")))


def long_run(result: ServeResult, slo: Slo) -> NDArray[np.float64]:
    """Return the largest part of a limit that each request takes, without the start and the drain."""
    order = np.argsort(result.requests["arrival"], kind="stable")
    arrival, used = result.requests["arrival"][order], slo.used_by(result)[order]
    first = warm_up(used)
    last = int(np.searchsorted(arrival, arrival[-1] - result.e2e.mean()))
    return np.maximum(used[first : max(last, first + 1)], 1e-9)


def warm_up(values: NDArray[np.float64]) -> int:
    """Return how many values to cut off, at most half, so that the mean of the rest has the least error.

    >>> warm_up(np.array([9.0] * 10 + [1.0, 2.0] * 20))
    10
    """
    means = values[: len(values) // 5 * 5].reshape(-1, 5).mean(axis=1)
    if len(means) < 4:
        return 0
    left = np.arange(len(means), 0, -1)
    total, squares = (np.cumsum(each[::-1])[::-1] for each in (means, means**2))
    errors = np.maximum(squares / left - (total / left) ** 2, 0) / left
    return 5 * int(errors[: len(means) // 2 + 1].argmin())


class HighestRate(Struct, frozen=True):
    """The highest rate that keeps the limits."""

    rate: float
    """0: none does."""
    low: float
    """The low end of its 95 % interval."""
    high: float
    """The high end."""
    share: float
    """The share that keeps the limits at the nearest rate tried."""
    above: float | None
    """The lowest rate tried last that broke the limits; None: none did."""


def highest_rate(tried: Callable[[float, int], Trial], highest: float) -> HighestRate:
    """Return the highest rate that keeps the limits, at most `highest`.

    `tried` runs a rate for a number of lengths of a short run.
    """
    low, high = _bracket(lambda rate: tried(rate, 1), highest)
    low, high = _bracket_long(lambda rate: tried(rate, LONG), low, high, highest)
    if high is None:
        assert low is not None
        return HighestRate(highest, highest, highest, low.share, None)
    if low is None:
        return HighestRate(0.0, 0.0, high.rate, high.share, high.rate)
    last = tried(_crossing(low, high), LONG)
    ends = (last, high) if last.keeps else (low, last)
    rate = _crossing(*ends)
    below, above = (exp(last.reach / _slope(*pair)) for pair in ((low, last), (last, high)))
    return HighestRate(rate, rate / below, min(rate * above, highest), last.share, ends[1].rate)


def about(on_progress: Callable[[str], None], subject: str) -> Callable[[str], None]:
    """Return a function that passes on what is done with a subject."""
    return lambda what: on_progress(f"{subject}: {what}")


def between(trials: Sequence[Trial]) -> str:
    """Return between which tried rates the capacity lies, as far as that is known."""
    kept = max((trial.rate for trial in trials if trial.keeps), default=None)
    broken = min((trial.rate for trial in trials if not trial.keeps), default=None)
    known = [] if kept is None else [f"limits kept at {kept:.3g}/s"]
    known += [] if broken is None else [f"broken at {broken:.3g}/s"]
    return f" ({', '.join(known)})" if known else ""


def worst_limit(slo: Slo, result: ServeResult) -> str:
    """Return the limit that most requests break, and where that is the queue at the front ends."""
    kept = {name: Slo("", {name: limit}).met_by(result) for name, limit in slo.limits.items()}
    worst = min(kept, key=lambda name: float(kept[name].mean()))
    broken = ~kept[worst]
    waited = int(result.requests["front_end_queue"][broken].sum())
    at_front_ends = worst != "tpot" and 2 * waited > int(result.ttft[broken].sum())
    return f"{worst} (queue at front ends)" if at_front_ends else worst


def _slope(low: Trial, high: Trial) -> float:
    """Return by how much the excess rises while the rate rises e times."""
    apart = log(high.rate / low.rate)
    return max((high.excess - low.excess) / apart, _LEAST_SLOPE) if apart else _LEAST_SLOPE


def _crossing(low: Trial, high: Trial) -> float:
    """Return the rate between two trials at which nothing is in excess."""
    part = low.excess / (low.excess - high.excess)
    return low.rate * exp(part * log(high.rate / low.rate))


def _bracket(tried: Callable[[float], Trial], highest: float) -> tuple[Trial | None, Trial | None]:
    """Return runs that keep and break the limits, near to each other; None where no rate does."""
    low, high, rate = None, None, highest
    while True:
        trial = tried(rate)
        low, high = (trial, high) if trial.keeps else (low, trial)
        if high is None or high.rate < highest * _LOWEST:
            return low, high
        if low is not None and high.rate / low.rate < _BRACKET:
            return low, high
        rate = (low.rate * high.rate) ** 0.5 if low else high.rate / 4


def _bracket_long(
    tried: Callable[[float], Trial], low: Trial | None, high: Trial | None, highest: float
) -> tuple[Trial | None, Trial | None]:
    """Return long runs that keep and break the limits, begun between short ones."""
    if low is None:
        return None, high
    last, step = tried((low.rate * high.rate) ** 0.5 if high else highest), _STEP
    while True:
        rate = min(last.rate * step, highest) if last.keeps else last.rate / step
        if rate == last.rate:
            return last, None
        if rate < highest * _LOWEST:
            return None, last
        trial, step = tried(rate), step**2
        if trial.keeps != last.keeps:
            return (trial, last) if trial.keeps else (last, trial)
        last = trial
