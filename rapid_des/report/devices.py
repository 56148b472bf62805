"""Reports of devices and of operators' estimates, and their plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from rapid_des.device.device import Device
from rapid_des.device.die import DieCost
from rapid_des.device.operators import Estimate, Operator
from rapid_des.learned import LearnedFile
from rapid_des.report.evidence import measured_topics, sustained_text, validation_text
from rapid_des.report.tables import Part, Table, columns
from rapid_des.units import PS_PER_NS, PS_PER_S, PS_PER_US, Duration, FlopRate, Size, seconds, time_text
from rapid_des.values import asdict

_PICOSECONDS = {"ps": 1, "ns": PS_PER_NS, "us": PS_PER_US}


def estimate_as_plain(operator: Operator, estimate: Estimate, device: Device) -> dict[str, object]:
    """Return an estimate as plain data; times are seconds, sizes bytes, energy picojoules."""
    rate = estimate.flops * PS_PER_S / max(estimate.duration, 1)
    return {
        "device": device.spec.name,
        "conditions": _conditions(device),
        "operator": type(operator).__name__,
        "shape": asdict(operator),
        "time_s": seconds(estimate.duration),
        "bound": estimate.bound,
        "flops": estimate.flops,
        "flop_per_s": rate,
        "bytes": dict(estimate.bytes),
        "detail": _in_seconds(estimate.detail),
        "validated": list(measured_topics(device, operator.dtype)),
    }


def estimate_report(operator: Operator, estimate: Estimate, device: Device) -> Iterator[Part]:
    """Yield an estimate: time, what bounds it, and why."""
    rate = FlopRate(estimate.flops * PS_PER_S // max(estimate.duration, 1))
    shape = ", ".join(
        f"{name} {value}" for name, value in asdict(operator).items() if value not in (None, False)
    )
    yield f"{type(operator).__name__} ({shape}) on {device.spec.name}"
    facts = {
        "time": f"{Duration(estimate.duration)}, bound by {estimate.bound}",
        "work": f"{estimate.flops:,} FLOP, {rate}",
    }
    for level, size in estimate.bytes.items():
        bandwidth = size * PS_PER_S / max(estimate.duration, 1) / 1e9
        facts[level] = f"{Size(size)}, {bandwidth:,.0f} GB/s"
    facts |= dict(_detail(name, value) for name, value in estimate.detail.items() if value is not None)
    facts["conditions"] = ", ".join(f"{name} {value}" for name, value in _conditions(device).items())
    yield facts
    yield validation_text(measured_topics(device, operator.dtype), operator.dtype)


def _conditions(device: Device) -> Mapping[str, str]:
    used = device.conditions
    return {"clock": used.clock, "launch": used.launch, "l2": used.l2, "library": used.library}


def _in_seconds(detail: Mapping[str, object]) -> dict[str, Any]:
    """Return details with their times, and those of kernels in them, in seconds.

    >>> _in_seconds({"launch_ps": 1_000_000, "tile": (128, 64), "kernels": [{"duration_ps": 10**12}]})
    {'launch_s': 1e-06, 'tile': (128, 64), 'kernels': [{'duration_s': 1.0}]}
    """
    plain: dict[str, Any] = {}
    for name, value in detail.items():
        base, _, unit = name.rpartition("_")
        if unit in _PICOSECONDS and isinstance(value, int | float):
            plain[f"{base}_s"] = value * _PICOSECONDS[unit] / PS_PER_S
        elif isinstance(value, list):
            plain[name] = [_in_seconds(item) if isinstance(item, dict) else item for item in value]
        else:
            plain[name] = value
    return plain


def _detail(name: str, value: Any) -> tuple[str, str]:
    """Return a detail's name without its unit, and its value with it."""
    base, _, unit = name.rpartition("_")
    if unit == "pj":
        name, value = base, f"{value * 1e-12:.3g} J"
    elif unit in _PICOSECONDS:
        name, value = base, time_text(round(value * _PICOSECONDS[unit]))
    elif isinstance(value, float):
        value = f"{value:.4g}"
    elif isinstance(value, int) and not isinstance(value, bool):
        value = f"{value:,}"
    return name, " x ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def device_as_plain(device: Device) -> dict[str, object]:
    """Return a device's numbers in base units, and the constants in use by section and dtype."""
    spec: dict[str, object] = msgspec.to_builtins(device.spec, enc_hook=int)
    used = {
        section: {
            dtype: dict(device.constants(section, dtype)) for dtype in device.spec.tensor_peak or ["fp32"]
        }
        for section in device.family.constants
    }
    return spec | {"constants": used}


