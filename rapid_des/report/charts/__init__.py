"""What charts show: plain values and texts, without drawing; `page` and `pictures` draw them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct

from rapid_des.report.tables import Part
from rapid_des.units import PS_PER_S


class Tile(Struct, frozen=True):
    """A figure in the headline of a page."""

    label: str
    value: str
    note: str = ""


class Tiles(Struct, frozen=True):
    """The figures that answer the first questions."""

    tiles: Sequence[Tile]


class HorizontalBar(Struct, frozen=True):
    """A horizontal bar with its name on the left and its text on the right."""

    name: str
    value: float
    text: str
    colour: str
    """The category whose colour it has."""
    parts: Sequence[tuple[str, float]] = ()
    """Categories and their values, which add up to the bar's and are drawn one after another."""
    interval: tuple[float, float] | None = None
    """The ends of a line over the bar: where its value is expected."""


class Bars(Struct, frozen=True):
    """Bars on one scale, which begins at 0."""

    title: str
    bars: Sequence[HorizontalBar]
    most: float = 0.0
    """The value of the longest possible bar; 0: the largest value."""
    legend: Sequence[tuple[str, str]] = ()
    """Names of parts and the categories whose colours they have."""


class PlotAxis(Struct, frozen=True):
    """An axis of a plot."""

    label: str
    """The quantity with its unit."""
    log: bool = False
    low: float | None = None
    """The least value that is shown; None: that of the data."""
    high: float | None = None
    """The largest value that is shown; None: that of the data."""


class Series(Struct, frozen=True):
    """Values of one name: a line, dots, or the area between a line and its base."""

    name: str
    colour: str
    """The category whose colour it has; empty: the colour of text."""
    points: Sequence[tuple[float, float]]
    kind: Literal["line", "area", "dots"] = "line"
    base: Sequence[float] = ()
    """The lower ends of an area, a value a point."""
    titles: Sequence[str] = ()
    """A text a point, shown when it is pointed at."""
    radii: Sequence[float] = ()
    """A radius a dot."""
    dashed: bool = False
    legend: bool = True
    """Whether its name stands in the legend; else it stands at the end of the line."""


class Plot(Struct, frozen=True):
    """Series over two axes."""

    title: str
    x: PlotAxis
    y: PlotAxis
    series: Sequence[Series]
    height: int = 320
    numbered: bool = False
    """Whether a static picture numbers the dots and lists their titles, which a page shows when asked."""


class Span(NamedTuple):
    """A stretch of time in a lane, in picoseconds."""

    start: int
    length: int
    name: str
    colour: str
    """The category whose colour it has."""


class Lane(Struct, frozen=True):
    """What ran one after another in one place."""

    name: str
    spans: Sequence[Span]


class Lanes(Struct, frozen=True):
    """Places over one axis of time, which a reader can zoom."""

    title: str
    end: int
    """The end of the axis in picoseconds."""
    lanes: Sequence[Lane]
    legend: Sequence[tuple[str, str]] = ()
    """Names and the categories whose colours they have."""
    begin: int = 0
    """The start of the axis in picoseconds."""


def visible(spans: Sequence[Span], scale: float, least: float) -> Iterator[Span]:
    """Yield spans with those joined that touch on a drawing; `scale` is its units a picosecond.

    Spans of one colour are joined over gaps below half the `least` width; a span narrower than that is
    joined with the one before it, whatever its colour.
    """
    joined: Span | None = None
    for span in spans:
        near = joined is not None and (span.start - joined.start - joined.length) * scale < least / 2
        if joined is not None and near and (span.colour == joined.colour or span.length * scale < least / 2):
            joined = joined._replace(length=max(span.start + span.length - joined.start, joined.length))
            continue
        if joined is not None:
            yield joined
        joined = span
    if joined is not None:
        yield joined


def unit_of(end: int) -> tuple[float, str]:
    """Return the picoseconds of the unit in which times up to an end are written, and its name."""
    units = ((PS_PER_S, "s"), (10**9, "ms"), (10**6, "us"))
    return next((unit for unit in units if end >= 2 * unit[0]), units[-1])


class DiagramShape(Struct, frozen=True):
    """A node, a box of nodes, or a cable of a diagram."""

    points: Sequence[tuple[float, float]]
    """The place of a node, or the line of a cable."""
    title: str
    levels: Sequence[int] = ()
    """The number of its colour by each measure of the diagram; none: it has no figures."""
    over_time: Sequence[int] = ()
    """The numbers of its colours over time."""
    state: Literal["", "down", "derated"] = ""
    kind: str = ""
    """Empty for cables; `gpu`, `nic`, `switch`, `rack` or `group`."""
    label: str = ""
    link: str = ""
    """A cable as --fault names it, as in gpu0-switch1."""
    opens: str = ""
    """The name of the diagram that shows what is inside."""


class Diagram(Struct, frozen=True):
    """A fabric as nodes and cables, or as boxes of nodes."""

    title: str
    cables: Sequence[DiagramShape]
    nodes: Sequence[DiagramShape]
    measures: Sequence[tuple[str, Sequence[str]]] = ()
    """The measures by which it can be coloured, and the texts of their colours, from the lowest."""
    times: Sequence[str] = ()
    """The names of the stretches of time, if colours over time are known."""
    name: str = ""
    """The name by which a box opens it; empty: it is the whole fabric."""


class CellGrid(Struct, frozen=True):
    """A matrix of cells that are coloured by utilisation."""

    title: str
    rows: Sequence[str]
    cells: Sequence[Sequence[int | None]]
    """The number of each cell's colour; None: an empty place."""
    titles: Sequence[Sequence[str]]
    across: str
    """What the columns are."""
    scale: Sequence[str] = ()
    columns: Sequence[str] = ()
    """The names of the columns, if they are few."""


class ParallelLine(Struct, frozen=True):
    """A point of a study as a line over its axes."""

    places: Sequence[float]
    """Its place on each axis, 0 (bottom) to 1."""
    title: str
    level: int
    """The number of its colour, from 0."""


class Parallel(Struct, frozen=True):
    """Parallel coordinates: an axis a column, a line a point."""

    title: str
    axes: Sequence[tuple[str, Sequence[tuple[float, str]]]]
    """Labels with their marks, each a place from 0 to 1 and its text."""
    lines: Sequence[ParallelLine]
    """The last ones are on top."""
    scale: Sequence[str] = ()
    """The texts of the colours."""


Chart: TypeAlias = Tiles | Bars | Plot | Parallel | Lanes | Diagram | CellGrid
"""What a page shows besides the parts of a report."""


class TextFile(Struct, frozen=True):
    """A text that is shown as it is, in a box that opens."""

    title: str
    text: str


class PageSection(Struct, frozen=True):
    """A part of a page under a heading."""

    title: str
    parts: Sequence[Part | Chart | TextFile]
    lead: str = ""
    """A sentence under the heading."""
