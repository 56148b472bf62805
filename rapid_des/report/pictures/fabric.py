"""Drawing a fabric: where nodes stand, dimensions by colour, faults and load on top (extra `plot`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rapid_des.arrays import Int64s, entries_of
from rapid_des.machine import Machine
from rapid_des.network.fabric import Fabric
from rapid_des.network.faults import hits, touches_links
from rapid_des.network.routing import compressed
from rapid_des.report.pictures import new_figure, save
from rapid_des.units import Bandwidth

Points = NDArray[np.float64]


def node_positions(fabric: Fabric, *, on_circle: bool) -> Points:
    """Return (x, y) of each node, about a unit apart; `on_circle` is for one axis without switches."""
    if fabric.nodes > fabric.gpus:
        level, across = layers(fabric)
        return np.stack([across, level * max(1.5, 0.16 * fabric.gpus)], axis=1).astype(np.float64)
    if is_hypercube(fabric):
        return _karnaugh(fabric.gpus)
    if on_circle:
        return _circle(fabric.gpus)
    return grid_points(fabric.axes)


def is_hypercube(fabric: Fabric) -> bool:
    """Whether every GPU is linked with exactly those whose id differs in one bit."""
    bits = fabric.gpus.bit_length() - 1
    if fabric.nodes > fabric.gpus or fabric.gpus != 1 << bits or len(fabric) != bits * fabric.gpus:
        return False
    differing = fabric.source ^ fabric.destination
    return bits > 2 and bool(((differing & (differing - 1)) == 0).all())  # noqa: PLR2004 - a square


def _karnaugh(count: int) -> Points:
    """Lay out a hypercube as a Karnaugh map: half of the bits across, half up, both in Gray's order.

    Each bit's links then run along a row or a column, next to each other or in arcs of one pattern.
    """
    bits = count.bit_length() - 1
    low = (bits + 1) // 2
    rank = np.empty(1 << low, np.int64)
    order = np.arange(1 << low)
    rank[order ^ (order >> 1)] = order
    ids = np.arange(count)
    return 1.4 * np.stack([rank[ids & ((1 << low) - 1)], rank[ids >> low]], axis=1).astype(np.float64)


def _circle(count: int) -> Points:
    angle = np.pi / 2 - 2 * np.pi * np.arange(count) / max(count, 1)
    return np.stack([np.cos(angle), np.sin(angle)], axis=1) * max(1.0, count / 5)


def grid_points(axes: Sequence[int]) -> Points:
    """Lay two axes flat, lean the third into the distance, and set the tiles of the others side by side."""
    digits, rest = [], np.arange(math.prod(axes))
    for size in axes:
        digits.append(rest % size)
        rest = rest // size
    across, up, deep = (digits[axis] if axis < len(digits) else 0 * rest for axis in range(3))
    sizes = (*axes, 1, 1, 1)
    apart, lean = (2.0, 1.6 / sizes[2]) if sizes[2] > 1 else (1.0, 0.0)
    x = apart * across + lean * deep
    y = apart * up + 0.6 * lean * deep
    columns = math.ceil(math.sqrt(math.prod(axes[3:])))
    tile = sum(digit * math.prod(axes[3:axis]) for axis, digit in enumerate(digits) if axis >= 3)
    x = x + (tile % columns) * (apart * sizes[0] + 1.0)
    y = y + (tile // columns) * (apart * sizes[1] + 1.0)
    return np.stack([x, y], axis=1).astype(np.float64)


def layers(fabric: Fabric) -> tuple[Int64s, Points]:
    """Return each node's level and place across; GPUs are at level 0, place id.

    What the innermost of several dimensions adds is below, all else above, tier by tier.
    """
    tier = tiers(fabric)
    below = np.zeros(fabric.nodes, bool)
    if len(fabric.dimensions) > 1:
        inner = fabric.dimension == 0
        ends = np.concatenate([fabric.source[inner], fabric.destination[inner]])
        below[ends[ends >= fabric.gpus]] = True
    level = np.where(below, -tier, tier)
    x, width = np.arange(fabric.nodes, dtype=np.float64), max(fabric.gpus - 1, 1)
    for height in np.unique(level[fabric.gpus :]):
        members = np.flatnonzero(level == height)
        x[members] = _spread(fabric, members, x, tier, width)
    return level, x


def tiers(fabric: Fabric) -> Int64s:
    """Return how far from the GPUs a node stands over NICs and switches alone."""
    tier = np.where(np.arange(fabric.nodes) < fabric.gpus, 0, -1)
    starts, links = compressed(fabric.source.astype(np.int64), fabric.nodes)
    frontier: Int64s = np.arange(fabric.gpus)
    while len(frontier):
        reached = np.unique(fabric.destination[links[entries_of(starts, frontier)]]).astype(np.int64)
        reached = reached[tier[reached] < 0]
        tier[reached] = tier[frontier[0]] + 1
        frontier = reached
    return np.maximum(tier, 1) * (np.arange(fabric.nodes) >= fabric.gpus)


def _spread(fabric: Fabric, members: Int64s, x: Points, tier: Int64s, width: float) -> Points:
    """Return even places for a tier's nodes, ordered by the mean place of the nodes below them."""
    lower = (tier[fabric.source] == tier[members[0]] - 1) & np.isin(fabric.destination, members)
    served = np.bincount(fabric.destination[lower], x[fabric.source[lower]], fabric.nodes)[members]
    count = np.maximum(np.bincount(fabric.destination[lower], minlength=fabric.nodes)[members], 1)
    order = np.lexsort((members, served / count))
    even = (np.arange(len(members)) + 0.5) / len(members) * (width + 1) - 0.5
    spread = np.empty(len(members))
    spread[order] = even
    return spread


