"""The fitted constants of the GEMM model: what each one is, and what it may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from rapid_des.errors import ConfigError


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


UTILISATIONS = (
    "tensor", "vector", "shared", "l2", "hbm", "store", "multicast", "stream_k", "throttled",
    "power_load",
)  # fmt: skip
NAMES = tuple(field.name for field in fields(GemmConstants))


def gemm_constants(values: Mapping[str, float], where: str) -> GemmConstants:
    """Return checked constants; missing, unknown, negative or above-1 values are errors naming `where`."""
    missing, unknown = sorted(set(NAMES) - set(values)), sorted(set(values) - set(NAMES))
    if missing or unknown:
        problem = f"missing {missing[0]!r}" if missing else f"unknown {unknown[0]!r}"
        raise ConfigError(f"{problem}; needed: {', '.join(NAMES)}", file=where, key="constants.gemm")
    for name, value in values.items():
        if value < 0 or (name in UTILISATIONS and value > 1):
            allowed = "0 to 1" if name in UTILISATIONS else "0 or more"
            raise ConfigError(f"is {value}; allowed: {allowed}", file=where, key=f"constants.gemm.{name}")
    return GemmConstants(**values)


def as_mapping(constants: GemmConstants) -> dict[str, float]:
    """Return the constants by name."""
    return asdict(constants)
