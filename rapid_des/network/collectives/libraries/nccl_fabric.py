"""The constants of a fabric as NCCL uses it: what a file under `topologies/fabrics` holds.

All of them are physical: a kernel's start, the time of one hop in each protocol, rates of links, NICs and
local copies, and how much slower short transfers are. They are fitted on measured collectives, never on jobs.
NCCL chooses by estimates of its own, which need not be right (`Tuner`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta, structs

from rapid_des.config import Document, Spec, decode, load_document
from rapid_des.config.documents import with_base
from rapid_des.config.specs import preset_folder
from rapid_des.errors import ConfigError
from rapid_des.units import Bandwidth, Duration, Size

_Part = TypeVar("_Part", bound=Any)


class Ramp(Spec, frozen=True, kw_only=True):
    """How the rate grows with the message: a message of `half` bytes pays half of the `loss` of a short one.

    A transfer of S bytes takes `1 + loss / (1 + S / half)` times what it takes at full rate.
    """

    loss: float
    half: Size


class NcclProtocol(Spec, frozen=True, kw_only=True):
    """One NCCL protocol: LL and LL128 send flags with the data, Simple synchronises by chunk."""

    hop: Duration
    """The time of one step of a ring with almost no data."""
    link: Bandwidth
    """The payload rate at which a GPU sends over its in-node links."""
    copy_rate: Bandwidth
    """The rate at which the kernel copies a rank's own block from its input to its output."""
    combine_rate: Bandwidth
    """The rate at which a reduction adds a rank's own block to the data that arrives."""
    exposed: float
    """The share of a chunk's time that the next step waits for (1: all of it; 0.5: two slices alternate)."""


class PointToPoint(Spec, frozen=True, kw_only=True):
    """Sends and receives in one kernel: all-to-all and send/recv."""

    base: Duration
    peer: Duration
    """The added time for each other rank."""
    link: Bandwidth
    """The rate in an all-to-all; a single send gets the ring's rate, or `channel` for each of its channels.
    """
    channel: Bandwidth
    copy_rate: Bandwidth
    ramp: Ramp


class InSwitch(Spec, frozen=True, kw_only=True):
    """Reduction and multicast in the NVLink switch (NVLS)."""

    base: Duration
    link: Bandwidth
    """The rate at which each GPU sends (and receives) all data once and 1/n of it a second time."""
    registered: Bandwidth | None = None
    """The rate with registered buffers, which need no copy to NCCL's own. Unset: not measured, equal to
    `link`.
    """
    ramp: Ramp
    least_ranks: int


class Tuner(Spec, frozen=True, kw_only=True):
    """The bandwidths with which NCCL itself chooses (its own tuning table, not measurements)."""

    ring: Bandwidth
    ll: Bandwidth
    ll128: Bandwidth
    nvls: Bandwidth | None = None


class BridgeSharing(Spec, frozen=True, kw_only=True):
    """The share of a link's rate that is left when this many ranks cross the same host bridges."""

    ranks: int
    rate: float


class NcclNode(Spec, frozen=True, kw_only=True):
    """The GPUs of one node: NVLink with or without a switch, or PCIe."""

    wire: Bandwidth
    """The rate of one direction of a GPU's links where this was measured; on other links the rates are scaled
    in proportion.
    """
    channels: Annotated[int, Meta(ge=1, le=64)]
    """The number of CTAs, each on an SM of its own, with which NCCL runs a ring here."""
    base: Duration
    """The time from launch to the first byte."""
    spread: Duration
    """The added time of a message that uses all channels (from 32 KiB a rank on)."""
    line: Duration
    """The added time of every LL step once a step fills a line of 4 KiB."""
    ll: NcclProtocol
    ll128: NcclProtocol
    simple: NcclProtocol
    ramp: Ramp
    copy_window: Size
    """The bytes up to which copying a rank's own block costs time; the rest overlaps chunks in transit."""
    point_to_point: PointToPoint
    nvls: InSwitch | None = None
    sharing: tuple[BridgeSharing, ...] = ()
    """The slowdown by ranks that share host bridges; empty where every GPU has its full link rate to every
    other (a switch, or direct links).
    """
    tuner: Tuner


class NetworkTree(Spec, frozen=True, kw_only=True):
    """All-reduce across nodes by trees, with the reduction inside a node done by NVLS or a chain."""

    base: Duration
    level: Duration
    """The time of each level of the tree, up and down."""
    nic: Bandwidth
    """The payload rate of one NIC in one direction."""
    least_ranks: int = 1
    """The least number of ranks on a node for such trees, in which switches reduce for all GPUs of a node."""
    in_node: Bandwidth
    """The rate at which a node reduces and distributes the buffer (bytes of the buffer a second)."""
    ramp: Ramp
    """The loss of short messages at each level, up and down, since chunks have to fill all levels."""


class SmallMessages(Spec, frozen=True, kw_only=True):
    """All-reduce of small messages across nodes: the node's own, then up and down a tree of nodes."""

    level: Duration
    """The time of one level of the tree in one direction."""
    ramp: Ramp
    """The loss of short messages relative to the NICs' full rate."""
    limit: Size
    """The largest message that this algorithm serves."""


