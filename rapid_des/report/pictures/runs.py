"""The picture of a training run of weeks: incidents in time, lost time by cause, the spread of goodput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rapid_des.report.pictures import new_figure, save
from rapid_des.report.pictures.fabric import PALETTE

_S_PER_DAY, _S_PER_HOUR = 86_400, 3600


def draw_run(
    plain: Mapping[str, Any], incidents: Sequence[Mapping[str, Any]], path: Path, title: str
) -> None:
    """Draw what a run's JSON says, and the incidents of its first replication: PNG, SVG or PDF."""
    figure = new_figure(path, figsize=(9, 8), layout="constrained")
    strip, lost, spread = figure.subplots(3, 1)
    _draw_incidents(strip, plain, incidents)
    times = {name: time for name, time in plain["time_s"].items() if name != "steps" and time}
    ordered = sorted(times.items(), key=lambda each: each[1])
    shares = [100 * time / plain["wall_s"] for _, time in ordered]
    lost.barh([name.replace("_", " ") for name, _ in ordered], shares, color=PALETTE[0])
    lost.set_xlabel("share of the wall time (%)")
    values = [100 * value for value in plain["goodputs"]]
    spread.hist(values, bins=min(40, max(8, len(values) // 8)), color=PALETTE[0], alpha=0.75)
    spread.axvline(100 * plain["goodput"]["mean"], color="k", linewidth=1.5)
    spread.set_xlabel("goodput (%)")
    spread.set_ylabel("replications")
    figure.suptitle(f"{title}: {plain['replications']:,} replications")
    save(figure, path, dpi=130)


def _draw_incidents(axes: Any, plain: Mapping[str, Any], incidents: Sequence[Mapping[str, Any]]) -> None:
    names = [name for name, count in plain["incidents"].items() if count]
    days = [incident["at_s"] / _S_PER_DAY for incident in incidents]
    places = [names.index(incident["class"]) for incident in incidents]
    sizes = [4 + 40 * incident["cost_s"] / _S_PER_HOUR for incident in incidents]
    axes.scatter(days, places, s=sizes, color=PALETTE[0], alpha=0.6)
    axes.set_yticks(range(len(names)), names, fontsize=6)
    axes.set_xlim(0, plain["wall_s"] / _S_PER_DAY)
    axes.set_xlabel("days; a dot's area is the incident's cost")
