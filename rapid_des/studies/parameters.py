"""The parameters of a job on a machine that can be changed a little, and the settings that change them.

    rates, times, clocks    of machine, device and host; of communication libraries' files, copies of these
    sizes                   of stores and headers, whole bytes
    ratios                  constants of kernels and libraries without a unit

Keys that describe one property change together: the peaks of all formats; the number of SMs with their total
peaks and bandwidths. Tiles, counts and switches are choices, which cannot be changed a little.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from rapid_des.config import to_tree, to_yaml
from rapid_des.device.spec import RANGES, split_kernel
from rapid_des.frontend import Job
from rapid_des.machine import Machine
from rapid_des.network.collectives.libraries.nccl_fabric import load_fabric
from rapid_des.network.collectives.libraries.serving_kernels import load_kernels
from rapid_des.units import Size

Settings = tuple[tuple[str, str], ...]
SCALE = 1.25
"""The factor by which `all_faster` speeds everything up."""
_PATTERNS = {
    "rate": re.compile(r"[\d.e+]+ ?\w+/s$"),
    "time": re.compile(r"[\d.e+-]+ ?[num]?s$"),
    "clock": re.compile(r"[\d.e+]+ ?\w*Hz$"),
    "size": re.compile(r"[\d.e+]+ ?[KMG]?i?B$"),
}
_NOTHING = re.compile(r"0(\.0*)? ?\D")
_TOGETHER = ("device.tensor_peak", "device.vector_peak", "device.clock.sustained")
_COUNTED = ("device.sms", "device.l2_port_bytes_per_clock")
_LIBRARIES: Mapping[str, Callable[[str], Any]] = {"nccl": load_fabric, "kernels": load_kernels}
_MEASURED = "machine.collectives.measured"
_CONSTANTS = ("device.family.constants", "device.constants")
_NO_STEP = ("device", "storage")
"""The keys of a machine that have parameters of their own, or that no step depends on."""
_LEFT_OUT = ("name", "kind", "energy", "power", "idle_power", "conditions")


class Parameter(Struct, frozen=True):
    """Constants that change together."""

    name: str
    kind: str
    """`rate`, `time`, `clock`, `size`, `ratio` or `number`."""
    keys: tuple[str, ...]
    whole: int = 0
    """The stated value of a whole number, which changes in steps of one; 0: the parameter is continuous."""
    file: str = ""
    """The key that names the library's file in which `keys` are; empty: not a library's constant."""

    @property
    def constant(self) -> bool:
        """Whether it is one of the constants of kernels or of a library."""
        return bool(self.file) or self.name.startswith(_CONSTANTS)

    def at(self, factor: float) -> float:
        """Return the factor by which it really changes: whole numbers change by one or more."""
        if not self.whole:
            return factor
        moved = round(self.whole * factor)
        moved = max(moved, self.whole + 1) if factor > 1 else min(moved, self.whole - 1)
        return max(moved, 1) / self.whole


def parameters_of(job: Job, machine: Machine) -> list[Parameter]:
    """Return the parameters of a job on a machine; keys that describe one property form one parameter."""
    grouped: dict[str, Parameter] = {}
    for parameter in _stated(job, machine):
        name = next((name for name in _TOGETHER if parameter.name.startswith(name)), parameter.name)
        keys = grouped[name].keys if name in grouped else ()
        grouped[name] = Parameter(name, parameter.kind, (*keys, *parameter.keys), parameter.whole)
    return [*grouped.values(), *_of_libraries(machine)]


def _stated(job: Job, machine: Machine) -> Iterator[Parameter]:
    """Yield a parameter for each key of the machine, device and host."""
    of_machine, of_device = to_tree(machine.as_spec(), "machine"), to_tree(machine.device.as_spec(), "device")
    trees: dict[str, Any] = {
        "machine": {name: value for name, value in of_machine.items() if name not in _NO_STEP},
        "device": {name: value for name, value in of_device.items() if name not in _LEFT_OUT},
    }
    if job.spec.host is not None:
        trees["job"] = {"host": to_tree(job.spec.host, "job")}
    for root, tree in trees.items():
        for key, value in _leaves(tree, root):
            kind = _kind(key, value)
            if kind and key != "device.clock.sustained_within":
                whole = int(Size.parse(value)) if kind == "size" else value if key in _COUNTED else 0
                yield Parameter(key, kind, (key,), whole)


def _of_libraries(machine: Machine) -> Iterator[Parameter]:
    """Yield a parameter for each constant in the files of communication libraries."""
    for name in _LIBRARIES:
        for key, value in _leaves(_tree(machine, name), ""):
            kind = _ratio(value) or _unit(value)
            if kind and ".limits." not in key:  # between kernels: choices
                yield Parameter(f"{_MEASURED}.{name}{key}", kind, (key,), file=f"{_MEASURED}.{name}")


def _tree(machine: Machine, library: str) -> Any:
    """Return the content of a library's file of constants; an empty mapping if the machine names no file."""
    file = getattr(machine.spec.collectives.measured, library)
    return to_tree(_LIBRARIES[library](file), "fabric") if isinstance(file, str) else {}


