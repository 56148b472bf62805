"""The fabric of a run with the utilisation of its links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from rapid_des.machine import Machine
from rapid_des.report.colours import BUSY
from rapid_des.report.page.charts import CellGrid, Diagram, DiagramShape, PageSection
from rapid_des.report.pictures.fabric import (
    Picture,
    broken,
    busier,
    cable_lines,
    cables_of,
    node_positions,
    on_circle,
    picture,
)
from rapid_des.report.pictures.overview import MOST_NODES, fabric_cells, fabric_rows
from rapid_des.report.rows import LinkRow
from rapid_des.report.tables import Table, columns, seconds_text
from rapid_des.units import Bandwidth

_KINDS = ("gpu", "nic", "switch")
_BUSIEST = 100


def fabric_section(machine: Machine, load: Mapping[int, float], links: Sequence[LinkRow]) -> PageSection:
    """Return the fabric coloured by the utilisation of its links, its tiers, and its busiest links."""
    drawn = picture(machine, load)
    chart = _chart(drawn)
    used = sorted((row for row in links if row.kind), key=lambda row: (-row.utilisation, row.link))
    names = columns("link", dimension="dimension", kind="traffic", bytes=("bytes", ","))
    names += columns(busy_s=("busy", seconds_text), queue_s=("waits of all messages", seconds_text))
    names += columns(utilisation=("utilisation", ".2%"))
    rows = [_link(row) for row in used[:_BUSIEST]]
    title = f"the {len(rows)} busiest of {len(used):,} links and kinds of traffic"
    tiers = Table("links by dimension", (*columns("dimension"), *_TIERS), list(_tiers(drawn)))
    return PageSection("Fabric", [chart, tiers, Table(title, names, rows)], drawn.title)


def fabric_chart(machine: Machine, load: Mapping[int, float]) -> Diagram | CellGrid:
    """Return the fabric alone, coloured by the utilisation of its links."""
    return _chart(picture(machine, load))


def _chart(drawn: Picture) -> Diagram | CellGrid:
    return _diagram(drawn) if drawn.fabric.nodes <= MOST_NODES else _grid(drawn)


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
        name = fabric.dimensions[number] if 0 <= number < len(fabric.dimensions) else "links"
        busy = load[mine]
        idle = int((busy == 0).sum())
        yield {"dimension": name, "links": int(mine.sum()), "rate": rates} | {
            "mean": float(busy.mean()), "most": float(busy.max()), "idle": idle,
        }  # fmt: skip


def _level(share: float, most: float) -> int:
    """Return the number of the colour of a utilisation: 0 for idle, the others in equal steps.

    >>> [_level(share, 0.5) for share in (0, 0.01, 0.25, 0.5)]
    [0, 1, 3, 4]
    """
    return min(1 + int((len(BUSY) - 1) * share / most), len(BUSY) - 1) if share else 0


def _scale(most: float) -> list[str]:
    steps = len(BUSY) - 1
    ends = [f"{100 * most * step / steps:.3g}" for step in range(steps + 1)]
    return ["idle", *(f"{low} to {high} % busy" for low, high in pairwise(ends))]


def _diagram(drawn: Picture) -> Diagram:
    fabric, load = drawn.fabric, drawn.load or {}
    points = node_positions(fabric, on_circle=on_circle(drawn))
    cables, first = cables_of(fabric)
    dead, derated = broken(drawn, cables, first)
    shares = busier(load, cables)
    lines = cable_lines(fabric, first, points, straight=on_circle(drawn))
    states = np.where(dead, "down", np.where(derated, "derated", ""))
    order = np.argsort(shares, kind="stable")
    shapes = [
        DiagramShape(
            [(float(x), float(y)) for x, y in _straight(lines[cable])],
            f"{fabric.link_name(int(first[cable]))}: {_state(str(states[cable]), float(shares[cable]))}",
            _level(float(shares[cable]), drawn.most),
            states[cable].item(),
            link=fabric.link_name(int(first[cable])).replace(">", "-"),
        )
        for cable in order.tolist()
    ]
    title = "every GPU, switch and cable"
    title += "; colours are the utilisation of a cable's busier direction" if load else ""
    return Diagram(title, shapes, list(_nodes(drawn, points)), _scale(drawn.most) if load else [])


def _state(state: str, share: float) -> str:
    return "down" if state == "down" else f"{share:.2%} busy" + (", derated" if state else "")


def _straight(line: np.ndarray) -> np.ndarray:
    """Return the ends of a line that does not bend, else all of its points."""
    middle = line[len(line) // 2]
    return line[[0, -1]] if np.allclose(middle, (line[0] + line[-1]) / 2) else line


def _nodes(drawn: Picture, points: np.ndarray) -> Iterator[DiagramShape]:
    fabric = drawn.fabric
    for node, (x, y) in enumerate(points.tolist()):
        kind = _KINDS[(node >= fabric.gpus) + (node >= fabric.gpus + fabric.nics)]
        label = str(node) if kind == "gpu" else ""
        yield DiagramShape([(x, y)], f"{kind.replace('gpu', 'GPU')} {node}", kind=kind, label=label)


def _grid(drawn: Picture) -> CellGrid:
    """Return the tiers and what joins them as rows, groups of neighbouring GPUs as columns."""
    rows = fabric_rows(drawn.healthy)
    cells = fabric_cells(drawn, rows)
    shown = [number for number, row in enumerate(rows) if row.joins is not None]
    levels = [
        [None if np.isnan(share) else _level(float(share), drawn.most) for share in cells.load[number]]
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
    return CellGrid(
        title, [rows[number].label for number in shown], levels, titles, across, _scale(drawn.most)
    )
