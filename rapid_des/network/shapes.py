"""Shapes: functions that return the block of links of one dimension, by the name that machine files use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from rapid_des.network.blocks import Block, block, both_ways, check_links, wires
from rapid_des.network.clos import clos, fat_tree
from rapid_des.network.dragonfly import dragonfly
from rapid_des.network.fabric import Ints
from rapid_des.network.graphs import graph
from rapid_des.network.grids import grid
from rapid_des.network.specs import FullyConnected, Hypercube, Routing, Switch


def fully_connected(dimension: FullyConnected, routing: Routing) -> Block:  # noqa: ARG001 - nothing to choose
    """Return links between all pairs; the direct one is the route."""
    size = dimension.size
    check_links(size * (size - 1), dimension.name)
    low, high = np.triu_indices(size, 1)
    laid = both_ways(low, high, dimension, dimension.reverse)
    return block(size, size, laid, lambda source, destination, current: destination)  # noqa: ARG005


def switch(dimension: Switch, routing: Routing) -> Block:  # noqa: ARG001 - nothing to choose
    """Return one switch, with a link up and a link down for each endpoint."""
    size = dimension.size
    endpoint = np.arange(size)
    laid = both_ways(endpoint, np.full(size, size), dimension, dimension.reverse)

    def step(source: Ints, destination: Ints, current: Ints) -> Ints:  # noqa: ARG001 - nothing to choose
        return np.where(current < size, size, destination)

    return replace(block(size, size + 1, laid, step), star=True)


def hypercube(dimension: Hypercube, routing: Routing) -> Block:  # noqa: ARG001 - the order is the shape's
    """Return links between positions that differ in one bit.

    A route flips the lowest differing bit whose flip stays inside the (possibly incomplete) cube.
    """
    size = dimension.size
    bits = [1 << bit for bit in range((size - 1).bit_length())]
    laid = [wires(np.zeros(0, np.int64), np.zeros(0, np.int64), dimension)]
    for bit in bits:
        low = np.flatnonzero((np.arange(size) & bit == 0) & (np.arange(size) | bit < size))
        laid += both_ways(low, low | bit, dimension, dimension.reverse)

    def step(source: Ints, destination: Ints, current: Ints) -> Ints:  # noqa: ARG001 - no choice by flow
        following = current.copy()
        for bit in bits:
            flipped = current ^ bit
            flips = (following == current) & ((current ^ destination) & bit != 0) & (flipped < size)
            following = np.where(flips, flipped, following)
        return following

    return block(size, size, laid, step)


Shape: TypeAlias = Callable[[Any, Routing], Block]

SHAPES: Mapping[str, Shape] = {
    "ring": grid,
    "mesh": grid,
    "torus": grid,
    "king_mesh": grid,
    "hypercube": hypercube,
    "fully_connected": fully_connected,
    "switch": switch,
    "fat_tree": fat_tree,
    "clos": clos,
    "dragonfly": dragonfly,
    "graph": graph,
    "infragraph": graph,
}
