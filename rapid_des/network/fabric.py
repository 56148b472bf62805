"""A fabric: one immutable table of directed links between GPUs, NICs and switches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from rapid_des.errors import TopologyError

Ints: TypeAlias = NDArray[np.int64]

_Array = TypeVar("_Array", bound=NDArray[np.generic])

UNSTATED = -1
"""In `Fabric.dimension`: a link that belongs to no dimension."""


def frozen(column: _Array) -> _Array:
    """Return the array, made read-only."""
    column.setflags(write=False)
    return column


@dataclass(frozen=True, eq=False)
class Fabric:
    """Directed links as columns; nodes 0..gpus-1 are GPUs, then come the NICs, if modelled, then switches.

    GPU id = a0 + n0·(a1 + n1·(a2 + …)) with dimension 0 innermost. Link ids are positions in the columns.
    At most one link leads from one node to another: parallel cables are one wider link.
    """

    name: str
    extents: tuple[tuple[int, ...], ...]
    """The size of each dimension, innermost first; a dimension of a tuple shape keeps its tuple."""
    gpus: int
    nodes: int
    source: NDArray[np.int32]
    destination: NDArray[np.int32]
    bandwidth: NDArray[np.int64]
    """Bytes a second."""
    latency: NDArray[np.int64]
    """Picoseconds."""
    dimension: NDArray[np.int16]
    """The dimension that a link belongs to; UNSTATED (-1) where a fabric has none (graphs)."""
    nics: int = 0
    """How many of the nodes are NICs: ids gpus..gpus+nics-1."""
    dimensions: tuple[str, ...] = ()
    """The names of the dimensions."""

    def __len__(self) -> int:
        return len(self.source)

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """The extents of all dimensions in one flat tuple, innermost first: the radices of a GPU id."""
        return tuple(size for extent in self.extents for size in extent)

    def coordinates(self, gpu: int) -> tuple[int, ...]:
        """Return a GPU's coordinates, one an axis, innermost first."""
        place = []
        for size in self.axes:
            gpu, digit = divmod(gpu, size)
            place.append(digit)
        return tuple(place)

    def link(self, source: int, destination: int) -> int:
        """Return the id of the link between two neighbours; `TopologyError` if there is none."""
        order, keys = self._lookup
        key = source * self.nodes + destination
        place = int(np.searchsorted(keys, key))
        if place == len(keys) or keys[place] != key:
            names = f"{self.node_name(source)} to {self.node_name(destination)}"
            raise TopologyError(f"{self.name}: no link leads from {names}")
        return int(order[place])

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
    def _lookup(self) -> tuple[Ints, Ints]:
        keys = self.source.astype(np.int64) * self.nodes + self.destination
        order = np.argsort(keys, kind="stable")
        return order, keys[order]

    @cached_property
    def outgoing(self) -> tuple[Ints, Ints]:
        """Links by source as (starts, link ids), each node's in ascending order of destination."""
        order, _ = self._lookup
        counts = np.bincount(self.source, minlength=self.nodes)
        return np.concatenate(([0], np.cumsum(counts))), order

    @cached_property
    def incoming(self) -> tuple[Ints, Ints]:
        """Links by destination as (starts, link ids), each node's in ascending order of source."""
        order = np.lexsort((self.source, self.destination))
        counts = np.bincount(self.destination, minlength=self.nodes)
        return np.concatenate(([0], np.cumsum(counts))), order


@dataclass(frozen=True, eq=False)
class Routes:
    """Many routes: flow i takes links[starts[i] : starts[i + 1]] in order."""

    starts: Ints
    links: Ints

    def __len__(self) -> int:
        return len(self.starts) - 1

    def of(self, flow: int) -> tuple[int, ...]:
        """Return one flow's links."""
        return tuple(self.links[self.starts[flow] : self.starts[flow + 1]].tolist())


class Router(Protocol):
    """Where messages go: a pure, deterministic function of source and destination."""

    def route(self, source: int, destination: int) -> tuple[int, ...]:
        """Return the ids of the links on the way, in order; `FabricCutError` if there is none."""
        ...

    def routes(self, pairs: Iterable[tuple[int, int]]) -> Routes:
        """Return many routes at once: far cheaper than one by one."""
        ...
