"""Records of a replica: a row for iterations of the same requests and pages, and times between tokens."""

from __future__ import annotations

from array import array
from typing import NamedTuple, Protocol

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from rapid_des.arrays import Int64s, to_the_next
from rapid_des.serving.batch import Batch

PER_DOUBLING = 1000
"""Bins per doubling of the time between tokens: each is 0.07 % wide."""
_BINS = 64 * PER_DOUBLING
_TOGETHER = 512
"""Number of pending rows that are binned at once."""
COLUMNS = ("began", "duration", "steps", "decodes", "keys", "prompt_tokens", "waiting", "running", "pages")


class Stop(NamedTuple):
    """An interval in which a replica was down, or slowed by a fault; picoseconds."""

    replica: int
    begin: int
    end: int
    """The time at which it serves again, or at full speed, in picoseconds."""
    fault: str | None = None
    """The fault that slowed it; None: it was down."""


class _Watched(Protocol):
    @property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers of waiting requests, running requests, and held pages."""
        ...


class Batches(NamedTuple):
    """The batches of consecutive decode steps of the same requests."""

    decodes: int
    """Number of requests."""
    keys: Int64s
    """Number of positions that they attend to, in each step."""
    pages: Int64s
    """Number of pages that they took since the first step began, at the beginning of each."""


class Load(Struct):
    """Rows of `COLUMNS`, one after the other, times in picoseconds."""

    _rows: array[int] = field(default_factory=lambda: array("q"))
    _gaps: Int64s = field(default_factory=lambda: np.zeros(_BINS, np.int64))
    _steps: list[tuple[Int64s, int]] = field(default_factory=list)
    """Decode steps not yet binned: their ends, and the number of tokens each made."""

    def iteration(
        self, began: int, duration: int, batch: Batch, watched: _Watched, *, gap: int | None = None
    ) -> None:
        """Record one iteration; `gap`: the time between two tokens if it is not its duration."""
        sizes = batch.prompt_tokens, *watched.sizes
        self._rows.extend((began, duration, 1, batch.decodes, batch.keys, *sizes))
        if batch.decodes:
            self._gaps[_bin(duration if gap is None else gap)] += batch.decodes

    def steps(self, began: int, ends: Int64s, batches: Batches, sizes: tuple[int, int, int]) -> None:
        """Record decode steps by their ends after `began`: a row for each number of held pages.

        `sizes`: numbers of waiting requests, running requests, and held pages as they began.
        """
        waiting, running, held = sizes
        changed = np.ones(len(batches.pages), np.bool_)
        np.not_equal(batches.pages[1:], batches.pages[:-1], out=changed[1:])
        cuts = np.flatnonzero(changed)
        begins = ends[cuts - 1] * (cuts > 0)
        rows = np.empty((len(cuts), len(COLUMNS)), np.int64)
        rows[:, 0], rows[:, 1] = began + begins, to_the_next(begins, ends[-1])
        rows[:, 2] = to_the_next(cuts, len(ends))
        rows[:, 3], rows[:, 4], rows[:, 5] = batches.decodes, batches.keys[cuts], 0
        rows[:, 6], rows[:, 7], rows[:, 8] = waiting, running, held + batches.pages[cuts]
        self._rows.frombytes(rows.tobytes())
        self._steps.append((ends, batches.decodes))
        if len(self._steps) == _TOGETHER:
            self._count()

    @property
    def gaps(self) -> Int64s:
        """Number of tokens by the time since the one before, in logarithmic bins."""
        self._count()
        return self._gaps

    def _count(self) -> None:
        """Add the pending steps to the bins."""
        if self._steps:
            # Each step gives `decodes` tokens the same time since the one before: its own duration.
            durations = np.diff(np.concatenate([ends for ends, _ in self._steps]), prepend=0)
            firsts = np.cumsum([0, *(len(ends) for ends, _ in self._steps[:-1])])
            durations[firsts] = [ends[0] for ends, _ in self._steps]
            counts = np.repeat([each for _, each in self._steps], [len(ends) for ends, _ in self._steps])
            np.add.at(self._gaps, _bins(durations), counts)
            self._steps.clear()

    def table(self) -> dict[str, Int64s]:
        """Return the columns as arrays."""
        rows = np.array(self._rows, np.int64).reshape(-1, len(COLUMNS))
        return {name: rows[:, place].copy() for place, name in enumerate(COLUMNS)}


def gap_quantiles(gaps: Int64s, shares: tuple[float, ...]) -> list[float]:
    """Return quantiles of binned gaps in picoseconds, within half a bin."""
    total = np.cumsum(gaps)
    wanted = np.array(shares) * total[-1]
    # The bin in which the cumulated count reaches the share; the middle of the bin stands for it.
    places: NDArray[np.float64] = np.searchsorted(total, wanted) + 0.5
    return [float(value) for value in 2 ** (places / PER_DOUBLING)] if total[-1] else []


def mean_gap(gaps: Int64s) -> float:
    """Return the mean of binned gaps in picoseconds, each at its bin's middle; 0 without gaps."""
    (bins,) = np.nonzero(gaps)
    return float(np.average(2 ** ((bins + 0.5) / PER_DOUBLING), weights=gaps[bins])) if len(bins) else 0.0


def _bin(duration: int) -> int:
    return int(np.log2(max(duration, 1)) * PER_DOUBLING)


def _bins(durations: Int64s) -> Int64s:
    return (np.log2(np.maximum(durations, 1)) * PER_DOUBLING).astype(np.int64)
