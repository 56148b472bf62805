"""The links and GPUs that faults hit, the effects on them, and the fabric under constant faults.

A fault hits links, nodes and GPUs by name, drawn from a seed, or by conditions, those of `where`:
`dimension = rail and source.a0 < 4`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from msgspec import Struct, structs

from rapid_des.arrays import Bools, Int32s, Int64s, distinct
from rapid_des.errors import InputError, TopologyError
from rapid_des.network.build import find_flows, find_links, find_node, node_range
from rapid_des.network.fabric import UNSTATED, Fabric, Router, check_latency
from rapid_des.network.faults.specs import Fault
from rapid_des.units import PS_PER_S, Bandwidth, Duration, whole_number
from rapid_des.values import replace

ONE = Fraction(1)
STOPPED = Fraction(0)
_SINGULAR = {"gpus": "gpu", "nics": "nic", "switches": "switch"}
_SHARED = -1
_CONDITION = re.compile(r"([a-z][a-z0-9_.]*)\s*(!=|<=|>=|=|<|>)\s*(.+)\Z")
_OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MASK = 2**64 - 1


class LinkEffect(Struct, frozen=True):
    """The effect on a link: the share of the healthy rate that is left (0: down), and added picoseconds.

    Other tenants take the share `load` of what is left.
    """

    rate: Fraction
    latency: int
    load: Fraction = STOPPED

    def combined(self, other: LinkEffect) -> LinkEffect:
        """Return both effects together: shares multiply, latencies and loads add."""
        return LinkEffect(self.rate * other.rate, self.latency + other.latency, self.load + other.load)

    @property
    def left(self) -> Fraction:
        """The share of the healthy rate that serves the job; 0 while others take it all."""
        return self.rate * max(STOPPED, ONE - self.load)


class GpuFactors(Struct, frozen=True):
    """The speed of a GPU: the shares of its arithmetic and memory bandwidth that are left (0: down)."""

    compute: Fraction
    hbm: Fraction

    @classmethod
    def whole(cls) -> GpuFactors:
        """Return the factors of a healthy GPU."""
        return cls(ONE, ONE)

    def combined(self, other: GpuFactors) -> GpuFactors:
        """Return both together: shares multiply."""
        return GpuFactors(self.compute * other.compute, self.hbm * other.hbm)


def hits(
    fabric: Fabric, faults: Iterable[Fault], gpus_per_node: int | None = None
) -> Iterator[tuple[Fault, Hit]]:
    """Yield each fault with what it hits; `TopologyError` says which fault names what is not there."""
    for index, fault in enumerate(faults):
        try:
            hit = hit_by(fabric, fault, gpus_per_node)
        except TopologyError as error:
            raise TopologyError(f"faults[{index}]: {error}") from None
        yield fault, hit


def on_links(fabric: Fabric, planned: Router, faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """Return faults, in the place of those of flows one for each link of each planned route of theirs."""
    single = list[Fault]()
    for fault in faults:
        if not isinstance(fault, Fault):
            raise InputError(f"{fault!r} is no Fault: rapid_des.parse_fault makes one")
        try:
            flows = [
                ends for flow in (fault.flow or "").split(";") if flow for ends in find_flows(fabric, flow)
            ]
        except TopologyError as error:
            raise TopologyError(f"--fault {fault.words!r}: {error}") from None
        links = [fabric.link_name(link) for ends in flows for link in planned.route(*ends)]
        single += [structs.replace(fault, flow=None, link=name) for name in links]
        single += [fault] if fault.flow is None else []
    return tuple(single)


def require_hits(fabric: Fabric, faults: Iterable[Fault], gpus_per_node: int | None) -> None:
    """Raise a `TopologyError` that spells the first of some given faults which names what is not there."""
    for fault in faults:
        try:
            hit_by(fabric, fault, gpus_per_node)
        except TopologyError as error:
            raise TopologyError(f"--fault {fault.words!r}: {error}") from None


def drawn_names(fabric: Fabric, faults: Iterable[Fault], gpus_per_node: int | None) -> tuple[str, ...]:
    """Return the names of what `random` faults hit, a fault after the other: of nodes the GPUs."""
    names = list[str]()
    for fault, hit in hits(fabric, [fault for fault in faults if fault.random is not None], gpus_per_node):
        if fault.random in {"gpus", "nodes"}:
            names += [fabric.node_name(gpu) for gpu in hit.gpus.tolist()]
        elif fault.random in {"links", "directions"}:
            names += [fabric.link_name(link) for link in hit.links.tolist()]
        else:
            names += _part_names(fabric, fault, gpus_per_node)
    return tuple(names)


def _part_names(fabric: Fabric, fault: Fault, gpus_per_node: int | None) -> list[str]:
    """Return the names of drawn NICs, switches, rails or dimensions."""
    if fault.random == "dimensions":
        return [fabric.dimensions[place] for place in _chosen(np.arange(len(fabric.dimensions)), fault)]
    if fault.random == "rails":
        return [f"rail{place}" for place in _chosen(rails(fabric, gpus_per_node), fault)]
    return [fabric.node_name(int(node)) for node in _chosen_nodes(fabric, fault)]


def link_effect(fault: Fault, bandwidth: int, latency: int) -> LinkEffect:
    """Return the effect of an active fault on a link of this bandwidth and latency."""
    if fault.down:
        return LinkEffect(STOPPED, 0)
    steady = STOPPED if fault.load is None or fault.burst is not None else share(fault.load)
    longer = round(latency * (share(fault.latency_factor) - 1))
    effect = LinkEffect(share(fault.bandwidth), (fault.latency or 0) + longer, steady)
    return effect.combined(_loss(fault, bandwidth, latency))


def touches_links(fault: Fault) -> bool:
    """Whether a fault does anything to links: one that only slows GPUs does not."""
    stated = (fault.bandwidth, fault.latency, fault.latency_factor, fault.packet, fault.jitter, fault.load)
    return fault.down or any(effect is not None for effect in stated)


def gpu_effect(fault: Fault) -> GpuFactors:
    """Return the speed of a GPU under an active fault that hits it."""
    if fault.down:
        return GpuFactors(STOPPED, STOPPED)
    return GpuFactors(share(fault.compute), share(fault.hbm))


def share(factor: float | None) -> Fraction:
    """Return a factor as its decimal digits say, 1 for none."""
    return ONE if factor is None else Fraction(str(factor))


def _loss(fault: Fault, bandwidth: int, latency: int) -> LinkEffect:
    """Return the mean rate and latency of a link that repeats lost packets.

    With loss p, packet time t and round trip 2·latency + t: selective repeat keeps a share 1 - p of the rate;
    go-back-N also repeats the N = round trip / t packets in flight, share (1 - p) / (1 - p + p·N). A packet
    waits p / (1 - p) round trips on average, or with a stated timeout what its message draws (R11).
    Bertsekas and Gallager, Data Networks, section 2.4.
    """
    if fault.packet is None:
        return LinkEffect(ONE, 0)
    p = fault.loss
    packet_time = Fraction(fault.packet * PS_PER_S, bandwidth)
    round_trip = 2 * latency + packet_time
    in_flight = -(-round_trip // packet_time) if fault.retransmission == "go_back_n" else 1
    rate = (1 - p) / (1 - p + p * in_flight) if fault.retransmission == "go_back_n" else 1 - p
    return LinkEffect(rate, 0 if fault.timeout else -(-(p / (1 - p) * round_trip) // 1))


def apply_static(
    fabric: Fabric, faults: Iterable[Fault], gpus_per_node: int | None = None
) -> tuple[Fabric, frozenset[int]]:
    """Return the fabric that the constant faults leave, and its dead links, which keep their rate."""
    effects: dict[int, LinkEffect] = {}
    for fault, hit in hits(fabric, faults, gpus_per_node):
        if not fault.timed and touches_links(fault):
            for link in hit.links.tolist():
                effect = link_effect(fault, int(fabric.bandwidth[link]), int(fabric.latency[link]))
                effects[link] = effect.combined(effects.get(link, LinkEffect(ONE, 0)))
    bandwidth, latency = fabric.bandwidth.copy(), fabric.latency.copy()
    for link, effect in effects.items():
        check_latency(fabric, int(latency[link]) + effect.latency, f"faults: {fabric.link_name(link)}")
        latency[link] += effect.latency
        if effect.load >= 1:
            note = f"faults: other tenants take {float(effect.load):.3g} of {fabric.link_name(link)}"
            raise TopologyError(f"{note}; allowed: below 1 in all")
        if effect.rate:
            bandwidth[link] = max(1, int(bandwidth[link]) * effect.left // 1)
    dead = frozenset(link for link, effect in effects.items() if not effect.rate)
    return replace(fabric, bandwidth=bandwidth, latency=latency), dead


def gpu_factors(
    fabric: Fabric, faults: Iterable[Fault], gpus_per_node: int | None = None
) -> dict[int, GpuFactors]:
    """Return the speed of each GPU that constant faults slow or stop, by ascending id."""
    left: dict[int, GpuFactors] = {}
    for fault, hit in hits(fabric, faults, gpus_per_node):
        effect = gpu_effect(fault)
        if not fault.timed and effect != GpuFactors(ONE, ONE):
            for gpu in hit.gpus.tolist():
                left[gpu] = effect.combined(left.get(gpu, GpuFactors(ONE, ONE)))
    return dict(sorted(left.items()))


class Hit(Struct, frozen=True, eq=False):
    """The links and GPUs that one fault hits."""

    links: Int64s
    """The ids of the links, ascending."""
    gpus: Int64s
    """The GPUs whose own speed the fault changes, ascending; empty where only links were named."""


def hit_by(fabric: Fabric, fault: Fault, gpus_per_node: int | None) -> Hit:
    """Return the links and GPUs that a fault hits; `TopologyError` where a name does not exist."""
    if fault.link is not None:
        return _links(np.array(find_links(fabric, fault.link)))
    if fault.dimension is not None:
        return _links(links_where(fabric, f"dimension = {fault.dimension}"))
    if fault.rail is not None:
        return _links(_of_rails(fabric, np.array([fault.rail]), gpus_per_node))
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
        # a cable is both directions between two nodes: the sorted ends are equal
        ends = np.sort(np.stack([fabric.source[links], fabric.destination[links]], axis=1), axis=1)
        _, first, cable = np.unique(ends, axis=0, return_index=True, return_inverse=True)
        return _links(links[np.isin(cable.ravel(), _chosen(np.arange(len(first)), fault))])
    if kind == "nodes":
        size = _node_size(fabric, gpus_per_node)
        firsts = nodes_where(fabric, fault.where, np.arange(fabric.gpus // size) * size)
        return _at_nodes(fabric, _servers(fabric, _chosen(firsts, fault) // size, size))
    if kind == "dimensions":
        chosen = _chosen(np.arange(len(fabric.dimensions)), fault)
        return _links(np.flatnonzero(np.isin(fabric.dimension, chosen)))
    if kind == "rails":
        return _links(_of_rails(fabric, _chosen(rails(fabric, gpus_per_node), fault), gpus_per_node))
    return _at_nodes(fabric, _chosen_nodes(fabric, fault))


def _chosen_nodes(fabric: Fabric, fault: Fault) -> Int64s:
    """Return the GPUs, NICs or switches that a fault of all or of random ones hits."""
    start, count = node_range(fabric, _SINGULAR[str(fault.all or fault.random)])
    return _chosen(nodes_where(fabric, fault.where, start + np.arange(count)), fault)


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


def rails(fabric: Fabric, gpus_per_node: int | None) -> Int64s:
    """Return the places in a server at which rails begin: NICs, or GPUs where there are none."""
    size = _node_size(fabric, gpus_per_node)
    return np.arange(fabric.nics // (fabric.gpus // size) if fabric.nics else size)


def _of_rails(fabric: Fabric, places: Int64s, gpus_per_node: int | None) -> Int64s:
    """Return the links of rails; `TopologyError` where there is none at a place."""
    known, size = rails(fabric, gpus_per_node), _node_size(fabric, gpus_per_node)
    if places.max() >= len(known):
        raise TopologyError(f"rail: there is no rail {places.max()}; allowed: 0 to {len(known) - 1}")
    if fabric.nics:
        # NICs are numbered server by server, each with one NIC a rail
        nics = fabric.gpus + np.flatnonzero(np.isin(np.arange(fabric.nics) % len(known), places))
        return np.flatnonzero(np.isin(fabric.source, nics) | np.isin(fabric.destination, nics))
    inside = _at_server(fabric, fabric.source, size) == _at_server(fabric, fabric.destination, size)
    ends = [(end < fabric.gpus) & np.isin(end % size, places) for end in (fabric.source, fabric.destination)]
    return np.flatnonzero((ends[0] | ends[1]) & ~inside)


def _at_server(fabric: Fabric, nodes: Int32s, size: int) -> Int64s:
    return np.where(nodes < fabric.gpus, nodes // size, UNSTATED).astype(np.int64)


def _servers(fabric: Fabric, servers: Int64s, gpus_per_node: int | None) -> Int64s:
    """Return the GPUs and NICs of servers and the switches that serve only one of them."""
    size = _node_size(fabric, gpus_per_node)
    if servers.max() >= fabric.gpus // size:
        raise TopologyError(
            f"node: there is no node {servers.max()}; allowed: 0 to {fabric.gpus // size - 1}"
        )
    # GPUs belong to servers by number. A NIC, and then a switch, belongs to the server of all the nodes
    # below it; where these are of several servers the least owner differs from the greatest: it is shared.
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
    """Return the nodes among `ids` of a kind that meet conditions on id and coordinates a0, a1, …."""
    columns = {"id": np.arange(len(ids)), **_axes(fabric, ids)}
    return ids[_mask(fabric, columns, conditions, len(ids))]


def _axes(fabric: Fabric, nodes: Int64s) -> dict[str, Int64s]:
    """Return coordinates, UNSTATED for nodes that are no GPUs."""
    columns, stride = {}, 1
    for axis, size in enumerate(fabric.axes):
        # mixed radix, innermost axis first; switches and NICs have no coordinates
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
