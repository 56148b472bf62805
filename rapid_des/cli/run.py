"""`rapid-des run`: a job on a machine."""

from __future__ import annotations

import click

from rapid_des.cli.options import (
    engine_choice,
    engine_option,
    json_option,
    on_option,
    print_json,
    set_option,
    split_settings,
)
from rapid_des.cli.output import show_result, write_outputs
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.simulation import simulate


@click.command()
@click.argument("job")
@on_option
@set_option
@click.option("--mode", default="flattened", show_default=True, help="Execution mode.")
@engine_option
@click.option("--timeline", metavar="OUT.json", help="Write a timeline for ui.perfetto.dev.")
@click.option("--links", metavar="OUT.csv", help="Write what every link carried.")
@json_option
def run(
    job: str,
    machine: str,
    settings: tuple[str, ...],
    mode: str,
    engine: str,
    timeline: str | None,
    links: str | None,
    as_json: bool,
) -> None:
    """Predict a step of JOB (file or preset) on a machine: time, breakdown, memory."""
    chosen = split_settings(settings)
    loaded = load_machine(machine, settings=chosen["machine"], device_settings=chosen["device"])
    result = simulate(
        load_job(job, settings=chosen["job"]),
        loaded,
        mode=mode,
        engine=engine_choice(engine),
        trail=timeline is not None,
    )
    write_outputs(result, timeline, links)
    print_json(result.as_json()) if as_json else show_result(result, title=f"{job} on {loaded.name}")
