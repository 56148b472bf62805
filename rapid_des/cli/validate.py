"""`rapid-des validate`: predictions beside measurements, split and scored."""

from __future__ import annotations

import json
from pathlib import Path

import click

from rapid_des.validation import open_folder, table
from rapid_des.validation import validate as run_validation
from rapid_des.validation.plots import plot_topics


@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--data", type=click.Path(path_type=Path), help="Measured files; every row counts as test.")
@click.option("--json", "as_json", is_flag=True, help="Figures and every residual as JSON.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="DIR", help="Draw predicted over measured.")
def validate(topics: tuple[str, ...], data: Path | None, as_json: bool, plot: Path | None) -> None:
    """Print predictions against measurements; a TOPIC is a prefix such as operators/gemm."""
    report = run_validation(open_folder(data), topics)
    click.echo(json.dumps(report) if as_json else table(report))
    if plot is not None:
        written = plot_topics(report, plot)
        click.echo(f"{len(written)} pictures in {plot}", err=True)
