"""Which links carry traffic that block modes simulate apart: of blocks, and between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.errors import UnsupportedByEngine
from rapid_des.machine import Machine
from rapid_des.modes.blocks.reach import Rings
from rapid_des.program.plans import tree_pairs
from rapid_des.program.routes import all_pairs

_BATCH = 1 << 18
"""Pairs that are routed at a time."""


@dataclass(frozen=True)
class Sharing:
    """Which links carry what a block mode simulates apart: for each link of the fabric who takes it."""

    inside: Int64s
    """How many inner groups' blocks take it."""
    places: Int64s
    """Of how many places of inner groups the pipelines and data-parallel groups take it."""

    @property
    def links(self) -> Int64s:
        """Links that carry traffic of several of these, ascending."""
        return np.flatnonzero(self.inside + self.places > 1)

    def waits(self, inside: int, between: Int64s) -> int:
        """Return for how long a stage waits at most on one of these links for what is simulated apart.

        `inside` is how long its blocks keep their busiest link busy, `between` [link] how long what one place
        sends keeps a link like it, both picoseconds of the whole step. Links serve in order of arrival,
        so a small message may wait for a large one each time: only the work of the others bounds the waiting.
        """
        groups, places = self.inside[self.links], self.places[self.links]
        others = np.where(groups > 0, places, np.maximum(places - 1, 0))
        return int((others * between[self.links] + np.maximum(groups - 1, 0) * inside).max(initial=0))


def sharing(
    machine: Machine, inner: Sequence[Sequence[int]], outer: Sequence[Rings], *, strict: bool
) -> Sharing:
    """Return who takes which link; where several do and `strict`, an `UnsupportedByEngine` names a link.

    `inner` are the inner groups. `outer` is, for each place in an inner group, the rings of ranks at that
    place that exchange data outside (data-parallel groups, pipelines).
    """
    inside = np.zeros(len(machine.fabric), np.int64)
    places = np.zeros(len(machine.fabric), np.int64)
    if len(inner[0]) > 1:
        _require_one_switch(machine, inner)
        inside[_links(machine, tree_pairs(machine, inner))] = 1
        inside = np.maximum(inside, _groups_on(machine, all_pairs(inner), len(inner)))
    for rings in outer:
        branches = [tree_pairs(machine, table.tolist()) for table in rings if machine.in_switches]
        places[_links(machine, np.concatenate((_neighbours(rings), *branches)))] += 1
    shared = Sharing(inside, places)
    if strict and len(shared.links):
        link = int(shared.links[0])
        others = "pipeline or data-parallel traffic"
        both = f"{others} and that of another rank of its block"
        if inside[link]:
            both = f"{others} and traffic inside blocks" if places[link] else "blocks of several groups"
        raise UnsupportedByEngine(
            f"{machine.path}: link {machine.fabric.link_name(link)} carries {both}; strict hierarchical "
            "execution needs them on links of their own: use --mode flattened, or place the axes on other "
            "dimensions"
        )
    return shared


def _require_one_switch(machine: Machine, inner: Sequence[Sequence[int]]) -> None:
    """Refuse trees of switches over inner groups: parts of a group may have other trees than the whole."""
    trees = machine.switch_trees
    switched = [trees.over(tuple(group)) for group in inner] if machine.in_switches else []
    if any(tree is not None and len(tree.switches) > 1 for tree in switched):
        raise UnsupportedByEngine(
            f"{machine.path}: ranks of one block stand below several switches, whose links hierarchical "
            "execution can not tell from others' where collectives work inside switches: use --mode flattened"
        )


def _links(machine: Machine, pairs: Int64s) -> Int64s:
    blocks = np.zeros(len(machine.fabric), np.bool_)
    for begin in range(0, len(pairs), _BATCH):
        blocks[machine.router.routes(pairs[begin : begin + _BATCH]).links] = True
    return np.flatnonzero(blocks)


def _groups_on(machine: Machine, pairs: Int64s, groups: int) -> Int64s:
    """Return for each link how many of so many groups take it, whose `pairs` follow one another in order."""
    links = len(machine.fabric)
    used = [np.zeros(0, np.int64)]
    for begin in range(0, len(pairs), _BATCH):
        routes = machine.router.routes(pairs[begin : begin + _BATCH])
        flow = begin + np.repeat(np.arange(len(routes)), np.diff(routes.starts))
        used.append(_distinct(flow // (len(pairs) // groups), routes.links, links))
    return np.bincount(np.unique(np.concatenate(used)) % links, minlength=links)


def _distinct(groups: Int64s, links: Int64s, number: int) -> Int64s:
    """Return each pair of a group (ascending) and a link once, as group · number + link.

    NOTE: `np.unique` of all pairs sorts; most links have one group, which assignments tell.
    """
    first, last = np.full((2, number), -1)
    last[links], first[links[::-1]] = groups, groups[::-1]
    alone = np.flatnonzero((first == last) & (last >= 0))
    several = first[links] != last[links]
    return np.concatenate((last[alone] * number + alone, np.unique((groups * number + links)[several])))


def _neighbours(rings: Rings) -> Int64s:
    parts = [np.zeros((0, 2), np.int64)]
    for table in rings:
        for step in (1, -1):
            parts.append(np.stack((table, np.roll(table, step, axis=1)), 2).reshape(-1, 2))
    return np.concatenate(parts)
