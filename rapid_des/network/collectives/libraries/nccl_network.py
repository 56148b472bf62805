"""How long NCCL takes over nodes: its rings, trees, chains and sends across the network.

The closed form of a ring is that of `nccl`; its steps over the network have NICs and latencies of their own.
Trees of nodes reduce within each node by its switch or a chain.

Where somebody measured them, collectives and messages of equal groups take measured times instead, between
the sizes that were sampled. A file (CSV) has a row a measurement: `op` (all_reduce, all_gather,
reduce_scatter, all_to_all, send), `nodes`, `gpus_per_node`, `bytes` (each rank's input buffer) and `time_us`.
A group that nobody sampled is not served.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Floats
from rapid_des.chakra.trace import CollectiveType
from rapid_des.config.documents import read_rows
from rapid_des.errors import InputError
from rapid_des.network.collectives.libraries.nccl import (
    MICRO,
    NVLS_CHANNELS,
    SENDS,
    TUNER_BASE,
    TUNER_NODE_HOP,
    C,
    GroupPlacement,
    LibraryCost,
    RingData,
    chain_chunks,
    cost_in_node,
    exchange_block,
    exchange_channels,
    make_cost,
    peer_channels,
    ring_channels,
    ring_in_node,
    ring_of,
    send_in_node,
    slowdown_of,
    whole_size,
)
from rapid_des.network.collectives.libraries.nccl_fabric import NcclFabric, NcclNetwork, NcclNode, NetworkTree
from rapid_des.units import PS_PER_US

COLUMNS = ("op", "nodes", "gpus_per_node", "bytes", "time_us")
OPERATIONS: Mapping[str, str] = {
    "all_reduce": "all_reduce", "allreduce": "all_reduce", "all_gather": "all_gather",
    "allgather": "all_gather", "reduce_scatter": "reduce_scatter", "reducescatter": "reduce_scatter",
    "all_to_all": "all_to_all", "alltoall": "all_to_all", "send": "send", "p2p": "send",
}  # fmt: skip
"""The operation of each spelling in files."""


class Curve(Struct, frozen=True):
    """Median times over sizes, both as logarithms, ascending."""

    log_bytes: Floats
    log_us: Floats

    def microseconds(self, size: int) -> float:
        """Return the time of a size: linear in the logarithms, at the last rate beyond the ends."""
        low, high = float(np.exp(self.log_bytes[0])), float(np.exp(self.log_bytes[-1]))
        inside = min(max(float(size), low), high)
        time = float(np.exp(np.interp(np.log(inside), self.log_bytes, self.log_us)))
        return time * size / inside


Samples = Mapping[tuple[str, int, int], Curve]
"""The measured curves by operation, nodes, and ranks on a node."""


@cache
def load_samples(name: str) -> Samples:
    """Return a file's curves; an `InputError` names file, line and what is wrong."""
    path = Path(name)
    samples: dict[tuple[str, int, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line, row in enumerate(read_rows(path, COLUMNS), start=2):
        key, size, time = _read(path, line, row)
        samples[key][size].append(time)
    return {key: _curve(times) for key, times in samples.items()}


def _read(path: Path, line: int, row: Mapping[str, str]) -> tuple[tuple[str, int, int], int, float]:
    operation = OPERATIONS.get(row["op"])
    if operation is None:
        raise InputError(f"{path}: line {line}: op {row['op']!r}; allowed: {', '.join(OPERATIONS)}")
    try:
        nodes, each, size = (int(row[column]) for column in COLUMNS[1:4])
        time = float(row["time_us"])
    except (TypeError, ValueError):
        raise InputError(f"{path}: line {line}: {', '.join(COLUMNS[1:])} must be numbers") from None
    if min(nodes, each, size) < 1 or not 0 < time < np.inf:
        raise InputError(f"{path}: line {line}: {', '.join(COLUMNS[1:])} must be above 0")
    return (operation, nodes, each), size, time


def _curve(times: Mapping[int, list[float]]) -> Curve:
    sizes = sorted(times)
    medians = [float(np.median(times[size])) for size in sizes]
    return Curve(np.log(np.array(sizes, np.float64)), np.log(np.array(medians)))


def sampled_cost(
    samples: Samples, collective: CollectiveType, place: GroupPlacement, size: int
) -> LibraryCost | None:
    """Return the measured cost of a collective of such a group; None where none was measured."""
    curve = samples.get((collective.name.lower(), place.nodes, place.per_node))
    if curve is None or place.ranks != place.nodes * place.per_node:
        return None
    algorithm = "direct" if collective is CollectiveType.ALL_TO_ALL else "ring"
    return _cost(curve, size, algorithm)


def sampled_send(samples: Samples, size: int, *, inter_node: bool) -> LibraryCost | None:
    """Return the measured cost of a message, within a node or between two."""
    curve = samples.get(("send", 2, 1) if inter_node else ("send", 1, 2))
    return None if curve is None else _cost(curve, size, "direct")


def _cost(curve: Curve, size: int, algorithm: str) -> LibraryCost:
    return LibraryCost(round(curve.microseconds(size) * PS_PER_US), algorithm, "measured")


_MEETING, _MEETING_AT_ROOT = 0.24, 0.155
"""The added wait of a chunk at each hop, as a share of the mean wait in an M/D/1 queue, behind chunks of
other rails' chains: for a broadcast, and for a reduction, whose chains begin apart. Fitted to simulations of
4 to 64 ranks (the broadcast in 12 parts): the least value, rounded up, with which every one is within 2 %.
"""
_MOST_LOAD = 0.9
_TUNER_NETWORK_HOP: Mapping[str, float] = {"ll": 2.7, "ll128": 4.0, "simple": 14.0}
"""The latency of a network hop in NCCL's tuning model in microseconds, by protocol; see `nccl.TUNER_BASE`."""
_PLATEAU = 1.4
"""The factor by which NCCL lengthens the latency of Simple all-reduce rings over nodes ("plateau effect")."""
_LL128_ALONE = 0.7
"""The share of a ring's rate that NCCL expects of LL128 where a node has one rank."""
_LL128_CHANNEL = 36.7e3


def nccl_time(
    fabric: NcclFabric, collective: CollectiveType, ranks: int, size: int, *, per_node: int | None = None
) -> LibraryCost:
    """Return the cost of a collective with an input buffer of `size` bytes on each of `ranks` ranks.

    `per_node` ranks share a node (all of them if None). Errors are those of `cost_over_nodes`.
    """
    place = _even(ranks, per_node)
    cost = cost_in_node if place.nodes == 1 else cost_over_nodes
    return cost(fabric, collective, place, size)


def send_time(fabric: NcclFabric, ranks: int, size: int, *, per_node: int | None = None) -> LibraryCost:
    """Return the cost of every rank sending `size` bytes to its successor (one ring of send/recv)."""
    place = _even(ranks, per_node)
    return (send_in_node if place.nodes == 1 else send_over_nodes)(fabric, place, size)


def _even(ranks: int, per_node: int | None) -> GroupPlacement:
    share = ranks if per_node is None else per_node
    if ranks < 2 or ranks % share:
        raise InputError(f"{ranks} ranks cannot be laid out with {share} on each node")
    return GroupPlacement(ranks, ranks // share, share)


def cost_over_nodes(
    fabric: NcclFabric, collective: CollectiveType, place: GroupPlacement, size: int, *, switched: bool = True
) -> LibraryCost:
    """Return the cost of a collective of a group that spans nodes; see `nccl.cost_in_node`.

    `InputError` where the fabric has no network between nodes.
    """
    network = fabric.network
    if network is None:
        raise InputError(
            f"{fabric.name} has no network between nodes: {place.ranks} ranks are {place.nodes} nodes"
        )
    total = whole_size(collective, place, size)
    if collective is C.ALL_TO_ALL:
        return _exchange(fabric.node, network, total, place)
    if collective in (C.GATHER, C.SCATTER):
        return _to_one(fabric.node, network, total, place)
    if collective in (C.BROADCAST, C.REDUCE):
        begins = 1 if collective is C.BROADCAST else place.per_node
        return _chain(fabric.node, network, size, place, begins=begins)
    ring = ring_of(collective, place, total)
    if ring.rounds == 2 and total <= network.small.limit:
        return _small_tree(fabric.node, network, ring, place.per_node)
    across = [_across(fabric.node, network, ring, place.per_node)]
    if network.tree is not None and ring.rounds == 2:
        across += _large_tree(fabric, network.tree, ring, place.per_node, switched=switched)
    return min(across, key=lambda cost: cost.duration)


def send_over_nodes(fabric: NcclFabric, place: GroupPlacement, size: int) -> LibraryCost:
    """Return the cost of a message of `size` bytes within a communicator, to another node."""
    network = fabric.network
    if network is None:
        raise InputError(f"{fabric.name} has no network between nodes, which a message would cross")
    rate = min(float(network.nic), _peer_rate(network, place)) / MICRO
    start = network.exchange_base / PS_PER_US
    return make_cost(start + size / rate, SENDS, start=start, channels=peer_channels(place), hbm=2.0 * size)


def _peer_rate(network: NcclNetwork, place: GroupPlacement) -> float:
    return float(network.channel * peer_channels(place) ** network.channel_scaling)


def choice_across_nodes(
    network: NcclNetwork, per_node: int, steps: tuple[int, int], wire: float, *, all_reduce: bool = False
) -> str:
    """Return "ll128" or "simple" for a ring with (in-node, network) steps that moves `wire` bytes a rank."""
    ring = per_node * network.tuner_ring / MICRO
    share = network.ll128_share if per_node > 1 else _LL128_ALONE
    ll128 = min(ring * share, _LL128_CHANNEL * network.tuner_ll128_channels)
    rates = {"ll128": ll128, "simple": ring}
    latency = {
        name: TUNER_BASE[name] + steps[0] * TUNER_NODE_HOP[name] + steps[1] * _TUNER_NETWORK_HOP[name]
        for name in rates
    }
    if all_reduce:
        latency["simple"] *= _PLATEAU
    times = {name: latency[name] + wire / rate for name, rate in rates.items()}
    return min(times, key=lambda name: times[name])


def _across(node: NcclNode, network: NcclNetwork, ring: RingData, per_node: int) -> LibraryCost:
    inner = ring.steps - ring.network_steps
    steps, all_reduce = (inner, ring.network_steps), ring.rounds == 2
    choice = choice_across_nodes(network, per_node, steps, ring.wire, all_reduce=all_reduce)
    micros, start = _network_ring(network, ring, per_node, choice), network.base / PS_PER_US
    return make_cost(micros, ("ring", choice), start=start, channels=ring_channels(node, ring), hbm=ring.hbm)


def _network_ring(network: NcclNetwork, ring: RingData, per_node: int, choice: str) -> float:
    share = network.ll128_share if choice == "ll128" else 1.0
    slowdown = slowdown_of(network.ramp, ring.size) / share
    link = ring.block / (network.link / MICRO) * slowdown
    nic = ring.block / (per_node * network.nic / MICRO) * slowdown
    hop = (network.ll128_hop if choice == "ll128" else network.simple_hop) / PS_PER_US
    inner = ring.steps - ring.network_steps
    path = inner * (hop + network.exposed * link) + ring.network_steps * (hop + network.exposed * nic)
    return network.base / PS_PER_US + max(ring.steps * max(link, nic), path)


def _large_tree(
    fabric: NcclFabric, tree: NetworkTree, ring: RingData, per_node: int, *, switched: bool
) -> list[LibraryCost]:
    """Return the cost of a tree of nodes, with reductions in switches where possible; empty if no tree."""
    in_switches = fabric.reduces_over_nodes(per_node)
    if per_node < tree.least_ranks or (in_switches and not switched):
        return []
    micros, start = _network_tree(tree, ring, per_node), tree.base / PS_PER_US
    channels = ring_channels(fabric.node, ring)
    if not in_switches:
        return [make_cost(micros, ("tree", "simple"), start=start, channels=channels, hbm=ring.hbm)]
    pace, channels = ring.size / (micros - start), min(fabric.node.channels, NVLS_CHANNELS)
    how = "nvls_tree", "simple"
    return [make_cost(micros, how, start=start, rate=pace, channels=channels, hbm=2.0 * ring.size)]


def _network_tree(tree: NetworkTree, ring: RingData, per_node: int) -> float:
    """Return the time of a (double) tree of nodes; a node in it receives from two children and a parent."""
    nodes = ring.ranks // per_node
    passes = 1 if nodes == 2 else 2
    levels = 2 * math.ceil(math.log2(nodes))
    slowest = max(ring.size * passes / (per_node * tree.nic), ring.size / tree.in_node)
    start = (tree.base + levels * tree.level) / PS_PER_US
    return start + slowest * MICRO * (1 + levels * (slowdown_of(tree.ramp, ring.size) - 1))


def _small_tree(node: NcclNode, network: NcclNetwork, ring: RingData, per_node: int) -> LibraryCost:
    """Return the cost of a small all-reduce: in the node, and over a tree of nodes there and back."""
    small, nodes = network.small, ring.ranks // per_node
    inside = node.base / PS_PER_US
    if per_node > 1:
        within = RingData(ring.size, per_node, ring.rounds, 0, ring.copies)
        inside = ring_in_node(node, within, switched=True).duration / PS_PER_US
    passes = 1 if nodes == 2 else 2
    wire = ring.size * passes / (per_node * network.nic) * MICRO * slowdown_of(small.ramp, ring.size)
    micros = inside + 2 * math.ceil(math.log2(nodes)) * small.level / PS_PER_US + wire
    start = node.base / PS_PER_US
    return make_cost(micros, ("tree", "ll"), start=start, channels=ring_channels(node, ring), hbm=ring.hbm)


def _exchange(node: NcclNode, network: NcclNetwork, size: int, place: GroupPlacement) -> LibraryCost:
    block, inside, outside = size / place.ranks, place.per_node - 1, place.ranks - place.per_node
    each = exchange_block(node, size, place)
    slowdown = 1 + network.exchange_crowding * (1 - 2 * place.per_node / place.ranks)
    nic = min(network.exchange_nic / slowdown, _peer_rate(network, place) * outside) / MICRO
    each_outside = block / nic * slowdown_of(network.exchange_ramp, block)
    start = (network.exchange_base + outside * network.exchange_peer) / PS_PER_US
    wire = max(max(place.nic_blocks, outside) * each_outside, inside * each)
    micros = start + wire + block / (network.exchange_copy_rate / MICRO)
    rates = {"rate": block / each, "inter_node_rate": block / each_outside}
    return make_cost(micros, SENDS, start=start, channels=exchange_channels(place), hbm=2.0 * size, **rates)


def _to_one(node: NcclNode, network: NcclNetwork, size: int, place: GroupPlacement) -> LibraryCost:
    """Return the cost of one rank's sends to all others, or of theirs to it, one after the other."""
    block, inside, outside = size / place.ranks, place.per_node - 1, place.ranks - place.per_node
    rate, inter_node_rate = node.simple.link / MICRO, network.exchange_nic / MICRO
    start = (network.exchange_base + (place.ranks - 1) * node.point_to_point.peer) / PS_PER_US
    micros = start + max(inside * block / rate, outside * block / inter_node_rate)
    channels = exchange_channels(place)
    rates = {"rate": rate, "inter_node_rate": inter_node_rate}
    return make_cost(micros, SENDS, start=start, channels=channels, hbm=2.0 * size, **rates)


def _chain(
    node: NcclNode, network: NcclNetwork, size: int, place: GroupPlacement, *, begins: int
) -> LibraryCost:
    """Return the cost of a broadcast or a reduction to one rank: chunks follow one another along a ring.

    `begins` ranks start a chain, each with a part of the data.
    """
    ring = RingData(size * place.ranks, place.ranks, 1, place.nodes - 1, copies=True)
    inner = ring.steps - ring.network_steps
    choice = choice_across_nodes(network, place.per_node, (inner, ring.network_steps), float(size))
    start = network.base / PS_PER_US
    hop = network.ll128_hop if choice == "ll128" else network.simple_hop
    rate, inter_node_rate = min(network.link, place.per_node * network.nic), network.nic
    slowdown = slowdown_of(network.ramp, size)
    wire, chunk = size / rate * MICRO * slowdown, size / chain_chunks(size)
    fill = (inner / rate + ring.network_steps / inter_node_rate) * chunk * MICRO * slowdown
    meeting = _MEETING if begins == 1 else _MEETING_AT_ROOT
    load = min(_MOST_LOAD, rate / node.wire)
    slack = meeting * load / (2 - 2 * load) * fill * wire / (wire + fill) if place.railed else 0.0
    micros = start + ring.steps * hop / PS_PER_US + wire + fill + slack
    return make_cost(
        micros,
        ("ring", choice),
        start=start,
        rate=size / wire / begins,
        inter_node_rate=size / wire / begins,
        slack=slack,
        channels=ring_channels(node, ring),
        hbm=2.0 * size,
    )
