"""A picture of a step's pipeline schedule as it was simulated: stages as rows, passes as boxes.

Forwards are blue, whole backwards green, backwards for inputs teal and for weights yellow, the optimizer's
part grey. The first chunk of a stage is dark, further ones lighter; in a box stands its micro-batch. A pair
that runs as one has a forward above a backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rapid_des.chakra.trace import NodeKind
from rapid_des.errors import InputError
from rapid_des.frontend.trace import JobTrace
from rapid_des.modes.execution import Run
from rapid_des.report.breakdown import rank_times
from rapid_des.report.pictures import new_figure, save
from rapid_des.units import PS_PER_S, Duration

_OPTIMIZER = "optimizer"
_COLOURS: Mapping[str, tuple[float, float, float]] = {
    "forward": (0.17, 0.36, 0.68),
    "backward": (0.13, 0.50, 0.25),
    "input_gradient": (0.10, 0.50, 0.52),
    "weight_gradient": (0.80, 0.58, 0.10),
    _OPTIMIZER: (0.45, 0.45, 0.45),
}
_NAMES = {
    "forward": "forward",
    "backward": "backward",
    "input_gradient": "backward for inputs",
    "weight_gradient": "backward for weights",
    _OPTIMIZER: "optimizer",
}
_WIDTH, _DPI, _LEFT = 14.0, 150, 0.6
_HEIGHT = 0.86
"""Of a box, of its row's."""
_SMALLEST = 4
"""Points of a font that can be read."""
_BRIGHT = 1.75
"""Red, green and blue of a colour on which black is read better than white."""
_FEW = 300
"""Boxes of a row that are told apart by lines between them."""


class Box(NamedTuple):
    """A pass of one stage, from its first kernel's start to its last one's end, in picoseconds."""

    stage: int
    name: str
    micro_batch: int
    chunk: int
    start: int
    finish: int
    half: int = 0
    """1 and 2: above and below in its row; 0: all of it."""

    @property
    def middle(self) -> float:
        """Where it stands in its row, the row's own middle being its stage's number."""
        return self.stage + (0, -_HEIGHT / 4, _HEIGHT / 4)[self.half]

    @property
    def height(self) -> float:
        """Its share of the row."""
        return _HEIGHT / 2 if self.half else _HEIGHT


def boxes(trace: JobTrace, run: Run) -> Iterator[Box]:
    """Yield the passes of the first rank of each stage that run kernels, and the optimizer's part."""
    for stage, segments in enumerate(trace.segments):
        if stage not in trace.stage_of_rank:
            continue
        position = trace.stage_of_rank.index(stage)
        nodes = run.lowered.traces.ranks[position].nodes
        times = rank_times(run.lowered, run.execution.records, position)
        computes = (nodes.kind == NodeKind.COMPUTE) & ~nodes.on_cpu
        begins = [-1, *(segment.start if segment.stop > segment.start else -1 for segment in segments), -1]
        for segment, before, after in zip(segments, begins, begins[2:], strict=False):
            half = 1 if segment.start == after else 2 if segment.start == before else 0
            rows = segment.start + np.flatnonzero(computes[segment.start : segment.stop])
            if len(rows):
                start, finish = int(times.start[rows].min()), int(times.finish[rows].max())
                yield Box(stage, segment.name, segment.micro_batch, segment.chunk, start, finish, half)


def draw_schedule(trace: JobTrace, run: Run, path: Path, *, title: str) -> int:
    """Write the picture as PNG, SVG or PDF; return how many boxes it has. `InputError` if of requests."""
    if trace.job.spec.training is None:
        raise InputError(f"{trace.job.name}: a schedule's picture is of training, this serves requests")
    drawn = [box for box in boxes(trace, run) if box.stage < trace.job.stages]
    end = run.execution.records.makespan
    figure = new_figure(path, figsize=(_WIDTH, 0.36 * trace.job.stages + 1.5), layout="constrained")
    axes = figure.subplots()
    unit, name = (1e9, "ms") if end < 10 * PS_PER_S else (1e12, "s")
    for colour, alike in _by_colour(drawn).items():
        _draw_boxes(axes, alike, colour, unit=unit)
    _number(axes, drawn, end, unit=unit)
    axes.set_xlim(0, end / unit)
    axes.set_ylim(trace.job.stages - 0.5, -0.5)
    axes.set_yticks(range(trace.job.stages), [f"stage {stage}" for stage in range(trace.job.stages)])
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"time, {name}")
    axes.set_title(f"{title}: a step of {Duration(end)}", fontsize=10)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    kinds = len({box.name for box in drawn})
    handles = list(_legend(drawn))
    figure.legend(handles=handles, loc="outside lower center", ncols=kinds, fontsize=8, frameon=False)
    save(figure, path, dpi=_DPI)
    return len(drawn)


def _colour(box: Box) -> tuple[float, float, float]:
    """Return a box's colour: lighter for later chunks, never white."""
    base, light = _COLOURS[box.name], min(0.45 * box.chunk, 0.72)
    red, green, blue = (part + (1 - part) * light for part in base)
    return red, green, blue


def _by_colour(drawn: Sequence[Box]) -> dict[tuple[float, float, float], list[Box]]:
    alike: dict[tuple[float, float, float], list[Box]] = {}
    for box in drawn:
        alike.setdefault(_colour(box), []).append(box)
    return alike


def _draw_boxes(axes: Any, alike: Sequence[Box], colour: tuple[float, float, float], *, unit: float) -> None:
    for middle, height in sorted({(box.middle, box.height) for box in alike}):
        at_middle = [box for box in alike if box.middle == middle]
        spans = [(box.start / unit, (box.finish - box.start) / unit) for box in at_middle]
        axes.broken_barh(
            spans,
            (middle - height / 2, height),
            facecolors=[colour],
            edgecolors="white",
            linewidth=0.4 if len(spans) < _FEW else 0,
        )


def _number(axes: Any, drawn: Sequence[Box], end: int, *, unit: float) -> None:
    """Write micro-batches into the boxes that have room for them, if most do."""
    passes = [box for box in drawn if box.name != _OPTIMIZER]
    rooms = [_room(box, end) for box in passes]
    if float(np.median(rooms)) < _SMALLEST:
        return
    for box, room in zip(passes, rooms, strict=True):
        if room >= _SMALLEST:
            dark = sum(_colour(box)) < _BRIGHT
            axes.text(
                (box.start + box.finish) / 2 / unit, box.middle, f"{box.micro_batch}",
                ha="center", va="center_baseline", fontsize=min(room, 6 if box.half else 8),
                color="white" if dark else "black",
            )  # fmt: skip


def _room(box: Box, end: int) -> float:
    """Return the size in points of the font in which a number fills four fifths of its box."""
    width = 72 * (_WIDTH - _LEFT) * (box.finish - box.start) / end
    return 0.8 * width / (0.62 * len(f"{box.micro_batch}") + 0.25)


def _legend(drawn: Sequence[Box]) -> Iterator[Any]:
    from matplotlib.patches import Patch

    chunks = {box.chunk for box in drawn}
    kinds = {(list(_COLOURS).index(box.name), box.chunk): box for box in drawn}
    for (_, chunk), box in sorted(kinds.items()):
        several = len(chunks) > 1 and box.name != _OPTIMIZER
        yield Patch(color=_colour(box), label=_NAMES[box.name] + (f", chunk {chunk}" if several else ""))
