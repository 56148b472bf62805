"""Leaves, spines and cores: folded Clos networks, fat trees and rail-optimised ones."""

from __future__ import annotations

import numpy as np

from rapid_des.errors import TopologyError
from rapid_des.network.blocks import Block, Step, Wires, block, both_ways, check_links
from rapid_des.network.ecmp import pick
from rapid_des.network.fabric import Ints
from rapid_des.network.specs import Clos, FatTree, Rate, Routing


def clos(dimension: Clos, routing: Routing) -> Block:
    """Return leaves under spines, or pods of them under cores; routes go up no further than they must."""
    given = [dimension.pod_leaves, dimension.cores, dimension.core_link]
    if any(value is None for value in given) and any(value is not None for value in given):
        problem = (
            "pod_leaves, cores and core_link: all three (pods under cores) or none (leaves under spines)"
        )
        raise TopologyError(f"dimension {dimension.name}: {problem}")
    plan = _Counts(dimension)
    check_links(2 * (plan.size + plan.leaves * plan.spines + plan.cores * plan.pods), dimension.name)
    endpoint, leaf = np.arange(plan.size), np.arange(plan.leaves)
    laid = both_ways(endpoint, plan.leaf_of(endpoint), dimension, dimension.reverse)
    for spine in range(plan.spines):
        laid += both_ways(plan.first_leaf + leaf, plan.spine_of(plan.pod_of(leaf), spine), dimension.uplink)
    if dimension.core_link is not None:
        laid += _core_links(plan, dimension.core_link)
    return block(plan.size, plan.nodes, laid, _step(plan, routing))


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
    leaves, most = _Counts(tree).leaves, radix if dimension.levels == 2 else radix * radix // 2
    if leaves > most:
        allowed = f"up to {most} leaves of {radix - up} endpoints"
        raise TopologyError(
            f"dimension {name}: size: {dimension.size} needs {leaves} leaves; allowed: {allowed}"
        )
    return clos(tree, routing)


class _Counts:
    """Where the endpoints and switches of a clos stand among the local nodes."""

    def __init__(self, dimension: Clos) -> None:
        self.size, self.rails, self.leaf_size = dimension.size, dimension.rails, dimension.leaf_size
        servers = -(-self.size // self.rails)
        self.leaves = -(-servers // self.leaf_size) * self.rails
        self.pod_leaves = dimension.pod_leaves or self.leaves
        self.pods = -(-self.leaves // self.pod_leaves)
        self.spines, self.cores_each = dimension.spines, dimension.cores or 0
        self.cores = self.spines * self.cores_each
        self.first_leaf = self.size
        self.first_spine = self.first_leaf + self.leaves
        self.first_core = self.first_spine + self.pods * self.spines
        self.nodes = self.first_core + self.cores

    def leaf_of(self, endpoint: Ints) -> Ints:
        """Return the local node of an endpoint's leaf: one for each rail and `leaf_size` servers."""
        server, rail = endpoint // self.rails, endpoint % self.rails
        return self.first_leaf + server // self.leaf_size * self.rails + rail

    def pod_of(self, leaf: Ints) -> Ints:
        """Return the pod of leaves 0, 1, …."""
        return leaf // self.pod_leaves

    def spine_of(self, pod: Ints, spine: Ints | int) -> Ints:
        """Return the local node of a pod's spine."""
        return self.first_spine + pod * self.spines + spine


def _core_links(plan: _Counts, rate: Rate) -> list[Wires]:
    pod, core = (axis.ravel() for axis in np.meshgrid(np.arange(plan.pods), np.arange(plan.cores)))
    return both_ways(plan.spine_of(pod, core // plan.cores_each), plan.first_core + core, rate)


def _step(plan: _Counts, routing: Routing) -> Step:
    def step(source: Ints, destination: Ints, current: Ints) -> Ints:
        leaf = plan.leaf_of(destination)
        pod = plan.pod_of(leaf - plan.first_leaf)
        spine = pick(routing, source, destination, 1, plan.spines)
        above = plan.spine_of(plan.pod_of(current - plan.first_leaf), spine)
        from_leaf = np.where(current == leaf, destination, above)
        own_pod, own_spine = np.divmod(current - plan.first_spine, plan.spines)
        core = pick(routing, source, destination, 2, max(plan.cores_each, 1))
        to_core = plan.first_core + own_spine * plan.cores_each + core
        from_spine = np.where(own_pod == pod, leaf, to_core)
        from_core = plan.spine_of(pod, (current - plan.first_core) // max(plan.cores_each, 1))
        tiers = [current < plan.first_leaf, current < plan.first_spine, current < plan.first_core]
        return np.select(tiers, [plan.leaf_of(current), from_leaf, from_spine], from_core)

    return step
