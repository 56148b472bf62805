"""Which links, nodes and GPUs a fault hits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rapid_des.errors import TopologyError
from rapid_des.network.fabric import Fabric, Ints
from rapid_des.network.faults.draws import drawn
from rapid_des.network.faults.predicates import links_where, nodes_where
from rapid_des.network.faults.specs import Fault
from rapid_des.network.nodes import find_links, find_node, node_range

_SINGULAR = {"gpus": "gpu", "nics": "nic", "switches": "switch"}
_SHARED = -1


@dataclass(frozen=True, eq=False)
class Hit:
    """What one fault hits."""

    links: Ints
    """Link ids, ascending."""
    gpus: Ints
    """GPUs whose own speed the fault changes, ascending; empty where only links were named."""


def hit_by(fabric: Fabric, fault: Fault, gpus_per_node: int | None) -> Hit:
    """Return what a fault hits; `TopologyError` where it names what is not there."""
    if fault.link is not None:
        return _links(np.array(find_links(fabric, fault.link)))
    if fault.dimension is not None:
        return _links(links_where(fabric, f"dimension = {fault.dimension}"))
    if fault.all is not None or fault.random is not None:
        return _many(fabric, fault, gpus_per_node)
    if fault.node is not None:
        return _at_nodes(fabric, _servers(fabric, np.array([fault.node]), gpus_per_node))
    kind = fault.target
    written = str(getattr(fault, kind)).strip()
    number = written.removeprefix(kind).strip()
    named = written if kind == "gpu" and written.startswith("(") else f"{kind}{number}"
    return _at_nodes(fabric, np.array([find_node(fabric, named)]))


def _links(links: Ints) -> Hit:
    return Hit(np.unique(links), np.zeros(0, np.int64))


def _many(fabric: Fabric, fault: Fault, gpus_per_node: int | None) -> Hit:
    kind = str(fault.all or fault.random)
    if kind in {"links", "directions"}:
        links = links_where(fabric, fault.where)
        if kind == "directions":
            return _links(_chosen(links, fault))
        ends = np.sort(np.stack([fabric.source[links], fabric.destination[links]], axis=1), axis=1)
        _, first, cable = np.unique(ends, axis=0, return_index=True, return_inverse=True)
        return _links(links[np.isin(cable.ravel(), _chosen(np.arange(len(first)), fault))])
    if kind == "nodes":
        size = _node_size(fabric, gpus_per_node)
        firsts = nodes_where(fabric, fault.where, np.arange(fabric.gpus // size) * size)
        return _at_nodes(fabric, _servers(fabric, _chosen(firsts, fault) // size, size))
    start, count = node_range(fabric, _SINGULAR[kind])
    return _at_nodes(fabric, _chosen(nodes_where(fabric, fault.where, start + np.arange(count)), fault))


def _chosen(candidates: Ints, fault: Fault) -> Ints:
    """Return all candidates, or those that a random fault draws."""
    if not len(candidates):
        raise TopologyError(f"{fault.target}: nothing meets where: {fault.where}")
    if fault.random is None or fault.count is None or fault.seed is None:
        return candidates
    if fault.count > len(candidates):
        raise TopologyError(f"count: {fault.count} of {fault.random}; allowed: up to {len(candidates)}")
    return drawn(candidates, fault.count, fault.seed)


def _node_size(fabric: Fabric, gpus_per_node: int | None) -> int:
    if gpus_per_node is None or fabric.gpus % gpus_per_node:
        stated = "states no gpus_per_node" if gpus_per_node is None else "has no whole number of nodes"
        raise TopologyError(f"node: the machine {fabric.name} {stated}")
    return gpus_per_node


def _servers(fabric: Fabric, servers: Ints, gpus_per_node: int | None) -> Ints:
    """Return the GPUs and NICs of servers and the switches that serve only one of them."""
    size = _node_size(fabric, gpus_per_node)
    if servers.max() >= fabric.gpus // size:
        raise TopologyError(
            f"node: there is no node {servers.max()}; allowed: 0 to {fabric.gpus // size - 1}"
        )
    owner = np.full(fabric.nodes, _SHARED)
    owner[: fabric.gpus] = np.arange(fabric.gpus) // size
    for first, last in ((fabric.gpus, fabric.gpus + fabric.nics), (fabric.gpus + fabric.nics, fabric.nodes)):
        served = (fabric.destination >= first) & (fabric.destination < last) & (fabric.source < first)
        ends, owners = fabric.destination[served], owner[fabric.source[served]]
        low, high = np.full(fabric.nodes, fabric.gpus), np.full(fabric.nodes, _SHARED)
        np.minimum.at(low, ends, owners)
        np.maximum.at(high, ends, owners)
        owner = np.where(low == high, low, owner)
    return np.flatnonzero(np.isin(owner, servers))


def _at_nodes(fabric: Fabric, nodes: Ints) -> Hit:
    touches = np.isin(fabric.source, nodes) | np.isin(fabric.destination, nodes)
    return Hit(np.flatnonzero(touches), nodes[nodes < fabric.gpus])
