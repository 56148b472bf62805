"""The candidate kernels of a GEMM, CTA tiles and K splits of a library's menu, and their fitted constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from rapid_des.arrays import Floats
from rapid_des.device.constants import RANGES, check_constant
from rapid_des.device.device import Rates
from rapid_des.device.spec import KernelMenu
from rapid_des.errors import ConfigError

_ACCUMULATOR_BYTES = 4
_STAGES = 3
_REGISTERS_FOR_ACCUMULATORS = 0.7
_MOST_CTAS_A_SM = 4


@dataclass(frozen=True)
class GemmConstants:
    """Constants of one family, dtype or kernel library; utilisations are in (0, 1].

    Times are microseconds. They are fitted by `rapid-des device calibrate`.
    """

    start_us: float
    """A kernel's fixed cost beyond the launch: grid start, descriptor fetch, drain."""
    gemv_start_us: float
    """The same for a matrix-vector kernel."""
    prologue_us: float
    """Filling the load pipeline of a CTA: first L2 and HBM latency."""
    epilogue_us: float
    """Ending a CTA, without the store itself."""
    step_us: float
    """Least time of one pipeline step of a lone CTA: load latency over the stages in flight."""
    split_us: float
    """Joining the parts of a split K: semaphores or a second kernel."""
    throttle_us: float
    """Kernel duration by which half of the way from burst to power-limited clock is gone."""
    quantise_row_us: float
    """What one SM spends on a row of activations, where the library quantises them first …"""
    quantise_element_ns: float
    """… and on each of its elements."""
    overlap: float
    """Exponent that joins SM and HBM time: 1 adds them, infinity overlaps them fully."""
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
    """Share of a tile's store that the next tile's main loop does not hide."""
    multicast: float
    """Share of a cluster's doubly needed operand that one L2 read serves."""
    stream_k: float
    """Share of the last wave's imbalance that persistent and stream-K kernels even out."""
    throttled: float
    """Power-limited clock over burst clock at full tensor load."""
    power_load: float
    """Share of full tensor load up to which the power limit leaves the clock alone."""


UTILISATIONS = tuple(name for name, span in RANGES["gemm"].items() if span.high == 1)
NAMES = tuple(field.name for field in fields(GemmConstants))


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


@dataclass(frozen=True)
class Candidates:
    """One entry a (tile, split): geometry, and what one pipeline step of its CTA costs in microseconds."""

    tile_m: Floats
    tile_n: Floats
    split: Floats
    by_rows: bool
    """Whether the menu depends on the number of rows."""
    low_m: Floats
    """The GEMM must have more rows than this …"""
    high_m: Floats
    """… and at most these."""
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
    """CTAs that load an operand they share at the same time: 1, with multicast in clusters of two up to 2."""
    l2_bytes: Floats
    """The same after multicast inside a cluster."""
    step_us: Floats
    """The longest of tensor, shared memory and SM port time of one step."""
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
    math = 2e6 * tile_m * tile_n * step_k / (rates.tensor / rates.sms * fit.tensor)
    read_a = tile_m * width[0] * np.ceil(tile_n / menu.warp[1])
    read_b = tile_n * width[1] * np.ceil(tile_m / menu.warp[0])
    shared = 1e6 * ((read_a + read_b) * step_k + load) / (rates.shared / rates.sms * fit.shared)
    port = 1e6 * load / rates.port
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
