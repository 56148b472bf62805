"""A step's pipeline schedule as it was simulated: stages as rows, passes as boxes.

Forwards are blue, whole backwards green, backwards for inputs light blue and for weights yellow; those of a
stage's later chunks are lighter. A second row of each stage has what runs beside: the other pass of a pair
that runs as one, and after the last pass the collectives that the stage still waits for (gradients, their
norm, parameters), while the optimizer's kernels are in the first row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rapid_des.chakra.trace import NodeKind
from rapid_des.errors import InputError
from rapid_des.frontend.trace import JobTrace, Segment
from rapid_des.modes.execution import Run
from rapid_des.program.lowering import RankTimes, rank_times
from rapid_des.report.charts import Lane, Lanes, Span
from rapid_des.report.colours import PASSES
from rapid_des.units import Duration

_OPTIMIZER, _EXCHANGE = "optimizer", "exchange"
PASSLESS = (_OPTIMIZER, _EXCHANGE)
"""Boxes without a micro-batch."""
_ORDER = (*PASSES, _OPTIMIZER, _EXCHANGE)
NAMES = {
    "forward": "forward",
    "backward": "backward",
    "input_gradient": "backward for inputs",
    "weight_gradient": "backward for weights",
    _OPTIMIZER: "optimizer",
    _EXCHANGE: "collectives after the last pass, with the waits in them",
}
_BESIDE = 2
"""The lower half of a row."""
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


def schedule(trace: JobTrace, run: Run) -> Lanes:
    """Return the passes of a training step as they ran, stages as rows; `InputError` if of requests."""
    if trace.job.spec.training is None:
        raise InputError(f"{trace.job.name}: a schedule's picture is of training, this serves requests")
    lanes, end = list(schedule_lanes(trace, run)), run.execution.records.makespan
    return Lanes(f"passes of a step of {Duration(end)}", end, lanes, pass_legend(lanes))


def schedule_lanes(trace: JobTrace, run: Run) -> Iterator[Lane]:
    """Yield a lane a stage, and one for what runs beside it."""
    rows: dict[tuple[int, bool], list[Box]] = {}
    for box in boxes(trace, run):
        rows.setdefault((box.stage, box.half == _BESIDE), []).append(box)
    for (stage, second), alike in sorted(rows.items()):
        spans = [
            Span(box.start, box.finish - box.start, _name(box), _category(box))
            for box in sorted(alike, key=lambda box: box.start)
        ]
        yield Lane(f"stage {stage}" + (", beside" if second else ""), spans)


def _name(box: Box) -> str:
    """Return a box's text, which begins with its micro-batch: it fits where there is little room."""
    if box.name in PASSLESS:
        return NAMES[box.name]
    chunk = f", chunk {box.chunk}" if box.chunk else ""
    return f"{box.micro_batch} {NAMES[box.name]} of micro-batch {box.micro_batch}{chunk}"


def _category(box: Box) -> str:
    return f"{box.name} {min(box.chunk, 2)}" if box.chunk and box.name not in PASSLESS else box.name


def pass_legend(lanes: Sequence[Lane]) -> list[tuple[str, str]]:
    """Return the names of the categories of a schedule's lanes, each with its category."""
    found = {span.colour for lane in lanes for span in lane.spans}
    chunks = {"": "", "1": ", second chunk", "2": ", later chunks"}
    parts = ((category, *category.partition(" ")[::2]) for category in found)
    ordered = sorted(parts, key=lambda each: (_ORDER.index(each[1]), each[2]))
    return [(NAMES[name] + chunks[chunk], category) for category, name, chunk in ordered]
