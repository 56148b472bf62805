"""Fitting the attention and vector constants to measured calls: a deterministic pattern search within bounds.

Geometry (tiles, blocks an SM holds, splitting rules) is no subject of a fit: it is the kernels' own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from rapid_des.device.calibration import Floats, case_weights
from rapid_des.device.model import Device, PricedOperators
from rapid_des.device.operators import Operator, Vector
from rapid_des.device.pattern_search import Bounds, pattern_search

FLASH: Bounds = {
    "tensor_utilisation": (0.2, 0.97), "softmax_ops": (2, 40), "overlap": (0, 1), "cta_us": (0, 15),
    "kernel_us": (0, 20), "input_passes": (0, 12), "norm": (1, 6),
}  # fmt: skip
DECODE: Bounds = {
    "tensor_utilisation": (0.2, 0.97), "stream_gbps": (5, 400), "cta_us": (0, 15), "kernel_us": (0, 15),
    "combine_us": (0, 10), "combine_split_us": (0, 1), "regroup_us": (0, 10), "row_passes": (0, 80),
    "norm": (1, 8),
}  # fmt: skip
KERNEL: Bounds = {
    "step_us": (0.02, 6), "row_us": (0, 20), "kernel_us": (0, 60), "norm": (1, 12),
    "vector_utilisation": (0.05, 1),
}  # fmt: skip
BOUNDS: Mapping[str, Bounds] = {
    "attention": FLASH, "decode": DECODE, "decode_mha": DECODE, "mla_decode": DECODE, "mla_prefill": FLASH,
    "vector": KERNEL,
}  # fmt: skip
"""What may be fitted in each section, and how far."""


@dataclass(frozen=True)
class Calls:
    """Measured calls that one section prices on one device; `cases` name what each belongs to."""

    device: Device
    section: str
    dtype: str
    """Of the cache, or of the vector kernels: it chooses the scope of the constants."""
    operators: tuple[tuple[Operator, ...], ...]
    """What each call runs, one kernel after the other."""
    measured_us: Floats
    cases: tuple[str, ...]

    @property
    def known(self) -> Mapping[str, float]:
        """The constants of the section that price these calls today."""
        return self.device.constants(self.section, self.dtype)

    def predicted_us(self, constants: Mapping[str, float]) -> Floats:
        """Return the times with `constants` in place of the section's own, launches included."""
        price = PricedOperators(self._device_with(constants)).estimate
        times = [sum(price(operator).duration for operator in call) / 1e6 for call in self.operators]
        return np.array(times)

    def weights(self) -> Floats:
        """Return weights that sum to 1 with every case weighing the same."""
        return case_weights(self.cases)

    def thinned(self, most: int) -> Calls:
        """Return at most `most` calls, evenly spaced in their order."""
        kept = np.unique(np.linspace(0, len(self.cases) - 1, min(most, len(self.cases))).astype(int))
        operators, cases = tuple(self.operators[i] for i in kept), tuple(self.cases[i] for i in kept)
        return replace(self, operators=operators, cases=cases, measured_us=self.measured_us[kept])

    def _device_with(self, constants: Mapping[str, float]) -> Device:
        """Return the native device with the values in the strongest scope, which nothing overrides."""
        spec, scope = self.device.spec, f"{self.device.conditions.library}/{self.dtype}"
        section = dict(spec.constants.get(self.section, {}))
        section[scope] = {**section.get(scope, {}), **constants}
        every = {**spec.constants, self.section: section}
        return replace(self.device, spec=msgspec.structs.replace(spec, constants=every, operators="native"))


def bounds_of(calls: Calls) -> dict[str, tuple[float, float]]:
    """Return what may be fitted to the calls; `KIND_NAME` is a vector kind's own constant."""
    known, shared = calls.known, BOUNDS[calls.section]
    own = {(name, f"{kind}_{name}"): limits for kind in _kinds(calls) for name, limits in shared.items()}
    starts = {name: limits for name, limits in shared.items() if name in known}
    return starts | {mine: limits for (name, mine), limits in own.items() if {name, mine} & set(known)}


def constants_in_use(calls: Calls) -> tuple[str, ...]:
    """Return the names that set the calls' times: a vector kind's own constant where it has one."""
    names = BOUNDS[calls.section]
    if calls.section != "vector":
        return tuple(name for name in names if name in calls.known)
    used = (
        own if (own := f"{kind}_{name}") in calls.known else name for kind in _kinds(calls) for name in names
    )
    return tuple(dict.fromkeys(name for name in used if name in calls.known))


def fit_calls(calls: Calls, names: Sequence[str]) -> dict[str, float]:
    """Return the values of `names` that the calls fit best; the section's others stay as they are."""
    weights = calls.weights()

    def loss(values: Mapping[str, float]) -> float:
        off = np.abs(np.log(calls.predicted_us(values) / calls.measured_us))
        return float(np.sum(weights * off))

    bounds = bounds_of(calls)
    start = {name: _start(calls, name) for name in names}
    return pattern_search(start, loss, names, bounds={name: bounds[name] for name in names})


def _start(calls: Calls, name: str) -> float:
    """Return the constant as it is; a vector kind's own starts at what holds for all kinds."""
    shared = (each for each in KERNEL if name.endswith(f"_{each}"))
    return calls.known[name] if name in calls.known else calls.known[next(shared)]


def _kinds(calls: Calls) -> tuple[str, ...]:
    if calls.section != "vector":
        return ()
    operators = (operator for call in calls.operators for operator in call)
    return tuple(sorted({operator.kind for operator in operators if isinstance(operator, Vector)}))
