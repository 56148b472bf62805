"""Measured training steps behind forecasts, `rapid_des/report/forecast.json`, and what these are worth.

    python -m validation.fit_forecast [DATA_FOLDER]

runs the measured training jobs, puts those alike together, finds the scales under which the other sources
predict each source best, writes the file, and how far off each source is when it is left out into
`validation/README.md`. Takes half an hour of two cores.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, median

import numpy as np
from msgspec import structs

from rapid_des.report import forecast
from rapid_des.report.evidence import LEVEL, STEP
from rapid_des.report.forecast import (
    CLASSES,
    GROUPS,
    Cell,
    JobKind,
    Published,
    Scales,
    members_of,
    noise_of,
    posterior_of,
    prior_of,
    rows_of,
)
from validation import all_topics, open_folder
from validation.fit_intervals import SAMPLED, is_sampled
from validation.jobs.sources import WORKED_ON, source_of
from validation.pages import NOTES, as_of, fill

FILE = Path(forecast.__file__).with_name("forecast.json")
_NONE = 0.001
START = Scales(
    slope=_NONE, software=_NONE, family=_NONE, format=_NONE, experts=_NONE, waiting=_NONE,
    source=0.08, rest=0.06, within=0.0, worked=0.06,
)  # fmt: skip
SOUGHT = ("source", "worked")
"""Scales that are fitted. `rest` and `within` are how jobs of one source and of one cell scatter. On all
sources the others explained next to nothing (software 0.0009, slopes 0.011 and 0.002, else 0.001), and
without one source anything up to 0.24, from a single other one."""
_FEW = 3
"""Cells of a source, and jobs of a cell, from which a scatter can be told."""
LEAST, MOST = 0.0003, 0.5
_GAIN, _LAST_STEP = 1e-4, 1.1
_DIGITS = 4


@dataclass(frozen=True)
class Measured:
    """One measured step beside its simulation."""

    source: str
    alike: str
    """Equal for jobs of one cell beside the source and the kind's groups."""
    kind: JobKind
    error: float
    """ln(measured / simulated)."""


def cells_of(jobs: Sequence[Measured]) -> tuple[tuple[Cell, ...], float]:
    """Return jobs alike as cells, and the standard deviation of jobs within them (by medians)."""
    groups: dict[tuple[str, ...], list[Measured]] = defaultdict(list)
    for job in jobs:
        groups[(job.source, job.alike, *(job.kind.group(name) for name in GROUPS))].append(job)
    cells, within = [], [0.0]
    for (source, *_), members in groups.items():
        error = median(job.error for job in members)
        means = {name: fmean(job.kind.shares.get(name, 0.0) for job in members) for name in CLASSES}
        shares = {name: round(share, _DIGITS) for name, share in means.items() if share}
        kind = structs.replace(members[0].kind, shares=shares)
        cells.append(Cell(source, kind, len(members), round(error, _DIGITS), source in WORKED_ON))
        within += [abs(job.error - error) for job in members if len(members) >= _FEW]
    return tuple(cells), _scatter(within)


def rest_of(cells: Sequence[Cell]) -> float:
    """Return the standard deviation of a source's cells: the median over sources, each by medians."""
    errors: dict[tuple[str, bool], list[float]] = defaultdict(list)
    for cell in cells:
        errors[cell.source, cell.kind.experts].append(cell.error)
    found = [each for each in errors.values() if len(each) >= _FEW]
    return (
        median(_scatter([abs(error - median(each)) for error in each]) for each in found)
        if found
        else START.rest
    )


def _scatter(distances: Sequence[float]) -> float:
    """Return the standard deviation of a normal distribution with these distances from its median."""
    return round(1.4826 * median(distances), _DIGITS)


def predictive(cells: Sequence[Cell], scales: Scales) -> float:
    """Return the mean over sources of the logarithm of how likely each is by the others, per cell."""
    members = members_of(cells)
    rows = rows_of(cells, members)
    covariance = noise_of(cells, scales) + rows @ np.diag(prior_of(members, scales) ** 2) @ rows.T
    inverse = np.linalg.inv(covariance)
    weighted = inverse @ np.array([cell.error for cell in cells])
    sources = np.array([cell.source for cell in cells])
    found = []
    for source in dict.fromkeys(sources.tolist()):
        mine = sources == source
        spread = np.linalg.inv(inverse[np.ix_(mine, mine)])
        missed, variances = spread @ weighted[mine], np.diag(spread)
        found.append(float(np.mean(-0.5 * (missed**2 / variances + np.log(variances)))))
    return fmean(found)


def fitted(cells: Sequence[Cell], within: float) -> Scales:
    """Return the scales with the best `predictive`, by a search along each."""
    best = structs.replace(START, within=within, rest=rest_of(cells))
    most, step = predictive(cells, best), 2.0
    while step > _LAST_STEP:
        improved = False
        for name in SOUGHT:
            for factor in (step, 1 / step):
                value = min(max(getattr(best, name) * factor, LEAST), MOST)
                trial = structs.replace(best, **{name: value})
                score = predictive(cells, trial)
                if score > most + _GAIN:
                    best, most, improved = trial, score, True
        step = step if improved else step**0.5
    return structs.replace(
        best, **{name: round(getattr(best, name), _DIGITS) for name in structs.asdict(best)}
    )


