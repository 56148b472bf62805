"""`rapid-des capacity`: how much load a server takes within limits, and which fleet serves a load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import click

from rapid_des.cli.main import progress
from rapid_des.cli.options import Amount, echo_marked, job_options, json_option, open_job, plot_option
from rapid_des.cli.serve import workload_option, workload_texts
from rapid_des.errors import InputError
from rapid_des.report.tables import Part, Table, columns, counted
from rapid_des.report.writing import check_outputs
from rapid_des.serving.result import Slo
from rapid_des.studies.capacity import (
    Fleets,
    Layout,
    LoadPoint,
    ServerLoad,
    all_layouts,
    curve,
    fleets,
    layouts,
    with_splits,
)
from rapid_des.units import EventRate


def front(points: Sequence[LoadPoint]) -> tuple[LoadPoint, ...]:
    """Return the points that no other beats in both figures, by rising tokens a user.

    >>> points = LoadPoint("", 1, 9, 1), LoadPoint("", 2, 5, 5), LoadPoint("", 3, 4, 4)
    >>> [point.concurrency for point in front(points)]
    [2, 1]
    """
    best, front_points = 0.0, list[LoadPoint]()
    for point in sorted(points, key=lambda each: (-each.tokens_per_user, -each.tokens_per_gpu)):
        if point.tokens_per_gpu > best:
            best = point.tokens_per_gpu
            front_points.append(point)
    return tuple(reversed(front_points))


def draw_front(points: Sequence[LoadPoint], path: Path, *, title: str) -> None:
    """Draw tokens a user against tokens a GPU, a line a layout, the front thick: PNG, SVG or PDF."""
    from rapid_des.report.pictures import new_figure, save

    figure = new_figure(path, figsize=(8, 5))
    axes = figure.subplots()
    best = front(points)
    axes.plot(
        [point.tokens_per_user for point in best], [point.tokens_per_gpu for point in best],
        color="0.8", linewidth=7, zorder=1, label="Pareto front", solid_capstyle="round",
    )  # fmt: skip
    for name in dict.fromkeys(point.layout for point in points):
        shown = [point for point in points if point.layout == name]
        places = [(point.tokens_per_user, point.tokens_per_gpu) for point in shown]
        axes.plot(*zip(*places, strict=True), "o-", label=name)
        for point, place in zip(shown, places, strict=True):
            axes.annotate(str(point.concurrency), place, fontsize=7, xytext=(4, 4),
                          textcoords="offset points")  # fmt: skip
    axes.set(
        xlabel="tokens/s a user (median)", ylabel="tokens/s a GPU", title=title, xscale="log", yscale="log"
    )
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend(title="numbers: requests at a time")
    save(figure, path)


def capacity_report(fleets: Fleets, demand: ServerLoad, title: str) -> Iterator[Part]:
    """Yield the fleets as a table, and the layouts that were refused."""
    yield title
    asked = f"{demand.share:.0%} of {demand.requests:,} requests within {demand.slo.text}"
    yield f"{asked}; one replica of each layout" + (", interrupted" if fleets.interrupted else "")
    names = columns("layout", "gpus", rate=("requests/s", ".3g"), tokens=("tokens/s/GPU", ",.0f"))
    names += columns(joules=("J/token", ".3g"), limit="limited by")
    if fleets.load:
        names += columns(fleet=("fleet", lambda gpus: counted(gpus, "GPU")))
    if fleets.price is not None:
        names += columns(cost=("cost/Mtoken", ".3f"))
    yield Table("", names, [_row(row, fleets) for row in fleets.rows])
    yield from (f"{text} can not serve: {why}" for text, why in fleets.refused)


def _row(row: Layout, fleets: Fleets) -> dict[str, Any]:
    fleet = row.fleet(fleets.load, fleets.price) if fleets.load else {}
    cost = None
    if fleets.price is not None:
        alone = row.cost_per_million_tokens(fleets.price)
        cost = fleet.get("cost_per_million_tokens") if fleets.load else alone
    return {
        "layout": row.name,
        "gpus": row.gpus,
        "rate": row.rate,
        "tokens": row.output_tokens_per_gpu,
        "joules": None if row.energy is None else row.energy.joules_per_output_token,
        "limit": row.broken or "throughput",
        "fleet": fleet.get("gpus"),
        "cost": cost,
    }


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
    "--requests", type=click.IntRange(10, 10**6), default=1000, show_default=True, help="A simulation."
)
@workload_option
@click.option("--prompt", metavar="'KIND KEY=VALUE …'", help="Tokens of prompts, as of serve.")
@click.option("--output", metavar="'KIND KEY=VALUE …'", help="Tokens that requests ask for, as of serve.")
@click.option(
    "--seed", type=click.IntRange(0, 2**32), default=0, show_default=True, help="Seed of all draws."
)
@plot_option
@json_option
def capacity(job: str, machine: str, settings: tuple[str, ...], **options: Any) -> None:
    """Find the highest rate that JOB serves on a machine within limits, and the fleet for a load.

    --plot draws what users see against what a GPU yields, of every layout.
    """
    stated = {name: options[name] for name in ("share", "requests", "seed")}
    stated |= {name: text for name, text in workload_texts(options).items() if name != "arrivals"}
    demand = ServerLoad(Slo.parse(options["slo"]), **stated)
    load = None if options["load"] is None else _rate(options["load"])
    if options["splits"] and not (options["texts"] or options["all_layouts"]):
        raise InputError("--splits is of layouts: state --layout or --all-layouts too")
    path: Path | None = options["plot"]
    check_outputs([], pictures=[path], replace=options["force"])
    wanted, loaded = open_job(job, machine, settings, serves=True)
    texts = (*options["texts"], *(all_layouts(loaded) if options["all_layouts"] else ()))
    texts = with_splits(texts, options["splits"]) if options["splits"] else texts
    title = f"{job} on {loaded.name}"
    with progress(title) as bar:
        plans = fleets(wanted, loaded, demand, texts, load=load, price=options["price"], on_progress=bar.name)
        points = list[LoadPoint]()
        if path is not None and not plans.interrupted:
            chosen = [layout for layout in layouts(wanted, loaded, [row.name for row in plans.rows])
                      if not isinstance(layout, tuple)]  # fmt: skip
            for layout in chosen:
                bar.name("curves")
                points += curve(layout, loaded, demand)
            draw_front(points, path, title=title)
    plain = plans.as_json()
    if points:
        plain |= {
            "points": [point.as_json() for point in points],
            "front": [point.as_json() for point in front(points)],
        }
    drawn = [f"wrote {path}"] if points else []
    parts = chain(capacity_report(plans, demand, title), drawn)
    echo_marked(options["as_json"], plain, parts, [(wanted, loaded)])


def _rate(text: str) -> float:
    try:
        rate = float(EventRate.parse(text).per_second)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--load") from None
    if rate == 0:
        raise click.BadParameter(f"{text!r} is no load; more than 0, as in: 20/s", param_hint="--load")
    return rate
