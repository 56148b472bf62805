"""The options by which commands name a machine: MACHINE, --set, --fault, --json."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from rapid_des.errors import ConfigError
from rapid_des.machine import Machine, load_machine
from rapid_des.network.faults import parse_fault

_Command = TypeVar("_Command", bound=Callable[..., Any])


def machine_options(command: _Command) -> _Command:
    """Add MACHINE and the options that change it; `open_machine` reads them."""
    command = click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")(command)
    command = click.option(
        "--fault", "faults", multiple=True, metavar="'KEY=VALUE …'",
        help="A fault in the words of machine files, as in: link=0-1 bandwidth=0.5.",
    )(command)  # fmt: skip
    command = click.option(
        "--set", "settings", multiple=True, metavar="KEY=VALUE",
        help="Override a key: machine.fabric.0.size=4, device.clock.boost='1.2 GHz'.",
    )(command)  # fmt: skip
    return click.argument("machine")(command)


def open_machine(machine: str, settings: Sequence[str], faults: Sequence[str]) -> Machine:
    """Return the machine with its overrides and faults."""
    by_file: dict[str, list[tuple[str, str]]] = {"machine": [], "device": []}
    for setting in settings:
        key, equals, value = setting.partition("=")
        file, dot, path = key.partition(".")
        if not equals or not dot or file not in by_file:
            raise ConfigError(f"{setting!r} is not machine.KEY=VALUE or device.KEY=VALUE", file="--set")
        by_file[file].append((path, value))
    return load_machine(
        machine,
        settings=by_file["machine"],
        device_settings=by_file["device"],
        faults=[parse_fault(text) for text in faults],
    )
