"""InfraGraph files, expanded: the components of every instance, and the edges between them.

The format is that of version 3.1 (https://github.com/Keysight/infragraph) as far as graphs go. As in
InfraGraph's own service: of `one2one` ends of different lengths the rest of the longer stays without an edge,
and an edge from a component to itself is none. `ring` has no meaning there yet and is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from rapid_des.config import Document, Spec, decode, load_document
from rapid_des.errors import ConfigError

Positive: TypeAlias = Annotated[float, Meta(ge=1e-6, le=1e9)]
NotNegative: TypeAlias = Annotated[float, Meta(ge=0, le=1e12)]
Plain: TypeAlias = Annotated[str, Meta(pattern=r"^[^.\[\]]+$")]
"""A name that dotted names and slices may contain."""
Many: TypeAlias = Annotated[int, Meta(ge=1, le=2**24)]
Kind: TypeAlias = Literal["custom", "device", "cpu", "xpu", "nic", "memory", "port", "switch"]

MOST_PIECES = 2**20
"""The most devices and components of a file that are expanded."""
MOST_EDGES = 2**21
DEEPEST = 32
"""The deepest nesting of devices."""


class LinkBandwidth(Spec, frozen=True, kw_only=True):
    """One of three units, of 10⁹ a second."""

    choice: Literal["gigabits_per_second", "gigabytes_per_second", "gigatransfers_per_second"]
    gigabits_per_second: Positive | None = None
    gigabytes_per_second: Positive | None = None
    gigatransfers_per_second: Positive | None = None


class LinkLatency(Spec, frozen=True, kw_only=True):
    """One of three units."""

    choice: Literal["ms", "us", "ns"]
    ms: NotNegative | None = None
    us: NotNegative | None = None
    ns: NotNegative | None = None


class Physical(Spec, frozen=True, kw_only=True):
    """The physical properties of a link that a file states."""

    bandwidth: LinkBandwidth | None = None
    latency: LinkLatency | None = None


class Link(Spec, frozen=True, kw_only=True):
    """A kind of link, named by edges."""

    name: str
    description: str = ""
    physical: Physical | None = None


class Component(Spec, frozen=True, kw_only=True):
    """`count` pieces of a device; of choice `device`, each is the device of the component's name."""

    name: Plain
    count: Many
    choice: Kind
    description: str = ""
    custom: dict[str, Any] | None = None
    device: dict[str, Any] | None = None
    cpu: dict[str, Any] | None = None
    xpu: dict[str, Any] | None = None
    nic: dict[str, Any] | None = None
    memory: dict[str, Any] | None = None
    port: dict[str, Any] | None = None
    switch: dict[str, Any] | None = None


class DeviceEnd(Spec, frozen=True, kw_only=True):
    """Components of a device by name and slice, of a device inside it where that is named."""

    component: str
    device: str | None = None


class InstanceEnd(Spec, frozen=True, kw_only=True):
    """Components of instances, both by name and slice."""

    instance: str
    component: str


class DeviceEdge(Spec, frozen=True, kw_only=True):
    """Edges inside a device, in each of its instances."""

    ep1: DeviceEnd
    ep2: DeviceEnd
    link: str
    scheme: Literal["one2one", "many2many", "ring"]


class InstanceEdge(Spec, frozen=True, kw_only=True):
    """Edges between instances."""

    ep1: InstanceEnd
    ep2: InstanceEnd
    link: str
    scheme: Literal["one2one", "many2many", "ring"]


class ComponentGraph(Spec, frozen=True, kw_only=True):
    """A graph of components that instances copy."""

    name: str
    description: str = ""
    components: tuple[Component, ...] = ()
    links: tuple[Link, ...] = ()
    edges: tuple[DeviceEdge, ...] = ()


class ComponentCopies(Spec, frozen=True, kw_only=True):
    """`count` copies of a device under a name of their own."""

    name: Plain
    device: str
    count: Many
    description: str = ""


class Infrastructure(Spec, frozen=True, kw_only=True):
    """A whole file."""

    name: str = ""
    description: str = ""
    devices: tuple[ComponentGraph, ...] = ()
    links: tuple[Link, ...] = ()
    instances: tuple[ComponentCopies, ...]
    edges: tuple[InstanceEdge, ...] = ()
    annotations: Any = None
    """Annotations, which are not read."""


class ComponentInstance(Struct, frozen=True):
    """One piece of a component: `host.0.xpu.3`."""

    path: str
    choice: Kind
    inside: tuple[tuple[str, str], ...]
    """The (device, path) of each enclosing device, outermost first."""


class Edge(Struct, frozen=True):
    """One edge, undirected."""

    ends: tuple[str, str]
    link: str
    scope: str
    """The device that defines the link; empty: the infrastructure."""


