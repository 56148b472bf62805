"""A program in which some messages are free: they take no link and no time, but ranks wait for each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

import numpy as np

from rapid_des.arrays import Bools
from rapid_des.program.lowering import Lowered
from rapid_des.program.program import NONE, Program, RankProgram, Template
from rapid_des.values import replace


def with_free_messages(lowered: Lowered, streams: Collection[str]) -> Program:
    """Return the program with the messages of the nodes on some streams for free.

    A task of such a collective arrives when it is ready, so that what a member waits for stays as it is.
    """
    program = lowered.program
    count = len(program.templates)
    nodes_of = {
        binding.program: trace.nodes
        for binding, trace in zip(program.bindings, lowered.traces.ranks, strict=True)
    }
    freed: set[int] = set()
    programs = []
    for number, table in enumerate(program.programs):
        nodes = nodes_of[number]
        wanted = np.array([*(name in streams for name in nodes.streams), False])[nodes.stream]
        chosen = _visits_of(table, wanted)
        freed.update(np.unique(table.template[chosen]).tolist())
        template = np.where(chosen, table.template + count, table.template).astype(np.int32)
        programs.append(replace(table, template=template))
    templates = [
        _free(template) if number in freed else template for number, template in enumerate(program.templates)
    ]
    used = _used(program, programs)
    groups = tuple(
        replace(group, routes={template: group.routes[template % count] for template in sorted(used[number])})
        for number, group in enumerate(program.groups)
    )
    return replace(
        program, programs=tuple(programs), templates=(*program.templates, *templates), groups=groups
    )


def _visits_of(table: RankProgram, wanted: Bools) -> Bools:
    """Return which visits take part in a collective of the wanted nodes."""
    holder = np.where(table.node == NONE, table.parent, np.arange(len(table)))
    node = np.where(holder == NONE, NONE, table.node[holder])
    chosen: Bools = (table.template != NONE) & (node != NONE) & wanted[node]
    return chosen


def _used(program: Program, programs: Sequence[RankProgram]) -> dict[int, set[int]]:
    """Return which templates each group's members use: folding expects routes of these alone."""
    pairs = [
        np.unique(np.stack((table.slot, table.template), 1)[table.template != NONE], axis=0).tolist()
        for table in programs
    ]
    used = defaultdict[int, set[int]](set)
    for binding in program.bindings:
        groups = binding.groups.tolist()
        for slot, template in pairs[binding.program]:
            used[groups[slot]].add(template)
    return used


def _free(template: Template) -> Template:
    """Return a template whose tasks use no link and whose edges take no time."""
    whole = template.expanded()
    return replace(
        whole,
        pair=np.full_like(whole.pair, NONE),
        edge_lag=np.zeros_like(whole.edge_lag),
        arrival_lag=np.zeros_like(whole.arrival_lag),
        shape=None,
    )
