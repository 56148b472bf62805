"""The mean of a sample, and how far it is off at most."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt
from statistics import NormalDist, fmean, stdev

from msgspec import Struct

CONFIDENCE = 0.95


class MeanInterval(Struct, frozen=True):
    """The mean of a figure over replications, with its confidence interval at 95 %."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> MeanInterval:
        """Return the estimate of a sample by Student's t; of one value the interval is not known.

        >>> MeanInterval.of([1.0, 2.0, 3.0]).mean
        2.0
        """
        mean = fmean(values)
        half = student(len(values) - 1) * stdev(values) / sqrt(len(values)) if len(values) > 1 else inf
        return cls(mean, mean - half, mean + half)

    def within(self, low: float, high: float) -> MeanInterval:
        """Return the interval without what the figure cannot be; one that is not known stays so.

        >>> MeanInterval(0.9, 0.7, 1.1).within(0, 1)
        MeanInterval(mean=0.9, low=0.7, high=1)
        """
        if self.high == inf:
            return self
        return MeanInterval(self.mean, max(self.low, low), min(self.high, high))

    def as_json(self) -> dict[str, float | None]:
        """Return plain data for JSON; null: not known."""
        known = self.high < inf
        return {"mean": self.mean, "low": self.low if known else None, "high": self.high if known else None}


def student(freedom: int) -> float:
    """Return how many standard errors a mean is off at most, with a probability of `CONFIDENCE`.

    From four degrees of freedom on by Abramowitz and Stegun 26.7.5, within 0.1 %; below from its table.

    >>> round(student(9), 3), round(student(1000), 3)
    (2.262, 1.962)
    """
    exact = {1: 12.706, 2: 4.303, 3: 3.182}
    if freedom in exact:
        return exact[freedom]
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(z + sum(term / freedom**power for power, term in enumerate(terms, start=1)))