def read(path: Path) -> Infrastructure:
    """Return a file's content, the value of `infrastructure` where it is wrapped in one."""
    document = load_document(path)
    tree = document.tree.get("infrastructure", document.tree)
    if not isinstance(tree, dict):
        raise ConfigError("must be a mapping of keys", file=str(path), key="infrastructure")
    beside = sorted(document.tree.keys() - {"infrastructure", "annotations"})
    if tree is not document.tree and beside:
        problem = f"unknown key {beside[0]!r} beside 'infrastructure'; allowed: annotations"
        raise ConfigError(problem, file=str(path))
    return decode(Document(path, tree), Infrastructure)


class Expansion:
    """A file's graph; a `ConfigError` names file, key and what is allowed."""

    def __init__(self, file: Infrastructure, path: Path) -> None:
        self.path = path
        self._edges_left = MOST_EDGES
        self.devices = {device.name: device for device in file.devices}
        self.instances = {instance.name: instance for instance in file.instances}
        for key, names in (("devices", file.devices), ("instances", file.instances)):
            self._distinct(key, [named.name for named in names])
        self._check_pieces(file)
        self._inside = {
            device.name: list(self._device_edges(device, f"devices[{position}]"))
            for position, device in enumerate(file.devices)
        }
        self.nodes: list[ComponentInstance] = []
        self.edges: list[Edge] = []
        for position, instance in enumerate(file.instances):
            with self._at(f"instances[{position}].device"):
                device = self._device(instance.device)
            for index in range(instance.count):
                self._copy(device, f"{instance.name}.{index}", ())
        for position, edge in enumerate(file.edges):
            key = f"edges[{position}]"
            with self._at(f"{key}.link"):
                _known(edge.link, [link.name for link in file.links], "link of the infrastructure")
            ends = [self._ends(end, f"{key}.{name}") for name, end in (("ep1", edge.ep1), ("ep2", edge.ep2))]
            with self._at(f"{key}.scheme"):
                self.edges += [Edge(pair, edge.link, "") for pair in self._pairs(edge.scheme, *ends)]

    def _check_pieces(self, file: Infrastructure) -> None:
        """Refuse a file whose instances hold more pieces than are expanded, before any is made."""
        pieces: dict[str, int] = {}

        def inside(name: str, around: tuple[str, ...]) -> int:
            if name in around:
                raise ConfigError(f"device {name} is inside itself", file=str(self.path), key="devices")
            if len(around) == DEEPEST:
                raise ConfigError(f"more than {DEEPEST} devices inside each other", file=str(self.path))
            if name not in pieces and name in self.devices:
                pieces[name] = 1 + sum(
                    part.count * (inside(part.name, (*around, name)) if part.choice == "device" else 1)
                    for part in self.devices[name].components
                )
            return pieces.get(name, 0)

        count = sum(instance.count * inside(instance.device, ()) for instance in file.instances)
        count += sum(inside(device.name, ()) for device in file.devices)
        if count > MOST_PIECES:
            problem = f"{count:,} devices and components; allowed: up to {MOST_PIECES:,}"
            raise ConfigError(problem, file=str(self.path), key="instances")

    def _pairs(self, scheme: str, firsts: list[str], seconds: list[str]) -> list[tuple[str, str]]:
        """Return the ends of an edge's copies, as long as all of the file stay below the limit."""
        one2one = scheme == "one2one"
        self._count(min(len(firsts), len(seconds)) if one2one else len(firsts) * len(seconds))
        if scheme == "ring":
            raise ConfigError("'ring' is not read: InfraGraph does not say what it means")
        pairs = zip(firsts, seconds, strict=False) if one2one else product(firsts, seconds)
        return [pair for pair in pairs if pair[0] != pair[1]]

    def _count(self, edges: int) -> None:
        self._edges_left -= edges
        if self._edges_left < 0:
            raise ConfigError(f"more than {MOST_EDGES:,} edges, which is the most that is read")

    @contextmanager
    def _at(self, key: str) -> Iterator[None]:
        try:
            yield
        except ConfigError as error:
            if error.file:
                raise
            raise ConfigError(str(error), file=str(self.path), key=key) from None

    def _distinct(self, key: str, names: Sequence[str]) -> None:
        for position, name in enumerate(names):
            with self._at(f"{key}[{position}].name"):
                if name in names[:position]:
                    raise ConfigError(f"{name!r} stands twice")

    def _device(self, name: str) -> ComponentGraph:
        return self.devices[_known(name, self.devices, "device")]

    def _device_edges(self, device: ComponentGraph, key: str) -> Iterator[Edge]:
        """Yield the edges of a device, ends relative to it."""
        for position, component in enumerate(device.components):
            if component.choice == "device":
                with self._at(f"{key}.components[{position}].name"):
                    self._device(component.name)
        links = [link.name for link in device.links]
        for position, edge in enumerate(device.edges):
            with self._at(f"{key}.edges[{position}].link"):
                _known(edge.link, links, f"link of device {device.name}")
            ends = []
            for which, end in (("ep1", edge.ep1), ("ep2", edge.ep2)):
                with self._at(f"{key}.edges[{position}].{which}"):
                    name = f"{end.device}.{end.component}" if end.device else end.component
                    ends.append(paths(device, name, self.devices))
            with self._at(f"{key}.edges[{position}].scheme"):
                yield from (Edge(pair, edge.link, device.name) for pair in self._pairs(edge.scheme, *ends))

    def _copy(self, device: ComponentGraph, path: str, around: tuple[tuple[str, str], ...]) -> None:
        """Add the nodes and edges of one copy of a device."""
        if device.name in (name for name, _ in around):
            raise ConfigError(f"device {device.name} is inside itself", file=str(self.path), key="devices")
        inside = (*around, (device.name, path))
        for component in device.components:
            for index in range(component.count):
                name = f"{path}.{component.name}.{index}"
                if component.choice == "device":
                    self._copy(self._device(component.name), name, inside)
                else:
                    self.nodes.append(ComponentInstance(name, component.choice, inside))
        with self._at("instances"):
            self._count(len(self._inside[device.name]))
        self.edges += [
            Edge((f"{path}.{edge.ends[0]}", f"{path}.{edge.ends[1]}"), edge.link, edge.scope)
            for edge in self._inside[device.name]
        ]

    def _ends(self, end: InstanceEnd, key: str) -> list[str]:
        with self._at(f"{key}.instance"):
            name = split(end.instance)[0]
            instance = self.instances[_known(name, self.instances, "instance")]
            copies = indices(end.instance, instance.count)
        with self._at(f"{key}.component"):
            below = paths(self.devices[instance.device], end.component, self.devices)
        return [f"{name}.{copy}.{path}" for copy in copies for path in below]


