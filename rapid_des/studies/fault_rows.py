"""The costs of draws of faults: a row for each draw, and statistics for each configuration.

Intervals are at 95 %. That of a mean follows from Student's t; those of a percentile q and of the mean of the
worst share (CVaR, Rockafellar and Uryasev, Journal of Banking & Finance 26, 2002) from their asymptotic
normal distributions: of order statistics, and of q + (x - q)+ / (1 - p). Draws of Latin hypercubes are
compared by whole rounds, whose means are independent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rapid_des.errors import InputError
from rapid_des.network.faults.models import ROUND
from rapid_des.report.tables import html
from rapid_des.report.writing import require_extra
from rapid_des.units import seconds
from rapid_des.values import asdict

if TYPE_CHECKING:
    import pandas


CONFIDENCE = 0.95
TAIL = 0.95
"""CVaR is the mean of the values beyond this percentile."""
_FEWEST = 20
"""The least number of draws before an interval may end a study."""
_UNTIL = re.compile(r"(mean|(?:p|cvar)(?!0+\b)\d{1,2})\s*(?:±|\+-|\+/-)\s*(\d+(?:\.\d+)?)\s*%\s*\Z")

Floats = NDArray[np.float64]


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


Sampling: TypeAlias = Literal["independent", "latin", "exact"]
NO_DRAW = -1


@dataclass(frozen=True)
class DrawRow:
    """One draw on one configuration; times in picoseconds."""

    configuration: str
    draw: int
    """The number of the draw; NO_DRAW: the healthy step can not be run, and this is the only row."""
    faults: tuple[str, ...]
    """The faults as --fault takes them; none: a healthy machine."""
    step_time: int
    healthy: int
    critical_rank: int
    added: Mapping[str, int] = field(hash=False)
    """The picoseconds that each part of the critical rank's time adds to the healthy step."""
    weight: float = 1.0
    """The number of places that this row represents, if all places are enumerated."""
    faster: str = ""
    """The reason if the faults make the step faster; else empty."""
    error: str = ""
    """The reason if the draw could not be run (its times are 0); else empty."""

    @property
    def slowdown(self) -> float:
        """The step time over the healthy step time."""
        return self.step_time / max(self.healthy, 1)

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        return {
            "configuration": self.configuration,
            "draw": self.draw,
            "faults": list(self.faults),
            "step_time_s": seconds(self.step_time),
            "step_time_ps": self.step_time,
            "healthy_s": seconds(self.healthy),
            "slowdown": self.slowdown,
            "critical_rank": self.critical_rank,
            "added_s": {name: seconds(time) for name, time in self.added.items()},
            "weight": self.weight,
            "faster": self.faster,
            "error": self.error,
        }


@dataclass(frozen=True)
class FaultSample:
    """The costs of draws of faults, by configuration.

    `faults_sample` makes one.

    >>> FaultSample(("a",), (), ("gpu=0 compute=0.5",), 0, "independent").spread("a") is None
    True
    """

    configurations: tuple[str, ...]
    rows: tuple[DrawRow, ...]
    """The draws, ordered by configuration, then by number."""
    models: tuple[str, ...]
    seed: int
    sampling: Sampling
    until: str = ""
    met: bool = True
    """Whether `until` was reached."""
    left: int = 0
    """The number of draws that ^C left out."""
    refused: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The configurations that are not valid jobs, and why."""

    def of(self, configuration: str) -> tuple[DrawRow, ...]:
        """Return the draws of a configuration that could be run."""
        return tuple(row for row in self.rows if row.configuration == configuration and not row.error)

    def spread(self, configuration: str) -> SampleStatistics | None:
        """Return the step's spread, in seconds; None without draws."""
        rows = self.of(configuration)
        if not rows:
            return None
        weights = [row.weight for row in rows] if self.sampling == "exact" else []
        rounds = ROUND if self.sampling == "latin" else 1
        return SampleStatistics.of([seconds(row.step_time) for row in rows], weights=weights, rounds=rounds)

    def as_json(self, top: int | None = None) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds, of each configuration its `top` slowest draws."""
        listed = [self._configuration(name, top) for name in self.configurations]
        return {
            "faults": list(self.models),
            "seed": self.seed,
            "sampling": self.sampling,
            "until": self.until,
            "met": self.met,
            "left": self.left,
            "refused": dict(self.refused),
            "configurations": listed,
        }

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row a draw; `InputError` without pandas."""
        require_extra("pandas", "notebook", "a DataFrame")
        import pandas

        return pandas.DataFrame([row.as_json() for row in self.rows])

    def _repr_html_(self) -> str:
        """Return the sample for a notebook: each configuration's healthy step, and its spread."""
        from rapid_des.report.study_text import sample_report

        return html(sample_report(self.as_json(top=1)))

    def _configuration(self, name: str, top: int | None) -> dict[str, Any]:
        rows, spread = self.of(name), self.spread(name)
        failed = [row for row in self.rows if row.configuration == name and row.error]
        ordered = sorted(rows, key=lambda row: (-row.step_time, row.draw))
        fastest = [row for row in ordered[::-1] if row.faster][:1]
        return {
            "configuration": name,
            "healthy_s": seconds(rows[0].healthy) if rows else None,
            "step_time_s": None if spread is None else spread.as_json(),
            "slower": sum(row.weight for row in rows if row.step_time > row.healthy),
            "faster": sum(row.weight for row in rows if row.step_time < row.healthy),
            "failed": len(failed),
            "error": failed[0].error if failed else "",
            "rows": [row.as_json() for row in [*ordered[:top], *(fastest if top is not None else [])]],
        }


COLUMNS = {
    "id": "int64",
    "configuration": "string",
    "draw": "int64",
    "faults": "string",
    "step_time_ps": "int64",
    "step_time_s": "float64",
    "healthy_ps": "int64",
    "slowdown": "float64",
    "critical_rank": "int64",
    "added_ps": "string",
    "weight": "float64",
    "faster": "string",
    "error": "string",
}
"""The columns of a store and their Arrow types; `faults` and `added_ps` are JSON."""


def written(row: DrawRow) -> dict[str, Any]:
    """Return a draw as a row of a store, without its id."""
    stated = asdict(row) | {"step_time_ps": row.step_time, "healthy_ps": row.healthy}
    stated |= {"faults": json.dumps(row.faults), "added_ps": json.dumps(row.added)}
    stated |= {"step_time_s": seconds(row.step_time), "slowdown": row.slowdown}
    return {name: stated[name] for name in COLUMNS if name != "id"}


def read(row: Mapping[str, Any]) -> DrawRow:
    """Return the draw of a row of a store."""
    return DrawRow(
        row["configuration"],
        row["draw"],
        tuple(json.loads(row["faults"])),
        row["step_time_ps"],
        row["healthy_ps"],
        row["critical_rank"],
        json.loads(row["added_ps"]),
        row["weight"],
        row["faster"],
        row["error"],
    )
