"""How long NCCL takes: a closed form of its rings, in-switch reductions, trees and sends; how it chooses.

A ring passes every block on step by step. A step lasts its hop latency plus the part of the chunk's time that
the next step must wait for; but never less, over all steps, than the slowest link needs for all the chunks:

    time = base + max(steps · C_slowest, Σ_steps (hop + exposed · C)) + own block / copy rate

with C = size / ranks / rate. This holds within a node and across nodes (whose steps differ). Rates of short
messages follow the fabric's ramp. Sizes are Chakra's: the input buffer of one rank.
"""

from __future__ import annotations

import math
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
    choice_across_nodes,
    choice_in_node,
)
from rapid_des.network.collectives.schedule import SHARDED_INPUT
from rapid_des.units import PS_PER_US

C = CollectiveType
_MICRO = 1e6
_LINE = 4096
_ALL_CHANNELS = 32768
_SEND_CHANNELS = 32
_SENDS = "direct", "simple"
_PEER_CHANNELS, _NIC_CHANNELS, _PEERS_A_CHANNEL = 4, 8, 4
_NVLS_CHANNELS = 16
_CHAIN_CHUNK = 512 * 2**10
_MOST_CHUNKS = 512
_MEETING, _MEETING_AT_ROOT = 0.24, 0.155
"""Of the mean wait in an M/D/1 queue, what chunks stand at each hop behind those of other rails' chains: of a
broadcast, and of a reduction, whose chains begin apart. Read off simulations of 4 to 64 ranks, the former in
12 parts: the least value by which none is more than 2 % off, rounded up."""
_MOST_LOAD = 0.9
_SEND_GRAIN = 16 * 2**20
"""A send in a node gets its share of 32 channels, or one for each 16 MiB if that is more."""


@dataclass(frozen=True)
class Place:
    """Where the ranks of a group are: on how many nodes, and with how many others on the emptiest of them."""

    ranks: int
    nodes: int
    per_node: int
    nic_blocks: int = 0
    """Blocks of an all-to-all that the busiest NIC sends; it gets one of each rank of other nodes."""

    @property
    def railed(self) -> bool:
        """Whether it has several ranks on each of several nodes: several rails."""
        return self.nodes > 1 and self.per_node > 1


@dataclass(frozen=True)
class LibraryCost:
    """How long a collective takes that meets no other traffic, how a library does it, and what it takes.

    Times are picoseconds.
    """

    duration: int
    algorithm: str
    protocol: str
    start: int = 0
    """From launch to the first byte."""
    rate: int = 0
    """Bytes a second at which a rank's sends leave that it could begin at once; 0: as links take them."""
    far_rate: int = 0
    """As `rate`, to other nodes."""
    slack: int = 0
    """What of the duration its own transfers lose where they meet on links."""
    channels: int = 0
    """CTAs of the kernel, each on an SM of its own."""
    hbm_bytes: int = 0
    """Bytes that each GPU reads from and writes to its HBM."""
    near_share: float = 1.0
    """Of the bytes for others in the node, what is sent: the rest is copied once it is there."""
    far_share: float = 1.0
    """As `near_share`, of the bytes for other nodes."""


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

    @property
    def hbm(self) -> float:
        """Bytes through HBM: each step reads a block that came, adds its own or copies, and writes it on."""
        return self.wire * (2 if self.copies else 3)


def nccl_time(
    fabric: NcclFabric, collective: CollectiveType, ranks: int, size: int, *, per_node: int | None = None
) -> LibraryCost:
    """Return the cost of a collective with an input buffer of `size` bytes on each of `ranks` ranks.

    `per_node` ranks share a node (all of them if None). Errors are those of `nccl_cost`.
    """
    return nccl_cost(fabric, collective, _even(ranks, per_node), size)


