"""A machine: a device on every node of a fabric, with what its file says about moving messages."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from msgspec import Meta, Struct, field, structs

from rapid_des.bounded_cache import BoundedCache
from rapid_des.config import (
    Document,
    Settings,
    Spec,
    apply_overrides,
    as_pairs,
    decode,
    open_document,
    resolve,
    settings_named,
    to_tree,
    to_yaml,
)
from rapid_des.config.bases import machine_with_base
from rapid_des.config.specs import beside
from rapid_des.device.device import Device, device_of, load_device, with_settings
from rapid_des.device.machine_evidence import MachineEvidence
from rapid_des.device.spec import DeviceSpec
from rapid_des.errors import ConfigError, InputError, TopologyError
from rapid_des.inputs import html_text
from rapid_des.network.build import FabricLayout, build, override_links
from rapid_des.network.collectives.in_switch import IN_SWITCH
from rapid_des.network.collectives.libraries.library import check_on_fabric, check_stated, named_algorithms
from rapid_des.network.dimensions import AnyDimension, Count, Graph, InfraGraph
from rapid_des.network.exchange import fabric_graph, graph_dimension
from rapid_des.network.fabric import Fabric, Router
from rapid_des.network.faults.effects import GpuFactors, apply_static, on_links, require_hits
from rapid_des.network.faults.specs import Fault, check_fault
from rapid_des.network.jitter import Jitter, check_jitter, gpu_speeds
from rapid_des.network.metrics import RouteCheck, Summary, check_routes, summary
from rapid_des.network.protocol import Protocol
from rapid_des.network.routing import AnyNodeRouter, DimensionOrderRouter, FaultAwareRouter, by_waypoints
from rapid_des.network.specs import Collectives, LibraryChoice, LinkOverride, Measured, Routing, Switching
from rapid_des.network.storage import StorageSpec
from rapid_des.network.switches import SwitchTrees
from rapid_des.units import Power, Size
from rapid_des.values import replace

if TYPE_CHECKING:
    import networkx

_PACKETS = Switching(
    mode="cut_through",
    parts=12,
    protocol=Protocol(
        payload=Size(256),
        header=Size(16),
        acknowledgement=Size(0),
        packets_per_acknowledgement=1,
        packet_time="exact",
    ),
)


class MachineSpec(Spec, frozen=True, kw_only=True):
    """The file format of a machine; dimensions innermost first."""

    name: str
    """The machine's name, which heads reports."""
    device: str | DeviceSpec
    """The GPU on every node: a path, a preset's name, or the keys of a device file."""
    clock: Literal["boost", "sustained"] | None = None
    """The clock at which jobs run. Unset: sustained for training and prefill; for decode the device file
    decides.
    """
    host_speed: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    """The speed at which a core of the nodes issues work, relative to the H100 servers for which software
    profiles are stated. Unset: 1.
    """
    fabric: tuple[AnyDimension, ...]
    """The dimensions of the fabric, innermost first: rank id = a0 + n0·(a1 + n1·(a2 + …))."""
    routing: Routing = Routing(order="innermost_first", tie="positive")
    """The rules by which a message finds its route and chooses between equal routes. Unset: the innermost
    dimension first, and the positive direction.
    """
    switching: Switching = field(default_factory=lambda: _PACKETS)
    """The rules by which links forward messages. Unset: `cut_through`, messages in 12 parts, packets of 256 B
    with headers of 16 B, as on NVLink.
    """
    gpus_per_node: Count | None = None
    """The number of GPUs in a server; their ids are consecutive. It defines `node` in faults."""
    host_power: Power | None = None
    """The power that each server draws all the time besides its GPUs: processors, memory, fans, and what
    `energy` of the dimensions does not state. Unset: energy leaves hosts out.
    """
    storage: StorageSpec | None = None
    """The storage that checkpoints of training runs go to; unset: reliability files state its bandwidth."""
    collectives: Collectives = Collectives()
    """The algorithm or library that serves each collective; unset: the best algorithm on each group's links.
    """
    links: tuple[LinkOverride, ...] = ()
    """The links that have a rate of their own."""
    faults: tuple[Fault, ...] = ()
    """The faults of the machine, permanent or timed."""
    evidence: MachineEvidence | None = None
    """The measurements behind the machine's files, as `rapid-des calibrate` writes them; unset: none."""
    jitter: Jitter | None = None
    """The differences among GPUs and the delays of messages; unset: all GPUs are equal and no message is
    delayed.
    """


