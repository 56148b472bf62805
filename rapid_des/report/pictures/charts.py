"""Charts: a device's roofline with operators on it, a collective over its sizes, residuals of predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rapid_des.device.device import Device
from rapid_des.device.operators import Operator
from rapid_des.device.pricing import operator_model
from rapid_des.frontend import Job
from rapid_des.frontend.parts import training_lists
from rapid_des.report.pictures import new_figure, save
from rapid_des.units import PS_PER_S

_MARKS = {
    "tensor": "o", "vector": "s", "shared": "D", "l2": "^", "hbm": "v", "latency": "x", "launch": "+",
}  # fmt: skip


def draw_job_roofline(job: Job, device: Device, path: Path, *, title: str) -> int:
    """Draw the device's roofline with a training job's operators on it; return how many there are."""
    operators = {
        f"{key.section.name} {key.phase}: {step.name}": step.operator
        for key, steps in training_lists(job).items()
        for step in steps
        if step.operator is not None
    }
    draw_roofline(operators, device, path, title=title)
    return len(operators)


def draw_roofline(operators: Mapping[str, Operator], device: Device, path: Path, *, title: str) -> None:
    """Write a picture: FLOP/s over FLOP per HBM byte, a mark an operator by what bounds it."""
    figure = new_figure(path, figsize=(9, 6))
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
    save(figure, path, dpi=130, bbox_inches="tight")


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
    prices = operator_model(device)
    for name, operator in operators.items():
        estimate = prices.estimate(operator)
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


def draw_collective(rows: Sequence[Mapping[str, Any]], title: str, path: Path) -> None:
    """Draw time and its bound, and bus bandwidth, over the size; the rows are those that `--json` prints."""
    figure = new_figure(path, figsize=(10, 4.2), layout="constrained")
    sizes = [row["size_bytes"] for row in rows]
    times, rates = figure.subplots(1, 2)
    times.loglog(sizes, [row["time_us"] for row in rows], "o-", label="simulated")
    times.loglog(sizes, [max(row["bound_us"], 1e-3) for row in rows], "k--", label="lower bound")
    times.set_ylabel("time (us)")
    times.legend()
    rates.semilogx(sizes, [row["busbw_GBps"] for row in rows], "o-")
    rates.set_ylabel("bus bandwidth (GB/s)")
    rates.set_ylim(bottom=0)
    for axes in (times, rates):
        axes.set_xlabel("size (bytes)")
        axes.grid(visible=True, alpha=0.3)
    figure.suptitle(title)
    save(figure, path)


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
    measured = [row["measured"] for row in figures["residuals"]]
    ratio = [row["predicted"] / row["measured"] for row in figures["residuals"]]
    axes = figure.subplots()
    axes.semilogx(measured, ratio, ".", markersize=3)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_yscale("log", base=2)
    axes.set_xlabel(f"measured ({figures['unit']})")
    axes.set_ylabel("predicted / measured")
    mean, bias = figures["mean_abs_pct"], figures["bias_pct"]
    axes.set_title(f"{name}: mean {mean:.1f} %, bias {bias:+.1f} %", fontsize=9)
    save(figure, path, dpi=110, bbox_inches="tight")
