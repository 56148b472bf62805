"""`rapid-des device calibrate`: constants from a CSV of measured times, calibration cases only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rapid_des.device import Device, Gemm
from rapid_des.device.calibration import Samples, changed, fit_constants
from rapid_des.device.gemm_constants import NAMES, GemmConstants, as_mapping, gemm_constants
from rapid_des.errors import InputError
from rapid_des.units import PS_PER_US
from rapid_des.validation.calibrate_kernels import SECTIONS, calibrate_kernels
from rapid_des.validation.calibration import Calibration, Wanted, no_calibration_row, read_rows, split_of
from rapid_des.validation.folder import Record
from rapid_des.validation.hardware import dtype_of

COLUMNS = ("M", "N", "K", "dtype", "time_us", "case_id")
MOST_SAMPLES = 1200


def calibrate(path: Path, device: Device, wanted: Wanted) -> Calibration:
    """Fit one section's constants to the rows of `path`; only cases with an even sha256 enter the fit."""
    if wanted.section not in SECTIONS:
        raise InputError(f"--section: {wanted.section!r} is not one of {', '.join(SECTIONS)}")
    fit = calibrate_gemm if wanted.section == "gemm" else calibrate_kernels
    return fit(path, device, wanted)


def calibrate_gemm(path: Path, device: Device, wanted: Wanted) -> Calibration:
    """Fit GEMM constants; cases out of the fit are reported beside."""
    unknown = sorted(set(wanted.names) - set(NAMES))
    if unknown:
        raise InputError(f"--fit: {unknown[0]!r} is not one of {', '.join(NAMES)}")
    splits = _splits(read_rows(path, COLUMNS, wanted.where), device)
    if "calibration" not in splits:
        raise no_calibration_row(path, wanted)
    fitted = splits["calibration"].thinned(MOST_SAMPLES)
    known = device.constants("gemm", fitted.gemms[0].dtype)
    start = gemm_constants(known, device.spec.name)
    after = fit_constants(start, [fitted], wanted.names or NAMES)
    errors = {name: (_error_pct(start, rows), _error_pct(after, rows)) for name, rows in splits.items()}
    return Calibration("gemm", wanted.scope, changed(known, as_mapping(after)), errors)


def _splits(rows: Sequence[Record], device: Device) -> dict[str, Samples]:
    dtypes = sorted({row["dtype"] for row in rows})
    if len(dtypes) > 1:
        raise InputError(f"rows of several dtypes ({', '.join(dtypes)}): choose one with --where dtype=…")
    parts: dict[str, list[Record]] = {}
    for row in rows:
        parts.setdefault(split_of(row["case_id"]), []).append(row)
    return {name: _samples(part, device) for name, part in sorted(parts.items())}


def _samples(rows: Sequence[Record], device: Device) -> Samples:
    try:
        gemms = tuple(
            Gemm(
                int(float(row["M"])), int(float(row["N"])), int(float(row["K"])), dtype=dtype_of(row["dtype"])
            )
            for row in rows
        )
        times = np.array([float(row["time_us"]) for row in rows])
    except ValueError as error:
        raise InputError(f"a row is no GEMM: {error}") from None
    if times.min() <= device.launch_overhead / PS_PER_US * 0.1:
        raise InputError(f"time_us: {times.min()} is too short to be a kernel's time in microseconds")
    return Samples(device, gemms, times, tuple(row["case_id"] for row in rows))


def _error_pct(fit: GemmConstants, samples: Samples) -> float:
    off = np.abs(samples.predicted_us(fit) / samples.measured_us - 1.0)
    return 100.0 * float(np.sum(samples.weights() * off))
