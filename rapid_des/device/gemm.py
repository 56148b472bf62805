"""GEMM latency: the fastest kernel of the library's menu, and why it takes that long.

A `GemmModel` holds what a device, its library and a dtype fix: tiles, rates, constants. It prices many GEMMs
at once; `price_gemm` is its one-operator form behind the operator model. Grouped GEMMs: `gemm_grouped`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from rapid_des.device.gemm_constants import GemmConstants, gemm_constants
from rapid_des.device.gemm_explain import explain
from rapid_des.device.gemm_tiles import Candidates, candidates
from rapid_des.device.gemm_timing import Timing, Work, time_candidates
from rapid_des.device.model_rates import Rates, rates_of
from rapid_des.device.operators import Dtype, Estimate, Gemm
from rapid_des.device.roofline import width
from rapid_des.device.spec import KernelMenu
from rapid_des.units import PS_PER_US

if TYPE_CHECKING:
    from rapid_des.device.model import Device

Floats = npt.NDArray[np.float64]

_GEMV_ROWS = 16
_CHUNK = 32
"""GEMMs priced together: their arrays stay in the cache."""


@dataclass(frozen=True)
class GemmModel:
    """The GEMM kernels of one device and library for operands of given widths."""

    dtype: Dtype
    rates: Rates
    menu: KernelMenu
    tiles: Candidates
    fit: GemmConstants
    l2: str
    burst: bool
    """Whether the clock starts at boost and falls with the kernel's duration."""

    def price(self, work: Work) -> Priced:
        """Price every GEMM of `work`: kernel microseconds without the launch, and what was chosen."""
        timing = time_candidates(work, self.tiles, self.rates, self.fit, l2=self.l2)
        chosen = np.argmin(timing.total, axis=1)
        tiled = timing.total[np.arange(len(chosen)), chosen]
        gemv = self._gemv(work)
        busy = np.minimum(tiled, gemv)
        start = np.where(gemv < tiled, self.fit.gemv_start_us, self.fit.start_us)
        quantise = self._quantise(work)
        throttle = self._throttle(work, busy)
        return Priced(start + quantise + busy * throttle, chosen, gemv < tiled, throttle, quantise, timing)

    def _gemv(self, work: Work) -> Floats:
        thin = np.minimum(work.high, work.n) <= _GEMV_ROWS
        if not self.menu.gemv or not thin.any():
            return np.full(len(work.rows), np.inf)
        moved = (work.a_bytes + work.b_bytes + work.c_bytes) / (self.rates.hbm * self.fit.hbm)
        time = 1e6 * np.maximum(moved, work.flops / (self.rates.vector * self.fit.vector))
        priced: Floats = np.where(thin, time, np.inf)[:, 0]
        return priced

    def _quantise(self, work: Work) -> Floats:
        if not self.menu.quantise:
            return np.zeros(len(work.rows))
        moved = 1e6 * (work.a_bytes + 2 * work.rows * work.k) / (self.rates.hbm * self.fit.hbm)
        row_us = self.fit.quantise_row_us + work.k * self.fit.quantise_element_ns / 1000
        priced: Floats = np.maximum(moved, work.rows * row_us / self.rates.sms)[:, 0]
        return priced

    def _throttle(self, work: Work, busy: Floats) -> Floats:
        """Return by how much a kernel is stretched because its power draw lowers the clock."""
        if not self.burst:
            return np.ones(len(busy))
        load = np.minimum(1.0, 1e6 * work.flops[:, 0] / self.rates.tensor / (busy + self.fit.start_us))
        free = min(self.fit.power_load, 0.99)
        excess = np.maximum(0.0, (load - free) / (1.0 - free))
        slowest = 1.0 / self.fit.throttled - 1.0
        stretch: Floats = 1.0 + slowest * excess * busy / (busy + self.fit.throttle_us)
        return stretch


@dataclass(frozen=True)
class Priced:
    """The chosen kernels of some GEMMs, one entry a GEMM (and `timing` for every candidate)."""

    kernel_us: Floats
    chosen: npt.NDArray[np.intp]
    gemv: npt.NDArray[np.bool_]
    throttle: Floats
    quantise_us: Floats
    timing: Timing


def gemm_model(device: Device, dtype: Dtype, weight_dtype: Dtype | None = None) -> GemmModel:
    """Return (and keep in the device's tables) the GEMM model of operands of these types."""
    key = ("gemm", dtype, weight_dtype or dtype)
    if key not in device.tables:
        values = gemm_constants(device.constants("gemm", dtype), device.spec.name)
        device.tables[key] = build_model(device, dtype, weight_dtype or dtype, values)
    return cast(GemmModel, device.tables[key])


def build_model(
    device: Device, dtype: Dtype, weight_dtype: Dtype, fit: GemmConstants, *, grouped: bool = False
) -> GemmModel:
    """Return the GEMM model with the given constants; `grouped` takes the menu of that name."""
    rates, menu = rates_of(device, dtype), device.kernels("grouped" if grouped else dtype)
    tiles = candidates(menu, (operand_width(dtype), operand_width(weight_dtype)), rates, fit)
    conditions = device.conditions
    return GemmModel(dtype, rates, menu, tiles, fit, conditions.l2, conditions.clock == "boost")


def operand_width(dtype: Dtype) -> float:
    """Return an operand's bytes an element with its block scales (fp4: one byte for 16 elements)."""
    return width(dtype) + (1 / 16 if dtype == "fp4" else 0.0)


def gemm_work(gemms: Sequence[Gemm]) -> Work:
    """Return GEMMs of equal dtypes as columns."""
    first = gemms[0]
    shape = np.array([(g.m, g.n, g.k, g.batch, 1 + g.accumulate) for g in gemms], dtype=np.float64)
    m, n, k, batch, touches = (shape[:, index : index + 1] for index in range(5))
    rows = batch * m
    a_bytes = rows * k * operand_width(first.dtype)
    b_bytes = batch * n * k * operand_width(first.weight_dtype or first.dtype)
    return Work(rows, m, batch, n, k, a_bytes, b_bytes, touches * rows * n * result_width(first))


def result_width(gemm: Gemm) -> float:
    """Return the bytes of an element of C: 16 bit for narrow operands unless `out_dtype` says otherwise."""
    return width(gemm.out_dtype) if gemm.out_dtype else max(2.0, width(gemm.dtype))


def price_gemm(gemm: Gemm, device: Device) -> Estimate:
    """Price one GEMM."""
    model = gemm_model(device, gemm.dtype, gemm.weight_dtype)
    work = gemm_work([gemm])
    return explain(model.price(work), work, model, device)


def gemm_times_us(gemms: Sequence[Gemm], device: Device) -> Floats:
    """Return the microseconds of many GEMMs of equal dtypes at once, launch included."""
    model = gemm_model(device, gemms[0].dtype, gemms[0].weight_dtype)
    chunks = [gemms[first : first + _CHUNK] for first in range(0, len(gemms), _CHUNK)]
    kernels: Floats = np.concatenate([model.price(gemm_work(chunk)).kernel_us for chunk in chunks])
    return kernels + device.launch_overhead / PS_PER_US
