"""`rapid-des goodput`: a training run of weeks with failures in it."""

from __future__ import annotations

from typing import Any

import click

from rapid_des.cli.main import progress
from rapid_des.cli.options import (
    echo_marked,
    fault_option,
    force_option,
    job_options,
    json_option,
    names_or_files,
    one_of,
    open_job,
)
from rapid_des.cli.pages import check_report, report_option, write_study_page
from rapid_des.report.goodput_text import goodput_report
from rapid_des.report.page.study_charts import goodput_charts
from rapid_des.report.writing import check_outputs
from rapid_des.runs.goodput import goodput as run_goodput
from rapid_des.runs.loading import load_reliability
from rapid_des.simulation import FINEST, MODES

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
    "--replications", type=click.IntRange(1, 10**6), default=100, show_default=True, help="Number of runs."
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
@click.option("--rows", metavar="OUT.csv", help="Write a row for each incident.")
@report_option
@force_option
@json_option
def goodput(job: str, machine: str, settings: tuple[str, ...], **options: Any) -> None:
    """Predict the goodput of a run of JOB (file or preset) in which parts of the machine fail.

    --set reliability.KEY=VALUE changes the reliability file, as in reliability.checkpoint.interval=auto.
    """
    check_outputs([options["rows"]], replace=options["force"])
    check_report(options["report"], force=options["force"])
    own = [text.partition("=") for text in settings if text.strip().startswith(_ROOT)]
    changes = [(key.strip().removeprefix(_ROOT), value) for key, _, value in own]
    reliability = load_reliability(options["reliability"], settings=changes)
    others = [text for text in settings if not text.strip().startswith(_ROOT)]
    wanted, loaded = open_job(job, machine, others, options["faults"])
    title = f"{job} on {loaded.name} with {reliability.name}"
    asked = {
        name: options[name] for name in ("days", "steps", "tokens", "replications", "first", "seed", "mode")
    }
    with progress(title) as bar:
        result = run_goodput(wanted, loaded, reliability, on_progress=bar, **asked)
    if options["rows"] is not None:
        result.write_rows(options["rows"])
    plain = result.as_json()
    if options["compare"] is not None:
        other = load_reliability(options["compare"])
        with progress(f"{title}, then with {other.name}") as bar:
            compared = run_goodput(wanted, loaded, other, on_progress=bar, **asked)
        plain["compared"] = {
            "reliability": other.name,
            "gain": result.gain(compared).as_json(),
            **compared.as_json(),
        }
    parts = list(goodput_report(plain, title))
    echo_marked(options["as_json"], plain, parts, [(wanted, loaded)])
    write_study_page(options["report"], title, parts, plain, goodput_charts(plain))
