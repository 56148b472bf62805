"""Profiles of several ranks as one program: clocks aligned, groups found, ranks that are missing copied.

Ranks of a group leave a collective together, so the medians of the differences of their ends are how far
their clocks are apart. Groups are what the profiler wrote of each collective: its ranks, if they are evenly
apart, or all ranks. A rank without a profile is a copy of one with its place in most groups. Collectives of
which bytes or ranks are not known, or about which the ranks disagree, keep their measured time.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from msgspec import Struct

from rapid_des.chakra.trace import CollectiveType, NodeTable, RankTrace, TraceSet
from rapid_des.errors import InputError
from rapid_des.profiles.events import Collective, Profile
from rapid_des.profiles.replay import ChosenStep, SimulatedCollective, StepProgram, chosen_step
from rapid_des.profiles.turns import Call, in_turn
from rapid_des.units import ceil_divide

_TYPES = {
    "allreduce": CollectiveType.ALL_REDUCE, "allgather": CollectiveType.ALL_GATHER,
    "reducescatter": CollectiveType.REDUCE_SCATTER, "broadcast": CollectiveType.BROADCAST,
    "reduce": CollectiveType.REDUCE, "alltoall": CollectiveType.ALL_TO_ALL, "barrier": CollectiveType.BARRIER,
}  # fmt: skip
"""Collectives by PyTorch's names, without what says how their buffers lie (`_allgather_base`)."""
_COMMUNICATION = "communication"
_MOST_RANKS = 1 << 20


class GroupPattern(NamedTuple):
    """Ranks that are evenly apart."""

    stride: int
    size: int

    def place(self, rank: int) -> int:
        """Return which member of its group a rank is."""
        return rank // self.stride % self.size

    def first(self, rank: int) -> int:
        """Return the first rank of the group that a rank is in."""
        return rank - self.place(rank) * self.stride

    def of(self, rank: int) -> tuple[int, ...]:
        """Return the ranks of the group that a rank is in."""
        first = self.first(rank)
        return tuple(range(first, first + self.stride * self.size, self.stride))


class ProfileChanges(Struct, frozen=True):
    """What is asked of a run's profiles."""

    scaled: Mapping[str, float] = {}
    """The factors by which kernels of a class are faster than measured, by class."""
    grown: tuple[int, int] | None = None
    """The size of the data-parallel groups, and the size that they grow to."""
    overlap: str = "measured"
    """How messages overlap with what computes: one of `OVERLAPS`."""


class RunOfRanks(Struct, frozen=True):
    """A run's profiles as traces, with what a replay needs to know of each profile."""

    traces: TraceSet
    profiles: Mapping[int, tuple[Profile, ChosenStep, Sequence[int]]]
    """The profile of each rank that has one, its step, and the nodes of its events."""
    copies: int
    """Ranks without a profile."""
    skews: Mapping[int, int]
    """How far the clock of each rank is ahead, in nanoseconds."""
    kept: int
    """Collectives of the step that keep their measured time."""
    sent: int
    """Collectives of the step that are simulated."""


def run_of_ranks(profiles: Sequence[Profile], wanted: ProfileChanges) -> RunOfRanks:
    """Return the traces of all ranks of a run in one step; `InputError` names what cannot be derived."""
    given = _by_rank(profiles)
    steps = _steps(given)
    world, patterns = _patterns(given, steps)
    skews = clock_skews(given, steps)
    world, grown = _grown(world, wanted.grown, patterns)
    names, agreed = sorted(patterns), _agreed(given, steps)
    if wanted.overlap == "none":
        known = {key: patterns[key] for key in agreed if key in patterns}
        calls = {rank: _calls(rank, profile, steps[rank], known) for rank, profile in given.items()}
        steps = in_turn({rank: each.events for rank, each in given.items()}, steps, skews, calls)
    begin = min(step.begin - skews[rank] for rank, step in steps.items())
    tables, found, sent, every = dict[int, NodeTable](), {}, 0, 0
    for rank, profile in given.items():
        chosen = steps[rank]
        carried = {
            event: SimulatedCollective(kind, _size(said, size, patterns[key], grown), names.index(key))
            for event, key, kind, size, said in _sized(profile, chosen)
            if key in patterns and key in agreed
        }
        program = StepProgram(profile, begin + skews[rank], wanted.scaled, carried, overlap=wanted.overlap)
        nodes = program.place(chosen)
        tables[rank], found[rank] = program.table(), (profile, chosen, nodes)
        sent += len(carried)
        every += _messages(profile, chosen)
    final = [grown.get(name, patterns[name]) for name in names]
    traces = _traces(world, tables, dict(zip(names, final, strict=True)))
    return RunOfRanks(traces, found, world - len(given), skews, every - sent, sent)


