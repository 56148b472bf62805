"""`rapid-des import`: model, job and machine files from other tools' files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import msgspec

from rapid_des.cli.options import echo, force_option, json_option
from rapid_des.config import to_tree
from rapid_des.errors import InputError
from rapid_des.frontend.importing import (
    Ignored,
    ImportedJob,
    by_reason,
    import_hugging_face,
    import_megatron,
    import_rapid_llm,
    import_torchtitan,
)
from rapid_des.report.writing import check_outputs, write_text

PATH = click.Path(path_type=Path)
job_output = click.option("-o", "--output", type=PATH, help="Job file to write; else to stdout.")
gpus_option = click.option(
    "--gpus", type=click.IntRange(1), help="Number of GPUs, where the file does not state it."
)


ignore_option = click.option(
    "--ignore", multiple=True, metavar="KEY", help="An unknown key that changes nothing. Repeatable."
)


@click.group("import")
def import_group() -> None:
    """Write model, job and machine files from other tools' files.

    Each key of such a file is mapped, refused by name, or listed as ignored with the reason why it changes
    nothing: on the terminal, with --json, and in the head of the file that is written.
    """


def _notes_as_json(notes: Iterable[str], ignored: Iterable[Ignored]) -> dict[str, Any]:
    """Return the notes of an import as plain data for JSON."""
    return {"notes": list(notes), "ignored": [msgspec.to_builtins(each) for each in ignored]}


def _print_notes(notes: Iterable[str], ignored: Iterable[Ignored]) -> None:
    """Print the notes on stderr, where the written file is not seen."""
    for note in (*notes, *by_reason(ignored)):
        click.echo(f"note: {note}", err=True)


@import_group.command()
@click.argument("path", type=PATH)
@click.option("-o", "--output", type=PATH, help="Model file to write; else to stdout.")
@ignore_option
@force_option
@json_option
def hf(path: Path, output: Path | None, ignore: tuple[str, ...], force: bool, as_json: bool) -> None:
    """Read a Hugging Face config.json, or the folder PATH that has one; nothing is downloaded."""
    check_outputs([output], replace=force)
    imported = import_hugging_face(path, ignore=ignore)
    text = imported.as_yaml()
    if output is not None:
        write_text(output, text)
        _print_notes(imported.notes, imported.ignored)
    plain = {
        "architecture": imported.architecture,
        "parameters": imported.model.parameters,
        "model": to_tree(imported.model.spec, "model"),
        **_notes_as_json(imported.notes, imported.ignored),
    }
    written = [f"{output}: {imported.architecture}, {imported.model.parameters:,} parameters"]
    echo(as_json, plain, [text.rstrip("\n")] if output is None else written)


@import_group.command()
@click.argument("path", type=PATH)
@job_output
@gpus_option
@click.option("--vocabulary", type=click.IntRange(1), help="Number of tokens, if only the tokenizer has it.")
@click.option(
    "--variable",
    "variables",
    multiple=True,
    metavar="NAME=VALUE",
    help="An environment variable. Repeatable.",
)
@ignore_option
@force_option
@json_option
def megatron(  # noqa: PLR0913 - one for each option
    path: Path,
    output: Path | None,
    gpus: int | None,
    vocabulary: int | None,
    variables: tuple[str, ...],
    ignore: tuple[str, ...],
    force: bool,
    as_json: bool,
) -> None:
    """Read the arguments that a launch script passes to Megatron-LM; the script is not run."""
    check_outputs([output], replace=force)
    wrong = next((text for text in variables if "=" not in text), None)
    if wrong is not None:
        raise InputError(f"--variable {wrong}: must be NAME=VALUE")
    known = dict(text.split("=", 1) for text in variables)
    imported = import_megatron(path, gpus=gpus, vocabulary=vocabulary, variables=known, ignore=ignore)
    _finish(imported, output, as_json=as_json)


@import_group.command()
@click.argument("path", type=PATH)
@job_output
@gpus_option
@click.option("--model", help="A model file that replaces the flavor.")
@ignore_option
@force_option
@json_option
def torchtitan(  # noqa: PLR0913 - one for each option
    path: Path,
    output: Path | None,
    gpus: int | None,
    model: str | None,
    ignore: tuple[str, ...],
    force: bool,
    as_json: bool,
) -> None:
    """Read a TOML configuration of torchtitan."""
    check_outputs([output], replace=force)
    imported = import_torchtitan(path, gpus=gpus, model=model, ignore=ignore)
    _finish(imported, output, as_json=as_json)


def _finish(imported: ImportedJob, output: Path | None, *, as_json: bool) -> None:
    """Write a job file, or print it; notes go to stderr where they would otherwise not be seen."""
    text = imported.as_yaml()
    if output is not None:
        write_text(output, text)
        _print_notes(imported.notes, imported.ignored)
    plain = {
        "source": imported.source,
        "gpus": imported.job.gpus,
        "parameters": imported.job.model.parameters,
        "job": imported.tree,
        **_notes_as_json(imported.notes, imported.ignored),
    }
    written = [f"{output}: {imported.job.gpus} GPUs, {imported.job.model.parameters:,} parameters"]
    echo(as_json, plain, [text.rstrip("\n")] if output is None else written)


@import_group.command("rapid-llm")
@click.argument("hardware", type=PATH)
@click.argument("model", type=PATH)
@click.option(
    "-o", "--output", "folder", type=PATH, default=Path(), help="Folder to write to; else this one."
)
@click.option("--name", default="rapid_llm", help="The beginning of the files' names.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a key of either file before it is read, as in parallelism.tp=8. Repeatable.",
)
@ignore_option
@force_option
@json_option
def rapid_llm(  # noqa: PLR0913 - one for each option
    hardware: Path,
    model: Path,
    folder: Path,
    name: str,
    settings: tuple[str, ...],
    ignore: tuple[str, ...],
    force: bool,
    as_json: bool,
) -> None:
    """Read the hardware and the model file of a RAPID-LLM run: a job, a machine and a device file."""
    wrong = next((text for text in settings if "=" not in text), None)
    if wrong is not None:
        raise InputError(f"--set {wrong}: must be KEY=VALUE")
    chosen = [(key, value) for key, _, value in (text.partition("=") for text in settings)]
    run = import_rapid_llm(hardware, model, settings=chosen, ignore=ignore)
    texts = {folder / file: text for file, text in run.files(name).items()}
    check_outputs(texts, replace=force)
    for file, text in texts.items():
        write_text(file, text)
    _print_notes(run.job.notes, run.job.ignored)
    files, notes = [str(file) for file in texts], _notes_as_json(run.job.notes, run.job.ignored)
    echo(as_json, {"files": files, **notes, "gpus": run.job.job.gpus}, ["\n".join(files)])
