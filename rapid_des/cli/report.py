"""`rapid-des report`: a page of a result, or of two results side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from rapid_des.cli.options import echo, force_option, json_option
from rapid_des.cli.pages import check_report, write_page
from rapid_des.cli.sources import Simulated, source_of
from rapid_des.errors import InputError
from rapid_des.report.page.saved import saved_run
from rapid_des.report.page.studies import difference_sections
from rapid_des.studies.difference import difference


@click.command("report")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE…")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="OUT.html",
    help="The page to write.",
)
@force_option
@json_option
def report(sources: tuple[str, ...], output: Path, *, force: bool, as_json: bool) -> None:
    """Write a page of one SOURCE, or of two side by side: one HTML file that needs nothing else.

    A SOURCE is a file that `run --json` wrote, a point of a study (FOLDER#12), or what follows `run`, in
    quotes: "JOB --on MACHINE --set KEY=VALUE". The last has every section; a file has those that it holds.

    rapid-des report "llama2_7b_train --on dgx_a100" -o 7b.html
    rapid-des report before.json after.json -o change.html
    """
    check_report(output, force=force)
    if len(sources) > 2:
        raise InputError(f"{len(sources)} sources: a page shows one, or two side by side")
    read = [source_of(text) for text in sources]
    if len(read) == 2:
        sides = [each.plain for each in read]
        plain: Mapping[str, Any] = difference(*sides).as_json()
        sections = difference_sections(plain, sides, (sources[0], sources[1]))
    else:
        one, plain = read[0], read[0].plain
        sections = one.sections() if isinstance(one, Simulated) else saved_run(plain, sources[0])
    write_page(output, " against ".join(sources), sections, plain)
    echo(as_json, plain, [f"wrote {output}"])
