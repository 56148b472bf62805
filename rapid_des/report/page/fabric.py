"""The fabric of a run: what its links did, by kind of fabric, with boxes that open where it is large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from rapid_des.machine import Machine
from rapid_des.report.charts import CellGrid, Diagram, PageSection, Plot, PlotAxis, Series
from rapid_des.report.colours import BUSY
from rapid_des.report.fabric_boxes import MOST_NODES
from rapid_des.report.link_measures import LinksSeen, utilisation_of
from rapid_des.report.page.fabric_diagrams import ROOM, diagrams, level_of
from rapid_des.report.pictures.fabric import Picture, picture
from rapid_des.report.pictures.overview import fabric_cells, fabric_rows
from rapid_des.report.rows import LinkRow
from rapid_des.report.tables import Table, columns, seconds_text
from rapid_des.units import Bandwidth

_BUSIEST = 100
_STEPS = 20
"""The number of bars of a histogram."""


def fabric_section(machine: Machine, seen: LinksSeen, links: Sequence[LinkRow]) -> PageSection:
    """Return the fabric coloured by what its links did, its tiers, and its busiest links."""
    load = seen.measures[0].values
    drawn = picture(machine, {int(link): float(load[link]) for link in load.nonzero()[0]})
    used = sorted((row for row in links if row.kind), key=lambda row: (-row.utilisation, row.link))
    names = columns("link", dimension="dimension", kind="traffic", bytes=("bytes", ","))
    names += columns(busy_s=("busy", seconds_text), queue_s=("waits of all messages", seconds_text))
    names += columns(utilisation=("utilisation", ".2%"))
    rows = [_link(row) for row in used[:_BUSIEST]]
    title = f"the {len(rows)} busiest of {len(used):,} links and kinds of traffic"
    tables = [Table("links by dimension", (*columns("dimension"), *_TIERS), list(_tiers(drawn)))]
    if rows:
        tables.append(Table(title, names, rows))
    return PageSection("Fabric", [*fabric_charts(machine, seen), _histogram(drawn), *tables], drawn.title)


def fabric_charts(
    machine: Machine, seen: LinksSeen | None = None, room: int = ROOM
) -> list[Diagram | CellGrid]:
    """Return the fabric, and if it is large what is in boxes of up to `room` nodes, and its links by tier."""
    seen = seen or LinksSeen([utilisation_of({}, len(machine.fabric))])
    load = seen.measures[0].values
    drawn = picture(machine, {int(link): float(load[link]) for link in load.nonzero()[0]})
    found: list[Diagram | CellGrid] = [*diagrams(machine, drawn, seen, room)]
    if drawn.fabric.nodes > MOST_NODES and drawn.load:
        found.append(_grid(drawn))
    return found


def _histogram(drawn: Picture) -> Plot:
    """Return the share of each dimension's links by utilisation."""
    fabric, load = drawn.fabric, np.zeros(len(drawn.fabric))
    for link, share in (drawn.load or {}).items():
        load[link] = share
    most = drawn.most
    edges = np.linspace(0, most, _STEPS + 1)
    series = []
    for number in np.unique(fabric.dimension).tolist():
        mine = load[fabric.dimension == number]
        shares = 100 * np.histogram(np.minimum(mine, most), edges)[0] / len(mine)
        stairs = [
            (100 * float(edge), float(share))
            for step, share in enumerate(shares)
            for edge in (edges[step], edges[step + 1])
        ]
        name = _dimension(drawn, number)
        series.append(Series(name, f"dimension {number}", [(0.0, 0.0), *stairs]))
    x, y = PlotAxis("utilisation of a link, %", low=0), PlotAxis("links of the dimension, %", low=0)
    return Plot("how many links are how busy, by dimension", x, y, series, height=240)


def _dimension(drawn: Picture, number: int) -> str:
    names = drawn.fabric.dimensions
    return names[number] if 0 <= number < len(names) else "links"


_TIERS = columns(
    links=("links", ","), rate="rate", mean=("mean utilisation", ".2%"), most=("busiest", ".2%"),
    idle=("idle links", ","),
)  # fmt: skip


def _link(row: LinkRow) -> dict[str, object]:
    names = ("link", "dimension", "kind", "bytes", "busy_s", "queue_s", "utilisation")
    return {name: getattr(row, name) for name in names}


def _tiers(drawn: Picture) -> Iterator[dict[str, object]]:
    """Yield the number of links of each dimension and how busy they are."""
    fabric, load = drawn.fabric, np.zeros(len(drawn.fabric))
    for link, share in (drawn.load or {}).items():
        load[link] = share
    for number in np.unique(fabric.dimension).tolist():
        mine = fabric.dimension == number
        rates = " or ".join(str(Bandwidth(rate)) for rate in np.unique(fabric.bandwidth[mine]).tolist()[:3])
        busy = load[mine]
        idle = int((busy == 0).sum())
        yield {"dimension": _dimension(drawn, number), "links": int(mine.sum()), "rate": rates} | {
            "mean": float(busy.mean()), "most": float(busy.max()), "idle": idle,
        }  # fmt: skip


def _scale(most: float) -> list[str]:
    steps = len(BUSY) - 1
    ends = [f"{100 * most * step / steps:.3g}" for step in range(steps + 1)]
    return ["idle", *(f"{low} to {high} % busy" for low, high in pairwise(ends))]


def _grid(drawn: Picture) -> CellGrid:
    """Return the tiers and what joins them as rows, groups of neighbouring GPUs as columns."""
    rows, most = fabric_rows(drawn.healthy), drawn.most
    cells = fabric_cells(drawn, rows)
    shown = [number for number, row in enumerate(rows) if row.joins is not None]
    levels = [
        [None if np.isnan(share) else level_of(float(share), most) for share in cells.load[number]]
        for number in shown
    ]
    titles = [
        [
            f"{rows[number].label}, GPUs from {place * cells.group}: {share:.2%}"
            for place, share in enumerate(cells.load[number])
        ]
        for number in shown
    ]
    across = f"GPUs, {cells.group} a cell: each cell shows its busiest cable"
    title = "cables by tier over groups of GPUs; colours are utilisation"
    return CellGrid(title, [rows[number].label for number in shown], levels, titles, across, _scale(most))
