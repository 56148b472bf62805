"""`rapid-des device calibrate`: constants from a CSV of measured times, calibration cases only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from msgspec import Struct, field

from rapid_des.arrays import Floats
from rapid_des.device import Attention, Device, Gemm, Operator, Vector
from rapid_des.device.calibration import (
    BOUNDS,
    DataFolder,
    MeasuredGemms,
    Record,
    SectionCalls,
    attention_operators,
    bounds_of,
    changed,
    constants_in_use,
    dtype_of,
    fit_calls,
    fit_constants,
    is_calibration,
    mla_operator,
)
from rapid_des.device.gemm.candidates import NAMES, GemmConstants, gemm_constants
from rapid_des.device.pricing import section_of
from rapid_des.errors import InputError
from rapid_des.units import PS_PER_US
from rapid_des.values import asdict

_Case = TypeVar("_Case")

SECTIONS = ("gemm", *BOUNDS)
"""The values that `--section` allows."""
MOST_SAMPLES = 1200
"""The most rows that enter a fit; every evaluation prices each row."""

_LARGEST = 2.0**31
_LONGEST_US = 1e12
_MEASURED = ("time_us", "case_id")
GEMM_COLUMNS = ("M", "N", "K", "dtype", *_MEASURED)
ATTENTION_COLUMNS = ("batch", "q_len", "kv_len", "n_heads", "n_kv_heads", "head_dim", "dtype", "kv_dtype")
MLA_COLUMNS = ("op", "batch", "q_len", "past_len", "n_heads", "dtype", "kv_dtype")
VECTOR_COLUMNS = ("kind", "rows", "columns", "dtype")
COLUMNS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("attention", "decode", "decode_mha"), (*ATTENTION_COLUMNS, *_MEASURED)),
    **dict.fromkeys(("mla_decode", "mla_prefill"), (*MLA_COLUMNS, *_MEASURED)),
    "vector": (*VECTOR_COLUMNS, *_MEASURED),
}
"""The columns of each section's file; `op` is mla_decode or mla_prefill, `kind` names a vector kernel."""
MLA_OPS = ("mla_decode", "mla_prefill")


class FitTarget(Struct, frozen=True):
    """Which constants to fit, to which rows: those whose columns start with `where`'s values."""

    section: str = "gemm"
    scope: str = "default"
    where: Mapping[str, str] = field(default_factory=dict)
    names: Sequence[str] = ()
    """The names of the constants to fit; empty: all constants of the section."""


class Calibration(Struct, frozen=True):
    """Fitted constants and the mean errors (percent, cases weighing the same) before and after, by split."""

    section: str
    scope: str
    constants: Mapping[str, float]
    errors: Mapping[str, tuple[float, float]]
    """The errors (before, after) in percent for the split `calibration` and, if it has rows, `test`."""

    def as_plain(self) -> dict[str, object]:
        """Return plain data."""
        return {
            "section": self.section,
            "scope": self.scope,
            "constants": dict(self.constants),
            "mean_abs_pct": dict(self.errors),
        }

    def as_yaml(self) -> str:
        """Return the block for a device or family file."""
        lines = ["constants:", f"  {self.section}:", f"    {self.scope}:{'' if self.constants else ' {}'}"]
        lines += [f"      {name}: {value}" for name, value in self.constants.items()]
        for split, (before, after) in self.errors.items():
            lines.append(f"# {split}: mean absolute error {before:.2f} % before, {after:.2f} % after")
        return "\n".join(lines)


class _Call(Struct, frozen=True):
    operators: tuple[Operator, ...]
    measured_us: float
    case_id: str


def calibrate(path: Path, device: Device, wanted: FitTarget) -> Calibration:
    """Fit one section's constants to the rows of `path`; cases out of the fit are reported beside.

    Only cases with an even sha256 enter the fit; of an attention section and `vector`, rows that it prices.
    """
    if wanted.section not in SECTIONS:
        raise InputError(f"--section: {wanted.section!r} is not one of {', '.join(SECTIONS)}")
    fit = calibrate_gemm if wanted.section == "gemm" else calibrate_kernels
    return fit(path, device, wanted)


