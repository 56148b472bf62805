"""Where a step's time goes, as bars."""

from __future__ import annotations

from rapid_des.report.charts import Bars, HorizontalBar
from rapid_des.report.colours import BUBBLE, HOST
from rapid_des.report.tables import Plain
from rapid_des.units import PS_PER_S, seconds, time_text

WAITS = {BUBBLE: "bubble: waiting for a message or a late peer", HOST: "host: not issued yet"}
"""The words for parts of a step in which nothing runs."""


def part_name(part: str) -> str:
    """Return the words for a part of the breakdown."""
    plain = {"compute": "compute", "idle": "idle", **WAITS}
    return plain.get(part, f"exposed {part} communication")


def breakdown_bars(plain: Plain) -> Bars:
    """Return the parts of a step's time as bars; a full bar is the whole step."""
    step = max(plain["step_time_ps"], 1)
    bars = [
        HorizontalBar(part_name(part), time, with_share(round(time * PS_PER_S), step), part)
        for part, time in plain["breakdown_s"].items()
        if time
    ]
    title = f"where the time of rank {plain['critical_rank']} goes; the parts add up to the step"
    return Bars(title, bars, seconds(step))


def with_share(time: int, step: int) -> str:
    """Return a time with its share of a step, both in picoseconds."""
    return f"{time_text(time)}  {time / step:.1%}"
