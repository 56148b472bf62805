"""Any graph as a dimension: shortest paths, equal ones shared by hash or given to the lowest id."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rapid_des.errors import FabricCutError
from rapid_des.network.blocks import Block, Step, Wires, block
from rapid_des.network.ecmp import pick
from rapid_des.network.fabric import Ints
from rapid_des.network.graph_files import read_graph
from rapid_des.network.infragraph_links import read_infragraph
from rapid_des.network.search import UNREACHED, compressed, gather, levels
from rapid_des.network.specs import Graph, InfraGraph, Routing

_REMEMBERED = 2**27
"""Bytes of distances that a graph's router keeps."""


def graph(dimension: Graph | InfraGraph, routing: Routing) -> Block:
    """Return the graph of a file; its GPUs are positions, then come its NICs and switches."""
    read = read_graph(dimension) if isinstance(dimension, Graph) else read_infragraph(dimension)
    nodes, edges = read.nodes, read.edges
    ends = np.array([(nodes[edge.source], nodes[edge.destination]) for edge in edges], np.int64).reshape(
        -1, 2
    )
    rates = np.array([(edge.bandwidth, edge.latency) for edge in edges], np.int64).reshape(-1, 2)
    order = np.lexsort((ends[:, 1], ends[:, 0]))
    ends, rates = ends[order], rates[order]
    names = sorted(nodes, key=lambda name: nodes[name])
    step = _step(_ShortestPaths(ends[:, 0], ends[:, 1], names), routing)
    laid = [Wires(ends[:, 0], ends[:, 1], rates[:, 0], rates[:, 1])]
    return block(dimension.size, len(names), laid, step, nics=read.nics)


class _ShortestPaths:
    """Hops to destinations, computed when first asked for."""

    def __init__(self, source: Ints, destination: Ints, names: list[str]) -> None:
        self.source, self.destination, self.names = source, destination, names
        self.outgoing = compressed(source, len(names))
        self._incoming = compressed(destination, len(names))
        self._known: dict[int, NDArray[np.int32]] = {}

    def hops_to(self, destination: int) -> NDArray[np.int32]:
        """Return each node's hops to one destination."""
        if destination not in self._known:
            if len(self._known) * len(self.names) * 4 > _REMEMBERED:
                self._known.clear()
            alive = np.ones(len(self.source), bool)
            hops = levels(self._incoming, self.source, destination, alive, len(self.names))
            self._known[destination] = hops
        return self._known[destination]

    def nearer(self, node: int, destination: int) -> Ints:
        """Return the neighbours one hop nearer to the destination, ascending."""
        hops = self.hops_to(destination)
        if hops[node] == UNREACHED:
            ends = f"{self.names[node]} can not reach {self.names[destination]}"
            raise FabricCutError(f"graph: {ends}: no path leads there")
        neighbours = self.destination[gather(self.outgoing, np.array([node]))]
        nearer: Ints = neighbours[hops[neighbours] == hops[node] - 1]
        return nearer


def _step(paths: _ShortestPaths, routing: Routing) -> Step:
    def step(source: Ints, destination: Ints, current: Ints) -> Ints:
        ways = [paths.nearer(*ends) for ends in zip(current.tolist(), destination.tolist(), strict=True)]
        nth = pick(routing, source, destination, current, np.array([len(way) for way in ways]))
        return np.array([way[chosen] for way, chosen in zip(ways, nth.tolist(), strict=True)], np.int64)

    return step
