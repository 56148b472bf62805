"""Shapes: functions that return the block of links of one dimension, by the name that machine files use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from rapid_des.network.blocks import Block
from rapid_des.network.shapes.direct import fully_connected, grid, hypercube
from rapid_des.network.shapes.dragonfly_plus import dragonfly_plus
from rapid_des.network.shapes.graphs import graph
from rapid_des.network.shapes.low_diameter import hyperx, slim_fly
from rapid_des.network.shapes.switched import clos, dragonfly, fat_tree, switch
from rapid_des.network.shapes.twisted import twisted_torus
from rapid_des.network.specs import Routing

Shape: TypeAlias = Callable[[Any, Routing], Block]

SHAPES: Mapping[str, Shape] = {
    "ring": grid,
    "mesh": grid,
    "torus": grid,
    "twisted_torus": twisted_torus,
    "king_mesh": grid,
    "hypercube": hypercube,
    "fully_connected": fully_connected,
    "switch": switch,
    "fat_tree": fat_tree,
    "clos": clos,
    "dragonfly": dragonfly,
    "hyperx": hyperx,
    "slim_fly": slim_fly,
    "dragonfly_plus": dragonfly_plus,
    "graph": graph,
    "infragraph": graph,
}
