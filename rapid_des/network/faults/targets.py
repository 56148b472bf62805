"""Which links, nodes and GPUs a fault hits: by name, by conditions, or drawn from a seed.

Conditions are those of `where`: `dimension = rail and source.a0 < 4`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rapid_des.arrays import Bools, Int64s, distinct
from rapid_des.errors import TopologyError
from rapid_des.network.fabric import UNSTATED, Fabric
from rapid_des.network.faults.specs import Fault
from rapid_des.network.nodes import find_links, find_node, node_range
from rapid_des.units import Bandwidth, Duration, whole_number

_SINGULAR = {"gpus": "gpu", "nics": "nic", "switches": "switch"}
_SHARED = -1


@dataclass(frozen=True, eq=False)
class Hit:
    """What one fault hits."""

    links: Int64s
    """Link ids, ascending."""
    gpus: Int64s
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


def _links(links: Int64s) -> Hit:
    return Hit(distinct(links), np.zeros(0, np.int64))


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


def _chosen(candidates: Int64s, fault: Fault) -> Int64s:
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


def _servers(fabric: Fabric, servers: Int64s, gpus_per_node: int | None) -> Int64s:
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
    owner[_between_servers(fabric, owner)] = _SHARED
    return np.flatnonzero(np.isin(owner, servers))


def _between_servers(fabric: Fabric, owner: Int64s) -> Int64s:
    """Return the switches that link to one of another server: such routers belong to the network."""
    first = fabric.gpus + fabric.nics
    ends = owner[fabric.source], owner[fabric.destination]
    apart = (ends[0] != ends[1]) & (ends[0] != _SHARED) & (ends[1] != _SHARED)
    links = np.flatnonzero(apart & (fabric.source >= first) & (fabric.destination >= first))
    return np.unique(np.concatenate([fabric.source[links], fabric.destination[links]])).astype(np.int64)


def _at_nodes(fabric: Fabric, nodes: Int64s) -> Hit:
    touches = np.isin(fabric.source, nodes) | np.isin(fabric.destination, nodes)
    return Hit(np.flatnonzero(touches), nodes[nodes < fabric.gpus])


_CONDITION = re.compile(r"([a-z][a-z0-9_.]*)\s*(!=|<=|>=|=|<|>)\s*(.+)\Z")
_OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def links_where(fabric: Fabric, conditions: str | None) -> Int64s:
    """Return the ids of the links that meet the conditions.

    Fields: dimension, bandwidth, latency, source, destination, and source.a0 … for GPUs' coordinates.
    """
    columns: dict[str, Int64s] = {
        "dimension": fabric.dimension.astype(np.int64),
        "bandwidth": fabric.bandwidth,
        "latency": fabric.latency,
    }
    for name, ends in (("source", fabric.source), ("destination", fabric.destination)):
        columns[name] = ends.astype(np.int64)
        columns |= {f"{name}.{axis}": column for axis, column in _axes(fabric, columns[name]).items()}
    return np.flatnonzero(_mask(fabric, columns, conditions, len(fabric)))


def nodes_where(fabric: Fabric, conditions: str | None, ids: Int64s) -> Int64s:
    """Return those of a kind's nodes `ids` that meet conditions on id (0, 1, …) and coordinates a0, a1, …."""
    columns = {"id": np.arange(len(ids)), **_axes(fabric, ids)}
    return ids[_mask(fabric, columns, conditions, len(ids))]


def _axes(fabric: Fabric, nodes: Int64s) -> dict[str, Int64s]:
    """Return coordinates, UNSTATED for nodes that are no GPUs."""
    columns, stride = {}, 1
    for axis, size in enumerate(fabric.axes):
        columns[f"a{axis}"] = np.where(nodes < fabric.gpus, nodes // stride % size, UNSTATED)
        stride *= size
    return columns


def _mask(fabric: Fabric, columns: Mapping[str, Int64s], conditions: str | None, count: int) -> Bools:
    mask = np.ones(count, bool)
    for condition in re.split(r"\s+and\s+", conditions.strip()) if conditions else ():
        match = _CONDITION.match(condition.strip())
        if match is None or match[1] not in columns:
            allowed = f"FIELD =|!=|<|<=|>|>= VALUE with FIELD of {', '.join(columns)}"
            raise TopologyError(f"where: {condition!r} is no condition; allowed: {allowed}")
        column = columns[match[1]]
        met = _OPERATIONS[match[2]](column, _constant(fabric, match[1], match[3]))
        mask &= met & (column != UNSTATED)
    return mask


def _constant(fabric: Fabric, field: str, text: str) -> int:
    if field == "dimension":
        if text not in fabric.dimensions:
            raise TopologyError(f"where: no dimension {text!r}; allowed: {', '.join(fabric.dimensions)}")
        return fabric.dimensions.index(text)
    if field in {"source", "destination"}:
        return find_node(fabric, text)
    try:
        if field in {"bandwidth", "latency"}:
            return int((Bandwidth if field == "bandwidth" else Duration).parse(text))
        return whole_number(text)
    except ValueError as error:
        raise TopologyError(f"where: {field}: {error}") from None


_MASK = 2**64 - 1


def mixed(*numbers: int) -> int:
    """Return 64 well-mixed bits of the numbers: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), chained.

    >>> mixed(1, 2) != mixed(2, 1)
    True
    """
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def drawn(candidates: Int64s, count: int, seed: int) -> Int64s:
    """Return `count` different candidates, ascending: those whose mixed (seed, position) is smallest."""
    ranking = sorted(range(len(candidates)), key=lambda index: (mixed(seed, index), index))
    return np.sort(candidates[np.array(ranking[:count], np.int64)])