def _calls(
    rank: int, profile: Profile, step: ChosenStep, known: Mapping[str, GroupPattern]
) -> dict[int, Call]:
    """Return which collectives a rank's events are, of groups of which the ranks are known."""
    number = defaultdict[str, int](int)
    found = {}
    for event, key, _, _, _ in _sized(profile, step):
        if key in known:
            found[event] = (key, known[key].first(rank), number[key])
            number[key] += 1
    return found


def _messages(profile: Profile, step: ChosenStep) -> int:
    """Return the number of a step's messages."""
    events = profile.events
    return sum(events.classes[events.name[event]] == _COMMUNICATION for event in step.events)


def _traces(world: int, tables: Mapping[int, NodeTable], patterns: Mapping[str, GroupPattern]) -> TraceSet:
    groups: dict[str, tuple[int, ...]] = {"world": tuple(range(world))}
    ranks = []
    for rank in range(world):
        own = []
        for name, pattern in patterns.items():
            text = f"{name} from rank {pattern.first(rank)}"
            if text not in groups:
                groups[text] = pattern.of(rank)
            own.append(text)
        ranks.append(RankTrace(rank, tables[_role(rank, tables, patterns.values())], groups=tuple(own)))
    return TraceSet(tuple(ranks), groups)


def _by_rank(profiles: Sequence[Profile]) -> dict[int, Profile]:
    found: dict[int, Profile] = {}
    for number, profile in enumerate(profiles):
        rank = number if profile.rank is None else profile.rank
        if rank in found:
            raise InputError(f"{profile.path}: is rank {rank}, as {found[rank].path} is")
        found[rank] = profile
    return dict(sorted(found.items()))


def _steps(given: Mapping[int, Profile]) -> dict[int, ChosenStep]:
    """Return the same step of all ranks: by its name, where steps are marked."""
    first = next(iter(given.values()))
    chosen = chosen_step(first)
    name = first.steps[chosen.number].name if first.steps else ""
    found = {}
    for rank, profile in given.items():
        same = [number for number, step in enumerate(profile.steps) if step.name == name]
        if name and not same:
            raise InputError(f"{profile.path}: has no {name}, which {first.path} has; profile the same steps")
        found[rank] = chosen_step(profile, same[0] if name else None)
    return found


def _key(said: Collective) -> str:
    return f"group {said.group}" if said.group else f"group of {said.group_size}"


def _sized(profile: Profile, step: ChosenStep) -> Iterator[tuple[int, str, CollectiveType, int, Collective]]:
    """Yield collectives of known bytes: event, group, kind, bytes, and what was written of them."""
    for event in step.events:
        said = profile.events.collectives.get(event)
        if said is None or said.size is None or not said.group_size or said.group_size < 2:
            continue
        plain = re.sub("_|base|coalesced|tensor", "", said.name.lower())
        kind = next((kind for name, kind in _TYPES.items() if plain.startswith(name)), None)
        if kind is not None and (said.size or kind is CollectiveType.BARRIER):
            yield event, _key(said), kind, said.size, said


def _patterns(
    given: Mapping[int, Profile], steps: Mapping[int, ChosenStep]
) -> tuple[int, dict[str, GroupPattern]]:
    """Return the number of ranks, and the pattern of each group of which ranks are known."""
    members: dict[str, tuple[int, ...]] = {}
    sizes: dict[str, int] = {}
    for rank, profile in given.items():
        for _, key, _, _, said in _sized(profile, steps[rank]):
            sizes[key] = said.group_size or 0
            members.setdefault(key, _listed(said.ranks))
    world = max([*sizes.values(), *map(_reach, members.values()), max(given) + 1])
    if world > _MOST_RANKS:
        raise InputError(f"a group has rank {world - 1}; allowed: up to {_MOST_RANKS:,} ranks")
    found = {}
    for key, size in sizes.items():
        listed = members[key]
        apart = {after - before for before, after in pairwise(listed)}
        if len(listed) == size and len(apart) == 1 and world % (size * max(min(apart), 1)) == 0 < min(apart):
            found[key] = GroupPattern(min(apart), size)
        elif not listed and size == world:
            found[key] = GroupPattern(1, size)
    return world, found


