"""Capacities in words, and what users see against what a GPU yields as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rapid_des.report.tables import Column, Part, Table, columns, counted
from rapid_des.studies.capacity import Demand, Fleets, Layout, LoadPoint


def front(points: Sequence[LoadPoint]) -> tuple[LoadPoint, ...]:
    """Return the points that no other beats in both, by rising interactivity.

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
    """Draw interactivity against what a GPU yields, a line a layout, the front thick: PNG, SVG or PDF."""
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


def capacity_report(fleets: Fleets, demand: Demand, title: str) -> Iterator[Part]:
    """Yield the fleets as a table, and the layouts that were refused."""
    yield title
    asked = f"{demand.share:.0%} of {demand.requests:,} requests within {demand.slo.text}"
    yield f"{asked}; one replica of each layout" + (", interrupted" if fleets.interrupted else "")
    asked_for = (
        *(
            (Column("fleet", None, lambda gpus: counted(gpus, "GPU") if gpus else "–"),)
            if fleets.load
            else ()
        ),
        *((Column("cost", "cost/Mtoken", _cost),) if fleets.price is not None else ()),
    )
    yield Table(
        "",
        (
            *columns("layout", "gpus"),
            Column("rate", "requests/s", lambda rate: f"{rate:.3g}"),
            Column("tokens", "tokens/s/GPU", lambda tokens: f"{tokens:,.0f}"),
            Column("joules", "J/token", lambda joules: "–" if joules is None else f"{joules:.3g}"),
            Column("limit", "limited by"),
            *asked_for,
        ),
        [_row(row, fleets) for row in fleets.rows],
    )
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


def _cost(cost: float | None) -> str:
    return "–" if cost is None else f"{cost:.3f}"
