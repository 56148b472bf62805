"""The charts of pages as pictures for papers: PNG, SVG or PDF of the same descriptions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rapid_des.report.colours import colour
from rapid_des.report.page.charts import Bars, Chart, Plot, PlotAxis, Series
from rapid_des.report.pictures import new_figure, save

_DOT = 4.0
"""The radius of a dot whose size is not stated, as on pages."""


def draw_charts(charts: Iterable[Chart], path: Path | None, *, title: str) -> Any:
    """Return plots and bars as a figure, written if there is a path; other charts are left out.

    >>> plot = Plot("a", PlotAxis("s"), PlotAxis("GiB"), [Series("x", "compute", [(0, 1), (1, 2)])])
    >>> draw_charts([plot], None, title="all").axes[0].get_ylabel()
    'GiB'
    """
    shown = [chart for chart in charts if isinstance(chart, Plot | Bars)]
    columns = min(max(len(shown), 1), 2)
    rows = max(-(-len(shown) // columns), 1)
    figure = new_figure(path, figsize=(7 * columns, 3.6 * rows + 0.4), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, chart in zip(places, shown, strict=False):
        axes.set_title(chart.title, fontsize=9)
        if isinstance(chart, Plot):
            _draw_plot(axes, chart)
        else:
            _draw_bars(axes, chart)
    for axes in places[len(shown) :]:
        axes.axis("off")
    figure.suptitle(title, fontsize=11)
    return save(figure, path, dpi=120)


def _draw_plot(axes: Any, plot: Plot) -> None:
    for series in plot.series:
        if series.points:
            _draw_series(axes, series)
    for axis, name in ((plot.x, "x"), (plot.y, "y")):
        _set_axis(axes, axis, name)
    axes.grid(visible=True, alpha=0.3)
    if any(series.legend and series.points for series in plot.series):
        axes.legend(fontsize=8)


def _draw_series(axes: Any, series: Series) -> None:
    xs, ys = zip(*series.points, strict=True)
    style = {"color": colour(series.colour) if series.colour else "black"}
    style |= {"label": series.name} if series.legend and series.name else {}
    if series.kind == "dots":
        axes.scatter(xs, ys, s=[(2 * radius) ** 2 for radius in series.radii or [_DOT] * len(xs)], **style)
    elif series.kind == "area":
        axes.fill_between(xs, series.base, ys, linewidth=0, **style)
    else:
        axes.plot(xs, ys, linestyle="--" if series.dashed else "-", **style)


def _set_axis(axes: Any, axis: PlotAxis, name: str) -> None:
    axes.set(**{f"{name}label": axis.label, **({f"{name}scale": "log"} if axis.log else {})})
    limits = {side: value for side, value in (("left", axis.low), ("right", axis.high)) if value is not None}
    if name == "y":
        limits = {{"left": "bottom", "right": "top"}[side]: value for side, value in limits.items()}
    getattr(axes, f"set_{name}lim")(**limits)


def _draw_bars(axes: Any, bars: Bars) -> None:
    shown: Sequence[Any] = bars.bars
    places = range(len(shown))
    axes.barh(places, [bar.value for bar in shown], color=[colour(bar.colour) for bar in shown])
    axes.set_yticks(places, [bar.name for bar in shown], fontsize=8)
    axes.invert_yaxis()
    axes.set_xticks([])
    for place, bar in zip(places, shown, strict=True):
        axes.text(bar.value, place, f" {bar.text}", va="center", fontsize=8)
    axes.set_xlim(0, 1.3 * (bars.most or max((bar.value for bar in shown), default=1.0) or 1.0))
    axes.spines[["top", "right", "bottom"]].set_visible(False)
