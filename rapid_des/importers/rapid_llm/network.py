"""The network of a hardware file of RAPID-LLM as a machine file: dimensions, collectives, faults.

A dimension of its file becomes several where it has two rates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isqrt, prod
from pathlib import Path
from typing import Any

from msgspec import Struct

from rapid_des.chakra.trace import CollectiveType
from rapid_des.importers.keys import Tree, sparse
from rapid_des.importers.rapid_llm.device import Section, known
from rapid_des.network.collectives import algorithms_for

Block = Tree
SHAPES = {
    "ring": "ring", "fc": "fully_connected", "fullyconnected": "fully_connected", "switch": "switch",
    "mesh": "mesh", "hypercube": "hypercube", "torus2d": "torus", "mesh2d": "mesh", "kingmesh2d": "king_mesh",
    "fcring2d": "fc_ring", "superpod": "superpod",
}  # fmt: skip
SIDES = {"torus": ("ring", "ring"), "mesh": ("mesh", "mesh"), "fc_ring": ("fully_connected", "ring")}
"""The shapes of both sides of a grid whose sides have different rates."""
_GRIDS = ("torus2d", "mesh2d", "kingmesh2d", "fcring2d")
_SUPERPOD = ("superpod_variant", "leaf_size", "leaf_switches_per_su", "spine_switches_per_su")
_UNUSED = "nothing travels on a dimension of one rank"
_MOST_UNITS = 16


def blocks_of(keys: Section, axes: Sequence[str], degrees: Mapping[str, int]) -> list[Block]:
    """Return the dimensions of a machine file for one of RAPID-LLM's; none if its axes have one rank."""
    ranks = prod(degrees[axis] for axis in axes)
    sides = _sides(keys, ranks, {axis: degrees[axis] for axis in axes})
    if ranks == 1:
        keys.ignore(_UNUSED, *keys.unread())
        return []
    if "label" in keys:
        keys.ignore("the label names the dimension", "id")
    name = str(keys.value("label", keys.value("id", "") if "label" not in keys else ""))
    link = keys.section("topology")
    kind = link.get("type", str)
    shape = known(SHAPES, kind, link, "type")
    energy = _energy(link)
    link.choice("optimize_2dmap", {False: None}, default=False)
    latency = link.quantity("latency")
    if latency < 0:
        raise link.error(f"{latency:g} is below 0", "latency")
    if shape == "superpod":
        parts = _superpod(link, ranks)
    else:
        link.ignore("the type is not SuperPOD", *_SUPERPOD)
        grid = kind.lower().replace("-", "").replace("_", "") in _GRIDS
        parts = _grid(link, shape, sides or _square(keys, ranks)) if grid else _line(link, shape, ranks)
    return [
        {"name": f"{name or shape}{suffix}", "shape": each, "size": size,
         "bandwidth": f"{rate / 1e9:.6g} GB/s", "latency": f"{latency * 1e9:.6g} ns",
         **_energy_of(each, energy)}
        for suffix, each, size, rate in parts
    ]  # fmt: skip


def _energy(link: Section) -> float | None:
    """Return the picojoules of a bit that is sent; None where the file states none."""
    joules = link.quantity("energy_per_bit") if "energy_per_bit" in link else None
    if joules is not None and joules < 0:
        raise link.error(f"{joules:g} is below 0", "energy_per_bit")
    return None if joules is None else joules * 1e12


def _energy_of(shape: str, picojoules: float | None) -> Tree:
    """Return the energy of each link: a bit crosses two of a switch."""
    if picojoules is None:
        return {}
    return {"energy": {"pj_per_bit": float(f"{picojoules / (2 if shape == 'switch' else 1):.6g}")}}


_Part = tuple[str, str, Any, float]
"""Suffix of the name, shape, size, bytes per second."""


