"""`rapid-des goodput`: a training run of weeks with failures in it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from itertools import takewhile
from pathlib import Path
from typing import Any

import click
from msgspec import structs

from rapid_des.bounded_cache import BoundedCache
from rapid_des.cli.executing import chosen_executor, executor_options_of
from rapid_des.cli.main import progress
from rapid_des.cli.options import (
    OF_RUNS,
    Amount,
    echo_marked,
    fault_option,
    job_options,
    json_option,
    names_or_files,
    one_of,
    open_job,
    plot_option,
)
from rapid_des.cli.pages import check_report, report_option, write_study_page
from rapid_des.report.charts.studies import goodput_charts
from rapid_des.report.goodput_text import goodput_report
from rapid_des.report.writing import check_outputs
from rapid_des.runs.goodput import Replications, RunRequest, play, requested
from rapid_des.runs.loading import load_reliability
from rapid_des.runs.questions import KEYS, Asking, optimize, worth
from rapid_des.runs.result import GoodputResult
from rapid_des.simulation import FINEST, MODES
from rapid_des.studies.kept_runs import KeptRuns

_ROOT = "reliability."


@click.command()
@job_options
@fault_option
@click.option(
    "--reliability",
    required=True,
    metavar="FILE",
    shell_complete=names_or_files("reliability"),
    help="Reliability file or preset: what fails how often, and what is done then.",
)
@click.option("--days", metavar="N", help="Length of the run in days.")
@click.option("--steps", type=int, metavar="N", help="Length of the run in steps.")
@click.option("--tokens", metavar="N", help="Length of the run in tokens, as in: 15T.")
@click.option(
    "--replications",
    default="100",
    show_default=True,
    metavar="N|'goodput ±0.2%'",
    help="Number of runs, or until a figure is known so well.",
)
@click.option(
    "--first",
    type=click.IntRange(0, 10**9),
    default=0,
    help="Number of the first replication, to replay one.",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**32), default=0, show_default=True, help="Seed of all draws."
)
@click.option(
    "--mode",
    metavar="MODE",
    default=FINEST,
    show_default=True,
    shell_complete=one_of((*MODES, FINEST)),
    help="Mode of the step's simulation.",
)
@click.option(
    "--compare",
    metavar="FILE",
    shell_complete=names_or_files("reliability"),
    help="A second reliability file, which meets the same failures; prints what it gains.",
)
@click.option("--worth", is_flag=True, help="Print what one more unit of each thing is worth.")
@click.option(
    "--optimize",
    metavar="KEY,KEY",
    help=f"Find the best values of keys of the reliability file: {', '.join(KEYS)}.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Folder that keeps the replications; the same command plays those that are missing.",
)
@click.option("--rows", metavar="OUT.csv", help="Write a row for each incident.")
@click.option("--price", type=Amount(0), metavar="PRICE", help="Price of a GPU for an hour.")
@executor_options_of("local")
@plot_option
@report_option
@json_option
def goodput(job: str, machine: str, settings: tuple[str, ...], **options: Any) -> None:
    """Predict the goodput of a run of JOB (file or preset) in which parts of the machine fail.

    --set reliability.KEY=VALUE changes the reliability file, as in reliability.checkpoint.interval=auto.

    rapid-des goodput llama3_1_70b_train_1024 --on dgx_h100_superpod_128 --reliability llama3_h100 --days 30
    """
    check_outputs([options["rows"]], pictures=[options["plot"]], replace=options["force"])
    check_report(options["report"], force=options["force"])
    own = [text.partition("=") for text in settings if text.strip().startswith(_ROOT)]
    changes = [(key.strip().removeprefix(_ROOT), value) for key, _, value in own]
    reliability = load_reliability(options["reliability"], settings=changes)
    others = [text for text in settings if not text.strip().startswith(_ROOT)]
    wanted, loaded = open_job(job, machine, others, options["faults"], reads=OF_RUNS)
    title = f"{job} on {loaded.name} with {reliability.name}"
    asked = {name: options[name] for name in ("days", "steps", "tokens", "seed", "mode")}
    cache, request = BoundedCache(), requested(wanted, loaded, reliability, **asked)
    with progress(title) as bar, chosen_executor(options) as executor:
        replications = Replications.parse(options["replications"], options["first"])
        with _kept(options["output"], request, cache) as kept:
            result = play(request, replications, executor=executor, cache=cache, on_progress=bar, kept=kept)
        same = Replications(len(result.replications), first=options["first"])
        asking = Asking(same, executor, cache, bar)
        answers = _answers(request, result, asking, options)
    if options["rows"] is not None:
        result.write_rows(options["rows"])
    plain = result.as_json(options["price"])
    plain |= answers
    parts = list(goodput_report(plain, title))
    echo_marked(options["as_json"], plain, parts, [(wanted, loaded)])
    first = takewhile(lambda row: row["replication"] == options["first"], result.rows())
    charts = goodput_charts(plain, result.goodputs, first)
    write_study_page(options["report"], title, parts, plain, charts, plot=options["plot"])
    if result.left:
        raise KeyboardInterrupt


def _kept(
    folder: Path | None, request: RunRequest, cache: BoundedCache
) -> AbstractContextManager[KeptRuns | None]:
    return nullcontext() if folder is None else KeptRuns(folder, request, cache)


def _answers(
    request: RunRequest, result: GoodputResult, asking: Asking, options: dict[str, Any]
) -> dict[str, Any]:
    """Return what was asked besides the run, each under the same failures."""
    plain: dict[str, Any] = {}
    if options["compare"] is not None:
        other = load_reliability(options["compare"])
        compared = asking.play(structs.replace(request, reliability=other))
        plain["compared"] = {
            "reliability": other.name,
            "gain": result.gain(compared).as_json(),
            **compared.as_json(options["price"]),
        }
    if options["worth"]:
        plain["worth"] = [each.as_json() for each in worth(request, result, asking)]
    if options["optimize"] is not None:
        keys = [key.strip() for key in options["optimize"].split(",")]
        plain["optimum"] = optimize(request, keys, asking).as_json()
    return plain
