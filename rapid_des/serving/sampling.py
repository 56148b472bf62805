"""Statistics of served requests: quantiles, batch means, and rates without the start and the drain."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rapid_des.arrays import Floats, Int64s
from rapid_des.means import student
from rapid_des.units import PS_PER_S

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_BATCHES = 20
_STUDENT = round(student(_BATCHES - 1), 3)
"""Batches of consecutive requests, and how many standard errors the mean over them is off at most."""
_FEWEST = 20 * _BATCHES
_FEWEST_ANSWERS = 10 * _BATCHES
INTERVALS = "half widths of 95 % intervals from 20 batches of consecutive requests"


class SteadyWindow(Struct, frozen=True):
    """The time from the answer of the first quarter of all requests until the last one comes.

    Before it a server fills up, after it the server drains.

    >>> times = np.arange(100) * PS_PER_S
    >>> window = SteadyWindow.of(times, times + 10 * PS_PER_S)
    >>> window.end // PS_PER_S, window.rate()
    (99, 1.0)
    """

    begin: int
    end: int
    """Picoseconds, as `begin`."""
    finished: Int64s
    """The times at which all requests were answered."""

    @classmethod
    def of(cls, arrival: Int64s, finished: Int64s) -> SteadyWindow | None:
        """Return the window of requests; None if fewer than 20 are answered in it."""
        if not len(finished):
            return None
        window = cls(int(np.sort(finished)[len(finished) // 4]), int(arrival.max()), finished)
        return window if window._inside.sum() >= _BATCHES else None

    @property
    def _inside(self) -> NDArray[np.bool_]:
        """Whether each request is answered in the window."""
        return (self.finished > self.begin) & (self.finished <= self.end)

    def rate(self, weights: Int64s | NDArray[np.bool_] | None = None) -> float:
        """Return how many requests are answered a second, or how much of `weights` they have."""
        inside = self._inside if weights is None else weights[self._inside]
        return int(inside.sum()) / ((self.end - self.begin) / PS_PER_S)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where the rate of requests lies with 95 %, by batches of equal time; None of few requests."""
        if self._inside.sum() < _FEWEST_ANSWERS:
            return None
        edges = np.linspace(self.begin, self.end, _BATCHES + 1)
        counts = np.histogram(self.finished[self._inside], edges)[0]
        rates = counts / ((self.end - self.begin) / _BATCHES / PS_PER_S)
        width = _STUDENT * float(rates.std(ddof=1)) / _BATCHES**0.5
        return max(0.0, self.rate() - width), self.rate() + width


def half_widths(times: Int64s | Floats) -> dict[str, float] | None:
    """Return the half widths, in seconds, of the mean's and quantiles' intervals; None of few requests."""
    if len(times) < _FEWEST:
        return None
    batches = [spread(batch.astype(np.float64)) for batch in np.array_split(times, _BATCHES)]
    means = {name: np.array([batch[name] for batch in batches], np.float64) for name in batches[0]}
    return {name: float(_STUDENT * each.std(ddof=1) / _BATCHES**0.5) for name, each in means.items()}


def spread(times: Int64s | Floats) -> dict[str, float | None]:
    """Return mean and quantiles in seconds; None where there are no times."""
    if not len(times):
        return dict.fromkeys(("mean", *SHARES))
    quantiles = np.quantile(times, list(SHARES.values())) / PS_PER_S
    return {"mean": float(times.mean()) / PS_PER_S, **dict(zip(SHARES, map(float, quantiles), strict=True))}
