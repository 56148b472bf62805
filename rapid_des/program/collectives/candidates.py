"""What may serve a collective, and how long each is estimated to take on the links of groups.

Candidates are all algorithms of both registries that do the collective among this many members, except those
inside switches, which a machine file must state. What pipelines is cut into `CHUNKS`. The estimates are those
of zero load and of the busiest link: a pipeline takes the phases of its first chunk, then for every other
chunk the busiest link's service of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import TypeVar

import numpy as np
from msgspec import Struct

from rapid_des.chakra.trace import CollectiveType
from rapid_des.machine import Machine
from rapid_des.network.collectives import (
    ALGORITHMS,
    IN_SWITCH,
    ON_FABRIC,
    PER_DIMENSION,
    DimensionPhase,
    Hierarchy,
    algorithms_for,
    chunk_phases,
    hierarchy_of,
)
from rapid_des.network.specs import Choice
from rapid_des.program.collectives.estimates import GroupLines, LinkLoad, PhaseEstimate, summed_loads
from rapid_des.units import ceil_divide
from rapid_des.values import replace

C = CollectiveType
_Named = TypeVar("_Named")
CHUNKS = (1, 4, 16)
"""The numbers of chunks that are tried for algorithms that pipeline."""
TIE = 0.01
"""Times whose relative difference is smaller count as equal."""
_PIPELINES = {
    "ring": frozenset({C.BROADCAST, C.REDUCE}),
    "bidirectional_ring": frozenset({C.BROADCAST, C.REDUCE}),
    "double_binary_tree": frozenset({C.ALL_REDUCE, C.BROADCAST, C.REDUCE}),
    "binomial_tree": frozenset({C.ALL_REDUCE, C.BROADCAST, C.REDUCE}),
    "mesh_tree": frozenset({C.ALL_REDUCE, C.BROADCAST, C.REDUCE}),
    "king_mesh_tree": frozenset({C.ALL_REDUCE, C.BROADCAST, C.REDUCE}),
}
"""Single algorithms that gain by chunks: each member forwards the whole data to the next one."""
_ALONG = ("ring", "bidirectional_ring", "direct", "halving_doubling", "bucket", "dissemination")
"""The algorithms that may serve one of several dimensions."""
_LARGEST_RELAY = 256
"""Largest group for which a ring's scatters and gathers, with n² transfers, are considered."""


class GroupCollective(Struct, frozen=True):
    """A collective to choose an algorithm for: group shape and input of `size` bytes per member."""

    collective: CollectiveType
    extents: tuple[int, ...]
    size: int

    @property
    def members(self) -> int:
        """Number of members."""
        return prod(self.extents)


def candidates(collective: CollectiveType, extents: Sequence[int]) -> tuple[Choice, ...]:
    """Return the algorithms for all members of a group of a shape that do a collective, in their order.

    >>> [choice.algorithm for choice in candidates(CollectiveType.ALL_TO_ALL, (2, 4))]
    ['ring', 'bidirectional_ring', 'direct', 'torus', 'hypercube', 'rail']
    """
    members = prod(extents)
    shaped = [name for name, (_, does) in ON_FABRIC.items() if collective in does and name not in IN_SWITCH]
    names = [name for name in algorithms_for(collective) if _is_small(name, collective, members)]
    names += [name for name in shaped if _suits(name, extents)]
    return tuple(
        Choice(algorithm=name, chunks=chunks)
        for name in names
        for chunks in (CHUNKS if collective in _PIPELINES.get(name, ()) else CHUNKS[:1])
    )


def _is_small(name: str, collective: CollectiveType, members: int) -> bool:
    relays = collective in (C.SCATTER, C.GATHER) and name in ("ring", "bidirectional_ring")
    return members <= _LARGEST_RELAY or not relays


def _suits(name: str, extents: Sequence[int]) -> bool:
    """Return whether a shaped algorithm differs from one without a shape."""
    members = prod(extents)
    if name == "hypercube":
        return members > 2 and members & (members - 1) == 0
    return len(extents) > 1


class ChoiceEstimate(Struct, frozen=True):
    """The estimated duration of an algorithm, and a lower bound of it, in picoseconds."""

    time: float
    least: float


