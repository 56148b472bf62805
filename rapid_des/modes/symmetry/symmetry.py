"""Rotations of a whole program as maps of its ranks and links: which faults cost the same as which others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rapid_des.modes.symmetry.fold import turns_of
from rapid_des.modes.symmetry.rotation import Shift, group_map, hop_images, keeps_slots, link_orbits, shifts
from rapid_des.program.program import Program

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Rotation:
    """A proven symmetry: where each rank position and each link that carries something goes."""

    position: Ints
    link: Ints
    """A link that no route takes stays where it is."""


def rotations(program: Program) -> Iterator[Rotation]:
    """Yield the rotations that can be proven, each on the whole program.

    Two faults that one rotation maps onto each other cost the same as long as no link chooses among transfers
    that became ready at one instant (`Records.ties`): such a choice looks at the ranks.
    """
    for shift in shifts(program):
        link = _link_map(program, shift)
        if link is not None:
            yield Rotation(shift.image(np.arange(len(program.bindings))), link)


def _link_map(program: Program, shift: Shift) -> Ints | None:
    groups = group_map(program, shift)
    if groups is None or not keeps_slots(program, shift, groups):
        return None
    turns = turns_of(program, groups)
    if turns is None:
        return None
    pairs = {key: turn.pair for key, turn in turns.items()}
    if link_orbits(program, shift, groups, pairs) is None:
        return None
    move = np.arange(program.links)
    for first, second in hop_images(program, groups, pairs):
        move[program.route_links[first]] = program.route_links[second]
    return move
