"""HyperX: routers on a lattice, all those of a line linked to each other."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.errors import TopologyError
from rapid_des.network.blocks import Block, Wires, check_links, wires
from rapid_des.network.shapes.routers import OverRouters, require_room, require_routers, with_hosts
from rapid_des.network.specs import HyperX, Rate, Routing


def hyperx(dimension: HyperX, routing: Routing) -> Block:
    """Return a HyperX; router = s0 + S0·(s1 + S1·(…)), and dimension order is the minimal route."""
    sizes = (dimension.routers,) if isinstance(dimension.routers, int) else dimension.routers
    cables = (dimension.cables,) * len(sizes) if isinstance(dimension.cables, int) else dimension.cables
    if len(cables) != len(sizes):
        problem = f"cables: {len(cables)} numbers; allowed: one, or one for each of {len(sizes)} axes"
        raise TopologyError(f"dimension {dimension.name}: {problem}")
    routers = math.prod(sizes)
    require_room(dimension, routers)
    require_routers(dimension, routing.non_minimal)
    check_links(routers * sum(size - 1 for size in sizes), dimension.name)
    laid = [_line(sizes, axis, dimension.router_link, count) for axis, count in enumerate(cables)]
    minimal = _AxisByAxis(sizes, routing)
    return with_hosts(
        dimension, routers, laid, OverRouters(minimal, dimension.hosts, routers, routing.non_minimal)
    )


def _line(sizes: tuple[int, ...], axis: int, rate: Rate, cables: int) -> Wires:
    """Return the links of every router to the others that differ from it along one axis."""
    stride, size = math.prod(sizes[:axis]), sizes[axis]
    router = np.repeat(np.arange(math.prod(sizes)), size - 1)
    digit = router // stride % size
    turn = np.tile(np.arange(1, size), math.prod(sizes))
    other = router + ((digit + turn) % size - digit) * stride
    one = wires(router, other, rate)
    return Wires(one.source, one.destination, one.bandwidth * cables, one.latency)


@dataclass(frozen=True)
class _AxisByAxis:
    sizes: tuple[int, ...]
    routing: Routing

    def __call__(self, start: Int64s, goal: Int64s, flow: tuple[Int64s, Int64s]) -> Int64s:  # noqa: ARG002
        axes = range(len(self.sizes))
        path = [start]
        for axis in axes if self.routing.order == "innermost_first" else reversed(axes):
            stride, size = math.prod(self.sizes[:axis]), self.sizes[axis]
            path.append(path[-1] + (goal // stride % size - start // stride % size) * stride)
        return np.stack(path, axis=1)