class Machine(Struct, frozen=True, eq=False, dict=True):
    """A machine as simulations use it.

    >>> machine = load_machine("dgx_a100")
    >>> machine.fabric.gpus, machine.device.spec.name
    (8, 'A100-SXM4-80GB')
    """

    name: str
    path: Path
    spec: MachineSpec
    device: Device
    """The GPU on every node."""
    healthy: Fabric
    """The fabric without faults."""
    fabric: Fabric
    """The fabric under the constant faults; dead links keep their ids and are never used."""
    planned: Router
    """The routes by dimension order and by stated waypoints, without regard to faults."""
    router: Router
    """The routes around links that are down for the whole run."""
    dead: frozenset[int]
    """The links that are down for the whole run."""
    slowed: Mapping[int, GpuFactors]
    """The speed factors of GPUs under constant faults and jitter, by ascending id; GPUs at full speed are
    left out.
    """
    lost: frozenset[int]
    """The GPUs that are down for the whole run; no job may use them."""
    faults: tuple[Fault, ...]
    """The faults of the file, then those of the call."""

    @staticmethod
    def switched(
        gpus: int, *, device: str | Mapping[str, Any], bandwidth: str, latency: str, **keys: Any
    ) -> Machine:
        """Return a server whose GPUs hang on one switch; other keys are those of a machine file.

        >>> server = Machine.switched(8, device="h100_sxm", bandwidth="450 GB/s", latency="350 ns")
        >>> server.joined(4, bandwidth="50 GB/s", latency="2 us").fabric.gpus
        32
        """
        links = {"name": "gpus", "shape": "switch", "size": gpus, "bandwidth": bandwidth, "latency": latency}
        stated = {"name": "machine", "device": device, "gpus_per_node": gpus, "fabric": [links]}
        return load_machine(stated | keys)

    @staticmethod
    def torus(
        *size: int, device: str | Mapping[str, Any], bandwidth: str, latency: str, **keys: Any
    ) -> Machine:
        """Return GPUs on a ring or torus, one number for each axis; other keys are those of a machine file.

        >>> Machine.torus(4, 4, device="a100_sxm_80gb", bandwidth="50 GB/s", latency="1 us").fabric.gpus
        16
        """
        links = {"name": "torus", "shape": "torus", "size": [*size], "bandwidth": bandwidth}
        stated = {"name": "machine", "device": device, "fabric": [{**links, "latency": latency}]}
        return load_machine(stated | keys)

    @staticmethod
    def from_graph(graph: networkx.Graph[Any], *, device: str | Mapping[str, Any], **keys: Any) -> Machine:
        """Return the machine of a networkx graph with nodes named gpu0, …, nic0, … and switches of any name.

        Edges have attributes `bandwidth` and `latency` as a machine file states them (or bytes a second and
        seconds as numbers); those of an undirected graph are links in both directions. Messages take shortest
        paths.

        >>> import networkx
        >>> ring = networkx.relabel_nodes(networkx.cycle_graph(4), "gpu{}".format)
        >>> networkx.set_edge_attributes(ring, "50 GB/s", "bandwidth")
        >>> networkx.set_edge_attributes(ring, 1e-6, "latency")
        >>> Machine.from_graph(ring, device="a100_sxm_80gb").route(0, 3)
        ('gpu0>gpu3',)
        """
        stated = {"name": graph.name or "machine", "device": device, "fabric": [graph_dimension(graph)]}
        return load_machine(stated | keys)

    def graph(self) -> networkx.DiGraph[str]:
        """Return the fabric under the constant faults as a networkx graph, without links that are down.

        Nodes have `kind` (gpu, nic, switch) and, where they have one, `position`; links have `bandwidth` and
        `latency` as text, `bytes_per_s`, `latency_ps` and `dimension`. `from_graph` reads it.

        >>> graph = load_machine("torus_2d_a100").graph()
        >>> graph.edges["gpu0", "gpu1"]["bandwidth"], graph.nodes["gpu9"]["position"]
        ('75 GB/s', (1, 1))
        """
        return fabric_graph(self.fabric, self.dead)

    def joined(
        self, count: int, *, bandwidth: str, latency: str, shape: str = "switch", **keys: Any
    ) -> Machine:
        """Return this many of the machine with a further dimension of the fabric between them.

        GPUs of the same position in each machine are joined. `keys` are those of the dimension in a file.
        """
        tree = to_tree(self.as_spec(), "machine")
        name = f"servers{len(tree['fabric'])}"
        further = {"name": name, "shape": shape, "size": count, "bandwidth": bandwidth, "latency": latency}
        return load_machine(tree | {"fabric": [*tree["fabric"], further | keys]})

    def __eq__(self, other: object) -> bool:
        """Return whether two machines are equal by content, whatever the location of their files."""
        return self is other or (
            isinstance(other, Machine) and (self.device, self.network) == (other.device, other.network)
        )

    def __ne__(self, other: object) -> bool:  # a Struct's own `!=` does not ask `__eq__`
        return not self == other

    def __hash__(self) -> int:
        return hash((self.name, self.device, self.healthy, self.faults))

    @cached_property
    def network(self) -> tuple[Hashable, ...]:
        """A key of all but the device, which is what collectives by themselves follow from."""
        stated = structs.replace(self.spec, device="", fabric=(), faults=())
        return repr(stated), self.healthy, self.faults, self.dead

    def as_yaml(self) -> str:
        """Return a machine file, its device and all faults in it, that loads to an equal machine.

        Fabrics that come from files of their own are named by absolute paths.
        """
        return to_yaml(self.as_spec())

    def as_spec(self) -> MachineSpec:
        """Return the spec of that file."""
        fabric = tuple(_located(dimension, self.path.parent.absolute()) for dimension in self.spec.fabric)
        return structs.replace(self.spec, device=self.device.as_spec(), fabric=fabric, faults=self.faults)

    def _repr_html_(self) -> str:
        """Return the machine's file for a notebook."""
        return html_text(to_yaml(structs.replace(self.spec, faults=self.faults), brief=True), "pre")

    @cached_property
    def in_switches(self) -> bool:
        """Whether the file names algorithms that work inside switches."""
        return any(name in IN_SWITCH for _, names in named_algorithms(self.collectives) for name in names)

    @cached_property
    def switch_trees(self) -> SwitchTrees:
        """The trees of switches over groups of GPUs."""
        return SwitchTrees(self.fabric, self.dead, self.spec.routing)

    def router_around(self, dead: frozenset[int]) -> Router:
        """Return the router for a time at which these links are down too."""
        dead |= self.dead
        return FaultAwareRouter(self.fabric, self.planned, dead) if dead else self.planned

    def require_alive(self, ranks: Iterable[int]) -> None:
        """Raise `InputError` if a rank stands on a GPU that is down from beginning to end."""
        used = sorted(self.lost.intersection(ranks)) if self.lost else []
        if used:
            names = ", ".join(f"gpu{gpu}" for gpu in used[:8])
            raise InputError(f"{self.path}: {names} is down, and rank {used[0]} of the job runs on it")

    def with_faults(self, faults: Iterable[Fault]) -> Machine:
        """Return the machine with faults on top of its own; `TopologyError` for one that hits nothing.

        >>> from rapid_des.network.faults import parse_fault
        >>> torus = load_machine("torus_2d_a100").with_faults([parse_fault("link=0-1 down=true")])
        >>> torus.route(0, 1), len(torus.dead)
        (('gpu0>gpu8', 'gpu8>gpu9', 'gpu9>gpu1'), 2)
        """
        faults = on_links(self.healthy, self.planned, faults) if faults else ()
        require_hits(self.healthy, faults, self.spec.gpus_per_node)
        every = (*self.faults, *faults)
        try:
            return replace(self, faults=every, **_left_by(every, self.healthy, self.planned, self.spec))
        except TopologyError as error:
            raise TopologyError(f"{self.path}: {error}") from None

    def outlasted(self, moment: int) -> tuple[Machine, int]:
        """Return the machine with those faults as constant ones that slow from 0 s to after a moment.

        And the picoseconds at which the first of them ends; the machine itself and 0 where there is none.
        """
        ends = [int(fault.until or 0) for fault in self.faults if fault.outlasts(moment)]
        if not ends:
            return self, 0
        faults = tuple(
            structs.replace(fault, from_=None, until=None) if fault.outlasts(moment) else fault
            for fault in self.faults
        )
        try:
            left = _left_by(faults, self.healthy, self.planned, self.spec)
        except TopologyError:  # such as tenants that take all of a link, for a while
            return self, 0
        return replace(self, faults=faults, **left), min(ends)

    def without(self, dead: frozenset[int]) -> Machine:
        """Return the machine as it is while these links are down too."""
        return replace(self, dead=self.dead | dead, router=self.router_around(dead))

    def route(self, source: int, destination: int) -> tuple[str, ...]:
        """Return the names of the links from one GPU to another, around dead ones; `FabricCutError` if none.

        >>> load_machine("dgx_a100").route(0, 7)
        ('gpu0>switch0', 'switch0>gpu7')
        """
        return tuple(self.fabric.link_name(link) for link in self.router.route(source, destination))

    def check(self) -> RouteCheck:
        """Return the result of a route check; `FabricCutError` if GPUs cannot reach each other.

        >>> load_machine("dgx_a100").check().dependency_cycle
        ()
        """
        return check_routes(self.fabric, self.router, self.dead, self.lost)

    def summary(self) -> Summary:
        """Return counts of nodes and links, degree, diameter in hops and bisection in bytes a second.

        >>> load_machine("torus_3d_a100").summary().diameter.hops
        6
        """
        return summary(self.fabric, self.spec.fabric, self.dead, self.lost)

    @cached_property
    def unfaulted(self) -> Machine:
        """The machine without its faults."""
        left = _left_by((), self.healthy, self.planned, self.spec)
        return replace(self, faults=(), **left) if self.faults else self

    @cached_property
    def even(self) -> Machine:
        """The machine without its jitter: all GPUs alike, all messages in time."""
        spec = structs.replace(self.spec, jitter=None)
        return replace(self, spec=spec, **_left_by(self.faults, self.healthy, self.planned, spec))

    @cached_property
    def native(self) -> Machine:
        """The machine without communication libraries."""
        closed_forms = structs.replace(self.collectives, libraries=LibraryChoice(), measured=Measured())
        return replace(self, spec=structs.replace(self.spec, collectives=closed_forms))

    @property
    def replans(self) -> bool:
        """Whether a constant fault asks for collectives that are planned for what is left."""
        return bool(self.dead) and any(fault.policy == "replan" and not fault.timed for fault in self.faults)

    @property
    def switching(self) -> Switching:
        """How links forward messages."""
        return self.spec.switching

    @property
    def collectives(self) -> Collectives:
        """The algorithm or library that serves each collective."""
        return self.spec.collectives


