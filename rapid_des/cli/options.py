"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from rapid_des.errors import ConfigError
from rapid_des.modes.execution import EngineChoice
from rapid_des.network.faults import Fault, parse_fault

Command = TypeVar("Command", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
on_option = click.option("--on", "machine", required=True, metavar="MACHINE", help="Machine file or preset.")
engine_option = click.option(
    "--engine", default="auto", show_default=True, metavar="auto|simpy|compiled", help="Which engine runs it."
)
shortcuts_option = click.option(
    "--no-shortcuts", is_flag=True, help="Simulate every rank, also those that provably do the same."
)
set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key: job.…, machine.… or device.…; 0.73x multiplies. Repeatable.",
)

fault_option = click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="'KEY=VALUE …'",
    help="A fault in the words of machine files, as in: link=0-1 bandwidth=0.5. Repeatable.",
)
links_option = click.option(
    "--links",
    metavar="OUT.csv",
    help="Write what every link carried: CSV, or Parquet if so named.",
)
links_plot_option = click.option(
    "--links-plot", metavar="OUT.png", help="Draw the fabric with the links' utilisation as colour."
)

ROOTS = ("job", "machine", "device")

Settings = dict[str, list[tuple[str, str]]]


def split_settings(settings: Iterable[str], allowed: tuple[str, ...] = ROOTS) -> Settings:
    """Return --set options by the file they change."""
    result: Settings = {root: [] for root in ROOTS}
    for setting in settings:
        key, equals, value = setting.partition("=")
        root, _, rest = key.strip().partition(".")
        if not equals or not rest or root not in allowed:
            choices = ", ".join(f"{root}.KEY=VALUE" for root in allowed)
            raise ConfigError(f"{setting!r} is not of the form {choices}", file="--set")
        result[root].append((rest, value))
    return result


def parsed_faults(texts: Iterable[str]) -> list[Fault]:
    """Return the faults of --fault options."""
    return [parse_fault(text) for text in texts]


def print_json(plain: object) -> None:
    """Print plain data as JSON on stdout."""
    click.echo(json.dumps(plain, indent=1))


def engine_choice(engine: str, *, no_shortcuts: bool = False) -> EngineChoice:
    """Return the choice of --engine and --no-shortcuts; compiling is announced on stderr."""
    return EngineChoice(engine, announce=_announce, fold=not no_shortcuts)


def _announce(text: str) -> None:
    click.echo(text, err=True)
