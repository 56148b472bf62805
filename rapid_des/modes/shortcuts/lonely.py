"""Which groups have their links to themselves, and which of them ranks can replace alike."""

from __future__ import annotations

import numpy as np

from rapid_des.modes.shortcuts.alone import Ints
from rapid_des.program.program import NONE, Level, Program

LEAST_TASKS = 12
"""Collectives of fewer transfers are as cheap to simulate."""

Places = list[list[tuple[int, int]]]
"""By group: (program, slot) of every member."""


def places_of(program: Program) -> Places:
    """Return (program, slot) of every member of each group."""
    places: Places = [[] for _ in program.groups]
    for binding in program.bindings:
        for slot, group in enumerate(binding.groups.tolist()):
            if group != NONE:
                places[group].append((binding.program, slot))
    return places


def lonely_groups(program: Program) -> list[int]:
    """Return the groups whose links carry nobody else's routes."""
    owner = np.full(program.links, NONE, np.int64)
    shared = np.zeros(program.links, np.bool_)
    used, known = [], dict[int, Ints]()  # groups share what they take
    for index, group in enumerate(program.groups):
        if id(group.routes) not in known:
            routes = np.unique(np.concatenate([np.zeros(0, np.int32), *group.routes.values()]))
            known[id(group.routes)] = np.unique(links_of(program, routes)[0])
        links = known[id(group.routes)]
        used.append(links)
        shared[links[(owner[links] != NONE) & (owner[links] != index)]] = True
        owner[links] = index
    return [index for index, links in enumerate(used) if len(links) and not shared[links].any()]


def links_of(program: Program, routes: Ints) -> tuple[Ints, Ints]:
    """Return the links of routes one after the other, and where each route begins among them."""
    starts = program.route_starts
    lengths = starts[routes + 1] - starts[routes]
    ends = np.concatenate(([0], np.cumsum(lengths)))
    place = np.arange(int(ends[-1])) + np.repeat(starts[routes] - ends[:-1], lengths)
    return program.route_links[place].astype(np.int64), ends.astype(np.int64)


def agreed(places: Places, forms: dict[int, tuple[tuple[int, int], ...]]) -> frozenset[int]:
    """Return the groups that can be replaced: ranks of one program must replace a slot alike.

    `forms` says for each group which template would become which.
    """
    kept = set(forms)
    while True:
        wanted: dict[tuple[int, int], set[tuple[tuple[int, int], ...]]] = {}
        for group, members in enumerate(places):
            form = forms[group] if group in kept else ()
            for place in members:
                wanted.setdefault(place, set()).add(form)
        split = {group for group in kept if any(len(wanted[place]) > 1 for place in places[group])}
        if not split:
            return frozenset(kept)
        kept -= split


def plain_templates(program: Program) -> frozenset[int]:
    """Return the templates worth replacing that no visit on a slot server runs (chunks there overlap)."""
    large = np.flatnonzero(program.template_tasks >= LEAST_TASKS).tolist()
    if not large:
        return frozenset()
    on_slots: set[int] = set()
    for table in program.programs:
        served = table.server != NONE
        levels = (
            np.where(served, table.server_level[np.where(served, table.server, 0)], 0)
            if len(table.server_level)
            else np.zeros(len(table), np.int8)
        )
        on_slots.update(table.template[levels == Level.SLOT].tolist())
    return frozenset(large) - on_slots
