"""Fault-aware routing: the planned route where it lives, else the shortest surviving one nearest to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rapid_des.errors import FabricCutError
from rapid_des.network.fabric import Fabric, Ints, Router, Routes
from rapid_des.network.search import UNREACHED, hops_from, hops_to

_REMEMBERED = 2**27
"""Bytes of distances and next links that are kept, at eight a node and destination."""
_LISTED = 8
"""Links and GPUs that an error names one by one."""


@dataclass(frozen=True, eq=False)
class FaultAwareRouter:
    """Routes around dead links.

    A route whose links all live is taken as planned. Otherwise, among the shortest surviving paths, the one
    that follows the plan longest, then the one of lowest node ids. Such paths have no loops: each hop is one
    nearer to the destination. `FabricCutError` names the cut where no path survives.
    """

    fabric: Fabric
    planned: Router
    dead: frozenset[int]
    _distances: dict[int, tuple[NDArray[np.int32], NDArray[np.int32]]] = field(
        init=False, repr=False, default_factory=dict
    )
    _known: dict[tuple[int, int], tuple[int, ...]] = field(init=False, repr=False, default_factory=dict)

    @cached_property
    def alive(self) -> NDArray[np.bool_]:
        """Whether each link lives."""
        alive = np.ones(len(self.fabric), bool)
        alive[sorted(self.dead)] = False
        return alive

    def route(self, source: int, destination: int) -> tuple[int, ...]:
        """Return the ids of the links on the way between two GPUs, in order."""
        known = self._known.get((source, destination))
        if known is None:
            known = self.planned.route(source, destination)
            if not self.dead.isdisjoint(known):
                known = self._detour(source, destination, known)
            self._known[source, destination] = known
        return known

    def routes(self, pairs: Iterable[tuple[int, int]]) -> Routes:
        """Return the routes of many pairs of GPUs at once."""
        table = np.array(pairs if isinstance(pairs, np.ndarray) else list(pairs), np.int64).reshape(-1, 2)
        planned = self.planned.routes(table)
        flows = np.repeat(np.arange(len(planned)), np.diff(planned.starts))
        broken = np.unique(flows[~self.alive[planned.links]])
        order = np.lexsort((table[broken, 0], table[broken, 1]))
        detours = {
            flow: self._detour(int(table[flow, 0]), int(table[flow, 1]), planned.of(flow))
            for flow in broken[order].tolist()
        }
        return _replaced(planned, detours)

    def _detour(self, source: int, destination: int, planned: tuple[int, ...]) -> tuple[int, ...]:
        hops, nearer = self._ways_to(destination)
        if hops[source] == UNREACHED:
            raise self._cut(source, destination)
        ends, links, node = self.fabric.destination, list[int](), source
        for link in planned:
            ahead = int(ends[link])
            if not self.alive[link] or hops[ahead] != hops[node] - 1:
                break
            links.append(link)
            node = ahead
        while node != destination:
            links.append(int(nearer[node]))
            node = int(ends[links[-1]])
        return tuple(links)

    def _ways_to(self, destination: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return each node's hops to a destination, and its link to the lowest neighbour that is nearer."""
        known = self._distances.get(destination)
        if known is None:
            if len(self._distances) * self.fabric.nodes * 8 > _REMEMBERED:
                self._distances.clear()
            hops = hops_to(self.fabric, destination, self.alive)
            links = self._descending
            closer = links[hops[self.fabric.source[links]] == hops[self.fabric.destination[links]] + 1]
            nearer = np.zeros(self.fabric.nodes, np.int32)
            nearer[self.fabric.source[closer]] = closer  # of several, the last one written stays: the lowest
            known = self._distances[destination] = hops, nearer
        return known

    @cached_property
    def _descending(self) -> Ints:
        """The living links, those to higher nodes first."""
        links = np.flatnonzero(self.alive)
        return links[np.argsort(-self.fabric.destination[links], kind="stable")]

    def _cut(self, source: int, destination: int) -> FabricCutError:
        fabric = self.fabric
        reached = hops_from(fabric, source, self.alive) != UNREACHED
        crossing = np.flatnonzero(reached[fabric.source] & ~reached[fabric.destination])
        ends = f"{fabric.node_name(source)} can not reach {fabric.node_name(destination)}"
        near, far = _side(fabric, reached), _side(fabric, ~reached)
        links = _listed([fabric.link_name(link) for link in crossing[: _LISTED + 1].tolist()], len(crossing))
        return FabricCutError(f"{fabric.name}: {ends}: dead links cut {near} from {far}: {links}")


def _side(fabric: Fabric, member: NDArray[np.bool_]) -> str:
    gpus = np.flatnonzero(member[: fabric.gpus])
    names = _listed([fabric.node_name(gpu) for gpu in gpus[: _LISTED + 1].tolist()], len(gpus))
    others = int(np.count_nonzero(member)) - len(gpus)
    if not len(gpus):
        nodes = np.flatnonzero(member)
        return _listed([fabric.node_name(node) for node in nodes[: _LISTED + 1].tolist()], len(nodes))
    return f"{len(gpus)} GPUs ({names})" + (f" and {others} switches or NICs" if others else "")


def _listed(names: list[str], count: int) -> str:
    return ", ".join(names[:_LISTED]) + (f", … {count - _LISTED} more" if count > _LISTED else "")


def _replaced(planned: Routes, detours: dict[int, tuple[int, ...]]) -> Routes:
    if not detours:
        return planned
    rows = np.split(planned.links, planned.starts[1:-1])
    for flow, links in detours.items():
        rows[flow] = np.array(links, np.int64)
    lengths = [len(row) for row in rows]
    return Routes(np.concatenate(([0], np.cumsum(lengths))), np.concatenate(rows))