def calibrate_gemm(path: Path, device: Device, wanted: FitTarget) -> Calibration:
    """Fit GEMM constants."""
    _require_known(wanted.names, NAMES)
    rows = read_rows(path, GEMM_COLUMNS, wanted.where)
    _require_one_dtype(path, (row["dtype"] for row in rows), "dtype")
    splits = {
        name: _samples(part, device) for name, part in by_split(rows, lambda row: row["case_id"]).items()
    }
    fitted = _calibration(splits, path, wanted).thinned(MOST_SAMPLES)
    known = device.constants("gemm", fitted.operators[0].dtype)
    start = gemm_constants(known, device.spec.name)
    after = fit_constants(start, [fitted], wanted.names or NAMES)

    def error(fit: GemmConstants, samples: MeasuredGemms) -> float:
        return _error_pct(samples.predicted_us(fit), samples.measured_us, samples.weights())

    errors = {name: (error(start, samples), error(after, samples)) for name, samples in splits.items()}
    return Calibration("gemm", wanted.scope, changed(known, asdict(after)), errors)


def calibrate_kernels(path: Path, device: Device, wanted: FitTarget) -> Calibration:
    """Fit one attention section or `vector` to the rows of `path` that this section prices."""
    splits = {
        name: _joined(part, device, wanted.section)
        for name, part in by_split(_priced_calls(path, device, wanted), lambda call: call.case_id).items()
    }
    fitted = _calibration(splits, path, wanted).thinned(MOST_SAMPLES)
    before = fitted.known
    shown = changed(before, fit_calls(fitted, _names(fitted, wanted)))

    def error(constants: Mapping[str, float], calls: SectionCalls) -> float:
        return _error_pct(calls.predicted_us(constants), calls.measured_us, calls.weights())

    errors = {name: (error(before, calls), error(shown, calls)) for name, calls in splits.items()}
    return Calibration(wanted.section, wanted.scope, shown, errors)


def read_rows(path: Path, columns: Sequence[str], where: Mapping[str, str]) -> list[Record]:
    """Return the rows of `path` whose columns start with `where`'s values; all of `columns` must be there."""
    folder = DataFolder(path.parent, split=True)
    rows = folder.read(path.name)
    if folder.absent:
        raise InputError(f"{path}: no such file")
    needed = [*columns, *where]
    missing = [column for column in needed if rows and column not in rows[0]]
    if missing or not rows:
        problem = f"no column {missing[0]!r}" if missing else "no rows"
        raise InputError(f"{path}: {problem}; needed: {', '.join(needed)}")
    return [row for row in rows if all(row[column].startswith(value) for column, value in where.items())]


def by_split(cases: Iterable[_Case], name: Callable[[_Case], str]) -> dict[str, list[_Case]]:
    """Return the cases of each split that has any, `calibration` first."""
    parts: dict[str, list[_Case]] = {}
    for case in cases:
        parts.setdefault("calibration" if is_calibration(name(case)) else "test", []).append(case)
    return dict(sorted(parts.items()))


def time_of(record: Record) -> float:
    """Return a row's microseconds; anything but a time above 0 is a `ValueError`."""
    time = float(record["time_us"])
    if not 0 < time <= _LONGEST_US:
        raise ValueError(f"time_us: {record['time_us']} is no time above 0")
    return time


def _calibration(splits: Mapping[str, _Case], path: Path, wanted: FitTarget) -> _Case:
    if "calibration" not in splits:
        chosen = dict(wanted.where) or "the file"
        raise InputError(f"{path}: no row of the calibration split matches {chosen}")
    return splits["calibration"]


def _require_known(names: Sequence[str], allowed: Collection[str]) -> None:
    unknown = sorted(set(names) - set(allowed))
    if unknown:
        raise InputError(f"--fit: {unknown[0]!r} is not one of {', '.join(allowed)}")


def _require_one_dtype(path: Path, dtypes: Iterable[str], column: str) -> None:
    several = sorted(set(dtypes))
    if len(several) > 1:
        raise InputError(
            f"{path}: rows of several dtypes ({', '.join(several)}): choose one with --where {column}=…"
        )


