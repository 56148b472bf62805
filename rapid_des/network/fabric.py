"""A fabric: one immutable table of directed links between GPUs, NICs and switches; and its blocks.

A block is the links of one dimension among its positions and switches, and the rule of its routes. Between
GPUs and the switches may stand NICs, several of them a GPU, and the switches in several planes:

gpu ─ nic0 ─ plane 0        one lane of several: a hash of both ends says which a pair of GPUs takes
    └ nic1 ─ plane 1        (or every message goes over all of them, which is one lane of their width)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from rapid_des.arrays import Bools, Int32s, Int64s, frozen, hashed, starts_by, starts_of
from rapid_des.errors import TopologyError
from rapid_des.network.dimensions import Dimension, Nic, Rate, Switched
from rapid_des.network.protocol import MOST_LATENCY
from rapid_des.units import Bandwidth, Duration
from rapid_des.values import fields, replace

UNSTATED = -1
"""The value in `Fabric.dimension` of a link that belongs to no dimension."""
MOST_BANDWIDTH = 10**18
"""The largest bandwidth of one link in bytes a second."""


class Fabric(Struct, frozen=True, eq=False, dict=True):
    """Directed links as columns; nodes 0..gpus-1 are GPUs, then come the NICs, if modelled, then switches.

    GPU id = a0 + n0·(a1 + n1·(a2 + …)) with dimension 0 innermost. Link ids are positions in the columns.
    At most one link leads from one node to another: parallel cables are one wider link. The columns are
    read-only, and two fabrics are equal if all that they hold is.
    """

    name: str
    extents: tuple[tuple[int, ...], ...]
    """The size of each dimension, innermost first; a dimension of a tuple shape keeps its tuple."""
    gpus: int
    nodes: int
    source: Int32s
    destination: Int32s
    bandwidth: Int64s
    """The bandwidth of each link in bytes a second."""
    latency: Int64s
    """The latency of each link in picoseconds."""
    dimension: NDArray[np.int16]
    """The dimension that a link belongs to; UNSTATED (-1) where a fabric has none (graphs)."""
    nics: int = 0
    """The number of nodes that are NICs: ids gpus..gpus+nics-1."""
    dimensions: tuple[str, ...] = ()
    """The names of the dimensions."""

    def __post_init__(self) -> None:
        for column in self._values():
            if isinstance(column, np.ndarray):
                frozen(column)
        if not len(self):
            return
        for link in (int(self.bandwidth.argmin()), int(self.bandwidth.argmax())):
            check_bandwidth(int(self.bandwidth[link]), f"{self.name}: {self.link_name(link)}")
        for link in (int(self.latency.argmin()), int(self.latency.argmax())):
            check_latency(self, int(self.latency[link]), f"{self.name}: {self.link_name(link)}")

    def __len__(self) -> int:
        return len(self.source)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fabric):
            return NotImplemented
        pairs = zip(self._values(), other._values(), strict=True)
        return self is other or all(_equal(*pair) for pair in pairs)

    def __ne__(self, other: object) -> bool:  # a Struct's own `!=` does not ask `__eq__`
        return not self == other

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """The hash of all columns, rates included: studies hold many fabrics that differ in rates alone."""
        rates = self.bandwidth.tobytes(), self.latency.tobytes()
        return hash((self.name, self.extents, self.gpus, self.nodes, len(self), *rates))

    def __reduce__(self) -> tuple[type[Fabric], tuple[Any, ...]]:
        return Fabric, self._values()  # without the tables that follow from them

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in fields(self))

    def alive(self, dead: frozenset[int]) -> Bools:
        """Return whether each link lives while those of `dead` do not."""
        alive = np.ones(len(self), bool)
        alive[sorted(dead)] = False
        return alive

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """The extents of all dimensions in one flat tuple, innermost first: the radices of a GPU id."""
        return tuple(size for extent in self.extents for size in extent)

    def coordinates(self, gpu: int) -> tuple[int, ...]:
        """Return a GPU's coordinates, one an axis, innermost first."""
        digits = []
        for size in self.axes:
            gpu, digit = divmod(gpu, size)
            digits.append(digit)
        return tuple(digits)

    def link(self, source: int, destination: int) -> int:
        """Return the id of the link between two neighbours; `TopologyError` if there is none."""
        order, keys = self._lookup
        key = source * self.nodes + destination
        position = int(np.searchsorted(keys, key))
        if position == len(keys) or keys[position] != key:
            names = f"{self.node_name(source)} to {self.node_name(destination)}"
            raise TopologyError(f"{self.name}: no link leads from {names}; {self.leads_to(source)}")
        return int(order[position])

    def leads_to(self, source: int) -> str:
        """Return where links of a node lead, at most eight by name."""
        keys = self._lookup[1]
        first, last = np.searchsorted(keys, (source * self.nodes, (source + 1) * self.nodes))
        names = [self.node_name(int(key) % self.nodes) for key in keys[first : min(last, first + 8)]]
        more = f" and {last - first - 8} more" if last - first > 8 else ""
        return f"links of {self.node_name(source)} lead to {', '.join(names) or 'no node'}{more}"

    def node_name(self, node: int) -> str:
        """Return how people and the fault language call a node: gpu5, nic0, switch2."""
        if node < self.gpus:
            return f"gpu{node}"
        if node < self.gpus + self.nics:
            return f"nic{node - self.gpus}"
        return f"switch{node - self.gpus - self.nics}"

    def link_name(self, link: int) -> str:
        """Return how people and the fault language call a directed link: gpu0>switch1."""
        return f"{self.node_name(int(self.source[link]))}>{self.node_name(int(self.destination[link]))}"

    @cached_property
    def _lookup(self) -> tuple[Int64s, Int64s]:
        keys = self.source.astype(np.int64) * self.nodes + self.destination
        order = np.argsort(keys, kind="stable")
        return order, keys[order]

    @cached_property
    def outgoing(self) -> tuple[Int64s, Int64s]:
        """Links by source as (starts, link ids), each node's in ascending order of destination."""
        order, _ = self._lookup
        return starts_by(self.source, self.nodes), order

    @cached_property
    def incoming(self) -> tuple[Int64s, Int64s]:
        """Links by destination as (starts, link ids), each node's in ascending order of source."""
        order = np.lexsort((self.source, self.destination))
        return starts_by(self.destination, self.nodes), order


