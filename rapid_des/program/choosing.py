"""Planning collectives: as the machine file states, and where it states nothing by `auto`.

That is, of the algorithms that do a collective, the one that is fastest on a group's links. Candidates are
all of both registries that do it among so many members, except those inside switches, which a machine file
must state; and one algorithm for each of the group's dimensions, along each the best for its phases. What
pipelines is cut into `CHUNKS`. Each is priced by the zero-load estimate: a pipeline takes the phases of its
first chunk, then for every other chunk the busiest link's service of one. Among those within `TIE` of the
best the first goes: registry order, then one for each dimension, fewer chunks before more. Sizes in between
are priced along the line between two powers of `STEP`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from math import prod
from typing import TypeVar

import numpy as np

from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import CollectiveType
from rapid_des.machine import Machine
from rapid_des.network.collectives import (
    ALGORITHMS,
    HIERARCHICAL,
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
from rapid_des.program.estimates import Lines, Load, Traffic, together
from rapid_des.program.plans import Call, CollectivePlan, leaves_open, plan
from rapid_des.program.replicas import has_cut
from rapid_des.program.routes import geometry, route_keys
from rapid_des.units import ceil_divide

C = CollectiveType
_Named = TypeVar("_Named")
CHUNKS = (1, 4, 16)
"""Into how many chunks what pipelines is cut."""
TIE = 0.01
"""Estimates that differ by less are equal."""
STEP = 16
_BITS = 4

_PIPELINES = {
    "ring": frozenset({C.BROADCAST, C.REDUCE}),
    "bidirectional_ring": frozenset({C.BROADCAST, C.REDUCE}),
    "double_binary_tree": frozenset({C.ALL_REDUCE, C.BROADCAST, C.REDUCE}),
    "binomial_tree": frozenset({C.ALL_REDUCE, C.BROADCAST, C.REDUCE}),
    "mesh_tree": frozenset({C.ALL_REDUCE, C.BROADCAST, C.REDUCE}),
    "king_mesh_tree": frozenset({C.ALL_REDUCE, C.BROADCAST, C.REDUCE}),
}
"""What gains by chunks although it is one algorithm: data goes from member to member whole."""
_ALONG = ("ring", "bidirectional_ring", "direct", "halving_doubling", "bucket", "dissemination")
"""What may serve one of several dimensions."""
_LARGEST_RELAY = 256
"""Members up to which a ring's scatters and gathers, of n² transfers, are looked at."""


@dataclass(frozen=True)
class Asked:
    """A collective of a group of a shape, `size` bytes a member."""

    collective: CollectiveType
    extents: tuple[int, ...]
    size: int

    @property
    def members(self) -> int:
        """How many take part."""
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
    """Tell whether a shaped algorithm is another than one without a shape."""
    members = prod(extents)
    if name == "hypercube":
        return members > 2 and members & (members - 1) == 0
    return len(extents) > 1


