"""Fabrics as SVG: nodes or boxes and what joins them, with the colours of each measure for the script."""

from __future__ import annotations

from collections.abc import Sequence

from rapid_des.inputs import escaped
from rapid_des.report.charts import CellGrid, Diagram, DiagramShape, Parallel
from rapid_des.report.page.svg import RIGHT, WIDTH, colour_legend, figure, script_json, svg_element

_Place = tuple[float, float]


def diagram_svg(diagram: Diagram) -> str:
    """Return a fabric's nodes and cables as SVG, with its measures and times as data for the script."""
    every = [point for shape in (*diagram.nodes, *diagram.cables) for point in shape.points]
    xs, ys = zip(*every, strict=True)
    radius = max(3.0, min(13.0, 260 / max(len(diagram.nodes), 1) ** 0.75))
    rise = 3 * radius if any(node.kind == "rack" for node in diagram.nodes) else radius
    left, low, depth = min(xs), min(ys), max(ys) - min(ys)
    span = max(max(xs) - left, depth * 1.1, 1e-9)
    unit = (WIDTH - 2 * radius - 4) / span
    height = depth * unit + 2 * rise + 4

    def place(point: _Place) -> _Place:
        return (point[0] - left) * unit + radius + 2, height - rise - 2 - (point[1] - low) * unit

    marks = [_cable(shape, [place(point) for point in shape.points]) for shape in diagram.cables]
    marks += [_node(shape, place(shape.points[0]), radius) for shape in diagram.nodes]
    scale = diagram.measures[0][1] if diagram.measures else []
    data = {"measures": diagram.measures, "times": diagram.times, "name": diagram.name}
    svg = svg_element(diagram.title, height, marks)
    chart = figure(
        diagram.title, svg, colour_legend((text, _level(level)) for level, text in enumerate(scale))
    )
    hidden = " hidden" if diagram.name else ""
    plain = f'<script type="application/json">{script_json(data)}</script>'
    return f'<div class="fabric"{hidden}>{chart}{plain}</div>'


def _cable(shape: DiagramShape, places: Sequence[_Place]) -> str:
    line = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    look = f'class="{shape.state or "line"}"' + ("" if shape.state else f' stroke="{_first(shape)}"')
    name = f' data-link="{escaped(shape.link)}"' if shape.link else ""
    return f'<path {look}{_figures(shape)}{name} d="{line}"><title>{escaped(shape.title)}</title></path>'


def _first(shape: DiagramShape) -> str:
    return _level(shape.levels[0] if shape.levels else 0)


def _figures(shape: DiagramShape) -> str:
    """Return the colours of a shape as digits, by measure and over time."""
    if not shape.levels:
        return ""
    over_time = f' data-t="{"".join(map(str, shape.over_time))}"' if any(shape.over_time) else ""
    return f' data-l="{"".join(map(str, shape.levels))}"{over_time}'


def _node(shape: DiagramShape, place: _Place, radius: float) -> str:
    x, y = place
    title = f"<title>{escaped(shape.title)}</title>"
    fill = f' style="fill:{_first(shape)}"' if shape.levels else ""
    opens = f' data-opens="{escaped(shape.opens)}"' if shape.opens else ""
    look = (
        f'class="node {shape.kind}{" " + shape.state if shape.state else ""}"{fill}{_figures(shape)}{opens}'
    )
    if shape.kind == "gpu":
        mark = f'<circle {look} cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}">{title}</circle>'
    elif shape.kind == "nic":
        corners = f"M{x - radius:.1f} {y - radius:.1f}h{2 * radius:.1f}L{x:.1f} {y + radius:.1f}Z"
        mark = f'<path {look} d="{corners}">{title}</path>'
    else:
        rise = 3 * radius if shape.kind == "rack" else radius
        mark = (
            f'<rect {look} x="{x - radius:.1f}" y="{y - rise:.1f}" width="{2 * radius:.1f}" '
            f'height="{2 * rise:.1f}">{title}</rect>'
        )
    if shape.label and radius > 7:
        mark += f'<text class="inside" x="{x:.1f}" y="{y + 4:.1f}">{escaped(shape.label)}</text>'
    return mark


def _level(level: int) -> str:
    return f"var(--u-{level})"


def grid_svg(grid: CellGrid) -> str:
    """Return a matrix of cells as SVG; the names of rows stand on the left."""
    left, side, gap = 260, 22, 4
    columns = max((len(row) for row in grid.cells), default=1)
    width = (WIDTH - left - RIGHT) / max(columns, 1)
    marks = []
    for number, (name, row, titles) in enumerate(zip(grid.rows, grid.cells, grid.titles, strict=True)):
        top = number * (side + gap)
        marks.append(f'<text x="{left - 8}" y="{top + 15}" text-anchor="end">{escaped(name)}</text>')
        marks += [
            f'<rect x="{left + place * width:.2f}" y="{top}" width="{width:.2f}" height="{side}" '
            f'fill="{_level(level)}"><title>{escaped(title)}</title></rect>'
            for place, (level, title) in enumerate(zip(row, titles, strict=True))
            if level is not None
        ]
    for place, name in enumerate(grid.columns):
        where = f'x="{left + (place + 0.5) * width:.1f}" y="{len(grid.rows) * (side + gap) + 12}"'
        marks.append(f'<text {where} text-anchor="middle">{escaped(name)}</text>')
    height = len(grid.rows) * (side + gap) + (38 if grid.columns else 20)
    marks.append(f'<text x="{left}" y="{height - 5}">{escaped(grid.across)}</text>')
    return figure(
        grid.title,
        svg_element(grid.title, height, marks),
        colour_legend((text, _level(level)) for level, text in enumerate(grid.scale)),
    )


def parallel_svg(chart: Parallel) -> str:
    """Return parallel coordinates as SVG."""
    height, top, low, edge = 320, 30, 290, 60
    step = (WIDTH - 2 * edge) / max(len(chart.axes) - 1, 1)

    def y(place: float) -> float:
        return low - place * (low - top)

    marks = []
    for line in chart.lines:
        points = "L".join(f"{edge + n * step:.1f} {y(place):.1f}" for n, place in enumerate(line.places))
        title = f"<title>{escaped(line.title)}</title>"
        marks.append(f'<path class="line" stroke="{_level(line.level)}" d="M{points}">{title}</path>')
    for number, (label, ticks) in enumerate(chart.axes):
        x = edge + number * step
        marks.append(f'<path class="axis" d="M{x:.1f} {top}V{low}"/>')
        marks.append(f'<text x="{x:.1f}" y="16" text-anchor="middle">{escaped(label)}</text>')
        for place, text in ticks:
            marks.append(f'<text class="halo" x="{x + 4:.1f}" y="{y(place) + 4:.1f}">{escaped(text)}</text>')
    legend = colour_legend((text, _level(level)) for level, text in enumerate(chart.scale))
    return figure(chart.title, svg_element(chart.title, height, marks), legend)
