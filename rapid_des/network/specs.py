"""The fabric part of a machine file: dimensions, routing, switching, collectives, links.

A shape is a dimension with a tag that is listed in `AnyDimension`. Its `built_by` names the function in
`rapid_des.network.shapes` that returns its block. Only the modules of shapes that a machine has are imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, structs

from rapid_des.config import Spec
from rapid_des.network.congestion import Congestion, Unheld, Window
from rapid_des.network.protocol import Protocol
from rapid_des.units import Bandwidth, Duration, Size

Count: TypeAlias = Annotated[int, Meta(ge=1, le=2**24)]
Extent: TypeAlias = Count | Annotated[tuple[Count, ...], Meta(min_length=1, max_length=8)]
Axis: TypeAlias = Annotated[int, Meta(ge=0, le=7)]


class Rate(Spec, frozen=True, kw_only=True):
    """One kind of link in one direction."""

    bandwidth: Bandwidth
    """The bytes a second that one link carries in one direction."""
    latency: Duration
    """The time from the end of sending at one end of the link to arrival at the other."""


class Nic(Rate, frozen=True, kw_only=True):
    """GPUs reach the dimension through NICs: the rate is that of the link between GPU and NIC (PCIe)."""

    gpus: Count
    """The number of GPUs that share one NIC (or `count` NICs); above 1 the dimension must span the inner
    ones.
    """
    count: Count = 1
    """The number of NICs that they share. With several, `spread` decides which one a message takes, the same
    at both ends.
    """


class Dimension(Spec, frozen=True, kw_only=True, tag_field="shape"):
    """The keys that every shape has: bandwidth and latency are those of one directed link."""

    name: str
    """The name of the dimension in reports and faults; unique in the machine."""
    bandwidth: Bandwidth
    """The bandwidth of one directed link."""
    latency: Duration
    """The latency of one directed link, from the end of sending to arrival."""
    reverse: Rate | None = None
    """The rate of the negative direction (towards lower positions; from a switch down), if it differs."""


class Ring(Dimension, frozen=True, kw_only=True, tag="ring"):
    """A cycle, both directions."""

    built_by = "direct.grid"
    size: Count
    """The number of GPUs in the cycle."""


class Mesh(Dimension, frozen=True, kw_only=True, tag="mesh"):
    """A grid without wrap-around."""

    built_by = "direct.grid"
    size: Extent
    """The number of GPUs along each axis, innermost first; one number for a line."""


class Torus(Dimension, frozen=True, kw_only=True, tag="torus"):
    """A grid with wrap-around; an axis of size 2 has one link in each direction."""

    built_by = "direct.grid"
    size: Extent
    """The number of GPUs along each axis, innermost first; one number for a cycle."""


class Twist(Spec, frozen=True, kw_only=True):
    """A shift of the links that wrap around one axis, along another."""

    wrap: Axis
    """The axis whose wrap-around links are shifted; 0 is innermost."""
    along: Axis
    """The axis along which these links are shifted; `wrap` itself without a twist."""
    by: Count
    """The shift: how much further along that axis a message is that crosses the upper end of axis `wrap`."""


class TwistedTorus(Dimension, frozen=True, kw_only=True, tag="twisted_torus"):
    """A torus whose wrap-around links come in shifted: more bisection and shorter routes for oblong ones.

    Routes are shortest, one axis after the other. There are often several shortest routes round: with
    `routing.tie: hash` they are used alike, with `positive` the one that goes furthest up the axes that
    come first. A k x k x 2k torus is twisted along its long axis by k on both short ones, a k x 2k x 2k one
    along both long axes by k on the short one (Camara et al., IEEE TPDS 21(12), 2010; Jouppi et al., ISCA
    2023, TPU v4).
    """

    built_by = "direct.twisted_torus"
    size: Extent
    """The number of GPUs along each axis, innermost first."""
    twists: Annotated[tuple[Twist, ...], Meta(min_length=1)]
    """The wrap-around links that are shifted."""


class KingMesh(Dimension, frozen=True, kw_only=True, tag="king_mesh"):
    """A grid with diagonals: a chess king's moves."""

    built_by = "direct.grid"
    size: Extent
    """The number of GPUs along each axis, innermost first."""


