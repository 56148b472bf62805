"""The report of capacities, and a picture of speed for users against throughput of a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rapid_des.report.tables import Part, Table, columns, counted
from rapid_des.studies.attainment import LONG
from rapid_des.studies.capacity import Fleets, Layout, ServerLoad
from rapid_des.studies.load_curve import LoadPoint


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
    asked = f"{demand.share:.0%} of requests within {demand.slo.text}"
    drawn = f"runs of {demand.requests:,} and {LONG * demand.requests:,} requests, 95% intervals"
    yield f"{asked}; one replica of each layout; {drawn}" + (", interrupted" if fleets.interrupted else "")
    names = columns("layout", "gpus", rate="requests/s", tokens=("tokens/s/GPU", ",.0f"))
    names += columns(joules=("J/token", ".3g"), limit="limited by")
    if fleets.load:
        names += columns(fleet="fleet")
        names += columns(held="with failures") if demand.reliability else ()
    if fleets.price is not None:
        names += columns(cost=("cost/Mtoken", ".3f"))
    yield Table("", names, [_row(row, fleets) for row in fleets.rows])
    if any(map(fleets.as_good, fleets.rows[1:])):
        yield "~ may be as good as the first: the intervals meet; more --requests narrow them"
    yield from (f"{text} cannot serve: {why}" for text, why in fleets.refused)


def _row(row: Layout, fleets: Fleets) -> dict[str, Any]:
    fleet = row.fleet(fleets.load, fleets.price) if fleets.load else {}
    cost = None
    if fleets.price is not None:
        alone = row.cost_per_million_tokens(fleets.price)
        cost = fleet.get("cost_per_million_tokens") if fleets.load else alone
    return {
        "layout": row.name + " ~" * (row is not fleets.rows[0] and fleets.as_good(row)),
        "gpus": row.gpus,
        "rate": f"{row.rate:.3g}{_between(row.interval, '.3g')}",
        "tokens": row.output_tokens_per_gpu,
        "joules": None if row.energy is None else row.energy.joules_per_output_token,
        "limit": row.broken or "throughput",
        "fleet": counted(fleet["gpus"], "GPU") + _between(fleet["gpus_interval"], ",") if fleet else None,
        "held": counted(fleet["with_failures"]["gpus"], "GPU") if "with_failures" in fleet else None,
        "cost": cost,
    }


def _between(interval: Sequence[float | None], form: str) -> str:
    """Return an interval in parentheses, or nothing if its ends are alike; None: there is no upper end."""
    low, high = ("any number" if end is None else format(end, form) for end in interval)
    return f" ({low} to {high})" if low != high else ""