def _even(ranks: int, per_node: int | None) -> Place:
    share = ranks if per_node is None else per_node
    if ranks < 2 or ranks % share:
        raise InputError(f"{ranks} ranks can not be laid out with {share} on each node")
    return Place(ranks, ranks // share, share)


def nccl_cost(
    fabric: NcclFabric, collective: CollectiveType, place: Place, size: int, *, switched: bool = True
) -> LibraryCost:
    """Return the cost of a collective with an input buffer of `size` bytes on each rank of a group.

    Without `switched` no switch reaches all ranks, so that nothing is reduced in it. `InputError` where the
    fabric has no network between nodes. Broadcasts and reductions to one rank go along a chain, gathers and
    scatters are sends, as in NCCL; their times follow from the ring's and the sends' and were not measured.
    """
    if place.nodes > 1 and fabric.network is None:
        raise InputError(
            f"{fabric.name} has no network between nodes: {place.ranks} ranks are {place.nodes} nodes"
        )
    total = size * place.ranks if collective in SHARDED_INPUT else size
    if collective is C.ALL_TO_ALL:
        return _exchange(fabric, total, place)
    if collective in (C.GATHER, C.SCATTER):
        return _to_one(fabric, total, place)
    if collective in (C.BROADCAST, C.REDUCE):
        return _chain(fabric, size, place, begins=1 if collective is C.BROADCAST else place.per_node)
    rounds = 2 if collective in (C.ALL_REDUCE, C.BARRIER) else 1
    ring = _Ring(total, place.ranks, rounds, rounds * (place.nodes - 1), collective is C.ALL_GATHER)
    if fabric.network is None or place.nodes == 1:
        return _in_node(fabric.node, ring, switched=switched)
    if rounds == 2 and total <= fabric.network.small.limit:
        return _small_tree(fabric.node, fabric.network, ring, place.per_node)
    across = [_across(fabric, ring, place.per_node)]
    if fabric.network.tree is not None and rounds == 2:
        across += _large_tree(fabric, fabric.network.tree, ring, place.per_node, switched=switched)
    return min(across, key=lambda cost: cost.duration)


def send_time(fabric: NcclFabric, ranks: int, size: int, *, per_node: int | None = None) -> LibraryCost:
    """Return the cost of every rank sending `size` bytes to its successor (one ring of send/recv)."""
    place = _even(ranks, per_node)
    return send_cost(fabric, place, size, far=place.nodes > 1)


def send_cost(fabric: NcclFabric, place: Place, size: int, *, far: bool) -> LibraryCost:
    """Return the cost of a message of `size` bytes within a communicator, to another node where `far`."""
    direct, network = fabric.node.point_to_point, fabric.network
    if not far:
        near = min(place.ranks, max(2, place.per_node))
        few = _halved(_SEND_CHANNELS // near, place.ranks, _PEERS_A_CHANNEL * _SEND_CHANNELS)
        channels = max(few, size // _SEND_GRAIN)
        rate = min(fabric.node.simple.link, channels * direct.channel) * fabric.node.share(near) / _MICRO
        start = (direct.base + direct.peer) / PS_PER_US
        return _cost(start + size / rate, _SENDS, start=start, channels=channels, hbm=2.0 * size)
    if network is None:
        raise InputError(f"{fabric.name} has no network between nodes, which a message would cross")
    rate = min(float(network.nic), _peer_rate(network, place)) / _MICRO
    start = network.exchange_base / PS_PER_US
    return _cost(start + size / rate, _SENDS, start=start, channels=peer_channels(place), hbm=2.0 * size)


def peer_channels(place: Place) -> int:
    """Return how many channels NCCL gives each peer: 4, halved as long as 5 peers or more share a channel.

    A GPU and its NIC bring 8 channels, a node 32 at most. The halving is NCCL's rule (a channel with more
    than 4 peers' sends loses bandwidth); the 8 a NIC follow from measured sends of 1 GPU a node on 10 nodes.
    """
    room = _PEERS_A_CHANNEL * min(_SEND_CHANNELS, _NIC_CHANNELS * place.per_node)
    return _halved(_PEER_CHANNELS, place.ranks, room)


def _halved(channels: int, ranks: int, room: int) -> int:
    while channels > 1 and channels * ranks > room:
        channels //= 2
    return max(1, channels)


def _peer_rate(network: Network, place: Place) -> float:
    return float(network.channel * peer_channels(place) ** network.channel_scaling)


def _cost(  # noqa: PLR0913 - a cost's parts, by name
    micros: float,
    how: tuple[str, str],
    *,
    start: float,
    channels: int,
    hbm: float,
    slack: float = 0.0,
    rate: float = 0.0,
    far_rate: float = 0.0,
) -> LibraryCost:
    """Return a cost of these microseconds, done by `how` (algorithm, protocol); rates in bytes a us."""
    duration, first, lost = (math.ceil(time * PS_PER_US) for time in (micros, start, slack))
    rates = math.ceil(rate * _MICRO), math.ceil(far_rate * _MICRO)
    return LibraryCost(
        duration=duration,
        algorithm=how[0],
        protocol=how[1],
        start=first,
        rate=rates[0],
        far_rate=rates[1],
        slack=lost,
        channels=channels,
        hbm_bytes=math.ceil(hbm),
    )


def _slowdown(ramp: Ramp, size: float) -> float:
    return 1 + ramp.loss / (1 + size / ramp.half)


def _in_node(node: Node, ring: _Ring, *, switched: bool) -> LibraryCost:
    in_switch = _in_switch_bytes(node, ring) if switched else None
    choice = choice_in_node(node, ring.steps, ring.wire, in_switch=in_switch)
    if choice == "nvls" and node.nvls is not None and in_switch is not None:
        start = node.nvls.base / PS_PER_US
        wire = in_switch / (node.nvls.link / _MICRO) * _slowdown(node.nvls.ramp, ring.size)
        rate, channels = in_switch / wire, min(node.channels, _NVLS_CHANNELS)
        how = "nvls", "simple"
        return _cost(start + wire, how, start=start, rate=rate, channels=channels, hbm=2.0 * ring.size)
    protocol: NcclProtocol = {"ll": node.ll, "ll128": node.ll128}.get(choice, node.simple)
    slowdown = 1.0 if choice == "ll" else _slowdown(node.ramp, ring.size)
    chunk = ring.block / (protocol.link * node.share(ring.ranks) / _MICRO) * slowdown
    hop = protocol.hop / PS_PER_US
    if choice == "ll":
        hop += node.line / PS_PER_US * min(1.0, ring.block / _LINE)
    own_rate = protocol.copy_rate if ring.copies else protocol.combine_rate
    copy = min(ring.block, node.copy_window) / (own_rate / _MICRO) * slowdown
    start = _start(node, ring.block)
    micros = start + ring.steps * max(hop + protocol.exposed * chunk, chunk) + copy
    return _cost(micros, ("ring", choice), start=start, channels=_channels(node, ring), hbm=ring.hbm)


def _channels(node: Node, ring: _Ring) -> int:
    """Return how many channels carry a ring: fewer for blocks that do not fill all of them."""
    return math.ceil(node.channels * min(1.0, max(ring.block, 1.0) / _ALL_CHANNELS))


def _in_switch_bytes(node: Node, ring: _Ring) -> float | None:
    """Return what a GPU sends to the switch: all of the buffer to be reduced, and its reduced share."""
    if node.nvls is None or ring.rounds == 1 or ring.ranks < node.nvls.least_ranks:
        return None
    return ring.size * (ring.ranks + 1) / ring.ranks


def _start(node: Node, block: float) -> float:
    return (node.base + node.spread * min(1.0, block / _ALL_CHANNELS)) / PS_PER_US


def _across(fabric: NcclFabric, ring: _Ring, per_node: int) -> LibraryCost:
    network = fabric.network
    assert network is not None
    inner = ring.steps - ring.network_steps
    steps, all_reduce = (inner, ring.network_steps), ring.rounds == 2
    choice = choice_across_nodes(network, per_node, steps, ring.wire, all_reduce=all_reduce)
    micros, start = _network_ring(network, ring, per_node, choice), network.base / PS_PER_US
    return _cost(micros, ("ring", choice), start=start, channels=_channels(fabric.node, ring), hbm=ring.hbm)


def _network_ring(network: Network, ring: _Ring, per_node: int, choice: str) -> float:
    share = network.ll128_share if choice == "ll128" else 1.0
    slowdown = _slowdown(network.ramp, ring.size) / share
    link = ring.block / (network.link / _MICRO) * slowdown
    nic = ring.block / (per_node * network.nic / _MICRO) * slowdown
    hop = (network.ll128_hop if choice == "ll128" else network.simple_hop) / PS_PER_US
    inner = ring.steps - ring.network_steps
    path = inner * (hop + network.exposed * link) + ring.network_steps * (hop + network.exposed * nic)
    return network.base / PS_PER_US + max(ring.steps * max(link, nic), path)


def _large_tree(
    fabric: NcclFabric, tree: NetworkTree, ring: _Ring, per_node: int, *, switched: bool
) -> list[LibraryCost]:
    """Return what a tree of nodes takes, which reduces in their switches where these can; nothing if none."""
    in_switches = fabric.reduces_over_nodes(per_node)
    if per_node < tree.least_ranks or (in_switches and not switched):
        return []
    micros, start = _network_tree(tree, ring, per_node), tree.base / PS_PER_US
    channels = _channels(fabric.node, ring)
    if not in_switches:
        return [_cost(micros, ("tree", "simple"), start=start, channels=channels, hbm=ring.hbm)]
    pace, channels = ring.size / (micros - start), min(fabric.node.channels, _NVLS_CHANNELS)
    how = "nvls_tree", "simple"
    return [_cost(micros, how, start=start, rate=pace, channels=channels, hbm=2.0 * ring.size)]


def _network_tree(tree: NetworkTree, ring: _Ring, per_node: int) -> float:
    """Return the time of a (double) tree of nodes; a node in it receives from two children and a parent."""
    nodes = ring.ranks // per_node
    passes = 1 if nodes == 2 else 2
    levels = 2 * math.ceil(math.log2(nodes))
    slowest = max(ring.size * passes / (per_node * tree.nic), ring.size / tree.in_node)
    start = (tree.base + levels * tree.level) / PS_PER_US
    return start + slowest * _MICRO * (1 + levels * (_slowdown(tree.ramp, ring.size) - 1))


def _small_tree(node: Node, network: Network, ring: _Ring, per_node: int) -> LibraryCost:
    """Return the cost of a small all-reduce: in the node, and over a tree of nodes there and back."""
    small, nodes = network.small, ring.ranks // per_node
    inside = node.base / PS_PER_US
    if per_node > 1:
        within = _Ring(ring.size, per_node, ring.rounds, 0, ring.copies)
        inside = _in_node(node, within, switched=True).duration / PS_PER_US
    passes = 1 if nodes == 2 else 2
    wire = ring.size * passes / (per_node * network.nic) * _MICRO * _slowdown(small.ramp, ring.size)
    micros = inside + 2 * math.ceil(math.log2(nodes)) * small.level / PS_PER_US + wire
    start = node.base / PS_PER_US
    return _cost(micros, ("tree", "ll"), start=start, channels=_channels(node, ring), hbm=ring.hbm)


def _exchange(fabric: NcclFabric, size: int, place: Place) -> LibraryCost:
    direct, node, ranks = fabric.node.point_to_point, fabric.node, place.ranks
    block, near = size / ranks, place.per_node - 1
    rate = direct.link * node.share(place.per_node) / _MICRO
    each = block / rate * _slowdown(direct.ramp, size)
    hbm, channels = 2.0 * size, min(_SEND_CHANNELS, peer_channels(place) * (ranks - 1))
    if place.nodes == 1 or fabric.network is None:
        copy = block / (direct.copy_rate / _MICRO)
        spread = node.spread / PS_PER_US * min(1.0, block / _ALL_CHANNELS)
        start = (direct.base + (ranks - 1) * direct.peer) / PS_PER_US + spread
        micros = start + near * each + copy
        return _cost(micros, _SENDS, start=start, rate=block / each, channels=channels, hbm=hbm)
    network, far = fabric.network, ranks - place.per_node
    crowding = 1 + network.exchange_crowding * (1 - 2 * place.per_node / ranks)
    nic = min(network.exchange_nic / crowding, _peer_rate(network, place) * far) / _MICRO
    far_each = block / nic * _slowdown(network.exchange_ramp, block)
    start = (network.exchange_base + far * network.exchange_peer) / PS_PER_US
    wire = max(max(place.nic_blocks, far) * far_each, near * each)
    micros = start + wire + block / (network.exchange_copy_rate / _MICRO)
    rates = {"rate": block / each, "far_rate": block / far_each}
    return _cost(micros, _SENDS, start=start, channels=channels, hbm=hbm, **rates)


def _to_one(fabric: NcclFabric, size: int, place: Place) -> LibraryCost:
    """Return the cost of one rank's sends to all others, or of theirs to it, one after the other."""
    direct, block, near = fabric.node.point_to_point, size / place.ranks, place.per_node - 1
    far, start = place.ranks - place.per_node, direct.base
    rate, far_rate, wire = fabric.node.simple.link / _MICRO, 0.0, 0.0
    if fabric.network is not None and far:
        start, far_rate = fabric.network.exchange_base, fabric.network.exchange_nic / _MICRO
        wire = far * block / far_rate
    first = (start + (place.ranks - 1) * direct.peer) / PS_PER_US
    channels = min(_SEND_CHANNELS, peer_channels(place) * (place.ranks - 1))
    rates = {"rate": rate, "far_rate": far_rate}
    micros = first + max(near * block / rate, wire)
    return _cost(micros, _SENDS, start=first, channels=channels, hbm=2.0 * size, **rates)


def _chain(fabric: NcclFabric, size: int, place: Place, *, begins: int) -> LibraryCost:
    """Return the cost of a broadcast or a reduction to one rank: chunks follow one another along a ring.

    Over several nodes so many ranks begin, each with a part of the data.
    """
    ring = _Ring(size * place.ranks, place.ranks, 1, place.nodes - 1, copies=True)
    node, network, inner = fabric.node, fabric.network, ring.steps - ring.network_steps
    if network is None or place.nodes == 1:
        choice = choice_in_node(node, ring.steps, float(size), in_switch=None)
        protocol: NcclProtocol = {"ll": node.ll, "ll128": node.ll128}.get(choice, node.simple)
        start, hop = _start(node, size), protocol.hop
        rate = far_rate = protocol.link * node.share(place.ranks)
        slowdown = 1.0 if choice == "ll" else _slowdown(node.ramp, size)
    else:
        choice = choice_across_nodes(network, place.per_node, (inner, ring.network_steps), float(size))
        start = network.base / PS_PER_US
        hop = network.ll128_hop if choice == "ll128" else network.simple_hop
        rate, far_rate = min(network.link, place.per_node * network.nic), network.nic
        slowdown = _slowdown(network.ramp, size)
    wire, chunk = size / rate * _MICRO * slowdown, size / chain_chunks(size)
    fill = (inner / rate + ring.network_steps / far_rate) * chunk * _MICRO * slowdown
    railed = place.nodes > 1 and place.per_node > 1
    meeting = _MEETING if begins == 1 else _MEETING_AT_ROOT
    load = min(_MOST_LOAD, rate / node.wire)
    slack = meeting * load / (2 - 2 * load) * fill * wire / (wire + fill) if railed else 0.0
    micros = start + ring.steps * hop / PS_PER_US + wire + fill + slack
    channels, leaving = _channels(node, ring), size / wire / (begins if place.nodes > 1 else 1)
    return _cost(
        micros,
        ("ring", choice),
        start=start,
        rate=leaving,
        far_rate=leaving,
        slack=slack,
        channels=channels,
        hbm=2.0 * size,
    )


def chain_chunks(size: int) -> int:
    """Return into how many chunks a chain cuts its data: NCCL's of 512 KiB, up to 512."""
    return max(1, min(_MOST_CHUNKS, size // _CHAIN_CHUNK))
