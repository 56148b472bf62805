"""A folded program without what nobody takes any more: pairs of members and routes that were folded away."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rapid_des.program.program import NONE, Program, Template
from rapid_des.program.rounds import RoundsTemplate


def compact(program: Program) -> Program:
    """Return the program with the pairs that its templates use and the routes that its groups take."""
    used = [_used_pairs(template) for template in program.templates]
    templates = tuple(_with(template, own) for template, own in zip(program.templates, used, strict=True))
    left = {  # groups share what they take
        id(group.routes): {number: routes[used[number]] for number, routes in group.routes.items()}
        for group in program.groups
    }
    taken = np.zeros(len(program.route_starts) - 1, np.bool_)
    for of_group in left.values():
        for routes in of_group.values():
            taken[routes] = True
    number = (np.cumsum(taken) - 1).astype(np.int32)
    renumbered = {
        name: {template: number[routes] for template, routes in of_group.items()}
        for name, of_group in left.items()
    }
    lengths = np.diff(program.route_starts)
    hops = np.repeat(taken, lengths)
    return replace(
        program,
        templates=templates,
        groups=tuple(replace(group, routes=renumbered[id(group.routes)]) for group in program.groups),
        route_starts=np.concatenate(([0], np.cumsum(lengths[taken]))).astype(np.int64),
        route_links=program.route_links[hops],
        route_class=program.route_class[hops],
    )


def _used_pairs(template: Template) -> NDArray[np.int64]:
    pair = template.rounds.pair if isinstance(template, RoundsTemplate) else template.pair
    used = np.zeros(len(template.pair_source), np.bool_)
    used[pair[pair != NONE]] = True
    return np.flatnonzero(used)


def _with(template: Template, used: NDArray[np.int64]) -> Template:
    if len(used) == len(template.pair_source):
        return template
    number = np.full(len(template.pair_source) + 1, NONE, np.int32)  # the last stands for NONE
    number[used] = np.arange(len(used))
    source, destination = template.pair_source[used], template.pair_destination[used]
    if isinstance(template, RoundsTemplate):
        rounds = replace(template.rounds, pair=number[template.rounds.pair])
        return RoundsTemplate(rounds, source, destination, template.name)
    pair = number[template.pair]
    return replace(template, pair=pair, pair_source=source, pair_destination=destination, alike=None)