def load_machine(  # noqa: PLR0913 - what may be set, by name
    reference: str | Path | Mapping[str, Any] | Document | Machine,
    *,
    settings: Settings = (),
    device_settings: Settings = (),
    faults: Iterable[Fault] = (),
    folder: Path | None = None,
    cache: BoundedCache | None = None,
) -> Machine:
    """Return the machine that a path, a preset, a mapping (as a file would hold) or a machine stands for.

    `settings` are set over it, `device_settings` over the device file that it names: mappings such as
    {"fabric.0.bandwidth": "0.5x"}, or (key path, YAML text) pairs. `faults` come on top of the file's.

    >>> machine = load_machine("dgx_a100", device_settings={"hbm.capacity": "40 GiB"})
    >>> half = load_machine(machine, settings={"fabric.0.bandwidth": "0.5x"})
    >>> int(half.fabric.bandwidth[0]), int(machine.fabric.bandwidth[0])  # bytes a second
    (150000000000, 300000000000)

    Paths are relative to `folder`, else the working directory; every error names the file. Machines that are
    given one `cache` share device files, which are read once.
    """
    if isinstance(reference, Machine):
        document = Document(reference.path, to_tree(reference.as_spec(), "machine"))
    else:
        document = open_document(reference, "machine", folder=folder or Path())
        document = machine_with_base(document) if "base" in document.tree else document
    chosen, stated = _with_whole_messages(as_pairs(settings)), tuple(as_pairs(device_settings))
    document = apply_overrides(document, chosen, root="machine", folder=folder or Path())
    spec = _checked_spec(document)
    try:
        with settings_named(document):
            device = _device(spec, document, stated, cache)
        if "conditions.clock" in dict(stated):
            spec = structs.replace(spec, clock=device.conditions.clock)
        machine = _built(spec, document, spec.faults, device)
    except TopologyError as error:
        raise TopologyError(f"{document.path}: {error}") from None
    check_on_fabric(machine.collectives, machine.healthy, str(machine.path))
    spec.switching.check(machine.healthy.dimensions, file=str(document.path))
    if spec.jitter:
        check_jitter(spec.jitter, machine.healthy.dimensions, spec.gpus_per_node, file=str(document.path))
    if not any(key.startswith("fabric") for key, _ in chosen):
        _check_nodes(machine)  # a fabric that was made smaller by hand may be a part of a node
    return machine.with_faults(given) if (given := tuple(faults)) else machine


