"""Every picture: fabrics, traces, rooflines, curves and residuals (needs the extra `plot`, matplotlib)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rapid_des.report.writing import check_outputs, replacing


def new_figure(path: Path, **options: Any) -> Any:
    """Return a matplotlib figure for a picture at `path`; `InputError` if it can not be drawn there."""
    check_outputs([], pictures=[path])
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(**options)
    FigureCanvasAgg(figure)
    return figure


def save(figure: Any, path: Path, **options: Any) -> None:
    """Write a figure as PNG, SVG or PDF by the name's ending; equal figures give equal files."""
    from matplotlib import rc_context

    undated: dict[str, dict[str, None]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with replacing(path) as beside, rc_context({"svg.hashsalt": "rapid-des"}):
        figure.savefig(beside, metadata=undated.get(path.suffix, {}), **options)
