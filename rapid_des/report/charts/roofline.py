"""A device's roofline with the operators of a job on it; operators at one place share a dot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rapid_des.device.device import Device
from rapid_des.frontend import Job, PricedOperator
from rapid_des.machine import Machine
from rapid_des.modes.pricing import as_used, price
from rapid_des.report.charts import Plot, PlotAxis, Series
from rapid_des.units import PS_PER_S, FlopRate

_SAME = 0.02
"""Operators whose intensities and rates differ by less than this share stand at one place."""
_TERA = 10**12


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
    from rapid_des.report.pictures.charts import draw_charts

    marks = marks_of(price(job, machine).operators)
    draw_charts(roofline(as_used(job, machine, machine.device), marks, {}), path, title=title)
    return len(marks)


def roofline(device: Device, marks: Sequence[RooflineMark], shares: Mapping[str, float]) -> Iterator[Plot]:
    """Yield the roofline of a device with operators, if there are any.

    `shares` are the parts of the step that operators take; the area of a dot is that of its operators.
    """
    if not marks:
        return
    intensities = [mark.intensity for mark in marks]
    x = min(0.3, *intensities) / 2, max(3e3, *intensities) * 2
    top = max(device.spec.tensor_peak.values()) * device.clock_ratio / _TERA
    y = PlotAxis("TFLOP/s", log=True, low=min(mark.rate for mark in marks) / 2 / _TERA, high=2 * top)
    placed = _dots(marks)
    series = [*_roofs(device, x)]
    for bound in dict.fromkeys(dot[0].bound for dot in placed):
        series.append(_series(bound, [dot for dot in placed if dot[0].bound == bound], shares))
    sized = "; the area of a dot is its share of the time" if shares else ""
    title = f"operators on the roofline at the {device.conditions.clock} clock{sized}"
    axis = PlotAxis("FLOP per byte of HBM", log=True, low=x[0], high=x[1])
    yield Plot(title, axis, y, series, 420, numbered=True)


def _roofs(device: Device, ends: tuple[float, float]) -> Iterator[Series]:
    """Yield the most that a device does at each peak, between two intensities."""
    bandwidth = device.spec.hbm.bandwidth / _TERA
    for peak, dtypes in _peaks(device).items():
        rate = peak * device.clock_ratio / _TERA
        bend = min(max(rate / bandwidth, ends[0]), ends[1])
        points = [(at, min(rate, at * bandwidth)) for at in (ends[0], bend, ends[1])]
        yield Series(f"peak of {', '.join(dtypes)}: {rate:,.4g} TFLOP/s", "", points, legend=False)


def _series(bound: str, dots: Sequence[Sequence[RooflineMark]], shares: Mapping[str, float]) -> Series:
    """Return the dots of one bound; the title of each lists its operators, a line each."""
    titles, radii = [], []
    for dot in dots:
        first = dot[0]
        # the share of a name is of all layers and passes: it counts once, however many of its marks are here
        parts = {mark.name: shares[mark.name] for mark in dot if mark.name in shares}
        names = [mark.label for mark in dot]
        names += [f"{name}: {part:.1%} of the step, in all layers and passes" for name, part in parts.items()]
        place = f"{FlopRate(round(first.rate))}, {first.intensity:.3g} FLOP/B, bound by {bound}"
        titles.append("\n".join([place, *names]))
        radii.append(3 + 40 * sum(parts.values()) ** 0.5)
    points = [(dot[0].intensity, dot[0].rate / _TERA) for dot in dots]
    return Series(f"bound by {bound}", bound, points, "dots", titles=titles, radii=radii)


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


def _peaks(device: Device) -> dict[int, list[str]]:
    """Return each peak in FLOP/s with its number formats, of those that language models use."""
    peaks: dict[int, list[str]] = {}
    for dtype, peak in device.spec.tensor_peak.items():
        if dtype not in {"fp64", "int8", "int4"}:
            peaks.setdefault(int(peak), []).append(dtype)
    return peaks