PALETTE = ("#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8C6D31")
DERATED, DEAD = "#E69F00", "#D00000"
_IDLE = "#D9D9D9"
_BUSY = (_IDLE, "#9ECAE1", "#2B7BBA", "#0B3C7D", "#050B2E")
_CURVE = np.linspace(0.0, 1.0, 13)[None, :, None]


_SCALES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)


class Picture(Struct, frozen=True, eq=False):
    """The content of a fabric's drawing."""

    title: str
    fabric: Fabric
    healthy: Fabric
    """The fabric without faults: links with less bandwidth or more latency than there are marked."""
    dead: frozenset[int]
    changing: frozenset[int]
    """Links that timed faults affect."""
    load: Mapping[int, float] | None
    """Utilisation of links, 0 to 1: colours them instead of their dimensions; if empty they are grey."""
    circular: bool
    """Whether a fabric of one axis and without switches is drawn as a circle rather than as a line."""
    load_label: str = "utilisation of the busier direction"
    """Description of `load`."""
    gpu_load: Mapping[int, float] | None = None
    """Utilisation of GPUs, 0 to 1, which colours them."""
    node_load: Mapping[int, float] | None = None
    """Utilisation of all nodes, 0 to 1: fills NICs and switches, and outlines GPUs that `gpu_load` fills."""
    per_server: int | None = None
    """Number of GPUs of a server."""

    @property
    def most(self) -> float:
        """The load of the darkest colour: a round share not below any of the loads."""
        loads = [0.0, *(self.load or {}).values(), *(self.gpu_load or {}).values()]
        loads += (self.node_load or {}).values()
        return darkest(max(loads))


def darkest(most: float) -> float:
    """Return the share of the darkest colour: a round one that is not below the largest."""
    return next((share for share in _SCALES if share >= most), 1.0)


def picture(machine: Machine, load: Mapping[int, float] | None = None) -> Picture:
    """Return what a drawing of a machine shows: its faults, and the utilisation of its links if given.

    `load` is the utilisation, 0 to 1, by link id.

    >>> from rapid_des.machine import load_machine
    >>> picture(load_machine("torus_2d_a100")).title
    '8x8 torus of A100: 64 GPUs, 256 directed links'
    """
    changing = {
        link
        for fault, hit in hits(machine.healthy, machine.faults, machine.spec.gpus_per_node)
        if fault.timed and touches_links(fault)
        for link in hit.links.tolist()
    }
    shapes = [dimension.__struct_config__.tag for dimension in machine.spec.fabric]
    figures = f"{machine.fabric.gpus:,} GPUs, {len(machine.fabric):,} directed links"
    return Picture(
        title=f"{machine.name}: {figures}" + (f", {len(machine.dead):,} dead" if machine.dead else ""),
        fabric=machine.fabric,
        healthy=machine.healthy,
        dead=machine.dead,
        changing=frozenset(changing),
        load=load,
        circular=shapes != ["mesh"],
        per_server=machine.spec.gpus_per_node,
    )