def _kind(key: str, value: Any) -> str:
    """Return the kind of a value (see `Parameter.kind`); empty if it cannot be changed a little."""
    if key in (*_COUNTED, "machine.host_speed"):
        return "number"
    if isinstance(value, str):
        return _unit(value)
    if not key.startswith(_CONSTANTS) or not value:
        return ""
    section = key.partition("constants.")[2].partition(".")[0]
    name = key.rpartition(".")[2]
    span = RANGES[section].get(name) or RANGES[section][split_kernel(name)[1]]
    if span.whole:
        return ""
    return "time" if name.endswith(("_us", "_ns")) else "rate" if name.endswith("_gbps") else "ratio"


def _unit(value: Any) -> str:
    texts = _PATTERNS.items() if isinstance(value, str) and not _NOTHING.match(value) else ()
    return next((kind for kind, pattern in texts if pattern.match(value)), "")


def _ratio(value: Any) -> str:
    return "ratio" if isinstance(value, float) and value else ""


def _leaves(tree: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from _leaves(value, f"{key}.{name}")
    elif isinstance(tree, list | tuple):
        for number, value in enumerate(tree):
            yield from _leaves(value, f"{key}.{number}")
    else:
        yield key, tree


class ParameterScaler:
    """Makes the settings that change parameters; those of libraries name scaled copies in `folder`."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self._machine, self._folder, self._written = machine, folder, 0

    def settings(self, parameter: Parameter, factor: float) -> Settings:
        """Return the settings that multiply a parameter by `parameter.at(factor)`."""
        if parameter.file:
            return self._copy(parameter.file, dict.fromkeys(parameter.keys, factor))
        if parameter.whole:
            unit = " B" if parameter.kind == "size" else ""
            return tuple(
                (key, f"{round(parameter.whole * parameter.at(factor))}{unit}") for key in parameter.keys
            )
        return tuple((key, f"{factor}x") for key in parameter.keys)

    def all_faster(self, every: Sequence[Parameter]) -> Settings:
        """Return the settings with rates and clocks `SCALE` times as high, and times as short."""
        factors = {"rate": SCALE, "clock": SCALE, "time": 1 / SCALE}
        return self.together((one, factors[one.kind]) for one in every if one.kind in factors)

    def together(self, moves: Iterable[tuple[Parameter, float]]) -> Settings:
        """Return the settings that multiply each parameter by its factor, all at once."""
        changed: dict[str, dict[str, float]] = {}
        settings: Settings = ()
        for parameter, factor in moves:
            if parameter.file:
                changed.setdefault(parameter.file, {}).update(dict.fromkeys(parameter.keys, factor))
            else:
                settings += self.settings(parameter, factor)
        return (*settings, *(one for file, keys in changed.items() for one in self._copy(file, keys)))

    def _copy(self, file: str, factors: Mapping[str, float]) -> Settings:
        """Write a copy of a library's file with some keys multiplied; return the setting that names it."""
        self._written += 1
        path = self._folder / f"{self._written}.yaml"
        tree = _scaled(_tree(self._machine, file.rpartition(".")[2]), "", factors)
        path.write_text(to_yaml(tree), encoding="utf-8")
        return ((file, str(path)),)


def grouped_by_library(every: Sequence[Parameter]) -> list[Parameter]:
    """Return parameters with all rates of a library's file as one parameter, and all its times as another.

    >>> some = [Parameter("f.a", "rate", (".a",), file="f"), Parameter("f.b", "rate", (".b",), file="f")]
    >>> [(parameter.name, parameter.keys) for parameter in grouped_by_library(some)]
    [('f: its rates', ('.a', '.b'))]
    """
    files: dict[tuple[str, str], tuple[str, ...]] = {}
    for parameter in every:
        if parameter.file and parameter.kind in ("rate", "time"):
            files[parameter.file, parameter.kind] = (
                *files.get((parameter.file, parameter.kind), ()),
                *parameter.keys,
            )
    own = [parameter for parameter in every if not parameter.constant]
    return [
        *own,
        *(Parameter(f"{file}: its {kind}s", kind, keys, file=file) for (file, kind), keys in files.items()),
    ]


def _scaled(tree: Any, key: str, factors: Mapping[str, float]) -> Any:
    if isinstance(tree, dict):
        return {name: _scaled(value, f"{key}.{name}", factors) for name, value in tree.items()}
    if isinstance(tree, list):
        return [_scaled(value, f"{key}.{number}", factors) for number, value in enumerate(tree)]
    if key not in factors:
        return tree
    if isinstance(tree, float):
        return tree * factors[key]
    number, unit = re.fullmatch(r"([\d.e+-]+) ?(\S+)", tree).groups()  # type: ignore[union-attr]
    moved = float(number) * factors[key]
    return f"{round(int(Size.parse(tree)) * factors[key])} B" if unit.endswith("B") else f"{moved!r} {unit}"
