"""A study's picture: the front of two figures, what each axis does, the pair of axes that matters most."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rapid_des.report.pictures import new_figure, save
from rapid_des.report.pictures.fabric import PALETTE
from rapid_des.report.sweep_text import cell

_MOST_TICKS = 14


def draw_sweep(plain: Mapping[str, Any], columns: Mapping[str, Any], path: Path, *, title: str) -> None:
    """Write a study's picture: `plain` is what `--json` prints, `columns` have an entry for each point."""
    figure = new_figure(path, figsize=(15, 4.8), layout="constrained")
    front, axes, pair = figure.subplots(1, 3, width_ratios=(1.1, 1, 1))
    _draw_front(front, plain, columns)
    _draw_effects(axes, plain)
    _draw_pair(figure, pair, plain, columns)
    failed = sum(failure["points"] for failure in plain["failed"])
    figure.suptitle(f"{title}: {plain['points']:,} points" + (f", {failed:,} failed" if failed else ""))
    save(figure, path, dpi=130)


def _draw_front(axes: Any, plain: Mapping[str, Any], columns: Mapping[str, Any]) -> None:
    across, upwards = plain["pareto"]["columns"]
    x, y = (columns[name] / _unit(name) for name in (across, upwards))
    axes.plot(x, y, ".", color="#999999", markersize=5, label="points")
    points = plain["pareto"]["points"]
    axes.plot(
        [point[across] / _unit(across) for point in points],
        [point[upwards] / _unit(upwards) for point in points],
        "o-",
        color=PALETTE[0],
        markersize=5,
        linewidth=1,
        label="front",
    )
    if plain["best"]:
        best = int(np.flatnonzero(columns["id"] == plain["best"][0]["id"])[0])
        axes.plot(x[best], y[best], "*", color=PALETTE[1], markersize=14, label="best")
    _scale(axes.xaxis, across)
    _scale(axes.yaxis, upwards)
    axes.tick_params(axis="x", labelrotation=20)
    axes.legend(fontsize=8)
    axes.grid(visible=True, alpha=0.3)


def _unit(name: str) -> int:
    return 2**30 if name.endswith("_bytes") else 1


def _scale(axis: Any, name: str) -> None:
    if _unit(name) > 1:
        axis.set_label_text(f"{name.removesuffix('_bytes')} (GiB)")
        return
    axis.set_label_text(name)
    axis.set_major_formatter(lambda value, _: cell(name, value))


def _draw_effects(axes: Any, plain: Mapping[str, Any]) -> None:
    """Draw for each value of each axis the geometric mean and the best, one axis after the other."""
    objective, place, ticks = plain["objective"], 0, []
    for number, effect in enumerate(plain["main_effects"]):
        colour, levels = PALETTE[number % len(PALETTE)], effect["levels"]
        places = list(range(place, place + len(levels)))
        label = f"{effect['axis']} ({effect['share']:.0%})"
        typical = [level["typical"] for level in levels]
        joined = all(isinstance(level["value"], (int, float)) for level in levels)  # names have no order
        axes.plot(places, typical, "o-" if joined else "o", color=colour, markersize=4, label=label)
        axes.plot(places, [level["best"] for level in levels], "_", color=colour, markersize=9)
        ticks += [(at, str(level["value"])) for at, level in zip(places, levels, strict=True)]
        place += len(levels) + 1
    if len(ticks) <= 3 * _MOST_TICKS:
        axes.set_xticks([at for at, _ in ticks], [label for _, label in ticks], fontsize=7, rotation=90)
    _scale(axes.yaxis, objective)
    axes.set_title("by value: geometric mean (dots), best (dashes)", fontsize=9)
    if ticks:
        axes.legend(fontsize=8, title="of variance", title_fontsize=8)
    axes.grid(visible=True, axis="y", alpha=0.3)


def _draw_pair(figure: Any, axes: Any, plain: Mapping[str, Any], columns: Mapping[str, Any]) -> None:
    """Draw the best objective for each combination of the two axes that interact most."""
    if not plain["interactions"]:
        axes.axis("off")
        return
    across, upwards = plain["interactions"][0]["axes"]
    objective = plain["objective"]
    values = columns[objective]
    rows, row = np.unique(columns[across], return_inverse=True)
    places, place = np.unique(columns[upwards], return_inverse=True)
    best = np.full((len(rows), len(places)), np.nan)
    more = _more(plain)
    (np.fmax if more else np.fmin).at(best, (row, place), values)
    image = axes.imshow(best, aspect="auto", origin="lower", cmap="viridis" if more else "viridis_r")
    for ticks, labels in ((axes.set_xticks, places), (axes.set_yticks, rows)):
        step = max(1, len(labels) // _MOST_TICKS)
        ticks(range(0, len(labels), step), [str(label) for label in labels[::step]], fontsize=8)
    axes.set_xlabel(upwards)
    axes.set_ylabel(across)
    axes.set_title(f"best {objective}; blank: none ran", fontsize=9)
    bar = figure.colorbar(image, ax=axes)
    bar.ax.yaxis.set_major_formatter(lambda value, _: cell(objective, value))


def _more(plain: Mapping[str, Any]) -> bool:
    """Tell whether more of the objective is better."""
    return any(
        level["best"] > level["typical"] for effect in plain["main_effects"] for level in effect["levels"]
    )