def _sides(keys: Section, ranks: int, axes: Mapping[str, int]) -> tuple[int, int] | None:
    """Check the size against the ranks of the axes; return the sides, where two are stated."""
    size, named = keys.value("size", "auto"), " · ".join(f"{axis} {of}" for axis, of in axes.items())
    if isinstance(size, str) and size.strip().startswith("(") and size.strip().endswith(")"):
        size = [part.strip() for part in size.strip()[1:-1].split(",")]
    if not isinstance(size, list):
        if str(size).strip().lower() not in ("auto", str(ranks)):
            problem = f"{size}, but {named or 'no axis'} has {ranks} ranks; allowed: auto or {ranks}"
            raise keys.error(problem, "size")
        return None
    numbers = [_side(entry, keys, axes) for entry in size]
    open_ends = numbers.count(None)
    stated = prod(number for number in numbers if number is not None)
    fits = ranks % stated == 0 if open_ends else ranks == stated
    if len(size) != 2 or open_ends > 1 or not fits:
        problem = (
            f"{size} does not hold the {ranks} ranks of {named or 'no axis'}; allowed: two factors of them"
        )
        raise keys.error(f"{problem}, one of which may be auto", "size")
    first, second = (ranks // stated if number is None else number for number in numbers)
    return first, second


def _side(entry: object, keys: Section, axes: Mapping[str, int]) -> int | None:
    """Return the length of one side of a grid; None: it follows from the other."""
    text = str(entry).strip().lower()
    if text == "auto":
        return None
    if text in axes:
        return axes[text]
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise keys.error(f"{entry!r} is no side; allowed: a number, an axis or auto", "size")
    return int(text)


def _square(keys: Section, ranks: int) -> tuple[int, int]:
    """Return the sides of the grid of that many ranks that is closest to a square."""
    first = next(side for side in range(isqrt(ranks), 0, -1) if ranks % side == 0)
    if first * first != ranks:
        said = f"{ranks} ranks are {first} x {ranks // first}, the grid closest to a square"
        keys.notes.append(f"{keys.name}size auto: {said}")
    return first, ranks // first


def _rates(link: Section, *, two: bool) -> tuple[float, ...]:
    """Return the bytes a second of links, of both sides where they differ."""
    stated, util = link.value("bandwidth"), link.get("util", float, 1.0)
    entries = stated if isinstance(stated, list) else [stated]
    if len(entries) != 1 + isinstance(stated, list) or (isinstance(stated, list) and not two):
        allowed = "one or two" if two else "one"
        raise link.error(f"{stated!r} holds {len(entries)}; allowed: {allowed}", "bandwidth")
    rates = tuple(link.amount(entry, "bandwidth") * util for entry in entries)
    if not all(0 < rate < float("inf") for rate in rates):
        raise link.error(f"{stated!r} at util {util:g} is not above 0", "bandwidth")
    return rates


def _line(link: Section, shape: str, ranks: int) -> list[_Part]:
    return [("", shape, ranks, _rates(link, two=False)[0])]


def _grid(link: Section, shape: str, sides: tuple[int, int]) -> list[_Part]:
    rates = _rates(link, two=shape != "king_mesh")
    if len(rates) == 1 and shape != "fc_ring":
        return [("", shape, [side for side in sides if side > 1], rates[0])]
    each = zip(("", " outer"), SIDES[shape], sides, (rates[0], rates[-1]), strict=True)
    return [part for part in each if part[2] > 1]


def _superpod(link: Section, ranks: int) -> list[_Part]:
    """Return leaves and spines as two switches, each with what all switches of its level give a rank."""
    link.choice("superpod_variant", {"h100": None})
    if not isinstance(link.value("bandwidth"), list):
        raise link.error(f"{link.value('bandwidth')!r}; allowed: two, of leaf and spine", "bandwidth")
    leaf, spine = _rates(link, two=True)
    switches = link.count("leaf_switches_per_su", 8, least=1)
    unit = link.count("leaf_size", 32, least=1)
    said = f"SuperPOD: each rank has the {switches} leaf links of its node, as in RAPID-LLM"
    if ranks <= unit:
        reason = f"{ranks} ranks are in one unit, whose leaves join them; RAPID-LLM takes two units or more"
        link.overrule(reason, "spine_switches_per_su", "leaf_size")
        link.notes.append(said)
        return [("", "switch", ranks, leaf * switches)]
    if ranks % unit:
        raise link.error(f"{unit} does not divide {ranks} ranks", "leaf_size")
    units = ranks // unit
    spines = units * link.count("spine_switches_per_su", 4, least=1)
    link.notes.append(f"{said}, and links to {spines} spines")
    if units > _MOST_UNITS:
        link.notes.append(f"SuperPOD: {units} units need a tier of cores, which is left out as in RAPID-LLM")
    return [(" leaf", "switch", unit, leaf * switches), (" spine", "switch", units, spine * spines)]


AXES = ("tp", "cp", "ep", "pp", "dp")
ALGORITHMS = {"auto": "auto", "ring": "ring", "direct": "direct", "halvingdoubling": "halving_doubling",
              "doublebinarytree": "double_binary_tree"}  # fmt: skip
OPERATIONS = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")
AUTOMATIC = {"fully_connected": "direct", "switch": "halving_doubling", "hypercube": "halving_doubling"}
"""The algorithm that `auto` means, by shape; on all other shapes a ring."""


class Split(Struct, frozen=True):
    """The number of ranks along each axis, by RAPID-LLM's names."""

    degrees: Mapping[str, int]
    order: tuple[str, ...]
    """The axes as the network's dimensions hold them, innermost first."""


def split_of(network: Section, degrees: Mapping[str, int]) -> Split:
    """Return in which order dimensions hold the axes; each with several ranks must stand in one of them."""
    held = [axis for keys in _dimensions(network) for axis in sorted(_axes(keys), key=AXES.index)]
    for axis in AXES:
        if held.count(axis) > 1:
            raise network.error(f"several hold {axis}; allowed: one", "dimensions")
        if axis not in held and degrees[axis] > 1:
            problem = f"none holds {axis}, which has {degrees[axis]} ranks; allowed: in `parallelisms` of one"
            raise network.error(problem, "dimensions")
    return Split(degrees, (*held, *(axis for axis in AXES if axis not in held)))


def machine_of(hard: Section, split: Split) -> Tree:
    """Return a machine file with the dimensions of more than one rank."""
    network = hard.section("network")
    reason = "overlap falls out of the simulation"
    network.section("overlap", optional=True).ignore(reason, "tp_overlap", "tp_sp_overlap", "cp_overlap")
    blocks, overrides = list[Block](), list[Mapping[str, str]]()
    for keys in _dimensions(network):
        found = blocks_of(keys, _axes(keys), split.degrees)
        blocks += found
        overrides += [_override(keys)] * len(found) if found else []
    _name_apart(blocks)
    machine: Tree = {
        "name": f"{Path(hard.file).stem}, RAPID-LLM",
        "device": "device.yaml",
        "fabric": blocks
        or [{"name": "alone", "shape": "ring", "size": 1, "bandwidth": "1 GB/s", "latency": "0 s"}],
        "routing": {"order": "innermost_first", "tie": "positive"},
        "switching": {"mode": "cut_through", "parts": 8, "segment": "4 KiB"},
    }
    faults = [_fault(link, network) for link in network.get("faulty_links", list, [])]
    return machine | sparse(collectives=_collectives(hard, blocks, overrides), faults=faults or None)


def _dimensions(network: Section) -> list[Section]:
    stated = network.value("dimensions", None)
    if not isinstance(stated, list) or not stated:
        raise network.error("must be a list of dimensions (files before 2026 have none)", "dimensions")
    wrong = [number for number, tree in enumerate(stated) if not isinstance(tree, Mapping)]
    if wrong:
        raise network.error(f"{stated[wrong[0]]!r} is no mapping", f"dimensions.{wrong[0]}")
    return [network.enter(tree, f"dimensions.{number}") for number, tree in enumerate(stated)]


def _axes(keys: Section) -> list[str]:
    names = keys.get("parallelisms", list, [])
    axes = ["pp" if name == "lp" else name for name in names]
    unknown = [name for name, axis in zip(names, axes, strict=True) if axis not in AXES]
    if unknown:
        raise keys.error(f"{unknown[0]!r} is not one of {', '.join(AXES)}", "parallelisms")
    return axes


def _name_apart(blocks: Iterable[Block]) -> None:
    """Append numbers to the names of dimensions that have the same name."""
    seen = set[str]()
    for block in blocks:
        name, number = block["name"], 2
        while block["name"] in seen:
            block["name"], number = f"{name} {number}", number + 1
        seen.add(block["name"])


def _override(keys: Section) -> Mapping[str, str]:
    """Return the algorithms that one dimension states for itself."""
    named = "collective_override" if keys.value("collective_override", {}) else "collectives"
    return _algorithms(keys.section(named, optional=True))


def _algorithms(keys: Section) -> dict[str, str]:
    """Return the stated algorithm of each collective, except `auto`."""
    chosen = {}
    for operation in OPERATIONS:
        key = operation if operation in keys else operation.replace("_", "-")
        algorithm = known(ALGORITHMS, keys.value(key, "auto"), keys, key)
        allowed = ("auto", *algorithms_for(CollectiveType[operation.upper()]))
        if algorithm not in allowed:
            raise keys.error(f"{algorithm} does no {operation}; allowed: {', '.join(allowed)}", key)
        if algorithm != "auto":
            chosen[operation] = algorithm
    return chosen


def _collectives(hard: Section, blocks: Sequence[Block], overrides: Sequence[Mapping[str, str]]) -> Tree:
    """Return the algorithm of each collective: one, or one for each dimension where these state their own."""
    backend = hard.section("execution_backend", optional=True).section("astra", optional=True)
    usual = _algorithms(backend.section("collectives", optional=True))
    chosen: Tree = dict(usual)
    for operation in OPERATIONS:
        stated = [override.get(operation, usual.get(operation)) for override in overrides]
        if not any(operation in override for override in overrides):
            continue
        names = [name or _automatic(block, operation) for name, block in zip(stated, blocks, strict=True)]
        chosen[operation] = names[0] if len(names) == 1 else names
        if None in stated:
            open_ones = ", ".join(
                f"{name} on {block['name']}"
                for name, block, said in zip(names, blocks, stated, strict=True)
                if said is None
            )
            hard.notes.append(f"{operation} auto, beside dimensions that state an algorithm: {open_ones}")
    return chosen


def _automatic(block: Block, operation: str) -> str:
    name = AUTOMATIC.get(block["shape"], "ring")
    return name if name in algorithms_for(CollectiveType[operation.upper()]) else "direct"


def _fault(link: Any, network: Section) -> Tree:
    """Return a fault from [source, destination, remaining share of bandwidth]."""
    fits = (
        isinstance(link, list) and len(link) == 3 and all(type(end) is int and end >= 0 for end in link[:2])
    )
    if not fits or type(link[2]) not in (int, float) or not 0 <= link[2] <= 1:
        problem = f"{link!r} is no [source, destination, share]; allowed: ranks from 0, a share of 0 to 1"
        raise network.error(problem, "faulty_links")
    source, destination, share = link
    effect = {"down": True} if share == 0 else {"bandwidth": share}
    return {"link": f"{source}-{destination}", **effect}
