"""Networks of routers with endpoints at them: from router to router, and the way over a third one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from rapid_des.arrays import Bools, Int64s
from rapid_des.errors import TopologyError
from rapid_des.network.blocks import Block, Wires, block, both_directions, check_links
from rapid_des.network.paths import hashed
from rapid_des.network.specs import LowDiameter, NonMinimal

Paths: TypeAlias = Callable[[Int64s, Int64s], Int64s]
"""(source, destination) endpoints to a row of routers for each flow, repeats among them, its goal at last."""
Minimal: TypeAlias = Callable[[Int64s, Int64s, tuple[Int64s, Int64s]], Int64s]
"""(start, goal) routers and the flow's ends to such rows."""

_WHETHER, _WHERE = 11, 12
"""What is hashed beside a flow's ends."""
_PARTS = 2**32
"""Of what a share is a multiple."""


def with_hosts(dimension: LowDiameter, routers: int, laid: list[Wires], paths: Paths) -> Block:
    """Return the block of routers that are linked as `laid` (counted from 0), with `hosts` endpoints each."""
    size, hosts = dimension.size, dimension.hosts
    check_links(2 * size + sum(len(part.source) for part in laid), dimension.name)
    endpoint = np.arange(size)
    links = both_directions(endpoint, size + endpoint // hosts, dimension, dimension.reverse)
    links += [
        Wires(part.source + size, part.destination + size, part.bandwidth, part.latency) for part in laid
    ]
    return block(size, size + routers, links, RouterToRouter(paths, hosts, size))


def require_room(dimension: LowDiameter, routers: int) -> None:
    """Refuse more endpoints than the routers take."""
    room = routers * dimension.hosts
    if dimension.size > room:
        allowed = f"up to {room}, {dimension.hosts} at each of {routers} routers"
        raise TopologyError(
            f"dimension {dimension.name}: size: {dimension.size} endpoints; allowed: {allowed}"
        )


def require_routers(dimension: LowDiameter, detour: NonMinimal | None) -> None:
    """Refuse ways through groups where there are none."""
    if detour is not None and detour.through == "group":
        problem = f"dimension {dimension.name} has no groups; allowed: router"
        raise TopologyError(f"routing.non_minimal.through: group: {problem}")


@dataclass(frozen=True)
class RouterToRouter:
    """From a flow's row of routers the next one; where it comes by one twice, on from the last time."""

    paths: Paths
    hosts: int
    """Endpoints at a router."""
    first: int
    """The local node of the first router."""

    def __call__(self, source: Int64s, destination: Int64s, current: Int64s) -> Int64s:
        """Return the next local node of each flow."""
        start, goal = self.first + source // self.hosts, self.first + destination // self.hosts
        following = np.where(current == goal, destination, start)
        between = np.flatnonzero((current >= self.first) & (current != goal))
        table = self.paths(source[between], destination[between])
        there = table == (current[between] - self.first)[:, None]
        last = table.shape[1] - 1 - np.argmax(there[:, ::-1], axis=1)
        following[between] = self.first + table[np.arange(len(table)), last + 1]
        return following


@dataclass(frozen=True)
class OverRouters:
    """Minimal paths, for the stated share of the flows over a third router."""

    minimal: Minimal
    hosts: int
    """Endpoints at a router."""
    routers: int
    """Of those 0..routers-1 one may be the third."""
    detour: NonMinimal | None

    def __call__(self, source: Int64s, destination: Int64s) -> Int64s:
        """Return the routers that each flow comes by."""
        start, goal = source // self.hosts, destination // self.hosts
        flow = source, destination
        if self.detour is None or self.routers < 3:
            return self.minimal(start, goal, flow)
        takes = takes_detour(self.detour, flow) & (start != goal)
        over = np.where(takes, third(self.detour, flow, (start, goal), self.routers), start)
        return np.concatenate([self.minimal(start, over, flow), self.minimal(over, goal, flow)], axis=1)


def takes_detour(detour: NonMinimal, flow: tuple[Int64s, Int64s]) -> Bools:
    """Return which flows do not go the minimal way, if they can."""
    return hashed(*flow, (detour.seed, _WHETHER)) % _PARTS < round(detour.share * _PARTS)


def third(detour: NonMinimal, flow: tuple[Int64s, Int64s], ends: tuple[Int64s, Int64s], of: int) -> Int64s:
    """Return one of the places 0..of-1 for each flow, neither of its ends, which differ."""
    place = hashed(*flow, (detour.seed, _WHERE)) % (of - 2)
    place += place >= np.minimum(*ends)
    return place + (place >= np.maximum(*ends))
