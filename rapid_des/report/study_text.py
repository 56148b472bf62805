"""What studies found as lines for a terminal: validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_VALIDATION_COLUMNS = {
    "rows": "rows",
    "cases": "cases",
    "mean_abs_pct": "mean%",
    "bias_pct": "bias%",
    "median_abs_pct": "median%",
    "p90_abs_pct": "p90%",
    "max_abs_pct": "worst%",
    "null_mean_abs_pct": "null%",
}


def validation_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield a validation: one line a topic, the calibration split's mean in the last column."""
    topics = report["topics"]
    width = max((len(name) for name in topics), default=5)
    yield (
        f"{'topic':{width}} "
        + " ".join(f"{title:>8}" for title in _VALIDATION_COLUMNS.values())
        + "  calib.%"
    )
    for name, figures in topics.items():
        cells = [_cell(figures[key]) for key in _VALIDATION_COLUMNS]
        calibration = figures.get("calibration", {}).get("mean_abs_pct")
        yield f"{name:{width}} " + " ".join(f"{cell:>8}" for cell in cells) + f" {_cell(calibration):>8}"
    for name, figures in topics.items():
        for why, count in figures["unsupported"].items():
            yield f"{name}: {count} rows not supported: {why}"
    if report["absent"]:
        yield "files not in the folder: " + ", ".join(report["absent"])


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.2f}"
