"""Routes that the machine file states: by a given switch or NIC from one GPU to another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.errors import FabricCutError, TopologyError
from rapid_des.network.fabric import Fabric, Router, Routes
from rapid_des.network.nodes import find_gpu, find_node
from rapid_des.network.routing import FaultAwareRouter, as_pairs, replaced
from rapid_des.network.specs import Waypoint


@dataclass(frozen=True, eq=False)
class WaypointRouter:
    """Routes as planned, but for the pairs that have one of their own; blind to faults, as planned ones."""

    planned: Router
    stated: Mapping[tuple[int, int], tuple[int, ...]]
    """(source, destination) GPUs to links."""

    def route(self, source: int, destination: int) -> tuple[int, ...]:
        """Return the ids of the links between two nodes, in order."""
        return self.stated.get((source, destination)) or self.planned.route(source, destination)

    def joins_arms(self, gpus: Int64s) -> bool:
        """Tell what the planned router tells; not if a pair among the GPUs has a route of its own."""
        group = set(gpus.tolist())
        own = any(group.issuperset(pair) for pair in self.stated)
        return not own and self.planned.joins_arms(gpus)

    def routes(self, pairs: Iterable[tuple[int, int]]) -> Routes:
        """Return the routes of many pairs of nodes at once."""
        table = as_pairs(pairs)
        ends = [np.isin(table[:, side], [pair[side] for pair in self.stated]) for side in (0, 1)]
        rows = np.flatnonzero(ends[0] & ends[1]).tolist()
        keys = {row: (int(table[row, 0]), int(table[row, 1])) for row in rows}
        own = {row: self.stated[key] for row, key in keys.items() if key in self.stated}
        return replaced(self.planned.routes(table), own)


def by_waypoints(fabric: Fabric, planned: Router, waypoints: Sequence[Waypoint]) -> Router:
    """Return the router that comes by the stated nodes: planned up to there, and planned on from there.

    Where that would come by a node twice, on by the shortest way that does not. `TopologyError` names the
    waypoint that can not be.
    """
    stated: dict[tuple[int, int], tuple[int, ...]] = {}
    for index, waypoint in enumerate(waypoints):
        try:
            source, destination = (find_gpu(fabric, end) for end in (waypoint.source, waypoint.destination))
            through = find_node(fabric, waypoint.through)
            _check(fabric, (source, through, destination), taken=(source, destination) in stated)
            come = planned.route(source, through)
            stated[source, destination] = (*come, *_onward(fabric, planned, come, destination))
        except TopologyError as error:
            raise TopologyError(f"routing.waypoints[{index}]: {error}") from None
    return WaypointRouter(planned, stated) if stated else planned


def _check(fabric: Fabric, nodes: tuple[int, int, int], *, taken: bool) -> None:
    source, through, destination = nodes
    if source == destination:
        raise TopologyError(f"{fabric.node_name(source)} needs no way to itself")
    if through < fabric.gpus:
        raise TopologyError(f"through: {fabric.node_name(through)} is a GPU; allowed: a switch or a NIC")
    if taken:
        ends = f"{fabric.node_name(source)} to {fabric.node_name(destination)}"
        raise TopologyError(f"{ends} has a waypoint already; allowed: one")


def _onward(fabric: Fabric, planned: Router, come: tuple[int, ...], destination: int) -> tuple[int, ...]:
    """Return the links from a route's end to a GPU: planned, or the shortest by none of its other nodes."""
    through = int(fabric.destination[come[-1]])
    closed = np.isin(fabric.destination, fabric.source[list(come)])
    closed |= (fabric.destination < fabric.gpus) & (fabric.destination != destination)
    router = FaultAwareRouter(fabric, planned, frozenset(np.flatnonzero(closed).tolist()))
    try:
        return router.route(through, destination)
    except FabricCutError:
        ends = f"{fabric.node_name(through)} to {fabric.node_name(destination)}"
        raise TopologyError(f"no way leads from {ends} but by nodes that were come by before") from None
