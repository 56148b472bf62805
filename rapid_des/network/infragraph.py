"""InfraGraph files, expanded: the components of every instance, and the edges between them.

As in InfraGraph's own service: of `one2one` ends of different lengths the rest of the longer stays without an
edge, and an edge from a component to itself is none. `ring` has no meaning there yet and is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from rapid_des.config import Document, decode, load_document
from rapid_des.errors import ConfigError
from rapid_des.network.infragraph_names import indices, paths, split
from rapid_des.network.infragraph_specs import (
    Device,
    Infrastructure,
    InstanceEnd,
    Kind,
)


@dataclass(frozen=True)
class Node:
    """One piece of a component: `host.0.xpu.3`."""

    path: str
    choice: Kind
    inside: tuple[tuple[str, str], ...]
    """(device, path) of each device around it, outermost first."""


@dataclass(frozen=True)
class Line:
    """One edge, undirected."""

    ends: tuple[str, str]
    link: str
    scope: str
    """The device whose link it is; empty: the infrastructure's."""


def read(path: Path) -> Infrastructure:
    """Return a file's content, the value of `infrastructure` where it is wrapped in one."""
    document = load_document(path)
    tree = document.tree.get("infrastructure", document.tree)
    if not isinstance(tree, dict):
        raise ConfigError("must be a mapping of keys", file=str(path), key="infrastructure")
    return decode(Document(path, tree), Infrastructure)


class Expansion:
    """A file's graph; a `ConfigError` names file, key and what is allowed."""

    def __init__(self, file: Infrastructure, path: Path) -> None:
        self.path = path
        self.devices = {device.name: device for device in file.devices}
        self.instances = {instance.name: instance for instance in file.instances}
        for key, names in (("devices", file.devices), ("instances", file.instances)):
            self._distinct(key, [one.name for one in names])
        self._inside = {
            device.name: list(self._device_edges(device, f"devices[{place}]"))
            for place, device in enumerate(file.devices)
        }
        self.nodes: list[Node] = []
        self.lines: list[Line] = []
        for place, instance in enumerate(file.instances):
            with self._at(f"instances[{place}].device"):
                device = self._device(instance.device)
            for index in range(instance.count):
                self._copy(device, f"{instance.name}.{index}", ())
        for place, edge in enumerate(file.edges):
            key = f"edges[{place}]"
            with self._at(f"{key}.link"):
                _known(edge.link, [link.name for link in file.links], "link of the infrastructure")
            ends = [self._ends(end, f"{key}.{name}") for name, end in (("ep1", edge.ep1), ("ep2", edge.ep2))]
            with self._at(f"{key}.scheme"):
                self.lines += [Line(pair, edge.link, "") for pair in _pairs(edge.scheme, *ends)]

    @contextmanager
    def _at(self, key: str) -> Iterator[None]:
        try:
            yield
        except ConfigError as error:
            if error.file:
                raise
            raise ConfigError(str(error), file=str(self.path), key=key) from None

    def _distinct(self, key: str, names: Sequence[str]) -> None:
        for place, name in enumerate(names):
            with self._at(f"{key}[{place}].name"):
                if name in names[:place]:
                    raise ConfigError(f"{name!r} stands twice")

    def _device(self, name: str) -> Device:
        return self.devices[_known(name, self.devices, "device")]

    def _device_edges(self, device: Device, key: str) -> Iterator[Line]:
        """Yield the edges of a device, ends relative to it."""
        for place, component in enumerate(device.components):
            if component.choice == "device":
                with self._at(f"{key}.components[{place}].name"):
                    self._device(component.name)
        links = [link.name for link in device.links]
        for place, edge in enumerate(device.edges):
            with self._at(f"{key}.edges[{place}].link"):
                _known(edge.link, links, f"link of device {device.name}")
            ends = []
            for which, end in (("ep1", edge.ep1), ("ep2", edge.ep2)):
                with self._at(f"{key}.edges[{place}].{which}"):
                    whole = f"{end.device}.{end.component}" if end.device else end.component
                    ends.append(paths(device, whole, self.devices))
            with self._at(f"{key}.edges[{place}].scheme"):
                yield from (Line(pair, edge.link, device.name) for pair in _pairs(edge.scheme, *ends))

    def _copy(self, device: Device, path: str, around: tuple[tuple[str, str], ...]) -> None:
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
                    self.nodes.append(Node(name, component.choice, inside))
        self.lines += [
            Line((f"{path}.{line.ends[0]}", f"{path}.{line.ends[1]}"), line.link, line.scope)
            for line in self._inside[device.name]
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


def _pairs(scheme: str, ones: list[str], others: list[str]) -> list[tuple[str, str]]:
    if scheme == "ring":
        raise ConfigError("'ring' is not read: InfraGraph does not say what it means")
    pairs = zip(ones, others, strict=False) if scheme == "one2one" else product(ones, others)
    return [pair for pair in pairs if pair[0] != pair[1]]
