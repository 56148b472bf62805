"""`rapid-des sweep`, `search`, `show`, `compare`: many simulations, their results, and two side by side."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import click

from rapid_des.bounded_cache import BoundedCache
from rapid_des.cli.asked_runs import run_options, study_asked
from rapid_des.cli.executing import executor_options, require_some
from rapid_des.cli.main import progress
from rapid_des.cli.options import (
    echo,
    echo_marked,
    force_option,
    json_option,
    plot_option,
    together,
)
from rapid_des.cli.pages import check_report, report_option, write_page, write_study_page
from rapid_des.cli.sources import source_of
from rapid_des.errors import InputError
from rapid_des.report.charts.studies import sample_page, sweep_charts
from rapid_des.report.evidence import unmeasured_in, unmeasured_lines
from rapid_des.report.page.studies import difference_sections
from rapid_des.report.study_text import sample_report, search_report
from rapid_des.report.sweep_text import difference_report, points_table, sweep_report
from rapid_des.report.tables import Part, shown
from rapid_des.report.writing import check_outputs
from rapid_des.studies.difference import difference
from rapid_des.studies.fault_rows import kept_points, kept_sample, rerun_draw
from rapid_des.studies.points import FIGURES, OK, Rerun
from rapid_des.studies.results import Sweep
from rapid_des.studies.search import PRUNERS, SAMPLERS
from rapid_des.studies.search import search as run_search
from rapid_des.studies.store import ResultStore
from rapid_des.studies.sweep import rerun
from rapid_des.studies.sweep import sweep as run_sweep

_NUMBERS = [name for name, better in FIGURES.items() if better]


def _pair(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, str]:  # noqa: ARG001
    names = [name.strip() for name in value.split(",")]
    wrong = [name for name in names if name not in _NUMBERS]
    if len(names) != 2 or wrong:
        raise click.BadParameter(
            f"{value!r}; allowed: two of {', '.join(_NUMBERS)}, as in step_time_s,memory_bytes"
        )
    return names[0], names[1]


_report_options = together(
    click.option("--top", default=10, show_default=True, type=click.IntRange(1), help="Rows of each table."),
    click.option(
        "--pareto",
        default="step_time_s,memory_bytes",
        show_default=True,
        callback=_pair,
        metavar="A,B",
        help="Figures of the Pareto front.",
    ),
    plot_option,
    report_option,
    json_option,
)


@click.command("sweep")
@click.argument("study", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Folder of the results; a second run continues."
)
@click.option("--limit", type=click.IntRange(1), help="Number of points to simulate, the first ones.")
@click.option(
    "--objective", metavar="FIGURE", help="Figure by which points are ranked; the study's if absent."
)
@run_options
@executor_options
@_report_options
def sweep(study: Path, output: Path | None, **options: Any) -> None:
    """Simulate every point of STUDY, a file (`rapid-des schema study`) or preset; show the best and why.

    ^C keeps what is finished with -o, and the same command goes on.

    rapid-des sweep llama2_7b_splits -o results --plot splits.png
    """
    check_outputs([], pictures=[options["plot"]], replace=options["force"])
    check_report(options["report"], force=options["force"])
    with progress(study.stem) as bar:
        done = run_sweep(
            study_asked(study, options),
            folder=output,
            executor=options["executor"],
            workers=options["workers"],
            address=options["address"],
            limit=options["limit"],
            on_progress=bar.part,
        )
    _report(done, study.stem, options)
    if done.left:
        raise KeyboardInterrupt
    failures = done.failures
    failed = [name for failure in failures for name in [failure["error"]] * failure["points"]]
    require_some(len(done) - len(failed), failed, "points")


@click.command("show")
@click.argument("results", type=click.Path(path_type=Path))
@click.option("--where", metavar="CONDITION", help="Only points such as: tp <= 4 and mfu > 0.4.")
@click.option("--sort", metavar="COLUMN", help="List points by a column, -COLUMN the largest first.")
@click.option("--columns", metavar="A,B,…", help="List points with these columns alone.")
@click.option("--point", type=click.IntRange(1), metavar="ID", help="Print all that is known of one point.")
@click.option(
    "--rerun",
    "again",
    type=click.IntRange(1),
    metavar="ID",
    help="Simulate a point (of draws: a row of the column id) again and compare digits.",
)
@_report_options
def show(results: Path, **options: Any) -> None:
    """Print RESULTS, the folder of a study: the best, the front, which axes matter; or some points.

    Of `faults sample -o` and `faults study -o`: what their draws cost. Times in columns are seconds, sizes
    bytes (step_time_s, memory_bytes); mfu is a share of 1.

    rapid-des show results --where 'tp <= 4' --sort=-mfu --columns tp,pp,dp,mfu
    """
    check_outputs([], pictures=[options["plot"]], replace=options["force"])
    check_report(options["report"], force=options["force"])
    store = ResultStore.open(results)
    if store.manifest["kind"] == "faults":
        _show_draws(store, options)
        return
    if options["again"] is not None:
        _show_again(rerun(store, options["again"]), options["as_json"])
        return
    read = Sweep.opened(results)
    if options["point"] is not None:
        whole = read.result(options["point"])
        unmeasured = unmeasured_lines(unmeasured_in(whole["result"]))
        echo(options["as_json"], whole, chain(_point_report(whole), unmeasured))
        return
    read = read if options["where"] is None else read.where(options["where"])
    if options["sort"] or options["columns"]:
        names = [name.strip() for name in options["columns"].split(",")] if options["columns"] else []
        rows = read.sorted_by(options["sort"] or "id", names)[: options["top"]]
        total, listed = f"{len(rows)} of {len(read):,} points", points_table("", rows)
        devices = read.not_validated(int(row["id"]) for row in rows)
        echo(options["as_json"], rows, [total, listed, *unmeasured_lines(devices)])
        return
    _report(read, results.name, options)


def _show_draws(store: ResultStore, options: dict[str, Any]) -> None:
    """Print and plot what `faults sample -o` keeps."""
    other = next((name for name in ("where", "sort", "columns", "point") if options[name]), None)
    if other is not None:
        allowed = "--top, --plot and --rerun ID (the column id)"
        raise InputError(f"--{other} is for points; {store.folder} holds draws of faults: {allowed}")
    if options["again"] is not None:
        _show_again(rerun_draw(store, options["again"]), options["as_json"])
        return
    sample, cache = kept_sample(store), BoundedCache()
    jobs = (point.resolved(cache) for point in kept_points(store).values())
    plain, parts = sample.as_json(), list(sample_report(sample.as_json(options["top"])))
    echo_marked(options["as_json"], plain, parts, jobs)
    write_study_page(options["report"], store.folder.name, parts, plain, sample_page(plain))
    if options["plot"] is not None:
        sample.plot(options["plot"])


def _report(done: Sweep, title: str, options: dict[str, Any]) -> None:
    plain = done.as_json(options["top"], options["pareto"])
    parts = list(sweep_report(plain, title))
    echo(options["as_json"], plain, parts)
    write_study_page(options["report"], title, parts, plain, sweep_charts(plain, done.columns))
    if options["plot"] is not None:
        done.plot(options["plot"], title=title)


def _point_report(whole: dict[str, Any]) -> Iterator[Part]:
    known = {name: value for name, value in whole.items() if name != "result" and value is not None}
    yield {name: shown(name, value) for name, value in known.items()}
    yield from (f"note: {note}" for note in (whole["result"] or {}).get("notes", ()))


def _show_again(rerun: Rerun, as_json: bool) -> None:
    plain = {
        "id": rerun.row["id"],
        "same_content": rerun.same_content,
        "same_digits": not rerun.differs,
        "differs": {name: [rerun.row.get(name), rerun.again.get(name)] for name in rerun.differs},
    }
    echo(as_json, plain, _again_lines(plain))
    if rerun.differs:
        raise InputError(f"point {rerun.row['id']} has other results now")


def _again_lines(plain: dict[str, Any]) -> Iterator[str]:
    changed = "" if plain["same_content"] else "not as they were: files, constants or rapid_des changed"
    yield f"point {plain['id']}: its inputs are {changed or 'as they were'}"
    yield f"its results are {'the same' if plain['same_digits'] else 'different'}"
    yield from (f"{name}: {before} then, {after} now" for name, (before, after) in plain["differs"].items())


@click.command("compare")
@click.argument("a")
@click.argument("b")
@report_option
@force_option
@json_option
def compare(a: str, b: str, *, as_json: bool, force: bool, report: Path | None) -> None:
    """Line up two results and say which operators, collectives and waiting make the difference.

    A and B are each a file that `run --json` wrote, a point of a study (FOLDER#12), or what follows `run`,
    in quotes: "JOB --on MACHINE --set KEY=VALUE".

    rapid-des compare "llama2_7b_train --on dgx_a100" "llama2_7b_train --on dgx_h100"
    rapid-des compare 'results#1' 'results#5'
    """
    check_report(report, force=force)
    sides = [source_of(text).plain for text in (a, b)]
    plain = difference(*sides).as_json()
    echo(as_json, plain, difference_report(plain, (a, b)))
    if report is not None:
        write_page(report, f"{a} against {b}", difference_sections(plain, sides, (a, b)), plain)


@click.command("search")
@click.argument("study", type=click.Path(path_type=Path))
@click.option(
    "--trials",
    type=click.IntRange(1),
    help="Number of points to simulate, earlier ones included; a tenth of all if absent.",
)
@click.option(
    "--objective",
    "objectives",
    multiple=True,
    metavar="FIGURE",
    help="Figure to optimise, as in mfu; the study's if absent. Repeatable, for a front.",
)
@click.option(
    "--sampler", default="tpe", show_default=True, metavar="|".join(SAMPLERS), help="Optuna's sampler."
)
@click.option(
    "--pruner",
    default="none",
    show_default=True,
    metavar="|".join(PRUNERS),
    help="Optuna's pruner, which leaves out points by their analytical estimates.",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of the sampler.")
@click.option(
    "--warm",
    default=3,
    show_default=True,
    type=click.IntRange(0),
    help="Number of points to simulate first, the best by analytical estimates; 0: none.",
)
@click.option(
    "--storage",
    metavar="URL",
    help="Optuna's storage, which a search continues; sqlite:///STUDY.search.db, in this folder, if absent.",
)
@run_options
@executor_options
@json_option
def search(study: Path, storage: str | None, as_json: bool, **options: Any) -> None:
    """Look for the best points of STUDY (a file as `rapid-des sweep` has it) with Optuna.

    rapid-des search llama2_7b_splits --trials 4 --objective mfu
    """
    stored = storage or f"sqlite:///{study.stem}.search.db"
    read = study_asked(study, {name: options.pop(name) for name in ("reliability", "days")})
    with progress(study.stem) as bar:
        searched = run_search(read, storage=stored, on_progress=bar.part, **options)
    plain = searched.as_json()
    echo(as_json, plain, search_report(plain))
    if searched.interrupted:
        raise KeyboardInterrupt
    failed = [row["status"] for row in searched.rows if row["status"] != OK]
    require_some(len(searched.rows) - len(failed), failed, "points asked for")
