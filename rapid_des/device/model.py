"""A device ready to price operators: spec, conditions, constants and the memoised operator model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import cast

import msgspec

from rapid_des.config import resolve
from rapid_des.device import gemm, gemm_grouped, roofline
from rapid_des.device.attention import price_attention
from rapid_des.device.learned import LearnedOperators, load_learned
from rapid_des.device.operators import (
    Attention,
    Dtype,
    Estimate,
    Gemm,
    GroupedGemm,
    Operator,
    OperatorModel,
    Vector,
)
from rapid_des.device.spec import (
    Conditions,
    DeviceSpec,
    FamilySpec,
    KernelMenu,
    load_device_spec,
    load_family,
)
from rapid_des.device.vector import price_vector
from rapid_des.errors import InputError


@dataclass(frozen=True)
class Device:
    """One device as it is used.

    Attributes:
        spec: the device file.
        family: its architecture: kernel menus, and constants that the spec's own override.
        folder: where files that the spec names are looked for.
    """

    spec: DeviceSpec
    family: FamilySpec = field(hash=False, repr=False)
    folder: Path
    tables: dict[tuple[str, ...], object] = field(init=False, compare=False, repr=False, default_factory=dict)
    """What operator models derive from the device once, such as tile tables; filled on first use."""

    _under: dict[Conditions, Device] = field(init=False, compare=False, repr=False, default_factory=dict)
    """The device under other conditions, each once: its prices are looked up once too."""

    @property
    def conditions(self) -> Conditions:
        """How the device is used."""
        return self.spec.conditions

    def under(self, **conditions: str) -> Device:
        """Return the same device under other conditions (`clock`, `launch`, `l2`, `library`)."""
        changed = msgspec.structs.replace(self.spec.conditions, **conditions)
        if changed not in self._under:
            self._under[changed] = replace(self, spec=msgspec.structs.replace(self.spec, conditions=changed))
        return self._under[changed]

    @cached_property
    def operators(self) -> OperatorModel:
        """The price list: pure, memoised, one for this device object."""
        name = self.spec.operators.removeprefix("learned:")
        if name == self.spec.operators:
            return PricedOperators(self)
        file = load_learned(self.folder / name)
        below = replace(self, spec=msgspec.structs.replace(self.spec, operators=file.fallback))
        return LearnedOperators(file, name, PricedOperators(below))

    @property
    def clock_ratio(self) -> float:
        """The clock in use over the clock that the peaks are stated at."""
        clock = self.spec.clock
        return (clock.boost if self.conditions.clock == "boost" else clock.sustained) / clock.peak

    @property
    def launch_overhead(self) -> int:
        """Picoseconds that a launch adds to a kernel, under the conditions in use."""
        launch = self.spec.launch
        return int(launch.graph if self.conditions.launch == "graph" else launch.eager)

    def tensor_rate(self, dtype: Dtype) -> float:
        """Return the peak FLOP/s of the matrix unit (else the vector unit) at the clock in use."""
        peaks = self.spec.tensor_peak
        if dtype in peaks:
            return peaks[dtype] * self.clock_ratio
        return self.vector_rate(dtype)

    def vector_rate(self, dtype: Dtype) -> float:
        """Return the peak FLOP/s of the vector unit at the clock in use (fp32 for narrow types)."""
        peaks = self.spec.vector_peak
        if dtype not in peaks and dtype in {"fp64", "tf32", "fp8", "fp4", "int4"}:
            known = ", ".join(dict.fromkeys([*self.spec.tensor_peak, *peaks]))
            raise InputError(f"{self.spec.name} has no {dtype} arithmetic; it has {known}")
        return peaks.get(dtype, peaks["fp32"]) * self.clock_ratio

    def constants(self, section: str, dtype: str = "") -> Mapping[str, float]:
        """Return a section's constants for this library and dtype: the most specific scope wins.

        Scopes from weak to strong: `default`, the dtype, the library, `library/dtype`; within a scope the
        device's own value wins over its family's.
        """
        merged: dict[str, float] = {}
        for scope in self._scopes(dtype):
            for source in (self.family.constants, self.spec.constants):
                merged |= source.get(section, {}).get(scope, {})
        return merged

    def kernels(self, dtype: str) -> KernelMenu:
        """Return what the library in use has for GEMMs of this dtype: the most specific menu."""
        menus = self.family.kernels
        return next(menus[scope] for scope in reversed(self._scopes(dtype)) if scope in menus)

    def _scopes(self, dtype: str) -> tuple[str, str, str, str]:
        library = self.conditions.library
        return "default", dtype, library, f"{library}/{dtype}"


def load_device(reference: str, *, settings: Iterable[tuple[str, str]] = (), folder: Path = Path()) -> Device:
    """Return the device that a preset's name or a file names, with `settings` (key path, value) applied.

    >>> load_device("h100_sxm").spec.sms
    132
    """
    spec = load_device_spec(reference, settings=settings, folder=folder)
    home = resolve(reference, "device", folder=folder).parent
    return Device(spec, load_family(spec.family, folder=home), home)


Pricer = Callable[[Operator, Device], Estimate]

PRICERS: Mapping[type, Pricer] = {
    Gemm: cast(Pricer, gemm.price_gemm),
    GroupedGemm: cast(Pricer, gemm_grouped.price_grouped_gemm),
    Attention: cast(Pricer, price_attention),
    Vector: cast(Pricer, price_vector),
}


class PricedOperators:
    """The native operator model of one device; `estimate` looks each new operator up once."""

    def __init__(self, device: Device) -> None:
        pricers = roofline.PRICERS if device.spec.operators == "roofline" else PRICERS

        def price(operator: Operator) -> Estimate:
            return pricers[type(operator)](operator, device)

        self.estimate: Callable[[Operator], Estimate] = lru_cache(maxsize=None)(price)