def left_out(jobs: Sequence[Measured]) -> Iterator[tuple[Measured, float, float]]:
    """Yield each job with what the other sources forecast of it: median and standard deviation."""
    cells, within = cells_of(jobs)
    for source in dict.fromkeys(job.source for job in jobs):
        others = tuple(cell for cell in cells if cell.source != source)
        posterior = posterior_of(Published(fitted(others, within), others))
        for job in jobs:
            if job.source == source:
                yield (job, *posterior.ratio(job.kind))


def widths_of(found: Sequence[tuple[Measured, float, float]]) -> dict[str, float]:
    """Return the widths of intervals, of dense jobs and of mixtures of experts, as `Scales` names them."""
    return {
        name: width_of([each for each in found if each[0].kind.experts is experts] or found)
        for name, experts in (("width", False), ("experts_width", True))
    }


def width_of(found: Sequence[tuple[Measured, float, float]]) -> float:
    """Return how many standard deviations hold 80 % of a source's jobs, each source weighing the same."""
    counts: dict[str, int] = defaultdict(int)
    for job, _, _ in found:
        counts[job.source] += 1
    ranked = sorted(
        (abs(job.error - middle) / spread, 1 / counts[job.source]) for job, middle, spread in found
    )
    reached = np.cumsum([weight for _, weight in ranked]) / len(counts)
    return round(ranked[int(np.searchsorted(reached, LEVEL))][0], _DIGITS)


def lines(found: Sequence[tuple[Measured, float, float]], scales: Scales) -> Iterator[str]:
    """Yield the lines of a table: sources left out, simulated and forecast, dense jobs and experts apart.

    The last line of each kind is the mean of its sources, of which each weighs the same.
    """
    names = ("rows", "simulated", "bias", "median", "p90", "worst", "own factor", "forecast", "bias", "worst")
    yield f"| source left out | {' | '.join(names)} | in the interval |"
    yield f"|---{'|---:' * (len(names) + 1)}|"
    for experts, kind in ((False, "dense"), (True, "experts")):
        mine = [each for each in found if each[0].kind.experts is experts]
        sources = {
            source: _figures([each for each in mine if each[0].source == source], scales)
            for source in sorted({job.source for job, _, _ in mine})
        }
        for source, figures in sources.items():
            yield _line(f"{source}, {kind}", figures)
        if sources:
            yield _line(f"**all {kind}, by row**", _figures(mine, scales))
            means = [fmean(column) for column in zip(*sources.values(), strict=True)]
            yield _line(f"**all {kind}, by source**", [float(len(mine)), *means[1:]])


def _figures(found: Sequence[tuple[Measured, float, float]], scales: Scales) -> list[float]:
    simulated = [100 * math.expm1(-job.error) for job, _, _ in found]
    expected = [100 * math.expm1(middle - job.error) for job, middle, _ in found]
    off = np.abs(simulated)
    held = fmean(
        100.0 * (abs(job.error - middle) <= scales.half(job.kind, spread)) for job, middle, spread in found
    )
    figures = [float(len(found)), fmean(off), fmean(simulated), *np.quantile(off, (0.5, 0.9)), off.max()]
    figures += [own_factor([job.error for job, _, _ in found]), fmean(map(abs, expected)), fmean(expected)]
    return [*map(float, figures), max(map(abs, expected)), held]


def _line(name: str, figures: Sequence[float]) -> str:
    formats = (".0f", ".1f", "+.1f", ".1f", ".1f", ".0f", ".1f", ".1f", "+.1f", ".0f", ".0f")
    cells = (format(figure, form) for figure, form in zip(figures, formats, strict=True))
    return f"| {name} | {' | '.join(cells)} |"


def own_factor(errors: Sequence[float]) -> float:
    """Return the mean error in percent that the best factor for these rows alone leaves: in-sample, a floor.

    >>> own_factor([0.1, 0.1, 0.1]), round(own_factor([0.0, 0.0, math.log(2)]), 1)
    (0.0, 16.7)
    """
    return min(fmean(100 * abs(math.expm1(each - error)) for error in errors) for each in errors)


def measured(data_folder: Path | None) -> Iterator[Measured]:
    """Yield the measured training steps, of large sets a sample."""
    for topic in all_topics(open_folder(data_folder), ["training/"]):
        if topic.job_errors is None or "excluded" in topic.name:
            continue
        among = next((few for start, few in SAMPLED.items() if topic.name.startswith(start)), 1)
        for each in topic.job_errors(partial(is_sampled, among)):
            if each.kind is not None and each.origin.figure == STEP:
                yield Measured(
                    source_of(topic.name), f"{each.origin.device} {each.model}", each.kind, each.error
                )


def main(data_folder: Path | None = None) -> None:
    """Fit, write and judge."""
    jobs = list(measured(data_folder))
    write(jobs)


def write(jobs: Sequence[Measured]) -> None:
    """Write the file of forecasts, and what they are worth."""
    cells, within = cells_of(jobs)
    found = list(left_out(jobs))
    scales = structs.replace(fitted(cells, within), **widths_of(found))
    forecast.write(FILE, Published(scales, cells))
    fill(NOTES, "forecast", [*lines(found, scales), "", f"As of {as_of()}."])


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
