"""`rapid-des schema`, `explain` and `presets`: what files may hold, what it means, and which files ship."""

from __future__ import annotations

from collections.abc import Mapping

import click

from rapid_des.cli.options import echo, json_option, setting_keys
from rapid_des.config import Spec, preset_file, preset_names
from rapid_des.config.descriptions import Field, described_schema, explain, paths_to
from rapid_des.config.documents import read_text
from rapid_des.config.specs import KINDS, trace_names
from rapid_des.device.spec import DeviceSpec, FamilySpec
from rapid_des.errors import ConfigError
from rapid_des.frontend import JobSpec, ModelSpec
from rapid_des.frontend.software import Software
from rapid_des.machine import MachineSpec
from rapid_des.network.collectives.written import WrittenFile
from rapid_des.report.writing import field_lines
from rapid_des.runs.spec import ReliabilitySpec
from rapid_des.serving.rollout import RolloutSpec
from rapid_des.studies.spaces import StudySpec
from rapid_des.values import asdict

SCHEMAS: Mapping[str, type[Spec]] = {
    "machine": MachineSpec,
    "device": DeviceSpec,
    "family": FamilySpec,
    "job": JobSpec,
    "model": ModelSpec,
    "software": Software,
    "rollout": RolloutSpec,
    "collective": WrittenFile,
    "study": StudySpec,
    "reliability": ReliabilitySpec,
}


@click.command()
@click.argument("kind", type=click.Choice(list(SCHEMAS)))
@json_option
def schema(kind: str, as_json: bool) -> None:  # noqa: ARG001 - a schema is JSON with and without it
    """Print the JSON Schema of a file KIND; every field has its meaning.

    rapid-des schema job
    """
    echo(True, described_schema(SCHEMAS[kind]), [])


@click.command("explain")
@click.argument("key", shell_complete=setting_keys)
@json_option
def explain_key(key: str, as_json: bool) -> None:
    """Explain KEY of a file: fabric.spans_inner, job.training.schedule, device.clock.sustained.

    rapid-des explain job.training.schedule
    """
    kinds = {kind: fields for kind in SCHEMAS if (fields := _fields(kind, key))}
    if not kinds:
        root = key.partition(".")[0]
        if root in SCHEMAS:
            explain(SCHEMAS[root], key.partition(".")[2])  # says which keys there are
        deeper = dict.fromkeys(
            f"{kind}.{path}" for kind, spec in SCHEMAS.items() for path in paths_to(spec, key)
        )
        if deeper:
            raise ConfigError(f"no file kind has the key {key!r} at its top level; try {', '.join(deeper)}")
        raise ConfigError(f"no file kind has the key {key!r}; `rapid-des schema` lists {', '.join(SCHEMAS)}")
    plain = {kind: [asdict(field) for field in fields] for kind, fields in kinds.items()}
    echo(as_json, plain, ["\n".join(field_lines(key, kinds))])


def _fields(kind: str, key: str) -> tuple[Field, ...]:
    """Return what a kind of file has under a key; the key may begin with the kind, as after --set."""
    root, _, rest = key.partition(".")
    try:
        return explain(SCHEMAS[kind], rest if root == kind and rest else key)
    except ConfigError:
        return ()


@click.command()
@click.argument("words", nargs=-1, metavar="[KIND] | show NAME")
@json_option
def presets(words: tuple[str, ...], as_json: bool) -> None:
    """List the presets of one KIND of file (machine, software, trace, …) or of all; show NAME prints one.

    rapid-des presets machine
    """
    if words[:1] == ("show",) and len(words) == 2:
        path = preset_file(words[1])
        text = read_text(path)
        echo(as_json, {"file": str(path), "text": text}, [text.rstrip("\n")])
        return
    names: dict[str, list[str]] = {kind: preset_names(kind) for kind in KINDS}
    names["trace"] = trace_names()
    unknown = [word for word in words if word not in names]
    if unknown or len(words) > 1:
        raise ConfigError(f"{' '.join(words)!r} is not one of {', '.join(names)}, show NAME")
    listed = {kind: names[kind] for kind in (words or names)}
    echo(as_json, listed, ["\n".join(f"{kind}: {', '.join(each)}" for kind, each in listed.items())])
