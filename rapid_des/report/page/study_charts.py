"""Charts of plans, studies, servers, fleets, fault draws and runs with failures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rapid_des.report.page.charts import Bars, HorizontalBar, Plot, PlotAxis, Series
from rapid_des.report.pictures.serving import Drawn, over_time
from rapid_des.report.plan_text import differing_text
from rapid_des.report.sweep_text import differing_axes, marks
from rapid_des.report.tables import Plain, heading, seconds_text, shown
from rapid_des.units import PS_PER_S

_GIB = 2**30
_POINTS = 300
"""The largest number of points of a line that shows a distribution."""


def plan_charts(plan: Plain) -> Iterator[Bars | Plot]:
    """Yield the steps of a plan's rows, and their memory against their step."""
    rows = plan["rows"]
    names = [f"{number}: {differing_text(rows, row)}".rstrip(": ") for number, row in enumerate(rows, 1)]
    bars = [
        HorizontalBar(
            name,
            row["step_time_s"],
            seconds_text(row["step_time_s"]) + _mark(row, first=row is rows[0]),
            "after" if row is rows[0] else "before",
        )
        for name, row in zip(names, rows, strict=True)
    ]
    yield Bars(
        "step time of each layout; ~ marks those that measurements do not distinguish from the first", bars
    )
    points = [(row["step_time_s"], row["memory_bytes"] / _GIB) for row in rows]
    dots = Series("layouts", "before", points, "dots", titles=names)
    first = Series("the first", "after", points[:1], "dots", titles=names[:1], radii=[7])
    x, y = PlotAxis("step time, s"), PlotAxis("memory of the fullest GPU, GiB", low=0)
    yield Plot("memory against step time", x, y, [dots, first])


def _mark(row: Plain, *, first: bool) -> str:
    return " ~" if not first and row["told_apart"] is False else ""


def sweep_charts(plain: Plain, columns: Mapping[str, Any]) -> Iterator[Bars | Plot]:
    """Yield the points of a study over two figures with the front, and the share of each axis.

    `columns` have an entry for each point. The best points of a compared axis come first.
    """
    if len(plain["compared"]) > 1:
        axis, objective = plain["compare"], plain["objective"]
        yield Bars(
            f"the best {heading(objective)} for each {heading(axis)}",
            [_compared_bar(str(row[axis]), objective, row) for row in plain["compared"]],
        )
    across, upwards = plain["pareto"]["columns"]
    ran = np.isfinite(np.asarray(columns[across], np.float64)) & np.isfinite(
        np.asarray(columns[upwards], np.float64)
    )
    places = [
        (float(columns[across][row]) / _unit(across), float(columns[upwards][row]) / _unit(upwards))
        for row in np.flatnonzero(ran).tolist()
    ]
    titles = [f"point {number}" for number in np.asarray(columns["id"])[ran].tolist()]
    front = sorted(
        (point[across] / _unit(across), point[upwards] / _unit(upwards))
        for point in plain["pareto"]["points"]
    )
    series = [Series("points", "before", places, "dots", titles=titles)]
    if front:
        series += [Series("front: no point is better in both", "after", front)]
        series += [Series("front", "after", front, "dots", legend=False, radii=[6] * len(front))]
    if places:
        yield Plot("all points that ran", _axis(across), _axis(upwards), series)
    effects = [
        HorizontalBar(effect["axis"], effect["share"], f"{effect['share']:.1%}", effect["axis"])
        for effect in plain["main_effects"]
    ]
    if effects:
        yield Bars(
            f"share of the differences in {heading(plain['objective'])} that each axis explains", effects, 1.0
        )
    mark = marks if plain["objective"] == "step_time_s" else lambda _: ""
    best = [
        HorizontalBar(
            f"{row['id']}{mark(row)}: {differing_axes(plain, plain['best'], row)}".rstrip(": "),
            abs(row[plain["objective"]]),
            shown(plain["objective"], row[plain["objective"]]),
            "before",
        )
        for row in plain["best"]
    ]
    yield Bars(f"the best by {heading(plain['objective'])}", best)


def _compared_bar(value: str, objective: str, row: Plain) -> HorizontalBar:
    gain = "" if row["gain"] is None else f", {row['gain']:.2f} x"
    return HorizontalBar(value, abs(row[objective]), shown(objective, row[objective]) + gain, "before")


def _unit(name: str) -> int:
    return _GIB if name.endswith("_bytes") else 1


def _axis(name: str) -> PlotAxis:
    units = {"_s": ", s", "_bytes": ", GiB", "_j": ", J"}
    unit = next((text for ending, text in units.items() if name.endswith(ending)), "")
    return PlotAxis(heading(name) + unit)


def served_charts(result: Drawn, limits: Mapping[str, float]) -> Iterator[Plot]:
    """Yield latencies as shares of requests, and the load over time.

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
        PlotAxis("seconds", log=True, low=_least(lines)),
        share,
        lines,
    )
    gaps = list(_shares("per output token", 1e3 * result.tpot / PS_PER_S, _thousandfold(limits.get("tpot"))))
    yield Plot("time per output token", PlotAxis("milliseconds", low=0), share, gaps)
    times, load = over_time(result)
    for title, label, names in _LOADS:
        series = [
            Series(name, name, list(zip(times.tolist(), load[name].tolist(), strict=True))) for name in names
        ]
        yield Plot(title, PlotAxis("seconds", low=0), PlotAxis(label, low=0), series, height=240)


_LIMITS = {"first token": "ttft", "end to end": "e2e", "queue": ""}
_LOADS = (
    ("requests in the server over time", "requests", ("running", "waiting")),
    ("pages of the KV cache that are held", "%", ("KV cache",)),
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


def sample_charts(sample: Plain) -> Iterator[Plot]:
    """Yield the steps of fault draws as shares of them, with the healthy step, a plot a configuration."""
    for configuration in [each for each in sample["configurations"] if each["rows"]][:6]:
        rows = sorted(configuration["rows"], key=lambda row: row["step_time_s"])
        weights = np.cumsum([row["weight"] for row in rows])
        points = [
            (row["step_time_s"], float(share)) for row, share in zip(rows, weights / weights[-1], strict=True)
        ]
        healthy, mean = configuration["healthy_s"], configuration["step_time_s"]["mean"]
        lines = [
            Series("draws", "before", [(points[0][0], 0.0), *points]),
            Series(f"healthy: {seconds_text(healthy)}", "dp", [(healthy, 0.0), (healthy, 1.0)], dashed=True),
            Series(f"mean: {seconds_text(mean)}", "tp", [(mean, 0.0), (mean, 1.0)], dashed=True),
        ]
        title = f"{configuration['configuration']}: share of draws whose step takes no longer"
        yield Plot(
            title, PlotAxis("step time, s"), PlotAxis("share of draws", low=0, high=1), lines, height=260
        )


def goodput_charts(plain: Plain) -> Iterator[Bars]:
    """Yield where the wall time of a run goes besides steps whose results are left."""
    wall, lost = plain["wall_s"], {name: time for name, time in plain["time_s"].items() if name != "steps"}
    bars = [
        HorizontalBar(name.replace("_", " "), time, f"{time / wall:.2%}", name)
        for name, time in sorted(lost.items(), key=lambda each: -each[1])
        if time
    ]
    if bars:
        yield Bars("lost time by cause, as a share of the wall time", bars, max(lost.values()))


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
        x, y = PlotAxis("tokens/s a user (median)", log=True), PlotAxis("tokens/s a GPU", log=True)
        yield Plot("what users see against what a GPU yields", x, y, lines)
