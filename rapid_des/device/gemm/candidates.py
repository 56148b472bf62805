"""The candidate kernels of a GEMM, CTA tiles and K splits of a library's menu, and how long each takes.

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

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Floats
from rapid_des.device.device import Rates
from rapid_des.device.spec import RANGES, KernelMenu, check_constant
from rapid_des.errors import ConfigError
from rapid_des.values import fields

_ACCUMULATOR_BYTES = 4
_STAGES = 3
_REGISTERS_FOR_ACCUMULATORS = 0.7
_MOST_CTAS_A_SM = 4

BAND = 8.0
"""The number of tiles in a raster band, as in the swizzle of cuBLAS and CUTLASS kernels."""
OVERFETCH = 1.05
"""The sectors read per operand sector in profiler counts, on every row that fits L2."""
_USABLE_L2 = 0.8
_STRIP_SHARE = 0.5
_DRIFT_ALONE, _DRIFT_TOGETHER = 0.9, 1.2
"""How often a shared operand is read again when it exceeds L2: with one CTA on an SM, and with several."""


class GemmConstants(Struct, frozen=True):
    """Constants of one family, dtype or kernel library; utilisations are in (0, 1].

    Times are microseconds. They are fitted by `rapid-des device calibrate`.
    """

    start_us: float
    """The fixed cost of a kernel beyond the launch: grid start, descriptor fetch and drain."""
    gemv_start_us: float
    """The fixed cost of a matrix-vector kernel beyond the launch."""
    prologue_us: float
    """The time to fill the load pipeline of a CTA: the first latency of L2 and HBM."""
    epilogue_us: float
    """The time to end a CTA, without the store itself."""
    step_us: float
    """The least time of a pipeline step of a lone CTA: the load latency over the stages in flight."""
    split_us: float
    """The time to combine the parts of a split K by semaphores or a second kernel."""
    throttle_us: float
    """The kernel duration at which the clock is midway between the burst and the power-limited clock."""
    quantise_us: float
    """The fixed cost of the kernels that quantise the activations first, where the library has such kernels.
    """
    quantise_row_us: float
    """The time of one SM to quantise a row of activations, without its elements."""
    quantise_element_ns: float
    """The time of one SM to quantise one element of the activations."""
    overlap: float
    """The exponent that joins SM and HBM time: 1 adds them, infinity overlaps them fully."""
    tensor: float
    """Share of the tensor peak that a steady main loop reaches."""
    vector: float
    """Share of the fp32 vector peak that a matrix-vector kernel reaches."""
    shared: float
    """Share of the shared memory bandwidth."""
    l2: float
    """Share of the L2 bandwidth."""
    hbm: float
    """Share of the HBM bandwidth."""
    store: float
    """The share of a tile's store that the next tile's main loop does not hide."""
    multicast: float
    """Share of a cluster's doubly needed operand that one L2 read serves."""
    stream_k: float
    """Share of the last wave's imbalance that persistent and stream-K kernels even out."""
    throttled: float
    """The ratio of the power-limited clock to the burst clock at full tensor load."""
    power_load: float
    """The share of full tensor load up to which the power limit does not lower the clock."""


UTILISATIONS = tuple(name for name, span in RANGES["gemm"].items() if span.high == 1)
NAMES = fields(GemmConstants)


def gemm_constants(values: Mapping[str, float], where: str) -> GemmConstants:
    """Return checked constants; missing, unknown or out-of-range values are errors naming `where`."""
    missing, unknown = sorted(set(NAMES) - set(values)), sorted(set(values) - set(NAMES))
    if missing or unknown:
        problem = f"missing {missing[0]!r}" if missing else f"unknown {unknown[0]!r}"
        raise ConfigError(f"{problem}; needed: {', '.join(NAMES)}", file=where, key="constants.gemm")
    try:
        for name, value in values.items():
            check_constant("gemm", name, value, where=f"constants.gemm.{name}")
    except ValueError as error:
        raise ConfigError(str(error), file=where) from None
    return GemmConstants(**values)