class Hypercube(Dimension, frozen=True, kw_only=True, tag="hypercube"):
    """Positions that differ in one bit are neighbours; sizes that are no power of two are incomplete.

    A route corrects one bit after the other, as a torus of axes of two would, in `routing.order`.
    """

    built_by = "direct.hypercube"
    size: Count
    """The number of GPUs; a power of two for a complete cube."""


class FullyConnected(Dimension, frozen=True, kw_only=True, tag="fully_connected"):
    """A link from every position to every other."""

    built_by = "direct.fully_connected"
    size: Count
    """The number of GPUs."""


class Switched(Dimension, frozen=True, kw_only=True):
    """The keys that shapes with switches share."""

    size: Count
    """The number of endpoints (positions) of this dimension. With several NICs a GPU, it counts the NICs of
    one plane.
    """
    nic: Nic | None = None
    """NICs between GPUs and switches; unset: GPUs are cabled to the switches."""
    planes: Count = 1
    """The number of parallel networks of this shape, none of whose switches are connected to another.

    With one NIC a GPU (or none) it has a port into each; with several, NIC n is in plane n % planes.
    """
    spread: Literal["hash", "split"] | None = None
    """The use of several planes or NICs by messages: each pair of GPUs takes one, by a hash of the two, or
    every message is split evenly over all, which are then simulated as one of their common width.
    """
    spans_inner: bool = False
    """Whether one block joins all coordinates of the inner dimensions instead of one block for each of them.
    """


class Switch(Switched, frozen=True, kw_only=True, tag="switch"):
    """One switch, a link up and a link down for every endpoint."""

    built_by = "switched.switch"


class Clos(Switched, frozen=True, kw_only=True, tag="clos"):
    """Leaves and spines, or pods of them under cores, by their counts.

    Endpoint e is e % rails of node e // rails; a leaf takes `leaf_size` nodes of one rail. Every leaf links
    to every spine of its pod. With `pod_leaves`, spine j of every pod links to `cores` switches of its own.
    """

    built_by = "switched.clos"
    leaf_size: Count
    """The number of nodes of one rail at a leaf switch."""
    spines: Count
    """The number of spine switches of a pod (of the whole dimension, where there are no pods)."""
    uplink: Rate
    """The rate of each link between a leaf and a spine."""
    rails: Count = 1
    """The number of endpoints of a node that have leaves of their own."""
    pod_leaves: Count | None = None
    """The number of leaves in a pod; unset: no pods."""
    cores: Count | None = None
    """The number of core switches to which spine j of every pod links; with `pod_leaves`."""
    core_link: Rate | None = None
    """The rate of each link between a spine and a core; with `pod_leaves`."""


class FatTree(Switched, frozen=True, kw_only=True, tag="fat_tree"):
    """A clos whose counts follow from the switch radix and the oversubscription of the leaves."""

    built_by = "switched.fat_tree"
    levels: Literal[2, 3]
    """The number of levels of switches."""
    radix: Count
    """The number of ports of a switch."""
    oversubscription: Count
    """The number of downward ports of a leaf for one upward port; 1 is full bisection."""
    uplink: Rate
    """The rate of each link between a leaf and a spine."""
    rails: Count = 1
    """The number of endpoints of a node that have leaves of their own."""
    core_link: Rate | None = None
    """The rate of each link between a spine and a core; with 3 levels."""


