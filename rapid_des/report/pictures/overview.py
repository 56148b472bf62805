"""Drawing any fabric: node by node, or, where that is too much to look at, tiers and what joins them as rows.

On the left a box a tier and a line a sort of cables; on the right, where there is load or a fault to be
seen, a cell for each group of neighbouring GPUs: its busiest cable, and faults.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.network.fabric import Fabric
from rapid_des.report.pictures import new_figure, save
from rapid_des.report.pictures.fabric import (
    DEAD,
    DERATED,
    PALETTE,
    Picture,
    Points,
    add_scale,
    axis_name,
    axis_of,
    broken,
    busier,
    busy_colours,
    cables_of,
    draw_nodes,
    layers,
    plural,
)
from rapid_des.units import Bandwidth, Duration

MOST_NODES = 400
"""With more nodes (GPUs, NICs and switches) an overview is drawn instead of every node."""
_MOST_COLUMNS = 128
_KINDS = ("GPU", "NIC", "switch")
_FILLS = ("white", "#BBBBBB", "#555555")


class _FabricRow(Struct, frozen=True, eq=False):
    """The nodes of a tier, or the cables of one class."""

    label: str
    members: Int64s
    """Indices of the nodes, or of the cables."""
    kind: int
    """Kind of nodes: 0 GPUs, 1 NICs, 2 switches."""
    joins: tuple[int, int] | None = None
    """The tiers at the ends of cables, by number from below."""
    dimension: int = 0


def draw(picture: Picture, path: Path | None = None) -> Any:
    """Return the drawing as a figure, written as PNG, SVG or PDF if there is a path.

    >>> from rapid_des.machine import load_machine
    >>> from rapid_des.report.pictures.fabric import picture
    >>> draw(picture(load_machine("dgx_a100"))).axes[0].get_title()[:8]
    'DGX A100'
    """
    chosen = draw_nodes if picture.fabric.nodes <= MOST_NODES else _draw_overview
    return chosen(picture, path)


def _draw_overview(picture: Picture, path: Path | None) -> Any:
    rows = fabric_rows(picture.healthy)
    cells = fabric_cells(picture, rows)
    seen = picture.load is not None or picture.gpu_load or picture.node_load
    wide = bool(seen) or any(np.isin(cells.faults, (1, 2)).ravel())
    size = (13.0 if wide else 7.0, 0.42 * len(rows) + 1.6)
    figure = new_figure(path, figsize=size, layout="constrained")
    if wide:
        scheme, strips = figure.subplots(1, 2, sharey=True, width_ratios=(1, 1.5))
        _draw_cells(strips, picture, cells)
    else:
        scheme = figure.subplots()
    _draw_scheme(scheme, rows)
    figure.suptitle(picture.title, fontsize=11)
    return save(figure, path, dpi=130)


def fabric_rows(fabric: Fabric) -> list[_FabricRow]:
    """Return tiers from below, each followed by the cables to itself and to those above."""
    level = layers(fabric)[0] if fabric.nodes > fabric.gpus else np.zeros(fabric.nodes, np.int64)
    kind = np.searchsorted([fabric.gpus, fabric.gpus + fabric.nics], np.arange(fabric.nodes), side="right")
    _, tier = np.unique(3 * level + kind, return_inverse=True)
    _, first = cables_of(fabric)
    ends = np.sort(np.stack([tier[fabric.source[first]], tier[fabric.destination[first]]]), axis=0)
    sorts = np.stack([*ends, fabric.dimension[first], axis_of(fabric, first)], axis=1)
    keys, sort = np.unique(sorts, axis=0, return_inverse=True)
    rows = []
    for number in range(int(tier.max()) + 1):
        nodes = np.flatnonzero(tier == number)
        what = int(kind[nodes[0]])
        rows.append(_FabricRow(f"{len(nodes):,} {plural(_KINDS[what], len(nodes))}", nodes, what))
        for index, (low, high, dimension, axis) in enumerate(keys.tolist()):
            if low == number:
                cables = np.flatnonzero(sort.ravel() == index)
                label = _label(fabric, first[cables], dimension, axis)
                rows.append(_FabricRow(label, cables, 0, (low, high), dimension))
    return rows


def _label(fabric: Fabric, links: Int64s, dimension: int, axis: int) -> str:
    name = axis_name(fabric, dimension, axis)
    rates = " or ".join(str(Bandwidth(rate)) for rate in np.unique(fabric.bandwidth[links]).tolist()[:2])
    delays = " or ".join(str(Duration(delay)) for delay in np.unique(fabric.latency[links]).tolist()[:2])
    return f"{name}: {len(links):,} x {rates}, {delays}"


class _Cells(Struct, frozen=True, eq=False):
    """Load and faults by row and group of GPUs."""

    load: Points
    """[row, column] the largest load in a cell; NaN without cables or nodes, or without load."""
    faults: Int64s
    """[row, column] 2 where a cable is down, 1 where one is derated or a timed fault affects it."""
    group: int
    """Number of GPUs per column."""


def fabric_cells(picture: Picture, rows: list[_FabricRow]) -> _Cells:
    """Return the load and the faults of each row over groups of neighbouring GPUs."""
    fabric = picture.fabric
    group = picture.per_server or 1
    group *= -(-fabric.gpus // (group * _MOST_COLUMNS))
    columns = -(-fabric.gpus // group)
    across = layers(fabric)[1] if fabric.nodes > fabric.gpus else np.arange(fabric.nodes, dtype=np.float64)
    column = np.clip((across + 0.5) // group, 0, columns - 1).astype(np.int64)
    cables, first = cables_of(fabric)
    dead, derated = broken(picture, cables, first)
    trouble = np.maximum(2 * dead, derated.astype(np.int64))
    shares = None if picture.load is None else busier(picture.load, cables)
    load, faults = np.full((len(rows), columns), np.nan), np.zeros((len(rows), columns), np.int64)
    for number, row in enumerate(rows):
        if row.joins is None:
            _fill(load[number], column[row.members], _node_loads(picture, row))
            _widen(load[number])
            continue
        ends = np.stack([fabric.source[first[row.members]], fabric.destination[first[row.members]]])
        where = column[ends.min(axis=0)]  # GPUs before NICs before switches: the end that is nearer to GPUs
        np.maximum.at(faults[number], where, trouble[row.members])
        if shares is not None:
            _fill(load[number], where, shares[row.members])
            _widen(load[number])
    return _Cells(load, faults, group)


def _node_loads(picture: Picture, row: _FabricRow) -> Points | None:
    loads: Mapping[int, float] | None = picture.node_load
    if row.kind == 0 and picture.gpu_load is not None:
        loads = picture.gpu_load
    if loads is None or loads.keys().isdisjoint(row.members.tolist()):
        return None
    return np.array([loads.get(node, 0.0) for node in row.members.tolist()])


def _fill(cells: Points, where: Int64s, values: Points | None) -> None:
    if values is not None:
        np.fmax.at(cells, where, values)


def _widen(cells: Points) -> None:
    """Extend what serves several columns, such as a switch, over those that are nearest to it."""
    there = np.flatnonzero(np.isfinite(cells))
    if len(there):
        borders = (there[1:] + there[:-1]) / 2
        cells[:] = cells[there[np.searchsorted(borders, np.arange(len(cells)))]]


def _draw_scheme(axes: Any, rows: list[_FabricRow]) -> None:
    tiers = [number for number, row in enumerate(rows) if row.joins is None]
    for number, row in enumerate(rows):
        if row.joins is None:
            ink = "white" if row.kind == _KINDS.index("switch") else "black"
            box = {"boxstyle": "round,pad=0.35", "facecolor": _FILLS[row.kind], "edgecolor": "black"}
            axes.text(0.0, number, row.label, ha="center", va="center", color=ink, bbox=box, zorder=3)
            continue
        low, high = (tiers[end] for end in row.joins)
        colour = PALETTE[row.dimension % len(PALETTE)]
        if low == high:
            axes.plot([0.0, 0.22, 0.22], [low, low, number], color=colour, linewidth=1.6, zorder=1)
        else:
            passes = 0.0 if not any(low < tier < high for tier in tiers) else -0.5
            axes.plot(
                [0.0, passes, passes, 0.0], [low, low, high, high], color=colour, linewidth=2.2, zorder=1
            )
        axes.text(0.26, number, row.label, ha="left", va="center", fontsize=9, color=colour)
    axes.set_xlim(-0.6, 1.6)
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.axis("off")


def _draw_cells(axes: Any, picture: Picture, cells: _Cells) -> None:
    rows, columns = cells.load.shape
    edges = np.arange(columns + 1) * cells.group - 0.5
    heights = np.arange(rows + 1) - 0.5
    limits = {"vmin": 0.0, "vmax": 100 * picture.most}
    image = axes.pcolormesh(
        edges, heights, np.ma.masked_invalid(100 * cells.load), cmap=busy_colours(), **limits
    )
    for number in range(rows):
        axes.axhspan(number + 0.32, number + 0.68, color="white", linewidth=0)
    for code, colour, name in ((2, DEAD, "down"), (1, DERATED, "derated or timed fault")):
        where, column = np.nonzero(cells.faults == code)
        if len(where):
            middles = (column + 0.5) * cells.group - 0.5
            style = {"marker": "s", "s": 26, "color": colour, "zorder": 3, "clip_on": False}
            axes.scatter(middles, where, label=name, **style)
    several = f": a cell shows the busiest of {cells.group} and of what is next to them"
    axes.set_xlabel("GPUs" + (several if cells.group > 1 else ""))
    axes.tick_params(left=False, labelleft=False)
    axes.spines[:].set_visible(False)
    if np.isfinite(cells.load).any():
        add_scale(axes.figure, axes, image, picture)
    if (cells.faults > 0).any():
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=2, fontsize=8, frameon=False)
