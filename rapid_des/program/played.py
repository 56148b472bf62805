"""How long choices for a collective take, message by message in all groups that work at the same time.

Estimates leave out who waits for whom where groups share links. What is estimated to be fast is therefore
played (see `side_by_side`), the best estimate first, as long as what is left could be faster at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import isqrt

import numpy as np
from msgspec import structs

from rapid_des.machine import Machine
from rapid_des.network.collectives import Schedule
from rapid_des.network.specs import Choice, Switching
from rapid_des.program.candidates import TIE, Asked, Estimate
from rapid_des.program.plans import AxisPhase, Call, as_chosen, cut_in_chunks
from rapid_des.program.simulated_estimate import Lines, Play
from rapid_des.units import Size, ceil_divide
from rapid_des.values import replace

MOST_PAIRS = 1 << 14
"""Most pairs of members, over all groups, for which collectives are simulated."""
MOST_VISITS = 1 << 14
"""Most link visits of one simulation; with more, messages are split into fewer parts."""
_MOST_WAITS = 1 << 16
"""Most pairs of segments that wait for one another in one simulation; with more, segments are longer."""
_FEWEST_SEGMENTS = 8
"""Fewest segments of a message that show how it is pipelined over hops; with fewer, estimates are used."""

Groups = Sequence[tuple[int, ...]]


def can_be_played(machine: Machine, groups: Groups, size: int) -> bool:
    """Tell whether collectives of `size` bytes a member are few enough transfers to be played."""
    members = len(groups[0])
    if len(groups) * members * (members - 1) > MOST_PAIRS:
        return False
    segments, most = _segments(machine, groups, size)
    return segments <= most or most >= _FEWEST_SEGMENTS


def _segments(machine: Machine, groups: Groups, size: int) -> tuple[int, int]:
    """Return the segments of a message of `store_and_forward`, and how many of them can be played.

    A ring or a direct exchange sends 2 (n - 1) messages of 1/n of the size from each of n members. Each
    segment of a message waits for all segments of the one before it.
    """
    segment, members = machine.switching.segment, len(groups[0])
    if machine.switching.mode != "store_and_forward" or segment is None or members < 2:
        return 1, 1
    messages = len(groups) * members * 2 * (members - 1)
    return ceil_divide(size, members * int(segment)), max(1, isqrt(_MOST_WAITS // messages))


def _coarsening(machine: Machine, groups: Groups, size: int) -> int:
    """Return how many segments are played as one, a power of two."""
    segments, most = _segments(machine, groups, size)
    return 1 << (ceil_divide(segments, most) - 1).bit_length()


class Played:
    """Plays collectives among groups of one shape on a machine."""

    def __init__(self, machine: Machine, groups: Groups) -> None:
        self._machine, self._groups = machine, groups
        self._in_parts = cache(self._with_parts)
        self._in_segments = cache(self._with_segments)

    def time(self, choice: Choice, asked: Asked) -> int:
        """Return the picoseconds until all groups are done."""
        call = Call(asked.collective, asked.size, asked.extents, ())
        plan, made = as_chosen(choice, call), cache(self._lines)
        chunks = [[made(phase, asked.extents) for phase in chunk] for chunk in plan]
        whole = cut_in_chunks(plan)
        machine = self._in_segments(_coarsening(self._machine, self._groups, asked.size))
        play = Play(chunks, machine, whole=whole, in_order=True)
        parts = self._machine.switching.parts
        if not whole and parts > 1 and play.visits > MOST_VISITS:
            fewer = max(1, parts * MOST_VISITS // play.visits)
            play = Play(chunks, self._in_parts(fewer), whole=whole, in_order=True)
        return play.duration()

    def _lines(self, phase: AxisPhase, extents: tuple[int, ...]) -> Lines:
        """Return the schedule of a phase for all groups, or for all their lines along its axis."""
        lines = np.array(self._groups, np.int64)
        if phase.axis is not None:
            grids = lines.reshape(-1, *extents[::-1])
            lines = np.moveaxis(grids, -1 - phase.axis, -1).reshape(-1, extents[phase.axis])
        schedule: Schedule = phase.schedule(lines.shape[1])
        return [(schedule, tuple(line)) for line in lines.tolist()]

    def _with_parts(self, parts: int) -> Machine:
        return self._switching_by(structs.replace(self._machine.spec.switching, parts=parts))

    def _with_segments(self, coarsening: int) -> Machine:
        switching = self._machine.spec.switching
        if coarsening == 1 or switching.segment is None:
            return self._machine
        return self._switching_by(
            structs.replace(switching, segment=Size(int(switching.segment) * coarsening))
        )

    def _switching_by(self, switching: Switching) -> Machine:
        return replace(self._machine, spec=structs.replace(self._machine.spec, switching=switching))


def fastest_played(
    played: Played, estimates: Sequence[Mapping[Choice, Estimate]], sizes: Sequence[Asked]
) -> list[dict[Choice, float]]:
    """Return by size the picoseconds of those choices that may be the fastest at one of the sizes.

    They are played at all sizes, in the order of their estimates (equal ones as they come); what takes longer
    than the fastest by its own bound is left out.
    """
    first = [min(at.time for at in of_size.values()) for of_size in estimates]

    def behind(choice: Choice) -> float:
        both = zip(estimates, first, strict=True)
        return max(1 + TIE, min(of_size[choice].time / max(best, 1) for of_size, best in both))

    times: list[dict[Choice, float]] = [{} for _ in sizes]
    for choice in sorted(estimates[0], key=behind):
        leasts = [of_size[choice].least for of_size in estimates]
        if times[0] and all(least >= min(known.values()) for least, known in zip(leasts, times, strict=True)):
            continue
        for asked, known in zip(sizes, times, strict=True):
            known[choice] = played.time(choice, asked)
    return [{choice: known[choice] for choice in estimates[0] if choice in known} for known in times]
