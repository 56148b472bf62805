"""Graphs in files: edge-list CSV and NetworkX node-link JSON."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rapid_des.errors import ConfigError
from rapid_des.network.specs import Graph
from rapid_des.units import Bandwidth, Duration

_NUMBERED = re.compile(r"(?:gpu)?(\d+)\Z")
_COLUMNS = ("source", "destination", "bandwidth", "latency", "direction")


@dataclass(frozen=True)
class Edge:
    """One directed link of a file, ends by name."""

    source: str
    destination: str
    bandwidth: int
    latency: int


@dataclass(frozen=True)
class Terrain:
    """The graph of a file."""

    nodes: dict[str, int]
    """Local node of each name: GPUs, then NICs, then switches."""
    nics: int
    edges: list[Edge]


def read_graph(dimension: Graph) -> Terrain:
    """Return the graph of an edge list or a node-link file.

    GPUs are named 0, 1, … or gpu0, gpu1, …, and all `size` of them must be there; names that start with nic
    are NICs and all others switches, numbered in natural order of their names. An edge is both directions
    unless it says `direction: one`, or the JSON graph is directed.
    """
    path = Path(dimension.file)
    rows = _json_rows(path) if path.suffix == ".json" else _csv_rows(path)
    edges = [edge for place, row in rows for edge in _edges(row, dimension, f"{path}: {place}")]
    seen = set[tuple[str, str]]()
    for edge in edges:
        if (edge.source, edge.destination) in seen or edge.source == edge.destination:
            problem = (
                "a link to itself"
                if edge.source == edge.destination
                else "stands twice: make it one wider link"
            )
            raise ConfigError(f"{edge.source}>{edge.destination}: {problem}", file=str(path))
        seen.add((edge.source, edge.destination))
    nodes = _numbered(edges, dimension)
    return Terrain(nodes, sum(name.startswith("nic") for name in nodes), edges)


def _csv_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    lines = [line for line in _text(path).splitlines() if line.strip() and not line.startswith("#")]
    table = csv.DictReader(lines)
    header = table.fieldnames or []
    if not {"source", "destination"} <= set(header) <= set(_COLUMNS):
        problem = (
            f"the header is {','.join(header)}; allowed: source,destination and {', '.join(_COLUMNS[2:])}"
        )
        raise ConfigError(problem, file=str(path))
    for number, row in enumerate(table, 1):
        if None in row or None in row.values():
            raise ConfigError(f"row {number} has not {len(header)} cells", file=str(path))
        yield f"row {number}", {key: value.strip() for key, value in row.items() if value.strip()}


def _json_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        tree = json.loads(_text(path))
    except ValueError as error:
        raise ConfigError(f"not valid JSON: {error}", file=str(path)) from None
    edges = tree.get("links", tree.get("edges")) if isinstance(tree, dict) else None
    if not isinstance(edges, list) or not all(isinstance(edge, dict) for edge in edges):
        raise ConfigError("is no node-link graph: it needs a list `links` or `edges`", file=str(path))
    for number, edge in enumerate(edges):
        row = {key: str(value) for key, value in edge.items() if key != "target"}
        if "target" in edge:
            row["destination"] = str(edge["target"])
        if tree.get("directed"):
            row["direction"] = "one"
        yield f"edge {number}", row


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can not be read: {error}", file=str(path)) from None


def _edges(row: Mapping[str, str], dimension: Graph, place: str) -> Iterator[Edge]:
    missing = [key for key in ("source", "destination") if key not in row]
    direction = row.get("direction", "both")
    if missing or direction not in {"both", "one"}:
        problem = f"missing {missing[0]}" if missing else f"direction: {direction!r} is not one of both, one"
        raise ConfigError(f"{place}: {problem}")
    try:
        bandwidth = Bandwidth.parse(row["bandwidth"]) if "bandwidth" in row else dimension.bandwidth
        latency = Duration.parse(row["latency"]) if "latency" in row else dimension.latency
    except ValueError as error:
        raise ConfigError(f"{place}: {error}") from None
    if bandwidth <= 0:
        raise ConfigError(f"{place}: bandwidth: must be above 0")
    yield Edge(row["source"], row["destination"], bandwidth, latency)
    if direction == "both":
        yield Edge(row["destination"], row["source"], bandwidth, latency)


def _numbered(edges: list[Edge], dimension: Graph) -> dict[str, int]:
    names = sorted({name for edge in edges for name in (edge.source, edge.destination)}, key=_natural)
    gpus = {name: int(match[1]) for name in names if (match := _NUMBERED.match(name))}
    if sorted(gpus.values()) != list(range(dimension.size)):
        problem = f"has {len(gpus)} GPUs; the dimension's size needs each of 0 to {dimension.size - 1} once"
        raise ConfigError(problem, file=dimension.file)
    others = sorted((name for name in names if name not in gpus), key=lambda name: not name.startswith("nic"))
    return gpus | {name: dimension.size + place for place, name in enumerate(others)}


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
