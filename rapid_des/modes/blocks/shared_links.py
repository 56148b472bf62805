"""Which links carry traffic that block modes simulate apart: of blocks, and between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Bools, Int64s, distinct
from rapid_des.errors import UnsupportedByEngine
from rapid_des.machine import Machine
from rapid_des.modes.blocks.reach import Outside
from rapid_des.program.routes import all_pairs
from rapid_des.program.switch_trees import tree_pairs

_BATCH = 1 << 18
"""Pairs that are routed at a time."""
_NEVER = 1 << 62


class Sharing(Struct, frozen=True):
    """Which links carry what block modes simulate apart: for each link of the fabric who takes it."""

    inside: Int64s
    """How many inner groups' blocks take it."""
    places: Int64s
    """The number of places of inner groups whose pipelines and data-parallel groups use it."""
    groups: Mapping[str, Int64s]
    """How many groups outside blocks take it, by what they are of: pp, dp, cp, ep."""
    direct: Bools
    """Whether it joins two GPUs, which pass on what is not for them."""
    passed_on: frozenset[str]
    """The kinds of groups whose members pass on messages of their own group: those of three or more."""

    def waits(self, inside: int, between: Int64s) -> Int64s:
        """Return for how long a stage waits at most on each link for what `hierarchical` simulates apart.

        `inside` is how long its blocks keep their busiest link busy, `between` [link] how long what one place
        sends keeps a link like it, both picoseconds of the whole step. Links serve in order of arrival, so a
        small message may wait for a large one each time: only the work of the others bounds the waiting.
        """
        others = np.where(self.inside > 0, self.places, np.maximum(self.places - 1, 0))
        work: Int64s = others * between + np.maximum(self.inside - 1, 0) * inside
        return np.where(self.inside + self.places > 1, work, 0)

    def waits_of_closed_forms(self, inside: int, busy: Mapping[str, int]) -> Int64s:
        """Return the same where groups outside blocks do not meet either.

        `busy` is for how long a group of each kind is under way alone: no link of it serves it for longer.
        """
        none = np.zeros_like(self.inside)
        between = {kind: groups * busy.get(kind, 0) for kind, groups in self.groups.items()}
        # who waits is a block, or where none takes the link the group that is served for the least time
        least = np.full_like(none, _NEVER)
        for kind, work in between.items():
            least = np.where(work > 0, np.minimum(least, busy.get(kind, 0)), least)
        # where members pass on each other's messages, a collective meets the rest of the one before
        met = [crossed > 0 for kind, crossed in self.groups.items() if kind in self.passed_on]
        meets_itself = self.direct & np.any([none > 0, *met], axis=0)
        own = np.where((self.inside > 0) | (least == _NEVER) | meets_itself, 0, least)
        waits: Int64s = sum(between.values(), none) - own + np.maximum(self.inside - 1, 0) * inside
        return waits


def sharing(machine: Machine, inner: Sequence[Sequence[int]], outer: Sequence[Outside]) -> Sharing:
    """Return who takes which link.

    `inner` are the inner groups. `outer` is, for each place in an inner group, what the ranks at that place
    exchange data in outside (data-parallel groups, pipelines): tables of groups, with what they are of.
    """
    inside = np.zeros(len(machine.fabric), np.int64)
    places = np.zeros(len(machine.fabric), np.int64)
    groups: dict[str, Int64s] = {}
    passed_on: set[str] = set()
    if len(inner[0]) > 1:
        _require_one_switch(machine, inner)
        inside[_links(machine, tree_pairs(machine, inner))] = 1
        inside = np.maximum(inside, _groups_on(machine, all_pairs(inner), len(inner)))
    for tables in outer:
        taken = np.zeros(len(machine.fabric), np.bool_)
        for kind, table in tables:
            if not len(table):
                continue
            crossed = _groups_on(machine, _neighbours(table), len(table))
            groups[kind] = groups.get(kind, 0) + crossed
            passed_on |= {kind} if table.shape[1] > 2 else set()
            taken |= crossed > 0
            if machine.in_switches:
                taken[_links(machine, tree_pairs(machine, table.tolist()))] = True
        places += taken
    fabric = machine.fabric
    direct = (fabric.source < fabric.gpus) & (fabric.destination < fabric.gpus)
    return Sharing(inside, places, groups, direct, frozenset(passed_on))


def _require_one_switch(machine: Machine, inner: Sequence[Sequence[int]]) -> None:
    """Refuse trees of switches over inner groups: parts of a group may have other trees than the whole."""
    trees = machine.switch_trees
    switched = [trees.over(tuple(group)) for group in inner] if machine.in_switches else []
    if any(tree is not None and len(tree.switches) > 1 for tree in switched):
        raise UnsupportedByEngine(
            f"{machine.path}: ranks of one block stand below several switches, and collectives work inside "
            "switches: hierarchical execution can not attribute their links to blocks: use --mode flattened"
        )


def _links(machine: Machine, pairs: Int64s) -> Int64s:
    blocks = np.zeros(len(machine.fabric), np.bool_)
    for begin in range(0, len(pairs), _BATCH):
        blocks[machine.router.routes(pairs[begin : begin + _BATCH]).links] = True
    return np.flatnonzero(blocks)


def _groups_on(machine: Machine, pairs: Int64s, groups: int) -> Int64s:
    """Return [link] the number of groups that use it; `pairs` are those of each group, in order."""
    links = len(machine.fabric)
    used = [np.zeros(0, np.int64)]
    for begin in range(0, len(pairs), _BATCH):
        routes = machine.router.routes(pairs[begin : begin + _BATCH])
        flow = begin + np.repeat(np.arange(len(routes)), np.diff(routes.starts))
        used.append(_distinct(flow // (len(pairs) // groups), routes.links, links))
    return np.bincount(distinct(np.concatenate(used)) % links, minlength=links)


def _distinct(groups: Int64s, links: Int64s, number: int) -> Int64s:
    """Return each pair of a group (ascending) and a link once, as group · links + link.

    NOTE: `np.unique` of all pairs sorts; most links have one group, which two assignments find.
    """
    first, last = np.full((2, number), -1)
    last[links], first[links[::-1]] = groups, groups[::-1]
    alone = np.flatnonzero((first == last) & (last >= 0))
    several = first[links] != last[links]
    return np.concatenate((last[alone] * number + alone, distinct((groups * number + links)[several])))


def _neighbours(table: Int64s) -> Int64s:
    """Return the pairs of neighbours of each group in both directions, group by group."""
    pairs = [np.stack((table, np.roll(table, step, axis=1)), 2) for step in (1, -1)]
    return np.concatenate(pairs, axis=1).reshape(-1, 2)
