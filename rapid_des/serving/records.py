"""What a replica has done: a row a stretch of iterations, and how long tokens were apart."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rapid_des.arrays import Int64s
from rapid_des.serving.batch import Batch

PER_DOUBLING = 1000
"""Bins of gaps between tokens: each 0.07 % wide."""
_BINS = 64 * PER_DOUBLING
_TOGETHER = 512
"""Stretches of steps that are brought into bins at once."""
COLUMNS = ("began", "duration", "steps", "decodes", "keys", "prompt_tokens", "waiting", "running", "pages")


class Stop(NamedTuple):
    """When a replica was out, or slow by a fault; picoseconds."""

    replica: int
    begin: int
    end: int
    """When it serves again, or as quickly as before."""
    fault: str | None = None
    """By which it was slow; None: it was out."""


class _Watched(Protocol):
    @property
    def sizes(self) -> tuple[int, int, int]:
        """Requests that wait, requests that run, pages held."""
        ...


@dataclass
class Load:
    """Columns of equal length: `COLUMNS`, times in picoseconds."""

    columns: dict[str, array[int]] = field(default_factory=lambda: {name: array("q") for name in COLUMNS})
    _gaps: Int64s = field(default_factory=lambda: np.zeros(_BINS, np.int64))
    _steps: list[tuple[Int64s, int]] = field(default_factory=list)
    """Steps that are not in `_gaps` yet: when they ended, and how many tokens each made."""

    def iteration(
        self, began: int, duration: int, batch: Batch, watched: _Watched, *, gap: int | None = None
    ) -> None:
        """Count one iteration; `gap` is between two tokens of a request, if not what it lasts."""
        sizes = batch.prompt_tokens, *watched.sizes
        self._append((began, duration, 1, batch.decodes, batch.keys, *sizes))
        if batch.decodes:
            self._gaps[_bin(duration if gap is None else gap)] += batch.decodes

    def steps(self, began: int, ends: Int64s, batch: Batch, watched: _Watched) -> None:
        """Count decode steps that ended so long after they began, of the first of which this is the batch."""
        decodes = batch.decodes
        self._append((began, int(ends[-1]), len(ends), decodes, batch.keys, 0, *watched.sizes))
        self._steps.append((ends, decodes))
        if len(self._steps) == _TOGETHER:
            self._count()

    @property
    def gaps(self) -> Int64s:
        """Tokens by the time since the one before (log bins)."""
        self._count()
        return self._gaps

    def _count(self) -> None:
        """Bring steps into their bins."""
        if self._steps:
            durations = np.concatenate([np.diff(ends, prepend=0) for ends, _ in self._steps])
            counts = np.repeat([each for _, each in self._steps], [len(ends) for ends, _ in self._steps])
            np.add.at(self._gaps, _bins(durations), counts)
            self._steps.clear()

    def table(self) -> dict[str, Int64s]:
        """Return the columns as arrays."""
        return {name: np.array(values, np.int64) for name, values in self.columns.items()}

    def _append(self, row: tuple[int, ...]) -> None:
        for column, value in zip(self.columns.values(), row, strict=True):
            column.append(value)


def gap_quantiles(gaps: Int64s, shares: tuple[float, ...]) -> list[float]:
    """Return quantiles of binned gaps in picoseconds, within half a bin."""
    total = np.cumsum(gaps)
    wanted = np.array(shares) * total[-1]
    places: NDArray[np.float64] = np.searchsorted(total, wanted) + 0.5
    return [float(value) for value in 2 ** (places / PER_DOUBLING)] if total[-1] else []


def mean_gap(gaps: Int64s) -> float:
    """Return the mean of binned gaps in picoseconds, each taken at the middle of its bin; 0 of none."""
    (bins,) = np.nonzero(gaps)
    return float(np.average(2 ** ((bins + 0.5) / PER_DOUBLING), weights=gaps[bins])) if len(bins) else 0.0


def _bin(duration: int) -> int:
    return int(np.log2(max(duration, 1)) * PER_DOUBLING)


def _bins(durations: Int64s) -> Int64s:
    return (np.log2(np.maximum(durations, 1)) * PER_DOUBLING).astype(np.int64)
