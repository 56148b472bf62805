"""`rapid-des import`: model files from other tools' files."""

from __future__ import annotations

from pathlib import Path

import click

from rapid_des.cli.options import echo, force_option, json_option
from rapid_des.config import to_tree
from rapid_des.frontend.importing import import_hugging_face
from rapid_des.report.writing import check_outputs


@click.group("import")
def import_group() -> None:
    """Write model files from other tools' files."""


@import_group.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Model file to write; else to stdout.")
@force_option
@json_option
def hf(path: Path, output: Path | None, force: bool, as_json: bool) -> None:
    """Read a Hugging Face config.json, or the folder PATH that has one; nothing is downloaded."""
    check_outputs([output], replace=force)
    imported = import_hugging_face(path)
    text = imported.as_yaml()
    if output is not None:
        output.write_text(text)
    plain = {
        "architecture": imported.architecture,
        "parameters": imported.model.parameters,
        "model": to_tree(imported.model.spec, "model"),
        "notes": list(imported.notes),
    }
    written = [f"{output}: {imported.architecture}, {imported.model.parameters:,} parameters"]
    echo(as_json, plain, text.splitlines() if output is None else written)
