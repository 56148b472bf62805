"""A picture of a step's memory: a panel a stage, categories stacked, over its first rank's simulated time.

Each pass is drawn at its fullest moment for as long as it runs, and what it leaves until the next begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rapid_des.errors import InputError
from rapid_des.frontend.memory import CATEGORIES, JobMemory, StageMemory
from rapid_des.frontend.trace import JobTrace
from rapid_des.modes.execution import Run
from rapid_des.report.colours import colour
from rapid_des.report.pictures import new_figure, save
from rapid_des.report.pictures.schedule import Box, whole_segments
from rapid_des.units import PS_PER_S

_GIB = 2**30
MemorySteps = tuple[list[int], list[Mapping[str, int]]]
"""Times in picoseconds, and the bytes by category from each time on."""
_WIDTH, _DPI = 12.0, 150
_STAGES = 8
"""Up to this many stages are all drawn; of more the first and the last ones, and the fullest."""
MOVING = frozenset(("activations", "logits", "temporary", "fragmentation"))
"""Categories that vary, which are drawn above the constant ones."""


def draw_memory(
    memory: JobMemory, capacity: int, steps: tuple[JobTrace, Run], path: Path | None, *, title: str
) -> Any:
    """Return the figure, written as PNG, SVG or PDF if there is a path; `InputError` if of requests."""
    trace, run = steps
    if trace.job.spec.training is None:
        raise InputError(f"{trace.job.name}: memory over time is drawn of training, this serves requests")
    stages = _drawn_stages(memory)
    end = run.execution.records.makespan
    unit, name = (1e9, "ms") if end < 10 * PS_PER_S else (1e12, "s")
    figure = new_figure(path, figsize=(_WIDTH, 1.9 * len(stages) + 1.2), layout="constrained")
    panels = figure.subplots(len(stages), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    there = [each for each in CATEGORIES if any(m.categories[each] for s in stages for m in s.timeline)]
    names = sorted(there, key=MOVING.__contains__)
    for axes, (stage, held) in zip(panels, steps_of_stages(stages, trace, run), strict=True):
        _draw_stage(axes, held, names, unit=unit)
        axes.set_ylabel(f"stage {stage.stage}, GiB", fontsize=8)
        axes.axhline(capacity / _GIB, color="black", linewidth=0.8, linestyle="--")
    panels[0].set_xlim(0, end / unit)
    panels[0].set_ylim(0, 1.06 * max(capacity, memory.fullest.peak) / _GIB)
    panels[-1].set_xlabel(f"time, {name}")
    figure.suptitle(f"{title}: memory of a rank of each stage (dashed: what there is)", fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=7, fontsize=8, frameon=False)
    return save(figure, path, dpi=_DPI)


def _drawn_stages(memory: JobMemory) -> list[StageMemory]:
    """Return the stages that a picture shows: the first and the last ones, and the fullest."""
    if len(memory.stages) <= _STAGES:
        return list(memory.stages)
    ends = {*range(_STAGES // 2), *range(len(memory.stages) - _STAGES // 2 + 1, len(memory.stages))}
    return [memory.stages[stage] for stage in sorted(ends | {memory.fullest.stage})]


def _draw_stage(axes: Any, steps: MemorySteps, names: Sequence[str], *, unit: float) -> None:
    times, sizes = steps
    levels = np.array([[held[name] / _GIB for held in sizes] for name in names])
    colours = [colour(name) for name in names]
    axes.stackplot(np.array(times) / unit, levels, labels=names, colors=colours, step="post", linewidth=0)
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


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
