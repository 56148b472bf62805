"""`rapid-des new`: a file to edit, with every key that it may have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import click
from msgspec import Struct

from rapid_des.cli.options import echo, force_option, json_option
from rapid_des.config import Spec
from rapid_des.config.descriptions import explain
from rapid_des.config.documents import Document, apply_overrides, load_document, settings_named
from rapid_des.config.new_files import commented
from rapid_des.config.specs import resolve
from rapid_des.config.texts import Tree
from rapid_des.device import load_device
from rapid_des.device.spec import DeviceSpec
from rapid_des.errors import ConfigError
from rapid_des.frontend import JobSpec, load_job
from rapid_des.machine import MachineSpec, load_machine
from rapid_des.report.writing import check_outputs, write_text
from rapid_des.studies.spaces import StudySpec, load_study

_Name: TypeAlias = Literal["job", "machine", "device", "study"]
TRAINING = "llama2_7b_train"


class _NewKind(Struct, frozen=True):
    """A kind of file that `new` writes."""

    spec: type[Spec]
    check: Callable[[Tree], object]
    """Raises `ConfigError` for a file that no command would read."""
    start: Tree | str
    """The values of a new file, or the preset that has them."""
    use: str
    """The command that reads the file."""


_KINDS: Mapping[_Name, _NewKind] = {
    "job": _NewKind(JobSpec, load_job, TRAINING, "rapid-des run {} --on dgx_h100"),
    "machine": _NewKind(MachineSpec, load_machine, "dgx_h100_x8", "rapid-des topology show {}"),
    "device": _NewKind(
        DeviceSpec,
        load_device,
        {
            "base": "h100_sxm",
            "name": "H100 with faster memory",
            "hbm": {"capacity": "96 GB", "bandwidth": "4 TB/s"},
        },
        "rapid-des device show {}",
    ),
    "study": _NewKind(StudySpec, load_study, "splits_64", "rapid-des sweep {}"),
}


@click.command()
@click.argument("kind", type=click.Choice(list(_KINDS)))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The file to write.")
@click.option("--from", "start", metavar="FILE", help="A file or preset whose values it begins with.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A value: model=llama3_1_8b, parallelism.tp=4. Repeatable.",
)
@click.option("--ask", is_flag=True, help="Ask for each value.")
@force_option
@json_option
def new(  # noqa: PLR0913, PLR0917 - one parameter an option
    kind: _Name,
    output: Path,
    start: str | None,
    settings: tuple[str, ...],
    ask: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Write a job, machine, device or study file: values that run, and all other keys as comments.

    rapid-des new job --set model=llama3_1_8b -o my_job.yaml
    """
    check_outputs([output], replace=force)
    chosen = _KINDS[kind]
    pairs = tuple(_pairs(settings))
    document = apply_overrides(_begun(kind, start, pairs), pairs)
    if ask:
        document = apply_overrides(document, list(_asked(chosen.spec, document.tree)))
    with settings_named(document):
        chosen.check(document.tree)
    write_text(
        output,
        commented(chosen.spec, document.tree, kind, f"A {kind}. Edit it, then: {chosen.use.format(output)}"),
    )
    echo(
        as_json,
        {"file": str(output), "kind": kind},
        [f"{output}: edit it, then run `{chosen.use.format(output)}`"],
    )


def _begun(kind: _Name, start: str | None, settings: Sequence[tuple[str, str]]) -> Document:
    """Return the values that a new file begins with."""
    chosen = start or _KINDS[kind].start
    if chosen == TRAINING and ("phase", "inference") in settings:
        chosen = "llama2_7b_inference"
    if isinstance(chosen, str):
        chosen = load_document(resolve(chosen, kind, folder=Path())).tree
    return Document(Path(kind), chosen)


def _pairs(settings: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{setting!r} is not of the form KEY=VALUE", file="--set")
        yield key.strip(), value


def _asked(spec: type[Spec], tree: Tree, above: str = "") -> Iterator[tuple[str, str]]:
    """Yield each value that somebody types; an empty answer keeps what is there."""
    for name, value in tree.items():
        key = f"{above}{name}"
        if isinstance(value, dict):
            yield from _asked(spec, value, f"{key}.")
        elif not isinstance(value, list):
            click.echo(explain(spec, key)[0].meaning, err=True)
            yield key, click.prompt(key, default=_as_typed(value), err=True)


def _as_typed(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
