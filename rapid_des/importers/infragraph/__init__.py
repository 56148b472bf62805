"""An expanded InfraGraph file as a fabric: GPUs, NICs and switches in the order of the file, and links.

Components of choice xpu are the GPUs and those of choice nic the NICs; all others forward messages, as
switches do. An edge is a link in each direction; one that is written twice is one, while parallel cables
between nodes that stand for whole devices are one link of their summed bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rapid_des.config import load_document
from rapid_des.errors import ConfigError
from rapid_des.importers.infragraph.expansion import ComponentInstance, Edge, Expansion, Infrastructure, read
from rapid_des.network.build import GraphReader, NamedGraph, NamedLink
from rapid_des.network.dimensions import InfraGraph
from rapid_des.units import Bandwidth, Duration

Rates = tuple[int, int]
"""The rates of a link: (bytes a second, picoseconds)."""
_BANDWIDTHS = {"gigabits_per_second": "Gb/s", "gigabytes_per_second": "GB/s"}
_DESCRIBES = "it describes"
_PIECES = ("custom", "device", "cpu", "xpu", "nic", "memory", "port", "switch")
_UNITS = ("gigabits_per_second", "gigabytes_per_second", "gigatransfers_per_second", "ms", "us", "ns")
_KINDS = {"xpu": "gpu", "nic": "nic"}


def read_infragraph(dimension: InfraGraph) -> NamedGraph:
    """Return the graph of a file; a `ConfigError` names file, key and what is allowed."""
    path = Path(dimension.file)
    file = read(path)
    expansion = Expansion(file, path)
    _check_names(dimension, file, path)
    kinds, stands_for = _nodes(dimension, expansion)
    edges = list(_edges(dimension, file, expansion, stands_for))
    used = {edge.source for edge in edges} | {edge.destination for edge in edges}
    names = [
        [name for name, of in kinds.items() if of == kind and (kind == "gpu" or name in used)]
        for kind in ("gpu", "nic", "switch")
    ]
    if len(names[0]) != dimension.size:
        raise ConfigError(
            f"has {len(names[0])} xpu; the dimension's size is {dimension.size}", file=str(path)
        )
    ordered = [name for of_kind in names for name in of_kind]
    return NamedGraph({name: node for node, name in enumerate(ordered)}, len(names[1]), edges)


def _check_names(dimension: InfraGraph, file: Infrastructure, path: Path) -> None:
    """Refuse settings of the machine file that the graph file knows nothing of."""
    devices = {device.name for device in file.devices}
    components = {component.name for device in file.devices for component in device.components}
    links = {link.name for link in file.links}
    for device in file.devices:
        links |= {link.name for link in device.links}
        links |= {f"{device.name}.{link.name}" for link in device.links}
    known = {"as_one": devices, "leave_out": components | links, "rates": links}
    for key, names in known.items():
        for name in getattr(dimension, key):
            if name not in names:
                problem = f"{name!r} is not there; allowed: {', '.join(sorted(names)) or 'none'}"
                raise ConfigError(f"{key} of dimension {dimension.name}: {problem}", file=str(path))


def _nodes(dimension: InfraGraph, expansion: Expansion) -> tuple[dict[str, str], dict[str, str]]:
    """Return the kind of each node, and the node that stands for each component that is not left out."""
    kinds: dict[str, str] = {}
    stands_for: dict[str, str] = {}
    for node in expansion.nodes:
        if not _gone(dimension, node):
            device = next((part for part in node.inside if part[0] in dimension.as_one), None)
            if device is not None and node.choice == "xpu":
                problem = f"as_one of dimension {dimension.name}: device {device[0]} holds xpu"
                raise ConfigError(problem, file=str(expansion.path))
            name = stands_for[node.path] = node.path if device is None else device[1]
            kinds[name] = _KINDS.get(node.choice, "switch") if device is None else dimension.as_one[device[0]]
    return kinds, stands_for


def _gone(dimension: InfraGraph, node: ComponentInstance) -> bool:
    return not set(node.path.split(".")[2::2]).isdisjoint(dimension.leave_out)


def _edges(
    dimension: InfraGraph, file: Infrastructure, expansion: Expansion, stands_for: dict[str, str]
) -> Iterator[NamedLink]:
    """Yield both directions of every link between different nodes."""
    rates = _Rates(dimension, file, str(expansion.path))
    cables: dict[frozenset[str], Rates] = {}
    links: dict[tuple[str, str], Rates] = {}
    for edge in expansion.edges:
        ends = tuple(sorted(stands_for[end] for end in edge.ends if end in stands_for))
        if len(set(ends)) < 2 or rates.left_out(edge):
            continue
        rate, cable = rates.of(edge), frozenset(edge.ends)
        earlier = cables.get(cable)
        if earlier is None:
            cables[cable] = rate
            links[ends[0], ends[1]] = rates.beside(links.get((ends[0], ends[1])), rate, edge)
        elif earlier != rate:
            raise rates.error(edge, f"{' to '.join(edge.ends)} stands twice, with two rates")
    for (first, second), (bandwidth, latency) in links.items():
        yield NamedLink(first, second, bandwidth, latency)
        yield NamedLink(second, first, bandwidth, latency)


class _Rates:
    """The rates of a file's links; those that the machine file states take precedence."""

    def __init__(self, dimension: InfraGraph, file: Infrastructure, path: str) -> None:
        self._dimension, self._path = dimension, path
        self._links = {
            ("", link.name): (f"links[{position}]", link) for position, link in enumerate(file.links)
        }
        for index, device in enumerate(file.devices):
            for position, link in enumerate(device.links):
                self._links[device.name, link.name] = f"devices[{index}].links[{position}]", link
        self._rates: dict[tuple[str, str], Rates] = {}

    def left_out(self, edge: Edge) -> bool:
        """Whether edges of an edge's link are left out."""
        return not {edge.link, f"{edge.scope}.{edge.link}"}.isdisjoint(self._dimension.leave_out)

    def of(self, edge: Edge) -> Rates:
        """Return the rates of an edge."""
        key = edge.scope, edge.link
        if key not in self._rates:
            rates = self._dimension.rates
            stated = rates.get(f"{edge.scope}.{edge.link}", rates.get(edge.link))
            self._rates[key] = self._read(edge) if stated is None else (stated.bandwidth, stated.latency)
            if self._rates[key][0] <= 0:
                raise self.error(edge, f"link {edge.link!r}: bandwidth: must be above 0")
        return self._rates[key]

    def beside(self, other: Rates | None, rate: Rates, edge: Edge) -> Rates:
        """Return the rates of a link that an edge makes wider."""
        if other is not None and other[1] != rate[1]:
            raise self.error(edge, "runs beside a link of another latency, between devices that are one node")
        return rate if other is None else (other[0] + rate[0], rate[1])

    def error(self, edge: Edge, problem: str) -> ConfigError:
        """Return an error at an edge's link."""
        return ConfigError(problem, file=self._path, key=self._links[edge.scope, edge.link][0])

    def _read(self, edge: Edge) -> Rates:
        physical = self._links[edge.scope, edge.link][1].physical
        bandwidth = None if physical is None else physical.bandwidth
        latency = None if physical is None else physical.latency
        missing = "bandwidth" if bandwidth is None else "latency" if latency is None else ""
        if bandwidth is None or latency is None:
            raise self.error(edge, f"link {edge.link!r} states no {missing}; {self._instead(edge)}")
        unit = _BANDWIDTHS.get(bandwidth.choice)
        rate, delay = getattr(bandwidth, bandwidth.choice), getattr(latency, latency.choice)
        if unit is None:
            problem = f"link {edge.link!r} states transfers a second, which are no bytes"
            raise self.error(edge, f"{problem}; {self._instead(edge)}")
        if rate is None or delay is None:
            chosen = bandwidth.choice if rate is None else latency.choice
            raise self.error(edge, f"link {edge.link!r} chooses {chosen} and states none")
        try:
            return Bandwidth.parse(f"{rate!r} {unit}"), Duration.parse(f"{delay!r} {latency.choice}")
        except ValueError as error:
            raise self.error(edge, f"link {edge.link!r}: {error}") from None

    def _instead(self, edge: Edge) -> str:
        return f"state it, or rates: {{{edge.link}: …}} in dimension {self._dimension.name}"


def idle_keys(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield path in the file, value and reason of each key that no graph depends on."""
    tree = load_document(path).tree
    if "infrastructure" in tree and "annotations" in tree:
        yield from _idle(tree["annotations"], "annotations", _DESCRIBES)
    yield from _idle(tree.get("infrastructure", tree), "")


def _idle(part: Any, place: str, reason: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield what changes nothing in a part of the file; all of it, where there is a `reason` for that."""
    if isinstance(part, Mapping) and (part or not reason):
        for key, value in part.items():
            here = f"{place}.{key}".removeprefix(".")
            yield from _idle(value, here, reason or _reason(key, part, place))
    elif isinstance(part, list) and (part or not reason):
        for number, entry in enumerate(part):
            yield from _idle(entry, f"{place}[{number}]", reason)
    elif reason:
        yield place, str(part), reason


def _reason(key: str, part: Mapping[str, Any], place: str) -> str:
    if key in ("description", "annotations") or (key == "name" and not place):
        return _DESCRIBES
    if key in _PIECES and "choice" in part:
        return "choice says what the component is"
    if key in _UNITS and key != part.get("choice"):
        return "choice names another unit"
    return ""


READER = GraphReader(read_infragraph)
