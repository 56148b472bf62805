"""The breakdown of a hierarchical run: what its blocks hide inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rapid_des.replay.hierarchy import Hierarchical
from rapid_des.report.breakdown import COMPUTE, operator_name

INSIDE = "tp"


def with_inside(done: Hierarchical, position: int, outside: Mapping[str, int]) -> dict[str, int]:
    """Return the outer breakdown with the exposed communication inside blocks taken out of `compute`.

    It is counted as tp, or as cp where the job has cp and no tp.
    """
    nodes = done.lowered.traces.ranks[position].nodes
    counts = Counter(operator_name(nodes.names[name]) for name in nodes.name.tolist())
    kind, stage = done.kinds[position], done.trace.stage_of_rank[position]
    hidden = 0
    for (of_kind, key), times in done.times.items():
        name = f"{key.phase}.{key.section}"
        if of_kind == kind and key.stage in (-1, stage) and name in counts:
            hidden += counts[name] // len(times.cuts) * (times.duration - times.compute)
    split = done.trace.job.spec.parallelism
    inside = INSIDE if split.tp > 1 or split.cp == 1 else "cp"
    hidden = min(max(hidden, 0), outside[COMPUTE])
    parts = {COMPUTE: outside[COMPUTE] - hidden, inside: outside.get(inside, 0) + hidden}
    return parts | {part: time for part, time in outside.items() if part not in parts}
