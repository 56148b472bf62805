"""A picture of a step's pipeline schedule as it was simulated: stages as rows, passes as boxes.

Forwards are blue, whole backwards green, backwards for inputs teal and for weights yellow. After the last
pass of a stage the optimizer's kernels are grey in the upper half of its row, and the collectives that the
stage still waits for (gradients, their norm, parameters) are red in the lower half; where neither runs, the
row is empty. The first chunk of a stage is dark, further ones lighter; in a box stands its micro-batch. A
pair that runs as one has a forward above a backward. The axis ends where the step ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rapid_des.chakra.trace import NodeKind
from rapid_des.errors import InputError
from rapid_des.frontend.trace import JobTrace, Segment
from rapid_des.modes.execution import Run
from rapid_des.program.lowering import RankTimes, rank_times
from rapid_des.report.colours import colour
from rapid_des.report.pictures import new_figure, save
from rapid_des.units import PS_PER_S, Duration

_OPTIMIZER, _EXCHANGE = "optimizer", "exchange"
PASSLESS = (_OPTIMIZER, _EXCHANGE)
"""Boxes without a micro-batch."""
_ORDER = ("forward", "backward", "input_gradient", "weight_gradient", _OPTIMIZER, _EXCHANGE)
NAMES = {
    "forward": "forward",
    "backward": "backward",
    "input_gradient": "backward for inputs",
    "weight_gradient": "backward for weights",
    _OPTIMIZER: "optimizer",
    _EXCHANGE: "collectives after the last pass, with the waits in them",
}
_WIDTH, _DPI, _LEFT = 14.0, 150, 0.6
_HEIGHT = 0.86
"""Height of a box as a share of its row."""
_SMALLEST = 4
"""Smallest readable font, in points."""
_BRIGHT = 1.75
"""The sum of red, green and blue from which text on a colour is black instead of white."""
_FEW = 300
"""Up to this many boxes of a row are separated by lines."""
_GAP = 1 / 2000
"""Gaps below this share of the step are not drawn: the boxes on both sides are joined."""


class Box(NamedTuple):
    """A pass of one stage, from its first kernel's start to its last one's end, in picoseconds."""

    stage: int
    name: str
    micro_batch: int
    chunk: int
    start: int
    finish: int
    half: int = 0
    """1 and 2: upper and lower half of its row; 0: the whole row."""

    @property
    def middle(self) -> float:
        """Vertical position of its middle; the middle of a row is its stage's number."""
        return self.stage + (0, -_HEIGHT / 4, _HEIGHT / 4)[self.half]

    @property
    def height(self) -> float:
        """Height as a share of the row."""
        return _HEIGHT / 2 if self.half else _HEIGHT


def boxes(trace: JobTrace, run: Run) -> Iterator[Box]:
    """Yield the boxes: one for each pass, then those of the operations after a stage's last pass."""
    gap = int(run.execution.records.makespan * _GAP)
    for stage, segments, seen in _stages(trace, run):
        passes = list(_segments(stage, [each for each in segments if each.name != _OPTIMIZER], seen))
        yield from passes
        ended = max((box.finish for box in passes), default=0)
        for segment in segments:
            if segment.name == _OPTIMIZER:
                yield from _after_passes(stage, segment, seen, (ended, gap))


def whole_segments(trace: JobTrace, run: Run) -> Iterator[Box]:
    """Yield a box a pass and one for the optimizer's part, from its first kernel to its last one."""
    for stage, segments, seen in _stages(trace, run):
        yield from _segments(stage, segments, seen)


def _stages(trace: JobTrace, run: Run) -> Iterator[tuple[int, Sequence[Segment], _NodeTimes]]:
    """Yield each stage that has ranks, its segments and how its first rank ran."""
    for stage, segments in enumerate(trace.segments):
        if stage in trace.stage_of_rank:
            yield stage, segments, _NodeTimes.of(run, trace.stage_of_rank.index(stage))


class _NodeTimes(NamedTuple):
    """The times of a rank's nodes, and which of them are kernels and collectives."""

    times: RankTimes
    computes: np.ndarray
    collectives: np.ndarray

    @classmethod
    def of(cls, run: Run, position: int) -> _NodeTimes:
        nodes = run.lowered.traces.ranks[position].nodes
        computes = (nodes.kind == NodeKind.COMPUTE) & ~nodes.on_cpu
        times = rank_times(run.lowered, run.execution.records, position)
        return cls(times, computes, nodes.kind == NodeKind.COLLECTIVE)


def _segments(stage: int, segments: Sequence[Segment], seen: _NodeTimes) -> Iterator[Box]:
    begins = [-1, *(segment.start if segment.stop > segment.start else -1 for segment in segments), -1]
    for segment, before, after in zip(segments, begins, begins[2:], strict=False):
        half = 1 if segment.start == after else 2 if segment.start == before else 0
        rows = segment.start + np.flatnonzero(seen.computes[segment.start : segment.stop])
        if len(rows):
            start, finish = int(seen.times.start[rows].min()), int(seen.times.finish[rows].max())
            yield Box(stage, segment.name, segment.micro_batch, segment.chunk, start, finish, half)


