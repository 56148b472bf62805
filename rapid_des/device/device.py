"""A device as a value: what its file says, under stated conditions, and the rates that follow from that.

Reading follows a chain of `base:` files, sets settings over it, and finds the family. A device prices
nothing (`rapid_des.device.pricing` does): it pickles, compares and hashes by content, and `as_yaml` writes it
back to a file of its format.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, structs

from rapid_des.config import (
    Document,
    Settings,
    apply_overrides,
    as_pairs,
    decode,
    load_document,
    open_document,
    resolve,
    settings_named,
    to_tree,
    to_yaml,
)
from rapid_des.config.documents import with_base
from rapid_des.config.specs import beside, preset_folder
from rapid_des.device.operators import Dtype
from rapid_des.device.spec import (
    ATTENTION,
    EXPERTS,
    LIBRARIES,
    Clock,
    Conditions,
    DeviceSpec,
    FamilySpec,
    KernelMenu,
    libraries_of,
    narrowed,
    operator_file,
    scaled,
    with_derived,
)
from rapid_des.errors import ConfigError, InputError, UnsupportedByEngine
from rapid_des.values import replace

_FAMILY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\Z")


class Device(Struct, frozen=True, dict=True):
    """One device as it is used.

    Attributes:
        spec: the device file; a file of learned operators stands in it with its absolute path.
        family: its architecture: kernel menus, and constants that the spec's override.

    >>> load_device("h100_sxm").under(clock="sustained").clock_ratio < 1
    True
    """

    spec: DeviceSpec
    family: FamilySpec

    def __hash__(self) -> int:
        chip = self.spec.name, self.spec.sms, self.spec.clock.sustained, self.spec.l2, self.spec.hbm
        return hash((*chip, self.conditions, self.family.name))

    def __repr__(self) -> str:
        return f"Device(spec={self.spec!r})"

    def as_yaml(self) -> str:
        """Return a device file, its family's constants in it, that loads to an equal device."""
        return to_yaml(self.as_spec())

    def as_spec(self) -> DeviceSpec:
        """Return the spec of that file."""
        return structs.replace(self.spec, family=self.family)

    @property
    def conditions(self) -> Conditions:
        """How the device is used."""
        return self.spec.conditions

    def under(self, **conditions: Any) -> Device:
        """Return the same device under other conditions (`clock`, `launch`, `l2`, `library`, …)."""
        changed = structs.replace(self.spec.conditions, **conditions)
        return replace(self, spec=structs.replace(self.spec, conditions=changed))

    def priced_by(self, operators: str) -> Device:
        """Return the same device with other operator models (`native`, `roofline`, `NAME:FILE`)."""
        return replace(self, spec=structs.replace(self.spec, operators=operators))

    def slowed(self, *, compute: Fraction, hbm: Fraction) -> Device:
        """Return the device at shares of its clock and of its memory bandwidth, both above 0 and at most 1.

        The clock carries everything on the chip: arithmetic, registers, shared memory, L2. Launches keep
        their time. `UnsupportedByEngine` for learned operators, which know only what they were fitted on.
        """
        spec = self.spec
        if any(operator_file(spec.operators)):
            raise UnsupportedByEngine(f"{spec.name}: operators {spec.operators} cannot price a slowed device")
        chip = {name: narrowed(getattr(spec, name), compute) for name in ("registers", "shared", "l2")}
        return replace(
            self,
            spec=structs.replace(
                spec,
                clock=_slower_clock(spec.clock, compute),
                tensor_peak={dtype: scaled(peak, compute) for dtype, peak in spec.tensor_peak.items()},
                vector_peak={dtype: scaled(peak, compute) for dtype, peak in spec.vector_peak.items()},
                hbm=narrowed(spec.hbm, hbm),
                **chip,
            ),
        )

    def for_arithmetic(self, dtype: Dtype) -> Device:
        """Return the device at the clock that it holds while matrix work is in `dtype`."""
        clock = self.spec.clock
        if self.conditions.clock == "boost" or dtype not in clock.sustained_by_dtype:
            return self
        chosen = structs.replace(clock, sustained=clock.sustained_by_dtype[dtype], sustained_by_dtype={})
        return replace(self, spec=structs.replace(self.spec, clock=chosen))

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

        Scopes from weak to strong: `default`, the dtype, the library, `library/dtype`, and the last two again
        for its version (`trtllm-0.9` of `trtllm`); within a scope the device's value wins over its family's.
        """
        known = self._merged.get((section, dtype))
        if known is None:
            known = self._merged[section, dtype] = {}
            for scope in self._scopes(dtype, section):
                for source in (self.family.constants, self.spec.constants):
                    known |= source.get(section, {}).get(scope, {})
        return known

    @cached_property
    def _merged(self) -> dict[tuple[str, str], dict[str, float]]:
        return {}

    def constant(self, section: str, name: str, dtype: str = "") -> float:
        """Return one constant; errors as in `chosen_constants`."""
        return self.chosen_constants(section, (name,), dtype)[0]

    def chosen_constants(self, section: str, names: Collection[str], dtype: str) -> tuple[float, ...]:
        """Return constants in the order of `names`.

        One that is missing is a `ConfigError` that names it; ranges were checked when the files were read.
        """
        known = self.constants(section, dtype)
        for name in names:
            if name not in known:
                problem = f"neither {self.spec.name} nor its family {self.family.name} has it"
                raise ConfigError(problem, key=f"constants.{section}.{name}")
        return tuple(known[name] for name in names)

    def kernels(self, dtype: str, *, batched: bool = False, section: str = "") -> KernelMenu:
        """Return the most specific kernel menu of the library in use for GEMMs of this dtype.

        Batched GEMMs take the menu `DTYPE/batched` where there is one; a `section` has its own library's.
        """
        menus = self.family.kernels
        if batched and f"{dtype}/batched" in menus:
            return menus[f"{dtype}/batched"]
        return next(menus[scope] for scope in reversed(self._scopes(dtype, section)) if scope in menus)

    def _scopes(self, dtype: str, section: str) -> tuple[str, ...]:
        used = self.conditions
        library = used.attention if section in ATTENTION else used.experts if section in EXPERTS else None
        named = dict.fromkeys(((library or used.library).partition("-")[0], library or used.library))
        return "default", dtype, *(scope for name in named for scope in (name, f"{name}/{dtype}"))


def load_device(
    reference: str | Path | Mapping[str, Any] | Device,
    *,
    settings: Settings = (),
    folder: Path = Path(),
    new_library: bool = False,
) -> Device:
    """Return the device that a preset's name, a file, a mapping or a device stands for.

    `settings` are set over it: a mapping {"hbm.capacity": "96 GB"} or (key path, YAML text) pairs; `sms`
    takes the rates of all SMs with it. With `new_library` its conditions may name a kernel library that
    nothing is known of yet, to calibrate it. A `ConfigError` says what is wrong.

    >>> load_device("h100_sxm").spec.sms, load_device("h100_sxm", settings={"sms": 66}).spec.sms
    (132, 66)
    >>> load_device({"base": "h100_sxm", "name": "what if", "l2": {"capacity": "64 MiB"}}).spec.l2.capacity
    Size('64 MiB')
    """
    if isinstance(reference, Device):
        reference = to_tree(reference.as_spec(), "device")
    home = folder
    if not isinstance(reference, Mapping):
        home = resolve(str(reference), "device", folder=folder).parent
    spec = load_device_spec(reference, settings=settings, folder=folder)
    return device_of(spec, home, new_library=new_library)


def device_of(spec: DeviceSpec, home: Path, *, new_library: bool = False) -> Device:
    """Return the device of a spec whose family and learned operators are looked for from `home`."""
    family = _load_family(spec.family, folder=home) if isinstance(spec.family, str) else spec.family
    if not new_library:
        check_library(spec, family)
    operators = spec.operators
    source, file = operator_file(operators)
    if file:
        operators = f"{source}:{beside(home, file, key='operators').absolute()}"
    return Device(structs.replace(spec, family=family.name, operators=operators), family)


def check_library(spec: DeviceSpec, family: FamilySpec) -> None:
    """Raise `ConfigError` for libraries of kernels that are neither known nor have constants here."""
    scopes = {scope for part in (spec, family) for scopes in part.constants.values() for scope in scopes}
    known = LIBRARIES | libraries_of(scopes | set(family.kernels))
    for key in ("library", "attention", "experts"):
        library = getattr(spec.conditions, key)
        if library is not None and library not in known:
            raise ConfigError(
                f"{library[:60]!r} is no library of kernels that is known; allowed: "
                f"{', '.join(sorted(known))}, and those that `constants` has a scope for",
                file=spec.name,
                key=f"conditions.{key}",
            )


def _load_family(name: str, *, folder: Path) -> FamilySpec:
    """Return an architecture's constants: `families/NAME.yaml` beside the device file, else the preset."""
    if not _FAMILY.match(name):
        allowed = "a name of letters, digits, _, - and . (the file families/NAME.yaml)"
        raise ConfigError(f"{name[:60]!r} names no family; allowed: {allowed}", key="family")
    candidates = [folder / "families" / f"{name}.yaml", preset_folder("device") / "families" / f"{name}.yaml"]
    for path in candidates:
        if path.is_file():
            return decode(load_document(path), FamilySpec)
    known = ", ".join(sorted(path.stem for path in candidates[-1].parent.glob("*.yaml")))
    raise ConfigError(f"{name!r} is no family file; families: {known}", key="family")


