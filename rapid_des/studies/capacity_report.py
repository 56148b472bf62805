"""Capacities in words, and what users see against what a GPU yields as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

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


def capacity_lines(fleets: Fleets, demand: Demand, title: str) -> Iterator[str]:
    """Yield the lines of a report."""
    yield title
    asked = f"{demand.share:.0%} of {demand.requests:,} requests within {demand.slo.text}"
    yield f"  {asked}; one replica of each layout" + (", interrupted" if fleets.interrupted else "")
    yield ""
    wide = max(14, 2 + max(len(row.name) for row in fleets.rows))
    heads = f"  {'layout':{wide}}{'GPUs':>6}{'requests/s':>12}{'tokens/s/GPU':>14}{'J/token':>9}"
    heads += f"{'limited by':>12}"
    yield heads + (f"{'fleet':>12}" if fleets.load else "") + (f"{'cost/Mtoken':>13}" if fleets.price else "")
    for row in fleets.rows:
        yield f"  {row.name:{wide}}" + _line(row, fleets)
    for text, why in fleets.refused:
        yield f"  {text:{wide}}  -  {why}"


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count != 1)}"


def _line(row: Layout, fleets: Fleets) -> str:
    joules = "–" if row.energy is None else f"{row.energy.joules_per_output_token:.3g}"
    line = f"{row.gpus:>6}{row.rate:>12.3g}{row.output_tokens_per_gpu:>14,.0f}{joules:>9}"
    line += f"{row.broken or 'throughput':>12}"
    fleet = row.fleet(fleets.load, fleets.price) if fleets.load else {}
    if fleets.load:
        line += f"{_gpus(fleet['gpus']):>12}" if fleet else f"{'–':>12}"
    if fleets.price is not None:
        alone = row.cost_per_million_tokens(fleets.price)
        cost = fleet.get("cost_per_million_tokens") if fleets.load else alone
        line += f"{'–' if cost is None else format(cost, '.3f'):>13}"
    return line
