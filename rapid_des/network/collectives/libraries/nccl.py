"""How long NCCL takes within a node: a closed form of its rings, in-switch reductions, chains and sends.

A ring passes every block on step by step. A step lasts its hop latency plus the part of the chunk's time that
the next step must wait for; but never less, over all steps, than the slowest link needs for all the chunks:

    time = base + max(steps · C_slowest, Σ_steps (hop + exposed · C)) + own block / copy rate

with C = size / ranks / rate. This holds within a node and across nodes (`nccl_network`), whose steps differ.
Rates of short messages follow the fabric's ramp. Sizes are Chakra's: the input buffer of one rank. NCCL
chooses by estimates of its own, and so does this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct

from rapid_des.chakra.trace import CollectiveType
from rapid_des.network.collectives.libraries.nccl_fabric import NcclFabric, NcclNode, NcclProtocol, Ramp
from rapid_des.network.collectives.schedule import SHARDED_INPUT
from rapid_des.units import PS_PER_US

C = CollectiveType
MICRO = 1e6
SENDS = "direct", "simple"
NVLS_CHANNELS = 16
_LINE = 4096
_ALL_CHANNELS = 32768
SEND_CHANNELS = 32
PEERS_A_CHANNEL = 4
_PEER_CHANNELS, _NIC_CHANNELS = 4, 8
_CHAIN_CHUNK = 512 * 2**10
_MOST_CHUNKS = 512
_SEND_GRAIN = 16 * 2**20
"""The bytes per channel of a send in a node, which gets its share of 32 channels or one for each such grain
if that is more.
"""

# NCCL's own latencies by which it chooses (microseconds; public in its tuning source since 2.19), not
# measurements: NCCL is often wrong about the time, and the choice must be equally wrong.
TUNER_BASE: Mapping[str, float] = {"ll": 6.6, "ll128": 14.0, "simple": 8.4}
TUNER_NODE_HOP: Mapping[str, float] = {"ll": 0.6, "ll128": 1.9, "simple": 3.4}
_TUNER_NVLS = 25.0
_LL128_IN_A_RING = 0.92


class GroupPlacement(Struct, frozen=True):
    """Where the ranks of a group are: on how many nodes, and with how many others on the emptiest of them."""

    ranks: int
    nodes: int
    per_node: int
    nic_blocks: int = 0
    """The blocks of an all-to-all that the busiest NIC sends; it receives one from each rank of other nodes.
    """

    @property
    def railed(self) -> bool:
        """Whether it has several ranks on each of several nodes: several rails."""
        return self.nodes > 1 and self.per_node > 1


class LibraryCost(Struct, frozen=True):
    """How long a collective takes that meets no other traffic, how a library does it, and what it takes.

    Times are picoseconds.
    """

    duration: int
    algorithm: str
    protocol: str
    start: int = 0
    """The time from launch to the first byte."""
    rate: int = 0
    """The rate, in bytes a second, of a rank's sends that could all begin at once; 0: the rate of the links.
    """
    inter_node_rate: int = 0
    """The rate, in bytes a second, of sends to other nodes, with the meaning of `rate`."""
    slack: int = 0
    """The part of the duration that its own transfers lose where they share links."""
    channels: int = 0
    """The number of CTAs of the kernel, each on an SM of its own."""
    hbm_bytes: int = 0
    """The bytes that each GPU reads from and writes to its HBM."""
    intra_node_share: float = 1.0
    """The share of the bytes for others in the node that is sent; the rest is copied on arrival."""
    inter_node_share: float = 1.0
    """The share of the bytes for other nodes that is sent; the rest is copied on arrival."""


class RingData(Struct, frozen=True):
    """The data of a ring: the buffer, the number of ranks, and the steps."""

    size: int
    ranks: int
    rounds: int
    network_steps: int
    copies: bool
    """Whether blocks are only copied, not reduced (all-gather)."""

    @property
    def steps(self) -> int:
        """The number of times that each rank passes something on."""
        return self.rounds * (self.ranks - 1)

    @property
    def block(self) -> float:
        """Bytes of a step."""
        return self.size / self.ranks

    @property
    def wire(self) -> float:
        """Bytes that each rank sends in all."""
        return self.steps * self.block

    @property
    def hbm(self) -> float:
        """Bytes through HBM: each step reads a block that came, adds its own or copies, and writes it on."""
        return self.wire * (2 if self.copies else 3)


def cost_in_node(
    fabric: NcclFabric, collective: CollectiveType, place: GroupPlacement, size: int, *, switched: bool = True
) -> LibraryCost:
    """Return the cost of a collective with an input buffer of `size` bytes on each rank of one node.

    Without `switched` no switch reaches all ranks, so that nothing is reduced in it. Broadcasts and
    reductions to one rank go along a chain, gathers and scatters are sends, as in NCCL; their times follow
    from the ring's and the sends' and were not measured.
    """
    node, total = fabric.node, whole_size(collective, place, size)
    if collective is C.ALL_TO_ALL:
        return _exchange(node, total, place)
    if collective in (C.GATHER, C.SCATTER):
        return _to_one(node, total, place)
    if collective in (C.BROADCAST, C.REDUCE):
        return _chain(node, size, place)
    return ring_in_node(node, ring_of(collective, place, total), switched=switched)


def whole_size(collective: CollectiveType, place: GroupPlacement, size: int) -> int:
    """Return the bytes of all ranks' data together, each with an input buffer of `size` bytes."""
    return size * place.ranks if collective in SHARDED_INPUT else size


