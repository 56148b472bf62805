"""A run's timeline as a picture: a row for each rank and stream, boxes where its kernels and messages run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rapid_des.errors import InputError
from rapid_des.modes.execution import Run
from rapid_des.program.lowering import rank_times
from rapid_des.report.colours import colour
from rapid_des.report.pictures import new_figure, save
from rapid_des.report.pictures.schedule import joined_spans
from rapid_des.report.timeline import Extract
from rapid_des.units import PS_PER_S

_MOST_RANKS = 16
_PARTS = 20_000
"""The number of parts of the width, below the size of a dot; shorter gaps are closed."""


def draw_timeline(run: Run, extract: Extract, path: Path | None, *, title: str) -> Any:
    """Return the figure, written as PNG, SVG or PDF if there is a path; `InputError` for too many ranks."""
    positions = extract.positions(run.lowered)
    if len(positions) > _MOST_RANKS:
        raise InputError(f"a picture has room for {_MOST_RANKS} ranks, not {len(positions)}")
    end = run.execution.records.makespan if extract.end is None else extract.end
    rows = [row for position in positions for row in _rows(run, position, extract, end)]
    figure = new_figure(path, figsize=(12, 1.3 + 0.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    unit, name = (1e9, "ms") if end - extract.begin < 10 * PS_PER_S else (1e12, "s")
    for place, (_, stream, spans) in enumerate(rows):
        boxes = [(start / unit, (finish - start) / unit) for start, finish in spans]
        axes.broken_barh(boxes, (place - 0.4, 0.8), facecolors=colour(stream.split("-")[0]), linewidth=0)
    axes.set_yticks(range(len(rows)), [label for label, _, _ in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(extract.begin / unit, end / unit)
    axes.set_xlabel(f"time, {name}")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.suptitle(title, fontsize=10)
    return save(figure, path, dpi=130)


def _rows(
    run: Run, position: int, extract: Extract, end: int
) -> Iterator[tuple[str, str, list[tuple[int, int]]]]:
    """Yield for each stream of a rank its label, its name, and when something runs on it."""
    trace = run.lowered.traces.ranks[position]
    nodes, times = trace.nodes, rank_times(run.lowered, run.execution.records, position)
    chosen = extract.rows(times.start, times.finish)
    for stream in np.unique(nodes.stream[chosen]).tolist():
        here = chosen[nodes.stream[chosen] == stream]
        spans = zip(times.start[here].tolist(), times.finish[here].tolist(), strict=True)
        name = nodes.streams[stream]
        gap = (end - extract.begin) // _PARTS
        yield f"rank {trace.rank}  {name}", name, joined_spans(spans, extract.begin, gap)
