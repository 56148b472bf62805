"""Statistics of a sample: mean, percentiles and the mean of its worst share, with confidence intervals.

Intervals are at 95 %. That of a mean follows from Student's t; those of a percentile q and of the mean of the
worst share (CVaR, Rockafellar and Uryasev, Journal of Banking & Finance 26, 2002) from their asymptotic
normal distributions: of order statistics, and of q + (x - q)+ / (1 - p). Draws of Latin hypercubes are
compared by whole rounds, whose means are independent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import inf, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Floats
from rapid_des.errors import InputError
from rapid_des.means import CONFIDENCE, student
from rapid_des.values import asdict

TAIL = 0.95
"""CVaR is the mean of the values beyond this percentile."""
_FEWEST = 20
"""The least number of draws before an interval may end a study."""
_UNTIL = re.compile(r"(mean|(?:p|cvar)(?!0+\b)\d{1,2})\s*(?:±|\+-|\+/-)\s*(\d+(?:\.\d+)?)\s*%\s*\Z")


class Until(Struct, frozen=True):
    """The condition that ends a study: half of a figure's interval is at most a share of the figure.

    >>> Until.parse("mean ±0.5%")
    Until(figure='mean', share=0.005)
    """

    figure: str
    share: float

    @classmethod
    def parse(cls, text: str) -> Until:
        """Return the condition that a text states; `InputError` names what is allowed."""
        matched = _UNTIL.match(text.strip())
        if matched is None or not float(matched[2]):
            raise InputError(f"--until {text!r}: allowed: 'mean ±0.5%', or p95 or cvar95 in place of mean")
        return cls(matched[1], float(matched[2]) / 100)

    def met(self, values: Sequence[float], rounds: int = 1) -> bool:
        """Whether a sample is large enough."""
        if len(values) < max(_FEWEST, 2 * rounds):
            return False
        middle, half = estimate(values, self.figure, rounds=rounds)
        return half <= self.share * abs(middle)


class SampleStatistics(Struct, frozen=True):
    """The statistics of a sample, in the unit of its values.

    >>> found = SampleStatistics.of([1.0, 2.0, 3.0, 4.0])
    >>> found.mean, round(found.mean_half, 3), found.worst, found.p50
    (2.5, 2.054, 4.0, 2.5)
    """

    draws: int
    mean: float
    mean_half: float
    """Half of the mean's confidence interval."""
    deviation: float
    least: float
    p5: float
    p50: float
    p95: float
    p99: float
    cvar95: float
    """The mean of the worst twentieth."""
    cvar95_half: float
    worst: float

    @classmethod
    def of(
        cls, values: Sequence[float], *, weights: Sequence[float] = (), rounds: int = 1
    ) -> SampleStatistics:
        """Return the statistics of values with equal or stated weights; the latter are a whole population.

        A whole population has no error. `rounds` is the number of values in a round of a Latin hypercube, 1
        for independent values.
        """
        array, shares = _sorted(values, weights)
        mean = float(array @ shares)
        halves = [0.0 if weights else estimate(values, name, rounds=rounds)[1] for name in ("mean", "cvar95")]
        p5, p50, p95, p99 = (percentile(array, shares, level) for level in (0.05, 0.5, 0.95, 0.99))
        spread = sqrt(float(((array - mean) ** 2) @ shares))
        if not weights and len(array) > 1:
            spread *= sqrt(len(array) / (len(array) - 1))
        least, worst, tail = float(array[0]), float(array[-1]), tail_mean(array, shares, TAIL)
        return cls(len(array), mean, halves[0], spread, least, p5, p50, p95, p99, tail, halves[1], worst)

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {name: None if value == inf else value for name, value in asdict(self).items()}


def _sorted(values: Sequence[float], weights: Sequence[float]) -> tuple[Floats, Floats]:
    array = np.array(values, np.float64)
    shares = np.full(len(array), 1.0) if not weights else np.array(weights, np.float64)
    order = np.argsort(array, kind="stable")
    return array[order], shares[order] / shares.sum()


def percentile(values: Floats, shares: Floats, level: float) -> float:
    """Return a percentile of ascending values, between neighbours in proportion (equal shares: type 7)."""
    middles = np.cumsum(shares) - shares
    return float(np.interp(level, middles / (1 - shares[-1]) if shares[-1] < 1 else middles, values))


def tail_mean(values: Floats, shares: Floats, level: float) -> float:
    """Return the mean of the worst 1 - level of ascending values; the last one counts in part."""
    above = np.cumsum(shares[::-1])[::-1] - shares  # what is beyond each
    weights = np.clip((1 - level) - above, 0, shares)
    return float(values @ weights / weights.sum())


def estimate(values: Sequence[float], figure: str, *, rounds: int = 1) -> tuple[float, float]:
    """Return a figure (mean, p95, cvar95) of a sample and half of its confidence interval; inf: unknown."""
    array, shares = _sorted(values, ())
    level = 0.0 if figure == "mean" else int(figure[-2:].lstrip("pr")) / 100
    if figure.startswith("p"):
        return _percentile_interval(array, shares, level)
    function: Callable[[Floats], float] = lambda own: float(own.mean())  # noqa: E731 - one of two
    if figure != "mean":
        function = lambda own: tail_mean(*_sorted(own.tolist(), ()), level)  # noqa: E731
    whole = len(values) // rounds
    if rounds > 1 and whole > 1 and figure == "mean":
        parts = np.array(values[: whole * rounds], np.float64).reshape(whole, rounds).mean(axis=1)
        return float(array.mean()), _half(parts)
    if figure == "mean":
        return function(array), _half(array)
    quantile = percentile(array, shares, level)
    return function(array), _half(quantile + np.maximum(array - quantile, 0) / (1 - level))


def _half(parts: Floats) -> float:
    if len(parts) < 2:
        return inf
    return student(len(parts) - 1) * float(parts.std(ddof=1)) / sqrt(len(parts))


def _percentile_interval(values: Floats, shares: Floats, level: float) -> tuple[float, float]:
    middle, count = percentile(values, shares, level), len(values)
    reach = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * sqrt(count * level * (1 - level))
    low, high = int(count * level - reach), int(count * level + reach) + 1
    if low < 0 or high >= count:
        return middle, inf
    return middle, max(float(values[high]) - middle, middle - float(values[low]))
