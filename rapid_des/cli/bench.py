"""`rapid-des bench`: how fast the simulator itself is."""

from __future__ import annotations

import click

from rapid_des.cli.main import progress, until_interrupted
from rapid_des.cli.options import echo, json_option
from rapid_des.report.study_text import speed_report
from rapid_des.studies.bench import chosen_cases, measure_apart, require_growth, require_right, tree


@click.command()
@click.argument("cases", nargs=-1, metavar="[CASE …]")
@click.option("--large", is_flag=True, help="Also the hierarchical runs on 16,384 to 1,048,576 GPUs.")
@click.option("--check", is_flag=True, help="A cost that grows faster than stated is an error.")
@json_option
def bench(cases: tuple[str, ...], large: bool, check: bool, as_json: bool) -> None:
    """Measure speed and memory on standard cases; a wrong answer is an error.

    A cost is processor time over that of a yardstick, fixed work in the same process.

    rapid-des bench --check
    """
    names = chosen_cases(cases, large=large)
    with progress("bench") as bar:
        measured, interrupted = until_interrupted(measure_apart(names, bar.part))
    plain = tree(measured)
    echo(as_json, plain, speed_report(plain))
    require_right(measured)
    if check:
        require_growth(measured)
    if interrupted:
        raise KeyboardInterrupt
