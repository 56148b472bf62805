"""Dimensions to a fabric: the product of blocks, laid over mixed-radix GPU ids.

People name its nodes and links in machine files, faults, graph files and on the command line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct, structs

from rapid_des.arrays import Int64s
from rapid_des.errors import TopologyError
from rapid_des.network.dimensions import AnyDimension, Dimension, InfraGraph, LowDiameter, Rate, Switched
from rapid_des.network.fabric import Block, Fabric, check_bandwidth, endpoints_of_a_plane, with_lanes
from rapid_des.network.protocol import MOST_LATENCY
from rapid_des.network.specs import LinkOverride, Routing
from rapid_des.units import Duration, whole_number
from rapid_des.values import replace

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


def _leads_to(fabric: Fabric, written: str) -> str:
    """Return where links of the node lead that `written` names, if it names one."""
    try:
        node = find_node(fabric, written)
    except TopologyError:
        return ""
    return f"; {fabric.leads_to(node)}"


def find_links(fabric: Fabric, text: str) -> tuple[int, ...]:
    """Return the link ids that `text` names: A>B is one direction, A-B both, #17 the id."""
    written = text.strip()
    if written.startswith("#"):
        return (_by_id(fabric, written),)
    ends = _LINK.match(written)
    if ends is None:
        raise TopologyError(
            f"{fabric.name}: {written!r} names no link; allowed: A-B, A>B, #ID{_leads_to(fabric, written)}"
        )
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


Shape: TypeAlias = Callable[[Any, Routing], Block]

LARGEST_FABRIC = 2**24
"""The largest number of GPUs in a fabric."""
LARGEST_LINK_TABLE = 2**27
"""The largest number of links in a fabric: about 4 GB of columns."""


class DimensionLayout(Struct, frozen=True, eq=False):
    """Where the copies of one dimension's block lie in the fabric."""

    block: Block
    stride: int
    """GPU ids between neighbours in this dimension: the product of the inner sizes."""
    size: int
    copies: int
    spans_inner: bool
    first_link: int

    def locate(self, gpu: Int64s) -> tuple[Int64s, Int64s]:
        """Return each GPU's (copy of the block, position in it)."""
        if self.spans_inner:
            span = self.stride * self.size
            return gpu // span, gpu % span
        outer, digit = gpu // self.stride // self.size, gpu // self.stride % self.size
        return gpu % self.stride + self.stride * outer, digit

    def gpu(self, copy: Int64s, position: Int64s) -> Int64s:
        """Return the GPU at a position of a copy: the inverse of `locate`."""
        if self.spans_inner:
            return copy * self.stride * self.size + position
        inner, outer = copy % self.stride, copy // self.stride
        return inner + self.stride * (position + self.size * outer)

    def links(self, copy: Int64s, local: Int64s) -> Int64s:
        """Return fabric link ids of a copy's local links."""
        return self.first_link + copy * len(self.block) + local


class FabricLayout(Struct, frozen=True, eq=False):
    """A fabric, and where the blocks of its dimensions lie in it, in the order of the dimensions."""

    fabric: Fabric
    layouts: tuple[DimensionLayout, ...]
    routing: Routing


def build(name: str, dimensions: Sequence[AnyDimension], routing: Routing) -> FabricLayout:
    """Return the fabric of the dimensions, innermost first; `TopologyError` where they make no sense."""
    extents = tuple(_extent(dimension) for dimension in dimensions)
    names = tuple(dimension.name for dimension in dimensions)
    if not dimensions or len(set(names)) < len(names):
        raise TopologyError(
            f"{name}: fabric: needs dimensions of different names, it has [{', '.join(names)}]"
        )
    gpus = math.prod(size for extent in extents for size in extent)
    if gpus > LARGEST_FABRIC:
        raise TopologyError(f"{name}: fabric: {gpus} GPUs; allowed: up to {LARGEST_FABRIC}")
    if routing.non_minimal and not any(isinstance(dimension, LowDiameter) for dimension in dimensions):
        problem = "no dimension has routes to choose from; allowed with hyperx, slim_fly, dragonfly_plus"
        raise TopologyError(f"{name}: routing.non_minimal: {problem}")
    layouts = _layouts(dimensions, [math.prod(extent) for extent in extents], routing)
    links = sum(layout.copies * len(layout.block) for layout in layouts)
    if links > LARGEST_LINK_TABLE:
        raise TopologyError(f"{name}: fabric: {links} links; allowed: up to {LARGEST_LINK_TABLE}")
    return FabricLayout(_fabric(name, extents, names, layouts), layouts, routing)


def _extent(dimension: AnyDimension) -> tuple[int, ...]:
    return (dimension.size,) if isinstance(dimension.size, int) else tuple(dimension.size)


