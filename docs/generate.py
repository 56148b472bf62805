"""The pages that are made from the package itself when the site is built.

    cli/        a page for each command, from click
    files/      a page for each kind of file, from its JSON Schema
    python.md   the public names, from their docstrings
    presets.md  the files that ship, with the first comment of each
    accuracy/   the sections of validation/README.md

Nothing of this is committed: `docs/generated` is in .gitignore.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from file_kinds import file_page, plain

import rapid_des
from rapid_des.cli.main import cli, main

VALIDATION = Path(__file__).parents[1] / "validation" / "README.md"


def write(folder: Path) -> None:
    """Write every generated page below `folder`; a page that is as it was stays untouched."""
    pages = dict(_pages())
    for path in folder.rglob("*.md"):
        if path.relative_to(folder).as_posix() not in pages:
            path.unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def _pages() -> Iterator[tuple[str, str]]:
    root = click.Context(cli, info_name="rapid-des")
    for name in cli.list_commands(root):
        command = cli.get_command(root, name)
        assert command is not None
        yield f"cli/{name}.md", "\n".join(_command(command, root, name, 1)) + "\n"
    for kind in _kinds():
        yield f"files/{kind}.md", file_page(kind, json.loads(_printed("schema", kind)))
    yield "python.md", "\n".join(_python()) + "\n"
    yield "presets.md", "\n".join(_presets()) + "\n"
    for title, body in _sections(VALIDATION.read_text(encoding="utf-8")):
        yield f"accuracy/{_slug(title)}.md", f"# {title}\n\n{body}"


def _printed(*words: str) -> str:
    """Return what a command prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main(words)
    return out.getvalue()


def _command(command: click.Command, parent: click.Context, name: str, level: int) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent)
    yield f"{'#' * level} {context.command_path.removeprefix('rapid-des ') if level == 1 else name}\n"
    yield from _help(command.help or "")
    yield f"```text\n{context.get_usage().removeprefix('Usage: ')}\n```\n"
    records = [each.get_help_record(context) for each in command.get_params(context)]
    options = [record for record in records if record and record[1]]
    yield "| option | what it does |\n|---|---|"
    for spelled, meaning in options:
        yield f"| `{spelled.replace('|', chr(92) + '|')}` | {plain(meaning)} |"
    yield ""
    if isinstance(command, click.Group):
        inner = {name: command.get_command(context, name) for name in command.list_commands(context)}
        if level > 1:  # such as every kind of vector kernel: too many for a section each
            yield "| command | what it does |\n|---|---|"
            yield from (
                f"| `{key}` | {plain(one.get_short_help_str(200))} |" for key, one in inner.items() if one
            )
            yield ""
            return
        for key, one in inner.items():
            if one is not None:
                yield from _command(one, context, key, level + 1)


def _help(text: str) -> Iterator[str]:
    r"""Yield the paragraphs of a help text; one that begins with \b is an example."""
    for paragraph in text.split("\n\n"):
        if "\b" in paragraph:
            yield f"```text\n{textwrap.dedent(paragraph.replace(chr(8), '')).strip()}\n```\n"
        else:
            yield plain(paragraph) + "\n"


def _kinds() -> list[str]:
    """Return the kinds of files that have a schema."""
    command = cli.get_command(click.Context(cli), "schema")
    assert command is not None
    (argument,) = (each for each in command.params if isinstance(each, click.Argument))
    assert isinstance(argument.type, click.Choice)
    return [str(kind) for kind in argument.type.choices]


def _python() -> Iterator[str]:
    yield "# Python API\n\nThe public names of `import rapid_des as rd`.\n"
    names = [name for name in dir(rapid_des) if not name.startswith("_")]
    found = {name: getattr(rapid_des, name) for name in names}
    functions = {name: one for name, one in found.items() if inspect.isroutine(one)}
    classes = {name: one for name, one in found.items() if inspect.isclass(one)}
    errors = {name: one for name, one in classes.items() if issubclass(one, Exception)}
    rest = found.keys() - functions.keys() - classes.keys()
    yield "## Functions\n"
    for name, function in functions.items():
        yield from _function(name, function, 3)
    yield "## Classes\n"
    for name, one in classes.items():
        if name not in errors:
            yield from _class(name, one)
    yield "## Errors\n"
    for name, error in errors.items():
        yield f"**`{name}`**: {_first(error)}\n"
    yield "## Values and aliases\n"
    for name in sorted(rest):
        yield f"**`{name}`** = `{found[name]!r}`\n"


def _function(name: str, function: Any, level: int) -> Iterator[str]:
    yield f"{'#' * level} {plain(name)}\n"
    with contextlib.suppress(ValueError, TypeError):
        yield f"```python\n{name}{_signature(function)}\n```\n"
    yield from _docstring(inspect.getdoc(function) or "")


