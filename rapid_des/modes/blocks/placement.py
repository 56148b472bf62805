"""Where blocks and the graph around them stand: who represents the others, which placements are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.errors import UnsupportedByEngine
from rapid_des.machine import Machine
from rapid_des.program.plans import tree_pairs
from rapid_des.program.routes import all_pairs, signatures

Rings = Sequence[Int64s]
"""Rings of ranks: tables of rings of one length, a row each."""

_BATCH = 1 << 18
"""Pairs that are routed at a time."""


def require_disjoint(machine: Machine, inner: Sequence[Sequence[int]], outer: Sequence[Rings]) -> None:
    """Raise `UnsupportedByEngine`, naming a link and the rule, if a link carries traffic of two worlds.

    `inner` are the inner groups. `outer` is, for each place in an inner group, the rings of ranks at that
    place that exchange data outside (data-parallel groups, pipelines).
    """
    owner = np.full(len(machine.fabric), -1, np.int64)
    if len(inner[0]) > 1:
        _require_one_switch(machine, inner)
        owner[_links(machine, np.concatenate((all_pairs(inner), tree_pairs(machine, inner))))] = 0
    for place, rings in enumerate(outer, start=1):
        branches = [tree_pairs(machine, table.tolist()) for table in rings if machine.in_switches]
        links = _links(machine, np.concatenate((_neighbours(rings), *branches)))
        blocks = links[(owner[links] >= 0) & (owner[links] != place)]
        if len(blocks):
            other = "traffic inside blocks" if owner[blocks[0]] == 0 else "that of another rank of its block"
            raise UnsupportedByEngine(
                f"{machine.path}: link {machine.fabric.link_name(int(blocks[0]))} carries pipeline or "
                f"data-parallel traffic and {other}; hierarchical execution needs them on links of their "
                "own: use --mode flattened, or place the axes on other dimensions"
            )
        owner[links] = place


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