class NcclNetwork(Spec, frozen=True, kw_only=True):
    """The network between nodes, as the rings and sends of one job use it."""

    wire: Bandwidth
    """The rate of one direction of one NIC where this was measured; on other NICs the rates are scaled in
    proportion.
    """
    nic: Bandwidth
    """The payload rate of one NIC in one direction; every rank has one."""
    link: Bandwidth
    """The rate of a ring's in-node links when the ring also crosses nodes."""
    base: Duration
    ll128_hop: Duration
    simple_hop: Duration
    ll128_share: float
    """The share of payload in an LL128 line (120 of 128 bytes, at most)."""
    exposed: float
    ramp: Ramp
    exchange_nic: Bandwidth
    """The payload rate of a NIC in an all-to-all."""
    exchange_crowding: float
    """The reduction of `exchange_nic` with more than two nodes: it is divided by 1 + this · (1 - 2/nodes)."""
    exchange_copy_rate: Bandwidth
    """The rate at which a rank's own block is copied, before or after the exchange."""
    exchange_base: Duration
    exchange_peer: Duration
    exchange_ramp: Ramp
    channel: Bandwidth
    """The rate of a send to one peer over one channel; c channels give `c ** channel_scaling` times that."""
    channel_scaling: float
    tree: NetworkTree | None = None
    small: SmallMessages
    tuner_ring: Bandwidth
    """The rate of a NIC in NCCL's tuning table."""
    tuner_ll128_channels: int
    """The number of channels that NCCL's LL128 limit counts, at 36.7 GB/s each."""


class NcclFabric(Spec, frozen=True, kw_only=True):
    """One kind of node, and the network between such nodes where there is one."""

    name: str
    source: str
    version: str = ""
    """The library version that was measured, as its source states it; empty: not stated."""
    node: NcclNode
    network: NcclNetwork | None = None

    def reduces_over_nodes(self, per_node: int) -> bool:
        """Whether the switches of nodes with this many ranks of a group reduce in its trees over nodes."""
        tree = None if self.network is None else self.network.tree
        least = self.node.nvls.least_ranks if self.node.nvls else 1 if tree is None else tree.least_ranks
        return tree is not None and 1 < least <= per_node


@cache
def load_fabric(name: str) -> NcclFabric:
    """Return the fabric that a path or a preset's bare name stands for; `ConfigError` names the presets."""
    return decode(with_base(load_document(_find_fabric(name)), _find_fabric), NcclFabric)


def _find_fabric(name: str, named_in: Document | None = None) -> Path:
    """Return the file of a fabric: as a path, beside the file that names it as its base, or a preset."""
    beside = [] if named_in is None else [named_in.folder / name]
    for candidate in (*beside, Path(name), preset_folder("machine") / "fabrics" / f"{name}.yaml"):
        if candidate.is_file():
            return candidate
    raise ConfigError(f"no fabric file {name!r}; presets: {', '.join(fabric_names())}")


def fabric_names() -> list[str]:
    """Return the bare names of the fabrics that ship with rapid_des."""
    return sorted(path.stem for path in (preset_folder("machine") / "fabrics").glob("*.yaml"))


def with_registered_buffers(fabric: NcclFabric) -> NcclFabric:
    """Return the fabric with the constants of registered buffers."""
    in_switch = fabric.node.nvls
    if in_switch is None or in_switch.registered is None:
        return fabric
    node = structs.replace(fabric.node, nvls=structs.replace(in_switch, link=in_switch.registered))
    return structs.replace(fabric, node=node)


def on_links(fabric: NcclFabric, *, node: float, network: float) -> NcclFabric:
    """Return a fabric whose in-node links and NICs are faster than the measured ones by these factors.

    What crosses them follows; copies within a GPU and latencies stay.
    """
    if node == network == 1.0:
        return fabric
    faster = {name: _faster(getattr(fabric.node, name), node) for name in ("ll", "ll128", "simple", "nvls")}
    sends, tuner = _faster(fabric.node.point_to_point, node), fabric.node.tuner
    inside = structs.replace(
        _times(fabric.node, node, ("wire",)),
        **faster,
        point_to_point=sends,
        tuner=_times(tuner, node, tuner.__struct_fields__),
    )
    beyond = fabric.network
    if beyond is not None:
        beyond = _times(beyond, network, ("nic", "exchange_nic", "channel", "tuner_ring"))
        beyond = structs.replace(_times(beyond, node, ("link",)), tree=_faster(beyond.tree, network))
    return structs.replace(fabric, node=inside, network=beyond)


def _faster(part: _Part, by: float) -> _Part:
    """Return a part of a fabric with the rates at which it crosses links."""
    return part if part is None else _times(part, by, ("link", "registered", "channel", "nic"))


def _times(part: _Part, by: float, names: Iterable[str]) -> _Part:
    rates = {name: getattr(part, name, None) for name in names}
    scaled = {name: Bandwidth(max(1, round(rate * by))) for name, rate in rates.items() if rate is not None}
    return structs.replace(part, **scaled)