def device_report(device: Device) -> Iterator[Part]:
    """Yield a device: one line a number."""
    spec = device.spec
    stores = {"registers": spec.registers, "shared": spec.shared, "L2": spec.l2, "HBM": spec.hbm}
    each = {"registers": " a SM", "shared": " a SM"}
    sustained = f"{sustained_text(spec.clock)} sustained"
    yield f"{spec.name} ({device.family.name}, {spec.sms} SMs)"
    yield {
        "clock": f"{spec.clock.boost} boost, {sustained}, peaks at {spec.clock.peak}",
        **{f"tensor {dtype}": str(peak) for dtype, peak in spec.tensor_peak.items()},
        **{f"vector {dtype}": str(peak) for dtype, peak in spec.vector_peak.items()},
        **{
            name: f"{store.capacity}{each.get(name, '')}, {store.bandwidth}" for name, store in stores.items()
        },
        "launch": f"{spec.launch.eager} eager, {spec.launch.graph} in a graph",
        "conditions": ", ".join(f"{name} {value}" for name, value in _conditions(device).items()),
        "operators": f"{spec.operators}; constants of family {device.family.name}: "
        + ", ".join(device.family.constants),
    }


def learned_as_plain(file: LearnedFile) -> dict[str, object]:
    """Return what was fitted to samples as plain data."""
    fitted = {
        name: {"regressor": regressor.kind, "rows": regressor.rows, "cross_validation_error": regressor.error}
        for name, regressor in file.regressors.items()
    }
    return {
        "operators": fitted,
        "left_out": {name: left.rows for name, left in file.left_out.items()},
        "left_out_reasons": {name: left.reason for name, left in file.left_out.items()},
        "fallback": file.fallback,
    }


def learned_report(file: LearnedFile) -> Iterator[Part]:
    """Yield what was fitted to samples: one row an operator."""
    rows = [
        {"operator": name, "regressor": each.kind, "samples": each.rows, "error": each.error}
        for name, each in file.regressors.items()
    ]
    names = columns("operator", "regressor", "samples", error=("cross-validation", ".2%"))
    yield Table("", names, rows)
    for name, left in file.left_out.items():
        yield f"{name} left out: {left.rows:,} samples ({left.reason})"
    yield f"all else: {file.fallback}"


def die_as_plain(name: str, die: DieCost) -> dict[str, object]:
    """Return a die's area and price as plain data; areas are mm², prices dollars."""
    return {
        "device": name,
        "area_mm2": die.area,
        "parts_mm2": dict(die.parts),
        "dies_per_wafer": die.dies,
        "yield": die.die_yield,
        "die_dollars": die.die_dollars,
        "memory_dollars": die.memory_dollars,
        "dollars": die.dollars,
    }


def die_report(name: str, die: DieCost) -> Iterator[Part]:
    """Yield a die's area by parts, and what it and its memory cost."""
    yield f"die of {name}: {die.area:,.0f} mm²"
    rows = [
        {"part": part, "area": f"{area:,.1f} mm²", "share": f"{area / die.area:.1%}"}
        for part, area in die.parts.items()
    ]
    yield Table("", columns("part", "area", "share"), rows)
    yield {
        "dies a wafer": f"{die.dies:.1f}, {die.die_yield:.1%} of them without a defect",
        "die": f"${die.die_dollars:,.0f}",
        "memory": f"${die.memory_dollars:,.0f}",
        "together": f"${die.dollars:,.0f}",
    }
    yield "by LLMCompass's published coefficients; masks, tests, packages and margins are left out"
