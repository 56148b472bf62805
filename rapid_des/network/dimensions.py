"""The dimensions of a machine file's fabric: shapes, sizes and rates.

A shape is a dimension with a tag that is listed in `AnyDimension`. Its `built_by` names the function in
`rapid_des.network.shapes` that returns its block. Only the modules of shapes that a machine has are imported.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from rapid_des.config import Spec
from rapid_des.units import Bandwidth, Duration, Power

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


Picojoules: TypeAlias = Annotated[float, Meta(ge=0, le=1e6)]


class LinkEnergy(Spec, frozen=True, kw_only=True):
    """What the links, NICs and switches of a dimension take; no time depends on it."""

    pj_per_bit: Picojoules = 0.0
    """The picojoules of a bit that crosses one link. Links between a GPU and its NIC take none: they are part
    of the NIC.
    """
    idle_pj_per_bit: Picojoules = 0.0
    """The picojoules that one direction of a link takes all the time for each bit that it could carry, as
    transceivers do that are always on: watts over bits a second.
    """
    nic_power: Power | None = None
    """The power that each NIC draws all the time; unset: it is left out."""
    switch_power: Power | None = None
    """The power that each switch draws all the time, without its transceivers; unset: it is left out."""


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
    energy: LinkEnergy | None = None
    """The energy of links, NICs and switches; unset: reports leave them out."""


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


class GraphEdge(Spec, frozen=True, kw_only=True):
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
    """Whether there is a link in both directions or one from source to destination."""


class Graph(Dimension, frozen=True, kw_only=True, tag="graph"):
    """Any graph from a file or a list of edges; rates stated there go first."""

    built_by = "graphs.graph"
    size: Count
    """The number of GPUs that the graph must have."""
    file: str | None = None
    """Edge-list CSV or NetworkX node-link JSON; relative to the machine file."""
    edges: tuple[GraphEdge, ...] = ()
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
