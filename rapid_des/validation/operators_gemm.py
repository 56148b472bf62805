"""GEMM topics: predicted against measured times of dense GEMMs, by GPU and dtype.

`operators/gemm/GPU/DTYPE` holds all shapes, `operators/gemm-large/…` those with M, N, K ≥ 256,
`operators/gemm-sustained/…` runs at the power-limited clock. The null model is a three-parameter roofline
fitted to the calibration rows of the same topic (to all rows with `--data`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from rapid_des.device.gemm import gemm_times_us
from rapid_des.device.operators import DTYPE_BITS
from rapid_des.device.roofline import gemm_bytes
from rapid_des.errors import RapidDesError
from rapid_des.validation.folder import DataFolder
from rapid_des.validation.gemm_sources import MeasuredGemm, measured_gemms
from rapid_des.validation.hardware import PRESETS, device_for
from rapid_des.validation.null import fit_roofline, roofline
from rapid_des.validation.scoring import Row, Topic, is_calibration

LARGE = 256


def topics(data: DataFolder) -> Iterable[Topic]:
    """Yield the GEMM topics of the files that are there."""
    groups: dict[tuple[str, str, str], list[MeasuredGemm]] = {}
    for kind, row in measured_gemms(data):
        groups.setdefault((kind, row.gpu, row.dtype), []).append(row)
    for (kind, gpu, dtype), rows in groups.items():
        yield _topic(f"operators/{kind}/{gpu}/{dtype}", rows, data.split)
        large = [row for row in rows if min(row.gemm.m, row.gemm.n, row.gemm.k) >= LARGE]
        if kind == "gemm" and large:
            yield _topic(f"operators/gemm-large/{gpu}/{dtype}", large, data.split)


def _topic(name: str, measured: Sequence[MeasuredGemm], split: bool) -> Topic:
    return Topic(name, partial(score_rows, measured, split), constants=_constants(measured))


def _constants(measured: Sequence[MeasuredGemm]) -> dict[str, object]:
    known = [row for row in measured if row.gpu in PRESETS and row.gemm.dtype in DTYPE_BITS]
    used = {(row.gpu, row.gemm.dtype, row.conditions) for row in known}
    return {
        f"gemm/{PRESETS[gpu]}/{device.conditions.library}/{dtype}": dict(device.constants("gemm", dtype))
        for gpu, dtype, conditions in sorted(used)
        for device in (device_for(gpu, **dict(conditions)),)
    }


def score_rows(measured: Sequence[MeasuredGemm], split: bool) -> list[Row]:
    """Return the rows with the model's and the null model's predictions."""
    groups: dict[tuple[tuple[str, str], ...], list[MeasuredGemm]] = {}
    for row in measured:
        groups.setdefault(row.conditions, []).append(row)
    nulls = dict(zip(map(id, measured), _null(measured, split), strict=True))
    return [
        Row(row.case_id, row.time_us, time, nulls[id(row)], reason)
        for group in groups.values()
        for row, (time, reason) in zip(group, _predict(group), strict=True)
    ]


def _predict(group: Sequence[MeasuredGemm]) -> list[tuple[float | None, str]]:
    first = group[0]
    if first.gpu not in PRESETS:
        return [(None, f"no device file for {first.gpu}")] * len(group)
    if first.gemm.dtype not in DTYPE_BITS:
        return [(None, f"no dtype {first.dtype}")] * len(group)
    device = device_for(first.gpu, **dict(first.conditions))
    try:
        times = gemm_times_us([row.gemm for row in group], device)
    except RapidDesError as error:
        return [(None, str(error))] * len(group)
    return [(float(time), "") for time in times]


def _null(measured: Sequence[MeasuredGemm], split: bool) -> Sequence[float | None]:
    if measured[0].gemm.dtype not in DTYPE_BITS:
        return [None] * len(measured)
    flops = np.array([2.0 * row.gemm.batch * row.gemm.m * row.gemm.n * row.gemm.k for row in measured])
    moved = np.array([float(gemm_bytes(row.gemm)) for row in measured])
    times = np.array([row.time_us for row in measured])
    fitted = np.array([is_calibration(row.case_id) for row in measured])
    if not split or not fitted.any():
        fitted = np.ones(len(measured), dtype=bool)
    parameters = fit_roofline(flops[fitted], moved[fitted], times[fitted])
    return [float(time) for time in roofline(parameters, flops, moved)]
