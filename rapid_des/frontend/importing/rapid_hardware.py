"""The hardware file of RAPID-LLM: a device and a machine, links and faults among them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isqrt, prod
from pathlib import Path
from typing import Any

from rapid_des.errors import ConfigError
from rapid_des.frontend.importing.keys import Keys, Tree, sparse

SHAPES = {
    "ring": "ring", "fc": "fully_connected", "fullyconnected": "fully_connected", "switch": "switch",
    "mesh": "mesh", "torus2d": "torus", "mesh2d": "mesh", "kingmesh2d": "king_mesh", "hypercube": "hypercube",
}  # fmt: skip
BASES = {1024: "h100_sxm", 512: "a100_sxm_80gb", 128: "v100_sxm2"}
"""Devices whose kernels stand for a tensor core of so many FLOPs a clock."""
ALGORITHMS = {
    "ring": "ring", "direct": "direct", "halvingdoubling": "halving_doubling",
    "doublebinarytree": "double_binary_tree",
}  # fmt: skip
OPERATIONS = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")
_PARALLEL = ("tp", "cp", "ep", "lp", "pp", "dp")
_QUANTITY = re.compile(r"([-+.0-9eE]+)\s*([KMGT]?)([Bb]?)\s*")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


class Section(Keys):
    """A mapping of the file, with its name before the keys that errors speak of."""

    def __init__(self, tree: Any, file: str, name: str = "") -> None:
        if not isinstance(tree, Mapping):
            raise ConfigError("is no mapping", file=file, key=name)
        super().__init__(tree, file)
        self.name = name

    def section(self, key: str, *, optional: bool = False) -> Section:
        """Return the mapping under a key."""
        if key not in self.tree and not optional:
            raise ConfigError(f"the key {self.name}{key!r} is missing", file=self.file)
        return Section(self.tree.get(key) or {}, self.file, f"{self.name}{key}.")

    def quantity(self, key: str, default: float | None = None) -> float:
        """Return a number with a unit of RAPID-LLM: `80 GB` is 80 · 1024³, `8 Gb` an eighth of that."""
        value = self.tree.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ConfigError(f"{value!r} is no quantity", file=self.file, key=f"{self.name}{key}")
        if not isinstance(value, str):
            return float(value)
        match = _QUANTITY.fullmatch(value)
        try:
            number = float(match[1]) if match else None
        except ValueError:
            number = None
        if match is None or number is None:
            problem = f"{value!r} is no quantity; allowed: a number, with KB, MB, GB, TB or Gb"
            raise ConfigError(problem, file=self.file, key=f"{self.name}{key}")
        return number * 1024.0 ** _POWERS[match[2]] / (8 if match[3] == "b" else 1)


def known(table: Mapping[Any, str], value: Any, keys: Section, key: str) -> str:
    """Return what a value stands for; another value is refused with those allowed."""
    if value not in table:
        problem = f"{value!r} is not understood; allowed: {', '.join(map(str, table))}"
        raise ConfigError(problem, file=keys.file, key=f"{keys.name}{key}")
    return table[value]


def device_of(hard: Section, notes: list[str]) -> Tree:
    """Return a device file: that of the chip with such tensor cores, with its own counts, sizes and rates."""
    technology = hard.section("tech_param")
    core = technology.section("core")
    rate = core.count("nominal_flop_rate_per_mcu")
    base = known(BASES, rate, core, "nominal_flop_rate_per_mcu")
    sms, clock = core.count("num_bundles", least=1), core.quantity("operating_frequency")
    peak = f"{rate * core.count('num_mcu_per_bundle') * sms * clock:.6g} FLOP/s"
    launch = hard.section("sw_param").quantity("kernel_launch_overhead", 0)
    device: Tree = {
        "base": base,
        "name": f"{base} as RAPID-LLM has it",
        "sms": sms,
        "clock": {
            "peak": _hertz(clock),
            "boost": _hertz(clock),
            "sustained": _hertz(clock),
            "sustained_by_dtype": {},
        },
        "tensor_peak": {"fp16": peak} if base == "v100_sxm2" else {"fp16": peak, "bf16": peak},
        "launch": {"eager": f"{launch * 1e6:.6g} us", "graph": f"{launch * 1e6:.6g} us"},
    }
    stores = {
        "DRAM": ("hbm", 1),
        "SRAM-L2": ("l2", 1),
        "SRAM-L1": ("shared", sms),
        "SRAM-R": ("registers", sms),
    }
    for key, (name, parts) in stores.items():
        store = technology.section(key)
        size, bandwidth = int(store.quantity("size") / parts), store.quantity("bandwidth")
        device[name] = {"capacity": f"{size} B", "bandwidth": f"{bandwidth / 1e9:.6g} GB/s"}
    utilised = {key: technology.section(key).tree.get("util", 1) for key in ("core", *stores)}
    left = [f"tech_param.{key}.util {value}" for key, value in utilised.items() if value != 1]
    notes += [f"left out, as kernels have their own: {', '.join(left)}"] if left else []
    notes.append(f"kernels are those of {base}: its constants, vector peaks and energy")
    return device


def _hertz(clock: float) -> str:
    return f"{clock / 1e9:.6g} GHz"


def machine_of(hard: Section, split: dict[str, int], notes: list[str]) -> Tree:
    """Return a machine file; of dimensions those with more than one rank."""
    network = hard.section("network")
    stated = network.tree.get("dimensions")
    if not isinstance(stated, list) or not stated:
        raise ConfigError(
            "must be a list of dimensions (files before 2026 have none)",
            file=hard.file,
            key="network.dimensions",
        )
    degrees = {"tp": split["tp"], "cp": split["cp"], "pp": split["pp"], "lp": split["pp"]}
    degrees |= {"ep": split["ep"], "dp": split["dp"]}
    fabric = []
    for number, tree in enumerate(stated):
        keys = Section(tree, hard.file, f"network.dimensions.{number}.")
        dimension = _dimension(keys, degrees)
        if dimension is not None:
            fabric.append(dimension)
    overlap = network.section("overlap", optional=True).tree
    left = [f"network.overlap.{key} {value}" for key, value in overlap.items() if value]
    notes += [f"left out, as overlap falls out of the simulation: {', '.join(left)}"] if left else []
    machine: Tree = {
        "name": f"{Path(hard.file).stem}, RAPID-LLM",
        "device": "device.yaml",
        "fabric": fabric
        or [{"name": "alone", "shape": "ring", "size": 1, "bandwidth": "1 GB/s", "latency": "0 s"}],
        "routing": {"order": "innermost_first", "tie": "positive"},
        "switching": {"mode": "cut_through", "parts": 8, "segment": "4 KiB"},
    }
    collectives = _collectives(hard, notes)
    faults = [_fault(link, hard.file) for link in network.get("faulty_links", list, [])]
    return machine | sparse(collectives=collectives, faults=faults or None)


def _dimension(keys: Section, degrees: Mapping[str, int]) -> Tree | None:
    axes = keys.get("parallelisms", list, [])
    unknown = [axis for axis in axes if not isinstance(axis, str) or axis not in _PARALLEL]
    if unknown:
        problem = f"{unknown[0]!r} is not one of {', '.join(_PARALLEL)}"
        raise ConfigError(problem, file=keys.file, key=f"{keys.name}parallelisms")
    size = keys.tree.get("size", "auto")
    ranks = size if isinstance(size, int) else prod(degrees[axis] for axis in axes)
    if ranks < 1:
        raise ConfigError(f"{ranks} is below 1", file=keys.file, key=f"{keys.name}size")
    if ranks == 1:
        return None
    link = keys.section("topology")
    kind = link.get("type", str).lower()
    shape = known(SHAPES, kind, link, "type")
    extent: int | list[int] = ranks
    if kind.endswith("2d"):
        extent = _sides(size, ranks, keys)
    rate = link.tree.get("bandwidth")
    if isinstance(rate, list):
        raise ConfigError(
            "two bandwidths are not understood; allowed: one",
            file=keys.file,
            key=f"{keys.name}topology.bandwidth",
        )
    bandwidth = link.quantity("bandwidth") * link.get("util", float, 1.0)
    latency = link.quantity("latency", 0)
    return {
        "name": str(keys.tree.get("label") or keys.tree.get("id") or shape),
        "shape": shape,
        "size": extent,
        "bandwidth": f"{bandwidth / 1e9:.6g} GB/s",
        "latency": f"{latency * 1e9:.6g} ns",
    }


def _sides(size: Any, ranks: int, keys: Section) -> list[int]:
    """Return the sides of a grid: as stated, else a square."""
    if isinstance(size, list) and len(size) == 2 and isinstance(size[0], int):
        first = size[0]
        ranks = first * size[1] if isinstance(size[1], int) else ranks
    else:
        first = isqrt(ranks)
    if first < 1 or ranks % first or (first != ranks // first and not isinstance(size, list)):
        problem = f"{ranks} ranks are no square; allowed: a size [x, auto]"
        raise ConfigError(problem, file=keys.file, key=f"{keys.name}size")
    return [first, ranks // first]


def _collectives(hard: Section, notes: list[str]) -> Tree:
    backend = hard.section("execution_backend", optional=True)
    stated = backend.section("astra", optional=True).section("collectives", optional=True).tree
    chosen: Tree = {}
    for operation in OPERATIONS:
        name = str(stated.get(operation, "auto")).lower()
        if name in ALGORITHMS:
            chosen[operation] = ALGORITHMS[name]
        elif name != "auto":
            notes.append(f"collectives.{operation} {name}: the best on the links instead")
    return chosen


def _fault(link: Any, file: str) -> Tree:
    if not isinstance(link, list) or len(link) != 3:
        raise ConfigError(
            f"{link!r} is no [source, destination, share]", file=file, key="network.faulty_links"
        )
    source, destination, share = link
    effect = {"down": True} if share == 0 else {"bandwidth": share}
    return {"link": f"{source}-{destination}", **effect}
