"""Per-dimension hierarchical collectives: one phase a dimension, each an algorithm among a line of members.

Members are numbered by mixed radix, dimension 0 innermost. An all-reduce reduce-scatters along the first
dimensions of its order, all-reduces along the last, and all-gathers back; a reduce-scatter and an all-to-all
walk the order, an all-gather walks it backwards. Chunks go through the phases one behind the other, with
`rotate` each in an order that starts one dimension further, so that all dimensions are busy at once.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s, starts_of
from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import InputError
from rapid_des.network.collectives.in_switch import IN_SWITCH
from rapid_des.network.collectives.registry import algorithm
from rapid_des.network.collectives.schedule import (
    Demand,
    Schedule,
    demand,
    in_sequence,
    relabel,
    relocate,
    together,
)
from rapid_des.units import ceil_divide

C = CollectiveType
_REDUCE_SCATTERS = frozenset({C.REDUCE_SCATTER, C.REDUCE_SCATTER_BLOCK})
HIERARCHICAL = frozenset({C.ALL_REDUCE, C.ALL_GATHER, C.ALL_TO_ALL, C.BARRIER}) | _REDUCE_SCATTERS
"""The collectives that can be done one dimension after another."""


class DimensionPhase(Struct, frozen=True):
    """One phase of a chunk: every line of members along `dimension` does this."""

    dimension: int
    collective: CollectiveType
    algorithm: str
    size: int
    """The bytes of each member's input buffer, rounded up where blocks are uneven."""


class Hierarchy(Struct, frozen=True):
    """The dimensions that a group spans, innermost first, and the algorithm for each."""

    extents: tuple[int, ...]
    algorithms: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.extents) != len(self.algorithms):
            raise InputError(
                f"{len(self.extents)} dimensions need as many algorithms, not {len(self.algorithms)}"
            )

    @property
    def members(self) -> int:
        """Size of the group."""
        return int(np.prod(self.extents))

    def orders(self, chunks: int, *, rotate: bool) -> list[tuple[int, ...]]:
        """Return each chunk's order of the dimensions (those of one member left out)."""
        used = [dimension for dimension, extent in enumerate(self.extents) if extent > 1] or [0]
        shifts = [index % len(used) if rotate else 0 for index in range(chunks)]
        return [tuple(used[shift:] + used[:shift]) for shift in shifts]


