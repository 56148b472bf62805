"""A sample of fault draws: a histogram of the step, or of many configurations each one's draws as dots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rapid_des.report.pictures import new_figure, save

_MOST_HISTOGRAMS = 4


def draw_sample(sample: Mapping[str, Any], path: Path) -> None:
    """Draw what `FaultSample.as_json` holds: PNG, SVG or PDF."""
    shown = [configuration for configuration in sample["configurations"] if configuration["rows"]]
    if len(shown) <= _MOST_HISTOGRAMS:
        _histograms(shown, sample, path)
    else:
        _dots(shown, sample, path)


def _histograms(shown: Sequence[Mapping[str, Any]], sample: Mapping[str, Any], path: Path) -> None:
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
    save(figure, path, dpi=130)


def _dots(shown: Sequence[Mapping[str, Any]], sample: Mapping[str, Any], path: Path) -> None:
    ordered = sorted(
        shown, key=lambda configuration: (configuration["healthy_s"], configuration["configuration"])
    )
    figure = new_figure(path, figsize=(max(9, 0.24 * len(ordered) + 2), 6.4))
    axes = figure.subplots()
    for place, configuration in enumerate(ordered):
        slower = [100 * (row["slowdown"] - 1) for row in configuration["rows"]]
        spots = place + np.linspace(-0.3, 0.3, len(slower))
        axes.plot(spots, slower, ".", color="C0", markersize=2, alpha=0.35)
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
    axes.legend(fontsize=8)
    save(figure, path, dpi=130, bbox_inches="tight")
