"""Laws of times between failures, in terms of the cumulative hazard H.

A new part survives to age t with probability exp(-H(t)). A law draws from the part's own exponential number
E: the age at failure is H⁻¹(E). Ages are microseconds, and the scale of each law follows from the mean time
between failures that its class states.
"""

from __future__ import annotations

from math import ceil, exp, gamma, inf, log
from statistics import NormalDist
from typing import Annotated, TypeAlias

import numpy as np
from msgspec import Meta

from rapid_des.arrays import Floats
from rapid_des.config import Spec
from rapid_des.units import LongDuration

_NORMAL = NormalDist()
_HALVINGS = 100
_Positive = Annotated[float, Meta(gt=0, le=1000)]


class Exponential(Spec, frozen=True, tag_field="kind", tag="exponential"):
    """A constant rate."""

    def hazard(self, age: float, mean: float) -> float:
        """Return the cumulative hazard at an age."""
        return age / mean

    def ages(self, hazards: Floats, mean: float) -> Floats:
        """Return the ages at which the cumulative hazard has these values."""
        return hazards * mean


class Weibull(Spec, frozen=True, tag_field="kind", tag="weibull"):
    """A rate that is a power of the age."""

    shape: _Positive
    """The shape; below 1 the rate falls with age, above 1 it grows."""

    def _scale(self, mean: float) -> float:
        return mean / gamma(1 + 1 / self.shape)

    def hazard(self, age: float, mean: float) -> float:
        """Return the cumulative hazard at an age."""
        return float((age / self._scale(mean)) ** self.shape)

    def ages(self, hazards: Floats, mean: float) -> Floats:
        """Return the ages at which the cumulative hazard has these values."""
        ages: Floats = self._scale(mean) * hazards ** (1 / self.shape)
        return ages


class LognormalLaw(Spec, frozen=True, tag_field="kind", tag="lognormal"):
    """A normally distributed logarithm of the age at failure."""

    sigma: _Positive
    """The standard deviation of the logarithm."""

    def _middle(self, mean: float) -> float:
        return log(mean) - self.sigma**2 / 2

    def hazard(self, age: float, mean: float) -> float:
        """Return the cumulative hazard at an age."""
        if age <= 0:
            return 0.0
        survives = _NORMAL.cdf((self._middle(mean) - log(age)) / self.sigma)
        return -log(survives) if survives > 0 else inf

    def ages(self, hazards: Floats, mean: float) -> Floats:
        """Return the ages at which the cumulative hazard has these values."""
        middle = self._middle(mean)
        survive = [min(max(exp(-hazard), 1e-300), 1 - 1e-16) for hazard in hazards.tolist()]
        return np.array([exp(middle - self.sigma * _NORMAL.inv_cdf(share)) for share in survive])


class Bathtub(Spec, frozen=True, tag_field="kind", tag="bathtub"):
    """Early failures, then the constant rate of the mean time between failures, then wear."""

    early: Annotated[float, Meta(ge=0, le=100)]
    """The expected number of early failures of a new part, beyond those at the constant rate."""
    within: LongDuration
    """The time constant with which early failures become rare."""
    wear_out: LongDuration | None = None
    """The age at which one failure by wear is expected; its rate grows with the third power of the age.
    Unset: no wear.
    """

    def hazard(self, age: float, mean: float) -> float:
        """Return the cumulative hazard at an age."""
        return float(self._hazards(np.array([float(age)]), mean)[0])

    def _hazards(self, ages: Floats, mean: float) -> Floats:
        early = self.early * -np.expm1(-ages / max(int(self.within), 1))
        worn = 0.0 if self.wear_out is None else (ages / max(int(self.wear_out), 1)) ** 4
        hazards: Floats = ages / mean + early + worn
        return hazards

    def ages(self, hazards: Floats, mean: float) -> Floats:
        """Return the ages at which the cumulative hazard has these values, by bisection."""
        low, high = np.zeros_like(hazards), hazards * mean
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            below = self._hazards(middle, mean) < hazards
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return high


class Empirical(Spec, frozen=True, tag_field="kind", tag="empirical"):
    """A list of observed times between failures, each as likely as the others; no mean is stated besides."""

    times: Annotated[tuple[LongDuration, ...], Meta(min_length=1)]
    """The observed times between failures of a part."""

    def hazard(self, age: float, mean: float) -> float:  # noqa: ARG002 - the list has its own mean
        """Return the cumulative hazard at an age."""
        left = sum(time > age for time in self.times) / len(self.times)
        return -log(left) if left else inf

    def ages(self, hazards: Floats, mean: float) -> Floats:  # noqa: ARG002 - the list has its own mean
        """Return the ages at which the cumulative hazard reaches these values."""
        ordered = np.sort(np.array(self.times, dtype=np.float64))
        places = (len(ordered) * -np.expm1(-hazards)).astype(np.int64)
        ages: Floats = ordered[np.minimum(places, len(ordered) - 1)]
        return ages

    @property
    def mean(self) -> LongDuration:
        """The mean of the times."""
        return LongDuration(ceil(sum(self.times) / len(self.times)))


class Log(Spec, frozen=True, tag_field="kind", tag="log"):
    """Failures at stated times of the run, as an incident log has them; no mean is stated besides."""

    at: tuple[LongDuration, ...]
    """The times of the failures from the start of the run."""
    parts: tuple[Annotated[int, Meta(ge=0)], ...] = ()
    """The number of the part that fails at each time; unset: drawn."""


Law: TypeAlias = Exponential | Weibull | LognormalLaw | Bathtub | Empirical | Log
"""A law of times between failures."""
