"""`rapid-des search`: the best points of a study, of which only some are simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rapid_des.cli.executing import executor_options
from rapid_des.cli.main import progress
from rapid_des.cli.options import echo, json_option
from rapid_des.report.study_text import search_lines
from rapid_des.studies.search import PRUNERS, SAMPLERS
from rapid_des.studies.search import search as run_search


@click.command("search")
@click.argument("study", type=click.Path(path_type=Path))
@click.option("--trials", type=click.IntRange(1), help="Points to simulate; a tenth of all if absent.")
@click.option(
    "--objective", "objectives", multiple=True, metavar="FIGURE", help="As step_time_s. Repeatable."
)
@click.option("--sampler", default="tpe", show_default=True, metavar="|".join(SAMPLERS), help="Optuna's.")
@click.option(
    "--pruner", default="none", show_default=True, metavar="|".join(PRUNERS), help="Optuna's, by estimates."
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of the sampler.")
@click.option(
    "--warm", default=3, show_default=True, type=click.IntRange(0), help="First the best estimates."
)
@click.option(
    "--storage", metavar="URL", help="Optuna's; sqlite:///STUDY.search.db if absent. Goes on there."
)
@executor_options
@json_option
def search(study: Path, storage: str | None, as_json: bool, **options: Any) -> None:
    """Look for the best points of STUDY (a file as `rapid-des sweep` has it) with Optuna."""
    stored = storage or f"sqlite:///{study.stem}.search.db"
    with progress(study.stem) as bar:
        searched = run_search(study, storage=stored, tell=bar.part, **options)
    plain = searched.as_json()
    echo(as_json, plain, search_lines(plain))
