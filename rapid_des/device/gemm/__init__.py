"""GEMMs priced, dense and grouped over the experts of a rank: the fastest kernel's time and what bounds it.

A `GemmModel` holds what device, library and operand types fix (tiles, rates, constants) and prices many GEMMs
at once, each by the fastest kernel of the library's menu. An `Estimate` of one GEMM names its bound, waves,
bytes and energy.

In a grouped GEMM each expert's rows are cut into tiles that no other expert shares, so few rows an expert
waste most of a tile; weights of experts without rows are not read. Its constants are the dense GEMM's with
the section `grouped_gemm` on top.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct, structs

from rapid_des.arrays import Bools, Floats
from rapid_des.device.device import Device, Rates, rates_of
from rapid_des.device.gemm.candidates import (
    Candidates,
    GemmConstants,
    GemmTable,
    Timing,
    candidates,
    gemm_constants,
    time_candidates,
)
from rapid_des.device.operators import Bound, Dtype, Estimate, Gemm, GroupedGemm, Vector, width
from rapid_des.device.spec import KernelMenu, operator_energy
from rapid_des.device.vector import VectorKernel, price_vector
from rapid_des.units import PS_PER_US
from rapid_des.values import replace

_GEMV_ROWS = 16
_CHUNK = 32
"""The number of GEMMs priced together, so that their arrays fit the processor's cache."""


class GemmModel(Struct, frozen=True):
    """The GEMM kernels of one device and library for operands of given widths."""

    dtype: Dtype
    rates: Rates
    menu: KernelMenu
    tiles: Candidates
    fit: GemmConstants
    l2: str
    burst: bool
    """Whether the clock starts at boost and decreases with the kernel's duration."""

    def price(self, work: GemmTable) -> Priced:
        """Price every GEMM of `work`: kernel microseconds without the launch, and what was chosen."""
        timing = time_candidates(work, self.tiles, self.rates, self.fit, l2=self.l2)
        chosen = np.argmin(timing.total, axis=1)
        tiled = timing.total[np.arange(len(chosen)), chosen]
        gemv = self._gemv(work)
        busy = np.minimum(tiled, gemv)
        start = np.where(gemv < tiled, self.fit.gemv_start_us, self.fit.start_us)
        start = start + self.fit.quantise_us * self.menu.quantise
        quantise = self._quantise(work)
        throttle = self._throttle(work, busy)
        return Priced(start + quantise + busy * throttle, chosen, gemv < tiled, throttle, quantise, timing)

    def _gemv(self, work: GemmTable) -> Floats:
        thin = np.minimum(work.high, work.n) <= _GEMV_ROWS
        if not self.menu.gemv or not thin.any():
            return np.full(len(work.rows), np.inf)
        moved = (work.a_bytes + work.b_bytes + work.c_bytes) / (self.rates.hbm * self.fit.hbm)
        time = 1e6 * np.maximum(moved, work.flops / (self.rates.vector * self.fit.vector))
        priced: Floats = np.where(thin, time, np.inf)[:, 0]
        return priced

    def _quantise(self, work: GemmTable) -> Floats:
        if not self.menu.quantise:
            return np.zeros(len(work.rows))
        moved = 1e6 * (work.a_bytes + 2 * work.rows * work.k) / (self.rates.hbm * self.fit.hbm)
        row_us = self.fit.quantise_row_us + work.k * self.fit.quantise_element_ns / 1000
        priced: Floats = np.maximum(moved, work.rows * row_us / self.rates.sms)[:, 0]
        return priced

    def _throttle(self, work: GemmTable, busy: Floats) -> Floats:
        """Return by how much a kernel is stretched because its power draw lowers the clock."""
        if not self.burst:
            return np.ones(len(busy))
        start = self.fit.start_us + self.fit.quantise_us * self.menu.quantise
        load = np.minimum(1.0, 1e6 * work.flops[:, 0] / self.rates.tensor / (busy + start))
        free = min(self.fit.power_load, 0.99)
        excess = np.maximum(0.0, (load - free) / (1.0 - free))
        slowest = 1.0 / self.fit.throttled - 1.0
        stretch: Floats = 1.0 + slowest * excess * busy / (busy + self.fit.throttle_us)
        return stretch


class Priced(Struct, frozen=True):
    """The chosen kernels of some GEMMs, one entry a GEMM (and `timing` for every candidate)."""

    kernel_us: Floats
    chosen: npt.NDArray[np.intp]
    gemv: Bools
    throttle: Floats
    quantise_us: Floats
    timing: Timing


