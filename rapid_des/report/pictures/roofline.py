"""A device's roofline with the operators of a job on it.

Operators that stand at the same place share a dot. A number beside each dot, tied to it by a line where it
stands apart, names the row of the table that lists the dot's operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rapid_des.device.device import Device
from rapid_des.frontend import Job, PricedOperator
from rapid_des.machine import Machine
from rapid_des.modes.pricing import as_used, price
from rapid_des.report.pictures import new_figure, save
from rapid_des.units import PS_PER_S, FlopRate

_SHAPES = {
    "tensor": "o", "vector": "s", "shared": "D", "l2": "^", "hbm": "v", "latency": "x", "launch": "+",
}  # fmt: skip
_SAME = 0.02
"""Operators whose intensities and rates differ by less than this share stand at one place."""
_LABEL, _DOT = (9.0, 8.0), (7.0, 7.0)
"""Width and height in points of a number and of a dot."""


class RooflineMark(NamedTuple):
    """An operator in the roofline picture."""

    label: str
    intensity: float
    """Arithmetic intensity in FLOP per byte of HBM."""
    rate: float
    """Arithmetic rate in FLOP/s."""
    bound: str
    name: str
    """The operator's name in the trace."""


def draw_roofline(job: Job, machine: Machine, path: Path, *, title: str) -> int:
    """Write a picture: FLOP/s over FLOP per HBM byte, with every operator of the job as a run prices it.

    Of a training job all operators at the clock that it runs at; of an inference job those of the prefill, of
    the first decode step and of the last. Returns how many there are with FLOPs and bytes.

    >>> import tempfile
    >>> from rapid_des.frontend import load_job
    >>> from rapid_des.machine import load_machine
    >>> job, machine = load_job("llama2_7b_train"), load_machine("dgx_a100")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     draw_roofline(job, machine, Path(folder) / "roofline.svg", title="Llama 2 7B") > 30
    True
    """
    device = as_used(job, machine, machine.device)
    marks = marks_of(price(job, machine).operators)
    dots = _dots(marks)
    figure = new_figure(path, figsize=(9, max(6.0, 0.15 * (len(marks) + len(dots)))))
    axes = figure.subplots()
    _roofs(axes, device, [mark.intensity for mark in marks])
    for bound in (bound for bound in _SHAPES if any(mark.bound == bound for mark in marks)):
        alike = [dot[0] for dot in dots if dot[0].bound == bound]
        x, y = [mark.intensity for mark in alike], [mark.rate for mark in alike]
        axes.plot(x, y, _SHAPES[bound], color=_colour(bound), markersize=6, label=f"bound by {bound}")
    axes.set_xlabel("FLOP per byte of HBM")
    axes.set_ylabel("FLOP/s")
    axes.set_title(f"{title}, {device.conditions.clock} clock", fontsize=10)
    axes.legend(fontsize=8, loc="upper left")
    _number(figure, axes, [(dot[0].intensity, dot[0].rate) for dot in dots])
    table = "\n".join(_rows(dots))
    figure.text(0.92, 0.5, table, fontsize=6.5, va="center", linespacing=1.35)
    save(figure, path, dpi=130, bbox_inches="tight")
    return len(marks)


def _colour(bound: str) -> str:
    return f"C{list(_SHAPES).index(bound)}"


def marks_of(operators: Sequence[PricedOperator]) -> list[RooflineMark]:
    """Return the operators that have FLOPs and bytes, one a name, kind of layer and pass."""
    last = max((operator.step for operator in operators), default=0)
    passes = {0: "prefill ", 1: "decode step 1 ", last: f"decode step {last} "} if last else {0: ""}
    kinds = len({operator.kind for operator in operators}) > 1
    marks: dict[tuple[str, int, int], RooflineMark] = {}
    for operator in operators:
        if operator.flops and operator.bytes.get("hbm") and operator.step in passes:
            layer = f" (layer kind {operator.kind})" if kinds and operator.section == "block" else ""
            rate = operator.flops * PS_PER_S / max(operator.duration, 1)
            label = passes[operator.step] + operator.name.removeprefix("forward." if last else "") + layer
            intensity = operator.flops / operator.bytes["hbm"]
            mark = RooflineMark(label, intensity, rate, operator.bound, operator.name)
            marks.setdefault((operator.name, operator.kind, operator.step), mark)
    return list(marks.values())