def _layouts(
    dimensions: Sequence[AnyDimension], sizes: list[int], routing: Routing
) -> tuple[DimensionLayout, ...]:
    layouts: list[DimensionLayout] = []
    stride, first_link, gpus = 1, 0, math.prod(sizes)
    for dimension, size in zip(dimensions, sizes, strict=True):
        spans = isinstance(dimension, Switched) and dimension.spans_inner
        block = _block(dimension, routing, stride if spans else 1)
        layouts.append(DimensionLayout(block, stride, size, gpus // block.positions, spans, first_link))
        first_link += layouts[-1].copies * len(block)
        stride *= size
    return tuple(layouts)


def _block(dimension: AnyDimension, routing: Routing, inner: int) -> Block:
    """Return the block over `inner` times the dimension's own positions."""
    _check_rates(dimension)
    module, name = dimension.built_by.split(".")
    build_block: Shape = getattr(import_module(f"rapid_des.network.shapes.{module}"), name)
    if not isinstance(dimension, Switched):
        return build_block(dimension, routing)
    endpoints = structs.replace(dimension, size=endpoints_of_a_plane(dimension, inner))
    return with_lanes(build_block(endpoints, routing), dimension)


def _check_rates(dimension: AnyDimension) -> None:
    rates: list[object] = [dimension, *(getattr(dimension, field) for field in dimension.__struct_fields__)]
    for rate in rates:
        if not isinstance(rate, Dimension | Rate):
            continue
        if rate.bandwidth <= 0:
            raise TopologyError(f"dimension {dimension.name}: bandwidth: must be above 0")
        check_bandwidth(rate.bandwidth, f"dimension {dimension.name}")
        if rate.latency > MOST_LATENCY:
            allowed = f"allowed: 0 to {Duration(MOST_LATENCY)}"
            raise TopologyError(f"dimension {dimension.name}: latency: {rate.latency}; {allowed}")


def _fabric(
    name: str,
    extents: tuple[tuple[int, ...], ...],
    names: tuple[str, ...],
    layouts: tuple[DimensionLayout, ...],
) -> Fabric:
    gpus = math.prod(size for extent in extents for size in extent)
    nics = sum(layout.copies * layout.block.nics for layout in layouts)
    columns: list[tuple[Int64s, ...]] = []
    first_nic, first_switch = gpus, gpus + nics
    for layout in layouts:
        ids = _node_ids(layout, first_nic, first_switch)
        block, copies = layout.block, layout.copies
        rates = np.tile(block.bandwidth, copies), np.tile(block.latency, copies)
        columns.append((ids[:, block.source].ravel(), ids[:, block.destination].ravel(), *rates))
        first_nic += copies * block.nics
        first_switch += copies * (block.nodes - block.positions - block.nics)
    source, destination, bandwidth, latency = (
        np.concatenate(column) for column in zip(*columns, strict=True)
    )
    lengths = [len(column[0]) for column in columns]
    return Fabric(
        name=name, extents=extents, gpus=gpus, nodes=first_switch, nics=nics, dimensions=names,
        source=source.astype(np.int32), destination=destination.astype(np.int32),
        bandwidth=bandwidth, latency=latency,
        dimension=np.repeat(np.arange(len(lengths), dtype=np.int16), lengths),
    )  # fmt: skip


def _node_ids(layout: DimensionLayout, first_nic: int, first_switch: int) -> Int64s:
    """Return the fabric's node of each (copy, local node); NICs are numbered as the GPUs they serve."""
    block, copy = layout.block, np.arange(layout.copies)[:, None]
    switches = block.nodes - block.positions - block.nics
    gpu = layout.gpu(copy, np.arange(block.positions)[None, :])
    local, each = np.arange(block.nics)[None, :], block.nics_each
    served = layout.gpu(copy, local // each) * each + local % each
    nic = first_nic + (copy * block.nics + local if layout.spans_inner else served)
    switch = first_switch + copy * switches + np.arange(switches)[None, :]
    return np.concatenate([gpu, nic, switch], axis=1)


def override_links(fabric: Fabric, overrides: Sequence[LinkOverride]) -> Fabric:
    """Return the fabric with the stated links' rates; later overrides win."""
    if not overrides:
        return fabric
    bandwidth, latency = fabric.bandwidth.copy(), fabric.latency.copy()
    for index, override in enumerate(overrides):
        try:
            links = _links(fabric, override)
        except TopologyError as error:
            raise TopologyError(f"links[{index}]: {error}") from None
        if override.bandwidth is not None:
            bandwidth[links] = override.bandwidth
        if override.latency is not None:
            latency[links] = override.latency
    return replace(fabric, bandwidth=bandwidth, latency=latency)


def _links(fabric: Fabric, override: LinkOverride) -> list[int]:
    if override.bandwidth is None and override.latency is None:
        raise TopologyError("states neither bandwidth nor latency")
    if override.bandwidth == 0:
        raise TopologyError("bandwidth: must be above 0; a link that is down is a fault")
    source, destination = find_node(fabric, override.source), find_node(fabric, override.destination)
    links = [fabric.link(source, destination)]
    return [*links, fabric.link(destination, source)] if override.both_directions else links