def draw_nodes(picture: Picture, path: Path | None) -> Any:
    """Draw every node and link; return the figure."""
    fabric = picture.fabric
    points = node_positions(fabric, on_circle=on_circle(picture))
    span = np.maximum(points.max(axis=0) - points.min(axis=0), 1.0)
    scale = min(14 / float(span.max()), 0.9)
    figure = new_figure(path, figsize=(max(6.5, span[0] * scale + 1), max(3.0, span[1] * scale + 1.5)))
    from matplotlib.collections import LineCollection

    axes = figure.add_subplot()
    _draw_links(axes, LineCollection, picture, points)
    _draw_nodes(axes, picture, points, scale)
    axes.set_title(picture.title, fontsize=11)
    axes.set_aspect("equal")
    axes.margins(0.04)
    axes.axis("off")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncol=3, fontsize=8, frameon=False)
    return save(figure, path, dpi=130, bbox_inches="tight")


def on_circle(picture: Picture) -> bool:
    """Whether the GPUs stand on a circle."""
    fabric = picture.fabric
    one_axis = len(fabric.axes) == 1 and fabric.nodes == fabric.gpus
    return picture.circular and one_axis and not is_hypercube(fabric)


def _draw_links(axes: Any, collections: Any, picture: Picture, points: Points) -> None:
    fabric = picture.fabric
    cables, first = cables_of(fabric)
    dead, derated = broken(picture, cables, first)
    lines = cable_lines(fabric, first, points, straight=on_circle(picture))
    plain = ~dead & ~derated
    if picture.load is not None:
        shares = busier(picture.load, cables)[~dead]
        _draw_load(axes, collections, lines[~dead], shares, picture)
    else:
        sorts, names = _sorts(fabric, first)
        for index, name in enumerate(names):
            mine = plain & (sorts == index)
            rates = sorted(set(fabric.bandwidth[first][mine].tolist()))
            label = f"{name}: {', '.join(str(Bandwidth(rate)) for rate in rates[:3])}"
            colour = PALETTE[index % len(PALETTE)]
            axes.add_collection(
                collections(lines[mine], colors=colour, linewidths=0.9, label=label, zorder=1)
            )
        _add(
            axes, collections, lines[derated], label="derated or timed fault", colors=DERATED, linewidths=2.4
        )
    _add(axes, collections, lines[dead], label="down", colors=DEAD, linewidths=1.8, linestyles=(0, (3, 2)))
    axes.autoscale_view()


def _add(axes: Any, collections: Any, lines: Points, **style: Any) -> None:
    if len(lines):
        axes.add_collection(collections(lines, zorder=2, **style))


def _sorts(fabric: Fabric, first: Int64s) -> tuple[Int64s, Sequence[str]]:
    """Return the colour class of each cable, and the names of the classes.

    A class is a dimension; of hypercubes a bit, of deep grids an axis, which would be hard to distinguish.
    """
    if is_hypercube(fabric):
        bits = np.log2(fabric.source[first] ^ fabric.destination[first]).round().astype(np.int64)
        return bits, [f"ids {1 << bit} apart" for bit in range(int(bits.max()) + 1)]
    dimension = fabric.dimension[first].astype(np.int64)
    if len(fabric.dimensions) > 1 or fabric.nodes > fabric.gpus or len(fabric.axes) < 3:  # noqa: PLR2004
        return dimension, fabric.dimensions or ("links",)
    axis = axis_of(fabric, first)
    return axis, [axis_name(fabric, 0, number) for number in range(int(axis.max()) + 1)]


