"""HBM reads of a GEMM's CTA order: what a wave of CTAs shares through L2, and what it reads again.

CTAs are rasterised in bands of eight tiles. A wave (all CTAs that run at once) reads the distinct rows of A
and columns of B that it touches. Co-resident CTAs drift apart along K, so where the wave's operands exceed
L2 part of them is read a second time. Operands that fit L2 together are read once. Checked against profiler
counts of A100 kernels (`rapid-des validate operators/traffic`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rapid_des.device.gemm_tiles import Candidates
from rapid_des.device.model_rates import Rates

if TYPE_CHECKING:
    from rapid_des.device.gemm_timing import Work

Floats = npt.NDArray[np.float64]

BAND = 8.0
"""Tiles in a raster band: the swizzle of cuBLAS and CUTLASS kernels."""
OVERFETCH = 1.05
"""Sectors that a profiler counts beyond the operands, on every row that fits L2."""
_USABLE_L2 = 0.8
_WARM_L2 = 1.2
"""Working set, in L2 capacities, up to which some of a repeated GEMM's operands are still there."""


def hbm_reads(work: Work, tiles: Candidates, grid: Floats, rates: Rates, *, warm: bool) -> Floats:
    """Return the bytes read from HBM, (GEMMs, candidates); `warm`: after an earlier run of the same GEMM."""
    compulsory = work.a_bytes + work.b_bytes
    width_a, width_b = work.a_bytes / work.rows, work.b_bytes / (work.matrices * work.n)
    tall = np.maximum(1.0, grid / (np.ceil(work.n / tiles.tile_n) * work.matrices))
    wide = np.ceil(work.n / tiles.tile_n)
    wave = np.minimum(rates.sms * tiles.residency, tall * wide)
    band = np.minimum(np.minimum(tall, wide), BAND)
    along = wave / band
    across_m = np.minimum(tall, np.where(tall <= wide, band, along))
    across_n = np.minimum(wide, wave / across_m)
    rows = np.minimum(across_m * tiles.tile_m, work.high)
    touched = rows * width_a + np.minimum(across_n * tiles.tile_n, work.n) * width_b
    again = np.clip(1.0 - rates.l2_capacity / touched, 0.0, 1.0) * np.minimum(1.0, tiles.residency / 2)
    waves = grid / wave
    reads = np.maximum(compulsory, waves * touched * (1.0 + again))
    once = np.where(compulsory <= _USABLE_L2 * rates.l2_capacity, compulsory, reads)
    if warm:
        everything = compulsory + work.c_bytes
        once = once * np.clip(everything / rates.l2_capacity / _WARM_L2 * 2 - 1, 0.0, 1.0)
    return OVERFETCH * once
