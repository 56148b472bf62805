"""Shapes: functions that return the block of links of one dimension, by the name that machine files use."""

from __future__ import annotations

from collections.abc import Mapping

SHAPES: Mapping[str, str] = {
    "ring": "direct.grid",
    "mesh": "direct.grid",
    "torus": "direct.grid",
    "twisted_torus": "twisted.twisted_torus",
    "king_mesh": "direct.grid",
    "hypercube": "direct.hypercube",
    "fully_connected": "direct.fully_connected",
    "switch": "switched.switch",
    "fat_tree": "switched.fat_tree",
    "clos": "switched.clos",
    "dragonfly": "switched.dragonfly",
    "hyperx": "low_diameter.hyperx",
    "slim_fly": "low_diameter.slim_fly",
    "dragonfly_plus": "dragonfly_plus.dragonfly_plus",
    "graph": "graphs.graph",
    "infragraph": "graphs.graph",
}
"""The module here and the function in it, by shape. A machine imports only the shapes that it uses."""
