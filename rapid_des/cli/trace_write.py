"""`rapid-des trace write`: a job's traces as Chakra files."""

from __future__ import annotations

import click

from rapid_des.chakra import write_set
from rapid_des.cli.options import json_option, on_option, print_json, set_option, split_settings
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.modes.pricing import price


@click.command("write")
@click.argument("job")
@on_option
@set_option
@click.option("-o", "--output", required=True, metavar="DIR", help="Folder to write into.")
@json_option
def write(job: str, machine: str, settings: tuple[str, ...], output: str, as_json: bool) -> None:
    """Write the traces of JOB on a machine: one file a rank, and its process groups."""
    chosen = split_settings(settings)
    loaded = load_machine(machine, settings=chosen["machine"], device_settings=chosen["device"])
    traced = price(load_job(job, settings=chosen["job"]), loaded)
    paths = write_set(traced.traces, output, traced.job.name)
    if as_json:
        print_json({"files": [str(path) for path in paths], "prefix": f"{output}/{traced.job.name}"})
    else:
        click.echo(f"{len(paths)} files: {output}/{traced.job.name}.<rank>.et and {paths[0].name}")