class Dragonfly(Switched, frozen=True, kw_only=True, tag="dragonfly"):
    """Groups of fully connected routers, groups joined by global links."""

    built_by = "switched.dragonfly"
    hosts: Count
    """The number of endpoints at a router."""
    routers: Count
    """The number of routers in a group."""
    global_links: Count
    """The number of global links (cables) of a router."""
    local_link: Rate
    """The rate of each link between two routers of a group."""
    global_link: Rate
    """The rate of each cable between two groups; cables between the same two routers are one link of their
    sum.
    """


class LowDiameter(Switched, frozen=True, kw_only=True):
    """The keys of networks of routers whose routes may be other than minimal: `routing.non_minimal`."""

    hosts: Count
    """The number of endpoints at a router; in dragonfly_plus at a leaf."""


class HyperX(LowDiameter, frozen=True, kw_only=True, tag="hyperx"):
    """A lattice of routers, each linked to all others on its lines: a Hamming graph.

    Minimal routes correct one axis after the other, in `routing.order` (Ahn et al., SC 2009).
    """

    built_by = "low_diameter.hyperx"
    routers: Extent
    """The number of routers along each axis, innermost first; endpoint e is at router e // hosts."""
    cables: Extent = 1
    """The number of parallel cables between two routers, for each axis or for all: they are one wider link.
    """
    router_link: Rate
    """The rate of each cable between two routers."""


class SlimFly(LowDiameter, frozen=True, kw_only=True, tag="slim_fly"):
    """The graph of McKay, Miller and Siran: 2 q^2 routers, no two of them more than two links apart.

    A router has (3 q - d) / 2 links to others, where q = 4 w + d and d is -1, 0 or 1. Between equal minimal
    routes `routing.ecmp` picks (Besta and Hoefler, SC 2014).
    """

    built_by = "low_diameter.slim_fly"
    q: Annotated[int, Meta(ge=3, le=64)]
    """A prime power; router y + q (x + q s) is at (x, y) of subgraph s, endpoint e at router e // hosts."""
    router_link: Rate
    """The rate of each link between two routers."""


class DragonflyPlus(LowDiameter, frozen=True, kw_only=True, tag="dragonfly_plus"):
    """Groups of leaves under spines; the spines of all groups are joined by global cables.

    A minimal route goes leaf, spine, spine of the other group, leaf; within a group over one spine. Two
    groups share spines x global_links / (groups - 1) cables, those of equal ends count as one wider link,
    and `routing.ecmp` picks one of them (Shpiner et al., HiPINEB 2017; Flajslik et al., ISC 2018, Megafly).
    """

    built_by = "low_diameter.dragonfly_plus"
    leaves: Count
    """The number of leaves in a group."""
    spines: Count
    """The number of spines in a group, each linked to all its leaves."""
    global_links: Count
    """The number of global cables of a spine."""
    local_link: Rate
    """The rate of each link between a leaf and a spine."""
    global_link: Rate
    """The rate of each cable between two groups."""


class Edge(Spec, frozen=True, kw_only=True):
    """An edge of a graph."""

    source: str
    """The name of a node: gpu0, nic0, switch0."""
    destination: str
    """The name of another node."""
    bandwidth: Bandwidth | None = None
    """The bandwidth of each direction; unset: the dimension's."""
    latency: Duration | None = None
    """The latency of each direction; unset: the dimension's."""
    direction: Literal["both", "one"] = "both"
    """Whether the edge is a link each way or one from source to destination."""


class Graph(Dimension, frozen=True, kw_only=True, tag="graph"):
    """Any graph from a file or a list of edges; rates stated there go first."""

    built_by = "graphs.graph"
    size: Count
    """The number of GPUs that the graph must have."""
    file: str | None = None
    """Edge-list CSV or NetworkX node-link JSON; relative to the machine file."""
    edges: tuple[Edge, ...] = ()
    """The edges themselves, instead of a file."""


