"""Shortest paths over living links, one array operation a level, and which of equal ones a flow takes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rapid_des.arrays import Bools, Int32s, Int64s, distinct, entries_of, hashed, starts_by
from rapid_des.network.fabric import Fabric
from rapid_des.network.specs import Routing

UNREACHED = -1


def hops_to(fabric: Fabric, destination: int, alive: Bools) -> Int32s:
    """Return each node's number of hops to `destination` over living links, `UNREACHED` (-1) if cut off."""
    return levels(fabric.incoming, fabric.source, destination, alive, fabric.nodes)


def hops_from(fabric: Fabric, source: int, alive: Bools) -> Int32s:
    """Return each node's number of hops from `source` over living links, `UNREACHED` (-1) if cut off."""
    return levels(fabric.outgoing, fabric.destination, source, alive, fabric.nodes)


def compressed(ends: Int64s, nodes: int) -> tuple[Int64s, Int64s]:
    """Return (starts, links): the links of each node, given the node of each link."""
    order = np.argsort(ends, kind="stable")
    return starts_by(ends, nodes), order


def levels(
    table: tuple[Int64s, Int64s],
    far_end: NDArray[np.signedinteger],
    start: int,
    alive: Bools,
    nodes: int,
) -> Int32s:
    """Return each node's level in a breadth-first search along a table of links, `UNREACHED` if none."""
    starts, entries = table
    hops = np.full(nodes, UNREACHED, np.int32)
    hops[start] = level = 0
    frontier: Int64s = np.array([start])
    while len(frontier):
        level += 1
        links = entries[entries_of(starts, frontier)]
        ends = far_end[links[alive[links]]]
        frontier = distinct(ends[hops[ends] == UNREACHED]).astype(np.int64)
        hops[frontier] = level
    return hops


def pick(  # noqa: PLR0913 - a flow, and what it chooses from
    routing: Routing,
    source: Int64s,
    destination: Int64s,
    salt: Int64s | int,
    choices: Int64s | int,
    *,
    turn: Int64s | None = None,
) -> Int64s:
    """Return one of 0..choices-1 for each flow: the first, or by the SplitMix64 finaliser of (flow, salt).

    Or `turn` modulo the choices, for `ecmp: destination`; it is the destination unless the caller numbers
    those destinations that meet the same choices. Equal-cost multi-path: all messages between two endpoints
    take one of the equal paths, on every machine and in every run the same.
    """
    if routing.ecmp == "lowest_id":
        return np.zeros(len(source), np.int64)
    if routing.ecmp == "destination":
        return (destination if turn is None else turn) % choices
    return hashed(source, destination, (0, salt)) % choices