class GroupLinks:
    """The links of groups of one size that work at the same time, and what algorithms take on them."""

    def __init__(self, machine: Machine, groups: Sequence[Sequence[int]], extents: Sequence[int]) -> None:
        self._machine = machine
        self._groups = np.array(groups, np.int64)
        self._extents = tuple(extents)
        self._lines: dict[tuple[tuple[int, ...], int], GroupLines] = {}
        self._known: dict[tuple[object, ...], PhaseEstimate] = {}

    @cached_property
    def _whole(self) -> GroupLines:
        return GroupLines(self._machine, self._groups)

    def estimate(self, choice: Choice, asked: GroupCollective) -> ChoiceEstimate:
        """Return what an algorithm is estimated to take where all groups do the same at once."""
        name, chunks = choice.algorithm, int(choice.chunks)
        if isinstance(name, str) and name not in PER_DIMENSION:
            extents = self._extents if name in ON_FABRIC else ()
            part = self._whole.traffic(asked.collective, name, ceil_divide(asked.size, chunks), extents)
            return _pipelined(part.time, part.load, chunks)
        if isinstance(name, str):
            over, rotate = hierarchy_of(name, asked.collective, asked.extents)
        else:
            over, rotate = Hierarchy(asked.extents, name), False
        if rotate:
            time = self._rotated(asked, over)
            return ChoiceEstimate(time, time)
        (phases,) = chunk_phases(asked.collective, over, ceil_divide(asked.size, chunks))
        time, load = self._along(phases, over.extents)
        return _pipelined(time, load, chunks)

    def _rotated(self, asked: GroupCollective, over: Hierarchy) -> float:
        """Return the time of as many chunks as dimensions, each of which begins along another one."""
        chunks = chunk_phases(asked.collective, over, asked.size, chunks=len(over.extents), rotate=True)
        costs = [self._along(phases, over.extents) for phases in chunks]
        return max(*(time for time, _ in costs), summed_loads([load for _, load in costs]).busiest)

    def _along(self, phases: Iterable[DimensionPhase], extents: tuple[int, ...]) -> tuple[float, LinkLoad]:
        """Return how long the phases of a chunk take one after the other, and what links serve in all."""
        costs = [self._phase(phase, extents) for phase in phases]
        return sum(cost.time for cost in costs), summed_loads([cost.load for cost in costs])

    def _phase(self, phase: DimensionPhase, extents: tuple[int, ...]) -> PhaseEstimate:
        key = phase, extents
        if key not in self._known:
            lines = self._lines_along(extents, phase.dimension)
            self._known[key] = lines.traffic(phase.collective, phase.algorithm, phase.size)
        return self._known[key]

    def _lines_along(self, extents: tuple[int, ...], dimension: int) -> GroupLines:
        if (extents, dimension) not in self._lines:
            grids = self._groups.reshape(-1, *extents[::-1])
            lines = np.moveaxis(grids, -1 - dimension, -1).reshape(-1, extents[dimension])
            self._lines[extents, dimension] = GroupLines(self._machine, lines)
        return self._lines[extents, dimension]

    def best_along(self, asked: GroupCollective) -> tuple[str, ...]:
        """Return for each dimension of the group the algorithm that is best for its phases."""
        plain = "dissemination" if asked.collective is C.BARRIER else "ring"
        over = Hierarchy(asked.extents, (plain,) * len(asked.extents))
        (phases,) = chunk_phases(asked.collective, over, asked.size)
        return tuple(
            self._best([phase for phase in phases if phase.dimension == dimension], asked.extents)
            for dimension in range(len(asked.extents))
        )

    def _best(self, phases: Sequence[DimensionPhase], extents: tuple[int, ...]) -> str:
        does = [name for name in _ALONG if all(phase.collective in ALGORITHMS[name].does for phase in phases)]
        served = {name: [replace(phase, algorithm=name) for phase in phases] for name in does}
        return first_of_best({name: self._along(served[name], extents)[0] for name in does})


def _pipelined(time: float, load: LinkLoad, chunks: int) -> ChoiceEstimate:
    return ChoiceEstimate(time + (chunks - 1) * load.busiest, max(time, chunks * load.busiest))


def first_of_best(times: Mapping[_Named, float]) -> _Named:
    """Return the first of those that are within `TIE` of the shortest.

    >>> first_of_best({"ring": 1005, "direct": 1000, "bruck": 1020})
    'ring'
    """
    limit = min(times.values()) * (1 + TIE)
    return next(name for name, time in times.items() if time <= limit)