class InfraGraph(Spec, frozen=True, kw_only=True, tag_field="shape", tag="infragraph"):
    """A graph from an InfraGraph file, YAML or JSON: its xpu are the GPUs, in the order of the file."""

    built_by = "graphs.graph"
    name: str
    """The name of the dimension in reports and faults."""
    size: Count
    """The number of xpu that the file must have."""
    file: str
    """The InfraGraph file, YAML or JSON; relative to the machine file."""
    rates: dict[str, Rate] = {}
    """The bandwidth and latency of links by name (link, or device.link), instead of what the file states."""
    leave_out: tuple[str, ...] = ()
    """The names of links and components that no traffic between GPUs uses."""
    as_one: dict[str, Literal["switch", "nic"]] = {}
    """The devices whose instances are one node each, without their ports and links, and the kind of that
    node.
    """

    def __hash__(self) -> int:
        mappings = frozenset(self.rates.items()), frozenset(self.as_one.items())
        return hash((self.name, self.size, self.file, self.leave_out, *mappings))


AnyDimension: TypeAlias = (
    Ring
    | Mesh
    | Torus
    | TwistedTorus
    | KingMesh
    | Hypercube
    | FullyConnected
    | Switch
    | Clos
    | FatTree
    | Dragonfly
    | HyperX
    | SlimFly
    | DragonflyPlus
    | Graph
    | InfraGraph
)


class NonMinimal(Spec, frozen=True, kw_only=True):
    """Some pairs of endpoints talk over a third place, which spreads what minimal routes would pile up.

    The place is a hash of seed, source and destination: Valiant's routing (SIAM J. Comput. 11(2), 1982) where
    all pairs do so, and a fixed mixture in the place of an adaptive choice where some do. Routes that would
    come by a router twice leave out what lies between.
    """

    through: Literal["router", "group"]
    """The place of a detour: a router (a leaf of dragonfly_plus), or in dragonfly_plus a group that is
    neither's.
    """
    share: Annotated[float, Meta(ge=0, le=1)]
    """The share of the pairs of endpoints at different routers (groups) that take a detour; the others'
    routes are minimal.
    """
    seed: Annotated[int, Meta(ge=0, le=2**32)]
    """The seed that decides which pairs take a detour, and through which places."""


class Waypoint(Spec, frozen=True, kw_only=True):
    """A switch or NIC that the messages from one GPU to another come by."""

    source: int | str
    """The GPU that sends: its id, or its coordinates."""
    destination: int | str
    """The GPU that receives."""
    through: str
    """The name of the node, such as switch0."""


class Routing(Spec, frozen=True, kw_only=True):
    """How a message is routed, and what decides where two routes are equal."""

    order: Literal["innermost_first", "outermost_first"]
    """The dimension that a message crosses first, and inside a dimension the axis.

    Axes are those of a size that is a list, and the bits of a hypercube, the lowest of which is innermost.
    """
    tie: Literal["positive", "lowest_id", "hash", "balanced"]
    """The direction of a message where both are equally long: the positive one, that of the lower next id,
    either by a hash of source and destination, or alternately from one source to the next (balanced:
    all-to-alls then load both directions equally). A large direct all-to-all takes 1.50 times its lower bound
    on a 4 x 4 torus and 1.30 times on an 8 x 8 one with `positive`, 1.13 and 1.22 times with `balanced`. An
    odd axis has no such messages. A balanced king mesh makes diagonal moves along the whole
    route, where the others make them first.
    """
    ecmp: Literal["hash", "lowest_id", "destination"] = "hash"
    """The choice between equal routes over switches: a hash of source and destination, the lowest id, or the
    destination's number modulo the routes, as InfiniBand's routing of fat trees does (Zahavi, Concurrency and
    Computation 24(3), 2012): messages to different destinations then share no link upwards.
    """
    non_minimal: NonMinimal | None = None
    """The longer routes that balance load in hyperx, slim_fly and dragonfly_plus; unset: all routes are
    minimal.
    """
    waypoints: tuple[Waypoint, ...] = ()
    """The pairs of GPUs whose route passes a stated node: as planned to the node, and as planned on from
    there.
    """


