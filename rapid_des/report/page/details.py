"""The sections of a run that need the run itself: timelines and the roofline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rapid_des.modes.execution import Run
from rapid_des.report.charts import Lane, Lanes, PageSection, Plot, Span
from rapid_des.report.charts.memory import memory_plots
from rapid_des.report.charts.roofline import marks_of, roofline
from rapid_des.report.charts.schedule import pass_legend, schedule_lanes
from rapid_des.report.charts.timeline import MOST_SPANS, stream_lanes, stream_legend
from rapid_des.report.critical_path import CriticalPath, PathPart
from rapid_des.report.result import Result
from rapid_des.report.timeline import Extract
from rapid_des.report.why_text import cause_name

_STAGES = 3
"""The number of stages whose memory a page shows."""


def run_of(result: Result) -> Run | None:
    """Return the run behind a result; in modes of blocks that of the graph around the blocks."""
    return result.run if result.blocks is None else result.blocks.run


def timeline_section(result: Result, path: CriticalPath | None) -> PageSection:
    """Return the schedule, what the critical rank ran, and the critical path, on one axis of time."""
    run = run_of(result)
    if run is None:
        return PageSection("Timeline", [])
    end = run.execution.records.makespan
    trace = result.trace
    training = trace is not None and trace.job.spec.training is not None
    stages = list(schedule_lanes(trace, run)) if trace is not None and training else []
    ranks = [binding.rank for binding in run.lowered.program.bindings]
    rank = result.critical_rank if result.critical_rank in ranks else ranks[0]
    streams = stream_lanes(run, Extract(frozenset([rank])), result.stream_kinds or {})
    whole = path is not None and path.step_time == end
    found = [Lane("critical path", path_spans(path.parts))] if path is not None and whole else []
    lead = "Stages with their passes, the streams of the rank that ends last, and the critical path."
    if not whole:
        lead += " The timeline shows the part of the step that was simulated."
    if any(len(lane.spans) == MOST_SPANS for lane in streams):
        lead += f" Of a stream it shows the first {MOST_SPANS:,} boxes."
    if result.blocks is not None:
        lead += f" In mode {result.mode} a block of the model is one box."
    causes = (
        [(cause_name(cause, path), cause) for cause in path.by_cause] if path is not None and whole else []
    )
    named = {kind: text for text, kind in [*causes, *stream_legend(streams)]}
    legend = [*pass_legend(stages), *((text, kind) for kind, text in named.items())]
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


def stage_memory(result: Result) -> Iterator[Plot]:
    """Yield the memory over time of the first stage, the fullest and the last one of a training step."""
    run, trace, figures = run_of(result), result.trace, result.figures
    if run is not None and trace is not None and figures is not None and trace.job.spec.training is not None:
        yield from memory_plots((trace, run), figures.memory, figures.memory_capacity, _STAGES)


def roofline_section(result: Result) -> PageSection:
    """Return the operators on the roofline of the device; the area of a dot is its share of the time."""
    if result.basis is None or (device := result.basis.device) is None:
        return PageSection("Roofline", [])
    step = max(result.step_time, 1)
    shares = {name: time / step for name, time in result.computed.items()}
    plots = list(roofline(device, marks_of(result.priced), shares))
    return PageSection("Roofline", plots, f"{device.spec.name} at its {device.conditions.clock} clock.")
