"""HBM reads of a GEMM's CTA order: what CTAs share through L2, and what is read again.

CTAs are rasterised in bands of eight tiles along the shorter side of the grid. Each band streams the other
operand once; its own strip stays in L2 from wave to wave as far as it fits half of it. Within a wave, CTAs
drift apart along K, so where the wave's operands exceed L2 what several CTAs share is read again, unless a
cluster loads it together.
Operands that fit L2 together are read once. Checked against profiler counts of A100 kernels
(`rapid-des validate operators/traffic`).
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
"""Sectors that a profiler counts over the operands' own, on every row that fits L2."""
_USABLE_L2 = 0.8
_STRIP_SHARE = 0.5
_DRIFT_ALONE, _DRIFT_TOGETHER = 0.9, 1.2
"""How often a shared operand is read again when it exceeds L2: one CTA an SM, several."""


def hbm_reads(work: Work, tiles: Candidates, grid: Floats, rates: Rates, *, l2: str) -> Floats:
    """Return the bytes read from HBM, (GEMMs, candidates); `l2` as in `Conditions`."""
    compulsory = work.a_bytes + work.b_bytes
    fits = compulsory <= _USABLE_L2 * rates.l2_capacity
    reads: Floats = compulsory if fits.all() else _rasterised(work, tiles, grid, rates)
    if not fits.all() and fits.any():
        reads = np.where(fits, compulsory, reads)
    return OVERFETCH * (reads - _resident(work, rates, l2))


def _rasterised(work: Work, tiles: Candidates, grid: Floats, rates: Rates) -> Floats:
    """Return the reads of GEMMs whose operands exceed L2."""
    wide = np.ceil(work.n / tiles.tile_n)
    tall = np.maximum(1.0, grid / (wide * work.matrices))
    a_tile = work.a_bytes / work.rows * np.minimum(tiles.tile_m, work.high)
    b_tile = work.b_bytes / (work.matrices * work.n) * np.minimum(tiles.tile_n, work.n)
    flat = tall <= wide
    short, long = np.minimum(tall, wide), np.maximum(tall, wide)
    own_tile, streamed_tile = np.where(flat, a_tile, b_tile), np.where(flat, b_tile, a_tile)
    own, streamed = np.where(flat, work.a_bytes, work.b_bytes), np.where(flat, work.b_bytes, work.a_bytes)
    band = np.minimum(short, BAND)
    along = np.minimum(long, np.maximum(1.0, rates.sms * tiles.residency / band))
    strip = band * own_tile
    kept = np.minimum(1.0, strip / (_STRIP_SHARE * rates.l2_capacity))
    drift = np.where(tiles.residency > 1, _DRIFT_TOGETHER, _DRIFT_ALONE)
    again = drift * np.maximum(0.0, 1.0 - rates.l2_capacity / (strip + along * streamed_tile))
    own_reads: Floats = own * (1.0 + (long / along - 1.0) * kept) * (1.0 + again * (1.0 - 1.0 / along))
    apart = np.maximum(0.0, 1.0 - tiles.together / band)
    streamed_reads = streamed * np.ceil(short / band) * (1.0 + again * apart)
    reads: Floats = own_reads + streamed_reads
    return reads


def _resident(work: Work, rates: Rates, l2: str) -> Floats | float:
    """Return the compulsory bytes that L2 still holds: all up to half its size, none at its full size."""
    if l2 == "cold":
        return 0.0
    held = work.a_bytes if l2 == "activations" else work.a_bytes + work.b_bytes
    footprint = (held + work.c_bytes) / rates.l2_capacity
    kept: Floats = held * np.minimum(1.0, np.maximum(0.0, 2.0 - 2.0 * footprint))
    return kept
