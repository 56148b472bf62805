"""Charts: a device's roofline with operators on it, a collective over its sizes, residuals of predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rapid_des.device.device import Device
from rapid_des.frontend import Job, PricedOperator
from rapid_des.machine import Machine
from rapid_des.modes.pricing import as_used, price
from rapid_des.report.pictures import new_figure, save
from rapid_des.report.result_text import time_text
from rapid_des.units import PS_PER_S, FlopRate, Size

_SHAPES = {
    "tensor": "o", "vector": "s", "shared": "D", "l2": "^", "hbm": "v", "latency": "x", "launch": "+",
}  # fmt: skip


@dataclass(frozen=True)
class _Mark:
    """An operator in a roofline's picture."""

    label: str
    intensity: float
    """FLOP per byte of HBM."""
    rate: float
    """FLOP/s."""
    bound: str


def draw_roofline(job: Job, machine: Machine, path: Path, *, title: str) -> int:
    """Write a picture: FLOP/s over FLOP per HBM byte, a mark an operator of the job as a run prices it.

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
    marks = _marks(price(job, machine).operators)
    figure = new_figure(path, figsize=(9, max(6.0, 0.145 * len(marks))))
    axes = figure.subplots()
    for number, mark in enumerate(marks, start=1):
        colour = f"C{list(_SHAPES).index(mark.bound)}"
        axes.plot(mark.intensity, mark.rate, _SHAPES[mark.bound], color=colour, markersize=6)
        text = f"{number} {mark.label} ({mark.bound}, {FlopRate(round(mark.rate))})"
        axes.plot([], [], " ", label=text)
    for numbers in _neighbours([(mark.intensity, mark.rate) for mark in marks]):
        lowest = min((marks[number - 1] for number in numbers), key=lambda mark: mark.rate)
        text = "\n".join(" ".join(map(str, numbers[i : i + 6])) for i in range(0, len(numbers), 6))
        where = (lowest.intensity, lowest.rate)
        axes.annotate(text, where, fontsize=7, textcoords="offset points", xytext=(6, -6), va="top")
    _roofs(axes, device, [mark.intensity for mark in marks])
    axes.set_xlabel("FLOP per byte of HBM")
    axes.set_ylabel("FLOP/s")
    axes.set_title(f"{title}, {device.conditions.clock} clock", fontsize=10)
    figure.legend(fontsize=6.5, loc="center left", bbox_to_anchor=(0.91, 0.5), frameon=False, handlelength=0)
    for bound in dict.fromkeys(mark.bound for mark in marks):
        colour = f"C{list(_SHAPES).index(bound)}"
        axes.plot([], [], _SHAPES[bound], color=colour, label=f"bound by {bound}")
    bounds = [line for line in axes.lines if str(line.get_label()).startswith("bound by")]
    axes.legend(handles=bounds, fontsize=8, loc="upper left")
    save(figure, path, dpi=130, bbox_inches="tight")
    return len(marks)


def _marks(operators: Sequence[PricedOperator]) -> list[_Mark]:
    """Return the operators that have FLOPs and bytes, one a name, kind of layer and pass."""
    last = max((operator.step for operator in operators), default=0)
    passes = {0: "prefill ", 1: "decode step 1 ", last: f"decode step {last} "} if last else {0: ""}
    kinds = len({operator.kind for operator in operators}) > 1
    marks: dict[tuple[str, int, int], _Mark] = {}
    for operator in operators:
        if operator.flops and operator.bytes.get("hbm") and operator.step in passes:
            layer = f" (layer kind {operator.kind})" if kinds and operator.section == "block" else ""
            rate = operator.flops * PS_PER_S / max(operator.duration, 1)
            label = passes[operator.step] + operator.name.removeprefix("forward." if last else "") + layer
            mark = _Mark(label, operator.flops / operator.bytes["hbm"], rate, operator.bound)
            marks.setdefault((operator.name, operator.kind, operator.step), mark)
    return list(marks.values())


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
    """Draw time and its bound, and bus bandwidth, over the size; the rows are those that `--json` prints.

    >>> import tempfile
    >>> from rapid_des.machine import load_machine
    >>> from rapid_des.studies.collective_bench import bench
    >>> rows = [row.as_json() for row in bench(load_machine("dgx_a100"), "all_reduce", [2**20, 2**21])]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     draw_collective(rows, "all_reduce", Path(folder) / "all_reduce.svg")
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
    save(figure, path)


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


def draw_tornado(sensitivities: Mapping[str, Any], path: Path, title: str, top: int = 20) -> None:
    """Write a tornado plot of a sensitivity: the step's change with each knob lower and higher."""
    rows = list(reversed(sensitivities["rows"][:top]))
    figure = new_figure(path, figsize=(8, 1.2 + 0.28 * len(rows)))
    axes = figure.subplots()
    for name, label, colour in (("lower_s", "lower", "#c44e52"), ("higher_s", "higher", "#4c72b0")):
        base = sensitivities["step_time_s"]
        changes = [100 * ((row[name] or base) / base - 1) for row in rows]  # one that can not move so: 0
        axes.barh(
            range(len(rows)), changes, color=colour, label=f"knob {sensitivities['change']:.1%} {label}"
        )
    axes.set_yticks(range(len(rows)), [row["knob"] for row in rows], fontsize=8)
    axes.axvline(0.0, color="black", linewidth=0.8)
    axes.grid(visible=True, axis="x", alpha=0.3)
    axes.set_xlabel("change of the step (%)")
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=8, loc="lower right")
    save(figure, path, dpi=110, bbox_inches="tight")
