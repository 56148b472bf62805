"""`rapid-des schema` and `rapid-des presets`: what files may hold, and which files ship."""

from __future__ import annotations

import click

from rapid_des.cli.options import echo, json_option
from rapid_des.config import Spec, json_schema, preset_names
from rapid_des.config.presets import KINDS, Kind
from rapid_des.device.spec import DeviceSpec, FamilySpec
from rapid_des.frontend import JobSpec, ModelSpec
from rapid_des.machine import MachineSpec
from rapid_des.network.collectives.written import WrittenFile

SCHEMAS: dict[str, type[Spec]] = {
    "machine": MachineSpec,
    "device": DeviceSpec,
    "family": FamilySpec,
    "job": JobSpec,
    "model": ModelSpec,
    "collective": WrittenFile,
}


@click.command()
@click.argument("kind", type=click.Choice(list(SCHEMAS)))
@json_option
def schema(kind: str, as_json: bool) -> None:  # noqa: ARG001 - a schema is JSON either way
    """Print the JSON Schema of a file KIND."""
    echo(True, json_schema(SCHEMAS[kind]), [])


@click.command()
@click.argument("kind", type=click.Choice(list(KINDS)), required=False)
@json_option
def presets(kind: Kind | None, as_json: bool) -> None:
    """List the presets of one KIND, or of all."""
    found = {name: preset_names(name) for name in ([kind] if kind else KINDS)}
    echo(as_json, found, (f"{name}: {', '.join(names)}" for name, names in found.items()))
