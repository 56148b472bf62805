"""A fabric: one immutable table of directed links between GPUs, NICs and switches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rapid_des.arrays import Bools, Int32s, Int64s, frozen, starts_by
from rapid_des.errors import TopologyError
from rapid_des.units import PS_PER_S, Bandwidth, Duration

UNSTATED = -1
"""In `Fabric.dimension`: a link that belongs to no dimension."""
MOST_BANDWIDTH = 10**18
"""Bytes a second of one link."""
MOST_LATENCY = 3600 * PS_PER_S
"""Picoseconds of one link."""


@dataclass(frozen=True, eq=False)
class Fabric:
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
    """Bytes a second."""
    latency: Int64s
    """Picoseconds."""
    dimension: NDArray[np.int16]
    """The dimension that a link belongs to; UNSTATED (-1) where a fabric has none (graphs)."""
    nics: int = 0
    """How many of the nodes are NICs: ids gpus..gpus+nics-1."""
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

    def __hash__(self) -> int:
        return hash((self.name, self.extents, self.gpus, self.nodes, len(self)))

    def __reduce__(self) -> tuple[type[Fabric], tuple[Any, ...]]:
        return Fabric, self._values()  # without the tables that follow from them

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))

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
            raise TopologyError(f"{self.name}: no link leads from {names}")
        return int(order[position])

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


@dataclass(frozen=True, eq=False)
class Routes:
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
        """Tell whether every route among GPUs is one way out of its source and one in to its destination.

        The way out is the same to all destinations, the way in from all sources.
        """
        ...
