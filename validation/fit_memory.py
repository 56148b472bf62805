"""Measured peaks of memory behind forecasts, `rapid_des/report/memory.json`, and what these are worth.

    python -m validation.fit_memory [DATA_FOLDER]

computes the memory of the training jobs whose peaks are published (of nanotron every eighth) and half of a
GPU or more, writes the file, and how far off each software is when it is left out into
`validation/README.md`. Takes a minute of a core. Software without peaks of its own lies as far from the mean
as those that have some lie apart.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev, stdev

from rapid_des.report import memory_forecast
from rapid_des.report.forecast import Cell, Published, Scales, posterior_of
from rapid_des.report.memory_forecast import kind_of
from validation import all_topics, open_folder
from validation.fit_forecast import Measured
from validation.fit_intervals import SAMPLED, is_sampled
from validation.pages import NOTES, as_of, fill

FILE = Path(memory_forecast.__file__).with_name("memory.json")
_NONE, _DIGITS = 0.0003, 4
_LEAST_GIB = 40.0
"""Half of an H100's memory: with more room than that allocators keep what they do not need."""


def fitted(jobs: Sequence[Measured]) -> Published:
    """Return a cell for each software, how far these lie apart, and how far jobs of one do."""
    groups = defaultdict[str, list[float]](list)
    for job in jobs:
        groups[job.source].append(job.error)
    cells = tuple(
        Cell(software, kind_of(software), len(errors), round(fmean(errors), _DIGITS))
        for software, errors in sorted(groups.items())
    )
    apart = stdev([cell.error for cell in cells])
    within = math.sqrt(fmean(pstdev(errors) ** 2 for errors in groups.values()))
    scales = Scales(
        slope=_NONE, software=round(apart, _DIGITS), family=_NONE, format=_NONE, experts=_NONE,
        source=_NONE, rest=_NONE, within=round(within, _DIGITS),
    )  # fmt: skip
    return Published(scales, cells)


def measured(data_folder: Path | None) -> Iterator[Measured]:
    """Yield the published peaks beside the memory that is simulated."""
    for topic in all_topics(open_folder(data_folder), ["memory/"]):
        assert topic.job_errors is not None, "peaks are of jobs"
        software = topic.name.removeprefix("memory/")
        for each in topic.job_errors(partial(is_sampled, SAMPLED.get(f"training/{software}/", 1))):
            if each.predicted >= _LEAST_GIB:
                yield Measured(software, software, kind_of(software), each.error)


def lines(jobs: Sequence[Measured], known: Published) -> Iterator[str]:
    """Yield a table: each software left out, simulated and forecast."""
    yield "| software left out | rows | simulated | bias | forecast | bias | in the interval |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for cell in known.cells:
        software = cell.source
        middle, spread = posterior_of(known, without=[software]).ratio(cell.kind)
        mine = [job.error for job in jobs if job.source == software]
        off = [[100 * math.expm1(each - error) for error in mine] for each in (0.0, middle)]
        held = fmean(100.0 * (abs(error - middle) <= known.scales.width * spread) for error in mine)
        figures = " | ".join(f"{fmean(map(abs, errors)):.1f} | {fmean(errors):+.1f}" for errors in off)
        yield f"| {software} | {len(mine)} | {figures} | {held:.0f} |"


def main(data_folder: Path | None = None) -> None:
    """Fit, write and judge."""
    jobs = list(measured(data_folder))
    known = fitted(jobs)
    memory_forecast.write(FILE, known)
    fill(NOTES, "memory", [*lines(jobs, known), "", f"As of {as_of()}."])


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
