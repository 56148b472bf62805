"""How long each candidate kernel takes for each GEMM: waves over SMs, pipeline, L2, HBM, joining of splits.

Arrays are (GEMMs, candidates); times are microseconds, sizes bytes. A CTA's main loop runs one pipeline step
a `step_k` of K; a step lasts as long as the slowest of tensor unit, shared memory, the SM's L2 port and its
part of the L2. The busiest SM has `ceil(CTAs / SMs)` CTAs; CTAs that reside together hide each other's
latency but share its throughput. HBM traffic runs beside all that and is joined to it by a p-norm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rapid_des.device.gemm_constants import GemmConstants
from rapid_des.device.gemm_tiles import Candidates
from rapid_des.device.gemm_traffic import hbm_reads
from rapid_des.device.model_rates import Rates

Floats = npt.NDArray[np.float64]


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
    """The busiest SM's main loop if only its own tensor unit, shared memory and port limited it …"""
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
    if tiles.ruled:
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
