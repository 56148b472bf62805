"""The network of a hardware file of RAPID-LLM as a machine file: dimensions, collectives, faults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from rapid_des.chakra.trace import CollectiveType
from rapid_des.importers.imported import sparse
from rapid_des.importers.keys import Tree
from rapid_des.importers.rapid_llm.keys import Section, known
from rapid_des.importers.rapid_llm.shapes import Block, blocks_of
from rapid_des.network.collectives import algorithms_for

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
