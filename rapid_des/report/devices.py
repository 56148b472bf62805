"""Devices and operators' estimates as text and as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rapid_des.device.device import Device
from rapid_des.device.operators import Estimate, Operator
from rapid_des.learned import LearnedFile
from rapid_des.report.evidence import measured_topics, sustained_text, validation_text
from rapid_des.report.result_text import time_text
from rapid_des.units import PS_PER_NS, PS_PER_S, PS_PER_US, Duration, FlopRate, Size, seconds
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


def estimate_as_text(operator: Operator, estimate: Estimate, device: Device) -> str:
    """Return an estimate for a person: time, what bounds it, and why."""
    rate = FlopRate(estimate.flops * PS_PER_S // max(estimate.duration, 1))
    shape = ", ".join(
        f"{name} {value}" for name, value in asdict(operator).items() if value not in (None, False)
    )
    lines = [
        f"{type(operator).__name__} ({shape}) on {device.spec.name}",
        f"  time           {Duration(estimate.duration)}, bound by {estimate.bound}",
        f"  work           {estimate.flops:,} FLOP, {rate}",
    ]
    for level, count in estimate.bytes.items():
        bandwidth = count * PS_PER_S / max(estimate.duration, 1) / 1e9
        lines.append(f"  {level:<14} {Size(count)}, {bandwidth:,.0f} GB/s")
    lines += [_detail(name, value) for name, value in estimate.detail.items() if value is not None]
    lines.append(f"  conditions     {', '.join(f'{k} {v}' for k, v in _conditions(device).items())}")
    lines.append(f"  {validation_text(measured_topics(device, operator.dtype), operator.dtype)}")
    return "\n".join(lines)


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


def _detail(name: str, value: Any) -> str:
    """Return a detail as text; its name loses the unit that the value then carries."""
    base, _, unit = name.rpartition("_")
    if unit == "pj":
        name, value = base, f"{value * 1e-12:.3g} J"
    elif unit in _PICOSECONDS:
        name, value = base, time_text(round(value * _PICOSECONDS[unit]))
    elif isinstance(value, float):
        value = f"{value:.4g}"
    elif isinstance(value, int) and not isinstance(value, bool):
        value = f"{value:,}"
    shown = " x ".join(str(item) for item in value) if isinstance(value, list | tuple) else value
    return f"  {name:<14} {shown}"


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


def device_as_text(device: Device) -> str:
    """Return a device for a person: one line a number."""
    spec = device.spec
    clock = f"{spec.clock.boost} boost, {sustained_text(spec.clock)} sustained, peaks at {spec.clock.peak}"
    stores = {"registers": spec.registers, "shared": spec.shared, "L2": spec.l2, "HBM": spec.hbm}
    each = {"registers": " a SM", "shared": " a SM"}
    lines = [f"{spec.name} ({device.family.name}, {spec.sms} SMs)", f"  clock        {clock}"]
    lines += [f"  tensor {dtype:<6}{peak}" for dtype, peak in spec.tensor_peak.items()]
    lines += [f"  vector {dtype:<6}{peak}" for dtype, peak in spec.vector_peak.items()]
    for name, store in stores.items():
        lines.append(f"  {name:<13}{store.capacity}{each.get(name, '')}, {store.bandwidth}")
    lines.append(f"  launch       {spec.launch.eager} eager, {spec.launch.graph} in a graph")
    lines.append(f"  conditions   {', '.join(f'{k} {v}' for k, v in _conditions(device).items())}")
    lines.append(
        f"  operators    {spec.operators}; constants of family {device.family.name}: "
        + ", ".join(device.family.constants)
    )
    return "\n".join(lines)


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


def learned_as_text(file: LearnedFile) -> str:
    """Return what was fitted to samples for a person: one line an operator."""
    width = max(map(len, [*file.regressors, *file.left_out]), default=8)
    lines = [
        f"{name:{width}}  {each.kind:<18} {each.rows:5d} samples  cross-validation {each.error:6.2%}"
        for name, each in file.regressors.items()
    ]
    lines += [
        f"{name:{width}}  left out: {left.rows:,} samples ({left.reason})"
        for name, left in file.left_out.items()
    ]
    return "\n".join([*lines, f"all else: {file.fallback}"])