def load_device_spec(
    reference: str | Path | Mapping[str, Any], *, settings: Settings = (), folder: Path = Path()
) -> DeviceSpec:
    """Read a device file, preset or mapping, its chain of `base:` files merged in, then `settings` applied.

    A what-if file names its `base:` and holds only what differs; a value such as `0.73x` multiplies
    what the base has.
    """
    document = open_document(reference, "device", folder=folder)
    return with_settings(with_base(document, _find_base, _changed), settings)


def with_settings(document: Document, settings: Settings) -> DeviceSpec:
    """Return the spec of a device file with settings (key path, YAML text) over it.

    What is stated for the whole chip at its peak clock follows `sms` and `clock.peak`, see `with_derived`.
    """
    chosen = as_pairs(settings)
    stated = {key for key, _ in chosen}
    changed = apply_overrides(_without_clock_evidence(document, stated), chosen, root="device")
    with settings_named(changed):
        return decode(with_derived(document, changed, stated, file="--set"), DeviceSpec)


def _slower_clock(clock: Clock, share: Fraction) -> Clock:
    by_dtype = {dtype: scaled(rate, share) for dtype, rate in clock.sustained_by_dtype.items()}
    plain = {name: scaled(getattr(clock, name), share) for name in ("peak", "boost", "sustained")}
    return structs.replace(clock, **plain, sustained_by_dtype=by_dtype)


