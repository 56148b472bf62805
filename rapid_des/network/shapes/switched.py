"""Shapes with switches: a single one, folded Clos networks and fat trees, dragonflies."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.errors import TopologyError
from rapid_des.network.dimensions import Clos, Dragonfly, FatTree, Rate, Switch
from rapid_des.network.fabric import Block, Wires, block, both_directions, check_bandwidth, check_links, wires
from rapid_des.network.routing import pick
from rapid_des.network.specs import Routing
from rapid_des.values import replace


def switch(dimension: Switch, routing: Routing) -> Block:  # noqa: ARG001 - nothing to choose
    """Return one switch, with a link up and a link down for each endpoint."""
    size = dimension.size
    endpoint = np.arange(size)
    laid = both_directions(endpoint, np.full(size, size), dimension, dimension.reverse)

    return replace(block(size, size + 1, laid, _UpAndDown(size)), star=True)


class _UpAndDown(Struct, frozen=True):
    """Routes to the switch, which is local node `size`, and down."""

    size: int

    def __call__(self, _source: Int64s, destination: Int64s, current: Int64s) -> Int64s:
        return np.where(current < self.size, self.size, destination)


def clos(dimension: Clos, routing: Routing) -> Block:
    """Return leaves under spines, or pods of them under cores; routes go up no further than they must."""
    given = [dimension.pod_leaves, dimension.cores, dimension.core_link]
    if any(value is None for value in given) and any(value is not None for value in given):
        problem = (
            "pod_leaves, cores and core_link: all three (pods under cores) or none (leaves under spines)"
        )
        raise TopologyError(f"dimension {dimension.name}: {problem}")
    tree = _ClosNodes.of(dimension)
    check_links(2 * (tree.size + tree.leaves * tree.spines + tree.cores * tree.pods), dimension.name)
    endpoint, leaf = np.arange(tree.size), np.arange(tree.leaves)
    laid = both_directions(endpoint, tree.leaf_of(endpoint), dimension, dimension.reverse)
    for spine in range(tree.spines):
        laid += both_directions(
            tree.first_leaf + leaf, tree.spine_of(tree.pod_of(leaf), spine), dimension.uplink
        )
    if dimension.core_link is not None:
        laid += _core_links(tree, dimension.core_link)
    return block(tree.size, tree.nodes, laid, _UpNoFurther(tree, routing))


def fat_tree(dimension: FatTree, routing: Routing) -> Block:
    """Return the clos of switches with `radix` ports whose leaves have o ports down for each port up.

    Two levels hold radix leaves. In three, a pod holds radix/2 leaves, its spines have half their ports up,
    and there are at most radix pods (Al-Fares, Loukissas, Vahdat, SIGCOMM 2008, where o = 1).
    """
    radix, name = dimension.radix, dimension.name
    up, odd = divmod(radix, dimension.oversubscription + 1)
    if odd or radix % 2:
        allowed = f"an even multiple of {dimension.oversubscription + 1} for this oversubscription"
        raise TopologyError(f"dimension {name}: radix: {radix} ports do not divide; allowed: {allowed}")
    if (dimension.levels == 3) != (dimension.core_link is not None):
        raise TopologyError(f"dimension {name}: core_link: needed with levels: 3, and only there")
    shared = {
        field: getattr(dimension, field) for field in ("name", "bandwidth", "latency", "reverse", "size")
    }
    tree = Clos(**shared, leaf_size=radix - up, spines=up, uplink=dimension.uplink, rails=dimension.rails,
                pod_leaves=radix // 2 if dimension.core_link else None,
                cores=radix // 2 if dimension.core_link else None, core_link=dimension.core_link)  # fmt: skip
    leaves, most = _ClosNodes.of(tree).leaves, radix if dimension.levels == 2 else radix * radix // 2
    if leaves > most:
        allowed = f"up to {most} leaves of {radix - up} endpoints"
        raise TopologyError(
            f"dimension {name}: size: {dimension.size} needs {leaves} leaves; allowed: {allowed}"
        )
    return clos(tree, routing)


class _ClosNodes(Struct, frozen=True):
    """Where the endpoints and switches of a clos stand among the local nodes."""

    size: int
    rails: int
    leaf_size: int
    leaves: int
    pod_leaves: int
    spines: int
    cores_each: int

    @classmethod
    def of(cls, dimension: Clos) -> _ClosNodes:
        """Return the counts that a dimension states."""
        servers = -(-dimension.size // dimension.rails)
        leaves = -(-servers // dimension.leaf_size) * dimension.rails
        pod_leaves, cores = dimension.pod_leaves or leaves, dimension.cores or 0
        return cls(
            dimension.size, dimension.rails, dimension.leaf_size, leaves, pod_leaves, dimension.spines, cores
        )

    @property
    def pods(self) -> int:
        return -(-self.leaves // self.pod_leaves)

    @property
    def cores(self) -> int:
        return self.spines * self.cores_each

    @property
    def first_leaf(self) -> int:
        return self.size

    @property
    def first_spine(self) -> int:
        return self.first_leaf + self.leaves

    @property
    def first_core(self) -> int:
        return self.first_spine + self.pods * self.spines

    @property
    def nodes(self) -> int:
        return self.first_core + self.cores

    def leaf_of(self, endpoint: Int64s) -> Int64s:
        """Return the local node of an endpoint's leaf: one for each rail and `leaf_size` servers."""
        server, rail = endpoint // self.rails, endpoint % self.rails
        return self.first_leaf + server // self.leaf_size * self.rails + rail

    def pod_of(self, leaf: Int64s) -> Int64s:
        """Return the pod of leaves 0, 1, …."""
        return leaf // self.pod_leaves

    def spine_of(self, pod: Int64s, spine: Int64s | int) -> Int64s:
        """Return the local node of a pod's spine."""
        return self.first_spine + pod * self.spines + spine


