"""Which of the best points of a study can be distinguished: by measurements, and by their mode."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rapid_des.report.evidence import resolution_of


def marked(
    rows: Sequence[Mapping[str, Any]], whole: Callable[[int], Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the best points with their breakdown, their mode's bound, and how each compares to the first.

    `told_apart` says whether measurements distinguish the step from the first point's, `may_be_faster`
    whether the flattened step may be shorter. Both are None where nothing is known, and for the first.
    `whole` returns all data of a point by its id.
    """
    results = [whole(int(row["id"]))["result"] or {} for row in rows]
    first = results[0] if results else {}
    return [
        {
            **row,
            "breakdown_s": result.get("breakdown_s"),
            "mode_bound_s": result.get("mode_bound_s"),
            "told_apart": None if number == 0 else _is_distinct(first, result),
            "may_be_faster": None if number == 0 else _may_be_faster(first, result),
        }
        for number, (row, result) in enumerate(zip(rows, results, strict=True))
    ]


def _is_distinct(first: Mapping[str, Any], other: Mapping[str, Any]) -> bool | None:
    one, two = first.get("spread"), other.get("spread")
    software = (first.get("priced_with") or {}).get("software")
    if one is None or two is None or software is None:
        return None
    least = resolution_of((one, two), software)
    steps = [result["step_time_ps"] for result in (first, other)]
    return None if least is None else abs(math.log(steps[0] / steps[1])) > least


def _may_be_faster(first: Mapping[str, Any], other: Mapping[str, Any]) -> bool | None:
    """Return whether the flattened step of another point may be the shorter one."""
    before, after = _flattened(first), _flattened(other)
    return None if before is None or after is None else bool(after["low"] < before["high"])


def _flattened(result: Mapping[str, Any]) -> Mapping[str, float] | None:
    """Return where a point's flattened step lies; None if its mode bounds nothing."""
    if result.get("mode") == "flattened":
        return dict.fromkeys(("low", "high"), result["step_time_s"])
    bound: Mapping[str, float] | None = result.get("mode_bound_s")
    return bound
