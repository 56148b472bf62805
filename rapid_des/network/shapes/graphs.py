"""Any graph as a dimension, from its edges, CSV or NetworkX node-link JSON: shortest paths are its routes."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field

from rapid_des.arrays import Int32s, Int64s
from rapid_des.bounded_cache import BoundedCache
from rapid_des.config.documents import read_text
from rapid_des.config.texts import parse_json
from rapid_des.errors import ConfigError, FabricCutError
from rapid_des.extensions import FABRICS, find
from rapid_des.network.build import GraphReader, NamedGraph, NamedLink
from rapid_des.network.dimensions import Graph, GraphEdge, InfraGraph
from rapid_des.network.fabric import Block, Wires, block
from rapid_des.network.routing import UNREACHED, compressed, levels, pick
from rapid_des.network.specs import Routing
from rapid_des.units import Bandwidth, Duration

_ROOM = 2**25
"""The most distances, of four bytes each, that the routes of a graph keep."""
_NUMBERED = re.compile(r"(?:gpu)?(0|[1-9][0-9]{0,8})\Z")
_COLUMNS = ("source", "destination", "bandwidth", "latency", "direction")


def graph(dimension: Graph | InfraGraph, routing: Routing) -> Block:
    """Return the graph of a file; its GPUs are positions, then come its NICs and switches."""
    if isinstance(dimension, Graph):
        read = read_graph(dimension)
    else:
        read = find(FABRICS, "infragraph", GraphReader).read(dimension)
    nodes, edges = read.nodes, read.edges
    ends = np.array([(nodes[edge.source], nodes[edge.destination]) for edge in edges], np.int64).reshape(
        -1, 2
    )
    rates = np.array([(edge.bandwidth, edge.latency) for edge in edges], np.int64).reshape(-1, 2)
    order = np.lexsort((ends[:, 1], ends[:, 0]))
    ends, rates = ends[order], rates[order]
    names = sorted(nodes, key=lambda name: nodes[name])
    next_node = _ShortestPaths(ends[:, 0], ends[:, 1], tuple(names), routing)
    laid = [Wires(ends[:, 0], ends[:, 1], rates[:, 0], rates[:, 1])]
    return block(dimension.size, len(names), laid, next_node, nics=read.nics)


class _ShortestPaths(Struct, frozen=True, eq=False, dict=True):
    """One of the neighbours that are nearer to the destination: ECMP among them, in ascending order."""

    source: Int64s
    destination: Int64s
    names: tuple[str, ...]
    routing: Routing
    hops: BoundedCache = field(default_factory=lambda: BoundedCache(_ROOM))
    """The hops of each node to a destination, by destination."""

    @cached_property
    def _outgoing(self) -> tuple[Int64s, Int64s]:
        return compressed(self.source, len(self.names))

    @cached_property
    def _incoming(self) -> tuple[Int64s, Int64s]:
        return compressed(self.destination, len(self.names))

    def __call__(self, source: Int64s, destination: Int64s, current: Int64s) -> Int64s:
        ends = zip(current.tolist(), destination.tolist(), strict=True)
        neighbours = [self._nearer(*pair) for pair in ends]
        nth = pick(self.routing, source, destination, current, np.array([len(row) for row in neighbours]))
        chosen = [row[index] for row, index in zip(neighbours, nth.tolist(), strict=True)]
        return np.array(chosen, np.int64)

    def _nearer(self, node: int, destination: int) -> Int64s:
        hops = self.hops.get_or_make(destination, lambda: self._hops_to(destination), weight=len)
        if hops[node] == UNREACHED:
            ends = f"{self.names[node]} cannot reach {self.names[destination]}"
            raise FabricCutError(f"graph: {ends}: no path leads there")
        starts, links = self._outgoing
        neighbours = self.destination[links[starts[node] : starts[node + 1]]]
        nearer: Int64s = neighbours[hops[neighbours] == hops[node] - 1]
        return nearer

    def _hops_to(self, destination: int) -> Int32s:
        alive = np.ones(len(self.source), bool)
        return levels(self._incoming, self.source, destination, alive)


def read_graph(dimension: Graph) -> NamedGraph:
    """Return the graph of an edge list, a node-link file, or the edges that the dimension states.

    GPUs are named 0, 1, … or gpu0, gpu1, …, and all `size` of them must be there; names that start with nic
    are NICs and all others switches, numbered in natural order of their names. An edge is both directions
    unless it says `direction: one`, or the JSON graph is directed.
    """
    path, edges = _source(dimension)
    seen = set[tuple[str, str]]()
    for edge in edges:
        if (edge.source, edge.destination) in seen or edge.source == edge.destination:
            problem = (
                "a link to itself"
                if edge.source == edge.destination
                else "stands twice: make it one wider link"
            )
            raise ConfigError(f"{edge.source}>{edge.destination}: {problem}", file=path)
        seen.add((edge.source, edge.destination))
    nodes = _numbered(edges, dimension)
    return NamedGraph(nodes, sum(name.startswith("nic") for name in nodes), edges)


def _source(dimension: Graph) -> tuple[str, list[NamedLink]]:
    """Return what errors name as the place of the edges, and their links."""
    if (dimension.file is None) == (not dimension.edges):
        raise ConfigError(f"{dimension.name}: a graph needs a `file` or `edges`, and not both")
    if dimension.file is None:
        stated = [link for edge in dimension.edges for link in _links(edge, dimension)]
        return dimension.name, stated
    path = Path(dimension.file)
    rows = _json_rows(path) if path.suffix == ".json" else _csv_rows(path)
    return str(path), [link for where, row in rows for link in _edges(row, dimension, f"{path}: {where}")]


def _csv_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    text = read_text(path).removeprefix("\ufeff")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    table = csv.DictReader(lines)
    try:
        header, rows = table.fieldnames or [], list(table)
    except csv.Error as error:
        raise ConfigError(f"not valid CSV: {error}", file=str(path)) from None
    if not {"source", "destination"} <= set(header) <= set(_COLUMNS):
        problem = (
            f"the header is {','.join(header)}; allowed: source,destination and {', '.join(_COLUMNS[2:])}"
        )
        raise ConfigError(problem, file=str(path))
    for number, row in enumerate(rows, 1):
        if None in row or None in row.values():
            raise ConfigError(f"row {number} has not {len(header)} cells", file=str(path))
        yield f"row {number}", {key: value.strip() for key, value in row.items() if value.strip()}


def _json_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    tree = parse_json(read_text(path), path)
    edges = tree.get("links", tree.get("edges")) if isinstance(tree, dict) else None
    if not isinstance(edges, list) or not all(isinstance(edge, dict) for edge in edges):
        raise ConfigError("is no node-link graph: it needs a list `links` or `edges`", file=str(path))
    directed = tree.get("directed", False)
    if not isinstance(directed, bool):
        raise ConfigError(f"{directed!r:.60} is not one of true, false", file=str(path), key="directed")
    rows = [_json_row(edge, f"edge {number}", path) for number, edge in enumerate(edges)]
    _check_nodes(tree.get("nodes"), rows, path)
    for number, row in enumerate(rows):
        yield f"edge {number}", row | ({"direction": "one"} if directed else {})


def _json_row(edge: Mapping[str, Any], where: str, path: Path) -> dict[str, str]:
    row = {"destination" if key == "target" else key: value for key, value in edge.items()}
    row = {key: value for key, value in row.items() if key in _COLUMNS}
    for key, value in row.items():
        if type(value) not in (str, int):
            raise ConfigError(f"{repr(value)[:60]} is no text", file=str(path), key=f"{where}: {key}")
    return {key: str(value) for key, value in row.items()}


def _check_nodes(nodes: object, rows: list[dict[str, str]], path: Path) -> None:
    """Refuse a list `nodes` that is none, or that names other nodes than the links do."""
    if nodes in (None, []):
        return
    listed = nodes if isinstance(nodes, list) else [None]
    named = [node.get("id") if isinstance(node, dict) else None for node in listed]
    if not all(type(name) in (str, int) for name in named):
        raise ConfigError("must be a list of nodes, each with an `id`", file=str(path), key="nodes")
    stated = {str(name) for name in named}
    ends = {row[key] for row in rows for key in ("source", "destination") if key in row}
    if stated != ends:
        name = min(stated ^ ends)
        problem = "has no link" if name in stated else "has links and does not stand here"
        raise ConfigError(f"{name[:60]!r} {problem}", file=str(path), key="nodes")


def _edges(row: Mapping[str, str], dimension: Graph, where: str) -> Iterator[NamedLink]:
    missing = [key for key in ("source", "destination") if key not in row]
    direction = row.get("direction", "both")
    if missing or direction not in {"both", "one"}:
        problem = f"missing {missing[0]}" if missing else f"direction: {direction!r} is not one of both, one"
        raise ConfigError(f"{where}: {problem}")
    try:
        bandwidth = Bandwidth.parse(row["bandwidth"]) if "bandwidth" in row else dimension.bandwidth
        latency = Duration.parse(row["latency"]) if "latency" in row else dimension.latency
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    edge = GraphEdge(
        source=row["source"],
        destination=row["destination"],
        bandwidth=bandwidth,
        latency=latency,
        direction="one" if direction == "one" else "both",
    )
    yield from _links(edge, dimension, where)


def _links(edge: GraphEdge, dimension: Graph, where: str = "") -> Iterator[NamedLink]:
    """Yield the one or two links of an edge."""
    where = where or f"{dimension.name}: edge {edge.source}-{edge.destination}"
    bandwidth = dimension.bandwidth if edge.bandwidth is None else edge.bandwidth
    latency = dimension.latency if edge.latency is None else edge.latency
    if bandwidth <= 0:
        raise ConfigError(f"{where}: bandwidth: must be above 0")
    yield NamedLink(edge.source, edge.destination, bandwidth, latency)
    if edge.direction == "both":
        yield NamedLink(edge.destination, edge.source, bandwidth, latency)


def _numbered(edges: list[NamedLink], dimension: Graph) -> dict[str, int]:
    names = sorted({name for edge in edges for name in (edge.source, edge.destination)}, key=_natural)
    gpus = {name: int(match[1]) for name in names if (match := _NUMBERED.match(name))}
    if sorted(gpus.values()) != list(range(dimension.size)):
        problem = f"has {len(gpus)} GPUs; the dimension's size needs each of 0 to {dimension.size - 1} once"
        raise ConfigError(problem, file=dimension.file or dimension.name)
    others = sorted((name for name in names if name not in gpus), key=lambda name: not name.startswith("nic"))
    return gpus | {name: dimension.size + index for index, name in enumerate(others)}


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts digits in names as numbers, without making numbers of them."""
    parts = re.split(r"([0-9]+)", name)
    digits = [part.lstrip("0") for part in parts[1::2]]
    keys = [(-1, part) for part in parts]
    keys[1::2] = [(len(part), part) for part in digits]
    return keys
