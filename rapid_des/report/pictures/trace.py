"""A rank's dependency graph, or a window of it, as a picture: layers by depth, colours by kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rapid_des.chakra.statistics import depths, edges_of, path_lengths
from rapid_des.chakra.trace import NodeKind, NodeTable, RankTrace
from rapid_des.errors import TraceError
from rapid_des.report.pictures import new_figure, save
from rapid_des.report.trace_text import node_rows
from rapid_des.values import replace

MOST_NODES = 400
_LABEL_ALL = 40
_HOT = "#d62728"
_COLOURS = {
    NodeKind.COMPUTE: "#4c78a8",
    NodeKind.COLLECTIVE: "#f58518",
    NodeKind.SEND: "#54a24b",
    NodeKind.RECV: "#88d27a",
    NodeKind.MEM_LOAD: "#b279a2",
    NodeKind.MEM_STORE: "#d6a5c9",
    NodeKind.STORAGE: "#9d755d",
    NodeKind.DATA_OPERATION: "#9d755d",
    NodeKind.METADATA: "#bab0ac",
    NodeKind.INVALID: "#bab0ac",
}

Integers = NDArray[np.int64]
Heights = NDArray[np.float64]
_COLUMN_INCHES, _LINE_INCHES = 1.75, 0.62
_GAP = 1.7
"""Distance between bands, in lines."""
_LABEL = 30
"""Longest line of a label, in characters; columns are wide enough for it."""
_SHAPE = 1.6
"""Desired ratio of width to height."""


class WindowLayout(Struct, frozen=True):
    """Where each node of a window is drawn, its dependencies inside it, and the chain that takes longest."""

    column: Integers
    """[node] depth, folded into bands as text is into lines."""
    height: Heights
    """[node] vertical position in lines, upwards."""
    band: Integers
    edges: tuple[Integers, Integers]
    critical: Integers
    """[node] position on the longest chain, counted from 1; 0 elsewhere."""


_PER_NODE = (
    *("ids", "kind", "name", "stream", "duration", "size", "collective", "group", "peer"),
    *("tag", "priority", "flops", "tensor_bytes", "on_cpu"),
)


def window(nodes: NodeTable, first: int, count: int) -> NodeTable:
    """Return the table of some consecutive nodes; dependencies on nodes outside are left out."""
    last = min(first + count, len(nodes))
    if not 0 <= first < last:
        raise TraceError(f"--first {first}: the rank has {len(nodes)} nodes")
    edges = edges_of(nodes)
    inside = (edges.node >= first) & (edges.node < last) & (edges.needs >= first) & (edges.needs < last)
    starts = np.zeros(last - first + 1, np.int64)
    np.cumsum(np.bincount(edges.node[inside] - first, minlength=last - first), out=starts[1:])
    cut = {name: getattr(nodes, name)[first:last] for name in _PER_NODE}
    needs = (edges.needs[inside] - first).astype(np.int32)
    return replace(nodes, dependency_starts=starts, dependencies=needs, **cut)


def lay_out(nodes: NodeTable) -> WindowLayout:
    """Place nodes in columns by depth; within one, near the mean of what they need, to save crossings."""
    depth = depths(nodes) - 1
    edges = edges_of(nodes)
    line = np.zeros(len(nodes))
    for column in range(int(depth.max(initial=0)) + 1):
        members = np.flatnonzero(depth == column)
        wanted = [_mean_line(nodes, line, int(member)) for member in members]
        for place, index in enumerate(np.argsort(wanted, kind="stable")):
            line[members[index]] = place - (len(members) - 1) / 2
    columns, height, band = _fold(depth, line)
    return WindowLayout(columns, height, band, (edges.node, edges.needs), critical_chain(nodes))


def _fold(depth: Integers, line: Heights) -> tuple[Integers, Heights, Integers]:
    """Break a long graph into bands below each other so that the picture gets near `_SHAPE`."""
    columns, lines = int(depth.max(initial=0)) + 1, float(np.ptp(line)) + _GAP
    ratio = columns * _COLUMN_INCHES / (lines * _LINE_INCHES * _SHAPE)
    across = -(-columns // max(1, round(ratio**0.5)))
    band = depth // across
    top = 0.0
    height = np.zeros(len(line))
    for number in range(int(band.max(initial=0)) + 1):
        members = band == number
        height[members] = top - (line[members] - line[members].min())
        top = float(height[members].min()) - _GAP
    return depth % across, height, band


def _mean_line(nodes: NodeTable, line: Heights, member: int) -> float:
    needs = nodes.dependencies[nodes.dependency_starts[member] : nodes.dependency_starts[member + 1]]
    return float(line[needs].mean()) if len(needs) else 0.0


def critical_chain(nodes: NodeTable) -> Integers:
    """Return each node's place on one heaviest chain, from 1; by count of nodes where no time is stated."""
    weights = np.maximum(nodes.duration, 0)
    lengths = path_lengths(nodes, weights if weights.any() else np.ones(len(nodes), np.int64))
    chain = []
    current = int(lengths.argmax()) if len(nodes) else -1
    while current >= 0:
        chain.append(current)
        needs = nodes.dependencies[nodes.dependency_starts[current] : nodes.dependency_starts[current + 1]]
        current = int(needs[lengths[needs].argmax()]) if len(needs) else -1
    place = np.zeros(len(nodes), np.int64)
    place[chain[::-1]] = np.arange(1, len(chain) + 1)
    return place


