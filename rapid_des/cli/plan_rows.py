"""What `rapid-des plan` does with single rows: a command, a job file, a comparison, a picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from rapid_des.cli.main import announce
from rapid_des.cli.options import plot_option, together
from rapid_des.cli.run_command import Named, run_command
from rapid_des.errors import ConfigError
from rapid_des.report.plan_text import command_text, row_difference_report
from rapid_des.report.tables import Part
from rapid_des.report.writing import check_outputs, write_text
from rapid_des.studies.difference import difference
from rapid_des.studies.plan import Plan

row_options = together(
    click.option(
        "--write-job",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Write the layout of --row as a job file.",
    ),
    click.option(
        "--row",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        help="The row that --write-job writes and that is printed as a command.",
    ),
    click.option(
        "--why",
        type=click.IntRange(2),
        metavar="ROW",
        help="Say which operators, collectives and waits make the difference between a row and the first.",
    ),
    plot_option,
)


def check_asked(options: dict[str, Any]) -> None:
    """Raise an `InputError` if a file cannot be written, or a row is beyond those that are asked for."""
    check_outputs([options["write_job"]], pictures=[options["plot"]], replace=options["force"])
    _check_rows(options, options["top"], "the last row is --top")


def _check_rows(options: dict[str, Any], rows: int, last: str) -> None:
    for option in ("row", "why"):
        if (options[option] or 1) > rows:
            raise ConfigError(f"there is no row {options[option]}: {last} {rows}", file=f"--{option}")


class Found(Struct):
    """A plan with what was asked of its rows."""

    plan: Plan
    plain: dict[str, Any]
    """The plan as JSON, to which each part of the report adds what it prints."""
    options: dict[str, Any]

    def parts(self, named: Named) -> Iterator[Part]:
        """Yield the command that simulates a row, and what makes another one slower than the first."""
        _check_rows(self.options, len(self.plan.rows), "the last row is")
        number, other = self.options["row"], self.options["why"]
        row = self.plan.rows[number - 1]
        self.plain["run"] = run_command(named, row.job, row.result.mode)
        yield command_text(self.plain["run"], number)
        if other is not None:
            results = (self.plan.rows[0].result, self.plan.rows[other - 1].result)
            self.plain["why"] = {"row": other, **difference(*results).as_json()}
            yield from row_difference_report(self.plain["why"], self.plain["rows"], other)

    def write(self, title: str) -> None:
        """Write a row as a job file, and all rows as bars, as far as asked for."""
        file, number = self.options["write_job"], self.options["row"]
        if file is not None:
            write_text(file, self.plan.rows[number - 1].job.as_yaml())
            announce(f"{'the best layout' if number == 1 else f'row {number}'} as a job: {file}")
        if self.options["plot"] is not None:
            self.plan.plot(self.options["plot"], title=title)
