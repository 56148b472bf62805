"""`rapid-des replay` with ASTRA-sim's own input files instead of a machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import click

from rapid_des.astra import AstraResult, Files, replay_astra
from rapid_des.chakra.options import ReadOptions
from rapid_des.cli.options import engine_choice, print_json
from rapid_des.errors import InputError
from rapid_des.report.links import write_links

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--astra-network", metavar="N.yml", help="ASTRA-sim's network file, instead of --on."),
    click.option("--astra-system", metavar="S.json", help="ASTRA-sim's system file."),
    click.option("--astra-groups", metavar="G.json", help="ASTRA-sim's communicator groups."),
    click.option("--astra-memory", metavar="M.json", help="ASTRA-sim's remote memory file."),
    click.option(
        "--astra-queues-per-dim", type=int, default=1, metavar="N", help="Its queues per dimension."
    ),
    click.option("--astra-dialect", default="stock", metavar="stock|extended", help="Whose message sizes."),
)


def astra_options(command: Command) -> Command:
    """Add the options that name ASTRA-sim's files."""
    return reduce(lambda wrapped, option: option(wrapped), reversed(_OPTIONS), command)


def astra_files(options: dict[str, Any]) -> Files | None:
    """Return ASTRA-sim's files, or None if the command names neither network nor system."""
    paths = {key: options[f"astra_{key}"] for key in ("network", "system", "groups", "memory")}
    if all(path is None for path in paths.values()):
        return None
    for key in ("network", "system"):
        if paths[key] is None:
            raise InputError(f"replay on ASTRA-sim's files needs --astra-{key} as well")
    return Files(
        **{key: path and Path(path) for key, path in paths.items()},
        queues=options["astra_queues_per_dim"],
        dialect=options["astra_dialect"],
    )


def replay_on_astra_files(prefix: str, files: Files, options: dict[str, Any], reading: ReadOptions) -> None:
    """Replay and print every rank's finish and exposed communication in nanoseconds."""
    elsewhere = {
        "machine": "--on",
        "timeline": "--timeline",
        "faults": "--fault",
        "links_plot": "--links-plot",
    }
    wrong = [option for key, option in elsewhere.items() if options.get(key)]
    if wrong:
        raise InputError(f"{wrong[0]} does not go with --astra-network")
    result = replay_astra(
        prefix,
        files,
        engine=engine_choice(options["engine"], no_shortcuts=options["no_shortcuts"]),
        reading=reading,
    )
    if options.get("links") is not None:
        _write_links(result, Path(options["links"]))
    if options["as_json"]:
        print_json(result.tree())
    else:
        click.echo("\n".join(result.lines(f"{prefix} on {files.network}")))


def _write_links(result: AstraResult, path: Path) -> None:
    assert result.run is not None
    program, records = result.run.lowered.program, result.run.execution.records
    fabric = result.run.lowered.network.fabric
    if program.links > len(fabric):
        raise InputError("--links: a remote memory is no link of the fabric; leave --links out")
    try:
        write_links(path, program, records, fabric)
    except OSError as error:
        raise InputError(f"{path}: can not be written: {error.strerror or error}") from None
