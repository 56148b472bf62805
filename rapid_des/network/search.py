"""Breadth-first search over a fabric's surviving links, one array operation a level."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rapid_des.network.fabric import Fabric, Ints

UNREACHED = -1


def hops_to(fabric: Fabric, destination: int, alive: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return each node's number of hops to `destination` over living links, `UNREACHED` (-1) if cut off."""
    return levels(fabric.incoming, fabric.source, destination, alive, fabric.nodes)


def hops_from(fabric: Fabric, source: int, alive: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return each node's number of hops from `source` over living links, `UNREACHED` (-1) if cut off."""
    return levels(fabric.outgoing, fabric.destination, source, alive, fabric.nodes)


def gather(table: tuple[Ints, Ints], rows: Ints) -> Ints:
    """Return the entries of many rows of a compressed sparse table, row after row."""
    starts, entries = table
    lengths = starts[rows + 1] - starts[rows]
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    found: Ints = entries[np.repeat(starts[rows], lengths) + within]
    return found


def compressed(ends: Ints, nodes: int) -> tuple[Ints, Ints]:
    """Return (starts, links): the links of each node, given the node of each link."""
    starts = np.concatenate(([0], np.cumsum(np.bincount(ends, minlength=nodes))))
    return starts, np.argsort(ends, kind="stable")


def levels(
    table: tuple[Ints, Ints],
    far_end: NDArray[np.signedinteger],
    start: int,
    alive: NDArray[np.bool_],
    nodes: int,
) -> NDArray[np.int32]:
    """Return each node's level in a breadth-first search along a table of links, `UNREACHED` if none."""
    hops = np.full(nodes, UNREACHED, np.int32)
    hops[start] = level = 0
    frontier: Ints = np.array([start])
    while len(frontier):
        level += 1
        links = gather(table, frontier)
        found = far_end[links[alive[links]]]
        frontier = np.unique(found[hops[found] == UNREACHED]).astype(np.int64)
        hops[frontier] = level
    return hops