def _checked_spec(document: Document) -> MachineSpec:
    with settings_named(document):
        spec = decode(document, MachineSpec)
        _check_switching(document, spec.switching)
        check_stated(spec.collectives, str(document.path))
        for index, fault in enumerate(spec.faults):
            check_fault(fault, file=str(document.path), key=f"faults[{index}]")
    return spec


def _check_nodes(machine: Machine) -> None:
    if (node := machine.spec.gpus_per_node or 1) > machine.fabric.gpus:
        problem = f"{node}; allowed: up to the machine's {machine.fabric.gpus} GPUs"
        raise ConfigError(problem, file=str(machine.path), key="gpus_per_node")


def _device(spec: MachineSpec, document: Document, settings: Settings, cache: BoundedCache | None) -> Device:
    """Return the device that a machine file names or holds, with `settings` set over it."""
    if isinstance(name := spec.device, str):
        read = partial(_named_device, name, document, settings)
        return cache.get_or_make((name, document.folder, settings), read) if cache is not None else read()
    inline = Document(document.path, document.tree["device"])
    return device_of(with_settings(inline, settings), document.folder.absolute())


def _named_device(name: str, document: Document, settings: Settings) -> Device:
    resolve(name, "device", folder=document.folder, named_in=str(document.path), key="device")
    return load_device(name, settings=settings, folder=document.folder)


