"""The whole validation: choose topics, score them, lay out the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rapid_des.validation.folder import DataFolder
from rapid_des.validation.registry import all_topics, select
from rapid_des.validation.scoring import Report, score

COLUMNS = {
    "rows": "rows",
    "cases": "cases",
    "mean_abs_pct": "mean%",
    "bias_pct": "bias%",
    "median_abs_pct": "median%",
    "p90_abs_pct": "p90%",
    "max_abs_pct": "worst%",
    "null_mean_abs_pct": "null%",
}


def validate(data: DataFolder, prefixes: Sequence[str] = ()) -> Report:
    """Return `{"topics": {name: figures}, "constants": …, "absent": [files]}` for the chosen topics."""
    chosen = select(list(all_topics(data, prefixes)), prefixes)
    constants: dict[str, object] = {}
    reports: dict[str, Report] = {}
    for topic in chosen:
        reports[topic.name] = score(topic, split=data.split)
        constants |= topic.constants
    return {"topics": reports, "constants": constants, "absent": list(data.absent)}


def table(report: Mapping[str, Any]) -> str:
    """Return the report as text: one line a topic, the calibration split's mean in the last column."""
    topics = report["topics"]
    width = max((len(name) for name in topics), default=5)
    header = f"{'topic':{width}} " + " ".join(f"{title:>8}" for title in COLUMNS.values()) + "  calib.%"
    lines = [header, *(_line(name, topics[name], width) for name in topics)]
    for name, figures in topics.items():
        lines += [
            f"{name}: {count} rows not supported: {why}" for why, count in figures["unsupported"].items()
        ]
    if report["absent"]:
        lines.append("files not in the folder: " + ", ".join(report["absent"]))
    return "\n".join(lines)


def _line(name: str, figures: Mapping[str, Any], width: int) -> str:
    cells = [_cell(figures[key]) for key in COLUMNS]
    calibration = figures.get("calibration", {}).get("mean_abs_pct")
    return f"{name:{width}} " + " ".join(f"{cell:>8}" for cell in cells) + f" {_cell(calibration):>8}"


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.2f}"