def chunk_phases(
    collective: CollectiveType, over: Hierarchy, size: int, *, chunks: int = 1, rotate: bool = False
) -> tuple[tuple[DimensionPhase, ...], ...]:
    """Return the phases of every chunk of a collective with an input buffer of `size` bytes a member.

    >>> h = Hierarchy((2, 4), ("direct", "ring"))
    >>> [(p.dimension, p.collective.name, p.size) for p in chunk_phases(CollectiveType.ALL_REDUCE, h, 800)[0]]
    [(0, 'REDUCE_SCATTER', 800), (1, 'ALL_REDUCE', 400), (0, 'ALL_GATHER', 400)]
    """
    _check(collective)
    sizes = [size // chunks + (index < size % chunks) for index in range(chunks)]
    return tuple(
        tuple(_phases(collective, over, order, part))
        for order, part in zip(over.orders(chunks, rotate=rotate), sizes, strict=True)
    )


def _check(collective: CollectiveType) -> None:
    if collective not in HIERARCHICAL:
        allowed = ", ".join(kind.name.lower() for kind in C if kind in HIERARCHICAL)
        raise InputError(f"{collective.name.lower()} has no per-dimension form; those that have: {allowed}")


def _phases(
    collective: CollectiveType, over: Hierarchy, order: tuple[int, ...], size: int
) -> list[DimensionPhase]:
    phases = []
    for dimension, kind in _walk(collective, order):
        name = over.algorithms[dimension]
        if kind not in (IN_SWITCH[name] if name in IN_SWITCH else algorithm(name).does):
            raise InputError(f"{name} (dimension {dimension}) does not do {kind.name.lower()}")
        phases.append(DimensionPhase(dimension, kind, name, size))
        if kind in _REDUCE_SCATTERS:
            size = ceil_divide(size, over.extents[dimension])
        elif kind is C.ALL_GATHER:
            size = size * over.extents[dimension]
    return phases


def _walk(collective: CollectiveType, order: tuple[int, ...]) -> list[tuple[int, CollectiveType]]:
    if collective is C.ALL_REDUCE:
        inwards = [(dimension, C.REDUCE_SCATTER) for dimension in order[:-1]]
        outwards = [(dimension, C.ALL_GATHER) for dimension in reversed(order[:-1])]
        return [*inwards, (order[-1], C.ALL_REDUCE), *outwards]
    along = reversed(order) if collective is C.ALL_GATHER else order
    return [(dimension, collective) for dimension in along]


def flatten(
    collective: CollectiveType, over: Hierarchy, size: int, *, chunks: int = 1, rotate: bool = False
) -> Schedule:
    """Return all phases of all chunks as one schedule; a member's phase waits for its phase before."""
    _check(collective)
    parts = demand(collective, over.members, size).chunks(chunks)
    schedules = []
    for part, order in zip(parts, over.orders(len(parts), rotate=rotate), strict=True):
        phases = [
            _phase(part, over, _DimensionStep(dimension, kind, order))
            for dimension, kind in _walk(collective, order)
        ]
        schedules.append(in_sequence(phases))
    return together(schedules)


class _DimensionStep(Struct, frozen=True):
    """The operation of the lines along one dimension, and the dimensions that come before."""

    dimension: int
    collective: CollectiveType
    order: tuple[int, ...]

    @property
    def before(self) -> tuple[int, ...]:
        """The dimensions of the order that come before this one."""
        return self.order[: self.order.index(self.dimension)]


def _phase(part: Demand, over: Hierarchy, phase: _DimensionStep) -> Schedule:
    """Return the schedules of all lines along a dimension, side by side."""
    extent = over.extents[phase.dimension]
    stride = int(np.prod(over.extents[: phase.dimension]))
    member = np.arange(over.members)
    lines = []
    for start in member[member // stride % extent == 0]:
        line = start + stride * np.arange(extent)
        owned = _owned(part, over, phase, int(start))
        lines.append(relabel(_line(part, phase, owned, over.algorithms[phase.dimension]), line, over.members))
    return together(lines)


def _line(part: Demand, phase: _DimensionStep, owned: list[Int64s], name: str) -> Schedule:
    """Return one line's schedule; `owned[b]` are the part's blocks that make up the line's block b."""
    sizes = np.array([part.size[blocks].sum() for blocks in owned], dtype=np.int64)
    starts = starts_of(sizes)[:-1]
    members = len(owned) if phase.collective is not C.ALL_TO_ALL else round(len(owned) ** 0.5)
    local = Demand(phase.collective, members, 0, starts, sizes)
    blocks = np.concatenate(owned)
    return relocate(algorithm(name).schedule(local), part.offset[blocks], part.size[blocks])


def _owned(part: Demand, over: Hierarchy, phase: _DimensionStep, start: int) -> list[Int64s]:
    """Return the blocks behind each block of the line through `start`.

    Reductions and gathers: those of the members that agree with the line in the dimensions before, split by
    their position in this one. All-to-all: block (i, k) holds what was with the line's member i and goes on
    to its member k.
    """
    extent = over.extents[phase.dimension]
    if part.collective is C.BARRIER:
        return np.array_split(np.arange(len(part.size)), extent)
    coordinates = np.unravel_index(np.arange(over.members), over.extents, order="F")
    here = [int(coordinate[start]) for coordinate in coordinates]
    among = np.ones(len(part.size), dtype=np.bool_)
    if part.collective is not C.ALL_TO_ALL:
        for dimension in phase.before:
            among &= coordinates[dimension] == here[dimension]
        return _split(np.flatnonzero(among), coordinates[phase.dimension][among], extent)
    source, destination = np.divmod(np.arange(over.members**2), over.members)
    for dimension, coordinate in enumerate(here):
        if dimension != phase.dimension:
            holder = destination if dimension in phase.before else source
            among &= coordinates[dimension][holder] == coordinate
    line, goal = coordinates[phase.dimension][source[among]], coordinates[phase.dimension][destination[among]]
    return _split(np.flatnonzero(among), line * extent + goal, extent * extent)


def _split(blocks: Int64s, key: Int64s, count: int) -> list[Int64s]:
    """Return the blocks of each key from 0 to count - 1."""
    order = np.argsort(key, kind="stable")
    bounds = np.cumsum(np.bincount(key, minlength=count))[:-1]
    return np.split(blocks[order], bounds)
