"""Boxes for the nodes of a fabric that are too many to look at: racks, servers, groups, blocks of a grid.

    grid     blocks of neighbouring GPUs, where they stand in the torus or mesh
    tiers    racks or servers side by side, above them the switches tier by tier
    groups   the groups of a dragonfly on a circle, with their routers, NICs and GPUs

A box can be looked into: its nodes, or boxes of fewer, and what they are cabled to.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rapid_des.arrays import Bools, Int64s
from rapid_des.machine import Machine
from rapid_des.network.dimensions import Dragonfly, DragonflyPlus
from rapid_des.network.fabric import Fabric
from rapid_des.report.pictures.fabric import Points, grid_points, tiers

MOST_NODES = 400
"""Up to this many nodes each one is shown, else boxes of several."""
_MOST_UNITS, _MOST_SWITCHES, _MOST_BLOCKS = 64, 32, 100
"""The largest numbers of boxes: of racks or groups, of switches of a tier, of blocks of a grid."""
_RACK = 32
"""A unit of at least this many GPUs is called a rack."""
_WIDTH, _RISE = 20.0, 4.0
"""The width of tiers and their distance, in units of a picture."""


class FabricUnits(Struct, frozen=True, eq=False):
    """The units of a fabric, each of which can be a box, or be together with its neighbours in one."""

    fabric: Fabric
    kind: str
    """`grid`, `tiers` or `groups`."""
    word: str
    """What a unit is called."""
    level: Int64s
    """[node] 0 within units, from 1 on the tier of the switches above them."""
    unit: Int64s
    """[node] the unit, or the place of a switch in its tier."""
    sizes: tuple[int, ...] = ()
    """The numbers of blocks along the axes of a grid."""


class FabricBoxes(Struct, frozen=True, eq=False):
    """Boxes that stand for nodes."""

    box: Int64s
    """[node] the number of its box; -1: it is not shown."""
    names: list[str]
    kinds: list[str]
    """The kind of each box: `gpu`, `nic`, `switch`, `rack` or `group`."""
    points: Points
    inside: int
    """The number of boxes; those from here on stand for what is beside them."""
    axes: tuple[int, ...] = ()
    """The sizes of the axes of a grid."""
    ids: Int64s | None = None
    """The number of each box in its grid."""

    def are_far(self, one: Int64s, other: Int64s) -> Bools:
        """Return which pairs of boxes are no neighbours in their grid: they are joined around it."""
        far = np.zeros(len(one), np.bool_)
        if self.ids is None:
            return far
        low, high = self.ids[one], self.ids[other]
        for size in self.axes:
            far |= np.abs(low % size - high % size) > 1
            low, high = low // size, high // size
        return far


def layout_of(machine: Machine) -> FabricUnits:
    """Return the units of a machine's fabric.

    >>> from rapid_des.machine import load_machine
    >>> [layout_of(load_machine(name)).word for name in ("torus_3d_a100", "gb200_nvl72_x8", "dgx_a100_x2")]
    ['block', 'rack', 'node']
    """
    fabric, last = machine.healthy, machine.spec.fabric[-1]
    if fabric.nodes == fabric.gpus:
        return _blocks(fabric)
    tier = tiers(fabric)
    across = fabric.dimension == fabric.dimension.max()
    outer = np.zeros(fabric.nodes, np.bool_)
    outer[fabric.source[across]] = outer[fabric.destination[across]] = True
    outer[: fabric.gpus + fabric.nics] = False
    unit = np.full(fabric.nodes, fabric.nodes, np.int64)
    inner = math.prod(size for extent in fabric.extents[:-1] for size in extent)
    if isinstance(last, Dragonfly | DragonflyPlus):
        routers = last.routers if isinstance(last, Dragonfly) else last.leaves
        ends = last.size * (inner if last.spans_inner else 1)
        first = outer & (tier == tier[outer].min())
        return _groups(fabric, first, unit, routers, -(-ends // last.hosts))
    inner = inner if len(fabric.extents) > 1 else machine.spec.gpus_per_node or 1
    unit[: fabric.gpus] = np.arange(fabric.gpus) // inner
    _spread(fabric, unit, ~outer)
    level = np.zeros(fabric.nodes, np.int64)
    level[outer] = 1 + np.unique(tier[outer], return_inverse=True)[1]
    for height in range(1, int(level.max()) + 1):
        members = np.flatnonzero(level == height)
        unit[members] = np.arange(len(members))
    word = "rack" if inner >= _RACK else "node" if inner > 1 else "GPU"
    return FabricUnits(fabric, "tiers", word, level, unit)


def _groups(fabric: Fabric, first: Bools, unit: Int64s, routers: int, each: int) -> FabricUnits:
    """Return the groups of a dragonfly; `first` are routers with endpoints, `each` those of a network."""
    members = np.flatnonzero(first)
    unit[members] = np.arange(len(members)) % max(-(-each // routers) * routers, routers) // routers
    _spread(fabric, unit, np.ones(fabric.nodes, np.bool_))
    return FabricUnits(fabric, "groups", "group", np.zeros(fabric.nodes, np.int64), unit)


def _spread(fabric: Fabric, unit: Int64s, allowed: Bools) -> None:
    """Give nodes without a unit the least one of their neighbours."""
    for _ in range(fabric.nodes):
        known = unit[fabric.source] < fabric.nodes
        open_ends = (unit[fabric.destination] == fabric.nodes) & allowed[fabric.destination] & known
        if not open_ends.any():
            return
        np.minimum.at(unit, fabric.destination[open_ends], unit[fabric.source[open_ends]])


def _blocks(fabric: Fabric) -> FabricUnits:
    """Return blocks of a grid: the longest axis is halved until there are few."""
    sizes = list(fabric.axes)
    while math.prod(sizes) > _MOST_BLOCKS:
        longest = sizes.index(max(sizes))
        sizes[longest] = -(-sizes[longest] // 2)
    unit, rest, factor = np.zeros(fabric.gpus, np.int64), np.arange(fabric.gpus), 1
    for size, count in zip(fabric.axes, sizes, strict=True):
        unit += factor * (rest % size * count // size)
        rest, factor = rest // size, factor * count
    return FabricUnits(fabric, "grid", "block", np.zeros(fabric.gpus, np.int64), unit, tuple(sizes))


def boxes_of(layout: FabricUnits, whole: FabricBoxes | None = None, number: int = 0) -> FabricBoxes:
    """Return the boxes of all nodes, or what is in one of those and beside it."""
    if whole is None:
        return _merged(layout, np.arange(layout.fabric.nodes))
    members = np.flatnonzero(whole.box == number)
    if len(members) <= MOST_NODES or layout.sizes:
        return _with_neighbours(layout, _single(layout, members), whole)
    return _with_neighbours(layout, _merged(layout, members), whole)


def _merged(layout: FabricUnits, members: Int64s) -> FabricBoxes:
    """Return boxes of neighbouring units, level by level."""
    box = np.full(layout.fabric.nodes, -1, np.int64)
    names, kinds, points = list[str](), list[str](), list[Points]()
    for level in np.unique(layout.level[members]).tolist():
        mine = members[layout.level[members] == level]
        units, place = np.unique(layout.unit[mine], return_inverse=True)
        most = _MOST_SWITCHES if level else max(_MOST_UNITS, _MOST_BLOCKS * bool(layout.sizes))
        count = min(len(units), most)
        place = place * count // len(units)
        box[mine] = place + len(names)
        firsts = np.searchsorted(np.arange(len(units)) * count // len(units), np.arange(count + 1))
        for number in range(count):
            inside = units[firsts[number] : firsts[number + 1]]
            names.append(_name(layout, level, mine, inside))
            kinds.append("switch" if level else "rack" if layout.kind == "tiers" else "group")
        points.append(_places(layout, level, count, units))
    ids = np.unique(layout.unit[members]) if layout.sizes else None
    return FabricBoxes(box, names, kinds, np.concatenate(points), len(names), layout.sizes, ids)


def _name(layout: FabricUnits, level: int, members: Int64s, units: Int64s) -> str:
    if level:
        nodes = members[np.isin(layout.unit[members], units)]
        switch = layout.fabric.node_name(int(nodes[0]))
        return switch if len(nodes) == 1 else f"{len(nodes)} switches from {switch}"
    first, last = int(units[0]), int(units[-1])
    return f"{layout.word} {first}" if first == last else f"{layout.word}s {first} to {last}"


def _places(layout: FabricUnits, level: int, count: int, units: Int64s) -> Points:
    if layout.sizes:
        return grid_points(layout.sizes)[units]
    if layout.kind == "groups":
        angle = np.pi / 2 - 2 * np.pi * np.arange(count) / max(count, 1)
        return 5.0 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    across = (np.arange(count) + 0.5) / count * _WIDTH
    return np.stack([across, np.full(count, level * _RISE)], axis=1)


def _single(layout: FabricUnits, members: Int64s) -> FabricBoxes:
    """Return a box for each node: a grid as it stands, else GPUs, NICs and switches row by row."""
    fabric = layout.fabric
    box = np.full(fabric.nodes, -1, np.int64)
    box[members] = np.arange(len(members))
    kind = np.searchsorted([fabric.gpus, fabric.gpus + fabric.nics], members, side="right")
    kinds = [("gpu", "nic", "switch")[each] for each in kind.tolist()]
    if layout.sizes:
        points = grid_points(fabric.axes)[members]
    else:
        row = np.where(kind == 2, 1 + _outwards(layout, members), kind)  # noqa: PLR2004 - a switch
        points = _rows(fabric, members, kind, row)
    names = [fabric.node_name(node) for node in members.tolist()]
    axes, ids = (fabric.axes, members) if layout.sizes else ((), None)
    return FabricBoxes(box, names, kinds, points, len(members), axes, ids)


def _outwards(layout: FabricUnits, members: Int64s) -> NDArray[np.int64]:
    """Return 1 and more for switches that lead out of a unit, -2 for those that GPUs alone are cabled to."""
    fabric = layout.fabric
    known = np.zeros(fabric.nodes, np.bool_)
    known[members] = True
    leads = ~known[fabric.source] | ((fabric.source >= fabric.gpus) & known[fabric.source])
    out = np.zeros(fabric.nodes, np.bool_)
    out[fabric.destination[leads]] = True
    return np.where(out[members] | (layout.level[members] > 0), 1, -2)


def _rows(fabric: Fabric, members: Int64s, kind: Int64s, row: NDArray[np.int64]) -> Points:
    """Return places row by row; neighbours in a row of switches bend it, so that their cables can be seen."""
    points = np.zeros((len(members), 2))
    linked = np.zeros(fabric.nodes, np.bool_)
    linked[fabric.source[fabric.destination >= fabric.gpus + fabric.nics]] = True
    for height in np.unique(row).tolist():
        mine = np.flatnonzero(row == height)
        across = (np.arange(len(mine)) + 0.5) / len(mine)
        bent = kind[mine] == 2  # noqa: PLR2004 - a switch
        bow = 0.35 * _RISE * (4 * (across - 0.5) ** 2 - 1) * (bent & linked[members[mine]])
        points[mine] = np.stack([across * _WIDTH, height * _RISE - bow], axis=1)
    return points


def _with_neighbours(layout: FabricUnits, found: FabricBoxes, whole: FabricBoxes) -> FabricBoxes:
    """Return boxes with those of the overview to which they are cabled; a grid is shown alone."""
    fabric, box = layout.fabric, found.box
    if layout.sizes:
        return found
    beside = np.unique(fabric.destination[(box[fabric.source] >= 0) & (box[fabric.destination] < 0)])
    if not len(beside):
        return found
    numbers, place = np.unique(whole.box[beside], return_inverse=True)
    filled = box.copy()
    filled[beside] = found.inside + place
    top = float(found.points[:, 1].max()) + _RISE
    across = (np.arange(len(numbers)) + 0.5) / len(numbers) * _WIDTH
    points = np.concatenate([found.points, np.stack([across, np.full(len(numbers), top)], axis=1)])
    names = found.names + [whole.names[number] for number in numbers.tolist()]
    kinds = found.kinds + [whole.kinds[number] for number in numbers.tolist()]
    return FabricBoxes(filled, names, kinds, points, found.inside)
