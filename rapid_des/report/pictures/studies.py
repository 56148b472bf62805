"""Pictures that no page has: a collective's sizes, residuals, a tornado of sensitivities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rapid_des.report.pictures import new_figure, save
from rapid_des.units import PS_PER_S, Size, time_text


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
