"""Orders of a job's axes that are equivalent on a fabric: all places of a switch are interchangeable.

Gradients go round cp and dp together, in the order of ranks: the inner one of the two decides which members
of a ring also exchange keys and values.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod
from typing import Any

from rapid_des.machine import Machine
from rapid_des.network.dimensions import FullyConnected, Switch

Axes = Sequence[tuple[str, int]]
"""The names and sizes of axes, innermost first."""


def order_key(axes: Axes, machine: Machine) -> Hashable:
    """Return a key that is equal for orders of axes that take the same time on a machine.

    Orders have equal keys if they differ only by renaming places within switches and keep the rings: then
    every simulated time is the same.

    >>> from rapid_des.machine import load_machine
    >>> nodes = load_machine("dgx_a100_x4")
    >>> inside, outside = [("tp", 8), ("dp", 2), ("pp", 2)], [("tp", 8), ("pp", 2), ("dp", 2)]
    >>> order_key(inside, nodes) == order_key(outside, nodes)
    True
    """
    levels = _places_alike(machine)
    parts = _by_level(axes, levels) if levels else None
    if parts is None:
        return tuple(axes)
    ring = tuple(axis for axis, _ in axes if axis in ("cp", "dp"))
    return ring, *(tuple(sorted(level)) for level in parts)


def _places_alike(machine: Machine) -> list[int] | None:
    """Return the number of places in each level of a fabric of crossbars, innermost first; None for others.

    Renaming the places of a level, equally in all its switches, does not change a simulation.
    """
    spec, fabric = machine.spec, machine.healthy
    levels = [prod(extent) for extent in fabric.extents]
    other = machine.faults or spec.links or spec.jitter or spec.switching.spray
    if other or spec.gpus_per_node != levels[0] or not all(map(_is_crossbar, spec.fabric)):
        return None
    return levels


def _is_crossbar(dimension: Any) -> bool:
    """Return whether all places of a dimension are interchangeable."""
    if not isinstance(dimension, Switch):
        return isinstance(dimension, FullyConnected)
    nic = dimension.nic
    return dimension.planes == 1 and (nic is None or nic.gpus == nic.count == 1)


def _by_level(axes: Axes, levels: Sequence[int]) -> list[list[tuple[str, int]]] | None:
    """Return the part of each axis in each level; None where an axis crosses a level unevenly.

    >>> _by_level([("tp", 4), ("dp", 4), ("pp", 2)], [8, 8])
    [[('tp', 4), ('dp', 2)], [('dp', 2), ('pp', 2)]]
    """
    left, room = list(axes)[::-1], list(levels)[::-1]
    parts: list[list[tuple[str, int]]] = [[]]
    while left:
        axis, size = left.pop()
        here = min(size, room[-1])
        if max(size, room[-1]) % here:
            return None
        parts[-1].append((axis, here))
        room[-1] //= here
        if room[-1] == 1 and len(room) > 1:
            room.pop()
            parts.append([])
        if size > here:
            left.append((axis, size // here))
    return parts
