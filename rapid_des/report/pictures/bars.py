"""Steps side by side as bars: each is as long as its step, stacked by where the time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from rapid_des.report.colours import KIND_ORDER, colour
from rapid_des.report.pictures import new_figure, save
from rapid_des.report.tables import seconds_text
from rapid_des.units import PS_PER_S, time_text

_FIRST = ("compute", *KIND_ORDER)
_LAST = ("host", "bubble", "idle")


class StepBar(Struct, frozen=True):
    """One bar."""

    label: str
    step_s: float
    """The length in seconds."""
    parts: Mapping[str, float]
    """The seconds of each part of the breakdown; they add up to the step."""
    note: str = ""
    """What stands behind the bar after its time."""


def draw_bars(bars: Sequence[StepBar], path: Path | None = None, *, title: str) -> Any:
    """Return steps as bars, the first on top, written as PNG, SVG or PDF if there is a path.

    >>> len(draw_bars([StepBar("1", 2.0, {"compute": 1.5, "tp": 0.5})], title="steps").axes)
    1
    """
    figure = new_figure(path, figsize=(10, height(len(bars))), layout="constrained")
    bars_on(figure.subplots(), bars)
    figure.suptitle(title, fontsize=11)
    return save(figure, path, dpi=130)


def height(bars: int) -> float:
    """Return the height in inches that this many bars take."""
    return 1.4 + 0.42 * max(bars, 1)


def bars_on(axes: Any, bars: Sequence[StepBar]) -> None:
    """Draw steps as bars, the first on top, with a legend of their parts above."""
    places = range(len(bars))
    ends = [0.0] * len(bars)
    for part in _parts(bars):
        lengths = [bar.parts.get(part, 0.0) for bar in bars]
        axes.barh(places, lengths, left=ends, height=0.7, color=colour(part), edgecolor="white", label=part)
        ends = [end + length for end, length in zip(ends, lengths, strict=True)]
    longest = max([bar.step_s for bar in bars], default=1.0)
    for place, bar in zip(places, bars, strict=True):
        text = f"{seconds_text(bar.step_s)}{bar.note and '  '}{bar.note}"
        axes.text(bar.step_s + 0.01 * longest, place, text, va="center", fontsize=9)
    _finish(axes, [bar.label for bar in bars], longest)


def _parts(bars: Sequence[StepBar]) -> list[str]:
    """Return the parts that any bar has, compute first and waiting last."""
    present = dict.fromkeys(part for bar in bars for part, time in bar.parts.items() if time > 0)
    between = [part for part in present if part not in (*_FIRST, *_LAST)]
    return [part for part in (*_FIRST, *between, *_LAST) if part in present]


def _finish(axes: Any, labels: Sequence[str], longest: float) -> None:
    axes.set_yticks(range(len(labels)), labels, fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.22 * longest)
    axes.set_xlabel("step time of the critical rank")
    axes.xaxis.set_major_formatter(lambda time, _: time_text(round(time * PS_PER_S)))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    axes.grid(visible=True, axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(fontsize=8, ncols=9, loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