def _error_pct(predicted: Floats, measured: Floats, weights: Floats) -> float:
    return 100.0 * float(np.sum(weights * np.abs(predicted / measured - 1.0)))


def _samples(rows: Sequence[Record], device: Device) -> MeasuredGemms:
    try:
        gemms = tuple(
            Gemm(_size(row, "M"), _size(row, "N"), _size(row, "K"), dtype=dtype_of(row["dtype"]))
            for row in rows
        )
        times = np.array([time_of(row) for row in rows])
    except (ValueError, OverflowError) as error:
        raise InputError(f"a row is no GEMM: {error}") from None
    if times.min() <= device.launch_overhead / PS_PER_US * 0.1:
        raise InputError(f"time_us: {times.min()} is too short to be a kernel's time in microseconds")
    return MeasuredGemms(device, gemms, times, tuple(row["case_id"] for row in rows))


def _size(row: Record, name: str) -> int:
    size = float(row[name])
    if not 1 <= size <= _LARGEST:
        raise ValueError(f"{name}: {row[name]} is not within 1 to {_LARGEST:.0f}")
    return int(size)


def _names(calls: SectionCalls, wanted: FitTarget) -> Sequence[str]:
    used = constants_in_use(calls)
    if not used:
        raise InputError(
            f"{calls.device.spec.name} has no constants of section {calls.section} to start from"
        )
    _require_known(wanted.names, bounds_of(calls))
    return tuple(wanted.names) or used


def _priced_calls(path: Path, device: Device, wanted: FitTarget) -> list[_Call]:
    """Return the calls of a file that the wanted section prices."""
    records = read_rows(path, COLUMNS[wanted.section], wanted.where)
    calls = list(_calls(path, records, _reader(device, wanted.section)))
    here = [call for call in calls if _section(call.operators[0], device) == wanted.section]
    if calls and not here:
        others = ", ".join(sorted({_section(call.operators[0], device) for call in calls}))
        raise InputError(f"{path}: no row is priced by section {wanted.section}; they are of {others}")
    column = "dtype" if wanted.section == "vector" else "kv_dtype"
    _require_one_dtype(path, (_scope_dtype(call.operators[0]) for call in here), column)
    return here


def _calls(
    path: Path, records: Sequence[Record], read: Callable[[Record], tuple[Operator, ...]]
) -> Iterable[_Call]:
    for record in records:
        try:
            yield _Call(read(record), time_of(record), record["case_id"])
        except ValueError as error:
            raise InputError(f"{path}: case {record['case_id']}: {error}") from None


def _reader(device: Device, section: str) -> Callable[[Record], tuple[Operator, ...]]:
    if section == "vector":
        return _vector
    if section in MLA_OPS:
        return _mla
    return partial(attention_operators, library=device.conditions.library)


def _mla(record: Record) -> tuple[Operator, ...]:
    if record["op"] not in MLA_OPS:
        raise ValueError(f"op {record['op']!r} is not one of {', '.join(MLA_OPS)}")
    return (mla_operator(record),)


def _vector(record: Record) -> tuple[Operator, ...]:
    rows, columns = int(float(record["rows"])), int(float(record["columns"]))
    return (Vector(record["kind"], rows, columns, dtype_of(record["dtype"])),)


def _section(operator: Operator, device: Device) -> str:
    return section_of(operator, device) if isinstance(operator, Attention) else "vector"


def _scope_dtype(operator: Operator) -> str:
    if isinstance(operator, Attention):
        return operator.kv_dtype or operator.dtype
    assert isinstance(operator, Vector)
    return operator.dtype


def _joined(calls: Sequence[_Call], device: Device, section: str) -> SectionCalls:
    return SectionCalls(
        device,
        section=section,
        dtype=_scope_dtype(calls[0].operators[0]),
        operators=tuple(call.operators for call in calls),
        measured_us=np.array([call.measured_us for call in calls]),
        cases=tuple(call.case_id for call in calls),
    )