def axis_of(fabric: Fabric, first: Int64s) -> Int64s:
    """Return the axis along which a cable joins two GPUs, the number of axes if several; 0 with switches."""
    if fabric.nodes > fabric.gpus or len(fabric.axes) < 2:  # noqa: PLR2004 - else there is one axis
        return np.zeros(len(first), np.int64)
    start, end = fabric.source[first].astype(np.int64), fabric.destination[first].astype(np.int64)
    axis, steps = np.zeros(len(first), np.int64), np.zeros(len(first), np.int64)
    for number, size in enumerate(fabric.axes):
        moves = start % size != end % size
        axis[moves], steps = number, steps + moves
        start, end = start // size, end // size
    return np.where(steps > 1, len(fabric.axes), axis)


def axis_name(fabric: Fabric, dimension: int, axis: int) -> str:
    """Return the label of cables of a dimension along an axis."""
    name = fabric.dimensions[dimension] if fabric.dimensions else "links"
    if fabric.nodes > fabric.gpus or len(fabric.axes) < 2:  # noqa: PLR2004 - one axis needs no number
        return name
    return f"{name}, diagonal" if axis == len(fabric.axes) else f"{name}, axis {axis}"


def troubled(picture: Picture) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return of each link whether it is down, and whether it is derated or a timed fault hits it."""
    fabric = picture.fabric
    dead = np.zeros(len(fabric), np.bool_)
    dead[sorted(picture.dead)] = True
    derated = (fabric.bandwidth < picture.healthy.bandwidth) | (fabric.latency > picture.healthy.latency)
    derated[sorted(picture.changing)] = True
    return dead, derated & ~dead


def broken(picture: Picture, cables: Int64s, first: Int64s) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return of each cable whether it is down, and whether it is derated or a timed fault hits it."""
    hit = np.zeros((2, len(first)), np.bool_)
    for row, links in zip(hit, troubled(picture), strict=True):
        row[cables[links]] = True
    return hit[0], hit[1] & ~hit[0]


def busier(load: Mapping[int, float], cables: Int64s) -> Points:
    """Return the load of each cable's busier direction."""
    shares = np.zeros(int(cables.max(initial=-1)) + 1)
    np.maximum.at(shares, cables[list(load)], list(load.values()))
    return shares


def busy_colours() -> Any:
    """Return the colours of loads, from light grey (idle) to nearly black."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("busy", _BUSY)


def add_scale(figure: Any, axes: Any, mappable: Any, picture: Picture) -> None:
    """Add the legend of the loads' colours."""
    bar = figure.colorbar(mappable, ax=axes, shrink=0.7, aspect=28, pad=0.02)
    bar.set_label(picture.load_label, fontsize=8)
    bar.ax.tick_params(labelsize=8)
    bar.ax.yaxis.set_major_formatter(lambda share, _: f"{share:.3g} %".replace(" ", "\N{NO-BREAK SPACE}"))


def _draw_load(axes: Any, collections: Any, lines: Points, shares: Points, picture: Picture) -> None:
    """Colour each cable by its busier direction, the busiest on top and widest."""
    order = np.argsort(shares, kind="stable")
    widths = 0.8 + 2.4 * shares[order] / picture.most
    drawn = collections(lines[order], linewidths=widths, cmap=busy_colours(), zorder=1)
    drawn.set_array(100 * shares[order])
    drawn.set_clim(0.0, 100 * picture.most)
    axes.add_collection(drawn)
    if picture.load or picture.gpu_load or picture.node_load:
        add_scale(axes.figure, axes, drawn, picture)


def cables_of(fabric: Fabric) -> tuple[Int64s, Int64s]:
    """Return the cable of each link, and a link of each cable: both directions are one cable."""
    ends = np.sort(np.stack([fabric.source, fabric.destination], axis=1), axis=1)
    _, first, cable = np.unique(ends, axis=0, return_index=True, return_inverse=True)
    return cable.ravel(), first


def curved(start: Points, end: Points, *, bent: NDArray[np.bool_]) -> Points:
    """Return lines from starts to ends; those that are `bent` are bows."""
    along = (end - start)[:, None, :]
    length = np.linalg.norm(along, axis=2, keepdims=True)
    aside = np.stack([-along[..., 1], along[..., 0]], axis=2) / np.maximum(length, 1e-9)
    height = np.where(bent[:, None, None], 0.12 * np.minimum(length, 6.0 + 0.1 * length), 0.0)
    lines: Points = start[:, None, :] + _CURVE * along + 4 * _CURVE * (1 - _CURVE) * height * aside
    return lines


