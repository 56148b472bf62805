"""Ways that begin or end at a switch, for transfers of collectives that work inside switches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rapid_des.errors import TopologyError
from rapid_des.network.fabric import Fabric, Router, Routes
from rapid_des.network.search import UNREACHED, levels

_REMEMBERED = 2**26
"""Bytes of distances that are kept, at four a node and destination."""


@dataclass(frozen=True, eq=False)
class AnyNodeRouter:
    """Routes between GPUs as `between_gpus` has them, and between any other nodes the shortest way.

    Such a way leads through no GPU, from the lower node to the higher one over the lowest nodes, and back
    over the same nodes where those links exist. It is blind to faults, as planned routes are.
    """

    fabric: Fabric
    between_gpus: Router
    _hops: dict[int, NDArray[np.int32]] = field(init=False, repr=False, default_factory=dict)
    _known: dict[tuple[int, int], tuple[int, ...]] = field(init=False, repr=False, default_factory=dict)

    def route(self, source: int, destination: int) -> tuple[int, ...]:
        """Return the ids of the links on the way between two nodes, in order."""
        if max(source, destination) < self.fabric.gpus:
            return self.between_gpus.route(source, destination)
        known = self._known.get((source, destination))
        if known is None:
            known = self._known[source, destination] = self._way(source, destination)
        return known

    def routes(self, pairs: Iterable[tuple[int, int]]) -> Routes:
        """Return the routes of many pairs of nodes at once."""
        table = np.array(pairs if isinstance(pairs, np.ndarray) else list(pairs), np.int64).reshape(-1, 2)
        own = np.flatnonzero((table >= self.fabric.gpus).any(axis=1))
        if not len(own):
            return self.between_gpus.routes(table)
        plain = table.copy()
        plain[own] = 0  # a GPU's way to itself has no links
        others = self.between_gpus.routes(plain)
        ways = [self.route(*pair) for pair in table[own].tolist()]
        lengths = np.diff(others.starts)
        lengths[own] = [len(way) for way in ways]
        starts = np.concatenate(([0], np.cumsum(lengths)))
        links = np.empty(int(starts[-1]), np.int64)
        mine = np.zeros(len(table), np.bool_)
        mine[own] = True
        of_mine = np.repeat(mine, lengths)
        links[~of_mine] = others.links
        links[of_mine] = [link for way in ways for link in way]
        return Routes(starts, links)

    def _way(self, source: int, destination: int) -> tuple[int, ...]:
        if source < destination:
            return self._shortest(source, destination)
        fabric, nodes = self.fabric, [destination]
        for link in self._known.get((destination, source)) or self._shortest(destination, source):
            nodes.append(int(fabric.destination[link]))
        try:
            return tuple(fabric.link(*hop) for hop in zip(nodes[:0:-1], nodes[-2::-1], strict=True))
        except TopologyError:
            return self._shortest(source, destination)

    def _shortest(self, source: int, destination: int) -> tuple[int, ...]:
        fabric, hops, links, node = self.fabric, self._hops_to(destination), list[int](), source
        if hops[source] == UNREACHED:
            ends = f"{fabric.node_name(source)} to {fabric.node_name(destination)}"
            raise TopologyError(f"{fabric.name}: no way leads from {ends} but through GPUs")
        starts, outgoing = fabric.outgoing
        while node != destination:
            own = outgoing[starts[node] : starts[node + 1]]
            ends_of = fabric.destination[own]
            nearer = (hops[ends_of] == hops[node] - 1) & ((ends_of >= fabric.gpus) | (ends_of == destination))
            links.append(int(own[np.argmax(nearer)]))  # rows ascend by destination: the first is the lowest
            node = int(fabric.destination[links[-1]])
        return tuple(links)

    def _hops_to(self, destination: int) -> NDArray[np.int32]:
        if destination not in self._hops:
            fabric = self.fabric
            if len(self._hops) * fabric.nodes * 4 > _REMEMBERED:
                self._hops.clear()
            passes = (fabric.destination >= fabric.gpus) | (fabric.destination == destination)
            self._hops[destination] = levels(
                fabric.incoming, fabric.source, destination, passes, fabric.nodes
            )
        return self._hops[destination]
