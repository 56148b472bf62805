"""Planning collectives: as the machine file states, and where it states nothing by `auto`.

That is, of the algorithms that do a collective, the one that is fastest on a group's links while the groups
of its family do the same (see `WorkingTogether`). Candidates are all of both registries (see `candidates`),
and one algorithm for each of the group's dimensions, along each the best for its phases. Where transfers are
few, those that may be the fastest are simulated (see `simulate`); else the estimates decide. Among those
within `TIE` of the best the first is chosen: in registry order, then one for each dimension, fewer chunks
before more. Sizes in between are priced along the line between two powers of `STEP`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import CollectiveType
from rapid_des.machine import Machine
from rapid_des.network.collectives import HIERARCHICAL
from rapid_des.network.specs import Choice
from rapid_des.program.collectives.candidates import (
    CHUNKS,
    TIE,
    ChoiceEstimate,
    GroupCollective,
    GroupLinks,
    candidates,
    first_of_best,
)
from rapid_des.program.collectives.plans import CollectiveCall, CollectivePlan, plan
from rapid_des.program.collectives.simulate import ChoiceSimulator, Groups, can_be_simulated
from rapid_des.program.replicas import has_cut
from rapid_des.program.routes import COMPARED, all_pairs, distinguishing_pairs, route_keys
from rapid_des.values import replace

STEP = 4
_BITS = 2
MOST_RANKS = 1024
"""Most ranks whose groups are examined together; of larger sets only those around the group in question."""
_MOST_PAIRS = 1 << 17
"""Most pairs of members whose routes are all examined; of larger sets a sample that distinguishes groups."""
Rows = Int64s
"""[group, member]: the ranks of groups of one size without common ranks."""


class WorkingTogether:
    """The groups beside each group on a machine."""

    def __init__(self, machine: Machine, families: Sequence[Rows]) -> None:
        self._machine = machine
        self._families = tuple(rows for rows in families if len(rows) > 1)
        self.beside = cache(self._beside)
        self._sharing = cache(self._components)
        self._window = cache(self._groups)

    def _beside(self, ranks: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Return the groups that share links with a group while it works, with itself, in order."""
        for number, rows in enumerate(self._families):
            if rows.shape[1] != len(ranks):
                continue
            (places,) = np.nonzero(rows[:, 0] == ranks[0])
            if len(places) and (rows[places[0]] == ranks).all():
                return self._around(number, int(places[0]))
        return (ranks,)

    def _around(self, family: int, place: int) -> tuple[tuple[int, ...], ...]:
        component = self._sharing(family)
        (together,) = np.nonzero(component == component[place])
        most = max(1, MOST_RANKS // self._families[family].shape[1])
        begin = int(np.searchsorted(together, place)) // most * most
        return self._window(family, tuple(together[begin : begin + most].tolist()))

    def _groups(self, family: int, places: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        return tuple(map(tuple, self._families[family][list(places)].tolist()))

    def _components(self, family: int) -> Int64s:
        """Return for each group of a family a number: one for all that share links, also through others."""
        rows = self._families[family]
        members = rows.shape[1]
        if members <= COMPARED and rows.size * (members - 1) <= _MOST_PAIRS:
            pairs = all_pairs(rows)
        else:
            pairs = np.concatenate([distinguishing_pairs(group) for group in rows])
        routes = self._machine.router.routes(pairs)
        group = np.repeat(np.arange(len(rows)), len(pairs) // len(rows))
        # The distinct (link, group) pairs: which groups use which links.
        uses = np.unique(
            np.stack((np.asarray(routes.links, np.int64), np.repeat(group, np.diff(routes.starts)))), axis=1
        )
        link = np.unique(uses[0], return_inverse=True)[1].reshape(-1)
        return _joined(link, uses[1], len(rows))


def _joined(link: Int64s, group: Int64s, groups: int) -> Int64s:
    """Return the lowest group that each is joined to, given which groups use which links, by link."""
    lowest = np.arange(groups)
    while True:
        of_link = np.full(int(link.max(initial=-1)) + 1, groups)
        np.minimum.at(of_link, link, lowest[group])
        joined = lowest.copy()
        np.minimum.at(joined, group, of_link[link])
        joined = joined[joined]
        if (joined == lowest).all():
            return joined
        lowest = joined


class AlgorithmChooser:
    """Chooses for the groups of one machine; what was worked out is in `memory`.

    Groups with equal keys (`routes_key`) get one answer: that of the first of them.
    """

    def __init__(self, machine: Machine, memory: BoundedCache, families: Sequence[Rows] = ()) -> None:
        self._machine = machine
        self._memory = memory
        self._families = WorkingTogether(machine, families)
        self._links: dict[bytes, GroupLinks] = {}
        self.routes_key = cache(self._routes_key)

    def times(
        self, asked: GroupCollective, ranks: tuple[int, ...], *, repeats: bool = False
    ) -> dict[Choice, float]:
        """Return the picoseconds of the candidates, in their order, while the groups beside do the same.

        They are simulated for the candidates that may be the fastest; where there are too many
        transfers for that they are estimates, of all. With `repeats` only of those of which one replica's
        part stands for the others', if there are such.
        """
        size = max(asked.size, 1)
        low = 1 << (size.bit_length() - 1) // _BITS * _BITS
        share = (size - low) / (low * (STEP - 1))
        choices = candidates(asked.collective, asked.extents)
        if repeats:
            choices = tuple(choice for choice in choices if _repeats(choice, asked.collective)) or choices
        elif len(asked.extents) > 1 and asked.collective in HIERARCHICAL:
            choices += self._per_dimension(replace(asked, size=low), ranks)
        first, last = self._between(replace(asked, size=low), choices, ranks)
        return {choice: time + share * (last[choice] - time) for choice, time in first.items()}

    def estimates(self, asked: GroupCollective, ranks: tuple[int, ...]) -> dict[Choice, float]:
        """Return the estimated picoseconds of all candidates, in their order."""
        links, choices = self._group(asked, ranks), candidates(asked.collective, asked.extents)
        if len(asked.extents) > 1 and asked.collective in HIERARCHICAL:
            choices += self._per_dimension(asked, ranks)
        return {choice: links.estimate(choice, asked).time for choice in choices}

    def _per_dimension(self, asked: GroupCollective, ranks: tuple[int, ...]) -> tuple[Choice, ...]:
        key = ("auto", self._machine.network, self.routes_key(ranks, asked.extents), asked)
        names = self._memory.get_or_make(key, lambda: self._group(asked, ranks).best_along(asked))
        shared = self._machine.switching.mode == "fluid"  # chunks share links, so all end a phase together
        return tuple(Choice(algorithm=names, chunks=chunks) for chunks in (CHUNKS[:1] if shared else CHUNKS))

    def _between(
        self, asked: GroupCollective, choices: tuple[Choice, ...], ranks: tuple[int, ...]
    ) -> Sequence[Mapping[Choice, float]]:
        """Return the times of choices at two neighbouring powers of `STEP`, interpolated to the size."""
        sizes = asked, replace(asked, size=asked.size * STEP)

        def price() -> Sequence[Mapping[Choice, float]]:
            links, groups = self._group(asked, ranks), self._families.beside(ranks)
            estimates = [{choice: links.estimate(choice, at) for choice in choices} for at in sizes]
            if not can_be_simulated(self._machine, groups, sizes[1].size):
                return [{choice: at.time for choice, at in of_size.items()} for of_size in estimates]
            return self._simulated(estimates, sizes, groups)

        key = ("auto", self._machine.network, self.routes_key(ranks, asked.extents), asked, choices)
        return self._memory.get_or_make(key, price, weight=_weight)

    def _simulated(
        self,
        estimates: Sequence[Mapping[Choice, ChoiceEstimate]],
        sizes: Sequence[GroupCollective],
        groups: Groups,
    ) -> Sequence[Mapping[Choice, float]]:
        return fastest_simulated(ChoiceSimulator(self._machine, groups), estimates, sizes)

    def _group(self, asked: GroupCollective, ranks: tuple[int, ...]) -> GroupLinks:
        key = self.routes_key(ranks, asked.extents)
        if key not in self._links:
            groups = self._families.beside(ranks)
            self._links[key] = GroupLinks(self._machine, groups, asked.extents)
        return self._links[key]

    def _routes_key(self, ranks: tuple[int, ...], extents: tuple[int, ...]) -> bytes:
        """Return a key of the shape of groups that work together, and of what their routes are like."""
        groups = self._families.beside(ranks)
        key = ("routes", self._machine.network, groups, extents)
        return self._memory.get_or_make(
            key,
            lambda: self._routes_of(groups, extents),
            weight=lambda made: 1000 + 8 * len(ranks) * len(groups) + len(made),
        )

    def _routes_of(self, groups: Groups, extents: tuple[int, ...]) -> bytes:
        """Return a key of the routes between neighbours along each dimension of each group."""
        grids = np.array(groups, np.int64).reshape(-1, *extents[::-1])
        pairs = [
            np.stack((grids, np.roll(grids, shift, axis)), -1).reshape(-1, 2)
            for axis in range(1, grids.ndim)
            for shift in (1, -1)
        ]
        return repr(extents).encode() + route_keys(self._machine, [(b"", np.concatenate(pairs))])[0]


def _weight(times: Sequence[Mapping[Choice, float]]) -> int:
    return 1000 + 200 * len(times[0])


def _repeats(choice: Choice, collective: CollectiveType) -> bool:
    """Return whether one member's part stands for the next one's (see `replicas.cut_of`)."""
    return choice.chunks == 1 and has_cut(choice.algorithm, collective)


class Planner:
    """Plans for a machine without dead links to plan around.

    `auto` chooses for the healthy fabric: who built the job knew of no fault. With `repeats` it keeps to
    algorithms of which one replica's part stands for the others'. `memory` keeps what it worked out, and
    `families` are the groups that work at the same time (see `families_of`).
    """

    def __init__(
        self,
        machine: Machine,
        memory: BoundedCache | None = None,
        *,
        repeats: bool = False,
        families: Sequence[Rows] = (),
    ) -> None:
        self.machine = machine
        self._repeats = repeats
        memory = BoundedCache() if memory is None else memory
        self._chooser = AlgorithmChooser(self._known(machine), memory, families)
        self._chosen: dict[tuple[GroupCollective, bytes], Choice] = {}

    def _known(self, machine: Machine) -> Machine:
        """Return the machine that algorithms are chosen for."""
        if not machine.faults and not machine.dead:
            return machine
        healthy = replace(machine, fabric=machine.healthy, router=machine.planned, faults=(), slowed={})
        return replace(healthy, dead=frozenset(), lost=frozenset())

    def plan(self, call: CollectiveCall, ranks: tuple[int, ...], rank: int) -> CollectivePlan:  # noqa: ARG002 - alike for all ranks
        """Return how a rank takes part in a collective of `ranks`."""
        return self.stated(call, ranks)

    def stated(self, call: CollectiveCall, ranks: tuple[int, ...]) -> CollectivePlan:
        """Return the plan that the machine file asks for, the same for all ranks."""
        return plan(call, self.machine, partial(self.choice, call, ranks))

    def choice(self, call: CollectiveCall, ranks: tuple[int, ...]) -> Choice:
        """Return what `auto` takes for a collective of `ranks`: the same for all groups of like routes."""
        asked = GroupCollective(call.collective, call.extents, call.size)
        key = asked, self._chooser.routes_key(ranks, call.extents)
        if key not in self._chosen:
            self._chosen[key] = first_of_best(self.times(call, ranks))
        return self._chosen[key]

    def times(self, call: CollectiveCall, ranks: tuple[int, ...]) -> dict[Choice, float]:
        """Return the picoseconds of each choice of `auto`, in their order; see `AlgorithmChooser.times`."""
        asked = GroupCollective(call.collective, call.extents, call.size)
        return self._chooser.times(asked, ranks, repeats=self._repeats)

    def estimates(self, call: CollectiveCall, ranks: tuple[int, ...]) -> dict[Choice, float]:
        """Return the estimated picoseconds of every algorithm that `auto` knows, in their order."""
        return self._chooser.estimates(GroupCollective(call.collective, call.extents, call.size), ranks)

    def mark(self, rank: int, groups: Iterable[tuple[int, ...]]) -> int | None:  # noqa: ARG002
        """Return the rank if its part in collectives of its groups may be like no other's, else None."""
        return None


def fastest_simulated(
    simulator: ChoiceSimulator,
    estimates: Sequence[Mapping[Choice, ChoiceEstimate]],
    sizes: Sequence[GroupCollective],
) -> list[dict[Choice, float]]:
    """Return by size the picoseconds of those choices that may be the fastest at one of the sizes.

    They are simulated at all sizes, in the order of their estimates, equal ones as they come. Those whose own
    lower bound exceeds the fastest time are left out.
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
            known[choice] = simulator.time(choice, asked)
    return [{choice: known[choice] for choice in estimates[0] if choice in known} for known in times]
