"""The breakdown of a hierarchical run: what its blocks hide inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from rapid_des.chakra.trace import NodeKind
from rapid_des.frontend.parts import PieceKey
from rapid_des.frontend.trace import Segment
from rapid_des.modes.blocks import BlockRun
from rapid_des.report.breakdown import COMPUTE, operator_times, rank_times

INSIDE = "tp"


def with_inside(
    done: BlockRun, position: int, outside: Mapping[str, int], *, end: int | None = None
) -> dict[str, int]:
    """Return the outer breakdown with the exposed communication inside blocks taken out of `compute`.

    Messages at a block's end are on the outer graph's tp stream already.

    `outside` is the breakdown until `end`, by default of the whole run; blocks that are under way then are
    not looked into.
    """
    kind, stage = done.kinds[position], done.trace.stage_of_rank[position]
    finish = rank_times(done.run.lowered, done.run.execution.records, position).finish
    hidden = 0
    for segment, key, count in _uses(done, stage):
        if end is None or finish[segment.start : segment.stop].max(initial=0) <= end:
            times = done.times[kind, key]
            tail = times.cuts[-1] if done.blocks.blocks[key].tail else 0
            hidden += count * (times.duration - tail - times.compute)
    hidden = min(max(hidden, 0), outside[COMPUTE])
    if not hidden:
        return dict(outside)
    parts = {COMPUTE: outside[COMPUTE] - hidden, INSIDE: outside.get(INSIDE, 0) + hidden}
    return parts | {part: time for part, time in outside.items() if part not in parts}


def inside_times(done: BlockRun, position: int) -> Counter[str]:
    """Return how long a rank computes each operator, in blocks and outside, in picoseconds."""
    rank, stage = done.trace.traces.ranks[position].rank, done.trace.stage_of_rank[position]
    own = done.slow.get(rank, done.blocks)
    totals = operator_times(done.run.lowered, done.run.execution.records, position)
    for key in own.blocks:
        totals.pop(f"{key.phase}.{key.section.name}", None)
    counts: Counter[PieceKey] = Counter()
    for _, key, count in _uses(done, stage):
        counts[key] += count
    for key, count in counts.items():
        table = own.blocks[key].table
        for row in (table.kind == NodeKind.COMPUTE).nonzero()[0].tolist():
            totals[f"{key.phase}.{table.names[table.name[row]]}"] += count * int(table.duration[row])
    return totals


def _uses(done: BlockRun, stage: int) -> Iterator[tuple[Segment, PieceKey, int]]:
    known: dict[Segment, Counter[PieceKey]] = {}
    for segment in done.trace.segments[stage]:
        kind = replace(segment, start=0, stop=0, micro_batch=0)
        if kind not in known:
            known[kind] = done.blocks.uses(stage, kind)
        for key, count in known[kind].items():
            yield segment, key, count
