"""Pictures of residuals: predicted over measured, one file a topic."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rapid_des.errors import InputError


def plot_topics(report: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write `FOLDER/TOPIC.png` for every topic that has residuals, and return the paths."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("--plot needs matplotlib: pip install 'rapid-des[plot]'") from None
    mpl.use("agg")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figures in report["topics"].items():
        if figures["residuals"]:
            path = folder / f"{name.replace('/', '_').replace(' ', '_')}.png"
            _draw(Figure(figsize=(6, 4)), name, figures, path)
            written.append(path)
    return written


def _draw(figure: Any, name: str, figures: Mapping[str, Any], path: Path) -> None:
    measured = [row["measured"] for row in figures["residuals"]]
    ratio = [row["predicted"] / row["measured"] for row in figures["residuals"]]
    axes = figure.subplots()
    axes.semilogx(measured, ratio, ".", markersize=3)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_yscale("log", base=2)
    axes.set_xlabel(f"measured ({figures['unit']})")
    axes.set_ylabel("predicted / measured")
    axes.set_title(
        f"{name}: mean {figures['mean_abs_pct']:.1f} %, bias {figures['bias_pct']:+.1f} %", fontsize=9
    )
    figure.savefig(path, dpi=110, bbox_inches="tight")
