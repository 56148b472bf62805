"""How people name nodes and links: in machine files, faults and on the command line, and in graph files."""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec import Struct

from rapid_des.errors import TopologyError
from rapid_des.network.fabric import Fabric
from rapid_des.network.specs import InfraGraph
from rapid_des.units import whole_number

_NAMED = re.compile(r"(gpu|nic|switch)?\s*(0|[1-9][0-9]{0,8})\Z")
_COORDINATES = re.compile(r"\(\s*([0-9]{1,9}(?:\s*,\s*[0-9]{1,9}){0,31})\s*,?\s*\)\Z")
_LINK = re.compile(r"(.+?)\s*([->])\s*(.+)\Z")


class NamedLink(Struct, frozen=True):
    """One directed link of a graph file, ends by name."""

    source: str
    destination: str
    bandwidth: int
    """The bandwidth in bytes a second."""
    latency: int
    """The latency in picoseconds."""


class NamedGraph(Struct, frozen=True):
    """The graph of a file."""

    nodes: dict[str, int]
    """The local node of each name: GPUs, then NICs, then switches."""
    nics: int
    edges: list[NamedLink]


class GraphReader(Struct, frozen=True):
    """What an entry point of the group `rapid_des.fabrics` names: it reads the graph file of a dimension."""

    read: Callable[[InfraGraph], NamedGraph]


def find_node(fabric: Fabric, text: str | int) -> int:
    """Return the node that `text` names: 5 or gpu5, nic0, switch2, or a GPU's coordinates (1, 0, 3).

    Coordinates are one number an axis, innermost first. `TopologyError` says what is allowed.
    """
    written = str(text).strip()
    coordinates = _COORDINATES.match(written)
    if coordinates:
        return _at(fabric, tuple(int(digit) for digit in coordinates[1].split(",")), written)
    named = _NAMED.match(written)
    if named is None:
        allowed = "a GPU's id or coordinates as in (1, 0), gpu5, nic0 or switch2"
        raise TopologyError(f"{fabric.name}: {written[:60]!r} names no node; allowed: {allowed}")
    kind, number = named[1] or "gpu", int(named[2])
    first, count = node_range(fabric, kind)
    if number >= count:
        allowed = f"{kind}0 to {kind}{count - 1}" if count else f"this fabric has no {kind}"
        raise TopologyError(f"{fabric.name}: there is no {kind} {number}; allowed: {allowed}")
    return first + number


def find_gpu(fabric: Fabric, text: str | int) -> int:
    """Return the GPU that `text` names; a node of another kind is a `TopologyError`."""
    node = find_node(fabric, text)
    if node >= fabric.gpus:
        raise TopologyError(f"{fabric.name}: {text} is no GPU; routes lead from GPU to GPU")
    return node


def node_range(fabric: Fabric, kind: str) -> tuple[int, int]:
    """Return the first node of a kind (gpu, nic, switch) and how many there are."""
    firsts = {"gpu": 0, "nic": fabric.gpus, "switch": fabric.gpus + fabric.nics}
    counts = {"gpu": fabric.gpus, "nic": fabric.nics, "switch": fabric.nodes - fabric.gpus - fabric.nics}
    return firsts[kind], counts[kind]


def find_links(fabric: Fabric, text: str) -> tuple[int, ...]:
    """Return the link ids that `text` names: A>B is one direction, A-B both, #17 the id."""
    written = text.strip()
    if written.startswith("#"):
        return (_by_id(fabric, written),)
    ends = _LINK.match(written)
    if ends is None:
        raise TopologyError(f"{fabric.name}: {written!r} names no link; allowed: A-B, A>B, #ID")
    source, destination = find_node(fabric, ends[1]), find_node(fabric, ends[3])
    link = fabric.link(source, destination)
    return (link,) if ends[2] == ">" else (link, fabric.link(destination, source))


def find_flows(fabric: Fabric, text: str) -> tuple[tuple[int, int], ...]:
    """Return the (source, destination) GPUs that `text` names: A>B is one direction, A-B both."""
    ends = _LINK.match(text.strip())
    if ends is None:
        raise TopologyError(f"{fabric.name}: {text.strip()!r} names no flow; allowed: A-B, A>B")
    pair = find_gpu(fabric, ends[1].strip()), find_gpu(fabric, ends[3].strip())
    return (pair,) if ends[2] == ">" else (pair, pair[::-1])


def _by_id(fabric: Fabric, written: str) -> int:
    try:
        return whole_number(written[1:].strip(), most=len(fabric) - 1)
    except ValueError:
        allowed = f"#0 to #{len(fabric) - 1}"
        raise TopologyError(f"{fabric.name}: there is no link {written!r}; allowed: {allowed}") from None


def _at(fabric: Fabric, coordinates: tuple[int, ...], written: str) -> int:
    axes = fabric.axes
    if len(coordinates) != len(axes) or any(
        digit >= size for digit, size in zip(coordinates, axes, strict=True)
    ):
        sizes = ", ".join(f"0..{size - 1}" for size in axes)
        raise TopologyError(f"{fabric.name}: there is no GPU at {written}; allowed: ({sizes})")
    gpu = 0
    for digit, size in zip(reversed(coordinates), reversed(axes), strict=True):
        gpu = gpu * size + digit
    return gpu