class Spray(Spec, frozen=True, kw_only=True):
    """Messages of a pair of GPUs spread over equal routes: shortest paths over switches, NICs and planes.

    The planned route is one of them; routes around dead links are as short as that one. Links from GPU to GPU
    have no equal routes.
    """

    ways: Annotated[int, Meta(ge=1, le=256)]
    """The number of routes to use, where the pair has as many; more than the choices that differ are not
    used.
    """
    per: Literal["part", "message"]
    """The unit that takes a route: the parts of a message in turn, or each whole message by a hash of sender
    and time.
    """
    weights: Literal["equal", "bandwidth"] = "equal"
    """The frequency of each route: equal, or in proportion to the bandwidth of its slowest link."""
    choose: Literal["oblivious", "least_loaded"] = "oblivious"
    """The choice of the route: oblivious, by `per` and `weights` alone, or at the source the route with the
    least queued on it at that instant (R12).
    """
    detours: Annotated[int, Meta(ge=0, le=256)] = 0
    """The number of longer routes over a third switch that are candidates too, with least_loaded (Valiant,
    SIAM J. Comput. 11(2), 1982; UGAL with all queues known: Kim, Dally, Scott and Abts, ISCA 2008).
    """
    bias: Duration | None = None
    """The time by which a detour must be faster to be taken; needed where there are detours."""

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (key, what is wrong with it and what is allowed)."""
        adaptive = self.choose == "least_loaded"
        if self.ways + self.detours < 2:
            yield "ways", f"{self.ways}; allowed: from 2, or 1 with detours"
        if self.detours and not adaptive:
            yield "detours", f"{self.detours} with choose oblivious; allowed: 0, or choose least_loaded"
        if adaptive and self.weights != "equal":
            yield (
                "weights",
                "bandwidth with choose least_loaded, which knows how fast links are; allowed: equal",
            )
        if (self.bias is None) != (self.detours == 0):
            problem = (
                "missing: how much sooner a detour must be" if self.detours else "stated without detours"
            )
            yield "bias", f"{problem}; allowed: a time where there are detours"


class Switching(Spec, frozen=True, kw_only=True):
    """The model of links under messages: see the engine's rules for each mode's meaning."""

    mode: Literal["store_and_forward", "cut_through", "fluid"]
    """The model of a link: it takes whole segments (store_and_forward), packets pipeline over hops
    (cut_through), or flows share links max-min fairly (fluid).
    """
    segment: Size | None = None
    """The unit that is forwarded; unset: packets in cut_through, the whole message in store_and_forward.

    In store_and_forward all segments of a message are queued at its first link at once, so that segments of
    another message come after them: they take no turns, as the parts of cut_through do.
    """
    protocol: Protocol | None = None
    """The packets, headers and acknowledgements; unset: payload bytes only."""
    parts: Count = 1
    """The largest number of parts of whole packets into which cut_through cuts a message: parts take turns on
    links.

    Messages of a collective that is cut into chunks stay whole, as chunks follow one another. Messages to one
    peer take turns like all others, as if each had a queue pair; in one part they leave in order, as on one.
    """
    spray: Spray | None = None
    """The distribution of messages over equal routes, with cut_through only; unset: all messages of a pair
    take one.
    """
    congestion: Unheld | Window | None = None
    """The limit on senders, which adds acknowledgements to links; with cut_through only.

    Unset: parts are handed to their first link at the rate of the slowest link of their route, whatever else
    uses that, and acknowledgements are free.
    """

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (key, what is wrong with it and what is allowed)."""
        segment, mode = self.segment, self.mode
        if mode == "cut_through" and segment is None and self.protocol is None:
            yield "segment", "missing: cut_through forwards segments, or the packets of a protocol"
        if mode == "fluid" and segment is not None:
            yield "segment", "the fluid mode has no segments; leave it out"
        if segment is not None and segment <= 0:
            yield "segment", f"{segment}; allowed: above 0"
        if self.parts > 1 and mode != "cut_through":
            yield "parts", f"{self.parts}; allowed: 1, or more with mode cut_through"
        if self.protocol is not None and self.protocol.payload <= 0:
            yield "protocol.payload", f"{self.protocol.payload}; allowed: above 0"
        if self.spray is not None:
            yield from self._spraying(self.spray)
        if self.congestion is not None:
            yield from self._held_back(self.congestion)

    def check(self, dimensions: tuple[str, ...], *, file: str) -> None:
        """Refuse names of dimensions that a machine has not: `ConfigError` names the allowed ones."""
        if self.congestion is not None and self.congestion.dcqcn is not None:
            self.congestion.dcqcn.check(dimensions, file=file)

    def _held_back(self, congestion: Congestion) -> Iterator[tuple[str, str]]:
        if self.mode != "cut_through":
            yield "congestion", f"stated with mode {self.mode}; allowed: mode cut_through"
        pause = congestion.pause
        if pause is not None and not 0 <= pause.go_at < pause.stop_above:
            yield "congestion.pause.go_at", f"{pause.go_at}; allowed: from 0 to below {pause.stop_above}"
        if congestion.dcqcn is not None:
            if self.parts == 1:
                yield "congestion.dcqcn", "stated with parts 1; allowed: more parts, between which rates act"
            yield from ((f"congestion.dcqcn.{key}", said) for key, said in congestion.dcqcn.problems())

    def _spraying(self, spray: Spray) -> Iterator[tuple[str, str]]:
        if self.mode != "cut_through":
            yield "spray", f"stated with mode {self.mode}; allowed: mode cut_through"
        elif spray.per == "part" and self.parts == 1:
            yield "spray.per", "part, but switching.parts is 1; allowed: message, or more parts"
        yield from ((f"spray.{key}", problem) for key, problem in spray.problems())


