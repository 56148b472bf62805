"""Charts of servers: latencies, load over time, and the highest rates of layouts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rapid_des.report.charts import Bars, HorizontalBar, Plot, PlotAxis, Series, Tiles
from rapid_des.report.charts.tiles import capacity_tiles, layout_name, served_tiles
from rapid_des.report.pictures.serving import Drawn, over_time
from rapid_des.report.tables import Plain
from rapid_des.units import PS_PER_S

_POINTS = 300
"""The largest number of points of a line that shows a distribution."""


def served_page(result: Drawn, limits: Mapping[str, float], plain: Plain) -> Iterator[Tiles | Plot]:
    """Yield what a page of a server shows: whether it keeps its limits, and its charts."""
    yield served_tiles(plain, limits)
    yield from served_charts(result, limits)


def served_charts(result: Drawn, limits: Mapping[str, float]) -> Iterator[Plot]:
    """Yield latencies as shares of requests and over time, and the load over time.

    `limits` are the SLO's in seconds: `ttft`, `tpot`, `e2e`.
    """
    waits = {"first token": result.ttft, "end to end": result.e2e, "queue": result.queue}
    lines = [
        line
        for name, times in waits.items()
        for line in _shares(name, times / PS_PER_S, limits.get(_LIMITS[name]))
    ]
    if not len(result.ttft):
        return
    share = PlotAxis("share of requests", low=0, high=1)
    yield Plot(
        "latencies: the share of requests that wait no longer",
        PlotAxis("time, s", log=True, low=_least(lines)),
        share,
        lines,
    )
    gaps = list(_shares("per output token", 1e3 * result.tpot / PS_PER_S, _thousandfold(limits.get("tpot"))))
    yield Plot("time per output token", PlotAxis("time per output token, ms", low=0), share, gaps)
    yield from _latencies(result, limits)
    times, load = over_time(result)
    for title, label, names in _LOADS:
        series = [
            Series(name, name, list(zip(times.tolist(), load[name].tolist(), strict=True))) for name in names
        ]
        yield Plot(title, PlotAxis("time, s", low=0), PlotAxis(label, low=0), series, height=240)


_DOTS = 2_000
"""The largest number of requests that are dots over time."""


def _latencies(result: Drawn, limits: Mapping[str, float]) -> Iterator[Plot]:
    """Yield the first token and the time per output token of requests by arrival, with their limits."""
    arrival = np.asarray(result.requests["arrival"], np.float64) / PS_PER_S
    kept = np.linspace(0, len(arrival) - 1, min(len(arrival), _DOTS)).astype(np.int64)
    for name, key, times, unit in (
        ("first token", "ttft", np.asarray(result.ttft, np.float64) / PS_PER_S, "s"),
        ("per output token", "tpot", 1e3 * np.asarray(result.tpot, np.float64) / PS_PER_S, "ms"),
    ):
        if len(times) != len(arrival):
            continue
        points = list(zip(arrival[kept].tolist(), times[kept].tolist(), strict=True))
        series = [Series(name, name, points, "dots", radii=[2.5] * len(points))]
        if key in limits:
            limit = limits[key] * (1 if unit == "s" else 1e3)
            ends = [(float(arrival.min()), limit), (float(arrival.max()), limit)]
            series.append(Series(f"limit of {name}", "", ends, dashed=True))
        x, y = PlotAxis("arrival, s", low=0), PlotAxis(f"{name}, {unit}", low=0)
        yield Plot(f"{name} of each request, by its arrival", x, y, series, height=240)


_LIMITS = {"first token": "ttft", "end to end": "e2e", "queue": ""}
_LOADS = (
    ("requests in the server over time", "requests", ("running", "waiting")),
    ("pages of the KV cache that are held", "pages held, %", ("KV cache",)),
    ("tokens decoded over time", "tokens/s", ("tokens/s",)),
)


def _thousandfold(value: float | None) -> float | None:
    return None if value is None else 1e3 * value


def _least(lines: Sequence[Series]) -> float:
    """Return the start of a logarithmic axis: waits below a millisecond stand there."""
    values = [x for line in lines for x, _ in line.points]
    return max(1e-3, min(values, default=1e-3))


def _shares(name: str, times: Any, limit: float | None) -> Iterator[Series]:
    """Yield the line of a distribution, and its limit."""
    ordered = np.sort(np.asarray(times, np.float64))
    if not len(ordered):
        return
    at = np.unique(np.linspace(0, len(ordered) - 1, _POINTS).astype(np.int64))
    shares = (at + 1) / len(ordered)
    yield Series(name, name, list(zip(ordered[at].tolist(), shares.tolist(), strict=True)))
    if limit is not None:
        yield Series(f"limit of {name}", name, [(limit, 0.0), (limit, 1.0)], dashed=True)


def capacity_page(plain: Plain) -> Iterator[Tiles | Bars | Plot]:
    """Yield what a page of capacities shows: the best layout, the highest rates, and curves."""
    yield capacity_tiles(plain)
    bars = []
    for row in plain.get("rows") or ():
        low, high = row["rate_interval_per_s"]
        text = f"{row['rate_per_s']:.3g} ({low:.3g} to {high:.3g})"
        ends = (low, max(high, low))
        bars.append(HorizontalBar(layout_name(row), row["rate_per_s"], text, "before", interval=ends))
    most = max((bar.interval[1] for bar in bars if bar.interval), default=0.0)
    yield Bars("the highest rate of each layout, requests/s, with 95% intervals as lines", bars, most)
    yield from capacity_charts(plain)


def capacity_charts(plain: Plain) -> Iterator[Plot]:
    """Yield what users see against what a GPU yields, if the curves were simulated."""
    points = plain.get("points") or ()
    if points:
        lines = []
        for name in dict.fromkeys(point["layout"] for point in points):
            mine = [point for point in points if point["layout"] == name]
            places = [(point["tokens_per_user"], point["tokens_per_gpu"]) for point in mine]
            lines += [Series(name, name, places)]
            titles = [f"{name}: {point['concurrency']} requests at a time" for point in mine]
            lines += [Series("", name, places, "dots", titles=titles, legend=False)]
        best = [(point["tokens_per_user"], point["tokens_per_gpu"]) for point in plain["front"]]
        lines.append(Series("front: no layout is better in both", "", best, dashed=True))
        x, y = PlotAxis("tokens/s a user (median)", log=True), PlotAxis("tokens/s a GPU", log=True)
        yield Plot("what users see against what a GPU yields", x, y, lines)