def ring_of(collective: CollectiveType, place: GroupPlacement, total: int) -> RingData:
    """Return the ring of a collective: twice round if every rank gets the sum."""
    rounds = 2 if collective in (C.ALL_REDUCE, C.BARRIER) else 1
    return RingData(total, place.ranks, rounds, rounds * (place.nodes - 1), collective is C.ALL_GATHER)


def send_in_node(fabric: NcclFabric, place: GroupPlacement, size: int) -> LibraryCost:
    """Return the cost of a message of `size` bytes within a communicator, to a rank of the same node."""
    direct, peers = fabric.node.point_to_point, min(place.ranks, max(2, place.per_node))
    few = halved(SEND_CHANNELS // peers, place.ranks, PEERS_A_CHANNEL * SEND_CHANNELS)
    channels = max(few, size // _SEND_GRAIN)
    rate = min(fabric.node.simple.link, channels * direct.channel) * link_share(fabric.node, peers) / MICRO
    start = (direct.base + direct.peer) / PS_PER_US
    return make_cost(start + size / rate, SENDS, start=start, channels=channels, hbm=2.0 * size)


def peer_channels(place: GroupPlacement) -> int:
    """Return how many channels NCCL gives each peer: 4, halved as long as 5 peers or more share a channel.

    A GPU and its NIC bring 8 channels, a node 32 at most. The halving is NCCL's rule (a channel with more
    than 4 peers' sends loses bandwidth); the 8 a NIC follow from measured sends of 1 GPU a node on 10 nodes.
    """
    room = PEERS_A_CHANNEL * min(SEND_CHANNELS, _NIC_CHANNELS * place.per_node)
    return halved(_PEER_CHANNELS, place.ranks, room)


def halved(channels: int, ranks: int, room: int) -> int:
    """Return the channels, halved as long as the ranks exceed the room that they have."""
    while channels > 1 and channels * ranks > room:
        channels //= 2
    return max(1, channels)


def make_cost(  # noqa: PLR0913 - a cost's parts, by name
    micros: float,
    how: tuple[str, str],
    *,
    start: float,
    channels: int,
    hbm: float,
    slack: float = 0.0,
    rate: float = 0.0,
    inter_node_rate: float = 0.0,
) -> LibraryCost:
    """Return a cost of these microseconds, done by `how` (algorithm, protocol); rates in bytes a us."""
    duration, first, lost = (math.ceil(time * PS_PER_US) for time in (micros, start, slack))
    rates = math.ceil(rate * MICRO), math.ceil(inter_node_rate * MICRO)
    return LibraryCost(
        duration=duration,
        algorithm=how[0],
        protocol=how[1],
        start=first,
        rate=rates[0],
        inter_node_rate=rates[1],
        slack=lost,
        channels=channels,
        hbm_bytes=math.ceil(hbm),
    )


def slowdown_of(ramp: Ramp, size: float) -> float:
    """Return by how much a message of this size is slower than at full rate."""
    return 1 + ramp.loss / (1 + size / ramp.half)


def link_share(node: NcclNode, ranks: int) -> float:
    """Return the part of its link rate that each of `ranks` ranks of a node gets."""
    return next((row.rate for row in node.sharing if row.ranks == ranks), 1.0)


def choice_in_node(node: NcclNode, steps: int, wire: float, *, in_switch: float | None) -> str:
    """Return "ll", "ll128", "simple" or "nvls" for a ring of `steps` that moves `wire` bytes a rank.

    `in_switch` bytes would go through the NVLink switch in each direction; None where it cannot reduce.
    """
    ring = node.tuner.ring / MICRO
    rates = {
        "ll": min(node.tuner.ll / MICRO, ring / 2),
        "ll128": min(node.tuner.ll128 / MICRO, ring * _LL128_IN_A_RING),
        "simple": ring,
    }
    times = {
        name: TUNER_BASE[name] + steps * TUNER_NODE_HOP[name] + wire / rate for name, rate in rates.items()
    }
    if in_switch is not None and node.tuner.nvls is not None:
        times["nvls"] = _TUNER_NVLS + in_switch / (node.tuner.nvls / MICRO)
    return min(times, key=lambda name: times[name])


def ring_in_node(node: NcclNode, ring: RingData, *, switched: bool) -> LibraryCost:
    """Return the cost of a ring in a node, or of a reduction in its switch where NCCL takes that."""
    in_switch = _in_switch_bytes(node, ring) if switched else None
    choice = choice_in_node(node, ring.steps, ring.wire, in_switch=in_switch)
    if choice == "nvls" and node.nvls is not None and in_switch is not None:
        start = node.nvls.base / PS_PER_US
        wire = in_switch / (node.nvls.link / MICRO) * slowdown_of(node.nvls.ramp, ring.size)
        rate, channels = in_switch / wire, min(node.channels, NVLS_CHANNELS)
        how = "nvls", "simple"
        return make_cost(start + wire, how, start=start, rate=rate, channels=channels, hbm=2.0 * ring.size)
    protocol: NcclProtocol = {"ll": node.ll, "ll128": node.ll128}.get(choice, node.simple)
    slowdown = 1.0 if choice == "ll" else slowdown_of(node.ramp, ring.size)
    chunk = ring.block / (protocol.link * link_share(node, ring.ranks) / MICRO) * slowdown
    hop = protocol.hop / PS_PER_US
    if choice == "ll":
        hop += node.line / PS_PER_US * min(1.0, ring.block / _LINE)
    own_rate = protocol.copy_rate if ring.copies else protocol.combine_rate
    copy = min(ring.block, node.copy_window) / (own_rate / MICRO) * slowdown
    start = _start(node, ring.block)
    micros = start + ring.steps * max(hop + protocol.exposed * chunk, chunk) + copy
    return make_cost(micros, ("ring", choice), start=start, channels=ring_channels(node, ring), hbm=ring.hbm)


def ring_channels(node: NcclNode, ring: RingData) -> int:
    """Return how many channels carry a ring: fewer for blocks that do not fill all of them."""
    return math.ceil(node.channels * min(1.0, max(ring.block, 1.0) / _ALL_CHANNELS))


def _in_switch_bytes(node: NcclNode, ring: RingData) -> float | None:
    """Return the bytes that a GPU sends to the switch: the buffer to be reduced, and its reduced share."""
    if node.nvls is None or ring.rounds == 1 or ring.ranks < node.nvls.least_ranks:
        return None
    return ring.size * (ring.ranks + 1) / ring.ranks


def _start(node: NcclNode, block: float) -> float:
    return (node.base + node.spread * min(1.0, block / _ALL_CHANNELS)) / PS_PER_US


def _exchange(node: NcclNode, size: int, place: GroupPlacement) -> LibraryCost:
    direct, block, peers = node.point_to_point, size / place.ranks, place.per_node - 1
    each = exchange_block(node, size, place)
    copy = block / (direct.copy_rate / MICRO)
    spread = node.spread / PS_PER_US * min(1.0, block / _ALL_CHANNELS)
    start = (direct.base + peers * direct.peer) / PS_PER_US + spread
    micros, channels = start + peers * each + copy, exchange_channels(place)
    return make_cost(micros, SENDS, start=start, rate=block / each, channels=channels, hbm=2.0 * size)


def exchange_block(node: NcclNode, size: int, place: GroupPlacement) -> float:
    """Return the microseconds that a block of an all-to-all of `size` bytes takes to a rank of the node."""
    direct = node.point_to_point
    rate = direct.link * link_share(node, place.per_node) / MICRO
    return size / place.ranks / rate * slowdown_of(direct.ramp, size)


def exchange_channels(place: GroupPlacement) -> int:
    """Return how many channels an all-to-all, a gather or a scatter takes."""
    return min(SEND_CHANNELS, peer_channels(place) * (place.ranks - 1))


def _to_one(node: NcclNode, size: int, place: GroupPlacement) -> LibraryCost:
    """Return the cost of one rank's sends to all others, or of theirs to it, one after the other."""
    block, peers, rate = size / place.ranks, place.ranks - 1, node.simple.link / MICRO
    start = (node.point_to_point.base + peers * node.point_to_point.peer) / PS_PER_US
    channels, micros = exchange_channels(place), start + peers * block / rate
    return make_cost(micros, SENDS, start=start, channels=channels, hbm=2.0 * size, rate=rate)


def _chain(node: NcclNode, size: int, place: GroupPlacement) -> LibraryCost:
    """Return the cost of a broadcast or a reduction to one rank: chunks follow one another along a ring."""
    ring = RingData(size * place.ranks, place.ranks, 1, 0, copies=True)
    choice = choice_in_node(node, ring.steps, float(size), in_switch=None)
    protocol: NcclProtocol = {"ll": node.ll, "ll128": node.ll128}.get(choice, node.simple)
    rate = protocol.link * link_share(node, place.ranks)
    slowdown = 1.0 if choice == "ll" else slowdown_of(node.ramp, size)
    wire, chunk = size / rate * MICRO * slowdown, size / chain_chunks(size)
    fill = ring.steps / rate * chunk * MICRO * slowdown
    start, leaving = _start(node, size), size / wire
    micros = start + ring.steps * protocol.hop / PS_PER_US + wire + fill
    channels, how = ring_channels(node, ring), ("ring", choice)
    rates = {"rate": leaving, "inter_node_rate": leaving}
    return make_cost(micros, how, start=start, channels=channels, hbm=2.0 * size, **rates)


def chain_chunks(size: int) -> int:
    """Return into how many chunks a chain cuts its data: NCCL's of 512 KiB, up to 512."""
    return max(1, min(_MOST_CHUNKS, size // _CHAIN_CHUNK))
