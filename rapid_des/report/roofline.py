"""A device's roofline with operators on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rapid_des.device.model import Device
from rapid_des.device.operators import Operator
from rapid_des.errors import InputError
from rapid_des.units import PS_PER_S

_MARKS = {
    "tensor": "o", "vector": "s", "shared": "D", "l2": "^", "hbm": "v", "latency": "x", "launch": "+",
}  # fmt: skip


def draw_roofline(operators: Mapping[str, Operator], device: Device, path: Path, *, title: str) -> None:
    """Write a PNG or SVG: FLOP/s over FLOP per HBM byte, a mark an operator by what bounds it."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("drawing needs matplotlib: pip install 'rapid-des[plot]'") from None
    if path.suffix not in {".png", ".svg"}:
        raise InputError(f"{path}: the file must end in .png or .svg")
    figure = Figure(figsize=(9, 6))
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    points = _points(operators, device)
    for number, (name, intensity, rate, bound) in enumerate(points, start=1):
        axes.plot(intensity, rate, _MARKS[bound], color=f"C{list(_MARKS).index(bound)}", markersize=6)
        axes.plot([], [], " ", label=f"{number} {name} ({bound}, {rate / 1e12:.3g} TFLOP/s)")
    for numbers in _neighbours([point[1:3] for point in points]):
        _, intensity, rate, _ = min((points[number - 1] for number in numbers), key=lambda point: point[2])
        text = "\n".join(" ".join(map(str, numbers[i : i + 6])) for i in range(0, len(numbers), 6))
        axes.annotate(
            text, (intensity, rate), fontsize=6, textcoords="offset points", xytext=(6, -6), va="top"
        )
    _roofs(axes, device, [point[1] for point in points])
    axes.set_xlabel("FLOP per byte of HBM")
    axes.set_ylabel("FLOP/s")
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=5, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    try:
        figure.savefig(path, dpi=130, bbox_inches="tight")
    except OSError as error:
        raise InputError(f"{path}: can not be written: {error.strerror or error}") from None


def _neighbours(places: list[tuple[float, float]]) -> list[list[int]]:
    """Group points whose labels would cover each other: within a third of a decade of the group's first."""
    groups: list[list[int]] = []
    logs = np.log10(np.array(places).reshape(-1, 2))
    for number, place in enumerate(logs, start=1):
        for group in groups:
            if np.abs(place - logs[group[0] - 1]).max() < 1 / 3:
                group.append(number)
                break
        else:
            groups.append([number])
    return groups


def _points(operators: Mapping[str, Operator], device: Device) -> list[tuple[str, float, float, str]]:
    points: dict[Operator, tuple[str, float, float, str]] = {}
    for name, operator in operators.items():
        estimate = device.operators.estimate(operator)
        moved = estimate.bytes.get("hbm", 0)
        if estimate.flops and moved and operator not in points:
            rate = estimate.flops * PS_PER_S / max(estimate.duration, 1)
            points[operator] = (name, estimate.flops / moved, rate, estimate.bound)
    return list(points.values())


def _roofs(axes: Any, device: Device, intensities: list[float]) -> None:
    low, high = min([0.3, *intensities]) / 3, max([3e3, *intensities]) * 3
    x = np.geomspace(low, high, 200)
    peaks: dict[int, list[str]] = {}
    for dtype, peak in device.spec.tensor_peak.items():
        if dtype not in {"fp64", "int8", "int4"}:
            peaks.setdefault(int(peak), []).append(dtype)
    for top, dtypes in peaks.items():
        roof = np.minimum(top * device.clock_ratio, x * device.spec.hbm.bandwidth)
        axes.loglog(x, roof, linewidth=1, color="black", alpha=0.6)
        axes.annotate(", ".join(dtypes), (high, roof[-1]), fontsize=7, ha="right", va="bottom")
    axes.grid(visible=True, which="both", alpha=0.2)