class GroupLinks:
    """The links of one group, and what algorithms take on them."""

    def __init__(self, machine: Machine, ranks: Sequence[int], extents: Sequence[int]) -> None:
        self._machine = machine
        self._ranks = np.array(ranks, np.int64)
        self._extents = tuple(extents)
        self._lines: dict[tuple[tuple[int, ...], int], Lines] = {}
        self._known: dict[tuple[object, ...], Traffic] = {}

    @cached_property
    def _whole(self) -> Lines:
        return Lines(self._machine, self._ranks[None, :])

    def time(self, choice: Choice, asked: Asked) -> float:
        """Return the picoseconds that an algorithm is estimated to take."""
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
            return self._rotated(asked, over)
        (phases,) = chunk_phases(asked.collective, over, ceil_divide(asked.size, chunks))
        time, load = self._along(phases, over.extents)
        return _pipelined(time, load, chunks)

    def _rotated(self, asked: Asked, over: Hierarchy) -> float:
        """Return the time of as many chunks as dimensions, each of which begins along another one."""
        chunks = chunk_phases(asked.collective, over, asked.size, chunks=len(over.extents), rotate=True)
        costs = [self._along(phases, over.extents) for phases in chunks]
        return max(*(time for time, _ in costs), together([load for _, load in costs]).busiest)

    def _along(self, phases: Iterable[DimensionPhase], extents: tuple[int, ...]) -> tuple[float, Load]:
        """Return how long the phases of a chunk take one after the other, and what links serve in all."""
        costs = [self._phase(phase, extents) for phase in phases]
        return sum(cost.time for cost in costs), together([cost.load for cost in costs])

    def _phase(self, phase: DimensionPhase, extents: tuple[int, ...]) -> Traffic:
        key = phase, extents
        if key not in self._known:
            lines = self._lines_along(extents, phase.dimension)
            self._known[key] = lines.traffic(phase.collective, phase.algorithm, phase.size)
        return self._known[key]

    def _lines_along(self, extents: tuple[int, ...], dimension: int) -> Lines:
        if (extents, dimension) not in self._lines:
            grid = self._ranks.reshape(extents[::-1])
            lines = np.moveaxis(grid, -1 - dimension, -1).reshape(-1, extents[dimension])
            self._lines[extents, dimension] = Lines(self._machine, lines)
        return self._lines[extents, dimension]

    def best_along(self, asked: Asked) -> tuple[str, ...]:
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


def _pipelined(time: float, load: Load, chunks: int) -> float:
    return time + (chunks - 1) * load.busiest


def first_of_best(times: Mapping[_Named, float]) -> _Named:
    """Return the first of those that are within `TIE` of the shortest.

    >>> first_of_best({"ring": 1005, "direct": 1000, "bruck": 1020})
    'ring'
    """
    limit = min(times.values()) * (1 + TIE)
    return next(name for name, time in times.items() if time <= limit)


class Chooser:
    """Chooses for the groups of one machine; what was worked out is in `memory`.

    Groups with one likeness (see `likeness`) get one answer: that of the first of them.
    """

    def __init__(self, machine: Machine, memory: BoundedCache) -> None:
        self._machine = machine
        self._memory = memory
        self._links: dict[bytes, GroupLinks] = {}
        self.likeness = cache(self._likeness)

    def times(self, asked: Asked, ranks: tuple[int, ...], *, repeats: bool = False) -> dict[Choice, float]:
        """Return the estimated picoseconds of every candidate, in their order.

        With `repeats` only of those of which one replica's part stands for the others', if there are such.
        """
        size = max(asked.size, 1)
        low = 1 << (size.bit_length() - 1) // _BITS * _BITS
        share = (size - low) / (low * (STEP - 1))
        choices = candidates(asked.collective, asked.extents)
        if repeats:
            choices = tuple(choice for choice in choices if _repeats(choice, asked.collective)) or choices
        elif len(asked.extents) > 1 and asked.collective in HIERARCHICAL:
            choices += self._per_dimension(replace(asked, size=low), ranks)
        first, last = (self._at(replace(asked, size=knot), choices, ranks) for knot in (low, low * STEP))
        return {choice: first[choice] + share * (last[choice] - first[choice]) for choice in choices}

    def _per_dimension(self, asked: Asked, ranks: tuple[int, ...]) -> tuple[Choice, ...]:
        key = ("auto", self._machine, self.likeness(ranks, asked.extents), asked)
        names = self._memory.get_or_make(key, lambda: self._group(asked, ranks).best_along(asked))
        return tuple(Choice(algorithm=names, chunks=chunks) for chunks in CHUNKS)

    def _at(
        self, asked: Asked, choices: tuple[Choice, ...], ranks: tuple[int, ...]
    ) -> Mapping[Choice, float]:
        """Return the times of choices at one size."""

        def price() -> Mapping[Choice, float]:
            links = self._group(asked, ranks)
            return {choice: links.time(choice, asked) for choice in choices}

        key = ("auto", self._machine, self.likeness(ranks, asked.extents), asked, choices)
        return self._memory.get_or_make(key, price, weight=_weight)

    def _group(self, asked: Asked, ranks: tuple[int, ...]) -> GroupLinks:
        likeness = self.likeness(ranks, asked.extents)
        if likeness not in self._links:
            self._links[likeness] = GroupLinks(self._machine, ranks, asked.extents)
        return self._links[likeness]

    def _likeness(self, ranks: tuple[int, ...], extents: tuple[int, ...]) -> bytes:
        """Return a key of a group's shape and of the routes between neighbours along each dimension."""
        key = ("likeness", self._machine, ranks, extents)
        return self._memory.get_or_make(
            key,
            lambda: self._routes_of(ranks, extents),
            weight=lambda made: 1000 + 8 * len(ranks) + len(made),
        )

    def _routes_of(self, ranks: tuple[int, ...], extents: tuple[int, ...]) -> bytes:
        grid = np.array(ranks, np.int64).reshape(extents[::-1])
        pairs = [
            np.stack((grid, np.roll(grid, shift, axis)), -1).reshape(-1, 2)
            for axis in range(grid.ndim)
            for shift in (1, -1)
        ]
        return repr(extents).encode() + route_keys(self._machine, [(b"", np.concatenate(pairs))])[0]


