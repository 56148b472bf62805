"""A step's memory over time: a plot a stage, categories stacked, over its first rank's simulated time.

Each pass is drawn at its fullest moment for as long as it runs, and what it leaves until the next begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from rapid_des.errors import InputError
from rapid_des.frontend.memory import CATEGORIES, JobMemory, StageMemory
from rapid_des.frontend.trace import JobTrace
from rapid_des.modes.execution import Run
from rapid_des.report.charts import Plot, PlotAxis, Series, unit_of
from rapid_des.report.charts.schedule import Box, whole_segments

_GIB = 2**30
MemorySteps = tuple[list[int], list[Mapping[str, int]]]
"""Times in picoseconds, and the bytes by category from each time on."""
_BINS = 400
"""The largest number of steps of memory that a plot shows; the fullest of those in between stand for them."""
_MOVING = frozenset(("activations", "logits", "temporary", "fragmentation"))
"""Categories that vary, which are drawn above the constant ones."""


def memory_plots(
    steps: tuple[JobTrace, Run], memory: JobMemory, capacity: int, stages: int
) -> Iterator[Plot]:
    """Yield the memory over time of a training step's stages: the first and last ones, and the fullest.

    `InputError` if of requests.
    """
    trace, run = steps
    if trace.job.spec.training is None:
        raise InputError(f"{trace.job.name}: memory over time is drawn of training, this serves requests")
    end = run.execution.records.makespan
    for stage, held in steps_of_stages(_drawn_stages(memory, stages), trace, run):
        fullest = " (the fullest)" if stage.stage == memory.fullest.stage else ""
        title = f"memory of a rank of stage {stage.stage}{fullest} over the step"
        yield _memory_plot(title, _thinned(held, end), end, capacity)


def _drawn_stages(memory: JobMemory, most: int) -> list[StageMemory]:
    """Return the stages that are shown: all, or the first and the last ones, and the fullest."""
    if len(memory.stages) <= most:
        return list(memory.stages)
    ends = {*range(most // 2), *range(len(memory.stages) - (most - 1) // 2, len(memory.stages))}
    return [memory.stages[stage] for stage in sorted(ends | {memory.fullest.stage})]


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
    for name in sorted(there, key=_MOVING.__contains__):
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


def steps_of_stages(
    stages: Iterable[StageMemory], trace: JobTrace, run: Run
) -> Iterator[tuple[StageMemory, MemorySteps]]:
    """Yield each stage with what it holds over time."""
    ran: dict[int, list[Box]] = {}
    for box in whole_segments(trace, run):
        ran.setdefault(box.stage, []).append(box)
    for stage in stages:
        yield stage, memory_steps(stage, ran.get(stage.stage, []), run.execution.records.makespan)


def memory_steps(stage: StageMemory, ran: Sequence[Box], end: int) -> MemorySteps:
    """Return from when on a stage holds how many bytes by category, from the step's start to its end."""
    at = {(moment.name, moment.micro_batch, moment.chunk): moment for moment in stage.timeline}
    times, sizes = [0], [stage.timeline[-1].left]
    for box in sorted(ran, key=lambda box: (box.start, box.finish)):
        moment = at[box.name, box.micro_batch, box.chunk]
        times += [box.start, box.finish]
        sizes += [moment.categories, moment.left]
    return [*times, end], [*sizes, sizes[-1]]
