"""`rapid-des capacity`: how much load a server takes within limits, and which fleet serves a load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from rapid_des.bounded_cache import BoundedCache
from rapid_des.cli.main import progress
from rapid_des.cli.options import (
    Amount,
    echo_marked,
    job_options,
    json_option,
    names_or_files,
    plot_option,
)
from rapid_des.cli.pages import check_report, report_option, write_study_page
from rapid_des.cli.serve import open_server, workload_option, workload_texts
from rapid_des.errors import InputError
from rapid_des.report.charts.servers import capacity_page
from rapid_des.report.writing import check_outputs
from rapid_des.serving.pools import embeds
from rapid_des.serving.slo import Slo
from rapid_des.studies.capacity import Fleets, ServerLoad, all_layouts, fleets, layouts, with_splits
from rapid_des.studies.capacity_report import capacity_report
from rapid_des.studies.load_curve import LoadPoint, curve, front
from rapid_des.units import EventRate

if TYPE_CHECKING:
    from rapid_des.frontend import Job
    from rapid_des.machine import Machine


@click.command()
@job_options
@click.option("--slo", required=True, metavar="'ttft=2s tpot=50ms'", help="Limits that a request must keep.")
@click.option(
    "--share", type=Amount(0.01, 1), default=0.99, show_default=True, help="Share of requests in time."
)
@click.option(
    "--layout",
    "texts",
    multiple=True,
    metavar="'tp=4 pp=2'",
    help="A replica, or some for prompts and some for answers: tp=4 prefill=1 decode=3. Repeatable.",
)
@click.option("--all-layouts", is_flag=True, help="Every power of two of tp in a node, and of stages.")
@click.option(
    "--splits", type=click.IntRange(2, 64), metavar="N", help="Also N of each, prompts on some alone."
)
@click.option("--load", metavar="RATE", help="Size a fleet for this load, as in: 20/s.")
@click.option("--price", type=Amount(0), metavar="PRICE", help="Price of a GPU for an hour.")
@click.option(
    "--requests", type=click.IntRange(10, 10**6), default=1000, show_default=True, help="Of a short run."
)
@workload_option
@click.option("--prompt", metavar="'KIND KEY=VALUE …'", help="Tokens of prompts, as of serve.")
@click.option("--output", metavar="'KIND KEY=VALUE …'", help="Tokens that requests ask for, as of serve.")
@click.option(
    "--seed", type=click.IntRange(0, 2**32), default=0, show_default=True, help="Seed of all draws."
)
@click.option(
    "--reliability",
    metavar="FILE",
    shell_complete=names_or_files("reliability"),
    help="Reliability file or preset: the fleet has replicas for those that are out.",
)
@plot_option
@report_option
@json_option
def capacity(job: str, machine: str, settings: tuple[str, ...], **options: Any) -> None:
    """Find the highest rate that JOB serves on a machine within limits, and the fleet for a load.

    JOB is a job or a model: a file, a preset or a config.json of Hugging Face.

    --plot and --report draw the highest rates, and what users see against what a GPU yields, of every layout.

    rapid-des capacity llama3_1_70b_serve --on dgx_h100 --slo "ttft=1s tpot=40ms" --load 50/s
    """
    stated = {name: options[name] for name in ("share", "requests", "seed", "reliability")}
    stated |= {name: text for name, text in workload_texts(options).items() if name != "arrivals"}
    demand = ServerLoad(Slo.parse(options["slo"]), **stated)
    load = None if options["load"] is None else _rate(options["load"])
    if options["splits"] and not (options["texts"] or options["all_layouts"]):
        raise InputError("--splits is of layouts: state --layout or --all-layouts too")
    path: Path | None = options["plot"]
    check_outputs([], pictures=[path], replace=options["force"])
    check_report(options["report"], force=options["force"])
    wanted, loaded = open_server(job, machine, settings, options, layout=False)
    texts = (*options["texts"], *(all_layouts(loaded) if options["all_layouts"] else ()))
    texts = with_splits(texts, options["splits"]) if options["splits"] else texts
    title = f"{job} on {loaded.name}"
    with progress(title) as bar:
        cache = BoundedCache()
        plans = fleets(
            wanted, loaded, demand, texts,
            load=load, price=options["price"], cache=cache, on_progress=bar.name,
        )  # fmt: skip
        points = list[LoadPoint]()
        if path or options["report"]:
            bar.name("curves")
            plans, points = _curves(plans, (wanted, loaded), demand, cache)
    plain = plans.as_json()
    if points:
        plain |= {
            "points": [point.as_json() for point in points],
            "front": [point.as_json() for point in front(points)],
        }
    drawn = [f"wrote {path}"] if path and not plans.interrupted else []
    parts = list(capacity_report(plans, demand, title))
    echo_marked(options["as_json"], plain, [*parts, *drawn], [(wanted, loaded)])
    write_study_page(
        options["report"], title, parts, plain, capacity_page(plain), plot=None if plans.interrupted else path
    )
    if plans.interrupted:
        raise KeyboardInterrupt


def _curves(
    plans: Fleets, ran: tuple[Job, Machine], demand: ServerLoad, cache: BoundedCache
) -> tuple[Fleets, list[LoadPoint]]:
    """Return the plans and the curves of their layouts; ^C ends the curves, as the rates are known."""
    job, machine = ran
    points = list[LoadPoint]()
    # curves are of tokens that come one by one
    if plans.interrupted or embeds(job):
        return plans, points
    try:
        for layout in layouts(job, machine, [row.name for row in plans.rows]):
            points += [] if isinstance(layout, tuple) else curve(layout, machine, demand, cache=cache)
    except KeyboardInterrupt:
        plans = replace(plans, interrupted=True)
    return plans, points


def _rate(text: str) -> float:
    try:
        rate = float(EventRate.parse(text).per_second)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--load") from None
    if rate == 0:
        raise click.BadParameter(f"{text!r} is no load; more than 0, as in: 20/s", param_hint="--load")
    return rate