def cable_lines(fabric: Fabric, first: Int64s, points: Points, *, straight: bool) -> Points:
    """Return a polyline a cable, bent where a straight one would run through other nodes."""
    start, end = points[fabric.source[first]][:, None, :], points[fabric.destination[first]][:, None, :]
    along = end - start
    length = np.linalg.norm(along, axis=2, keepdims=True)
    layered = fabric.nodes > fabric.gpus
    flat = np.abs(along) < 1e-9
    level, nearest = flat[..., 1:], length.min(initial=np.inf)
    if not layered:
        deep = (axis_of(fabric, first) == 2)[:, None, None]  # noqa: PLR2004 - the axis that leans
        level = flat.any(axis=2, keepdims=True) | deep
        nearest = np.where(deep, length[deep].min(initial=np.inf), _unit(fabric))
    height = (
        0.08 * fabric.gpus**0.5 * length**0.5 if layered else 0.12 * np.minimum(length, 6.0 + 0.1 * length)
    )
    bend = np.where(level & (length > 1.5 * nearest) & (not straight), height, 0.0)
    upward = np.where(along[..., :1] < 0, -1.0, 1.0)
    aside = np.stack([-along[..., 1], along[..., 0]], axis=2) * upward / np.maximum(length, 1e-9)
    curve: Points = start + _CURVE * along + 4 * _CURVE * (1 - _CURVE) * bend * aside
    return curve


def _unit(fabric: Fabric) -> float:
    return 2.0 if len(fabric.axes) > 2 and fabric.axes[2] > 1 else 1.0


def _draw_nodes(axes: Any, picture: Picture, points: Points, scale: float) -> None:
    fabric = picture.fabric
    size = float(np.clip(240 * scale * scale, 9, 160))
    ends = (0, fabric.gpus, fabric.gpus + fabric.nics, fabric.nodes)
    kinds = (("GPU", "o", "white"), ("NIC", "v", "#BBBBBB"), ("switch", "s", "#555555"))
    for (name, marker, colour), start, end in zip(kinds, ends[:-1], ends[1:], strict=True):
        if start < end:
            where = points[start:end]
            style = _filling(picture, range(start, end), colour)
            rim = ", rim: their links" if np.ndim(style["edgecolors"]) > 1 else ""
            label = f"{end - start} {plural(name, end - start)}{rim}"
            style |= {"s": size, "marker": marker, "label": label, "clip_on": False}
            axes.scatter(where[:, 0], where[:, 1], zorder=3, **style)
    if fabric.gpus <= 128 and size > 60:
        for gpu in range(fabric.gpus):
            dark = (picture.gpu_load or picture.node_load or {}).get(gpu, 0.0) > 0.4 * picture.most
            ink = "white" if dark else "black"
            axes.annotate(str(gpu), points[gpu], ha="center", va="center", fontsize=6, color=ink, zorder=4)


def _filling(picture: Picture, nodes: range, colour: str) -> dict[str, Any]:
    """Return fill and outline of nodes of one kind: by their load where it is given."""
    loads, on_gpus = picture.node_load or {}, nodes.start < picture.fabric.gpus
    node_loads = picture.gpu_load if on_gpus and picture.gpu_load is not None else loads
    style: dict[str, Any] = {"edgecolors": "black", "linewidths": 0.6, "c": colour}
    if not node_loads.keys().isdisjoint(nodes):
        shares = [node_loads.get(node, 0.0) for node in nodes]
        style |= {"c": shares, "cmap": busy_colours(), "vmin": 0.0, "vmax": picture.most}
    if node_loads is not loads and not loads.keys().isdisjoint(nodes):
        outline = busy_colours()(np.array([loads.get(node, 0.0) for node in nodes]) / picture.most)
        style |= {"edgecolors": outline, "linewidths": 2.2}
    return style


def plural(noun: str, count: int) -> str:
    """Return a noun of a count: GPU, GPUs; switch, switches."""
    return noun if count == 1 else noun + ("es" if noun.endswith("ch") else "s")
