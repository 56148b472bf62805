"""Pictures of many simulations: a study's, a sample of fault draws, a collective's sizes, residuals.

A study's has the best points as stacked bars, the front of two figures, and the pair of axes that matters
most; a sample's a histogram of the step, or of many configurations each one's draws as dots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rapid_des.arrays import levels_of
from rapid_des.errors import InfeasibleJobError
from rapid_des.report.pictures import new_figure, save
from rapid_des.report.pictures.bars import StepBar, bars_on, draw_bars, height
from rapid_des.report.pictures.fabric import PALETTE
from rapid_des.report.sweep_text import differing_axes, marks
from rapid_des.report.tables import heading, shown
from rapid_des.units import PS_PER_S, Size, time_text

_MOST_TICKS, _MOST_LABELS = 14, 12


def draw_sweep(plain: Mapping[str, Any], columns: Mapping[str, Any], path: Path | None, *, title: str) -> Any:
    """Return a study's picture, written if there is a path: the best points as bars, and the front.

    `plain` is what `--json` prints; `columns` have an entry for each point.
    """
    if len(plain["compared"]) > 1:
        return _draw_compared(plain, path, title)
    shares = (1.6, 1, 1) if plain["interactions"] else (1.6, 1)
    tall = max(4.8, height(len(plain["best"])))
    figure = new_figure(path, figsize=(5 * sum(shares), tall), layout="constrained")
    best, front, *pair = figure.subplots(1, len(shares), width_ratios=shares)
    bars_on(best, _best(plain))
    _draw_front(front, plain, columns)
    for panel in pair:
        _draw_pair(figure, panel, plain, columns)
    figure.suptitle(f"{title}: {plain['points']:,} points{_failed(plain)}")
    return save(figure, path, dpi=130)


def _best(plain: Mapping[str, Any]) -> list[StepBar]:
    """Return the best points as bars, with what the study ranks by where that is no time."""
    objective, rows = plain["objective"], plain["best"]
    timed = objective == "step_time_s"
    return [
        StepBar(
            f"{row['id']}{marks(row) if timed else ''}   {differing_axes(plain, rows, row)}".rstrip(),
            row["step_time_s"],
            row["breakdown_s"] or {},
            "" if timed else f"{shown(objective, row[objective])} {heading(objective)}",
        )
        for row in rows
    ]


def _draw_compared(plain: Mapping[str, Any], path: Path | None, title: str) -> Any:
    """Draw the best step for each value of the compared axis as a bar."""
    axis, rows = plain["compare"], plain["compared"]
    others = {**plain, "main_effects": [each for each in plain["main_effects"] if each["axis"] != axis]}
    bars = [
        StepBar(
            f"{row[axis]}   {differing_axes(others, rows, row)}".rstrip(),
            row["step_time_s"],
            row["breakdown_s"],
            "" if row["gain"] is None else f"{row['gain']:.2f} x",
        )
        for row in rows
    ]
    return draw_bars(bars, path, title=f"{title}: the best for each {heading(axis)}")


def _failed(plain: Mapping[str, Any]) -> str:
    """Return in words how many points failed, those that do not fit into memory separately."""
    counts = {failure["error"]: failure["points"] for failure in plain["failed"]}
    large = counts.pop(InfeasibleJobError.__name__, 0)
    said = f", {large:,} do not fit into memory" if large else ""
    return said + (f", {sum(counts.values()):,} failed" if counts else "")


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
    for point in points[:_MOST_LABELS]:
        place = (point[across] / _unit(across), point[upwards] / _unit(upwards))
        text = differing_axes(plain, points, point) or str(point["id"])
        axes.annotate(text, place, xytext=(5, 3), textcoords="offset points", fontsize=7)
    if plain["best"]:
        best = int(np.flatnonzero(columns["id"] == plain["best"][0]["id"])[0])
        axes.plot(x[best], y[best], "*", color=PALETTE[1], markersize=14, label="best")
    _scale(axes.xaxis, across)
    _scale(axes.yaxis, upwards)
    for label in axes.get_xticklabels():
        label.set(rotation=20, ha="right", rotation_mode="anchor")
    axes.margins(x=0.2)
    axes.legend(fontsize=8)
    axes.grid(visible=True, alpha=0.3)


def _unit(name: str) -> int:
    return 2**30 if name.endswith("_bytes") else 1


def _scale(axis: Any, name: str) -> None:
    if _unit(name) > 1:
        axis.set_label_text(f"{name.removesuffix('_bytes')} (GiB)")
        return
    axis.set_label_text(heading(name))
    axis.set_major_formatter(lambda value, _: shown(name, value))


def _draw_pair(figure: Any, axes: Any, plain: Mapping[str, Any], columns: Mapping[str, Any]) -> None:
    """Draw the best objective for each combination of the two axes that interact most."""
    across, upwards = plain["interactions"][0]["axes"]
    objective = plain["objective"]
    values = columns[objective] / _unit(objective)
    rows, row = levels_of(columns[across])
    places, place = levels_of(columns[upwards])
    best = np.full((len(rows), len(places)), np.nan)
    more = _more(plain)
    (np.fmax if more else np.fmin).at(best, (row, place), values)
    image = axes.imshow(best, aspect="auto", origin="lower", cmap="viridis" if more else "viridis_r")
    for ticks, labels in ((axes.set_xticks, places), (axes.set_yticks, rows)):
        step = max(1, len(labels) // _MOST_TICKS)
        ticks(range(0, len(labels), step), [str(label) for label in labels[::step]], fontsize=8)
    axes.set_xlabel(upwards)
    axes.set_ylabel(across)
    axes.set_title(f"best {heading(objective)}; blank: none ran", fontsize=9)
    _scale(figure.colorbar(image, ax=axes).ax.yaxis, objective)


def _more(plain: Mapping[str, Any]) -> bool:
    """Return whether a larger objective is better."""
    return any(
        level["best"] > level["typical"] for effect in plain["main_effects"] for level in effect["levels"]
    )


_MOST_HISTOGRAMS, _FEW_DRAWS = 4, 40


def draw_sample(sample: Mapping[str, Any], path: Path | None) -> Any:
    """Draw what `FaultSample.as_json` holds; return the figure."""
    shown = [configuration for configuration in sample["configurations"] if configuration["rows"]]
    if len(shown) <= _MOST_HISTOGRAMS:
        return _histograms(shown, sample, path)
    return _dots(shown, sample, path)


def _histograms(shown: Sequence[Mapping[str, Any]], sample: Mapping[str, Any], path: Path | None) -> Any:
    figure = new_figure(path, figsize=(8, 1 + 2.6 * max(len(shown), 1)))
    for axes, configuration in zip(
        figure.subplots(max(len(shown), 1), 1, squeeze=False)[:, 0], shown, strict=False
    ):
        steps = [row["step_time_s"] for row in configuration["rows"]]
        weights = [row["weight"] for row in configuration["rows"]]
        spread = configuration["step_time_s"]
        axes.hist(steps, bins=min(40, max(8, len(steps) // 8)), weights=weights, color="C0", alpha=0.75)
        lines = {
            "healthy": (configuration["healthy_s"], "k", "-"),
            "mean": (spread["mean"], "C1", "-"),
            "p95": (spread["p95"], "C3", "--"),
            "CVaR 95": (spread["cvar95"], "C3", "-"),
        }
        for label, (value, colour, style) in lines.items():
            axes.axvline(value, color=colour, linestyle=style, linewidth=1.5, label=f"{label} {value:.4g} s")
        axes.set_title(f"{configuration['configuration']}: {len(steps)} draws", fontsize=10)
        axes.set_xlabel("step time (s)")
        axes.set_ylabel("draws")
        axes.legend(fontsize=8)
    figure.suptitle("; ".join(sample["faults"]), fontsize=9)
    figure.tight_layout()
    return save(figure, path, dpi=130)


def _dots(shown: Sequence[Mapping[str, Any]], sample: Mapping[str, Any], path: Path | None) -> Any:
    ordered = sorted(
        shown, key=lambda configuration: (configuration["healthy_s"], configuration["configuration"])
    )
    figure = new_figure(path, figsize=(max(9, 0.24 * len(ordered) + 2), 6.4))
    axes = figure.subplots()
    for place, configuration in enumerate(ordered):
        slower = [100 * (row["slowdown"] - 1) for row in configuration["rows"]]
        spots = place + np.linspace(-0.3, 0.3, len(slower))
        few = len(slower) <= _FEW_DRAWS
        axes.plot(
            spots,
            slower,
            ".",
            color="C0",
            markersize=5 if few else 2,
            alpha=0.7 if few else 0.35,
            label=None if place else "a draw",
        )
    for name, colour, mark in (("mean", "C1", "_"), ("cvar95", "C3", "_"), ("worst", "k", "x")):
        values = [
            100 * (configuration["step_time_s"][name] / configuration["healthy_s"] - 1)
            for configuration in ordered
        ]
        label = {"cvar95": "mean of the worst 5 % (CVaR)"}.get(name, name)
        axes.plot(
            range(len(ordered)), values, mark, color=colour, markersize=7, label=label, linestyle="none"
        )
    names = [
        f"{configuration['configuration']}  {configuration['healthy_s']:.4g} s" for configuration in ordered
    ]
    axes.set_xticks(range(len(ordered)), names, rotation=90, fontsize=7)
    axes.set_xlim(-0.7, len(ordered) - 0.3)
    axes.set_ylabel("slower than the healthy step (%)")
    axes.set_title("; ".join(sample["faults"]), fontsize=9)
    axes.grid(axis="y", alpha=0.3)
    axes.set_xlabel("split and its healthy step, the fastest first")
    axes.legend(fontsize=8)
    return save(figure, path, dpi=130, bbox_inches="tight")


def draw_collective(rows: Sequence[Mapping[str, Any]], title: str, path: Path | None = None) -> Any:
    """Return a figure of time, its bound and bus bandwidth over the size, from the rows that `--json` prints.

    >>> from rapid_des.machine import load_machine
    >>> from rapid_des.studies.collective_bench import bench
    >>> rows = [row.as_json() for row in bench(load_machine("dgx_a100"), "all_reduce", [2**20, 2**21])]
    >>> len(draw_collective(rows, "all_reduce").axes)
    2
    """
    figure = new_figure(path, figsize=(10, 4.2), layout="constrained")
    sizes = [row["size_bytes"] for row in rows]
    times, rates = figure.subplots(1, 2)
    times.loglog(sizes, [row["time_s"] for row in rows], "o-", label="simulated")
    times.loglog(sizes, [max(row["bound_s"], 1e-9) for row in rows], "k--", label="lower bound")
    times.set_ylabel("time")
    times.yaxis.set_major_formatter(lambda time, _: time_text(round(time * PS_PER_S)))
    times.legend()
    rates.semilogx(sizes, [row["busbw_GBps"] for row in rows], "o-")
    rates.set_ylabel("bus bandwidth (GB/s)")
    rates.set_ylim(bottom=0)
    for axes in (times, rates):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda size, _: str(Size(round(size))))
        axes.tick_params(axis="x", labelsize=8)
        axes.set_xlabel("size")
        axes.grid(visible=True, alpha=0.3)
    figure.suptitle(title)
    return save(figure, path)


_RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 10, 20, 50, 100)


def draw_residuals(report: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write `FOLDER/TOPIC.png`, predicted over measured, for every topic of a validation with residuals."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figures in report["topics"].items():
        if figures["residuals"]:
            path = folder / f"{name.replace('/', '_').replace(' ', '_')}.png"
            _draw_residuals(name, figures, path)
            written.append(path)
    return written


def _draw_residuals(name: str, figures: Mapping[str, Any], path: Path) -> None:
    figure = new_figure(path, figsize=(6, 4))
    from matplotlib.ticker import LogLocator

    measured = [row["measured"] for row in figures["residuals"]]
    ratio = [row["predicted"] / row["measured"] for row in figures["residuals"]]
    axes = figure.subplots()
    axes.semilogx(measured, ratio, ".", markersize=3)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_yscale("log")
    farthest = 1.15 * max(1.2, *ratio, *(1 / share for share in ratio))
    axes.set_ylim(1 / farthest, farthest)
    axes.set_yticks([share for share in _RATIOS if 1 / farthest <= share <= farthest], minor=False)
    axes.set_yticks([], minor=True)
    axes.yaxis.set_major_formatter("{x:g}")
    decades = np.log10(max(measured) / min(measured)) if min(measured) > 0 else 0.0
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2 else (1,)))  # noqa: PLR2004
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.grid(visible=True, alpha=0.3)
    axes.set_xlabel(f"measured ({figures['unit']})")
    axes.set_ylabel("predicted / measured")
    mean, bias = figures["mean_abs_pct"], figures["bias_pct"]
    axes.set_title(f"{name}: mean {mean:.1f} %, bias {bias:+.1f} %", fontsize=9)
    save(figure, path, dpi=110, bbox_inches="tight")


def draw_tornado(sensitivities: Mapping[str, Any], path: Path | None, title: str, top: int) -> Any:
    """Return a tornado plot of a sensitivity: the step's change with each parameter lower and higher."""
    rows = list(reversed(sensitivities["rows"][:top]))
    figure = new_figure(path, figsize=(8, 1.2 + 0.28 * len(rows)))
    axes = figure.subplots()
    for name, label, colour in (("lower_s", "lower", "#c44e52"), ("higher_s", "higher", "#4c72b0")):
        base = sensitivities["step_time_s"]
        changes = [100 * ((row[name] or base) / base - 1) for row in rows]  # 0: it cannot be moved
        axes.barh(
            range(len(rows)), changes, color=colour, label=f"parameter {sensitivities['change']:.1%} {label}"
        )
    axes.set_yticks(range(len(rows)), [row["knob"] for row in rows], fontsize=8)
    axes.axvline(0.0, color="black", linewidth=0.8)
    axes.grid(visible=True, axis="x", alpha=0.3)
    axes.set_xlabel("change of the step (%)")
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=8, loc="lower right")
    return save(figure, path, dpi=110, bbox_inches="tight")
