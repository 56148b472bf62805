"""`rapid-des replay`: anybody's Chakra traces on a machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rapid_des.chakra import ReadOptions
from rapid_des.cli.astra import astra_files, astra_options, replay_on_astra_files
from rapid_des.cli.options import (
    engine_choice,
    engine_option,
    fault_option,
    json_option,
    links_option,
    links_plot_option,
    parsed_faults,
    print_json,
    set_option,
    shortcuts_option,
    split_settings,
)
from rapid_des.cli.output import show_result, write_outputs
from rapid_des.errors import DeadlockError, InputError
from rapid_des.machine import load_machine
from rapid_des.report.result import Result
from rapid_des.simulation import load_trace
from rapid_des.simulation import replay as replay_traces


@click.command()
@click.argument("prefix")
@click.option("--on", "machine", metavar="MACHINE", help="Machine file or preset.")
@set_option
@fault_option
@click.option("--groups", metavar="FILE", help="Process groups: {name: [ranks]} as JSON.")
@click.option(
    "--deps", default="auto", show_default=True, metavar="auto|data|ctrl|both", help="Dependencies."
)
@click.option("--dialect", default="auto", show_default=True, help="Who wrote the traces.")
@click.option("--time-unit", default="auto", help="What duration_micros really counts.")
@click.option("--dtype-bytes", type=int, help="Bytes of an element, for writers that count elements.")
@click.option("--streams", default="auto", help="auto, ordered or unordered.")
@click.option("--strict", is_flag=True, help="Repair nothing.")
@engine_option
@shortcuts_option
@click.option("--timeline", metavar="OUT.json", help="Write a timeline for ui.perfetto.dev.")
@links_option
@links_plot_option
@json_option
@astra_options
def replay(prefix: str, machine: str | None, settings: tuple[str, ...], **options: Any) -> None:
    """Replay the Chakra traces PREFIX.<rank>.et on a machine."""
    files = astra_files(options)
    if files is not None:
        replay_on_astra_files(prefix, files, options | {"machine": machine}, _read_options(options))
        return
    if machine is None:
        raise InputError("replay needs a machine: --on MACHINE (`rapid-des presets` lists them)")
    chosen = split_settings(settings, ("machine", "device"))
    traces = load_trace(prefix, _read_options(options))
    loaded = load_machine(
        machine,
        settings=chosen["machine"],
        device_settings=chosen["device"],
        faults=parsed_faults(options["faults"]),
    )
    wants_trail = options["timeline"] is not None
    try:
        result = replay_traces(
            traces,
            loaded,
            engine=engine_choice(options["engine"], no_shortcuts=options["no_shortcuts"]),
            trail=wants_trail,
        )
    except DeadlockError as error:
        hint = f"`rapid-des trace check {prefix}` looks for unmatched messages and near misses"
        raise DeadlockError(f"{error}\n  {hint}") from None
    write_outputs(result, options["timeline"], options["links"], options["links_plot"])
    if options["as_json"]:
        print_json(_with_ranks(result))
    else:
        show_result(result, title=f"{prefix} on {loaded.name}: {len(result.finish)} ranks")


def _read_options(options: dict[str, Any]) -> ReadOptions:
    return ReadOptions(
        dialect=options["dialect"],
        dependencies=options["deps"],
        time_unit=options["time_unit"],
        dtype_bytes=options["dtype_bytes"],
        groups=Path(options["groups"]) if options["groups"] else None,
        strict=options["strict"],
        streams=options["streams"],
    )


def _with_ranks(result: Result) -> dict[str, Any]:
    ranks = {
        str(rank): {"finish_s": int(time) / 1e12, "finish_ps": int(time)}
        for rank, time in result.finish.items()
    }
    return result.as_json() | {"ranks": ranks}
