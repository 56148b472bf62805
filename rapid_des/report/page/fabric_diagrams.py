"""Diagrams of a fabric: nodes and cables, or boxes of nodes with what joins them, and what is in a box."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rapid_des.arrays import Int64s
from rapid_des.machine import Machine
from rapid_des.report.charts import Diagram, DiagramShape
from rapid_des.report.colours import BUSY
from rapid_des.report.fabric_boxes import MOST_NODES, FabricBoxes, FabricUnits, boxes_of, layout_of
from rapid_des.report.link_measures import BINS, LinkMeasure, LinksSeen
from rapid_des.report.page.svg import round_step
from rapid_des.report.pictures.fabric import (
    Picture,
    cable_lines,
    cables_of,
    curved,
    darkest,
    node_positions,
    on_circle,
    troubled,
)
from rapid_des.units import Duration
from rapid_des.values import replace

ROOM = 4_000
"""The number of nodes in the boxes that a page can open: those with faults, then the busiest."""
_MOST_OPENED = 16
_KINDS = ("gpu", "nic", "switch")
_WHOLE = {
    "grid": "blocks of neighbouring GPUs where they stand in the grid",
    "tiers": "{word}s side by side, above them the switches tier by tier",
    "groups": "groups with the global links between them; a group's colour is that of its own links",
}


class _Bundles(Struct, frozen=True, eq=False):
    """The links of a diagram, in bundles that are drawn as one."""

    bundle: Int64s
    """[link] its bundle; -1: it is not shown."""
    names: Sequence[str]
    """The name of each bundle: a cable as --fault names it, with a `>` between its ends."""
    lines: Sequence[NDArray[np.float64]]
    """The line of each bundle; those beyond are inside of boxes."""


def level_of(value: float, most: float) -> int:
    """Return the number of the colour of a figure: 0 for none, the others in equal steps.

    >>> [level_of(share, 0.5) for share in (0, 0.01, 0.25, 0.5)]
    [0, 1, 3, 4]
    """
    return min(1 + int((len(BUSY) - 1) * value / most), len(BUSY) - 1) if value else 0


def diagrams(machine: Machine, drawn: Picture, seen: LinksSeen, room: int = ROOM) -> Iterator[Diagram]:
    """Yield the fabric, and if it is large what is in the boxes that matter most, up to `room` nodes."""
    if drawn.fabric.nodes <= MOST_NODES:
        yield _of_nodes(drawn, seen)
        return
    layout = layout_of(machine)
    boxes = boxes_of(layout)
    opened = _to_open(drawn, boxes, room)
    title = _WHOLE[layout.kind].format(word=layout.word)
    yield _of_boxes(drawn, seen, (layout, boxes), title, opened)
    for number in opened:
        yield _opened(drawn, seen, layout, boxes, number)


def _opened(drawn: Picture, seen: LinksSeen, layout: FabricUnits, boxes: FabricBoxes, number: int) -> Diagram:
    inside = boxes_of(layout, boxes, number)
    name = boxes.names[number]
    return replace(_of_boxes(drawn, seen, (layout, inside), f"inside {name}"), name=name)


def _to_open(drawn: Picture, boxes: FabricBoxes, room: int) -> list[int]:
    """Return the boxes with faults, then those with the busiest links, then the first ones, at least one."""
    dead, derated = troubled(drawn)
    weight = np.zeros(len(drawn.fabric))
    weight[list(drawn.load or {})] = list((drawn.load or {}).values())
    weight += 2.0 * dead + 1.0 * derated
    most = np.zeros(len(boxes.names))
    for ends in (drawn.fabric.source, drawn.fabric.destination):
        np.maximum.at(most, boxes.box[ends], weight)
    order = np.argsort(-most, kind="stable")
    size = np.bincount(boxes.box, minlength=len(most))
    order = order[size[order] > 1]
    shown = size if boxes.axes else np.minimum(size, MOST_NODES)  # a block of a grid shows all of them
    nodes = np.cumsum(shown[order])
    few = min(max(int(np.searchsorted(nodes, room, "right")), 1), _MOST_OPENED)
    return sorted(order[:few].tolist())


def _of_nodes(drawn: Picture, seen: LinksSeen) -> Diagram:
    fabric = drawn.fabric
    points = node_positions(fabric, on_circle=on_circle(drawn))
    cables, first = cables_of(fabric)
    lines = cable_lines(fabric, first, points, straight=on_circle(drawn))
    names = [fabric.link_name(link) for link in first.tolist()]
    nodes = []
    for node, (x, y) in enumerate(points.tolist()):
        kind = _KINDS[(node >= fabric.gpus) + (node >= fabric.gpus + fabric.nics)]
        label = str(node) if kind == "gpu" else ""
        nodes.append(DiagramShape([(x, y)], f"{kind.replace('gpu', 'GPU')} {node}", kind=kind, label=label))
    title = "every GPU, switch and cable"
    title += "; colours are those of a cable's busier direction" if drawn.load else ""
    bundles = _Bundles(cables, names, [_straight(line) for line in lines])
    shapes = list(_shapes(drawn, seen, bundles))
    return Diagram(title, shapes, nodes, _scales(seen), _times(seen))


def _straight(line: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ends of a line that does not bend, else all of its points."""
    middle = line[len(line) // 2]
    return line[[0, -1]] if np.allclose(middle, (line[0] + line[-1]) / 2) else line


def _of_boxes(
    drawn: Picture,
    seen: LinksSeen,
    placed: tuple[FabricUnits, FabricBoxes],
    title: str,
    opens: Sequence[int] = (),
) -> Diagram:
    """Return boxes and what joins them; those whose numbers are in `opens` have diagrams of their own."""
    _, boxes = placed
    fabric = drawn.fabric
    ends = np.sort(np.stack([boxes.box[fabric.source], boxes.box[fabric.destination]]), axis=0)
    shown = (ends[0] >= 0) & (ends[0] < boxes.inside)
    apart = shown & (ends[0] != ends[1])
    keys, place = np.unique(ends[:, apart], axis=1, return_inverse=True)
    bundle = np.full(len(fabric), -1, np.int64)
    bundle[apart] = place.ravel()
    within = shown & ~apart
    bundle[within] = keys.shape[1] + ends[0, within]
    single = [kind in _KINDS and " " not in name for kind, name in zip(boxes.kinds, boxes.names, strict=True)]
    names = [
        f"{boxes.names[a]}{'>' if single[a] and single[b] else ' to '}{boxes.names[b]}"
        for a, b in keys.T.tolist()
    ]
    bent = curved(boxes.points[keys[0]], boxes.points[keys[1]], bent=boxes.are_far(*keys))
    every = list(
        _shapes(drawn, seen, _Bundles(bundle, names + boxes.names, [_straight(line) for line in bent]))
    )
    cables, inner = [shape for shape in every if shape.points], [shape for shape in every if not shape.points]
    own = {shape.title.partition(":")[0]: shape for shape in inner}
    nodes = [
        _box(boxes, number, own.get(name), name if number in opens else "")
        for number, name in enumerate(boxes.names)
    ]
    return Diagram(title, cables, nodes, _scales(seen), _times(seen))


def _box(boxes: FabricBoxes, number: int, own: DiagramShape | None, opens: str) -> DiagramShape:
    x, y = boxes.points[number].tolist()
    title = boxes.names[number] if own is None else own.title
    beside = number >= boxes.inside
    return DiagramShape(
        [(x, y)],
        title + (" (beside it)" if beside else ""),
        () if own is None or beside else own.levels,
        () if own is None or beside else own.over_time,
        "" if own is None else own.state,
        kind=boxes.kinds[number],
        opens=opens,
    )


def _shapes(drawn: Picture, seen: LinksSeen, bundles: _Bundles) -> Iterator[DiagramShape]:
    """Yield the bundles of links, the busiest last; those inside of boxes have no line."""
    count = len(bundles.names)
    shown = np.flatnonzero(bundles.bundle >= 0)
    bundle = bundles.bundle[shown]
    size = np.bincount(bundle, minlength=count)
    dead, derated = (np.bincount(bundle[mask[shown]], minlength=count) for mask in troubled(drawn))
    figures = [_largest(measure.values[shown], bundle, count) for measure in seen.measures]
    levels = [
        [level_of(value, most) for value in column.tolist()]
        for column, most in zip(figures, map(_most, seen.measures), strict=True)
    ]
    moving = _moving(seen, shown, bundle, count)
    for number in np.argsort(figures[0], kind="stable").tolist():
        if not size[number]:
            continue
        state = (
            "down" if dead[number] == size[number] else "derated" if dead[number] or derated[number] else ""
        )
        pairs = zip(seen.measures, figures, strict=True)
        texts = [measure.text(float(column[number])) for measure, column in pairs]
        name, line = bundles.names[number], bundles.lines[number] if number < len(bundles.lines) else ()
        words = _in_words(int(size[number]), int(dead[number]), int(derated[number]), cable=">" in name)
        yield DiagramShape(
            [(float(x), float(y)) for x, y in line],
            f"{name}: {', '.join(filter(None, [words, *(texts if state != 'down' and drawn.load else [])]))}",
            [column[number] for column in levels],
            moving[number],
            state,  # type: ignore[arg-type] # one of the three
            link=name.replace(">", "-") if ">" in name else "",
        )


def _in_words(size: int, dead: int, derated: int, *, cable: bool) -> str:
    """Return the number of links of a bundle, and what is wrong with them.

    >>> _in_words(8, 2, 0, cable=False), _in_words(2, 2, 0, cable=True), _in_words(2, 0, 0, cable=True)
    ('8 links, 2 of them down', 'down', '')
    """
    if cable:
        return "down" if dead else "derated" if derated else ""
    wrong = [f"{count} of them {what}" for count, what in ((dead, "down"), (derated, "derated")) if count]
    return ", ".join([f"{size:,} links", *wrong])


def _largest(values: NDArray[np.float64], bundle: Int64s, count: int) -> NDArray[np.float64]:
    found = np.zeros(count)
    np.maximum.at(found, bundle, values)
    return found


def _moving(seen: LinksSeen, shown: Int64s, bundle: Int64s, count: int) -> list[list[int]]:
    """Return the colours of each bundle over time, on the scale of the first measure."""
    if seen.over_time is None:
        return [[]] * count
    rows = np.stack([_largest(row[shown], bundle, count) for row in seen.over_time])
    most = max(float(seen.over_time.max()), 1e-12)
    levels = np.minimum(np.ceil((len(BUSY) - 1) * rows / most), len(BUSY) - 1).astype(np.int64)
    return [column.tolist() for column in levels.T]


def _most(measure: LinkMeasure) -> float:
    """Return the figure of the darkest colour, a round one."""
    most = float(measure.values.max(initial=0.0)) or 1.0
    return darkest(most) if measure.unit.startswith("%") else round_step(most)


def _scales(seen: LinksSeen) -> list[tuple[str, list[str]]]:
    return [(measure.name, _scale(measure)) for measure in seen.measures if measure.values.any()]


def _scale(measure: LinkMeasure) -> list[str]:
    """Return the texts of the colours of a measure."""
    steps, factor = len(BUSY) - 1, 100.0 if measure.unit.startswith("%") else 1.0
    ends = [f"{factor * _most(measure) * step / steps:.3g}" for step in range(steps + 1)]
    return ["none", *(f"{low} to {high} {measure.unit}" for low, high in pairwise(ends))]


def _times(seen: LinksSeen) -> list[str]:
    if seen.over_time is None:
        return []
    edges = [Duration(seen.end * step // BINS) for step in range(BINS + 1)]
    return [f"{low} to {high}" for low, high in pairwise(edges)]
