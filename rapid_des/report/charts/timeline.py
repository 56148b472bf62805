"""A run's timeline: a lane for each rank and stream, boxes where its kernels and messages run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import numpy as np

from rapid_des.chakra.trace import NodeKind
from rapid_des.errors import InputError
from rapid_des.modes.execution import Run
from rapid_des.program.lowering import RankTimes, rank_times
from rapid_des.program.program import NONE
from rapid_des.report.charts import Lane, Lanes, Span
from rapid_des.report.colours import BUBBLE, COMPUTE
from rapid_des.report.timeline import Extract

_MOST_RANKS = 16
MOST_SPANS = 150_000
"""The largest number of boxes of a stream on a timeline."""


def timeline(run: Run, extract: Extract, kinds: Mapping[str, str]) -> Lanes:
    """Return what the ranks of an extract ran; `InputError` for more than a picture has room for."""
    ranks = len(extract.positions(run.lowered))
    if ranks > _MOST_RANKS:
        raise InputError(f"a picture has room for {_MOST_RANKS} ranks, not {ranks}")
    lanes = stream_lanes(run, extract, kinds)
    end = run.execution.records.makespan if extract.end is None else extract.end
    return Lanes("what runs when", end, lanes, stream_legend(lanes), extract.begin)


def stream_lanes(run: Run, extract: Extract, kinds: Mapping[str, str]) -> list[Lane]:
    """Return a lane a stream of the ranks of an extract: kernels, messages, and the waits before them.

    `kinds` are the parallelisms that streams count for; a stream without one is its own category.
    """
    return [
        lane for position in extract.positions(run.lowered) for lane in _lanes(run, position, extract, kinds)
    ]


def _lanes(run: Run, position: int, extract: Extract, kinds: Mapping[str, str]) -> Iterator[Lane]:
    trace = run.lowered.traces.ranks[position]
    nodes, times = trace.nodes, rank_times(run.lowered, run.execution.records, position)
    talks = np.isin(nodes.kind, (NodeKind.COLLECTIVE, NodeKind.SEND, NodeKind.RECV))
    chosen = extract.rows(times.start, times.finish)
    chosen = chosen[~nodes.on_cpu[chosen]]
    for number, stream in enumerate(nodes.streams):
        rows = chosen[nodes.stream[chosen] == number]
        rows = rows[np.argsort(times.start[rows], kind="stable")]
        kind = kinds.get(stream, stream)
        found = (
            span
            for row in rows.tolist()
            for span in _spans(nodes.names[nodes.name[row]], row, times, kind if talks[row] else COMPUTE)
        )
        spans = list(islice(found, MOST_SPANS))
        if spans:
            yield Lane(f"rank {trace.rank}: {stream}", spans)


def _spans(name: str, row: int, times: RankTimes, kind: str) -> Iterator[Span]:
    """Yield the box of a node; of a message the wait for its peers is a box of its own."""
    start, met, finish = (int(column[row]) for column in (times.start, times.met, times.finish))
    begin = start if kind == COMPUTE or met == NONE else min(max(start, met), finish)
    if begin > start:
        yield Span(start, begin - start, f"{name} waits for its peers", BUBBLE)
    if finish > begin:
        yield Span(begin, finish - begin, name, kind)


def stream_legend(lanes: Sequence[Lane]) -> list[tuple[str, str]]:
    """Return the names of the categories of streams, each with its category."""
    named = {COMPUTE: "kernels", BUBBLE: "waits for peers"}
    kinds = dict.fromkeys(span.colour for lane in lanes for span in lane.spans)
    return [(named.get(kind, f"{kind} messages"), kind) for kind in kinds]
