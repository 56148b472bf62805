"""What a measurement of a training job's memory is expected to show, from the peaks of other jobs.

    published peaks ──► validation/fit_memory.py ──► memory.json (cells of jobs alike, scales)
    simulated peak, software ──► posterior (`forecast`) ──► median, 80 % interval, probability that it fits

Peaks are what the framework's allocator held (PyTorch: `max_memory_reserved`); what lies outside of it, as
the context, is as simulated. Software without published peaks is drawn to the mean of the others, and its
interval is as wide as these differ. Jobs that take less than half of a GPU say nothing here: with much room
an allocator keeps what it does not need. A peak beyond the GPU's memory is one that does not fit.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from statistics import NormalDist

from msgspec import Struct

from rapid_des.frontend import JobMemory
from rapid_des.report.forecast import JobKind, Posterior, Published, as_text, posterior_of, read


class MemoryForecast(Struct, frozen=True):
    """Where a measured peak is expected, in bytes, and how likely the job fits into the GPU's memory."""

    median: int
    low: int
    high: int
    fits: float
    """The probability that the peak is at most the GPU's memory."""
    jobs: int
    """Number of measured jobs behind it."""

    def as_json(self) -> dict[str, int]:
        """Return plain data for JSON, in bytes."""
        return {"median": self.median, "low": self.low, "high": self.high}


def memory_forecast(needed: JobMemory, capacity: int, software: str) -> MemoryForecast:
    """Return where the fullest GPU's measured peak is expected; `capacity` is its memory in bytes."""
    fullest = needed.fullest
    held, outside = fullest.reserved, fullest.peak - fullest.reserved
    known = posterior()
    middle, spread = known.ratio(kind_of(software))
    half = known.table.scales.width * spread
    low, median, high = (outside + round(held * math.exp(middle + step)) for step in (-half, 0.0, half))
    room = max(capacity - outside, 1) / max(held, 1)
    fits = NormalDist(middle, spread).cdf(math.log(room))
    return MemoryForecast(median, low, high, round(fits, 3), known.table.jobs)


def kind_of(software: str) -> JobKind:
    """Return what a peak's ratio of measured to simulated may depend on: the software alone."""
    return JobKind(software, "", "", False, {})


@cache
def posterior() -> Posterior:
    """Return what the published peaks say."""
    return posterior_of(read("memory.json"))


def write(path: Path, known: Published) -> None:
    """Write a table, a cell a line, and have forecasts read it."""
    path.write_text(as_text(known), encoding="utf-8")
    posterior.cache_clear()
