"""`rapid-des validate`: predictions beside measurements, split and scored."""

from __future__ import annotations

import json
from pathlib import Path

import click

from rapid_des.cli.main import printable, progress
from rapid_des.cli.options import force_option
from rapid_des.report.pictures.charts import draw_residuals
from rapid_des.report.study_text import validation_lines
from rapid_des.report.writing import check_folder, refuse_present, require_extra
from rapid_des.validation import open_folder
from rapid_des.validation import validate as run_validation


@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--data", type=click.Path(path_type=Path), help="Measured files; every row counts as test.")
@click.option("--json", "as_json", is_flag=True, help="Figures and every residual as JSON.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="DIR", help="Draw predicted over measured.")
@force_option
def validate(
    topics: tuple[str, ...], data: Path | None, as_json: bool, plot: Path | None, force: bool
) -> None:
    """Print predictions against measurements; a TOPIC is a prefix such as operators/gemm."""
    if plot is not None:
        require_extra("matplotlib", "plot", "--plot")
        check_folder(plot)
        refuse_present(sorted(plot.glob("*.png"))[:1], force=force)
    with progress("validate") as bar:
        report = run_validation(open_folder(data), topics, report=bar.part)
    click.echo(json.dumps(report) if as_json else printable("\n".join(validation_lines(report))))
    if report["unfinished"]:
        raise KeyboardInterrupt
    if plot is not None:
        written = draw_residuals(report, plot)
        click.echo(f"{len(written)} pictures in {plot}", err=True)
