"""The charts of pages as pictures for papers: PNG, SVG or PDF of the same descriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rapid_des.report.charts import (
    Bars,
    CellGrid,
    Chart,
    Lanes,
    Parallel,
    Plot,
    PlotAxis,
    Series,
    Span,
    unit_of,
    visible,
)
from rapid_des.report.colours import BUSY, colour
from rapid_des.report.pictures import check_picture, save
from rapid_des.report.pictures.numbered import number_dots

_WIDTH, _DOT = 7.0, 4.0
"""The width of a chart in inches, and the radius of a dot whose size is not stated, as on pages."""
_WIDE = 12.0
"""The width in inches of a chart that stands alone."""
_LEAST, _EDGED = 0.05, 3.0
"""The widths in points below which boxes of lanes are drawn together, and have no edge."""
_LETTER = 3.7
"""The width in points of a letter in a box."""
_NAME = 4.6
"""The width in points of a letter of a legend."""
_BRIGHT = 1.5
"""The sum of red, green and blue from which text on a colour is black instead of white."""


def draw_charts(charts: Iterable[Chart], path: Path | None, *, title: str) -> Any:
    """Return charts as a figure, written if there is a path; those that only a page has are left out.

    >>> plot = Plot("a", PlotAxis("s"), PlotAxis("GiB"), [Series("x", "compute", [(0, 1), (1, 2)])])
    >>> draw_charts([plot], None, title="all").axes[0].get_ylabel()
    'GiB'
    """
    shown = [chart for chart in charts if isinstance(chart, Plot | Bars | Lanes | Parallel | CellGrid)]
    columns = min(max(len(shown), 1), 2)
    rows = [shown[first : first + columns] for first in range(0, len(shown), columns)] or [[]]
    tall = [max(map(_height, row), default=3.0) for row in rows]
    size = (_WIDE if columns == 1 else columns * _WIDTH, sum(tall) + 0.4)
    figure = _figure(path, title, shown, figsize=size, layout="constrained")
    places = figure.subplots(len(rows), columns, squeeze=False, height_ratios=tall).ravel()
    for axes, chart in zip(places, shown, strict=False):
        axes.set_title(chart.title, fontsize=9)
        _DRAWN[type(chart)](axes, chart)
    for axes in places[len(shown) :]:
        axes.axis("off")
    if len(shown) == 1:
        title = f"{title}: {places[0].get_title()}"
        places[0].set_title("")
    figure.suptitle(title, fontsize=11)
    _number(figure, places, shown)
    return save(figure, path, dpi=130)


def _figure(path: Path | None, title: str, charts: Sequence[Chart], **options: Any) -> Any:
    check_picture(path)
    from rapid_des.report.pictures.interactive import ChartFigure

    return ChartFigure(title, charts, **options)


def _height(chart: Any) -> float:
    """Return the height of a chart in inches."""
    if isinstance(chart, Plot):
        lines = sum(title.count("\n") + 1 for title in _titles(chart))
        return max(chart.height / 90, 0.7 + 0.125 * lines)
    if isinstance(chart, Parallel):
        return 3.6
    rows = chart.lanes if isinstance(chart, Lanes) else chart.rows if isinstance(chart, CellGrid) else None
    return 1.2 + 0.27 * len(chart.bars if rows is None else rows)


def _draw_plot(axes: Any, plot: Plot) -> None:
    for series in plot.series:
        if series.points:
            _draw_series(axes, series)
    for axis, name in ((plot.x, "x"), (plot.y, "y")):
        _set_axis(axes, axis, name)
    axes.grid(visible=True, alpha=0.3)
    named = [series.kind for series in plot.series if series.legend and series.points]
    if len(named) > 1 or "dots" in named:
        place: dict[str, Any] = {"loc": "upper left"}
        place |= {} if plot.numbered else {"bbox_to_anchor": (1.0, 1.0), "frameon": False}
        axes.legend(fontsize=8, **place)


def _draw_series(axes: Any, series: Series) -> None:
    xs, ys = zip(*series.points, strict=True)
    style = {"color": colour(series.colour) if series.colour else "black"}
    style |= {"label": series.name} if series.legend and series.name else {}
    if series.kind == "dots":
        sizes = [(2 * radius) ** 2 for radius in series.radii or [_DOT] * len(xs)]
        axes.scatter(xs, ys, s=sizes, alpha=0.8, edgecolors="white", linewidths=0.5, zorder=3, **style)
    elif series.kind == "area":
        axes.fill_between(xs, series.base, ys, linewidth=0, **style)
    else:
        axes.plot(xs, ys, linestyle="--" if series.dashed else "-", **style)
        if not series.legend:
            axes.annotate(series.name, (xs[-1], ys[-1]), fontsize=7, ha="right", va="bottom")


def _set_axis(axes: Any, axis: PlotAxis, name: str) -> None:
    axes.set(**{f"{name}label": axis.label, **({f"{name}scale": "log"} if axis.log else {})})
    limits = {side: value for side, value in (("left", axis.low), ("right", axis.high)) if value is not None}
    if name == "y":
        limits = {{"left": "bottom", "right": "top"}[side]: value for side, value in limits.items()}
    getattr(axes, f"set_{name}lim")(**limits)


def _titles(plot: Plot) -> list[str]:
    """Return the texts that are listed beside a plot, one a dot."""
    return [title for series in plot.series for title in series.titles] if plot.numbered else []


def _number(figure: Any, places: Sequence[Any], charts: Sequence[Any]) -> None:
    """Write numbers beside the dots of the plots that ask for it, and list their titles beside them."""
    numbered = [
        (axes, chart)
        for axes, chart in zip(places, charts, strict=False)
        if isinstance(chart, Plot) and chart.numbered
    ]
    for axes, plot in numbered:
        listed = [f"{number}  {title}" for number, title in enumerate(_titles(plot), start=1)]
        text = "\n".join(entry.replace("\n", "\n      ") for entry in listed)
        axes.text(1.02, 1, text, fontsize=6.5, va="top", linespacing=1.35, transform=axes.transAxes)
    for axes, plot in numbered:
        number_dots(
            figure, axes, [point for series in plot.series if series.titles for point in series.points]
        )


def _draw_bars(axes: Any, bars: Bars) -> None:
    for place, bar in enumerate(bars.bars):
        end = 0.0
        for category, value in bar.parts or [(bar.colour, bar.value)]:
            axes.barh(place, value, left=end, color=colour(category), edgecolor="white", linewidth=0.5)
            end += value
        if bar.interval is not None:
            axes.plot(bar.interval, (place, place), "k|-", markersize=8, linewidth=1.2)
            end = max(end, bar.interval[1])
        axes.text(end, place, f" {bar.text}", va="center", fontsize=8)
    axes.set_yticks(range(len(bars.bars)), [bar.name for bar in bars.bars], fontsize=8)
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.set_xlim(0, 1.3 * (bars.most or max((bar.value for bar in bars.bars), default=1.0) or 1.0))
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    _legend(axes, bars.legend)


def _draw_lanes(axes: Any, lanes: Lanes) -> None:
    unit, name = unit_of(lanes.end)
    for place, lane in enumerate(lanes.lanes):
        _draw_lane(axes, place, lane.spans, lanes)
    axes.set_yticks(range(len(lanes.lanes)), [lane.name for lane in lanes.lanes], fontsize=8)
    axes.set_ylim(len(lanes.lanes) - 0.5, -0.5)
    axes.set_xlim(lanes.begin / unit, lanes.end / unit)
    axes.set_xlabel(f"time, {name}")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    _legend(axes, lanes.legend)


def _draw_lane(axes: Any, place: int, spans: Sequence[Span], lanes: Lanes) -> None:
    """Draw the boxes of a lane, with the first words of those names that fit."""
    unit, scale = unit_of(lanes.end)[0], 72 * (_WIDE - 2) / max(lanes.end - lanes.begin, 1)
    alike: dict[str, list[Span]] = {}
    for span in visible(spans, scale, _LEAST):
        alike.setdefault(span.colour, []).append(span)
    for category, same in alike.items():
        boxes = [(span.start / unit, max(span.length, _LEAST / scale) / unit) for span in same]
        edges = [0.3 if span.length * scale > _EDGED else 0.0 for span in same]
        look = {"facecolors": colour(category), "edgecolors": "white", "linewidths": edges}
        axes.broken_barh(boxes, (place - 0.42, 0.84), **look)
        style = {
            "ha": "center",
            "va": "center_baseline",
            "fontsize": 6,
            "color": _ink(category),
            "clip_on": True,
        }
        for span in same:
            short = span.name.split(" ")[0]
            if len(short) + 0.5 <= span.length * scale / _LETTER:
                axes.text((span.start + span.length / 2) / unit, place, short, **style)


def _draw_parallel(axes: Any, chart: Parallel) -> None:
    places = range(len(chart.axes))
    for line in chart.lines:
        axes.plot(places, line.places, color=BUSY[line.level], linewidth=1.2)
    for place, (_, ticks) in enumerate(chart.axes):
        axes.axvline(place, color="black", linewidth=0.8)
        for height, text in ticks:
            axes.text(place + 0.02, height, text, fontsize=7, va="center")
    axes.set_xticks(places, [label for label, _ in chart.axes], fontsize=8)
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    _scale(axes, chart.scale)


def _draw_grid(axes: Any, grid: CellGrid) -> None:
    for place, row in enumerate(grid.cells):
        for column, level in enumerate(row):
            if level is not None:
                axes.barh(place, 1, left=column, height=0.9, color=BUSY[level])
    axes.set_yticks(range(len(grid.rows)), grid.rows, fontsize=8)
    axes.invert_yaxis()
    axes.set_xticks([column + 0.5 for column in range(len(grid.columns))], grid.columns, fontsize=8)
    axes.set_xlabel(grid.across)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    _scale(axes, grid.scale)


def _scale(axes: Any, texts: Sequence[str]) -> None:
    """Write the texts of the colours of utilisation, or of nearness to the best, under a chart."""
    _legend(axes, [(text, shade) for text, shade in zip(texts, BUSY, strict=False) if text])


def _ink(category: str) -> str:
    """Return the colour of text on a category's colour."""
    return "black" if sum(bytes.fromhex(colour(category)[1:])) / 255 > _BRIGHT else "white"


def _legend(axes: Any, names: Sequence[tuple[str, str]]) -> None:
    """Write names beside their colours under a chart."""
    if names:
        from matplotlib.patches import Patch

        handles = [
            Patch(color=category if category in BUSY else colour(category), label=name)
            for name, category in names
        ]
        # In letters: the labels and the name of an axis come first.
        under = 4.8 if axes.get_xlabel() else 2.8 if len(axes.get_xticks()) else 1.0
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "borderaxespad": under}
        room = 72 * axes.figure.get_figwidth() / axes.get_subplotspec().get_gridspec().ncols
        columns = int(room / (_NAME * max(len(name) for name, _ in names) + 40))
        axes.legend(handles=handles, ncols=min(max(columns, 1), 6), fontsize=8, frameon=False, **place)


_DRAWN: Mapping[type, Callable[[Any, Any], None]] = {
    Plot: _draw_plot,
    Bars: _draw_bars,
    Lanes: _draw_lanes,
    Parallel: _draw_parallel,
    CellGrid: _draw_grid,
}
