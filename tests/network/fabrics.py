"""Small fabrics for tests."""

import msgspec
import networkx

from rapid_des.network.dimensions import AnyDimension
from rapid_des.network.specs import Routing
from rapid_des.units import Quantity

INNER = Routing(order="innermost_first", tie="positive")


def dimension(name="a", *, bandwidth="100 GB/s", latency="1 us", **keys):
    """One dimension as a machine file states it."""
    tree = {"name": name, "bandwidth": bandwidth, "latency": latency, **keys}
    return msgspec.convert(tree, AnyDimension, dec_hook=_quantity)


def _quantity(target: type, value: object) -> object:
    assert issubclass(target, Quantity)
    return target.parse(value)


def graph_of(fabric, dead=()):
    """The fabric as networkx sees it, for oracles."""
    graph: networkx.DiGraph[int] = networkx.DiGraph()
    graph.add_nodes_from(range(fabric.nodes))
    for link, ends in enumerate(zip(fabric.source.tolist(), fabric.destination.tolist(), strict=True)):
        if link not in dead:
            graph.add_edge(*ends)
    return graph