def _weight(times: Mapping[Choice, float]) -> int:
    return 1000 + 100 * len(times)


def _repeats(choice: Choice, collective: CollectiveType) -> bool:
    """Tell whether one member's part stands for the next one's (see `replicas.cut_of`)."""
    return choice.chunks == 1 and has_cut(choice.algorithm, collective)


class Planner:
    """Plans for a machine without dead links to plan around.

    `auto` chooses for the healthy fabric: who built the job knew of no fault. With `repeats` it keeps to
    algorithms of which one replica's part stands for the others'. `memory` keeps what it worked out.
    """

    def __init__(
        self, machine: Machine, memory: BoundedCache | None = None, *, repeats: bool = False
    ) -> None:
        self.machine = machine
        self._repeats = repeats
        self._chooser = Chooser(self._known(machine), BoundedCache() if memory is None else memory)

    def _known(self, machine: Machine) -> Machine:
        """Return the machine that is chosen for."""
        if not machine.faults and not machine.dead:
            return machine
        healthy = replace(machine, fabric=machine.healthy, router=machine.planned, faults=(), slowed={})
        return replace(healthy, dead=frozenset(), lost=frozenset())

    def plan(self, call: Call, ranks: tuple[int, ...], rank: int) -> CollectivePlan:  # noqa: ARG002 - alike for all ranks
        """Return how a rank takes part in a collective of `ranks`."""
        return self.stated(call, ranks)

    def stated(self, call: Call, ranks: tuple[int, ...]) -> CollectivePlan:
        """Return the plan that the machine file asks for, the same for all ranks."""
        return plan(call, self.machine, partial(self.choice, call, ranks))

    def choice(self, call: Call, ranks: tuple[int, ...]) -> Choice:
        """Return what `auto` takes for a collective of `ranks`."""
        return first_of_best(self.times(call, ranks))

    def times(self, call: Call, ranks: tuple[int, ...]) -> dict[Choice, float]:
        """Return the estimated picoseconds of all that `auto` chooses from, in their order."""
        asked = Asked(call.collective, call.extents, call.size)
        return self._chooser.times(asked, ranks, repeats=self._repeats)

    def alike(self, ranks: tuple[int, ...], kinds: Iterable[CollectiveType]) -> bytes | None:
        """Return a key of what is chosen for a group; None where all of its collectives are stated."""
        if len(ranks) < 2 or not any(leaves_open(self.machine.collectives, kind) for kind in kinds):
            return None
        return self._chooser.likeness(ranks, geometry(self.machine, ranks)[0])

    def mark(self, rank: int, groups: Iterable[tuple[int, ...]]) -> int | None:  # noqa: ARG002
        """Return the rank if its part in collectives of its groups may be like no other's, else None."""
        return None
