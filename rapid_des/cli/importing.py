"""`rapid-des import`: model, job and machine files from other tools' files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from rapid_des.cli.main import progress
from rapid_des.cli.options import echo, force_option, json_option
from rapid_des.errors import InputError
from rapid_des.extensions import BUILT_IN, IMPORTERS, find, is_known, names
from rapid_des.importers import Imported, Importer, Option
from rapid_des.importers.keys import by_reason
from rapid_des.report.writing import check_outputs, write_text

PATH = click.Path(path_type=Path)
ignore_option = click.option(
    "--ignore", multiple=True, metavar="KEY", help="An unknown key that changes nothing. Repeatable."
)


class ImportGroup(click.Group):
    """One command for each importer; one of another distribution is imported only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all importers."""
        return list(names(IMPORTERS))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of an importer."""
        if not is_known(IMPORTERS, cmd_name):
            if not ctx.resilient_parsing:
                _refuse_file(Path(cmd_name))
            return None
        if ctx.resilient_parsing and cmd_name not in BUILT_IN[IMPORTERS]:
            return click.Command(cmd_name)  # completion runs no code of others
        return command_of(cmd_name, find(IMPORTERS, cmd_name, Importer))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of importers; those of other distributions are not imported for it."""
        built_in = [(name, find(IMPORTERS, name, Importer).summary) for name in BUILT_IN[IMPORTERS]]
        others = [(name, "Installed beside rapid-des.") for name in names(IMPORTERS)[len(built_in) :]]
        with formatter.section("Commands"):
            formatter.write_dl([*built_in, *others])


def _refuse_file(path: Path) -> None:
    """Raise `UsageError` for a file where the name of an importer is wanted, with those that read it."""
    importers = [(name, find(IMPORTERS, name, Importer)) for name in BUILT_IN[IMPORTERS] if path.exists()]
    fitting = [name for name, importer in importers if importer.match(path)]
    if fitting:
        commands = " or ".join(f"`rapid-des import {name} {path}`" for name in fitting)
        raise click.UsageError(f"{path} is a file; allowed: {commands}")


@click.group("import", cls=ImportGroup)
def import_group() -> None:
    """Write model, job and machine files from other tools' files.

    Each key of such a file is mapped, refused by name, or listed as ignored with the reason why it changes
    nothing: on the terminal, with --json, and in the head of the file that is written.

    ASTRA-sim's files are not converted: `rapid-des replay --astra-network FILE` runs traces under them.
    """


def command_of(name: str, importer: Importer) -> click.Command:
    """Return the command that reads files with an importer and writes ours."""

    def read(output: Path | None, ignore: tuple[str, ...], force: bool, as_json: bool, **values: Any) -> None:
        paths = [values.pop(path) for path in importer.paths]
        stem = values.pop("name", None)
        chosen = {option.keyword: _value(option, values[option.keyword]) for option in importer.options}
        if importer.writes != "folder":
            check_outputs([output], replace=force)
        with progress(f"import {name}"):
            imported = importer.load(*paths, ignore=ignore, **chosen)
        if importer.writes == "folder":
            _write_folder(imported, output or Path(), stem, force=force, as_json=as_json)
        else:
            _write_file(imported, output, as_json=as_json)

    command = click.Command(name, callback=read, help=importer.summary)
    command.params += [click.Argument([path], type=PATH) for path in importer.paths]
    command.params += [*_outputs(name, importer), *map(_option, importer.options)]
    return json_option(force_option(ignore_option(command)))


def _outputs(name: str, importer: Importer) -> list[click.Option]:
    if importer.writes == "folder":
        start, text = name.replace("-", "_"), "The beginning of the files' names."
        folder = click.Option(["-o", "--output"], type=PATH, help="Folder to write to; else this one.")
        return [folder, click.Option(["--name"], default=start, help=text)]
    text = f"{importer.writes.capitalize()} file to write; else to stdout."
    return [click.Option(["-o", "--output"], type=PATH, help=text)]


def _option(option: Option) -> click.Option:
    return click.Option(
        [f"--{option.flag or option.keyword}", option.keyword],
        help=option.help,
        metavar=option.metavar,
        multiple=option.kind == "pairs",
        type=click.IntRange(1) if option.kind == "count" else None,
    )


def _value(option: Option, given: Any) -> Any:
    """Return what `load` gets for an option: a value, or pairs."""
    if option.kind != "pairs":
        return given
    wrong = next((text for text in given if "=" not in text), None)
    if wrong is not None:
        raise InputError(f"--{option.flag or option.keyword} {wrong}: must be {option.metavar}")
    return [tuple(text.split("=", 1)) for text in given]


def _write_file(imported: Imported, output: Path | None, *, as_json: bool) -> None:
    """Write a file, or print it; notes go to stderr where they would otherwise not be seen."""
    (text,) = imported.files("").values()
    if output is not None:
        write_text(output, text)
        _print_notes(imported)
    printed = text.rstrip("\n") if output is None else f"{output}: {imported.summary}"
    echo(as_json, imported.as_json() | _notes(imported), [printed])


def _write_folder(imported: Imported, folder: Path, name: str, *, force: bool, as_json: bool) -> None:
    texts = {folder / file: text for file, text in imported.files(name).items()}
    check_outputs(texts, replace=force)
    for file, text in texts.items():
        write_text(file, text)
    _print_notes(imported)
    written = [str(file) for file in texts]
    echo(as_json, {"files": written} | _notes(imported) | imported.as_json(), ["\n".join(written)])


def _notes(imported: Imported) -> dict[str, Any]:
    """Return the notes of an import as plain data for JSON."""
    return {"notes": list(imported.notes), "ignored": msgspec.to_builtins(imported.ignored)}


def _print_notes(imported: Imported) -> None:
    """Print the notes on stderr, where the written file is not seen."""
    for note in (*imported.notes, *by_reason(imported.ignored)):
        click.echo(f"note: {note}", err=True)
