"""`rapid-des device calibrate`: GEMM constants from a CSV of measured times, calibration cases only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from rapid_des.device import Device, Gemm
from rapid_des.device.calibration import Samples, changed, fit_constants
from rapid_des.device.gemm_constants import NAMES, GemmConstants, gemm_constants
from rapid_des.device.operators import DTYPE_BITS, Dtype
from rapid_des.errors import InputError
from rapid_des.units import PS_PER_US
from rapid_des.validation.folder import DataFolder, Record
from rapid_des.validation.hardware import DTYPES
from rapid_des.validation.scoring import is_calibration

COLUMNS = ("M", "N", "K", "dtype", "time_us", "case_id")
MOST_SAMPLES = 1200


@dataclass(frozen=True)
class Calibration:
    """Fitted constants and the mean errors (percent, cases weighing the same) before and after, by split."""

    scope: str
    constants: Mapping[str, float]
    before: GemmConstants
    after: GemmConstants
    errors: Mapping[str, tuple[float, float]]
    """`calibration` and, if it has rows, `test`: before, after."""

    def as_plain(self) -> dict[str, object]:
        """Return plain data."""
        return {"scope": self.scope, "constants": dict(self.constants), "mean_abs_pct": dict(self.errors)}

    def as_yaml(self) -> str:
        """Return the block for a device or family file."""
        lines = ["constants:", "  gemm:", f"    {self.scope}:"]
        lines += [f"      {name}: {value}" for name, value in self.constants.items()]
        for split, (before, after) in self.errors.items():
            lines.append(f"# {split}: mean absolute error {before:.2f} % before, {after:.2f} % after")
        return "\n".join(lines)


def calibrate(
    path: Path,
    device: Device,
    *,
    where: Mapping[str, str],
    names: Sequence[str] = (),
    scope: str = "default",
) -> Calibration:
    """Fit GEMM constants to the rows of `path` whose columns start with `where`'s values.

    Only cases with an even sha256 enter the fit; the others are reported beside. `names` limits what is
    fitted (all if empty).
    """
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        raise InputError(f"--fit: {unknown[0]!r} is not one of {', '.join(NAMES)}")
    splits = _splits(_rows(path, where), device)
    if "calibration" not in splits:
        raise InputError(f"{path}: no row of the calibration split matches {dict(where) or 'the file'}")
    fitted = splits["calibration"].thinned(MOST_SAMPLES)
    start = gemm_constants(device.constants("gemm", fitted.gemms[0].dtype), device.spec.name)
    after = fit_constants(start, [fitted], names or NAMES)
    errors = {name: (_error_pct(start, rows), _error_pct(after, rows)) for name, rows in splits.items()}
    return Calibration(
        scope, changed(device.constants("gemm", fitted.gemms[0].dtype), after), start, after, errors
    )


def _rows(path: Path, where: Mapping[str, str]) -> list[Record]:
    folder = DataFolder(path.parent, split=True)
    rows = folder.read(path.name)
    if folder.absent:
        raise InputError(f"{path}: no such file")
    needed = [*COLUMNS, *where]
    missing = [column for column in needed if rows and column not in rows[0]]
    if missing or not rows:
        problem = f"no column {missing[0]!r}" if missing else "no rows"
        raise InputError(f"{path}: {problem}; needed: {', '.join(needed)}")
    return [row for row in rows if all(row[column].startswith(value) for column, value in where.items())]


def _splits(rows: Sequence[Record], device: Device) -> dict[str, Samples]:
    dtypes = sorted({row["dtype"] for row in rows})
    if len(dtypes) > 1:
        raise InputError(f"rows of several dtypes ({', '.join(dtypes)}): choose one with --where dtype=…")
    parts: dict[str, list[Record]] = {}
    for row in rows:
        parts.setdefault("calibration" if is_calibration(row["case_id"]) else "test", []).append(row)
    return {name: _samples(part, device) for name, part in sorted(parts.items())}


def _samples(rows: Sequence[Record], device: Device) -> Samples:
    try:
        gemms = tuple(
            Gemm(int(float(row["M"])), int(float(row["N"])), int(float(row["K"])), dtype=_dtype(row))
            for row in rows
        )
        times = np.array([float(row["time_us"]) for row in rows])
    except ValueError as error:
        raise InputError(f"a row is no GEMM: {error}") from None
    if times.min() <= device.launch_overhead / PS_PER_US * 0.1:
        raise InputError(f"time_us: {times.min()} is too short to be a kernel's time in microseconds")
    return Samples(device, gemms, times, tuple(row["case_id"] for row in rows))


def _dtype(row: Record) -> Dtype:
    dtype = DTYPES.get(row["dtype"], row["dtype"])
    if dtype not in DTYPE_BITS:
        raise ValueError(f"dtype {dtype!r} is not one of {', '.join(DTYPE_BITS)}")
    return cast(Dtype, dtype)


def _error_pct(fit: GemmConstants, samples: Samples) -> float:
    off = np.abs(samples.predicted_us(fit) / samples.measured_us - 1.0)
    return 100.0 * float(np.sum(samples.weights() * off))
