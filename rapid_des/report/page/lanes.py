"""What ran when: lanes as SVG for paper and for readers without scripts, and as data for the zoom."""

from __future__ import annotations

from collections.abc import Iterator

from rapid_des.inputs import escaped
from rapid_des.report.charts import Lane, Lanes, PlotAxis, unit_of, visible
from rapid_des.report.page.svg import (
    WIDTH,
    Scale,
    fill,
    legend,
    property_of,
    script_json,
    svg_element,
    tick_text,
)

_LEFT, _RIGHT, _BOTTOM = 150, 14, 38
_ROW, _GAP = 20, 4
_NS = 1000
_LEAST = 0.5
"""Spans below this width are drawn together with those beside them."""


def lanes_html(lanes: Lanes) -> str:
    """Return lanes as a chart; the script of the page adds a canvas with a zoom to it."""
    title = escaped(lanes.title)
    data = f'<script type="application/json" class="lanes">{script_json(_data(lanes))}</script>'
    return (
        f'<figure class="timeline"><figcaption>{title}</figcaption>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="chart: {title}">{_svg(lanes)}</div>'
        f"{data}{legend(lanes.legend)}</figure>"
    )


def _data(lanes: Lanes) -> dict[str, object]:
    """Return names, colours and, lane by lane, the gap before each span, its length, name and colour.

    Times are nanoseconds; a span is at least one long.
    """
    names: dict[str, int] = {}
    colours: dict[str, int] = {}
    rows = []
    for lane in lanes.lanes:
        numbers, moment = [], 0
        for span in lane.spans:
            start = max(round(span.start / _NS), moment)
            end = max(round((span.start + span.length) / _NS), start + 1)
            numbers += [start - moment, end - start]
            numbers.append(names.setdefault(span.name, len(names)))
            numbers.append(colours.setdefault(property_of(span.colour), len(colours)))
            moment = end
        rows.append({"name": lane.name, "spans": numbers})
    ends = {"begin": round(lanes.begin / _NS), "end": round(lanes.end / _NS)}
    return ends | {"names": list(names), "colours": list(colours), "lanes": rows}


def _svg(lanes: Lanes) -> str:
    height = len(lanes.lanes) * (_ROW + _GAP) + _BOTTOM
    unit, unit_name = unit_of(lanes.end)
    x = Scale(PlotAxis("", low=lanes.begin / unit, high=lanes.end / unit), [], (_LEFT, WIDTH - _RIGHT))
    marks = []
    for number, lane in enumerate(lanes.lanes):
        top = number * (_ROW + _GAP)
        marks.append(f'<text x="{_LEFT - 8}" y="{top + 14}" text-anchor="end">{escaped(lane.name)}</text>')
        marks += _lane(lane, top, lanes.begin, (WIDTH - _LEFT - _RIGHT) / max(lanes.end - lanes.begin, 1))
    low = height - _BOTTOM + 2
    for tick in x.ticks():
        marks.append(f'<path class="grid" d="M{x(tick):.1f} {low}v5"/>')
        marks.append(f'<text x="{x(tick):.1f}" y="{low + 18}" text-anchor="middle">{tick_text(tick)}</text>')
    marks.append(f'<path class="axis" d="M{_LEFT} {low}H{WIDTH - _RIGHT}"/>')
    marks.append(f'<text x="{WIDTH / 2}" y="{height - 3}" text-anchor="middle">time, {unit_name}</text>')
    return svg_element(lanes.title, height, marks)


def _lane(lane: Lane, top: int, begin: int, scale: float) -> Iterator[str]:
    """Yield a path a colour: what is too narrow to be seen alone is drawn as wide as it must be."""
    paths: dict[str, list[str]] = {}
    for span in visible(lane.spans, scale, _LEAST):
        start = max(span.start, begin)  # what straddles a window is drawn within it
        stop = min(span.start + span.length, begin + (WIDTH - _RIGHT - _LEFT) / scale)
        left, width = _LEFT + (start - begin) * scale, max((stop - start) * scale, _LEAST)
        paths.setdefault(span.colour, []).append(f"M{left:.1f} {top}h{width:.1f}v{_ROW}h-{width:.1f}z")
    for name, boxes in paths.items():
        yield f'<path d="{"".join(boxes)}" fill="{fill(name)}"/>'
