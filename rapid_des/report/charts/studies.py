"""Charts of plans, studies, fault draws and runs with failures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rapid_des.arrays import levels_of
from rapid_des.report.charts import (
    Bars,
    CellGrid,
    Chart,
    HorizontalBar,
    Parallel,
    ParallelLine,
    Plot,
    PlotAxis,
    Series,
    Tiles,
)
from rapid_des.report.charts.breakdown import step_bars
from rapid_des.report.charts.tiles import (
    goodput_tiles,
    plan_tiles,
    sample_tiles,
    sweep_tiles,
)
from rapid_des.report.colours import BUSY
from rapid_des.report.plan_text import differing_text
from rapid_des.report.sweep_text import differing_axes, marks
from rapid_des.report.tables import Plain, heading, seconds_text, shown

_GIB = 2**30


def plan_charts(plan: Plain) -> Iterator[Tiles | Bars | Plot]:
    """Yield the steps of a plan's rows, and their memory against their step."""
    yield plan_tiles(plan)
    rows = plan["rows"]
    names = [f"{number}: {differing_text(rows, row)}".rstrip(": ") for number, row in enumerate(rows, 1)]
    steps = [
        (name, row, seconds_text(row["step_time_s"]) + _mark(row, first=row is rows[0]))
        for name, row in zip(names, rows, strict=True)
    ]
    title = "step time of each layout; ~ marks those that measurements do not distinguish from the first"
    yield step_bars(title, steps)
    points = [(row["step_time_s"], row["memory_bytes"] / _GIB) for row in rows]
    dots = Series("layouts", "before", points, "dots", titles=names)
    first = Series("the first", "after", points[:1], "dots", titles=names[:1], radii=[7])
    x, y = PlotAxis("step time, s"), PlotAxis("memory of the fullest GPU, GiB", low=0)
    yield Plot("memory against step time", x, y, [dots, first])


def _mark(row: Plain, *, first: bool) -> str:
    return " ~" if not first and row["told_apart"] is False else ""


def sweep_charts(plain: Plain, columns: Mapping[str, Any]) -> Iterator[Chart]:
    """Yield the points of a study over two figures with the front, over all axes, and the share of each axis.

    `columns` have an entry for each point. The best points of a compared axis come first.
    """
    yield sweep_tiles(plain)
    if len(plain["compared"]) > 1:
        axis, objective = plain["compare"], plain["objective"]
        title = f"the best {heading(objective)} for each {heading(axis)}"
        yield _ranked(title, plain, [(str(row[axis]), row, _gain(row)) for row in plain["compared"]])
    yield from _front(plain, columns)
    yield from _parallel(plain, columns)
    yield from _pair(plain, columns)
    yield from _effects(plain)
    yield _best(plain)


def _front(plain: Plain, columns: Mapping[str, Any]) -> Iterator[Plot]:
    """Yield all points that ran over two figures, with the front."""
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


def _effects(plain: Plain) -> Iterator[Bars]:
    """Yield how much of the differences each axis explains."""
    effects = [
        HorizontalBar(effect["axis"], effect["share"], f"{effect['share']:.1%}", effect["axis"])
        for effect in plain["main_effects"]
    ]
    if effects:
        yield Bars(
            f"share of the differences in {heading(plain['objective'])} that each axis explains", effects, 1.0
        )


def _best(plain: Plain) -> Bars:
    """Return the best points, each with what differs from the first."""
    mark = marks if plain["objective"] == "step_time_s" else lambda _: ""
    best = [
        (f"{row['id']}{mark(row)}: {differing_axes(plain, plain['best'], row)}".rstrip(": "), row, "")
        for row in plain["best"]
    ]
    return _ranked(f"the best by {heading(plain['objective'])}", plain, best)


_NEARNESS = ["farthest from the best", *[""] * (len(BUSY) - 2), "nearest to the best"]
_MOST_COLUMNS = 24
_LINES = 1_000
"""The largest number of lines of parallel coordinates; more show the best and some of all others."""


