"""The trees of switches over groups of ranks, for collectives that work inside switches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.machine import Machine
from rapid_des.network.switches import SwitchTrees
from rapid_des.values import replace

Parents = tuple[int, ...]
"""The parent of each member, then of each switch of a tree of switches; empty where there is no tree."""


@dataclass(frozen=True)
class TreesOver:
    """The switches over a group, for machines with algorithms that work inside switches."""

    whole: Parents = ()
    lines: tuple[Parents, ...] = ()
    """The tree over this rank's line along each extent of the group."""
    axis: int | None = None
    """The flat axis of the fabric within which the group lies, if it is one."""
    who: str = field(default="", compare=False)
    """The group's name in messages."""
    cut: bool = field(default=False, compare=False)
    """Whether dead links removed a tree."""

    def over(self, axis: int | None) -> Parents:
        """Return the tree over the group, or over this rank's line along one of its extents."""
        return self.whole if axis is None else self.lines[axis]


NO_TREES = TreesOver()


def lines_through(group: Sequence[int], extents: Sequence[int], rank: int) -> list[tuple[int, ...]]:
    """Return the ranks that differ from `rank` only along each extent of the group, in member order.

    >>> lines_through((0, 1, 2, 3), (2, 2), 1)
    [(0, 1), (1, 3)]
    """
    place, lines, stride = group.index(rank), [], 1
    for extent in extents:
        base = place - place // stride % extent * stride
        lines.append(tuple(group[base + step * stride] for step in range(extent)))
        stride *= extent
    return lines


class TreesOverGroups:
    """Finds the switches over the groups of a machine's traces; what all members of a group share, once."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._known: dict[str, TreesOver] = {}

    @cached_property
    def _healthy(self) -> SwitchTrees:
        return SwitchTrees(self._machine.healthy, frozenset(), self._machine.spec.routing)

    def of(self, name: str, group: tuple[int, ...], extents: tuple[int, ...], rank: int) -> TreesOver:
        """Return the trees over a group and over the lines through one of its ranks."""
        if not self._machine.in_switches or len(group) < 2:
            return NO_TREES
        if name not in self._known:
            whole, cut = self._over(group)
            self._known[name] = TreesOver(whole, (), _one_axis(self._machine, group), name, cut)
        shared = self._known[name]
        if len(extents) == 1:
            return shared
        lines_over = [self._over(line) for line in lines_through(group, extents, rank)]
        cut = shared.cut or any(cut for _, cut in lines_over)
        return replace(shared, lines=tuple(parents for parents, _ in lines_over), cut=cut)

    def _over(self, group: tuple[int, ...]) -> tuple[Parents, bool]:
        """Return the tree over a group, and whether dead links took away the one that there was."""
        tree = self._machine.switch_trees.over(group)
        if tree is not None:
            return tree.parents, False
        return (), bool(self._machine.dead) and self._healthy.over(group) is not None


def _one_axis(machine: Machine, group: Sequence[int]) -> int | None:
    """Return the only axis along which the places of the ranks differ."""
    if prod(machine.fabric.axes) != machine.fabric.gpus:
        return None
    places = np.array([machine.fabric.coordinates(rank) for rank in group])
    varied = np.flatnonzero((places != places[0]).any(axis=0))
    return int(varied[0]) if len(varied) == 1 else None


def with_switches(
    trees: SwitchTrees | None, group: Sequence[int], below: Sequence[Sequence[int]] = ()
) -> tuple[int, ...]:
    """Return the nodes of a group's members, then of the switches of the trees over them, if there are such.

    One tree over all of them, or, with `below`, one over each of those parts.
    """
    parts = [tuple(group[member] for member in part) for part in below] or [tuple(group)]
    over_trees = [] if trees is None else [trees.over(part) for part in parts]
    return (*group, *(switch for tree in over_trees if tree is not None for switch in tree.switches))


def tree_pairs(machine: Machine, groups: Sequence[Sequence[int]]) -> Int64s:
    """Return the ends of every branch of the trees over groups, up and down, if the machine uses any."""
    pairs, trees = list[tuple[int, int]](), machine.switch_trees
    for group in groups:
        tree = trees.over(tuple(group)) if machine.in_switches and len(group) > 1 else None
        if tree is not None:
            nodes = (*group, *tree.switches)
            ups = [(nodes[child], nodes[up]) for child, up in enumerate(tree.parents) if up >= 0]
            pairs += [pair for low, high in ups for pair in ((low, high), (high, low))]
    return np.array(pairs, np.int64).reshape(-1, 2)
