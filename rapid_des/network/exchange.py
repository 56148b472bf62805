"""Fabrics as networkx graphs, to and from."""

from __future__ import annotations

from collections.abc import Collection
from math import isfinite
from numbers import Real
from typing import TYPE_CHECKING, Any

from rapid_des.errors import TopologyError
from rapid_des.units import PS_PER_S, Bandwidth, Duration

if TYPE_CHECKING:
    import networkx

    from rapid_des.network.fabric import Fabric

_KINDS = ("gpu", "nic", "switch")


def fabric_graph(fabric: Fabric, dead: Collection[int]) -> networkx.DiGraph[str]:
    """Return a fabric without its dead links as a graph; see `Machine.graph`."""
    import networkx  # slow to import

    graph: networkx.DiGraph[str] = networkx.DiGraph(name=fabric.name)
    for node in range(fabric.nodes):
        name = fabric.node_name(node)
        graph.add_node(name, kind=next(kind for kind in _KINDS if name.startswith(kind)))
        if node < fabric.gpus:
            graph.nodes[name]["position"] = fabric.coordinates(node)
    for link, (bandwidth, latency) in enumerate(
        zip(fabric.bandwidth.tolist(), fabric.latency.tolist(), strict=True)
    ):
        if link not in dead:
            dimension = int(fabric.dimension[link])
            graph.add_edge(
                fabric.node_name(int(fabric.source[link])),
                fabric.node_name(int(fabric.destination[link])),
                bandwidth=Bandwidth(bandwidth).exact(),
                latency=Duration(latency).exact(),
                bytes_per_s=bandwidth,
                latency_ps=latency,
                dimension=fabric.dimensions[dimension] if dimension >= 0 else "",
            )
    return graph


def graph_dimension(graph: networkx.Graph[Any]) -> dict[str, Any]:
    """Return a graph as the dimension of a machine file; see `Machine.from_graph`."""
    if graph.is_multigraph():
        raise TopologyError(
            "from_graph: a graph with parallel edges; allowed: one wider link between two nodes"
        )
    direction = "one" if graph.is_directed() else "both"
    edges = [
        {
            "source": str(source),
            "destination": str(destination),
            "bandwidth": _rate(edge, "bandwidth", (source, destination)),
            "latency": _rate(edge, "latency", (source, destination)),
            "direction": direction,
        }
        for source, destination, edge in graph.edges(data=True)
    ]
    gpus = sum(str(node).removeprefix("gpu").isdecimal() for node in graph)
    rates = {"bandwidth": edges[0]["bandwidth"], "latency": edges[0]["latency"]} if edges else {}
    return {"name": "graph", "shape": "graph", "size": gpus, "edges": edges, **rates}


def _rate(edge: dict[str, Any], key: str, ends: tuple[object, object]) -> str:
    """Return an attribute of an edge as a machine file states it."""
    where = f"from_graph: edge {ends[0]}-{ends[1]}"
    if key not in edge:
        given = ", ".join(map(str, edge)) or "none"
        raise TopologyError(f"{where}: has no {key!r}; its attributes are {given}")
    value = edge[key]
    if not isinstance(value, Real):
        return str(value)
    if not isfinite(value):
        raise TopologyError(
            f"{where}: {key} {value}; allowed: a number such as 5e10, or a text such as '50 GB/s'"
        )
    number = float(value)
    return f"{round(number)} B/s" if key == "bandwidth" else f"{round(number * PS_PER_S)} ps"
