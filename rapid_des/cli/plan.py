"""`rapid-des plan`: the best ways to split a job over GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rapid_des.cli.options import (
    announce,
    echo,
    force_option,
    job_options,
    json_option,
    one_of,
    open_job,
)
from rapid_des.cli.progress import progress
from rapid_des.report.plan_text import plan_lines
from rapid_des.report.writing import check_outputs, replacing
from rapid_des.simulation import MODES
from rapid_des.studies.crews import EXECUTORS, executor_of
from rapid_des.studies.plan import Wanted, plan
from rapid_des.studies.splits import CHOICES, choices_of


@click.command("plan")
@job_options
@click.option("--gpus", type=click.IntRange(1), help="How many; unset: all of the machine.")
@click.option("--top", type=click.IntRange(1), default=5, show_default=True, help="Rows that are certain.")
@click.option(
    "--vary",
    multiple=True,
    metavar="NAME[=VALUE,…]",
    shell_complete=one_of(CHOICES),
    help=f"Take these values, or all there are, instead of the usual: {', '.join(CHOICES)}. Repeatable.",
)
@click.option(
    "--mode",
    type=click.Choice(list(MODES)),
    default="hierarchical",
    show_default=True,
    help="In which the rows are simulated.",
)
@click.option("--pruned", is_flag=True, help="List every other way with the reason why it is no row.")
@click.option("--price", type=click.FloatRange(0), help="Of a GPU for an hour: adds what a step costs.")
@click.option(
    "--write-job", type=click.Path(path_type=Path, dir_okay=False), help="Write the best way as a job file."
)
@force_option
@click.option(
    "--executor",
    type=click.Choice(EXECUTORS),
    default="processes",
    show_default=True,
    help="Where simulations run; local is in this process.",
)
@click.option("--workers", type=click.IntRange(1), help="How many; unset: all cores.")
@json_option
def plan_command(job: str, machine: str, settings: tuple[str, ...], **options: Any) -> None:
    """Find the best ways to split JOB over GPUs: model, batch and sequence length stay.

    Every legal way has a bound from below; the least are simulated, first by closed forms, then in --mode,
    until no other way can be faster than the rows. ^C prints the best so far.
    """
    check_outputs([options["write_job"]], replace=options["force"])
    vary = choices_of(options["vary"])
    wanted, loaded = open_job(job, machine, settings)
    with progress("plan") as bar:
        names = ("gpus", "top", "mode", "pruned", "price")
        asked = Wanted(**{name: options[name] for name in names}, vary=vary, told=bar.part)
        found = plan(wanted, loaded, asked, executor_of(options["executor"], options["workers"]))
    plain = found.as_json()
    echo(options["as_json"], plain, plan_lines(plain, wanted.name, loaded.name))
    if options["write_job"] is not None:
        with replacing(options["write_job"]) as path:
            path.write_text(found.job.as_yaml(), encoding="utf-8")
        announce(f"the best way as a job: {options['write_job']}")