class LinkOverride(Spec, frozen=True, kw_only=True):
    """A rate of its own for one link, or for both directions between two neighbours."""

    source: int | str
    """The node that the link leaves: a GPU's id, or a node's name such as switch0."""
    destination: int | str
    """The node that the link enters."""
    both_directions: bool
    """Whether the opposite link gets the same rate."""
    bandwidth: Bandwidth | None = None
    """The bandwidth that replaces the dimension's."""
    latency: Duration | None = None
    """The latency that replaces the dimension's."""


AUTO = "auto"
"""The name for the best algorithm on a group's links, which is used where a file states none."""
MOST_CHUNKS = 4096
"""The largest number of parts into which one collective is cut."""
Chunks: TypeAlias = Annotated[int, Meta(ge=1, le=MOST_CHUNKS)]


class Choice(Spec, frozen=True, kw_only=True):
    """The algorithm of one collective, or one for each dimension, and into how many chunks it is cut."""

    algorithm: str | Annotated[tuple[str, ...], Meta(min_length=1)]
    """The algorithm's name (`auto`: the best on a group's links), or a list with one name for each dimension.
    """
    chunks: Chunks = 1
    """The number of chunks into which the data is cut; they pipeline through the algorithm."""


Algorithm: TypeAlias = str | Annotated[tuple[str, ...], Meta(min_length=1)] | Choice


class Library(Spec, frozen=True, kw_only=True, tag_field="library"):
    """A communication library: it chooses algorithm, protocol and channels of what is left open to it."""


class Native(Library, frozen=True, kw_only=True, tag="native"):
    """No library: transfers at the links' own rates."""


class Nccl(Library, frozen=True, kw_only=True, tag="nccl"):
    """NCCL: rings, trees, in-switch reductions and sends as its tuner chooses them."""

    constants: str | None = None
    """The file of its constants on this kind of node and network: a path, or a name of topologies/fabrics.
    Unset: the machine's `collectives.measured.nccl`.
    """
    multiprocessors: Annotated[int, Meta(ge=0, le=2**24)] | None = None
    """The number of SMs that a collective or message uses; unset: one a channel. 0: copy engines move the
    data.
    """
    registered: bool = False
    """Whether the buffers are registered with NCCL, as in captured CUDA graphs or by NCCL's user buffers:
    switches then reduce them where they are, without copies."""


