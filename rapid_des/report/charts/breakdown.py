"""Where a step's time goes, as bars."""

from __future__ import annotations

from collections.abc import Iterable

from rapid_des.report.charts import Bars, HorizontalBar
from rapid_des.report.colours import BUBBLE, COMPUTE, HOST, IDLE, KIND_ORDER
from rapid_des.report.tables import Plain
from rapid_des.units import PS_PER_S, seconds, time_text

WAITS = {BUBBLE: "bubble: waiting for a message or a late peer", HOST: "host: not issued yet"}
"""The words for parts of a step in which nothing runs."""

_FIRST, _LAST = (COMPUTE, *KIND_ORDER), (HOST, BUBBLE, IDLE)


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


def step_bars(title: str, steps: Iterable[tuple[str, Plain, str]]) -> Bars:
    """Return steps side by side, stacked by where their time goes: names, their figures, and texts.

    Figures have `step_time_s`, and `breakdown_s` if it is known.
    """
    bars = [
        HorizontalBar(name, plain["step_time_s"], text, "before", _parts(plain["breakdown_s"] or {}))
        for name, plain, text in steps
    ]
    there = {part for bar in bars for part, _ in bar.parts}
    return Bars(title, bars, legend=[(part_name(part), part) for part in sorted(there, key=_place)])


def _parts(spent: Plain) -> list[tuple[str, float]]:
    return sorted(((part, time) for part, time in spent.items() if time), key=lambda each: _place(each[0]))


def _place(part: str) -> tuple[int, str]:
    """Return the place of a part in a bar: compute first, waiting last, unknown kinds between them."""
    return (*_FIRST, part, *_LAST).index(part), part


def with_share(time: int, step: int) -> str:
    """Return a time with its share of a step, both in picoseconds."""
    return f"{time_text(time)}  {time / step:.1%}"
