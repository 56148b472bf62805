"""The row of each point in a study: a flat row of figures, and the whole result as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from rapid_des.bounded_cache import BoundedCache
from rapid_des.report.evidence import STEP
from rapid_des.report.result import Result
from rapid_des.studies.points import Point, evaluate
from rapid_des.units import seconds

OK = "ok"
"""The status of a point that was simulated; for other points it is the error's class."""
PARTS = ("compute", "tp", "cp", "ep", "dp", "pp", "offload", "bubble", "host", "idle")
"""The parts of the critical rank's time: columns `compute_s`, `tp_s` and so on."""
FIGURES: Mapping[str, str] = {
    "step_time_s": "less",
    "tokens_per_s": "more",
    "tokens_per_gpu_s": "more",
    "mfu": "more",
    "gpus": "less",
    "memory_bytes": "less",
    "energy_j": "less",
    "tokens_per_joule": "more",
    "time_to_first_token_s": "less",
    "time_per_output_token_s": "less",
    "step_low_s": "less",
    "step_high_s": "less",
    "mode_low_s": "less",
    "mode_high_s": "less",
    **{f"{part}_s": "less" for part in PARTS},
    "tokens": "",
    "memory_capacity_bytes": "",
    "step_time_ps": "",
    "bound": "",
    "status": "",
    "error": "",
    "key": "",
    "wall_s": "",
    "point_settings": "",
    "point_faults": "",
    "result": "",
}
"""The columns of every result, and whether less or more is better; empty: neither."""
_WHOLE = ("gpus", "memory_bytes", "tokens", "memory_capacity_bytes", "step_time_ps")
_TEXT = ("bound", "status", "error", "key", "point_settings", "point_faults", "result")


_MOST: Mapping[str, int] = {"gpus": 1 << 24, "step_time_ps": (1 << 63) - 1}
_MOST_WHOLE = 1 << 53
"""The largest value of the other whole numbers: tokens, and bytes of a GPU's memory."""


def most_of(figure: str) -> float:
    """Return the largest value of a figure's column that is a number; the least is 0.

    >>> most_of("gpus"), most_of("mfu")
    (16777216, 1.7976931348623157e+308)
    """
    if kind_of(figure) == "int64":
        return _MOST.get(figure, _MOST_WHOLE)
    return sys.float_info.max


def kind_of(figure: str) -> str:
    """Return the type of a figure's column, as Arrow calls it.

    >>> kind_of("gpus"), kind_of("mfu"), kind_of("bound")
    ('int64', 'float64', 'string')
    """
    return "int64" if figure in _WHOLE else "string" if figure in _TEXT else "float64"


def measured(point: Point, cache: BoundedCache) -> dict[str, Any]:
    """Return the row of a point that is simulated; points with one content share one simulation.

    Raises what `evaluate` raises.
    """
    key = point.key(cache)
    row = cache.get_or_make(("row", key), lambda: row_of(evaluate(point, cache)), weight=_weight)
    return {**row, "key": key}


def _weight(row: Mapping[str, Any]) -> int:
    return 4000 + len(row["result"])


def row_of(result: Result) -> dict[str, Any]:
    """Return the figures of a result as a row; figures that do not apply are left out."""
    row: dict[str, Any] = {
        "status": OK,
        "step_time_s": seconds(result.step_time),
        "step_time_ps": int(result.step_time),
        "bound": result.bound,
        **{f"{part}_s": seconds(spent) for part, spent in result.breakdown.items()},
        "result": json.dumps(result.as_json(), separators=(",", ":")),
    }
    if STEP in result.intervals:
        expected = result.intervals[STEP]
        row |= {"step_low_s": seconds(expected.low), "step_high_s": seconds(expected.high)}
    if result.mode_bound is not None:
        ends = result.mode_bound.as_json()
        row |= {"mode_low_s": ends["low"], "mode_high_s": ends["high"]}
    figures = result.figures
    if figures is None:
        return row
    row |= {
        "gpus": figures.gpus,
        "tokens": figures.tokens,
        "tokens_per_s": figures.tokens_per_s,
        "tokens_per_gpu_s": figures.tokens_per_s / figures.gpus,
        "mfu": figures.mfu,
        "memory_bytes": figures.memory.fullest.peak,
        "memory_capacity_bytes": figures.memory_capacity,
    }
    if figures.energy is not None:
        row |= {"energy_j": figures.energy.joules, "tokens_per_joule": figures.energy.tokens_per_joule}
    if figures.requests is not None:
        row["time_to_first_token_s"] = seconds(figures.requests.first_token)
        row["time_per_output_token_s"] = seconds(figures.requests.per_output_token)
    return row