class CustomAllReduce(Library, frozen=True, kw_only=True, tag="custom_all_reduce"):
    """A serving engine's all-reduce in a node: one-shot, two-shot, symmetric memory; NCCL does all else."""

    kernels: str | None = None
    """The file of its constants: a path, or a name of topologies/fabrics/serving. Unset: the machine's
    `collectives.measured.kernels`."""
    engine: Literal["vllm", "sglang", "trtllm", "trtllm-0.9"]
    """The engine that provides the kernel; trtllm-0.9: the kernel of TensorRT-LLM up to 0.10."""


class DeepEp(Library, frozen=True, kw_only=True, tag="deepep"):
    """DeepEP's exchange of tokens among experts, for all-to-all; NCCL does all else."""

    kernels: str | None = None
    """The file of its constants: a path, or a name of topologies/fabrics/serving. Unset: the machine's
    `collectives.measured.kernels`."""
    kernel: Literal["low_latency", "normal", "by_exchange"]
    """The kernel: low_latency for decoding, normal for prefill and training; by_exchange uses `normal` where
    copies of a token are sent once and `low_latency` where every copy is sent separately.
    """
    experts: Annotated[int, Meta(ge=1, le=2**24)]
    """The number of routed experts of the layer, over all ranks."""
    topk: Annotated[int, Meta(ge=1, le=2**24)]
    """The number of experts to which each token is sent."""
    multiprocessors: Annotated[int, Meta(ge=1, le=2**24)] = 20
    """The number of SMs that the normal kernel uses (DeepEP's own default: 20)."""
    direction: Literal["dispatch", "combine"] | None = None
    """The direction of an all-to-all; unset: the mean of both."""


class HybridEp(Library, frozen=True, kw_only=True, tag="hybridep"):
    """Hybrid-EP's exchange (DeepEP's branch of that name) where copies travel once; NCCL does all else."""

    kernels: str | None = None
    """The file of its constants: a path, or a name of topologies/fabrics/serving. Unset: the machine's
    `collectives.measured.kernels`."""
    multiprocessors: Annotated[int, Meta(ge=1, le=2**24)] = 32
    """The number of SMs that its kernels use (Megatron-Bridge's performance recipes: 32; its own default:
    16).
    """


class Sampled(Library, frozen=True, kw_only=True, tag="samples"):
    """Times measured on groups of the same shape, between the sizes sampled; it serves no others."""

    file: str
    """The path of a CSV file with the columns op, nodes, gpus_per_node, bytes, time_us."""


AnyLibrary: TypeAlias = Native | Nccl | CustomAllReduce | DeepEp | HybridEp | Sampled


class LibraryChoice(Spec, frozen=True, kw_only=True):
    """Whose collectives serve which kind of group: that of the stream that they run on."""

    default: AnyLibrary | None = None
    """The library for all kinds that are not named, and for what the named library has no kernel for."""
    tp: AnyLibrary | None = None
    """The library for tensor-parallel groups."""
    cp: AnyLibrary | None = None
    """The library for context-parallel groups."""
    ep: AnyLibrary | None = None
    """The library for expert-parallel groups."""
    dp: AnyLibrary | None = None
    """The library for data-parallel groups."""
    pp: AnyLibrary | None = None
    """The library for messages between pipeline stages."""

    def of(self, kind: str) -> tuple[AnyLibrary, ...]:
        """Return the libraries that a kind of group asks, in turn; `native` asks no other after it.

        The text after a hyphen distinguishes streams of one kind.
        """
        kind = kind.partition("-")[0]
        choice = getattr(self, kind) if kind in self.__struct_fields__ and kind != "default" else None
        asked = (choice,) if isinstance(choice, Native) else (choice, self.default)
        return tuple(library for library in asked if library is not None)

    def stated(self) -> dict[str, AnyLibrary]:
        """Return the libraries by the key that names each."""
        libraries = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: library for name, library in libraries.items() if library is not None}

    def with_others(self, others: LibraryChoice) -> LibraryChoice:
        """Return the choice with what `others` states instead."""
        return LibraryChoice(**(self.stated() | others.stated()))