def _dots(marks: Sequence[RooflineMark]) -> list[list[RooflineMark]]:
    """Group operators of one bound at one place; the groups from left to right, then upwards."""
    dots: list[list[RooflineMark]] = []
    for mark in sorted(marks, key=lambda mark: (mark.intensity, mark.rate)):
        for dot in dots:
            first = dot[0]
            near = abs(np.log([mark.intensity / first.intensity, mark.rate / first.rate])).max() < _SAME
            if near and mark.bound == first.bound:
                dot.append(mark)
                break
        else:
            dots.append([mark])
    return dots


def _rows(dots: Sequence[Sequence[RooflineMark]]) -> Iterator[str]:
    for number, dot in enumerate(dots, start=1):
        first = dot[0]
        yield f"{number}  {FlopRate(round(first.rate))}, {first.intensity:.3g} FLOP/B, {first.bound}"
        yield from (f"      {mark.label}" for mark in dot)


def _number(figure: Any, axes: Any, places: Sequence[tuple[float, float]]) -> None:
    """Write each dot's number at the nearest free place, with a line to the dot if that is not beside it."""
    figure.canvas.draw()
    scale = 72 / figure.dpi
    dots = axes.transData.transform(np.array(places).reshape(-1, 2)) * scale  # in points
    taken = [(x, y, *_DOT) for x, y in dots]
    for number, ((x, y), place) in enumerate(zip(dots, places, strict=True), start=1):
        dx, dy = next(
            (radius * np.cos(angle), radius * np.sin(angle))
            for radius in np.arange(9.0, 400.0, 3.0)
            for angle in np.linspace(-np.pi / 4, 2 * np.pi - np.pi / 4, 16, endpoint=False)
            if not any(
                _overlaps((x + radius * np.cos(angle), y + radius * np.sin(angle), *_LABEL), other)
                for other in taken
            )
        )
        taken.append((x + dx, y + dy, *_LABEL))
        line = {"arrowstyle": "-", "linewidth": 0.5, "color": "0.4", "shrinkA": 0, "shrinkB": 2}
        axes.annotate(
            f"{number}", place, xytext=(dx, dy), textcoords="offset points", fontsize=7,
            ha="center", va="center", arrowprops=line if np.hypot(dx, dy) > 10 else None,
        )  # fmt: skip


def _overlaps(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Return whether two boxes (middle x and y, width, height) overlap."""
    return all(abs(one[axis] - other[axis]) * 2 < one[axis + 2] + other[axis + 2] for axis in (0, 1))


def peaks_of(device: Device) -> dict[int, list[str]]:
    """Return each peak in FLOP/s with its number formats, of those that language models use."""
    peaks: dict[int, list[str]] = {}
    for dtype, peak in device.spec.tensor_peak.items():
        if dtype not in {"fp64", "int8", "int4"}:
            peaks.setdefault(int(peak), []).append(dtype)
    return peaks


def _roofs(axes: Any, device: Device, intensities: list[float]) -> None:
    low, high = min([0.3, *intensities]) / 3, max([3e3, *intensities]) * 3
    x = np.geomspace(low, high, 200)
    for top, dtypes in peaks_of(device).items():
        roof = np.minimum(top * device.clock_ratio, x * device.spec.hbm.bandwidth)
        axes.loglog(x, roof, linewidth=1, color="black", alpha=0.6)
        axes.annotate(", ".join(dtypes), (high, roof[-1]), fontsize=7, ha="right", va="bottom")
    axes.grid(visible=True, which="both", alpha=0.2)
