"""How long NCCL takes: a closed form of its rings, in-switch reductions, trees and sends; how it chooses.

A ring passes every block on step by step. A step lasts its hop latency plus the part of the chunk's time that
the next step must wait for; but never less, over all steps, than the slowest link needs for all the chunks:

    time = base + max(steps · C_slowest, Σ_steps (hop + exposed · C)) + own block / copy rate

with C = size / ranks / rate. This holds within a node and across nodes (whose steps differ). Rates of short
messages follow the fabric's ramp. Sizes are Chakra's: the input buffer of one rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import InputError
from rapid_des.network.collectives.libraries.nccl_fabric import (
    NcclFabric,
    NcclProtocol,
    Network,
    NetworkTree,
    Node,
    Ramp,
)
from rapid_des.units import PS_PER_US

C = CollectiveType
_MICRO = 1e6
_RING = frozenset({C.ALL_REDUCE, C.ALL_GATHER, C.REDUCE_SCATTER, C.REDUCE_SCATTER_BLOCK})
_LINE = 4096
_ALL_CHANNELS = 32768
_SEND_CHANNELS = 32
_SEND_GRAIN = 16 * 2**20
"""A send in a node gets its share of 32 channels, or one for each 16 MiB if that is more."""

# NCCL's own latencies by which it chooses (microseconds; public in its tuning source since 2.19), not
# measurements: NCCL is often wrong about the time, and the choice must be wrong in the same way.
_TUNER_BASE: Mapping[str, float] = {"ll": 6.6, "ll128": 14.0, "simple": 8.4}
_TUNER_NODE_HOP: Mapping[str, float] = {"ll": 0.6, "ll128": 1.9, "simple": 3.4}
_TUNER_NETWORK_HOP: Mapping[str, float] = {"ll": 2.7, "ll128": 4.0, "simple": 14.0}
_TUNER_NVLS = 25.0
_LL128_IN_A_RING = 0.92
_LL128_CHANNEL = 36.7e3


@dataclass(frozen=True)
class NcclEstimate:
    """How long a collective takes, and how NCCL does it."""

    duration: int
    """Picoseconds."""
    algorithm: str
    protocol: str


@dataclass(frozen=True)
class _Ring:
    """What goes round: the whole buffer, among how many, in which steps."""

    size: int
    ranks: int
    rounds: int
    network_steps: int
    copies: bool
    """Nothing is added up (all-gather)."""

    @property
    def steps(self) -> int:
        return self.rounds * (self.ranks - 1)

    @property
    def block(self) -> float:
        return self.size / self.ranks

    @property
    def wire(self) -> float:
        return self.steps * self.block


def nccl_time(
    fabric: NcclFabric, collective: CollectiveType, ranks: int, size: int, *, per_node: int | None = None
) -> NcclEstimate:
    """Return the time of a collective with an input buffer of `size` bytes on each of `ranks` ranks.

    `per_node` ranks share a node (all of them if None). `InputError` where NCCL has no such collective or the
    fabric no network.
    """
    share = ranks if per_node is None else per_node
    if ranks < 2 or ranks % share:
        raise InputError(f"{ranks} ranks can not be laid out with {share} on each node")
    nodes = ranks // share
    total = size * ranks if collective is C.ALL_GATHER else size
    if nodes > 1 and fabric.network is None:
        raise InputError(f"{fabric.name} has no network between nodes: {ranks} ranks are {nodes} nodes")
    if collective is C.ALL_TO_ALL:
        micros = _exchange(fabric, total, ranks, share)
        return _estimate(micros, "direct", "simple")
    if collective not in _RING:
        allowed = ", ".join(kind.name.lower() for kind in C if kind in _RING | {C.ALL_TO_ALL})
        raise InputError(f"the NCCL model has no {collective.name.lower()}; it has {allowed}")
    rounds = 2 if collective is C.ALL_REDUCE else 1
    ring = _Ring(total, ranks, rounds, rounds * (nodes - 1), collective is C.ALL_GATHER)
    if fabric.network is None or nodes == 1:
        return _in_node(fabric.node, ring)
    if rounds == 2 and total <= fabric.network.small.limit:
        return _estimate(_small_tree(fabric.node, fabric.network, ring, share), "tree", "ll")
    return _across(fabric.network, ring, share)


def send_time(fabric: NcclFabric, ranks: int, size: int, *, per_node: int | None = None) -> NcclEstimate:
    """Return the time in which every rank sends `size` bytes to its successor (one ring of send/recv)."""
    share = ranks if per_node is None else per_node
    if ranks == share:
        direct = fabric.node.point_to_point
        channels = max(_SEND_CHANNELS // ranks, size // _SEND_GRAIN)
        rate = min(fabric.node.simple.link, channels * direct.channel) * fabric.node.share(ranks) / _MICRO
        return _estimate((direct.base + direct.peer) / PS_PER_US + size / rate, "direct", "simple")
    assert fabric.network is not None
    network = fabric.network
    rate = _peer_rate(network, ranks) / _MICRO
    return _estimate(network.exchange_base / PS_PER_US + size / rate, "direct", "simple")


def peer_channels(ranks: int) -> int:
    """Return how many channels NCCL gives each peer: 4 up to 8 ranks, halved for 9 and more, and for 33."""
    return 4 if ranks <= 8 else 2 if ranks <= 32 else 1


def _peer_rate(network: Network, ranks: int) -> float:
    return float(network.channel * peer_channels(ranks) ** network.channel_scaling)


def _estimate(micros: float, algorithm: str, protocol: str) -> NcclEstimate:
    return NcclEstimate(math.ceil(micros * PS_PER_US), algorithm, protocol)


def _slowdown(ramp: Ramp, size: float) -> float:
    return 1 + ramp.loss / (1 + size / ramp.half)


def _in_node(node: Node, ring: _Ring) -> NcclEstimate:
    in_switch = _in_switch_bytes(node, ring)
    choice = _choice_in_node(node, ring.steps, ring.wire, in_switch=in_switch)
    if choice == "nvls" and node.nvls is not None and in_switch is not None:
        wire = in_switch / (node.nvls.link / _MICRO)
        micros = node.nvls.base / PS_PER_US + wire * _slowdown(node.nvls.ramp, ring.size)
        return _estimate(micros, "nvls", "simple")
    protocol: NcclProtocol = {"ll": node.ll, "ll128": node.ll128}.get(choice, node.simple)
    slowdown = 1.0 if choice == "ll" else _slowdown(node.ramp, ring.size)
    chunk = ring.block / (protocol.link * node.share(ring.ranks) / _MICRO) * slowdown
    hop = protocol.hop / PS_PER_US
    if choice == "ll":
        hop += node.line / PS_PER_US * min(1.0, ring.block / _LINE)
    own_rate = protocol.copy_rate if ring.copies else protocol.combine_rate
    copy = min(ring.block, node.copy_window) / (own_rate / _MICRO) * slowdown
    micros = _start(node, ring.block) + ring.steps * max(hop + protocol.exposed * chunk, chunk) + copy
    return _estimate(micros, "ring", choice)


def _in_switch_bytes(node: Node, ring: _Ring) -> float | None:
    """Return what a GPU sends to the switch: all of the buffer to be reduced, and its reduced share."""
    if node.nvls is None or ring.rounds == 1 or ring.ranks < node.nvls.least_ranks:
        return None
    return ring.size * (ring.ranks + 1) / ring.ranks


def _start(node: Node, block: float) -> float:
    return (node.base + node.spread * min(1.0, block / _ALL_CHANNELS)) / PS_PER_US


def _across(network: Network, ring: _Ring, per_node: int) -> NcclEstimate:
    inner = ring.steps - ring.network_steps
    choice = _choice_across_nodes(network, per_node, (inner, ring.network_steps), ring.wire)
    micros, name = _network_ring(network, ring, per_node, choice), "ring"
    if network.tree is not None and ring.rounds == 2:
        tree = _network_tree(network.tree, ring, per_node)
        if tree < micros:
            return _estimate(tree, "tree", "simple")
    return _estimate(micros, name, choice)


def _network_ring(network: Network, ring: _Ring, per_node: int, choice: str) -> float:
    share = network.ll128_share if choice == "ll128" else 1.0
    slowdown = _slowdown(network.ramp, ring.size) / share
    link = ring.block / (network.link / _MICRO) * slowdown
    nic = ring.block / (per_node * network.nic / _MICRO) * slowdown
    hop = (network.ll128_hop if choice == "ll128" else network.simple_hop) / PS_PER_US
    inner = ring.steps - ring.network_steps
    path = inner * (hop + network.exposed * link) + ring.network_steps * (hop + network.exposed * nic)
    return network.base / PS_PER_US + max(ring.steps * max(link, nic), path)


def _network_tree(tree: NetworkTree, ring: _Ring, per_node: int) -> float:
    """Return the time of a (double) tree of nodes; a node in it receives from two children and a parent."""
    nodes = ring.ranks // per_node
    passes = 1 if nodes == 2 else 2
    levels = 2 * math.ceil(math.log2(nodes))
    nics = ring.size * passes / (per_node * tree.nic) * _slowdown(tree.ramp, ring.size)
    start = (tree.base + levels * tree.level) / PS_PER_US
    return start + max(nics, ring.size / tree.in_node) * _MICRO


def _small_tree(node: Node, network: Network, ring: _Ring, per_node: int) -> float:
    """Return the time of a small all-reduce: in the node, and over a tree of nodes there and back."""
    small, nodes = network.small, ring.ranks // per_node
    inside = node.base / PS_PER_US
    if per_node > 1:
        within = _Ring(ring.size, per_node, ring.rounds, 0, ring.copies)
        inside = _in_node(node, within).duration / PS_PER_US
    passes = 1 if nodes == 2 else 2
    wire = ring.size * passes / (per_node * network.nic) * _MICRO * _slowdown(small.ramp, ring.size)
    return inside + 2 * math.ceil(math.log2(nodes)) * small.level / PS_PER_US + wire


def _exchange(fabric: NcclFabric, size: int, ranks: int, per_node: int) -> float:
    direct = fabric.node.point_to_point
    block = size / ranks
    rate = direct.link * fabric.node.share(per_node) / _MICRO
    link = (per_node - 1) * block / rate * _slowdown(direct.ramp, size)
    if ranks == per_node or fabric.network is None:
        copy = block / (direct.copy_rate / _MICRO)
        spread = fabric.node.spread / PS_PER_US * min(1.0, block / _ALL_CHANNELS)
        return (direct.base + (ranks - 1) * direct.peer) / PS_PER_US + spread + link + copy
    network = fabric.network
    crowding = 1 + network.exchange_crowding * (1 - 2 * per_node / ranks)
    nic = network.exchange_nic / crowding
    rate = min(nic, _peer_rate(network, ranks) * (ranks - per_node)) / _MICRO
    wire = (ranks - per_node) * block / rate * _slowdown(network.exchange_ramp, block)
    start = (network.exchange_base + (ranks - per_node) * network.exchange_peer) / PS_PER_US
    return start + max(wire, link) + block / (network.exchange_copy_rate / _MICRO)


def _choice_in_node(node: Node, steps: int, wire: float, *, in_switch: float | None) -> str:
    """Return "ll", "ll128", "simple" or "nvls" for a ring of `steps` that moves `wire` bytes a rank.

    `in_switch` bytes would go through the NVLink switch each way; None where it can not reduce.
    """
    ring = node.tuner.ring / _MICRO
    rates = {
        "ll": min(node.tuner.ll / _MICRO, ring / 2),
        "ll128": min(node.tuner.ll128 / _MICRO, ring * _LL128_IN_A_RING),
        "simple": ring,
    }
    times = {
        name: _TUNER_BASE[name] + steps * _TUNER_NODE_HOP[name] + wire / rate for name, rate in rates.items()
    }
    if in_switch is not None and node.tuner.nvls is not None:
        times["nvls"] = _TUNER_NVLS + in_switch / (node.tuner.nvls / _MICRO)
    return min(times, key=lambda name: times[name])


def _choice_across_nodes(network: Network, per_node: int, steps: tuple[int, int], wire: float) -> str:
    """Return "ll128" or "simple" for a ring with (in-node, network) steps that moves `wire` bytes a rank."""
    ring = per_node * network.tuner_ring / _MICRO
    ll128 = min(ring * network.ll128_share, _LL128_CHANNEL * network.tuner_ll128_channels)
    rates = {"ll128": ll128, "simple": ring}
    times = {
        name: _TUNER_BASE[name]
        + steps[0] * _TUNER_NODE_HOP[name]
        + steps[1] * _TUNER_NETWORK_HOP[name]
        + wire / rate
        for name, rate in rates.items()
    }
    return min(times, key=lambda name: times[name])
