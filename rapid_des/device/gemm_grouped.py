"""Grouped GEMM: one kernel over the experts of a rank, and the fused feed-forward that is built of two.

Each expert's rows are cut into tiles of their own, so few rows an expert waste most of a tile; weights of
experts without rows are not read. Constants are the dense GEMM's with the section `grouped_gemm` on top.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from rapid_des.device.gemm import GemmModel, build_model, operand_width
from rapid_des.device.gemm_constants import gemm_constants
from rapid_des.device.gemm_explain import explain
from rapid_des.device.gemm_tiles import Candidates
from rapid_des.device.gemm_timing import Work
from rapid_des.device.operators import Dtype, Estimate, GroupedGemm
from rapid_des.device.roofline import width
from rapid_des.units import PS_PER_US

if TYPE_CHECKING:
    from rapid_des.device.model import Device

Floats = npt.NDArray[np.float64]


def grouped_model(device: Device, dtype: Dtype) -> GemmModel:
    """Return (and keep in the device's tables) the grouped GEMM kernels for operands of this type."""
    key = ("grouped_gemm", dtype)
    if key not in device.tables:
        device.tables[key] = grouped_model_with(device, dtype, {})
    return cast(GemmModel, device.tables[key])


def grouped_model_with(device: Device, dtype: Dtype, changes: Mapping[str, float]) -> GemmModel:
    """Return the grouped GEMM kernels with some constants changed."""
    dense = device.constants("gemm", "")
    values = {**dense, **device.constants("grouped_gemm", dtype), **changes}
    return build_model(device, dtype, dtype, gemm_constants(values, device.spec.name), grouped=True)


def price_grouped_gemm(gemm: GroupedGemm, device: Device) -> Estimate:
    """Price one kernel over several experts; without any row it is an empty launch."""
    model = grouped_model(device, gemm.dtype)
    if not any(gemm.rows):
        return Estimate(device.launch_overhead, "launch", 0)
    work = grouped_work([gemm], model.tiles)
    return explain(model.price(work), work, model, device)


def grouped_work(gemms: Sequence[GroupedGemm], tiles: Candidates) -> Work:
    """Return grouped GEMMs of one dtype as columns, tiles counted expert by expert; each has some row."""
    counts = [np.array([rows for rows in gemm.rows if rows], dtype=np.float64) for gemm in gemms]
    heights, which = np.unique(tiles.tile_m, return_inverse=True)
    by_height = np.array([[np.ceil(rows / height).sum() for height in heights] for rows in counts])
    size, stored = operand_width(gemms[0].dtype), max(2.0, width(gemms[0].dtype))
    total, high, groups = (_column([value(rows) for rows in counts]) for value in (np.sum, np.max, np.size))
    n, k = _column([gemm.n for gemm in gemms]), _column([gemm.k for gemm in gemms])
    moved = total * k * size, groups * n * k * size, total * n * stored
    return Work(total, high, groups, n, k, *moved, row_tiles=by_height[:, which])


def _column(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)[:, None]


def gated_ffn_us(
    pairs: Sequence[tuple[GroupedGemm, GroupedGemm]],
    device: Device,
    changes: Mapping[str, float] | None = None,
) -> Floats:
    """Return the microseconds of fused gated feed-forwards: route, gate and up, SwiGLU, down, combine.

    Each pair is the gate-and-up and the down product of one rank. `changes` replaces constants (calibration).
    """
    changes = changes or {}
    first = pairs[0][0]
    own = {name: value for name, value in changes.items() if name not in MOE_NAMES}
    model = grouped_model_with(device, first.dtype, own) if own else grouped_model(device, first.dtype)
    moe = {**device.constants("moe", first.dtype), **{k: v for k, v in changes.items() if k in MOE_NAMES}}
    up, down = (grouped_work([pair[index] for pair in pairs], model.tiles) for index in (0, 1))
    gathered = up.rows * up.k * 2 * 2 + up.rows * up.n * 1.5 * 2 + down.rows * down.n * 2 * 2
    moving = 1e6 * gathered[:, 0] / (model.rates.hbm * moe["move"])
    products: Floats = model.price(up).kernel_us + model.price(down).kernel_us
    routing = moe["route_us"] + moe["row_ns"] / 1000 * up.rows[:, 0]
    return products + moving + routing + device.launch_overhead / PS_PER_US


MOE_NAMES = ("route_us", "row_ns", "move")
"""Constants of section `moe`: fixed time of the routing, permutation and combination kernels (µs), their time
for a row (ns), and the share of the HBM bandwidth at which they move the activations."""
