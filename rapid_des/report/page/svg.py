"""Charts as SVG and HTML: marks that need no script, with titles for pointers and for screen readers.

Colours of categories are custom properties of the page, so that a dark page may have others.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence

from rapid_des.inputs import escaped, html_text
from rapid_des.report.charts import Bars, HorizontalBar, Plot, PlotAxis, Series, Tiles
from rapid_des.report.colours import COLOURS, OTHERS, colour

WIDTH = 760
"""The width of a chart in its own units, in which its fonts have 12."""
_LEFT, RIGHT, _TOP, _BOTTOM = 64, 14, 10, 42
_TICKS = 7
_ROOM = 0.03
"""The share of the values' range that stays free at an end of an axis which is not stated."""


def fill(name: str) -> str:
    """Return the CSS colour of a category.

    >>> fill("compute"), fill("")
    ('var(--c-compute)', 'currentColor')
    """
    if not name:
        return "currentColor"
    return f"var(--c-{property_of(name)})"


def property_of(name: str) -> str:
    """Return the name of the custom property of a category's colour."""
    return re.sub("[_ ]", "-", name) if name in COLOURS else f"other-{OTHERS.index(colour(name))}"


def legend(names: Iterable[tuple[str, str]]) -> str:
    """Return a list of names beside the colours of their categories."""
    return colour_legend((name, fill(category)) for name, category in names)


def colour_legend(colours: Iterable[tuple[str, str]]) -> str:
    """Return a list of texts beside CSS colours."""
    items = "".join(f'<li><i style="background:{css}"></i>{escaped(name)}</li>' for name, css in colours)
    return f'<ul class="legend">{items}</ul>' if items else ""


def figure(title: str, svg: str, below: str = "") -> str:
    """Return a chart with its caption; narrow screens scroll it."""
    region = (
        f'<div class="scroll" tabindex="0" role="region" aria-label="chart: {escaped(title)}">{svg}</div>'
    )
    return f"<figure><figcaption>{escaped(title)}</figcaption>{region}{below}</figure>"


def svg_element(title: str, height: float, marks: Iterable[str]) -> str:
    """Return an SVG of a height that screen readers see as one picture with a title."""
    box = f'viewBox="0 0 {WIDTH} {height:g}"'
    return f'<svg {box} role="img" aria-label="{escaped(title)}">{"".join(marks)}</svg>'


def tiles_html(tiles: Tiles) -> str:
    """Return the headline's figures."""
    each = "".join(
        f"<div><dt>{escaped(tile.label)}</dt><dd><strong>{escaped(tile.value)}</strong>"
        f"{html_text(tile.note, 'small') if tile.note else ''}</dd></div>"
        for tile in tiles.tiles
    )
    return f'<dl class="tiles">{each}</dl>'


def bars_html(bars: Bars) -> str:
    """Return bars as a table, which fits every width."""
    most = bars.most or max((bar.value for bar in bars.bars), default=0.0) or 1.0
    rows = "".join(
        f'<tr><th scope="row">{escaped(bar.name)}</th><td class="bar"><div>{_bar(bar, most)}</div></td>'
        f"<td>{escaped(bar.text)}</td></tr>"
        for bar in bars.bars
    )
    table = f'<table class="bars"><caption>{escaped(bars.title)}</caption><tbody>{rows}</tbody></table>'
    return table + legend(bars.legend)


def _bar(bar: HorizontalBar, most: float) -> str:
    """Return the parts of a bar one after another, and the line of its interval."""
    parts = "".join(
        f'<i style="width:{100 * min(value / most, 1):.2f}%;background:{fill(category)}"></i>'
        for category, value in bar.parts or [(bar.colour, bar.value)]
    )
    if bar.interval is None:
        return parts
    low, high = (100 * min(end / most, 1) for end in bar.interval)
    return f'{parts}<b style="left:{low:.2f}%;width:{high - low:.2f}%"></b>'


