"""`rapid-des faults`: what faults of links, GPUs, NICs, switches and servers cost a job."""

from __future__ import annotations

from typing import Any

import click

from rapid_des.cli.options import (
    echo,
    engine_choice,
    engine_option,
    fault_option,
    job_options,
    json_option,
    one_of,
    open_job,
    plot_option,
    together,
)
from rapid_des.cli.progress import Bar, progress
from rapid_des.errors import InputError
from rapid_des.network.faults import parse_fault
from rapid_des.report.pictures.overview import draw
from rapid_des.report.study_text import criticality_lines, scenario_lines
from rapid_des.report.writing import check_outputs
from rapid_des.simulation import MODES
from rapid_des.studies.criticality import KINDS, PLURALS, criticality
from rapid_des.studies.faults import How, scenario

_study_options = together(
    job_options,
    fault_option,
    click.option(
        "--mode",
        default="flattened",
        show_default=True,
        shell_complete=one_of(MODES),
        help=", ".join(MODES),
    ),
    engine_option,
    json_option,
)


@click.group()
def faults() -> None:
    """Tell what link, GPU and node faults cost a job."""


@faults.command("run")
@_study_options
def run(job: str, machine: str, settings: tuple[str, ...], faults: tuple[str, ...], **options: Any) -> None:
    """Run JOB with the faults and without: step time, and which kinds, collectives, links and ranks wait."""
    if not faults:
        raise InputError("faults run needs at least one --fault 'KEY=VALUE …'")
    wanted, loaded = open_job(job, machine, settings)
    given = [parse_fault(text) for text in faults]
    with progress("faults") as bar:
        found = scenario(wanted, loaded, given, _how(options, bar))
    plain = found.as_json()
    echo(options["as_json"], plain, scenario_lines(plain))


@faults.command("criticality")
@_study_options
@click.option("--derate", default=0.5, show_default=True, help="What is left of a part's speed.")
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice(list(PLURALS)), help="Only these. Repeatable."
)
@click.option("--top", type=click.IntRange(1), help="Print only so many rows.")
@click.option("--every", is_flag=True, help="Simulate every part, even where symmetry tells its cost.")
@plot_option
def criticality_command(
    job: str, machine: str, settings: tuple[str, ...], faults: tuple[str, ...], **options: Any
) -> None:
    """Rank what a machine is made of by what it costs the step of JOB if one part is slower.

    A link, NIC, switch or endpoint (a GPU as a node of the fabric) loses bandwidth on all its links, a GPU
    its own speed, a node (a server) both.
    """
    check_outputs([], pictures=[options["plot"]], replace=options["force"])
    wanted, loaded = open_job(job, machine, settings, faults)
    kinds = [PLURALS[kind] for kind in options["kinds"]] or KINDS
    with progress("criticality") as bar:
        how = _how(options, bar)
        ranked = criticality(wanted, loaded, derate=options["derate"], kinds=kinds, how=how)
    plain = ranked.as_json(options["top"])
    echo(options["as_json"], plain, criticality_lines(plain, len(ranked.rows)))
    if options["plot"] is not None:
        draw(ranked.heat_map(loaded), options["plot"])


def _how(options: dict[str, Any], bar: Bar) -> How:
    return How(
        mode=options["mode"],
        engine=engine_choice(options["engine"], progress=bar),
        report=bar.name,
        symmetry=not options.get("every", False),
    )
