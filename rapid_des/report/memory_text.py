"""A job's memory for people and JSON: stages by category, their largest tensors, the passes of a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from rapid_des.frontend.memory import CATEGORIES, StageMemory, Tensor, shown
from rapid_des.report.tables import Row, spans, table

_GIB = 2**30
_STAGES = 4
"""Different stages up to which all are printed by tensor; of more the first, the fullest, the last."""
_TENSORS = 16
"""Tensors of a stage that are printed; the others are summed up."""


def memory_lines(stages: Sequence[StageMemory]) -> Iterator[str]:
    """Yield every stage by category at its fullest, and the largest tensors of some then."""
    names = [name for name in CATEGORIES if any(stage.categories.get(name) for stage in stages)]
    title = "memory of a rank of each stage at its fullest, GiB"
    yield from table(title, ("stage", "peak", *names), ">" * (2 + len(names)), _stage_rows(stages, names))
    header = ("tensor", "category", "number", "size", "share")
    for tensors, members in _distinct(stages):
        title = f"memory by tensor, a rank of stage {spans(members)} at its fullest"
        yield from table(title, header, "<<>>>", _tensor_rows(tensors))


def _stage_rows(stages: Sequence[StageMemory], names: Sequence[str]) -> Iterator[Row]:
    for sizes, alike in groupby(stages, lambda stage: (stage.peak, dict(stage.categories))):
        parts = [f"{sizes[1].get(name, 0) / _GIB:.3f}" for name in names]
        yield spans([stage.stage for stage in alike]), f"{sizes[0] / _GIB:.3f}", *parts


def _distinct(stages: Sequence[StageMemory]) -> Iterator[tuple[tuple[Tensor, ...], list[int]]]:
    """Yield what neighbouring stages hold and which they are; of more than a few the ends and the fullest."""
    runs = [
        (tensors, [stage.stage for stage in alike])
        for tensors, alike in groupby(stages, lambda stage: stage.tensors)
    ]
    shown_runs = {0, len(runs) - 1, max(range(len(runs)), key=lambda run: sum(t.size for t in runs[run][0]))}
    for number, run in enumerate(runs):
        if len(runs) <= _STAGES or number in shown_runs:
            yield run


def _tensor_rows(tensors: Sequence[Tensor]) -> Iterator[Row]:
    whole = max(sum(tensor.size for tensor in tensors), 1)
    for name, category, size, number in tensors[:_TENSORS]:
        yield name, category, f"{number:,}", shown(size), f"{size / whole:.1%}"
    rest = tensors[_TENSORS:]
    if rest:
        size = sum(tensor.size for tensor in rest)
        yield f"{len(rest)} others", "", "", shown(size), f"{size / whole:.1%}"


def stage_json(stage: StageMemory) -> dict[str, Any]:
    """Return a stage's memory as plain data for JSON, in bytes.

    The timeline has each pass of the schedule and the optimizer's step at its fullest moment.
    """
    return {
        "memory_bytes": stage.peak,
        "memory_breakdown_bytes": dict(stage.categories),
        "memory_activations_bytes": stage.activations,
        "memory_allocator_bytes": stage.reserved,
        "memory_tensors": [tensor._asdict() for tensor in stage.tensors],
        "memory_timeline": [
            {
                "phase": moment.name,
                "micro_batch": moment.micro_batch,
                "chunk": moment.chunk,
                "bytes": {name: size for name, size in moment.categories.items() if size},
            }
            for moment in stage.timeline
        ],
    }
