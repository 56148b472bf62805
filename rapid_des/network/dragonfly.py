"""Dragonfly: groups of fully connected routers, joined by global links (Kim et al., ISCA 2008)."""

from __future__ import annotations

import numpy as np

from rapid_des.errors import TopologyError
from rapid_des.network.blocks import Block, Step, block, both_ways, check_links, wires
from rapid_des.network.ecmp import pick
from rapid_des.network.fabric import Ints
from rapid_des.network.specs import Dragonfly, Routing


def dragonfly(dimension: Dragonfly, routing: Routing) -> Block:
    """Return a dragonfly with minimal routes: at most a local, a global and a local hop between routers.

    Global links are spread by the palm tree arrangement; where two groups share several, a flow takes one of
    those that need fewest local hops.
    """
    plan = _Groups(dimension)
    size, first = dimension.size, dimension.size
    routers = plan.groups * plan.routers
    check_links(2 * size + routers * (plan.routers + dimension.global_links), dimension.name)
    endpoint = np.arange(size)
    laid = both_ways(endpoint, first + endpoint // plan.hosts, dimension, dimension.reverse)
    group = np.repeat(np.arange(plan.groups), plan.routers**2) * plan.routers
    one, other = (np.tile(axis.ravel(), plan.groups) for axis in np.indices((plan.routers, plan.routers)))
    local = one != other
    laid.append(wires(first + (group + one)[local], first + (group + other)[local], dimension.local_link))
    ends = plan.global_links()
    laid.append(wires(first + ends[:, 0], first + ends[:, 1], dimension.global_link))
    return block(size, size + routers, laid, _step(plan, size, routing))


class _Groups:
    """Which routers join two groups, by the distance 1..groups-1 between them and the copy of the link."""

    def __init__(self, dimension: Dragonfly) -> None:
        self.hosts, self.routers = dimension.hosts, dimension.routers
        self.ports = dimension.global_links
        self.groups = -(-dimension.size // (self.hosts * self.routers))
        self.copies = self.routers * self.ports // max(self.groups - 1, 1)
        if self.groups > 1 and not self.copies:
            allowed = f"up to {(self.routers * self.ports + 1) * self.hosts * self.routers} with these links"
            raise TopologyError(f"dimension {dimension.name}: size: {dimension.size}; allowed: {allowed}")

        most = max(self.groups - 1, 1) * self.routers
        if self.ports > most:
            allowed = f"up to {most}, one to each router of other groups"
            raise TopologyError(f"dimension {dimension.name}: global_links: {self.ports}; allowed: {allowed}")

    def gateway(self, distance: Ints, copy: Ints | int) -> Ints:
        """Return the router in its group that holds the link to the group `distance` further on."""
        return (copy * (self.groups - 1) + distance - 1) // self.ports

    def global_links(self) -> Ints:
        """Return all (router, router) ends of global links, each direction once."""
        if self.groups == 1:
            return np.zeros((0, 2), np.int64)
        grid = np.indices((self.groups, self.groups - 1, self.copies)).reshape(3, -1)
        group, distance, copy = grid[0], grid[1] + 1, grid[2]
        source = group * self.routers + self.gateway(distance, copy)
        peer = (group + distance) % self.groups
        destination = peer * self.routers + self.gateway(self.groups - distance, copy)
        return np.unique(np.stack([source, destination], axis=1), axis=0)

    def cheapest(self, source: Ints, destination: Ints, flow: tuple[Ints, Ints], routing: Routing) -> Ints:
        """Return the copy of the global link between two routers' groups that needs fewest local hops."""
        distance = (destination // self.routers - source // self.routers) % self.groups
        distance = np.where(distance == 0, 1, distance)
        copies = np.arange(self.copies)[None, :]
        leaving = self.gateway(distance[:, None], copies) != (source % self.routers)[:, None]
        entering = (
            self.gateway((self.groups - distance)[:, None], copies) != (destination % self.routers)[:, None]
        )
        costs = leaving.astype(np.int64) + entering
        best = costs == costs.min(axis=1, keepdims=True)
        nth = pick(routing, *flow, 1, best.sum(axis=1))
        return np.asarray(np.argmax(np.cumsum(best, axis=1) > nth[:, None], axis=1), np.int64)


def _step(plan: _Groups, first: int, routing: Routing) -> Step:
    def step(source: Ints, destination: Ints, current: Ints) -> Ints:
        start, goal, here = source // plan.hosts, destination // plan.hosts, current - first
        group, router = here // plan.routers, here % plan.routers
        distance = (goal // plan.routers - group) % plan.groups
        if plan.groups > 1:
            copy = plan.cheapest(start, goal, (source, destination), routing)
            gateway = plan.gateway(distance, copy)
            peer = goal // plan.routers * plan.routers + plan.gateway(plan.groups - distance, copy)
            outward = np.where(router == gateway, peer, group * plan.routers + gateway)
        else:
            outward = goal
        following = first + np.where(distance == 0, goal, outward)
        following = np.where(here == goal, destination, following)
        return np.where(current < first, first + start, following)

    return step