class Candidates(Struct, frozen=True):
    """One entry a (tile, split): geometry, and what one pipeline step of its CTA costs in microseconds."""

    tile_m: Floats
    tile_n: Floats
    split: Floats
    by_rows: bool
    """Whether the menu depends on the number of rows."""
    low_m: Floats
    """The number of rows that the GEMM must exceed."""
    high_m: Floats
    """The largest number of rows of the GEMM."""
    pad_m: Floats
    span_m: Floats
    """Rows that the tiles of one cluster cover together."""
    span_k: Floats
    """Elements of K in one step of all splits."""
    area: Floats
    """Elements of C in a tile."""
    step_k: float
    """Elements of K in one pipeline step."""
    residency: Floats
    """CTAs that fit one SM by shared memory and registers, at most four."""
    together: float
    """The number of CTAs that load a shared operand at the same time: 1; with multicast in clusters of two,
    up to 2.
    """
    l2_bytes: Floats
    """The bytes that a CTA's step reads from L2, after multicast inside a cluster."""
    step_us: Floats
    """The time of one pipeline step: the longest of its times on the tensor unit, the shared memory and the
    SM port.
    """
    math_us: Floats
    shared_us: Floats
    port_us: Floats


def candidates(menu: KernelMenu, width: tuple[float, float], rates: Rates, fit: GemmConstants) -> Candidates:
    """Return the menu's kernels for operands of `width` (A, B) bytes an element."""
    table = [
        (m, n, split, low, float("inf") if rule.up_to_m is None else rule.up_to_m, rule.pad_m)
        for low, rule in zip(_lows(menu), menu.rules, strict=True)
        for m, n in rule.tiles
        for split in menu.splits
    ]
    tile_m, tile_n, split, low, high, pad = np.array(table, dtype=np.float64).T
    step_k = menu.k_bytes / width[0]
    load = (tile_m * width[0] + tile_n * width[1]) * step_k
    # microseconds of one SM: a multiplication and an addition for each element of the tile and of K
    math = 2e6 * tile_m * tile_n * step_k / (rates.tensor / rates.sms * fit.tensor)
    # each warp reads its rows of A and columns of B from shared memory; `load` is what is written there
    read_a = tile_m * width[0] * np.ceil(tile_n / menu.warp[1])
    read_b = tile_n * width[1] * np.ceil(tile_m / menu.warp[0])
    shared = 1e6 * ((read_a + read_b) * step_k + load) / (rates.shared / rates.sms * fit.shared)
    port = 1e6 * load / rates.port
    # a cluster of two CTAs has one operand in common: the smaller one counts
    shareable = np.minimum(tile_m * width[0], tile_n * width[1]) * step_k
    return Candidates(
        tile_m,
        tile_n,
        split,
        len(menu.rules) > 1,
        low,
        high,
        pad,
        tile_m * pad,
        step_k * split,
        tile_m * tile_n,
        step_k,
        _residency(tile_m * tile_n * _ACCUMULATOR_BYTES, load * _STAGES, rates),
        1.0 + fit.multicast,
        load - 0.5 * fit.multicast * shareable,
        np.maximum(np.maximum(math, shared), port),
        math,
        shared,
        port,
    )


def _lows(menu: KernelMenu) -> list[float]:
    highs = [rule.up_to_m for rule in menu.rules]
    return [0.0, *(float(high) for high in highs[:-1] if high is not None)]


def _residency(accumulators: Floats, staged: Floats, rates: Rates) -> Floats:
    by_registers = rates.registers_capacity * _REGISTERS_FOR_ACCUMULATORS / accumulators
    by_shared = rates.shared_capacity / staged
    fitting: Floats = np.clip(np.floor(np.minimum(by_registers, by_shared)), 1, _MOST_CTAS_A_SM)
    return fitting


class GemmTable(Struct, frozen=True):
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
    """The tiles along M over all matrices, by candidate. None: `matrices` equal matrices of `high` rows."""

    @property
    def flops(self) -> Floats:
        """Multiplications and additions, without padding."""
        return 2 * self.rows * self.n * self.k


class Timing(Struct, frozen=True):
    """Every candidate's time and its parts in microseconds, (GEMMs, candidates)."""

    total: Floats
    sm: Floats
    hbm: Floats
    joining: Floats
    ctas: Floats
    units_us: Floats
    """The time of the busiest SM's main loop if only its tensor unit, shared memory and port limited it."""
    l2_us: Floats
    """The time of the main loop if only L2 limited it."""
    hbm_read: Floats
    l2_read: Floats


