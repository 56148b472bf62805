"""The sections of a run that need the run itself: timelines, memory over time, roofline, tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import numpy as np

from rapid_des.chakra.trace import NodeKind
from rapid_des.frontend.memory import CATEGORIES
from rapid_des.modes.execution import Run
from rapid_des.program.lowering import RankTimes, rank_times
from rapid_des.program.program import NONE
from rapid_des.report.colours import BUBBLE, COMPUTE
from rapid_des.report.critical_path import CriticalPath, PathPart
from rapid_des.report.page.charts import Lane, Lanes, PageSection, Plot, PlotAxis, Series, Span
from rapid_des.report.page.lanes import unit_of
from rapid_des.report.pictures.memory import MOVING, MemorySteps, steps_of_stages
from rapid_des.report.pictures.roofline import RooflineMark, marks_of, peaks_of
from rapid_des.report.pictures.schedule import NAMES, PASSLESS, Box, boxes
from rapid_des.report.result import Result
from rapid_des.report.why_text import cause_name
from rapid_des.units import FlopRate

_GIB = 2**30
_BINS = 400
"""The largest number of steps of memory that a plot shows; the fullest of those in between stand for them."""
_SPANS = 150_000
"""The largest number of boxes of a stream on a timeline; its lead says where some are left out."""
_TERA = 10**12


def run_of(result: Result) -> Run | None:
    """Return the run behind a result; in modes of blocks that of the graph around the blocks."""
    return result.run if result.blocks is None else result.blocks.run


def timeline_section(result: Result, path: CriticalPath | None) -> PageSection:
    """Return the schedule, what the critical rank ran, and the critical path, on one axis of time."""
    run = run_of(result)
    if run is None:
        return PageSection("Timeline", [])
    end = run.execution.records.makespan
    stages = list(_schedule(result, run))
    streams = _streams(result, run)
    whole = path is not None and path.step_time == end
    found = [Lane("critical path", path_spans(path.parts))] if path is not None and whole else []
    lead = "Stages with their passes, the streams of the rank that ends last, and the critical path."
    if not whole:
        lead += " The timeline shows the part of the step that was simulated."
    if any(len(lane.spans) == _SPANS for lane in streams):
        lead += f" Of a stream it shows the first {_SPANS:,} boxes."
    if result.blocks is not None:
        lead += f" In mode {result.mode} a block of the model is one box."
    legend = _legend(stages, streams, path if whole else None)
    lanes = Lanes("what runs when; zoom from the step to a kernel", end, [*stages, *streams, *found], legend)
    return PageSection("Timeline", [lanes], lead)


def path_spans(parts: Sequence[PathPart]) -> list[Span]:
    """Return the parts of a critical path as boxes, neighbours that are alike as one."""
    spans: list[Span] = []
    for part in parts:
        name = f"{part.operator} (rank {part.rank}, {part.cause})"
        if spans and spans[-1].name == name:
            spans[-1] = spans[-1]._replace(length=spans[-1].length + part.length)
        else:
            spans.append(Span(part.start, part.length, name, part.cause))
    return spans


def _schedule(result: Result, run: Run) -> Iterator[Lane]:
    trace = result.trace
    if trace is None or trace.job.spec.training is None:
        return
    rows: dict[tuple[int, bool], list[Box]] = {}
    for box in boxes(trace, run):
        rows.setdefault((box.stage, box.half == 2), []).append(box)
    for (stage, second), alike in sorted(rows.items()):
        spans = [
            Span(box.start, box.finish - box.start, _box_name(box), box.name)
            for box in sorted(alike, key=lambda box: box.start)
        ]
        yield Lane(f"stage {stage}" + (", beside" if second else ""), spans)


def _box_name(box: Box) -> str:
    if box.name in PASSLESS:
        return NAMES[box.name]
    chunk = f", chunk {box.chunk}" if box.chunk else ""
    return f"{box.micro_batch} {NAMES[box.name]} of micro-batch {box.micro_batch}{chunk}"


def _streams(result: Result, run: Run) -> list[Lane]:
    """Return a lane a stream of the critical rank: kernels, messages, and the waits before them."""
    ranks = [binding.rank for binding in run.lowered.program.bindings]
    position = ranks.index(result.critical_rank) if result.critical_rank in ranks else 0
    nodes = run.lowered.traces.ranks[position].nodes
    times = rank_times(run.lowered, run.execution.records, position)
    talks = np.isin(nodes.kind, (NodeKind.COLLECTIVE, NodeKind.SEND, NodeKind.RECV))
    lanes = []
    for number, stream in enumerate(nodes.streams):
        rows = np.flatnonzero((nodes.stream == number) & (times.finish > times.start) & ~nodes.on_cpu)
        rows = rows[np.argsort(times.start[rows], kind="stable")]
        kind = (result.stream_kinds or {}).get(stream, stream)
        found = (
            span
            for row in rows.tolist()
            for span in _node_spans(nodes.names[nodes.name[row]], row, times, kind if talks[row] else COMPUTE)
        )
        spans = list(islice(found, _SPANS))
        if spans:
            lanes.append(Lane(f"rank {ranks[position]}: {stream}", spans))
    return lanes


def _node_spans(name: str, row: int, times: RankTimes, kind: str) -> Iterator[Span]:
    """Yield the box of a node; of a message the wait for its peers is a box of its own."""
    start, met, finish = (int(column[row]) for column in (times.start, times.met, times.finish))
    begin = start if kind == COMPUTE or met == NONE else min(max(start, met), finish)
    if begin > start:
        yield Span(start, begin - start, f"{name} waits for its peers", BUBBLE)
    if finish > begin:
        yield Span(begin, finish - begin, name, kind)


def _legend(
    stages: Sequence[Lane], streams: Sequence[Lane], path: CriticalPath | None
) -> list[tuple[str, str]]:
    passes = dict.fromkeys(span.colour for lane in stages for span in lane.spans)
    kinds = dict.fromkeys(span.colour for lane in streams for span in lane.spans)
    causes = {cause: cause_name(cause, path) for cause in path.by_cause} if path is not None else {}
    waits = {COMPUTE: "kernels", BUBBLE: "waits for peers"}
    named = {kind: waits.get(kind, f"{kind} messages") for kind in kinds}
    return [(NAMES[name], name) for name in passes] + [
        (text, kind) for kind, text in (causes | named).items()
    ]


def memory_plots(result: Result) -> Iterator[Plot]:
    """Yield the memory over time of the first stage, the fullest and the last one of a training step."""
    run, trace, figures = run_of(result), result.trace, result.figures
    if run is None or trace is None or figures is None or trace.job.spec.training is None:
        return
    memory, end = figures.memory, run.execution.records.makespan
    numbers = sorted({0, memory.fullest.stage, len(memory.stages) - 1})
    for stage, steps in steps_of_stages((memory.stages[number] for number in numbers), trace, run):
        fullest = " (the fullest)" if stage.stage == memory.fullest.stage else ""
        title = f"memory of a rank of stage {stage.stage}{fullest} over the step"
        yield _memory_plot(title, _thinned(steps, end), end, figures.memory_capacity)


def _thinned(steps: MemorySteps, end: int) -> MemorySteps:
    """Return at most `_BINS` steps: of those in one bin of time the fullest."""
    fullest: dict[int, tuple[int, Mapping[str, int]]] = {}
    for time, sizes in zip(*steps, strict=True):
        place = time * _BINS // max(end, 1)
        if place not in fullest or sum(sizes.values()) > sum(fullest[place][1].values()):
            fullest[place] = time, sizes
    first, last = (steps[0][0], steps[1][0]), (steps[0][-1], steps[1][-1])
    kept = [first, *fullest.values(), last]
    return [time for time, _ in kept], [sizes for _, sizes in kept]


def _memory_plot(title: str, steps: MemorySteps, end: int, capacity: int) -> Plot:
    times, sizes = steps
    unit, unit_name = unit_of(end)
    there = [name for name in CATEGORIES if any(held.get(name) for held in sizes)]
    base = np.zeros(len(times))
    series = []
    for name in sorted(there, key=MOVING.__contains__):
        top = base + np.array([held.get(name, 0) / _GIB for held in sizes])
        points, low = _as_steps([time / unit for time in times], top.tolist(), base.tolist())
        series.append(Series(name.replace("_", " "), name, points, "area", base=low))
        base = top
    line = [(0.0, capacity / _GIB), (end / unit, capacity / _GIB)]
    series.append(Series("capacity", "", line, dashed=True))
    most = 1.06 * max(capacity / _GIB, float(base.max()))
    x, y = PlotAxis(f"time, {unit_name}", low=0, high=end / unit), PlotAxis("GiB", low=0, high=most)
    return Plot(title, x, y, series, height=260)


def _as_steps(
    times: Sequence[float], tops: Sequence[float], lows: Sequence[float]
) -> tuple[list[tuple[float, float]], list[float]]:
    """Return points of a stair, which keeps each value until the next one begins, and its base."""
    points, base = [(times[0], tops[0])], [lows[0]]
    for number in range(1, len(times)):
        if tops[number] != tops[number - 1] or lows[number] != lows[number - 1]:
            points += [(times[number], tops[number - 1]), (times[number], tops[number])]
            base += [lows[number - 1], lows[number]]
    return [*points, (times[-1], tops[-1])], [*base, lows[-1]]


def roofline_section(result: Result) -> PageSection:
    """Return the operators on the roofline of the device; the area of a dot is its share of the time."""
    device = result.basis.device if result.basis is not None else None
    marks = marks_of(result.priced)
    if device is None or not marks:
        return PageSection("Roofline", [])
    x = _ends([mark.intensity for mark in marks])
    top = max(device.spec.tensor_peak.values()) * device.clock_ratio / _TERA
    y = PlotAxis("TFLOP/s", log=True, low=min(mark.rate for mark in marks) / 2 / _TERA, high=2 * top)
    lines = []
    for peak, dtypes in peaks_of(device).items():
        rate, bandwidth = peak * device.clock_ratio / _TERA, device.spec.hbm.bandwidth / _TERA
        bend = min(max(rate / bandwidth, x[0]), x[1])
        points = [(at, min(rate, at * bandwidth)) for at in (x[0], bend, x[1])]
        lines.append(Series(f"peak of {', '.join(dtypes)}: {rate:,.4g} TFLOP/s", "", points, legend=False))
    dots = [_dots(bound, marks, result) for bound in dict.fromkeys(mark.bound for mark in marks)]
    axis = PlotAxis("FLOP per byte of HBM", log=True, low=x[0], high=x[1])
    plot = Plot(
        "operators on the roofline; the area of a dot is its share of the time", axis, y, [*lines, *dots], 420
    )
    return PageSection("Roofline", [plot], f"{device.spec.name} at its {device.conditions.clock} clock.")


def _ends(intensities: Sequence[float]) -> tuple[float, float]:
    return min(0.3, *intensities) / 2, max(3e3, *intensities) * 2


def _dots(bound: str, marks: Sequence[RooflineMark], result: Result) -> Series:
    alike = [mark for mark in marks if mark.bound == bound]
    shares = [result.computed.get(mark.name, 0) / max(result.step_time, 1) for mark in alike]
    titles = [
        f"{mark.label}: {FlopRate(round(mark.rate))}, {mark.intensity:.3g} FLOP/B, bound by {bound}, "
        f"{share:.1%} of the step"
        for mark, share in zip(alike, shares, strict=True)
    ]
    return Series(
        f"bound by {bound}",
        bound,
        [(mark.intensity, mark.rate / _TERA) for mark in alike],
        "dots",
        titles=titles,
        radii=[3 + 40 * share**0.5 for share in shares],
    )
