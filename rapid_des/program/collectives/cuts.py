"""The part of a collective that the ranks of one replica have, where it stands for every replica."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int32s, Int64s
from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import UnsupportedByEngine
from rapid_des.program.builders import make_template
from rapid_des.program.collectives.plans import AxisPhase
from rapid_des.program.program import NONE, TaskEdges, Template

_TIMES_ROUND = {
    CollectiveType.REDUCE_SCATTER: 1,
    CollectiveType.ALL_GATHER: 1,
    CollectiveType.ALL_REDUCE: 2,
}
"""How often blocks go round the ring, for the collectives whose rings have a cut."""
_DIRECTIONS = {"ring": (1,), "bidirectional_ring": (1, -1)}


class Cut(Struct, frozen=True):
    """The part of a collective that some members have, one row per transfer."""

    source: Int32s
    distance: Int32s
    """Number of members from the sender to the receiver, round the whole group."""
    passed_on: Int32s
    """The transfer that follows from this one, or NONE: it is the last of its kind."""
    size: Int64s

    def template(self, members: int, simulated: int) -> Template:
        """Return the transfers of the first `simulated` of `members`, their sizes not yet numbered.

        As in any other template a transfer waits for its sender, a receiver that passes it on waits for what
        follows and any other for its arrival, and senders for what they sent.
        """
        tasks = len(self.source)
        receiver = (self.source + self.distance) % simulated
        last = self.passed_on == NONE
        identity = np.arange(tasks)
        origin = np.concatenate((identity, identity))
        target = np.concatenate((np.where(last, tasks + receiver, self.passed_on), tasks + self.source))
        gates: Int64s = np.concatenate((self.source, np.arange(simulated)))
        ends, pair = np.unique(np.stack((self.source, self.distance), 1), axis=0, return_inverse=True)
        return make_template(
            simulated,
            (self.source, np.zeros(tasks, np.int32)),
            (pair.reshape(-1), ends[:, 0].copy(), ends.sum(axis=1) % members),
            edges=TaskEdges(origin, target),
            arrivals=TaskEdges(gates, np.concatenate((identity, tasks + np.arange(simulated)))),
        )


def has_cut(algorithm: str | tuple[str, ...], collective: CollectiveType) -> bool:
    """Return whether every member's part in an algorithm is the next one's, where blocks are of one size."""
    if algorithm == "one_shot":
        return collective is CollectiveType.ALL_REDUCE
    return algorithm in _DIRECTIONS and collective in _TIMES_ROUND


def cut_of(phase: AxisPhase, members: int, simulated: int) -> Cut:
    """Return the part of the first `simulated` members in one phase of a collective, if it is alike for all.

    Raises `UnsupportedByEngine` for algorithms without a known cut, and for blocks of different sizes.
    """
    plain = phase.chunks == 1 and not phase.order and not phase.parents and phase.axis is None
    if plain and members > 2:
        if phase.algorithm == "one_shot" and phase.size:
            return _one_shot_cut(phase, members, simulated)
        if phase.algorithm in _DIRECTIONS and phase.collective in _TIMES_ROUND:
            return _ring_cut(phase, members, simulated)
    raise UnsupportedByEngine(f"{phase.algorithm} among {members} has no cut")


def _one_shot_cut(phase: AxisPhase, members: int, simulated: int) -> Cut:
    """Return the cut of an exchange in which every member sends to every other."""
    distance, source = np.divmod(np.arange((members - 1) * simulated, dtype=np.int32), simulated)
    return Cut(
        source.astype(np.int32),
        (distance + 1).astype(np.int32),
        np.full(len(source), NONE, np.int32),
        np.full(len(source), phase.size, np.int64),
    )


def _ring_cut(phase: AxisPhase, members: int, simulated: int) -> Cut:
    """Return the cut of a ring: in every round a member forwards what it received in the round before."""
    parts = 1 if phase.collective is CollectiveType.ALL_GATHER else members
    block, rest = divmod(phase.size, parts)
    directions = _DIRECTIONS[phase.algorithm]
    if rest or block < len(directions):
        raise UnsupportedByEngine("blocks of different sizes distinguish replicas")
    half = block // len(directions)
    rounds = _TIMES_ROUND[phase.collective] * (members - 1)
    source = np.tile(np.arange(simulated, dtype=np.int32), rounds)
    columns: list[tuple[Any, ...]] = []
    for direction, bytes_each in zip(directions, (block - half, half)[-len(directions) :], strict=True):
        first = len(columns) * len(source)
        passed_on = first + np.arange(len(source)) - source + simulated + (source + direction) % simulated
        passed_on[-simulated:] = NONE
        sizes = np.full(len(source), bytes_each, np.int64)
        columns.append((source, np.full_like(source, direction), passed_on.astype(np.int32), sizes))
    return Cut(*(np.concatenate(column) for column in zip(*columns, strict=True)))