def time_candidates(
    work: GemmTable, tiles: Candidates, rates: Rates, fit: GemmConstants, *, l2: str
) -> Timing:
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
    partial = 8.0 * work.rows * work.n  # bytes: each split writes its fp32 sums, and they are read again
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
    # the busiest SM has `most` CTAs; stream-K evens out a share of the last wave, but not of a lone one
    loaded = np.where(most > 1, most - fit.stream_k * (most - even), 1.0)
    rounds = np.ceil(even / tiles.residency)
    active = np.minimum(ctas, rates.sms)
    l2 = active * (1e6 / (rates.l2 * fit.l2) * tiles.l2_bytes)
    step = np.maximum(tiles.step_us, l2)
    # C has two bytes an element; the SM's port or its share of HBM limits the store
    store = (2e6 * fit.store * tiles.area) / np.minimum(rates.port, rates.hbm / active)
    main = np.maximum(loaded * step, rounds * fit.step_us) * steps
    ends = rounds * (fit.prologue_us + fit.epilogue_us) + loaded * store
    return main + ends, loaded * steps * tiles.step_us, loaded * steps * l2


def _joined(first: Floats, second: Floats, exponent: float) -> Floats:
    longer, shorter = np.maximum(first, second), np.minimum(first, second)
    # (longer^e + shorter^e)^(1/e), with the longer time taken out so that powers do not overflow
    joined: Floats = longer * (1.0 + (shorter / longer) ** exponent) ** (1.0 / exponent)
    return joined


def hbm_reads(work: GemmTable, tiles: Candidates, grid: Floats, rates: Rates, *, l2: str) -> Floats:
    """Return the bytes read from HBM, (GEMMs, candidates); `l2` as in `Conditions`."""
    compulsory = work.a_bytes + work.b_bytes
    fits = compulsory <= _USABLE_L2 * rates.l2_capacity
    reads: Floats = compulsory if fits.all() else _rasterised(work, tiles, grid, rates)
    if not fits.all() and fits.any():
        reads = np.where(fits, compulsory, reads)
    return OVERFETCH * (reads - _resident(work, rates, l2))


def _rasterised(work: GemmTable, tiles: Candidates, grid: Floats, rates: Rates) -> Floats:
    """Return the reads of GEMMs whose operands exceed L2."""
    # Tiles across and down the output, and the bytes of A and B that one tile reads.
    wide = np.ceil(work.n / tiles.tile_n)
    tall = np.maximum(1.0, grid / (wide * work.matrices))
    a_tile = work.a_bytes / work.rows * np.minimum(tiles.tile_m, work.high)
    b_tile = work.b_bytes / (work.matrices * work.n) * np.minimum(tiles.tile_n, work.n)
    # Tiles are visited in bands along the longer side. The operand of the shorter side stays (stationary),
    # the other one passes by (streamed).
    flat = tall <= wide
    short, long = np.minimum(tall, wide), np.maximum(tall, wide)
    stationary_tile, streamed_tile = np.where(flat, a_tile, b_tile), np.where(flat, b_tile, a_tile)
    stationary = np.where(flat, work.a_bytes, work.b_bytes)
    streamed = np.where(flat, work.b_bytes, work.a_bytes)
    # The tiles that run at once: a band high, and along it as many as fill the SMs.
    band = np.minimum(short, BAND)
    along = np.minimum(long, np.maximum(1.0, rates.sms * tiles.residency / band))
    strip = band * stationary_tile
    # A band's stationary strip is read again for each wave along it as far as L2 does not keep it.
    evicted = np.minimum(1.0, strip / (_STRIP_SHARE * rates.l2_capacity))
    # Blocks of a wave drift apart: what L2 cannot hold of their tiles is fetched more than once.
    drift = np.where(tiles.residency > 1, _DRIFT_TOGETHER, _DRIFT_ALONE)
    refetched = drift * np.maximum(0.0, 1.0 - rates.l2_capacity / (strip + along * streamed_tile))
    passes = 1.0 + (long / along - 1.0) * evicted
    stationary_reads: Floats = stationary * passes * (1.0 + refetched * (1.0 - 1.0 / along))
    # The streamed operand is read once a band, and again by blocks that do not load it together.
    apart = np.maximum(0.0, 1.0 - tiles.together / band)
    streamed_reads = streamed * np.ceil(short / band) * (1.0 + refetched * apart)
    reads: Floats = stationary_reads + streamed_reads
    return reads


def _resident(work: GemmTable, rates: Rates, l2: str) -> Floats | float:
    """Return the compulsory bytes that L2 still holds: all up to half its size, none at its full size."""
    if l2 == "cold":
        return 0.0
    warm = work.a_bytes if l2 == "activations" else work.a_bytes + work.b_bytes
    footprint = (warm + work.c_bytes) / rates.l2_capacity
    resident: Floats = warm * np.minimum(1.0, np.maximum(0.0, 2.0 - 2.0 * footprint))
    return resident
