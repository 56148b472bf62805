"""The option `--report` of commands, and what writes the pages."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rapid_des.cli.main import command_words, progress
from rapid_des.errors import InputError
from rapid_des.report.writing import check_outputs, write_text

if TYPE_CHECKING:
    from rapid_des.bounded_cache import BoundedCache
    from rapid_des.frontend import Job
    from rapid_des.machine import Machine
    from rapid_des.modes.execution import EngineChoice, Run
    from rapid_des.report.charts import Chart, PageSection
    from rapid_des.report.result import Result
    from rapid_des.report.tables import Part

report_option = click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="OUT.html",
    help="Write a page that explains the result, in one HTML file.",
)


def check_report(path: Path | None, *, force: bool) -> None:
    """Raise `InputError` if a page cannot be written; called before the work."""
    if path is None:
        return
    if path.suffix not in (".html", ".htm"):
        raise InputError(f"{path}: allowed: a name that ends in .html")
    check_outputs([path], replace=force)


def write_page(path: Path, title: str, sections: Sequence[PageSection], plain: object) -> None:
    """Write a page with the command that makes it."""
    from rapid_des.report.page.document import page

    command = shlex.join(["rapid-des", *command_words()])
    write_text(path, page(title, sections, plain, command=command))


def write_study_page(
    path: Path | None,
    title: str,
    parts: Iterable[Part],
    plain: object,
    charts: Iterable[Chart] = (),
    *,
    plot: Path | None = None,
) -> None:
    """Write the page of a command's report with charts above it, and the charts alone, if asked for."""
    drawn = [] if path is None and plot is None else list(charts)
    if plot is not None:
        from rapid_des.report.pictures.charts import draw_charts

        draw_charts(drawn, plot, title=title)
    if path is None:
        return
    from rapid_des.report.charts import PageSection, Tiles
    from rapid_des.report.page.studies import sections_of

    short = PageSection("In short", [chart for chart in drawn if isinstance(chart, Tiles)])
    pictures = PageSection("In pictures", [chart for chart in drawn if not isinstance(chart, Tiles)])
    write_page(path, title, [short, pictures, *sections_of(parts)], plain)


def run_page(
    result: Result, inputs: tuple[Job, Machine], how: tuple[EngineChoice, BoundedCache | None]
) -> list[PageSection]:
    """Return the sections of a job's run; the changes that would help the most are simulated for it."""
    from rapid_des.modes.pricing import price
    from rapid_des.report.charts import TextFile
    from rapid_des.report.critical_path import critical_path
    from rapid_des.report.job_structure import explain
    from rapid_des.report.page.whole_run import Explained, run_sections
    from rapid_des.studies.changes import best_changes

    job, machine = inputs
    path = critical_path(result)
    files = [
        TextFile(f"job {job.name}", job.as_yaml()),
        TextFile(f"machine {machine.name}", machine.as_yaml()),
    ]
    with progress(f"{result.title}: changes that would help") as bar:
        changes = best_changes(inputs, result, path, how[0], bar.about(result.title))
        traced = _traced(result, inputs, how)
    structure = explain(price(job, machine, cache=how[1]))
    return run_sections(result, Explained(path, changes, structure, files, traced))


_MOST_HOPS = 500_000
"""Up to this many hops of messages a run is simulated once more, to colour its links over time."""


def _traced(
    result: Result, inputs: tuple[Job, Machine], how: tuple[EngineChoice, BoundedCache | None]
) -> Run | None:
    """Return a run of all ranks once more with every hop of its messages, if they are not too many."""
    from rapid_des.simulation import simulate

    if result.run is None or result.run.execution.records.hops > _MOST_HOPS:
        return None
    engine, cache = how
    again = simulate(*inputs, mode=result.mode, engine=engine, trail=True, allow_oom=True, cache=cache)
    return again.run