def _parallel(plain: Plain, columns: Mapping[str, Any]) -> Iterator[Parallel]:
    """Yield the points as lines over the axes of the study and its objective, the best on top."""
    objective = plain["objective"]
    axes = [each["axis"] for each in plain["main_effects"] if each["axis"] in columns]
    values = np.asarray(columns[objective], np.float64)
    ran = np.flatnonzero(np.isfinite(values))
    if len(axes) < 2 or len(ran) < 3:  # noqa: PLR2004 - a plot of two figures shows as much
        return
    best = float(plain["best"][0][objective])
    order = ran[np.argsort(-np.abs(values[ran] - best), kind="stable")]  # the best last
    order = np.concatenate(
        [order[: -_LINES // 2][:: max(1, 2 * len(order) // _LINES)], order[-_LINES // 2 :]]
    )
    named, places = [], []
    for axis in axes:
        texts = [str(value) for value in np.asarray(columns[axis])[order].tolist()]
        known = sorted(set(texts), key=_by_number)
        at = {text: (n + 0.5) / len(known) for n, text in enumerate(known)}
        named.append((heading(axis), [(at[text], text) for text in known]))
        places.append([at[text] for text in texts])
    low, high = float(values[ran].min()), float(values[ran].max())
    span = (high - low) or 1.0
    places.append(((values[order] - low) / span).tolist())
    named.append((heading(objective), [(0.0, shown(objective, low)), (1.0, shown(objective, high))]))
    away = np.abs(values[order] - best) / max(float(np.abs(values[ran] - best).max()), 1e-300)
    levels = np.clip(len(BUSY) - 1 - np.floor(away * len(BUSY)), 0, len(BUSY) - 1).astype(np.int64)
    names = np.asarray(columns["id"])[order].tolist()
    lines = [
        ParallelLine(row, f"point {name}: {shown(objective, value)}", level)
        for *row, name, value, level in zip(
            *places, names, values[order].tolist(), levels.tolist(), strict=True
        )
    ]
    yield Parallel("each point as a line over the axes of the study", named, lines, _NEARNESS)


def _by_number(text: str) -> tuple[bool, float, str]:
    """Return the order of an axis' values: numbers by size, then texts.

    >>> sorted(["8", "16", "a"], key=_by_number)
    ['8', '16', 'a']
    """
    try:
        return False, float(text), text
    except ValueError:
        return True, 0.0, text


def _gain(row: Plain) -> str:
    return "" if row["gain"] is None else f", {row['gain']:.2f} x"


def _unit(name: str) -> int:
    return _GIB if name.endswith("_bytes") else 1


def _axis(name: str) -> PlotAxis:
    units = {"_s": ", s", "_bytes": ", GiB", "_j": ", J"}
    unit = next((text for ending, text in units.items() if name.endswith(ending)), "")
    return PlotAxis(heading(name) + unit)


def _ranked(title: str, plain: Plain, rows: Iterable[tuple[str, Plain, str]]) -> Bars:
    """Return points by what a study ranks by: names, figures, and what stands behind them."""
    objective = plain["objective"]
    texts = [(name, row, shown(objective, row[objective]) + more) for name, row, more in rows]
    if objective == "step_time_s":
        return step_bars(title, texts)
    bars = [HorizontalBar(name, abs(row[objective]), text, "before") for name, row, text in texts]
    return Bars(title, bars)


def _pair(plain: Plain, columns: Mapping[str, Any]) -> Iterator[CellGrid]:
    """Yield the best objective for each pair of values of the two axes that interact most."""
    if not plain["interactions"]:
        return
    upwards, across = plain["interactions"][0]["axes"]
    values = np.asarray(columns[plain["objective"]], np.float64)
    (rows, row), (places, place) = (levels_of(columns[axis]) for axis in (upwards, across))
    least = np.full((len(rows), len(places)), np.nan)
    away = np.abs(values - float(plain["best"][0][plain["objective"]]))
    np.fmin.at(least, (row, place), away)
    levels = np.floor(least / max(float(np.nanmax(least)), 1e-300) * len(BUSY))
    cells = [
        [None if np.isnan(level) else max(len(BUSY) - 1 - int(level), 0) for level in line] for line in levels
    ]
    objective = heading(plain["objective"])
    titles = [
        [f"{heading(upwards)} {a}, {heading(across)} {b}: {objective} {distance:.4g} from the best"
         for b, distance in zip(places, line, strict=True)]
        for a, line in zip(rows, least, strict=True)
    ]  # fmt: skip
    title = f"the best {objective} by the two axes that interact most; empty: none ran"
    names = [f"{heading(upwards)} {value}" for value in rows]
    shown_columns = [str(value) for value in places] if len(places) <= _MOST_COLUMNS else []
    yield CellGrid(title, names, cells, titles, heading(across), _NEARNESS, shown_columns)


def sample_page(sample: Plain) -> Iterator[Tiles | Bars | Plot]:
    """Yield what a page of fault draws shows: what they cost, and their steps."""
    yield sample_tiles(sample)
    yield from sample_charts(sample)


_MOST_PLOTS = 6


def sample_charts(sample: Plain) -> Iterator[Bars | Plot]:
    """Yield the steps of fault draws as shares of them, with the healthy step, a plot a configuration.

    Many configurations are bars, the fastest healthy step first: what draws add to it.
    """
    ran = [each for each in sample["configurations"] if each["rows"]]
    if len(ran) > _MOST_PLOTS:
        yield _slowed(sorted(ran, key=lambda each: (each["healthy_s"], each["configuration"])))
        return
    for configuration in ran:
        rows = sorted(configuration["rows"], key=lambda row: row["step_time_s"])
        weights = np.cumsum([row["weight"] for row in rows])
        shares = [0.0, *(weights / weights[-1]).tolist()]
        stairs = [
            (row["step_time_s"], share)
            for row, *ends in zip(rows, shares, shares[1:], strict=False)
            for share in ends
        ]
        healthy, mean = configuration["healthy_s"], configuration["step_time_s"]["mean"]
        lines = [
            Series("draws", "before", stairs),
            Series(f"healthy: {seconds_text(healthy)}", "dp", [(healthy, 0.0), (healthy, 1.0)], dashed=True),
            Series(f"mean: {seconds_text(mean)}", "tp", [(mean, 0.0), (mean, 1.0)], dashed=True),
        ]
        title = f"{configuration['configuration']}: share of draws whose step takes no longer"
        yield Plot(
            title, PlotAxis("step time, s"), PlotAxis("share of draws", low=0, high=1), lines, height=260
        )


def _slowed(ran: Sequence[Plain]) -> Bars:
    """Return the healthy step of configurations, and what draws of faults add to it on average."""
    bars = []
    for each in ran:
        healthy, spread = each["healthy_s"], each["step_time_s"]
        slower, worst = (spread[name] / healthy - 1 for name in ("mean", "worst"))
        text = f"{seconds_text(spread['mean'])}: {slower:+.1%}, worst {worst:+.1%}"
        parts = [("before", healthy), ("after", max(spread["mean"] - healthy, 0.0))]
        ends = (healthy, spread["worst"])
        bars.append(HorizontalBar(each["configuration"], spread["mean"], text, "before", parts, ends))
    most = max(bar.interval[1] for bar in bars if bar.interval)
    legend = [
        ("healthy step", "before"),
        ("added by faults on average; the line ends at the worst draw", "after"),
    ]
    return Bars("the step of each configuration with faults", bars, most, legend)


def goodput_charts(
    plain: Plain, goodputs: Sequence[float] = (), incidents: Iterable[Plain] = ()
) -> Iterator[Tiles | Bars | Plot]:
    """Yield where the wall time of a run goes, how far goodputs of replications spread, and incidents.

    `incidents` are those of one replication.
    """
    yield goodput_tiles(plain)
    wall, lost = plain["wall_s"], {name: time for name, time in plain["time_s"].items() if name != "steps"}
    bars = [
        HorizontalBar(name.replace("_", " "), time, f"{time / wall:.2%}", name)
        for name, time in sorted(lost.items(), key=lambda each: -each[1])
        if time
    ]
    if bars:
        yield Bars("lost time by cause, as a share of the wall time", bars, max(lost.values()))
    if len(goodputs) > 1:
        yield _spread([100 * share for share in goodputs])
    if listed := list(incidents):
        yield _incidents(listed)


def _spread(values: Sequence[float]) -> Plot:
    """Return how many replications have which goodput, in percent."""
    counts, edges = np.histogram(values, bins=min(40, max(8, len(values) // 8)))
    ends = zip(edges, edges[1:], counts.tolist(), strict=False)
    stairs = [(float(edge), float(count)) for low, high, count in ends for edge in (low, high)]
    mean = sum(values) / len(values)
    series = [
        Series("replications", "before", [(stairs[0][0], 0.0), *stairs, (stairs[-1][0], 0.0)]),
        Series(f"mean: {mean:.2f} %", "after", [(mean, 0.0), (mean, float(counts.max()))], dashed=True),
    ]
    x, y = PlotAxis("goodput, %"), PlotAxis("replications", low=0)
    return Plot("how far goodputs of replications spread", x, y, series, height=240)


def _incidents(incidents: Sequence[Plain]) -> Plot:
    """Return the incidents of a replication by when they were and what they cost."""
    series = []
    for name in dict.fromkeys(each["class"] for each in incidents):
        mine = [each for each in incidents if each["class"] == name]
        points = [(each["at_s"] / 86_400, each["cost_s"] / 3600) for each in mine]
        series.append(Series(name, name, points, "dots", titles=[name] * len(mine)))
    x, y = PlotAxis("time, days", low=0), PlotAxis("cost of the incident, hours", low=0)
    return Plot("incidents of the first replication: when they were, and what they cost", x, y, series)
