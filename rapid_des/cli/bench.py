"""`rapid-des bench`: how fast the simulator itself is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from rapid_des.cli.options import echo, json_option
from rapid_des.report.study_text import SPEED_HEADER, growth_line, speed_line
from rapid_des.studies.bench import (
    CASES,
    Measurement,
    chosen_cases,
    growth,
    measure_apart,
    require_right,
    tree,
)
from rapid_des.values import asdict


@click.command()
@click.argument("cases", nargs=-1, metavar="[CASE …]")
@click.option("--large", is_flag=True, help="Also the hierarchical runs on 16,384 to 1,048,576 GPUs.")
@json_option
def bench(cases: tuple[str, ...], large: bool, as_json: bool) -> None:
    """Measure speed and memory on standard cases; a wrong answer is an error."""
    names = chosen_cases(cases, large=large)
    measured = list(measure_apart(names) if as_json else _shown(names))
    if as_json:
        echo(as_json, tree(measured), [])
    require_right(measured)


def _shown(names: Sequence[str]) -> Iterator[Measurement]:
    """Print each measurement as soon as it is there."""
    click.echo(SPEED_HEADER)
    measured = []
    for case in measure_apart(names):
        measured.append(case)
        click.echo(speed_line(case.as_json(), CASES[case.case].finish))
        yield case
    for ladder in growth(measured):
        click.echo(growth_line(asdict(ladder)))