def _core_links(tree: _ClosNodes, rate: Rate) -> list[Wires]:
    pod, core = (axis.ravel() for axis in np.meshgrid(np.arange(tree.pods), np.arange(tree.cores)))
    return both_directions(tree.spine_of(pod, core // tree.cores_each), tree.first_core + core, rate)


class _UpNoFurther(Struct, frozen=True):
    """Routes up to the first switch from which the destination is reachable downwards; ECMP among equals."""

    tree: _ClosNodes
    routing: Routing

    def __call__(self, source: Int64s, destination: Int64s, current: Int64s) -> Int64s:
        tree = self.tree
        leaf = tree.leaf_of(destination)
        pod = tree.pod_of(leaf - tree.first_leaf)
        server = destination // tree.rails
        spine = pick(self.routing, source, destination, 1, tree.spines, turn=server)
        upper = tree.spine_of(tree.pod_of(current - tree.first_leaf), spine)
        from_leaf = np.where(current == leaf, destination, upper)
        pod_here, spine_here = np.divmod(current - tree.first_spine, tree.spines)
        turn = server // tree.spines * tree.rails + destination % tree.rails
        core = pick(self.routing, source, destination, 2, max(tree.cores_each, 1), turn=turn)
        to_core = tree.first_core + spine_here * tree.cores_each + core
        from_spine = np.where(pod_here == pod, leaf, to_core)
        from_core = tree.spine_of(pod, (current - tree.first_core) // max(tree.cores_each, 1))
        tiers = [current < tree.first_leaf, current < tree.first_spine, current < tree.first_core]
        return np.select(tiers, [tree.leaf_of(current), from_leaf, from_spine], from_core)


def dragonfly(dimension: Dragonfly, routing: Routing) -> Block:
    """Return a dragonfly with minimal routes: at most a local, a global and a local hop between routers.

    Global links are spread by the palm tree arrangement; where two groups share several, a flow takes one of
    those that need fewest local hops. Several between the same two routers are one link of their bandwidth
    together. Minimal is meant as in Kim, Dally, Scott and Abts, ISCA 2008: no route crosses two global links,
    though a route through a third group would at times be a hop shorter.
    """
    groups = _DragonflyGroups.of(dimension)
    size, first, each = dimension.size, dimension.size, dimension.routers
    routers = groups.count * each
    check_links(2 * size + routers * (each + dimension.global_links), dimension.name)
    endpoint = np.arange(size)
    laid = both_directions(endpoint, first + endpoint // dimension.hosts, dimension, dimension.reverse)
    group = np.repeat(np.arange(groups.count), each**2) * each
    near, far = (np.tile(axis.ravel(), groups.count) for axis in np.indices((each, each)))
    local = near != far
    laid.append(wires(first + (group + near)[local], first + (group + far)[local], dimension.local_link))
    laid.append(_global_wires(groups, first, dimension))
    return block(size, size + routers, laid, _MinimalHops(groups, size, routing))


def _global_wires(groups: _DragonflyGroups, first: int, dimension: Dragonfly) -> Wires:
    """Return the links between groups: cables between the same two routers are one of their sum."""
    ends, cables = np.unique(groups.global_links(), axis=0, return_counts=True)
    laid = wires(first + ends[:, 0], first + ends[:, 1], dimension.global_link)
    most = int(cables.max(initial=1)) * dimension.global_link.bandwidth
    check_bandwidth(most, f"dimension {dimension.name}: global_link")
    return replace(laid, bandwidth=laid.bandwidth * cables)


class _DragonflyGroups(Struct, frozen=True):
    """Which routers join two groups, by the distance 1..count-1 between them and the copy of the link."""

    count: int
    hosts: int
    routers: int
    ports: int
    """The number of global links of a router."""
    copies: int
    """The number of global links between two groups."""

    @classmethod
    def of(cls, dimension: Dragonfly) -> _DragonflyGroups:
        """Return the groups of a dimension; `TopologyError` where its links cannot join them."""
        hosts, routers, ports = dimension.hosts, dimension.routers, dimension.global_links
        count = -(-dimension.size // (hosts * routers))
        copies = routers * ports // max(count - 1, 1)
        if count > 1 and not copies:
            allowed = f"up to {(routers * ports + 1) * hosts * routers} with these links"
            raise TopologyError(f"dimension {dimension.name}: size: {dimension.size}; allowed: {allowed}")
        most = max(count - 1, 1) * routers
        if ports > most:
            allowed = f"up to {most}, one to each router of other groups"
            raise TopologyError(f"dimension {dimension.name}: global_links: {ports}; allowed: {allowed}")
        return cls(count, hosts, routers, ports, copies)

    def gateway(self, distance: Int64s, copy: Int64s | int) -> Int64s:
        """Return the router in its group that holds the link to the group `distance` further on."""
        return (copy * (self.count - 1) + distance - 1) // self.ports

    def global_links(self) -> Int64s:
        """Return the (router, router) ends of all global links, a row for each cable and direction."""
        if self.count == 1:
            return np.zeros((0, 2), np.int64)
        grid = np.indices((self.count, self.count - 1, self.copies)).reshape(3, -1)
        group, distance, copy = grid[0], grid[1] + 1, grid[2]
        source = group * self.routers + self.gateway(distance, copy)
        peer = (group + distance) % self.count
        destination = peer * self.routers + self.gateway(self.count - distance, copy)
        return np.stack([source, destination], axis=1)

    def cheapest(
        self, source: Int64s, destination: Int64s, flow: tuple[Int64s, Int64s], routing: Routing
    ) -> Int64s:
        """Return the copy of the global link between two routers' groups that needs fewest local hops."""
        distance = (destination // self.routers - source // self.routers) % self.count
        distance = np.where(distance == 0, 1, distance)
        copies = np.arange(self.copies)[None, :]
        leaving = self.gateway(distance[:, None], copies) != (source % self.routers)[:, None]
        entering = (
            self.gateway((self.count - distance)[:, None], copies) != (destination % self.routers)[:, None]
        )
        costs = leaving.astype(np.int64) + entering
        best = costs == costs.min(axis=1, keepdims=True)
        nth = pick(routing, *flow, 1, best.sum(axis=1))
        return np.asarray(np.argmax(np.cumsum(best, axis=1) > nth[:, None], axis=1), np.int64)


class _MinimalHops(Struct, frozen=True):
    """Routes to the router with the global link to the goal's group, over it, and to the goal's router."""

    groups: _DragonflyGroups
    first: int
    """The local node of the first router."""
    routing: Routing

    def __call__(self, source: Int64s, destination: Int64s, current: Int64s) -> Int64s:
        groups, first = self.groups, self.first
        start, goal, here = source // groups.hosts, destination // groups.hosts, current - first
        group, router = here // groups.routers, here % groups.routers
        distance = (goal // groups.routers - group) % groups.count
        if groups.count > 1:
            copy = groups.cheapest(start, goal, (source, destination), self.routing)
            gateway = groups.gateway(distance, copy)
            peer = goal // groups.routers * groups.routers + groups.gateway(groups.count - distance, copy)
            outward = np.where(router == gateway, peer, group * groups.routers + gateway)
        else:
            outward = goal
        following = first + np.where(distance == 0, goal, outward)
        following = np.where(here == goal, destination, following)
        return np.where(current < first, first + start, following)