def _find_base(base: str, document: Document) -> Path:
    return resolve(base, "device", folder=document.folder, named_in=str(document.path), key="base")


def _changed(below: Document, changes: list[tuple[str, str]]) -> Document:
    stated = {key for key, _ in changes}
    changed = apply_overrides(_without_clock_evidence(below, stated), changes)
    return with_derived(below, changed, stated, file=str(below.path))


def _without_clock_evidence(document: Document, stated: AbstractSet[str]) -> Document:
    """Return a file without the evidence for its sustained clock if that clock is `stated` by hand."""
    clock = document.tree.get("clock")
    if "clock.sustained" not in stated or not isinstance(clock, dict):
        return document
    # a clock by dtype that is stated too may be stated as a multiple
    kept = "sustained_by_dtype" if any("clock.sustained_by_dtype." in key for key in stated) else ""
    left = {key: value for key, value in clock.items() if key == kept or not key.startswith("sustained_")}
    return Document(document.path, {**document.tree, "clock": left})


class Rates(Struct, frozen=True):
    """Rates of the whole device (FLOP/s, bytes/s; `port`: of one SM) and capacities in bytes."""

    sms: int
    tensor: float
    vector: float
    shared: float
    port: float
    l2: float
    hbm: float
    l2_capacity: float
    shared_capacity: float
    registers_capacity: float


def rates_of(device: Device, dtype: Dtype) -> Rates:
    """Return the rates for arithmetic in `dtype`; all but HBM follow the clock."""
    device = device.for_arithmetic(dtype)
    spec, ratio = device.spec, device.clock_ratio
    return Rates(
        sms=spec.sms,
        tensor=device.tensor_rate(dtype),
        vector=device.vector_rate("fp32"),
        shared=spec.shared.bandwidth * ratio,
        port=spec.l2_port_bytes_per_clock * spec.clock.peak * ratio,
        l2=spec.l2.bandwidth * ratio,
        hbm=float(spec.hbm.bandwidth),
        l2_capacity=float(spec.l2.capacity),
        shared_capacity=float(spec.shared.capacity),
        registers_capacity=float(spec.registers.capacity),
    )


class Transfer(Struct, frozen=True):
    """Seconds of a transfer to the SMs, the level that sets them, and the bytes that came from HBM."""

    seconds: float
    bound: Literal["hbm", "l2"]
    hbm_bytes: float


def transfer(
    device: Device,
    moved: float,
    working_set: float,
    *,
    activations: bool = True,
    distinct: float | None = None,
) -> Transfer:
    """Return how long `moved` bytes take at a kernel's steady state, given the bytes it touches in all.

    `activations` as in `miss_share`. What passes more than once at about the same time is counted by
    `distinct`, the bytes that HBM brings at most; None: nothing does.
    """
    l2_rate = device.spec.l2.bandwidth * device.clock_ratio
    from_hbm = (moved if distinct is None else distinct) * miss_share(
        device, working_set, activations=activations
    )
    hbm = from_hbm / (device.spec.hbm.bandwidth * device.constant("memory", "hbm_utilisation"))
    l2 = moved / (l2_rate * device.constant("memory", "l2_utilisation"))
    return Transfer(max(hbm, l2), "hbm" if hbm >= l2 else "l2", from_hbm)


def miss_share(device: Device, working_set: float, *, activations: bool = True) -> float:
    """Return the share of accesses that HBM serves.

    Warm operands stay in the part of L2 that one working set can use (`l2_share`: half of a two-partition L2
    holds copies of the other half's lines); beyond it the hits fade out until twice that size. `activations`
    says whether the kernel before wrote the operands; a cache of keys is older.
    """
    if device.conditions.l2 == "cold" or (device.conditions.l2 == "activations" and not activations):
        return 1.0
    resident = device.spec.l2.capacity * device.constant("memory", "l2_share")
    return min(1.0, max(0.0, working_set / resident - 1.0))
