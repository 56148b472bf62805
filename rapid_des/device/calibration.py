"""Fitting the GEMM constants to measured times: a deterministic pattern search, calibration split only.

The loss is the mean absolute log error, averaged within a case and then over cases, so that a long sweep does
not outvote the rest. Constants that are utilisations stay at or below 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rapid_des.device.gemm import build_model, gemm_work
from rapid_des.device.gemm_constants import NAMES, UTILISATIONS, GemmConstants, as_mapping
from rapid_des.device.model import Device
from rapid_des.device.operators import Gemm
from rapid_des.device.pattern_search import pattern_search
from rapid_des.units import PS_PER_US

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Samples:
    """Measured GEMMs of one device, library and dtype; `cases` name what each belongs to."""

    device: Device
    gemms: tuple[Gemm, ...]
    measured_us: Floats
    cases: tuple[str, ...]

    def predicted_us(self, fit: GemmConstants) -> Floats:
        """Return the model's times with the given constants, launch included."""
        first = self.gemms[0]
        model = build_model(self.device, first.dtype, first.weight_dtype or first.dtype, fit)
        kernel = model.price(gemm_work(self.gemms)).kernel_us
        launch: Floats = kernel + self.device.launch_overhead / PS_PER_US
        return launch

    def weights(self) -> Floats:
        """Return weights that sum to 1 with every case weighing the same."""
        return case_weights(self.cases)

    def thinned(self, most: int) -> Samples:
        """Return at most `most` samples, evenly spaced in their order."""
        kept = np.unique(np.linspace(0, len(self.gemms) - 1, min(most, len(self.gemms))).astype(int))
        gemms, cases = (tuple(values[i] for i in kept) for values in (self.gemms, self.cases))
        return replace(self, gemms=gemms, measured_us=self.measured_us[kept], cases=cases)


def case_weights(cases: Sequence[str]) -> Floats:
    """Return a weight for each sample: they sum to 1, and every case weighs the same."""
    _, index, counts = np.unique(np.array(cases), return_inverse=True, return_counts=True)
    share: Floats = 1.0 / counts[index] / len(counts)
    return share


def error(fit: GemmConstants, samples: Sequence[Samples]) -> float:
    """Return the mean absolute log error, every case weighing the same."""
    total = 0.0
    for group in samples:
        off = np.abs(np.log(group.predicted_us(fit) / group.measured_us))
        total += float(np.sum(group.weights() * off))
    return total / len(samples)


def fit_constants(
    start: GemmConstants, samples: Sequence[Samples], names: Sequence[str] = NAMES
) -> GemmConstants:
    """Return the constants with `names` fitted; the others stay as they are."""

    def loss(values: dict[str, float]) -> float:
        return error(GemmConstants(**values), samples)

    return GemmConstants(**pattern_search(as_mapping(start), loss, names, shares=UTILISATIONS))


def changed(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return the constants that differ from `before`, to four digits: what a device file has to say."""
    shown = {name: float(f"{value:.4g}") for name, value in after.items()}
    return {name: value for name, value in shown.items() if before.get(name) != value}
