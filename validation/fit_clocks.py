"""Fit the sustained clocks of device files, and scale them to devices that nobody measured.

    python -m validation.fit_clocks [DATA_FOLDER]

A sustained clock is the one at which the model takes as long, in the geometric mean, as the measured GEMM
loops: those of `sustained_microbench_azure.csv` whose case is in the calibration split, and all of
`sustained_published.csv`, which no topic scores. Only GEMMs of at least 4,096 in every direction count: they
keep the tensor cores busy and so hold the board at its power limit. No end-to-end row is read.

Where a device has no such loop, its clock follows from one of its family: matrix work takes SMs · V² · f of
power, and V goes with f below the boost clock. So f goes with the cube root of power an SM; on pairs of
boards that were measured alike (`CHECKS`) that is 4 % off at most. Dtypes keep their distance.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec import structs

from rapid_des.arrays import Floats
from rapid_des.device import Device, load_device
from rapid_des.device.gemm import gemm_times_us
from rapid_des.device.operators import Gemm
from rapid_des.units import Frequency
from rapid_des.values import replace
from validation import DataFolder, is_calibration
from validation.measurements import CHECKOUT_DATA, device_for, dtype_of
from validation.operators.gemm import measured_gemms

LEAST = 4096
"""Rows, columns and depth from which a GEMM counts."""

SCALED = {
    "a100_sxm_80gb": ("a100_pcie_80gb", "a100_pcie_40gb"),
    "h100_sxm": ("h100_pcie", "h100_nvl"),
    "b200": ("gb200",),
    "gb300": ("b300",),
}
"""Devices without loops of their own, below the measured one of their chip, or the nearest to it."""

CHECKS = (
    ("A100 PCIe over SXM, bf16", 252.9 / 271.2, 300 / 400),
    ("GH200 over H100 SXM, bf16", 828.6 / 794.5, 900 / 700),
    ("GH200 over H100 SXM, fp8", 1535.0 / 1402.6, 900 / 700),
)
"""Best matrix products of two boards of one chip, 100 runs of the best shape (Bekman, ml-engineering,
compute/accelerator), and the ratio of their power limits."""


@dataclass(frozen=True)
class Loops:
    """Long loops of GEMMs on one device: operators and microseconds each."""

    name: str
    device: Device
    gemms: Sequence[Gemm]
    times_us: Floats

    def log_errors(self, clock: Frequency) -> Floats:
        """Return the logarithms of predicted over measured times at a sustained clock."""
        errors: Floats = np.log(gemm_times_us(self.gemms, _at(self.device, clock)) / self.times_us)
        return errors

    def clock(self) -> Frequency:
        """Return the sustained clock at which the mean of `log_errors` is 0, to a megahertz."""
        low, high = 300, int(self.device.spec.clock.boost) // 10**6
        while low + 1 < high:
            middle = (low + high) // 2
            slow = self.log_errors(Frequency(middle * 10**6)).mean() > 0
            low, high = (middle, high) if slow else (low, middle)
        return Frequency(high * 10**6)


def _at(device: Device, clock: Frequency) -> Device:
    held = structs.replace(device.spec.clock, sustained=clock, sustained_by_dtype={})
    return replace(device, spec=structs.replace(device.spec, clock=held))


def loops(data: DataFolder) -> Iterator[Loops]:
    """Yield the measured loops by device, dtype and source; those of the test split are named so."""
    rows: dict[tuple[str, str, str], list[tuple[Gemm, float]]] = {}
    for topic, row in measured_gemms(data):
        if topic == "gemm-sustained":
            split = "calibration" if is_calibration(row.case_id) else "TEST, not used"
            rows.setdefault((row.gpu, row.gemm.dtype, split), []).append((row.gemm, row.time_us))
    for line in DataFolder(CHECKOUT_DATA, split=True).read("operators/sustained_published.csv"):
        m, n, k, dtype = line.count("M"), line.count("N"), line.count("K"), dtype_of(line["dtype"])
        time = 2e-6 * m * n * k / line.number("tflops")
        key = line["gpu"], dtype, line["source"]
        rows.setdefault(key, []).append((Gemm(m, n, k, dtype=dtype), time))
    for (gpu, arithmetic, source), measured in rows.items():
        large = [(gemm, time) for gemm, time in measured if min(gemm.m, gemm.n, gemm.k) >= LEAST]
        device = device_for(gpu, clock="sustained", launch="graph", l2="warm")
        times = np.array([time for _, time in large])
        yield Loops(f"{gpu} {arithmetic}, {source}", device, [gemm for gemm, _ in large], times)


def scaled_clock(known: Device, other: Device) -> Frequency:
    """Return the sustained clock of a device of the same family as one whose clock is known.

    >>> scaled_clock(load_device("gb200"), load_device("gb200")) == load_device("gb200").spec.clock.sustained
    True
    """
    ratio = _power_an_sm(other) / _power_an_sm(known)
    return Frequency(round(int(known.spec.clock.sustained) * ratio ** (1 / 3)))


def _power_an_sm(device: Device) -> float:
    spec = device.spec
    if spec.power is None:
        raise SystemExit(f"{spec.name}: power must be stated")
    return int(spec.power) / spec.sms


def _lines(data: DataFolder) -> Iterator[str]:
    for found in loops(data):
        clock = found.clock()
        stated = found.device.for_arithmetic(found.gemms[0].dtype).spec.clock.sustained
        left = 100 * np.abs(found.log_errors(clock))
        yield f"{found.name}: {clock} (file: {stated}), {left.mean():.1f} % left, {left.max():.1f} % at most"
    for name, others in SCALED.items():
        for other in others:
            known, device = load_device(name), load_device(other)
            yield f"{other} by {name}: {scaled_clock(known, device)} (file: {device.spec.clock.sustained})"
    for what, measured, power in CHECKS:
        yield f"{what}: {measured:.3f} measured, {power ** (1 / 3):.3f} by the rule"


def main(folder: str = str(CHECKOUT_DATA)) -> None:
    """Print fitted and scaled clocks, and the checks of the rule."""
    for line in _lines(DataFolder(Path(folder), split=True)):
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