def _built(spec: MachineSpec, document: Document, faults: tuple[Fault, ...], device: Device) -> Machine:
    plan = _plan(spec, document)
    anywhere = AnyNodeRouter(plan.fabric, DimensionOrderRouter(plan))
    planned = by_waypoints(plan.fabric, anywhere, spec.routing.waypoints)
    faults = on_links(plan.fabric, planned, faults) if faults else ()
    return Machine(
        name=spec.name,
        path=document.path,
        spec=spec,
        device=device,
        healthy=plan.fabric,
        planned=planned,
        faults=faults,
        **_left_by(faults, plan.fabric, planned, spec),
    )


class _Left(TypedDict):
    fabric: Fabric
    router: Router
    dead: frozenset[int]
    slowed: Mapping[int, GpuFactors]
    lost: frozenset[int]


def _left_by(faults: tuple[Fault, ...], healthy: Fabric, planned: Router, spec: MachineSpec) -> _Left:
    """Return the machine under the constant faults among some faults."""
    factors = gpu_speeds(healthy, faults, spec.jitter, spec.gpus_per_node) if faults or spec.jitter else {}
    if not faults:
        return _Left(fabric=healthy, router=planned, dead=frozenset(), slowed=factors, lost=frozenset())
    fabric, dead = apply_static(healthy, faults, spec.gpus_per_node)
    return _Left(
        fabric=fabric,
        router=FaultAwareRouter(fabric, planned, dead) if dead else planned,
        dead=dead,
        slowed={gpu: share for gpu, share in factors.items() if share.compute},
        lost=frozenset(gpu for gpu, share in factors.items() if not share.compute),
    )


def _plan(spec: MachineSpec, document: Document) -> FabricLayout:
    plan = build(spec.name, [_located(dimension, document.folder) for dimension in spec.fabric], spec.routing)
    return replace(plan, fabric=override_links(plan.fabric, spec.links))


def _located(dimension: AnyDimension, folder: Path) -> AnyDimension:
    if isinstance(dimension, Graph | InfraGraph) and dimension.file is not None:
        return structs.replace(dimension, file=str(beside(folder, dimension.file, key=dimension.name)))
    return dimension


def _with_whole_messages(settings: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return settings under which a mode chosen by hand goes without the parts that the file's mode has."""
    keys = dict(chosen := list(settings))
    if keys.get("switching.mode", "cut_through") != "cut_through" and "switching.parts" not in keys:
        chosen.append(("switching.parts", "1"))
    return chosen


def _check_switching(document: Document, switching: Switching) -> None:
    for key, problem in switching.problems():
        raise ConfigError(problem, file=str(document.path), key=f"switching.{key}")