def gemm_model(
    device: Device,
    dtype: Dtype,
    weight_dtype: Dtype | None,
    *,
    batched: bool,
    quantised: bool = False,
) -> GemmModel:
    """Return the dense kernels for operands of these types; the weights' is the other's if None.

    Activations that are `quantised` already need no kernel of the library to make them so.
    """
    values = gemm_constants(device.constants("gemm", dtype), device.spec.name)
    menu = device.kernels(dtype, batched=batched)
    if quantised:
        menu = structs.replace(menu, quantise=False)
    return build_model(device, dtype, weight_dtype or dtype, fit=values, menu=menu)


def grouped_model(
    device: Device,
    dtype: Dtype,
    changes: Mapping[str, float] | None = None,
    weight_dtype: Dtype | None = None,
) -> GemmModel:
    """Return the grouped kernels for operands of these types, with some constants changed."""
    values = {**device.constants("gemm", ""), **device.constants("grouped_gemm", dtype), **(changes or {})}
    fit = gemm_constants(values, device.spec.name)
    menu = device.kernels("grouped", section="grouped_gemm")
    return build_model(device, dtype, weight_dtype or dtype, fit=fit, menu=menu)


def build_model(
    device: Device, dtype: Dtype, weight_dtype: Dtype, *, fit: GemmConstants, menu: KernelMenu
) -> GemmModel:
    """Return the GEMM model of a menu with the given constants."""
    rates = rates_of(device, dtype)
    tiles = candidates(menu, (operand_width(dtype), operand_width(weight_dtype)), rates, fit)
    conditions = device.conditions
    return GemmModel(dtype, rates, menu, tiles, fit, conditions.l2, conditions.clock == "boost")


def operand_width(dtype: Dtype) -> float:
    """Return an operand's bytes an element with its block scales (fp4: one byte for 16 elements)."""
    return width(dtype) + (1 / 16 if dtype == "fp4" else 0.0)


def gemm_work(gemms: Sequence[Gemm]) -> GemmTable:
    """Return GEMMs of equal dtypes as columns."""
    first = gemms[0]
    shape = np.array([(g.m, g.n, g.k, g.batch, 1 + g.accumulate) for g in gemms], dtype=np.float64)
    m, n, k, batch, touches = (shape[:, index : index + 1] for index in range(5))
    rows = batch * m
    a_bytes = rows * k * operand_width(first.dtype)
    b_bytes = batch * n * k * operand_width(first.weight_dtype or first.dtype)
    return GemmTable(rows, m, batch, n, k, a_bytes, b_bytes, touches * rows * n * result_width(first))


def result_width(gemm: Gemm) -> float:
    """Return the bytes of an element of C: 16 bit for narrow operands unless `out_dtype` says otherwise."""
    return width(gemm.out_dtype) if gemm.out_dtype else max(2.0, width(gemm.dtype))


def grouped_work(gemms: Sequence[GroupedGemm], tiles: Candidates) -> GemmTable:
    """Return grouped GEMMs of equal dtypes as columns, tiles counted expert by expert; each has some row."""
    counts = [np.array([rows for rows in gemm.rows if rows], dtype=np.float64) for gemm in gemms]
    heights, which = np.unique(tiles.tile_m, return_inverse=True)
    by_height = np.array([[np.ceil(rows / height).sum() for height in heights] for rows in counts])
    size, stored = operand_width(gemms[0].dtype), max(2.0, width(gemms[0].dtype))
    total, high, groups = (_column([value(rows) for rows in counts]) for value in (np.sum, np.max, np.size))
    n, k = _column([gemm.n for gemm in gemms]), _column([gemm.k for gemm in gemms])
    weights = operand_width(gemms[0].weight_dtype or gemms[0].dtype)
    moved = total * k * size, groups * n * k * weights, total * n * stored
    return GemmTable(total, high, groups, n, k, *moved, row_tiles=by_height[:, which])


def _column(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)[:, None]


def price_gemm(gemm: Gemm, model: GemmModel, device: Device) -> Estimate:
    """Price one GEMM by the device's kernels for its types (`gemm_model`)."""
    work = gemm_work([gemm])
    priced = _explained(model.price(work), work, model, device=device, name="gemm")
    return _with_transpose(priced, gemm, device) if gemm.across and model.menu.along_k else priced


def _with_transpose(priced: Estimate, gemm: Gemm, device: Device) -> Estimate:
    """Return the estimate with that of the kernel which has operands stand along K first."""
    kernel = VectorKernel.of(device, "transpose", gemm.dtype)
    first = price_vector(Vector("transpose", 1, gemm.across, gemm.dtype), device, kernel)
    moved = {level: size + first.bytes.get(level, 0) for level, size in priced.bytes.items()}
    detail = {**priced.detail, "transpose_ps": first.duration}
    return replace(priced, duration=priced.duration + first.duration, bytes=moved, detail=detail)


def price_grouped_gemm(gemm: GroupedGemm, model: GemmModel, device: Device) -> Estimate:
    """Price one kernel over several experts (`grouped_model`); without any row it is an empty launch."""
    if not any(gemm.rows):
        return Estimate(device.launch_overhead, "launch", 0, model="grouped")
    work = grouped_work([gemm], model.tiles)
    return _explained(model.price(work), work, model, device=device, name="grouped")


