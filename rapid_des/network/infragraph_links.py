"""An expanded InfraGraph file as a fabric: GPUs, NICs and switches in the order of the file, and links.

Components of choice xpu are the GPUs and those of choice nic the NICs; all others forward messages, as
switches do. An edge is a link each way; one that is written twice is one, while parallel cables between nodes
that stand for whole devices are one link of their summed bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rapid_des.errors import ConfigError
from rapid_des.network.graph_files import Edge, Terrain
from rapid_des.network.infragraph import Expansion, Line, Node, read
from rapid_des.network.infragraph_specs import Infrastructure
from rapid_des.network.specs import InfraGraph
from rapid_des.units import Bandwidth, Duration

Rates = tuple[int, int]
"""Bytes a second, picoseconds."""
_BANDWIDTHS = {"gigabits_per_second": "Gb/s", "gigabytes_per_second": "GB/s"}
_KINDS = {"xpu": "gpu", "nic": "nic"}


def read_infragraph(dimension: InfraGraph) -> Terrain:
    """Return the graph of a file; a `ConfigError` names file, place and what is allowed."""
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
    return Terrain({name: place for place, name in enumerate(ordered)}, len(names[1]), edges)


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
            whole = next((part for part in node.inside if part[0] in dimension.as_one), None)
            if whole is not None and node.choice == "xpu":
                problem = f"as_one of dimension {dimension.name}: device {whole[0]} holds xpu"
                raise ConfigError(problem, file=str(expansion.path))
            name = stands_for[node.path] = node.path if whole is None else whole[1]
            kinds[name] = _KINDS.get(node.choice, "switch") if whole is None else dimension.as_one[whole[0]]
    return kinds, stands_for


def _gone(dimension: InfraGraph, node: Node) -> bool:
    return not set(node.path.split(".")[2::2]).isdisjoint(dimension.leave_out)


def _edges(
    dimension: InfraGraph, file: Infrastructure, expansion: Expansion, stands_for: dict[str, str]
) -> Iterator[Edge]:
    """Yield both directions of every link between different nodes."""
    prices = _Rates(dimension, file, str(expansion.path))
    cables: dict[frozenset[str], Rates] = {}
    found: dict[tuple[str, str], Rates] = {}
    for line in expansion.lines:
        ends = tuple(sorted(stands_for[end] for end in line.ends if end in stands_for))
        if len(set(ends)) < 2 or prices.left_out(line):
            continue
        rate, cable = prices.of(line), frozenset(line.ends)
        known = cables.get(cable)
        if known is None:
            cables[cable] = rate
            found[ends[0], ends[1]] = prices.beside(found.get((ends[0], ends[1])), rate, line)
        elif known != rate:
            raise prices.error(line, f"{' to '.join(line.ends)} stands twice, with two rates")
    for (one, other), (bandwidth, latency) in found.items():
        yield Edge(one, other, bandwidth, latency)
        yield Edge(other, one, bandwidth, latency)


class _Rates:
    """What the links of a file let through: what the machine file states goes first."""

    def __init__(self, dimension: InfraGraph, file: Infrastructure, path: str) -> None:
        self._dimension, self._path = dimension, path
        self._links = {("", link.name): (f"links[{place}]", link) for place, link in enumerate(file.links)}
        for index, device in enumerate(file.devices):
            for place, link in enumerate(device.links):
                self._links[device.name, link.name] = f"devices[{index}].links[{place}]", link
        self._known: dict[tuple[str, str], Rates] = {}

    def left_out(self, line: Line) -> bool:
        """Whether edges of a line's link are left out."""
        return not {line.link, f"{line.scope}.{line.link}"}.isdisjoint(self._dimension.leave_out)

    def of(self, line: Line) -> Rates:
        """Return the rates of a line."""
        key = line.scope, line.link
        if key not in self._known:
            rates = self._dimension.rates
            stated = rates.get(f"{line.scope}.{line.link}", rates.get(line.link))
            self._known[key] = self._read(line) if stated is None else (stated.bandwidth, stated.latency)
            if self._known[key][0] <= 0:
                raise self.error(line, f"link {line.link!r}: bandwidth: must be above 0")
        return self._known[key]

    def beside(self, other: Rates | None, rate: Rates, line: Line) -> Rates:
        """Return the rates of a link that a line makes wider."""
        if other is not None and other[1] != rate[1]:
            raise self.error(line, "runs beside a link of another latency, between devices that are one node")
        return rate if other is None else (other[0] + rate[0], rate[1])

    def error(self, line: Line, problem: str) -> ConfigError:
        """Return an error at a line's link."""
        return ConfigError(problem, file=self._path, key=self._links[line.scope, line.link][0])

    def _read(self, line: Line) -> Rates:
        physical = self._links[line.scope, line.link][1].physical
        bandwidth = None if physical is None else physical.bandwidth
        latency = None if physical is None else physical.latency
        missing = "bandwidth" if bandwidth is None else "latency" if latency is None else ""
        if bandwidth is None or latency is None:
            raise self.error(line, f"link {line.link!r} states no {missing}; {self._instead(line)}")
        unit = _BANDWIDTHS.get(bandwidth.choice)
        rate, delay = getattr(bandwidth, bandwidth.choice), getattr(latency, latency.choice)
        if unit is None:
            problem = f"link {line.link!r} states transfers a second, which are no bytes"
            raise self.error(line, f"{problem}; {self._instead(line)}")
        if rate is None or delay is None:
            chosen = bandwidth.choice if rate is None else latency.choice
            raise self.error(line, f"link {line.link!r} chooses {chosen} and states none")
        return Bandwidth.parse(f"{rate!r} {unit}"), Duration.parse(f"{delay!r} {latency.choice}")

    def _instead(self, line: Line) -> str:
        return f"state it, or rates: {{{line.link}: …}} in dimension {self._dimension.name}"