class Measured(Spec, frozen=True, kw_only=True):
    """The files of constants of communication libraries that were measured on such a fabric."""

    nccl: str | None = None
    """The file of NCCL's constants: a path, or a name of topologies/fabrics. Unset: NCCL is not used here."""
    kernels: str | None = None
    """The file of constants of serving engines' kernels: a path, or a name of topologies/fabrics/serving.
    Unset: these kernels are not used here.
    """

    def of(self, library: AnyLibrary) -> AnyLibrary | None:
        """Return a library with its file of constants; None where there is none for this fabric."""
        if isinstance(library, (Native, Sampled)):
            return library
        key, known = ("constants", self.nccl) if isinstance(library, Nccl) else ("kernels", self.kernels)
        file = getattr(library, key) or known
        return None if file is None else structs.replace(library, **{key: file})


class Collectives(Spec, frozen=True, kw_only=True):
    """What serves each collective: an algorithm where one is stated, else a library, else `auto`.

    The libraries are the software's (of a job, or as a trace says): those of which something was measured.

    `nvls`, `sharp` and `switch_tree` work inside switches. As a default they serve the groups that have such.
    """

    measured: Measured = Measured()
    """The files of constants of communication libraries, measured on such a fabric."""
    libraries: LibraryChoice = LibraryChoice()
    """The communication libraries by kind of group; they replace what the software asks for."""
    contention: bool = True
    """Whether libraries take SMs and memory bandwidth from concurrent kernels."""

    default: Algorithm | None = None
    """The algorithm for all collectives that are not named here."""
    all_reduce: Algorithm | None = None
    """The algorithm for the sum of every member's data, for all members."""
    reduce: Algorithm | None = None
    """The algorithm for the sum of every member's data, for one member."""
    all_gather: Algorithm | None = None
    """The algorithm for every member's data, for all members."""
    gather: Algorithm | None = None
    """The algorithm for every member's data, for one member."""
    scatter: Algorithm | None = None
    """The algorithm for one member's data, a part for each member."""
    broadcast: Algorithm | None = None
    """The algorithm for one member's data, for all members."""
    all_to_all: Algorithm | None = None
    """The algorithm for a part of every member's data for each member."""
    reduce_scatter: Algorithm | None = None
    """The algorithm for the sum of every member's data, a part for each member."""
    reduce_scatter_block: Algorithm | None = None
    """The algorithm for reduce_scatter in equal blocks."""
    barrier: Algorithm | None = None
    """The algorithm for a barrier, which moves no data: all members have arrived."""

    def libraries_for(self, asked: LibraryChoice) -> LibraryChoice:
        """Return the libraries of software that asks for some, each with its file of constants."""
        chosen = asked.with_others(self.libraries).stated()
        measured = {kind: self.measured.of(library) for kind, library in chosen.items()}
        return LibraryChoice(**{kind: library for kind, library in measured.items() if library is not None})

    @property
    def operations(self) -> tuple[str, ...]:
        """The keys that name algorithms: `default`, then the operations."""
        others = ("libraries", "measured", "contention")
        return tuple(name for name in self.__struct_fields__ if name not in others)

    def choice(self, operation: str) -> Choice | None:
        """Return the choice for an operation of the schema, or None where the file leaves it open."""
        stated: Algorithm | None = getattr(self, operation)
        stated = self.default if stated is None else stated
        if stated is None or isinstance(stated, Choice):
            return stated
        return Choice(algorithm=stated)