def _explained(priced: Priced, work: GemmTable, model: GemmModel, *, device: Device, name: str) -> Estimate:
    """Return the estimate of the only GEMM of `work`; `name` is the operator model's."""
    chosen, launch = int(priced.chosen[0]), device.launch_overhead
    kernel = round(float(priced.kernel_us[0]) * PS_PER_US)
    moved = _bytes(priced, work, chosen)
    flops = int(work.flops[0, 0])
    energy = operator_energy(device.spec.energy, model.dtype, flops, moved)
    detail = _kernel(priced, model, chosen) | {
        "launch_ps": launch,
        "clock": round(1.0 / float(priced.throttle[0]), 3),
        "energy_pj": None if energy is None else round(energy.total),
    }
    return Estimate(kernel + launch, _bound(priced, model, chosen, launch), flops, moved, detail, name)


def _bytes(priced: Priced, work: GemmTable, chosen: int) -> dict[str, int]:
    compulsory = float(work.a_bytes[0, 0] + work.b_bytes[0, 0] + work.c_bytes[0, 0])
    if priced.gemv[0]:
        return {"hbm": int(compulsory), "l2": int(compulsory), "shared": 0}
    timing, stored = priced.timing, float(work.c_bytes[0, 0])
    l2 = float(timing.l2_read[0, chosen])
    read = _entry(timing.hbm_read, chosen)
    return {"hbm": int(read + stored), "l2": int(l2 + stored), "shared": int(2 * l2)}


def _entry(values: Floats, chosen: int) -> float:
    """Return a candidate's entry of the only GEMM; one column stands for all candidates."""
    return float(values[0, min(chosen, values.shape[1] - 1)])


def _kernel(priced: Priced, model: GemmModel, chosen: int) -> dict[str, object]:
    if priced.gemv[0]:
        return {"model": "gemm", "kernel": "gemv"}
    tiles, ctas = model.tiles, float(priced.timing.ctas[0, chosen])
    slots = model.rates.sms * float(tiles.residency[chosen])
    return {
        "model": "gemm",
        "kernel": "tiled",
        "tile": [int(tiles.tile_m[chosen]), int(tiles.tile_n[chosen]), int(tiles.step_k)],
        "split_k": int(tiles.split[chosen]),
        "stream_k": model.fit.stream_k,
        "ctas": int(ctas),
        "ctas_per_sm": int(tiles.residency[chosen]),
        "waves": round(ctas / slots, 3),
        "sm_occupancy": round(min(1.0, ctas / model.rates.sms), 3),
    }


def _bound(priced: Priced, model: GemmModel, chosen: int, launch: int) -> Bound:
    if priced.gemv[0]:
        return "hbm" if priced.kernel_us[0] > 2 * model.fit.gemv_start_us else "launch"
    timing, tiles = priced.timing, model.tiles
    units = float(timing.units_us[0, chosen])
    step = float(tiles.step_us[chosen])
    l2, sm = float(timing.l2_us[0, chosen]), float(timing.sm[0, chosen])
    parts: dict[Bound, float] = {
        "tensor": units * float(tiles.math_us[chosen]) / step,
        "shared": units * float(tiles.shared_us[chosen]) / step,
        "l2": max(l2, units * float(tiles.port_us[chosen]) / step),
        "hbm": _entry(timing.hbm, chosen),
        "latency": sm - max(units, l2),
        "launch": launch / PS_PER_US + model.fit.start_us + model.fit.quantise_us * model.menu.quantise,
    }
    return max(parts, key=lambda name: parts[name])


def gemm_times_us(gemms: Sequence[Gemm], device: Device, fit: GemmConstants | None = None) -> Floats:
    """Return the microseconds of many GEMMs of equal dtypes at once, launch included.

    `fit` replaces the device's constants (calibration).
    """
    times = np.empty(len(gemms))
    for batched in (False, True):
        places = [place for place, gemm in enumerate(gemms) if (gemm.batch > 1) == batched]
        if places:
            model = gemm_model(device, gemms[0].dtype, gemms[0].weight_dtype, batched=batched)
            if fit is not None:
                widths = gemms[0].dtype, gemms[0].weight_dtype or gemms[0].dtype
                model = build_model(device, *widths, fit=fit, menu=model.menu)
            times[places] = _kernels_us([gemms[place] for place in places], model)
    return times + device.launch_overhead / PS_PER_US


def _kernels_us(gemms: Sequence[Gemm], model: GemmModel) -> Floats:
    chunks = [gemms[first : first + _CHUNK] for first in range(0, len(gemms), _CHUNK)]
    return np.concatenate([model.price(gemm_work(chunk)).kernel_us for chunk in chunks])