def draw(rank: RankTrace, target: Path, *, first: int = 0, count: int = MOST_NODES) -> None:
    """Draw a rank's graph into a PNG, SVG or PDF file; more than `MOST_NODES` nodes are refused."""
    shown = min(count, len(rank.nodes) - first)
    if shown > MOST_NODES:
        raise TraceError(
            f"{shown} nodes would not be readable; choose a window of at most {MOST_NODES} (--first, --count)"
        )
    part = replace(rank, nodes=window(rank.nodes, first, count))
    figure = new_figure(target)
    layout = lay_out(part.nodes)
    lines = float(np.ptp(layout.height)) + 2.4
    figure.set_size_inches((int(layout.column.max()) + 1.6) * _COLUMN_INCHES, lines * _LINE_INCHES)
    _paint(figure.add_axes((0, 0, 1, 1)), part, layout)
    save(figure, target, dpi=110, bbox_inches="tight")


def _paint(axes: Any, rank: RankTrace, layout: WindowLayout) -> None:
    nodes = rank.nodes
    for child, parent in zip(*(side.tolist() for side in layout.edges), strict=True):
        _paint_edge(axes, layout, child, parent)
    for kind in NodeKind:
        rows = nodes.kind == kind
        if rows.any():
            place = (layout.column[rows], layout.height[rows])
            named = kind.name.lower().replace("_", " ")
            axes.scatter(*place, s=80, color=_COLOURS[kind], label=named, zorder=3)
    hot = layout.critical > 0
    axes.scatter(layout.column[hot], layout.height[hot], s=130, facecolors="none", edgecolors=_HOT, zorder=4)
    _label(axes, rank, layout)
    axes.axis("off")
    axes.set_ylim(float(layout.height.min()) - 1.2, float(layout.height.max()) + 1.2)
    axes.set_xlim(-0.8, float(layout.column.max()) + 0.8)
    title = f"rank {rank.rank}: {len(nodes)} nodes, what they need to their left; red: the longest chain"
    axes.set_title(title, fontsize=10)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=5, fontsize=8, frameon=False)


def _paint_edge(axes: Any, layout: WindowLayout, child: int, parent: int) -> None:
    """Draw a dependency; one that leads to a later band is a faint line between the bands."""
    ends = [parent, child]
    hot = bool(layout.critical[parent] and layout.critical[child] == layout.critical[parent] + 1)
    style = {"color": _HOT if hot else "#888888", "linewidth": 1.8 if hot else 0.6, "zorder": 2 if hot else 1}
    if layout.band[child] != layout.band[parent]:
        style |= {"linestyle": ":", "alpha": 0.6, "linewidth": 1.0 if hot else 0.3}
    axes.plot(layout.column[ends], layout.height[ends], **style)


def _label(axes: Any, rank: RankTrace, layout: WindowLayout) -> None:
    """Name every node of a small graph, the critical ones of a large one."""
    everything = len(rank.nodes) <= _LABEL_ALL
    for index, row in enumerate(node_rows(rank, 0, len(rank.nodes))):
        if not (everything or layout.critical[index]):
            continue
        text = _short(f"{row.id} {row.name}") + (f"\n{_short(row.amount())}" if row.amount() != "-" else "")
        axes.annotate(
            text.replace("$", r"\$"),
            (layout.column[index], layout.height[index]),
            xytext=(0, 8),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=6,
            bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
            zorder=5,
        )


def _short(text: str) -> str:
    """Return a line of a label with its middle left out where it is too long."""
    line = "".join(letter if letter.isprintable() else "·" for letter in " ".join(text.split()))
    return line if len(line) <= _LABEL else f"{line[: _LABEL // 2]}…{line[1 - _LABEL // 2 :]}"
