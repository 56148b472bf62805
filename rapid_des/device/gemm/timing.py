"""How long each candidate kernel takes for each GEMM: waves over SMs, pipeline, L2, HBM, joining of splits.

Arrays are (GEMMs, candidates); times are microseconds, sizes bytes. A CTA's main loop runs one pipeline step
a `step_k` of K; a step lasts as long as the slowest of tensor unit, shared memory, the SM's L2 port and its
part of the L2. The busiest SM has `ceil(CTAs / SMs)` CTAs; CTAs that reside together hide each other's
latency but share its throughput. HBM traffic runs beside all that and is joined to it by a p-norm.

HBM reads follow from the order of CTAs, rasterised in bands of eight tiles along the shorter side of the
grid. Each band streams one operand once; its strip of the other stays in L2 from wave to wave as far as it
fits half of it. Within a wave, CTAs drift apart along K, so where the wave's operands exceed L2 what several
CTAs share is read again, unless a cluster loads it together. Operands that fit L2 together are read once.
Checked against profiler counts of A100 kernels (`rapid-des validate operators/traffic`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rapid_des.arrays import Floats
from rapid_des.device.device import Rates
from rapid_des.device.gemm.candidates import Candidates, GemmConstants

BAND = 8.0
"""Tiles in a raster band: the swizzle of cuBLAS and CUTLASS kernels."""
OVERFETCH = 1.05
"""Sectors that a profiler counts for each sector of the operands, on every row that fits L2."""
_USABLE_L2 = 0.8
_STRIP_SHARE = 0.5
_DRIFT_ALONE, _DRIFT_TOGETHER = 0.9, 1.2
"""How often a shared operand is read again when it exceeds L2: one CTA an SM, several."""


@dataclass(frozen=True)
class Work:
    """GEMMs as columns (GEMMs, 1): `matrices` weight matrices take `rows` rows, the tallest `high`."""

    rows: Floats
    high: Floats
    matrices: Floats
    n: Floats
    k: Floats
    a_bytes: Floats
    b_bytes: Floats
    c_bytes: Floats
    row_tiles: Floats | None = None
    """Tiles along M of all matrices, by candidate; None: `matrices` equal ones of `high` rows."""

    @property
    def flops(self) -> Floats:
        """Multiplications and additions, without padding."""
        return 2 * self.rows * self.n * self.k


@dataclass(frozen=True)
class Timing:
    """Every candidate's time and its parts in microseconds, (GEMMs, candidates)."""

    total: Floats
    sm: Floats
    hbm: Floats
    joining: Floats
    ctas: Floats
    units_us: Floats
    """The busiest SM's main loop if only its tensor unit, shared memory and port limited it …"""
    l2_us: Floats
    """… and if only L2 did."""
    hbm_read: Floats
    l2_read: Floats


def time_candidates(work: Work, tiles: Candidates, rates: Rates, fit: GemmConstants, *, l2: str) -> Timing:
    """Price every candidate for every GEMM; a kernel that its menu does not offer takes infinitely long."""
    row_tiles = work.row_tiles
    if row_tiles is None:
        row_tiles = np.ceil(work.high / tiles.span_m) * (tiles.pad_m * work.matrices)
    grid = row_tiles * np.ceil(work.n / tiles.tile_n)
    ctas = grid * tiles.split
    steps = np.ceil(work.k / tiles.span_k)
    l2_read = ctas * steps * tiles.l2_bytes
    sm, units_us, l2_us = _busiest_sm(ctas, steps, tiles, rates, fit)
    hbm_read = hbm_reads(work, tiles, grid, rates, l2=l2)
    hbm = 1e6 * (hbm_read + work.c_bytes) / (rates.hbm * fit.hbm)
    partial = 8.0 * work.rows * work.n
    joining = np.where(
        tiles.split > 1, fit.split_us + tiles.split * (1e6 * partial / (rates.l2 * fit.l2)), 0.0
    )
    both = _joined(sm, hbm + fit.prologue_us, fit.overlap) + joining
    if tiles.by_rows:
        offered = (work.high > tiles.low_m) & (work.high <= tiles.high_m)
        both = np.where(offered, both, np.inf)
    return Timing(both, sm, hbm, joining, ctas, units_us, l2_us, hbm_read, l2_read)


def _busiest_sm(
    ctas: Floats, steps: Floats, tiles: Candidates, rates: Rates, fit: GemmConstants
) -> tuple[Floats, Floats, Floats]:
    even = ctas / rates.sms
    most = np.ceil(even)
    loaded = np.where(most > 1, most - fit.stream_k * (most - even), 1.0)
    rounds = np.ceil(even / tiles.residency)
    active = np.minimum(ctas, rates.sms)
    l2 = active * (1e6 / (rates.l2 * fit.l2) * tiles.l2_bytes)
    step = np.maximum(tiles.step_us, l2)
    store = (2e6 * fit.store * tiles.area) / np.minimum(rates.port, rates.hbm / active)
    main = np.maximum(loaded * step, rounds * fit.step_us) * steps
    ends = rounds * (fit.prologue_us + fit.epilogue_us) + loaded * store
    return main + ends, loaded * steps * tiles.step_us, loaded * steps * l2


def _joined(first: Floats, second: Floats, exponent: float) -> Floats:
    longer, shorter = np.maximum(first, second), np.minimum(first, second)
    joined: Floats = longer * (1.0 + (shorter / longer) ** exponent) ** (1.0 / exponent)
    return joined


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
    stationary_tile, streamed_tile = np.where(flat, a_tile, b_tile), np.where(flat, b_tile, a_tile)
    stationary = np.where(flat, work.a_bytes, work.b_bytes)
    streamed = np.where(flat, work.b_bytes, work.a_bytes)
    band = np.minimum(short, BAND)
    along = np.minimum(long, np.maximum(1.0, rates.sms * tiles.residency / band))
    strip = band * stationary_tile
    evicted = np.minimum(1.0, strip / (_STRIP_SHARE * rates.l2_capacity))
    drift = np.where(tiles.residency > 1, _DRIFT_TOGETHER, _DRIFT_ALONE)
    refetched = drift * np.maximum(0.0, 1.0 - rates.l2_capacity / (strip + along * streamed_tile))
    passes = 1.0 + (long / along - 1.0) * evicted
    stationary_reads: Floats = stationary * passes * (1.0 + refetched * (1.0 - 1.0 / along))
    apart = np.maximum(0.0, 1.0 - tiles.together / band)
    streamed_reads = streamed * np.ceil(short / band) * (1.0 + refetched * apart)
    reads: Floats = stationary_reads + streamed_reads
    return reads


def _resident(work: Work, rates: Rates, l2: str) -> Floats | float:
    """Return the compulsory bytes that L2 still holds: all up to half its size, none at its full size."""
    if l2 == "cold":
        return 0.0
    warm = work.a_bytes if l2 == "activations" else work.a_bytes + work.b_bytes
    footprint = (warm + work.c_bytes) / rates.l2_capacity
    resident: Floats = warm * np.minimum(1.0, np.maximum(0.0, 2.0 - 2.0 * footprint))
    return resident
