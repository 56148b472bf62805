"""`rapid-des bench`: how fast the simulator itself is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from rapid_des.cli.options import json_option, print_json
from rapid_des.studies.bench import (
    HEADER,
    Measurement,
    chosen_cases,
    growth,
    line,
    measure_apart,
    require_right,
    tree,
)


@click.command()
@click.argument("cases", nargs=-1, metavar="[CASE …]")
@click.option("--large", is_flag=True, help="Also the hierarchical runs on 16,384 and 131,072 GPUs.")
@json_option
def bench(cases: tuple[str, ...], large: bool, as_json: bool) -> None:
    """Measure speed and memory on standard cases; a wrong answer is an error."""
    names = chosen_cases(cases, large=large)
    measured = list(measure_apart(names) if as_json else _shown(names))
    if as_json:
        print_json(tree(measured))
    require_right(measured)


def _shown(names: Sequence[str]) -> Iterator[Measurement]:
    click.echo(HEADER)
    measured = []
    for one in measure_apart(names):
        measured.append(one)
        click.echo(line(one))
        yield one
    for found in growth(measured):
        click.echo(
            f"{found.ladder}: time grows as hops^{found.exponent:.2f}; "
            f"a hop of the largest costs {found.cost_ratio:.2f} of one of the smallest"
        )
