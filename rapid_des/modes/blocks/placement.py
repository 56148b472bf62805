"""Where blocks and the graph around them stand: who represents the others, which placements are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rapid_des.arrays import Bools, Int64s
from rapid_des.errors import UnsupportedByEngine
from rapid_des.machine import Machine
from rapid_des.program.plans import tree_pairs
from rapid_des.program.routes import all_pairs, signatures

Rings = Sequence[Int64s]
"""Rings of ranks: tables of rings of one length, a row each."""

_BATCH = 1 << 18
"""Pairs that are routed at a time."""


@dataclass(frozen=True)
class Sharing:
    """Which links carry what a block mode simulates apart: for each link of the fabric who takes it."""

    inside: Bools
    """Whether blocks take it."""
    places: Int64s
    """Of how many places of inner groups the pipelines and data-parallel groups take it."""

    @property
    def links(self) -> Int64s:
        """Links that carry traffic of several of these, ascending."""
        return np.flatnonzero(self.inside + self.places > 1)

    def neglected(self, inside: int, between: Int64s) -> int:
        """Return the most picoseconds that a run leaves out because nobody waits for others on such links.

        `inside` is how long blocks keep their busiest link busy, `between` [link] how long the simulated
        place keeps each. Two kinds of traffic delay each other at most as long as the shorter of them takes.
        """
        shared = self.links[between[self.links] > 0]
        others = np.maximum(self.places[shared] - 1, 0) * between[shared]
        blocks = np.minimum(between[shared], inside) * self.inside[shared]
        return int((others + blocks).max(initial=0))


def sharing(
    machine: Machine, inner: Sequence[Sequence[int]], outer: Sequence[Rings], *, strict: bool
) -> Sharing:
    """Return who takes which link; where several do and `strict`, an `UnsupportedByEngine` names a link.

    `inner` are the inner groups. `outer` is, for each place in an inner group, the rings of ranks at that
    place that exchange data outside (data-parallel groups, pipelines).
    """
    inside = np.zeros(len(machine.fabric), np.bool_)
    places = np.zeros(len(machine.fabric), np.int64)
    if len(inner[0]) > 1:
        _require_one_switch(machine, inner)
        inside[_links(machine, np.concatenate((all_pairs(inner), tree_pairs(machine, inner))))] = True
    for rings in outer:
        branches = [tree_pairs(machine, table.tolist()) for table in rings if machine.in_switches]
        places[_links(machine, np.concatenate((_neighbours(rings), *branches)))] += 1
    found = Sharing(inside, places)
    if strict and len(found.links):
        link = int(found.links[0])
        other = "traffic inside blocks" if inside[link] else "that of another rank of its block"
        raise UnsupportedByEngine(
            f"{machine.path}: link {machine.fabric.link_name(link)} carries pipeline or data-parallel traffic"
            f" and {other}; strict hierarchical execution needs them on links of their own: use --mode "
            "flattened, or place the axes on other dimensions"
        )
    return found


def _require_one_switch(machine: Machine, inner: Sequence[Sequence[int]]) -> None:
    """Refuse trees of switches over inner groups: parts of a group may have other trees than the whole."""
    trees = machine.switch_trees
    found = [trees.over(tuple(group)) for group in inner] if machine.in_switches else []
    if any(tree is not None and len(tree.switches) > 1 for tree in found):
        raise UnsupportedByEngine(
            f"{machine.path}: ranks of one block stand below several switches, whose links hierarchical "
            "execution can not tell from others' where collectives work inside switches: use --mode flattened"
        )


def _links(machine: Machine, pairs: Int64s) -> Int64s:
    blocks = np.zeros(len(machine.fabric), np.bool_)
    for begin in range(0, len(pairs), _BATCH):
        blocks[machine.router.routes(pairs[begin : begin + _BATCH]).links] = True
    return np.flatnonzero(blocks)


def _neighbours(rings: Rings) -> Int64s:
    parts = [np.zeros((0, 2), np.int64)]
    for table in rings:
        for step in (1, -1):
            parts.append(np.stack((table, np.roll(table, step, axis=1)), 2).reshape(-1, 2))
    return np.concatenate(parts)


def representative(machine: Machine, places: Sequence[Rings]) -> int:
    """Return the place whose data-parallel groups and pipelines the outer graph runs on.

    `places` are, for each place in an inner group, the lines of ranks at that place. Members of a block start
    and end it together, so the slowest place leads: the first one that faults hit, if they hit all hit places
    alike. Raises `UnsupportedByEngine` if they hit places in different ways.
    """
    if not machine.faults:
        return 0
    healthy = replace(machine, fabric=machine.healthy, router=machine.planned, dead=frozenset())
    hit = {}
    for place, lines in enumerate(places):
        now = _kinds(machine, lines)
        if now != _kinds(healthy, lines):
            hit[place] = now
    if len(set(hit.values())) > 1:
        named = ", ".join(map(str, list(hit)[:8]))
        raise UnsupportedByEngine(
            f"{machine.path}: faults hit the pipeline or data-parallel routes of places {named} of the inner "
            "groups in different ways; hierarchical execution follows one place: use --mode flattened"
        )
    return next(iter(hit), 0)


def _kinds(machine: Machine, lines: Rings) -> tuple[bytes, ...]:
    return tuple(key for table in lines for line in table.tolist() for key in signatures(machine, [line]))
