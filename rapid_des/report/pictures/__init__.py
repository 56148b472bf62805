"""Every picture: fabrics, traces, rooflines, curves and residuals (needs the extra `plot`, matplotlib)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rapid_des.report.writing import check_outputs, replacing, require_extra


def new_figure(path: Path | None, **options: Any) -> Any:
    """Return a matplotlib figure; `InputError` if it cannot be drawn, or not written to a path."""
    check_picture(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(**options)
    FigureCanvasAgg(figure)
    return figure


def check_picture(path: Path | None) -> None:
    """Raise `InputError` if a picture cannot be drawn, or not written to a path."""
    require_extra("matplotlib", "plot", "a picture")
    check_outputs([], pictures=[path])


def save(figure: Any, path: Path | None, **options: Any) -> Any:
    """Write a figure as PNG, SVG or PDF by the name's ending, unless the path is None; return the figure.

    Equal figures give equal files.
    """
    if path is None:
        return figure
    from matplotlib import rc_context

    undated: dict[str, dict[str, None]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with replacing(path) as beside, rc_context({"svg.hashsalt": "rapid-des"}):
        figure.savefig(beside, metadata=undated.get(path.suffix, {}), **options)
    return figure