def _reach(members: Sequence[int]) -> int:
    """Return the ranks that there are at least: groups that are evenly apart have neighbours between them.

    >>> _reach((1, 5, 9, 13)), _reach((0, 1)), _reach((0, 3, 4)), _reach(())
    (16, 2, 5, 0)
    """
    last, apart = max(members, default=-1) + 1, {after - before for before, after in pairwise(members)}
    stride = max(1, apart.pop()) if len(apart) == 1 else 1
    return ceil_divide(last, stride) * stride


def _listed(text: str) -> tuple[int, ...]:
    """Return the ranks that a profiler wrote; none if it left some out."""
    try:
        ranks = json.loads(text) if text else []
    except ValueError:
        return ()
    return tuple(ranks) if isinstance(ranks, list) and all(isinstance(each, int) for each in ranks) else ()


def _grown(
    world: int, grown: tuple[int, int] | None, patterns: Mapping[str, GroupPattern]
) -> tuple[int, dict[str, GroupPattern]]:
    """Return the ranks of a run whose data-parallel groups are larger, and the groups that grew."""
    if grown is None:
        return world, {}
    before, after = grown
    outer = {key: group for key, group in patterns.items() if group.stride * group.size == world}
    if not any(group.size == before for group in outer.values()):
        sizes = sorted({group.size for group in outer.values()})
        raise InputError(
            f"--dp {before}={after}: no outermost group has {before} ranks; there are {sizes or 'none'}"
        )
    if after % before:
        raise InputError(f"--dp {before}={after}: {after} is no multiple of {before}")
    times = after // before
    return world * times, {
        key: GroupPattern(group.stride, group.size * times) for key, group in outer.items()
    }


def _size(said: Collective, size: int, group: GroupPattern, grown: Mapping[str, GroupPattern]) -> int:
    """Return a rank's bytes in the group as it grew: shards get smaller, whole tensors stay.

    `InputError` for what the number of ranks does not say.
    """
    larger = grown.get(_key(said))
    if larger is None:
        return size
    name = said.name.lower()
    if "alltoall" in name or "all_to_all" in name:
        raise InputError(
            f"--dp: what each rank sends in {said.name} of {_key(said)} does not follow from their number"
        )
    return max(1, size * group.size // larger.size) if "gather" in name else size


def _role(rank: int, known: Collection[int], patterns: Collection[GroupPattern]) -> int:
    """Return the rank whose profile a rank takes: its own, else one with its place in most groups.

    Of equals it is the nearest one below, else the nearest.
    """

    def common_places(other: int) -> tuple[int, bool, int]:
        same = sum(pattern.place(other) == pattern.place(rank) for pattern in patterns)
        return same, other <= rank, -abs(other - rank)

    return rank if rank in known else max(known, key=common_places)


def _agreed(given: Mapping[int, Profile], steps: Mapping[int, ChosenStep]) -> set[str]:
    """Return the groups whose ranks issued the same collectives in the step."""
    orders: dict[str, set[tuple[CollectiveType, ...]]] = defaultdict(set)
    for rank, profile in given.items():
        mine = defaultdict[str, list[CollectiveType]](list)
        for _, key, kind, _, _ in _sized(profile, steps[rank]):
            mine[key].append(kind)
        for key, order in mine.items():
            orders[key].add(tuple(order))
    return {key for key, found in orders.items() if len(found) == 1}


def clock_skews(given: Mapping[int, Profile], steps: Mapping[int, ChosenStep]) -> dict[int, int]:
    """Return how far the clock of each rank is ahead of the first one's, in nanoseconds."""
    ends = {rank: _ends(profile, steps[rank]) for rank, profile in given.items()}
    first = ends[min(ends)]
    skews = {}
    for rank, mine in ends.items():
        apart = [mine[key] - end for key, end in first.items() if key in mine]
        skews[rank] = round(median(apart)) if apart else 0
    return skews


def _ends(profile: Profile, step: ChosenStep) -> dict[tuple[str, int], int]:
    """Return when the step's collectives ended, by what they are and their number among such."""
    events, seen, found = profile.events, defaultdict[str, int](int), {}
    for event in step.events:
        name = events.names[events.name[event]]
        if events.classes[events.name[event]] != _COMMUNICATION:
            continue
        said = events.collectives.get(event)
        key = name if said is None else f"{said.name} {_key(said)}"
        found[key, seen[key]] = int(events.end[event])
        seen[key] += 1
    return found
