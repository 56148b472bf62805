"""`rapid-des validate`: predictions beside measurements, split and scored; in a checkout."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import click

from rapid_des.cli.main import progress
from rapid_des.cli.options import echo, force_option
from rapid_des.errors import InputError
from rapid_des.report.pictures.studies import draw_residuals
from rapid_des.report.study_text import validation_report
from rapid_des.report.writing import check_folder, refuse_present, require_extra

ROOT = Path(__file__).parents[2]
"""The checkout that contains this file, if there is one."""


@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--data", type=click.Path(path_type=Path), help="Measured files; every row counts as test.")
@click.option("--json", "as_json", is_flag=True, help="Figures and every residual as JSON.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="DIR", help="Draw predicted over measured.")
@force_option
def validate(
    topics: tuple[str, ...], data: Path | None, as_json: bool, plot: Path | None, force: bool
) -> None:
    """Print predictions against measurements; a TOPIC is a prefix such as operators/gemm.

    The measurements and what scores them are part of the repository, not of the wheel.

    rapid-des validate operators/gemm
    """
    package = _package()
    if plot is not None:
        require_extra("matplotlib", "plot", "--plot")
        check_folder(plot)
        refuse_present(sorted(plot.glob("*.png"))[:1], force=force)
    with progress("validate") as bar:
        report = package.validate(package.open_folder(data), topics, report=bar.part)
    echo(as_json, report, validation_report(report))
    if report["unfinished"]:
        raise KeyboardInterrupt
    if plot is not None:
        written = draw_residuals(report, plot)
        click.echo(f"{len(written)} pictures in {plot}", err=True)


def _package() -> Any:
    """Return the package `validation` of this file's checkout; an `InputError` if it is in none."""
    if not (ROOT / "validation" / "__init__.py").is_file():
        raise InputError(
            "validate is part of the repository, with its measurements, and not of the installed package: "
            "run `python cli.py validate` in a checkout of rapid_des"
        )
    return importlib.import_module("validation")