def _after_passes(stage: int, segment: Segment, seen: _NodeTimes, shown: tuple[int, int]) -> Iterator[Box]:
    """Yield the optimizer's kernels and collectives after a time, merged over short gaps."""
    begin, gap = shown
    here = slice(segment.start, segment.stop)
    for name, chosen, half in ((_OPTIMIZER, seen.computes, 1), (_EXCHANGE, seen.collectives, 2)):
        rows = segment.start + np.flatnonzero(chosen[here])
        spans = zip(seen.times.start[rows].tolist(), seen.times.finish[rows].tolist(), strict=True)
        for start, finish in joined_spans(spans, begin, gap):
            yield Box(stage, name, 0, 0, start, finish, half)


def joined_spans(spans: Iterable[tuple[int, int]], begin: int, gap: int) -> list[tuple[int, int]]:
    """Return the parts of (start, finish) spans after `begin`, merged if at most `gap` apart.

    >>> joined_spans([(0, 4), (5, 6), (2, 3), (20, 21)], begin=1, gap=1)
    [(1, 6), (20, 21)]
    """
    joined: list[tuple[int, int]] = []
    for start, finish in sorted((max(start, begin), finish) for start, finish in spans if finish > begin):
        if joined and start <= joined[-1][1] + gap:
            joined[-1] = joined[-1][0], max(joined[-1][1], finish)
        else:
            joined.append((start, finish))
    return joined


def draw_schedule(trace: JobTrace, run: Run, path: Path | None, *, title: str) -> Any:
    """Return the figure, written as PNG, SVG or PDF if there is a path; `InputError` if of requests."""
    if trace.job.spec.training is None:
        raise InputError(f"{trace.job.name}: a schedule's picture is of training, this serves requests")
    drawn = [box for box in boxes(trace, run) if box.stage < trace.job.stages]
    end = run.execution.records.makespan
    figure = new_figure(path, figsize=(_WIDTH, 0.36 * trace.job.stages + 1.5), layout="constrained")
    axes = figure.subplots()
    unit, name = (1e9, "ms") if end < 10 * PS_PER_S else (1e12, "s")
    for shade, alike in _by_colour(drawn).items():
        _draw_boxes(axes, alike, shade, unit=unit)
    _number(axes, drawn, end, unit=unit)
    axes.set_xlim(0, end / unit)
    axes.set_xticks(*_ticks(end / unit))
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
    return save(figure, path, dpi=_DPI)


def _ticks(end: float) -> tuple[list[float], list[str]]:
    """Return positions and labels of round times and, last, of the step's end."""
    from matplotlib.ticker import MaxNLocator

    round_times = [tick for tick in MaxNLocator(8).tick_values(0, end) if 0 <= tick < 0.96 * end]
    return [*round_times, end], [*(f"{tick:g}" for tick in round_times), f"{end:.4g}"]


def _colour(box: Box) -> tuple[float, float, float]:
    """Return a box's colour: lighter for later chunks, never white."""
    light = min(0.45 * box.chunk, 0.72)
    base = (value / 255 for value in bytes.fromhex(colour(box.name)[1:]))
    red, green, blue = (part + (1 - part) * light for part in base)
    return red, green, blue


def _by_colour(drawn: Sequence[Box]) -> dict[tuple[float, float, float], list[Box]]:
    alike: dict[tuple[float, float, float], list[Box]] = {}
    for box in drawn:
        alike.setdefault(_colour(box), []).append(box)
    return alike


def _draw_boxes(axes: Any, alike: Sequence[Box], shade: tuple[float, float, float], *, unit: float) -> None:
    for middle, height in sorted({(box.middle, box.height) for box in alike}):
        at_middle = [box for box in alike if box.middle == middle]
        spans = [(box.start / unit, (box.finish - box.start) / unit) for box in at_middle]
        axes.broken_barh(
            spans,
            (middle - height / 2, height),
            facecolors=[shade],
            edgecolors="white",
            linewidth=0.4 if len(spans) < _FEW else 0,
        )


def _number(axes: Any, drawn: Sequence[Box], end: int, *, unit: float) -> None:
    """Write micro-batches into the boxes that have room for them, if most do."""
    passes = [box for box in drawn if box.name not in PASSLESS]
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
    kinds = {(_ORDER.index(box.name), box.chunk): box for box in drawn}
    for (_, chunk), box in sorted(kinds.items()):
        several = len(chunks) > 1 and box.name not in PASSLESS
        yield Patch(color=_colour(box), label=NAMES[box.name] + (f", chunk {chunk}" if several else ""))
