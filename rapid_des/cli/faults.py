"""`rapid-des faults`: what faults of links, GPUs, NICs, switches and servers cost a job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from rapid_des.cli.faults_text import criticality_lines, scenario_lines
from rapid_des.cli.options import (
    engine_choice,
    engine_option,
    fault_option,
    json_option,
    on_option,
    parsed_faults,
    print_json,
    set_option,
    split_settings,
)
from rapid_des.errors import InputError
from rapid_des.frontend import Job, load_job
from rapid_des.machine import Machine, load_machine
from rapid_des.report.fabric_picture import draw
from rapid_des.simulation import MODES
from rapid_des.studies.faults import How, criticality, scenario
from rapid_des.studies.parts import KINDS, PLURALS

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _study_options(command: _Command) -> _Command:
    mode = click.option("--mode", default="flattened", show_default=True, help=", ".join(MODES))
    for option in (json_option, engine_option, mode, fault_option, set_option, on_option):
        command = option(command)
    return click.argument("job")(command)


@click.group()
def faults() -> None:
    """Tell what link, GPU and node faults cost a job."""


@faults.command("run")
@_study_options
def run(job: str, machine: str, settings: tuple[str, ...], faults: tuple[str, ...], **options: Any) -> None:
    """Run JOB with the faults and without: step time, and which kinds, collectives, links and ranks wait."""
    if not faults:
        raise InputError("faults run needs at least one --fault 'KEY=VALUE …'")
    wanted, loaded = _opened(job, machine, settings, faults=())
    found = scenario(wanted, loaded, parsed_faults(faults), _how(options))
    print_json(found.as_json()) if options["as_json"] else click.echo("\n".join(scenario_lines(found)))


@faults.command("criticality")
@_study_options
@click.option("--derate", default=0.5, show_default=True, help="What is left of a part's speed.")
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice(list(PLURALS)), help="Only these. Repeatable."
)
@click.option("--top", type=click.IntRange(1), help="Print only so many rows.")
@click.option("--every", is_flag=True, help="Simulate every part, even where symmetry tells its cost.")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Heat map: PNG, SVG or PDF.")
def criticality_command(
    job: str, machine: str, settings: tuple[str, ...], faults: tuple[str, ...], **options: Any
) -> None:
    """Rank what a machine is made of by what it costs the step of JOB if one part is slower.

    A link, NIC, switch or endpoint (a GPU as a node of the fabric) loses bandwidth on all its links, a GPU
    its own speed, a node (a server) both.
    """
    wanted, loaded = _opened(job, machine, settings, faults)
    kinds = [PLURALS[kind] for kind in options["kinds"]] or KINDS
    ranked = criticality(wanted, loaded, derate=options["derate"], kinds=kinds, how=_how(options))
    if options["as_json"]:
        print_json(ranked.as_json(options["top"]))
    else:
        click.echo("\n".join(criticality_lines(ranked, options["top"])))
    if options["plot"] is not None:
        draw(ranked.heat_map(loaded), options["plot"])


def _opened(
    job: str, machine: str, settings: tuple[str, ...], faults: tuple[str, ...]
) -> tuple[Job, Machine]:
    chosen = split_settings(settings)
    loaded = load_machine(
        machine,
        settings=chosen["machine"],
        device_settings=chosen["device"],
        faults=parsed_faults(faults),
    )
    return load_job(job, settings=chosen["job"]), loaded


def _how(options: dict[str, Any]) -> How:
    return How(
        mode=options["mode"],
        engine=engine_choice(options["engine"]),
        report=lambda text: click.echo(text, err=True),
        symmetry=not options.get("every", False),
    )
