"""`rapid-des run`: a job on a machine."""

from __future__ import annotations

import click

from rapid_des.cli.options import (
    engine_choice,
    engine_option,
    fault_option,
    json_option,
    links_option,
    links_plot_option,
    on_option,
    parsed_faults,
    print_json,
    set_option,
    shortcuts_option,
    split_settings,
)
from rapid_des.cli.output import show_modes, show_result, write_outputs
from rapid_des.errors import InputError
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.simulation import MODES, compare, simulate


@click.command()
@click.argument("job")
@on_option
@set_option
@fault_option
@click.option("--mode", metavar="MODE", help=f"{', '.join(MODES)}; the first if absent.")
@click.option("--compare-modes", is_flag=True, help="Run every mode; print the gaps and times.")
@engine_option
@shortcuts_option
@click.option("--timeline", metavar="OUT.json", help="Write a timeline for ui.perfetto.dev.")
@links_option
@links_plot_option
@json_option
def run(
    job: str,
    machine: str,
    settings: tuple[str, ...],
    faults: tuple[str, ...],
    mode: str | None,
    engine: str,
    no_shortcuts: bool,
    compare_modes: bool,
    timeline: str | None,
    links: str | None,
    links_plot: str | None,
    as_json: bool,
) -> None:
    """Predict a step of JOB (file or preset) on a machine: time, breakdown, memory."""
    chosen = split_settings(settings)
    loaded = load_machine(
        machine,
        settings=chosen["machine"],
        device_settings=chosen["device"],
        faults=parsed_faults(faults),
    )
    wanted = load_job(job, settings=chosen["job"])
    chosen_engine = engine_choice(engine, no_shortcuts=no_shortcuts)
    if compare_modes:
        _refuse(**{"--mode": mode, "--timeline": timeline, "--links": links, "--links-plot": links_plot})
        show_modes(compare(wanted, loaded, engine=chosen_engine), as_json=as_json)
        return
    result = simulate(
        wanted,
        loaded,
        mode=mode or MODES[0],
        engine=chosen_engine,
        trail=timeline is not None,
    )
    write_outputs(result, timeline, links, links_plot)
    print_json(result.as_json()) if as_json else show_result(result, title=f"{job} on {loaded.name}")


def _refuse(**given: str | None) -> None:
    for option, value in given.items():
        if value is not None:
            raise InputError(f"{option} does not go with --compare-modes")