class Scale:
    """Places values of an axis between two ends of a drawing."""

    def __init__(self, axis: PlotAxis, values: Sequence[float], ends: tuple[float, float]) -> None:
        kept = [value for value in values if value > 0 or not axis.log]
        room = 0.0 if axis.log else _ROOM * (max(kept, default=0.0) - min(kept, default=0.0))
        low = min(kept, default=0.0) - room if axis.low is None else axis.low
        high = max(kept, default=1.0) + room if axis.high is None else axis.high
        if axis.log:
            low, high = low or 1e-12, max(high, low * 1.0001, 1e-12)
        elif high <= low:
            high = low + (abs(low) or 1.0)
        self.axis, self.low, self.high, self._ends = axis, low, high, ends

    def __call__(self, value: float) -> float:
        """Return the place of a value, at the nearer end if it is outside."""
        value = min(max(value, self.low), self.high)
        if self.axis.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self._ends[0] + share * (self._ends[1] - self._ends[0])

    def ticks(self) -> list[float]:
        """Return round values between the ends."""
        if self.axis.log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            decades = [10.0**power for power in range(first, last + 1)]
            if len(decades) > 2:
                return decades[:: -(-len(decades) // _TICKS)]
            wider = range(first - 1, last + 1)
            return [n * 10.0**p for p in wider for n in (1, 2, 5) if self.low <= n * 10.0**p <= self.high]
        step = round_step((self.high - self.low) / _TICKS)
        return [step * n for n in range(math.ceil(self.low / step), math.floor(self.high / step + 1e-9) + 1)]


def round_step(least: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is not less.

    >>> round_step(0.3), round_step(7)
    (0.5, 10.0)
    """
    decade = 10.0 ** math.floor(math.log10(max(least, 1e-300)))
    return next(decade * n for n in (1, 2, 5, 10) if decade * n >= least * 0.999999)


def tick_text(value: float) -> str:
    """Return the label of a tick.

    >>> tick_text(0.5), tick_text(2e15)
    ('0.5', '2e15')
    """
    return f"{value:,.10g}" if abs(value) < 1e6 else f"{value:.4g}".replace("e+", "e")


def plot_svg(plot: Plot) -> str:
    """Return a plot as SVG with its legend."""
    xs = [point[0] for series in plot.series for point in series.points]
    ys = [point[1] for series in plot.series for point in series.points]
    x = Scale(plot.x, xs, (_LEFT, WIDTH - RIGHT))
    y = Scale(plot.y, ys, (plot.height - _BOTTOM, _TOP))
    marks = [*_axes(plot, x, y), *(mark for series in plot.series for mark in _series(series, x, y))]
    names = [(series.name, series.colour) for series in plot.series if series.legend]
    return figure(plot.title, svg_element(plot.title, plot.height, marks), legend(names))


def _axes(plot: Plot, x: Scale, y: Scale) -> Iterator[str]:
    low, left, right = plot.height - _BOTTOM, _LEFT, WIDTH - RIGHT
    for value in y.ticks():
        at = y(value)
        yield f'<path class="grid" d="M{left} {at:.1f}H{right}"/>'
        yield f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{tick_text(value)}</text>'
    for value in x.ticks():
        at = x(value)
        yield f'<path class="grid" d="M{at:.1f} {low}v5"/>'
        yield f'<text x="{at:.1f}" y="{low + 18}" text-anchor="middle">{tick_text(value)}</text>'
    yield f'<path class="axis" d="M{left} {_TOP}V{low}H{right}"/>'
    across, middle = (left + right) / 2, (_TOP + low) / 2
    centred = 'text-anchor="middle"'
    yield f'<text x="{across:g}" y="{plot.height - 6}" {centred}>{escaped(plot.x.label)}</text>'
    turned = f'transform="rotate(-90 14 {middle:g})" {centred}'
    yield f'<text x="14" y="{middle:g}" {turned}>{escaped(plot.y.label)}</text>'


def _series(series: Series, x: Scale, y: Scale) -> Iterator[str]:
    places = [(x(a), y(b)) for a, b in series.points]
    if series.kind == "dots":
        for number, (a, b) in enumerate(places):
            radius = series.radii[number] if series.radii else 4
            title = f"<title>{escaped(series.titles[number])}</title>" if series.titles else ""
            style = f'r="{radius:.1f}" fill="{fill(series.colour)}"'
            yield f'<circle cx="{a:.1f}" cy="{b:.1f}" {style}>{title}</circle>'
        return
    if not places:
        return
    name = f"<title>{escaped(series.name)}</title>"
    line = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
    if series.kind == "area":
        back = reversed([(x(a), y(low)) for (a, _), low in zip(series.points, series.base, strict=True)])
        line += "L" + "L".join(f"{a:.1f} {b:.1f}" for a, b in back) + "Z"
        yield f'<path d="{line}" fill="{fill(series.colour)}">{name}</path>'
        return
    dashes = ' stroke-dasharray="6 4"' if series.dashed else ""
    yield f'<path class="line" d="{line}" stroke="{fill(series.colour)}"{dashes}>{name}</path>'
    if not series.legend:
        a, b = places[-1]
        yield f'<text x="{a:.1f}" y="{b - 5:.1f}" text-anchor="end">{escaped(series.name)}</text>'


def script_json(plain: object) -> str:
    r"""Return plain data as JSON that can stand in an HTML script element: it never ends the element.

    >>> script_json({"name": "</script>"})
    '{"name":"\\u003c/script>"}'
    """
    return json.dumps(plain, separators=(",", ":")).replace("<", "\\u003c")