def _known(name: str, names: Iterable[str], what: str) -> str:
    if name not in names:
        raise ConfigError(f"{name!r} is no {what}; allowed: {', '.join(names) or 'none'}")
    return name


_ELEMENT = re.compile(r"([^\[\].]+)(?:\[([^\[\]]*)\])?\Z")
_SLICE = re.compile(r"(-?[0-9]{0,9})(?::(-?[0-9]{0,9}))?(?::(-?[0-9]{0,9}))?\Z")


def split(element: str) -> tuple[str, str]:
    """Return name and slice of one element; the slice is empty if there is none."""
    match = _ELEMENT.match(element)
    if match is None:
        raise ConfigError(f"{element!r} is no name with a slice; allowed: nic, nic[0], nic[0:4], nic[::2]")
    return match[1], match[2] or ""


def indices(element: str, count: int) -> range:
    """Return which of `count` an element's slice means.

    >>> indices("nic[1:4]", 8), indices("nic", 2), indices("nic[-1]", 8)
    (range(1, 4), range(0, 2), range(7, 8))
    """
    name, written = split(element)
    match = _SLICE.match(written)
    if match is None:
        raise ConfigError(f"{element!r}: {written!r} is no slice; allowed: 0, 0:4, 0:8:2")
    start, stop, step = (int(part) if part and part != "-" else None for part in match.groups())
    single = match[2] is None and start is not None
    outside = [part for part in (start, stop) if part is not None and not -count <= part <= count]
    if step == 0 or outside or (single and start == count):
        raise ConfigError(f"{element!r}: out of range; there are {count} of {name}, {name}[0:{count}] is all")
    chosen = range(count)[start:][:1] if single else range(count)[start:stop:step]
    if not chosen:
        raise ConfigError(f"{element!r}: means none of the {count} of {name}")
    return chosen


def paths(device: ComponentGraph, name: str, devices: Mapping[str, ComponentGraph]) -> list[str]:
    """Return the components that a dotted name means inside a device, the last element counting fastest."""
    reached, inside = [""], device
    elements = name.split(".")
    for position, element in enumerate(elements):
        component = component_of(inside, split(element)[0])
        chosen = indices(element, component.count)
        if len(reached) * len(chosen) > MOST_PIECES:
            problem = f"means {len(reached) * len(chosen):,} components; allowed: up to {MOST_PIECES:,}"
            raise ConfigError(f"{name!r} {problem}")
        reached = [f"{path}.{component.name}.{index}" for path in reached for index in chosen]
        nested = component.choice == "device"
        if nested == (position + 1 == len(elements)):
            problem = "is a device: name a component inside it" if nested else "is no device"
            raise ConfigError(f"{name!r}: {component.name} {problem}")
        inside = devices[component.name] if nested else inside
    return [path.removeprefix(".") for path in reached]


def component_of(device: ComponentGraph, name: str) -> Component:
    """Return a component by name."""
    for component in device.components:
        if component.name == name:
            return component
    known = ", ".join(component.name for component in device.components) or "none"
    raise ConfigError(f"device {device.name} has no component {name!r}; it has {known}")
