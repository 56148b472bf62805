"""`rapid-des device calibrate --section …`: attention and vector constants from a CSV of measured times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from rapid_des.device import Attention, Device, Operator, Vector
from rapid_des.device.attention import section_of
from rapid_des.device.calibration import changed
from rapid_des.device.calibration_kernels import BOUNDS, Calls, bounds_of, constants_in_use, fit_calls
from rapid_des.errors import InputError
from rapid_des.validation.calibration import (
    Calibration,
    Wanted,
    no_calibration_row,
    read_rows,
    split_of,
    time_of,
)
from rapid_des.validation.folder import Record
from rapid_des.validation.hardware import dtype_of
from rapid_des.validation.operators_attention import attention_operators, mla_operator

MOST_CALLS = 1200
"""That enter a fit: every evaluation prices each of them."""

_MEASURED = ("time_us", "case_id")
ATTENTION_COLUMNS = ("batch", "q_len", "kv_len", "n_heads", "n_kv_heads", "head_dim", "dtype", "kv_dtype")
MLA_COLUMNS = ("op", "batch", "q_len", "past_len", "n_heads", "dtype", "kv_dtype")
VECTOR_COLUMNS = ("kind", "rows", "columns", "dtype")
COLUMNS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("attention", "decode", "decode_mha"), (*ATTENTION_COLUMNS, *_MEASURED)),
    **dict.fromkeys(("mla_decode", "mla_prefill"), (*MLA_COLUMNS, *_MEASURED)),
    "vector": (*VECTOR_COLUMNS, *_MEASURED),
}
"""The columns of a section's file; `op` is mla_decode or mla_prefill, `kind` a vector kernel's."""
MLA_OPS = ("mla_decode", "mla_prefill")


@dataclass(frozen=True)
class _Call:
    operators: tuple[Operator, ...]
    measured_us: float
    case_id: str


def calibrate_kernels(path: Path, device: Device, wanted: Wanted) -> Calibration:
    """Fit one attention section or `vector` to the rows of `path` that this section prices.

    Only cases with an even sha256 enter the fit; the others are reported beside.
    """
    splits = _splits(path, device, wanted)
    if "calibration" not in splits:
        raise no_calibration_row(path, wanted)
    fitted = splits["calibration"].thinned(MOST_CALLS)
    before = fitted.known
    shown = changed(before, fit_calls(fitted, _names(fitted, wanted)))
    errors = {name: (_error_pct(calls, before), _error_pct(calls, shown)) for name, calls in splits.items()}
    return Calibration(wanted.section, wanted.scope, shown, errors)


def _names(calls: Calls, wanted: Wanted) -> Sequence[str]:
    used, allowed = constants_in_use(calls), bounds_of(calls)
    if not used:
        raise InputError(
            f"{calls.device.spec.name} has no constants of section {calls.section} to start from"
        )
    unknown = sorted(set(wanted.names) - set(allowed))
    if unknown:
        raise InputError(f"--fit: {unknown[0]!r} is not one of {', '.join(allowed)}")
    return tuple(wanted.names) or used


def _splits(path: Path, device: Device, wanted: Wanted) -> dict[str, Calls]:
    records = read_rows(path, COLUMNS[wanted.section], wanted.where)
    calls = list(_calls(path, records, _reader(device, wanted.section)))
    here = [call for call in calls if _section(call.operators[0], device) == wanted.section]
    if calls and not here:
        others = ", ".join(sorted({_section(call.operators[0], device) for call in calls}))
        raise InputError(f"{path}: no row is priced by section {wanted.section}; they are of {others}")
    dtypes = sorted({_scope_dtype(call.operators[0]) for call in here})
    if len(dtypes) > 1:
        column = "dtype" if wanted.section == "vector" else "kv_dtype"
        raise InputError(
            f"{path}: rows of several dtypes ({', '.join(dtypes)}): choose one with --where {column}=…"
        )
    parts: dict[str, list[_Call]] = {}
    for call in here:
        parts.setdefault(split_of(call.case_id), []).append(call)
    return {name: _joined(part, device, wanted.section) for name, part in sorted(parts.items())}


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


def _joined(calls: Sequence[_Call], device: Device, section: str) -> Calls:
    return Calls(
        device,
        section,
        _scope_dtype(calls[0].operators[0]),
        operators=tuple(call.operators for call in calls),
        measured_us=np.array([call.measured_us for call in calls]),
        cases=tuple(call.case_id for call in calls),
    )


def _error_pct(calls: Calls, constants: Mapping[str, float]) -> float:
    off = np.abs(calls.predicted_us(constants) / calls.measured_us - 1.0)
    return 100.0 * float(np.sum(calls.weights() * off))


SECTIONS = ("gemm", *BOUNDS)
"""What `--section` may say."""