def check_bandwidth(bandwidth: int, name: str) -> None:
    """Refuse what 64 bits could not add up: `TopologyError` names the link, the value and the range."""
    if not 0 <= bandwidth <= MOST_BANDWIDTH:
        shown = Bandwidth(bandwidth) if bandwidth > 0 else f"{bandwidth} B/s"
        raise TopologyError(f"{name}: bandwidth: {shown}; allowed: 0 to {Bandwidth(MOST_BANDWIDTH)}")


def check_latency(fabric: Fabric, latency: int, name: str) -> None:
    """Refuse a latency of which a route's sum could pass 2**62 ps: `TopologyError`.

    A route visits no node twice, so a fabric of n nodes allows 2**62 ps / n, and at most an hour.
    """
    most = min(MOST_LATENCY, 2**62 // fabric.nodes)
    if not 0 <= latency <= most:
        shown = Duration(latency) if latency > 0 else f"{latency} ps"
        raise TopologyError(f"{name}: latency: {shown}; allowed: 0 to {Duration(most)}")


def _equal(value: Any, other: Any) -> bool:
    return np.array_equal(value, other) if isinstance(value, np.ndarray) else bool(value == other)


class Routes(Struct, frozen=True, eq=False):
    """Many routes: flow i takes links[starts[i] : starts[i + 1]] in order."""

    starts: Int64s
    links: Int64s

    def __len__(self) -> int:
        return len(self.starts) - 1

    def of(self, flow: int) -> tuple[int, ...]:
        """Return one flow's links."""
        return tuple(self.links[self.starts[flow] : self.starts[flow + 1]].tolist())


class Router(Protocol):
    """Where messages go: a pure, deterministic function of source and destination."""

    def route(self, source: int, destination: int) -> tuple[int, ...]:
        """Return the ids of the links of the route, in order; `FabricCutError` if there is none."""
        ...

    def routes(self, pairs: Iterable[tuple[int, int]]) -> Routes:
        """Return many routes at once: far cheaper than one by one."""
        ...

    def joins_arms(self, gpus: Int64s) -> bool:
        """Return whether every route is a path out of its source followed by a path to its destination.

        The first part must be the same to all destinations, the second from all sources.
        """
        ...


NextNode: TypeAlias = Callable[[Int64s, Int64s, Int64s], Int64s]
"""(source, destination, current) to the next local node, elementwise; current differs from destination."""

LARGEST_BLOCK = 2**25
"""The most links of a block: a fully connected block of 5,793 positions. More is a mistake in the file."""

_PLANE, _NIC = 21, 22
"""The salts that are hashed with a flow's source and destination."""


class Block(Struct, frozen=True, eq=False, dict=True):
    """Directed links among local nodes, sorted by (source, destination).

    Local nodes 0..positions-1 are the endpoints, then come `nics` NICs, then switches.
    """

    positions: int
    nics: int
    nodes: int
    source: Int64s
    destination: Int64s
    bandwidth: Int64s
    latency: Int64s
    next_node: NextNode
    star: bool = False
    """Whether the first part of every route depends on the source alone and the rest on the destination
    alone.
    """
    nics_each: int = 1
    """The number of NICs of a position, where positions have NICs of their own."""

    def __len__(self) -> int:
        return len(self.source)

    @cached_property
    def _keys(self) -> Int64s:
        return self.source * self.nodes + self.destination

    @cached_property
    def _arms(self) -> tuple[Int64s, Int64s]:
        """The links out of and in to each position of a star, as rows."""
        position = np.arange(self.positions)
        routes = self._stepped(position, np.roll(position, 1))
        half = int(routes.starts[1]) // 2
        links = routes.links.reshape(self.positions, 2 * half)
        return links[:, :half], np.roll(links[:, half:], -1, axis=0)

    def walk(self, source: Int64s, destination: Int64s) -> Routes:
        """Return the routes of many flows between positions, as local link ids."""
        if not self.star or self.positions == 1:
            return self._stepped(source, destination)
        out, into = self._arms
        moves = source != destination
        stays = not moves.all()
        links = np.concatenate((out[source], into[destination]), axis=1)
        hops = links.shape[1]
        lengths = np.where(moves, hops, 0) if stays else np.full(len(source), hops)
        starts = starts_of(lengths)
        return Routes(starts, (links[moves] if stays else links).reshape(-1))

    def _stepped(self, source: Int64s, destination: Int64s) -> Routes:
        current, flows = source.copy(), np.flatnonzero(source != destination)
        hops: list[tuple[Int64s, Int64s]] = []
        while len(flows):
            assert len(hops) <= self.nodes, "a shape's route never arrives"
            here = current[flows]
            there = self.next_node(source[flows], destination[flows], here)
            hops.append((flows, np.searchsorted(self._keys, here * self.nodes + there)))
            current[flows] = there
            flows = flows[there != destination[flows]]
        if not hops:
            return Routes(np.zeros(len(source) + 1, np.int64), np.zeros(0, np.int64))
        flow = np.concatenate([hop[0] for hop in hops])
        order = np.argsort(flow, kind="stable")
        return Routes(starts_by(flow, len(source)), np.concatenate([hop[1] for hop in hops])[order])


class Wires(Struct, frozen=True, eq=False):
    """Links that a shape lays, with one rate for all of them or one each."""

    source: Int64s
    destination: Int64s
    bandwidth: Int64s
    latency: Int64s


def wires(source: Int64s, destination: Int64s, rate: Rate | Dimension) -> Wires:
    """Return links of one rate."""
    size = len(source)
    return Wires(source, destination, np.full(size, rate.bandwidth), np.full(size, rate.latency))


def both_directions(
    source: Int64s, destination: Int64s, rate: Rate | Dimension, reverse: Rate | None = None
) -> list[Wires]:
    """Return links and their opposites, which have `reverse`'s rate where it is given."""
    return [wires(source, destination, rate), wires(destination, source, reverse or rate)]


def block(positions: int, nodes: int, laid: list[Wires], next_node: NextNode, *, nics: int = 0) -> Block:
    """Return the block of all links laid, sorted."""
    source = np.concatenate([part.source for part in laid]).astype(np.int64)
    destination = np.concatenate([part.destination for part in laid]).astype(np.int64)
    order = np.lexsort((destination, source))
    bandwidth = np.concatenate([part.bandwidth for part in laid])
    latency = np.concatenate([part.latency for part in laid])
    columns = source[order], destination[order], bandwidth[order], latency[order]
    return Block(positions, nics, nodes, *columns, next_node)


def check_links(links: int, name: str) -> None:
    """Refuse a block of more links than any machine has, before it takes the memory."""
    if links > LARGEST_BLOCK:
        raise TopologyError(f"dimension {name}: {links} links; allowed: up to {LARGEST_BLOCK} in one block")


def endpoints_of_a_plane(dimension: Switched, inner: int) -> int:
    """Return how many endpoints each plane has over `inner` times the dimension's positions.

    `TopologyError` where NICs and planes do not fit each other.
    """
    where, nic, planes = f"dimension {dimension.name}", dimension.nic, dimension.planes
    sharing, count = (nic.gpus, nic.count) if nic else (1, 1)
    if inner % sharing:
        allowed = "a divisor of the inner sizes' product" if dimension.spans_inner else "1 unless spans_inner"
        raise TopologyError(f"{where}: nic.gpus: {sharing} GPUs a NIC; allowed: {allowed}")
    if (dimension.spread is None) != (planes == count == 1):
        needed = (
            "missing; allowed: hash, split" if dimension.spread is None else "one plane and one NIC need none"
        )
        raise TopologyError(f"{where}: spread: {needed}")
    if count > 1 and (count % planes or (dimension.spread == "split" and count != planes)):
        allowed = f"1 or {planes}" if dimension.spread == "split" else f"1 or a multiple of {planes}"
        raise TopologyError(f"{where}: nic.count: {count} NICs on {planes} planes; allowed: {allowed}")
    endpoints = inner * dimension.size // sharing * max(count // planes, 1)
    if count > 1 or planes > 1:
        check_links(2 * endpoints * planes, dimension.name)
    return endpoints


def with_lanes(plane: Block, dimension: Switched) -> Block:
    """Return the block of all planes of a dimension and its NICs, given one plane over its endpoints."""
    nic, planes = dimension.nic, dimension.planes
    if dimension.spread == "split":
        where = f"dimension {dimension.name}: split over {planes} planes"
        check_bandwidth(int(plane.bandwidth.max(initial=0)) * planes, where)
        plane, nic = replace(plane, bandwidth=plane.bandwidth * planes), nic and _as_one(nic, where)
        planes = 1
    apart = nic is not None and nic.count > 1
    check_links(planes * len(plane), dimension.name)
    whole = _beside(plane, planes, apart=apart) if planes > 1 else plane
    return _through_nics(whole, nic) if nic else whole


def _as_one(nic: Nic, where: str) -> Nic:
    check_bandwidth(nic.bandwidth * nic.count, where)
    return structs.replace(nic, bandwidth=Bandwidth(nic.bandwidth * nic.count), count=1)


def _beside(plane: Block, planes: int, *, apart: bool) -> Block:
    """Return planes beside each other: each has all endpoints, or endpoint n is in plane n % planes."""
    endpoints = plane.positions * (planes if apart else 1)
    switches = plane.nodes - plane.positions
    laid = []
    for number in range(planes):
        ends = np.arange(plane.positions)
        shared = ends * planes + number if apart else ends
        plane_switches = endpoints + number * switches + np.arange(switches)
        node = np.concatenate([shared, plane_switches])
        laid.append(Wires(node[plane.source], node[plane.destination], plane.bandwidth, plane.latency))
    next_node = _InPlane(plane.next_node, planes, plane.positions, switches, apart)
    return block(endpoints, endpoints + planes * switches, laid, next_node)


class _InPlane(Struct, frozen=True):
    """Routes of a shape within the plane that both ends are in or that the hash of both ends selects."""

    inner: NextNode
    planes: int
    positions: int
    """The number of endpoints of a plane."""
    switches: int
    """The number of switches of a plane."""
    apart: bool

    def __call__(self, source: Int64s, destination: Int64s, current: Int64s) -> Int64s:
        planes, positions = self.planes, self.positions
        each = planes if self.apart else 1
        plane = source % planes if self.apart else hashed(source, destination, (_PLANE,)) % planes
        first = positions * each
        switches = self.switches * plane
        here = np.where(current < first, current // each, current - first - switches + positions)
        there = self.inner(source // each, destination // each, here)
        shared = there * each + plane if self.apart else there
        return np.where(there < positions, shared, there - positions + first + switches)


def _through_nics(inner: Block, nic: Nic) -> Block:
    """Put NICs between GPUs and a block: `gpus` neighbours share `count` NICs, which are its endpoints."""
    units = inner.positions // nic.count
    positions = units * nic.gpus
    gpu = np.arange(positions)
    moved = Wires(inner.source + positions, inner.destination + positions, inner.bandwidth, inner.latency)
    laid = [moved]
    for lane in range(nic.count):
        laid += both_directions(gpu, positions + gpu // nic.gpus * nic.count + lane, nic)
    next_node = _ThroughNics(inner.next_node, positions, nic.gpus, nic.count)
    built = block(positions, positions + inner.nodes, laid, next_node, nics=inner.positions)
    return replace(built, star=inner.star and nic.gpus == nic.count == 1, nics_each=nic.count)


class _ThroughNics(Struct, frozen=True):
    """GPU to a NIC of its, from NIC to NIC as the inner block goes, NIC to GPU."""

    inner: NextNode
    positions: int
    gpus: int
    """The number of neighbours that share NICs."""
    count: int
    """The number of NICs that they share."""

    def __call__(self, source: Int64s, destination: Int64s, current: Int64s) -> Int64s:
        lane = hashed(source, destination, (_NIC,)) % self.count if self.count > 1 else 0
        ends = [end // self.gpus * self.count + lane for end in (source, destination)]
        at_gpu, arrived = current < self.positions, current - self.positions == ends[1]
        following = np.where(at_gpu, self.positions + ends[0], destination)
        between = np.flatnonzero(~at_gpu & ~arrived)
        walked = self.inner(ends[0][between], ends[1][between], current[between] - self.positions)
        following[between] = walked + self.positions
        return following