class _Shown:
    """A text whose representation is itself, so that signatures show it as it is."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _signature(function: Any) -> str:
    """Return a signature with one parameter a line if it is long; long defaults are left out."""
    signature = inspect.signature(function)
    parts = []
    for each in signature.parameters.values():
        default = repr(each.default)
        short = default if len(default) < 30 and "<" not in default else "..."
        with_default = each if each.default is each.empty else each.replace(default=_Shown(short))
        hint = each.annotation if each.annotation is each.empty else _Shown(_hint(each.annotation))
        parts.append(with_default.replace(annotation=hint))
    hint = signature.return_annotation
    returns = hint if hint is signature.empty else _Shown(_hint(hint))
    text = str(signature.replace(parameters=parts, return_annotation=returns))
    if len(text) <= 100:
        return text
    inner = ",\n    ".join(str(each) for each in parts)
    return f"(\n    {inner},\n)" + ("" if hint is signature.empty else f" -> {_hint(hint)}")


def _hint(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _class(name: str, one: type) -> Iterator[str]:
    yield f"### {plain(name)}\n"
    yield from _docstring(inspect.getdoc(one) or "")
    fields = dict(_fields(one))
    if fields:
        yield "| field | meaning |\n|---|---|"
        yield from (f"| `{field}` | {plain(meaning)} |" for field, meaning in fields.items())
        yield ""
    members = {
        key: value
        for base in reversed(one.__mro__[:-1])
        if base.__module__.startswith("rapid_des")
        for key, value in vars(base).items()
        if not key.startswith("_") and key not in fields
    }
    for key, value in members.items():
        made = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if isinstance(made, property):
            yield f"**`.{key}`** {_first(made)}\n"
        elif inspect.isfunction(made):
            yield f"**`.{key}{_signature(made)}`** {_first(made)}\n".replace("\n    ", " ").replace(
                ",\n)", ")"
            )


def _fields(one: type) -> Iterator[tuple[str, str]]:
    """Yield the fields of a class that have a docstring under them."""
    for base in reversed(one.__mro__[:-1]):
        if not base.__module__.startswith("rapid_des"):
            continue
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except (OSError, TypeError, SyntaxError):
            continue
        assert isinstance(body, ast.ClassDef)
        for field, after in zip(body.body, [*body.body[1:], ast.Pass()], strict=True):
            match field, after:
                case ast.AnnAssign(target=ast.Name(id=str(name))), ast.Expr(
                    value=ast.Constant(value=str(text))
                ):
                    yield name, text
                case ast.AnnAssign(target=ast.Name(id=str(name))), _ if not name.startswith("_"):
                    yield name, ""


def _docstring(text: str) -> Iterator[str]:
    """Yield a docstring's paragraphs; examples are code."""
    for paragraph in text.split("\n\n"):
        if paragraph.lstrip().startswith(">>>"):
            yield f"```pycon\n{textwrap.dedent(paragraph)}\n```\n"
        elif paragraph.startswith("    "):
            yield f"```text\n{textwrap.dedent(paragraph)}\n```\n"
        elif paragraph.lstrip().startswith(("- ", "* ")):
            yield paragraph + "\n"
        elif paragraph.strip():
            head, mark, example = paragraph.partition(">>>")
            yield plain(head) + "\n"
            if mark:
                yield f"```pycon\n{textwrap.dedent(mark + example)}\n```\n"


def _first(thing: Any) -> str:
    return plain((inspect.getdoc(thing) or "").partition("\n\n")[0])


def _presets() -> Iterator[str]:
    yield "# Presets\n\nFiles that ship with rapid_des. Commands take them by name.\n"
    yield "`rapid-des presets show NAME` prints one with the source of each number.\n"
    kinds: Mapping[str, list[str]] = json.loads(_printed("presets", "--json"))
    for kind, names in kinds.items():
        yield f"## {kind}\n\n| name | what it is |\n|---|---|"
        yield from (f"| `{name}` | {_about(kind, name)} |" for name in names)
        yield ""


def _about(kind: str, name: str) -> str:
    """Return the comment at the head of a preset."""
    if kind == "trace":
        return "a set of Chakra traces"
    text = json.loads(_printed("presets", "show", name, "--json"))["text"]
    return plain(" ".join(_comment(text.splitlines())))


def _comment(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        if not line.startswith("#"):
            return
        yield line.lstrip("# ")


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield title and text of each section, with pictures found from where the pages stand."""
    introduction, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    yield "How validation works", introduction.partition("\n")[2]
    for section in sections:
        title, _, body = section.partition("\n")
        yield (
            title,
            body.replace("](figures/", "](../../../validation/figures/").replace("](../docs/", "](../../"),
        )


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
