"""Where the time of a profiled step goes: kernels by class, exposed messages and copies, and gaps.

A step's window on the GPU runs from the first device event that the step launched to that of the next step.
At each instant the GPU computes, or else sends, or else copies, or else is idle: the parts add up to the
window. An idle gap is the host's until it has launched what ends the gap; what remains is waiting (for
another stream, an event, or the launch to take effect).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Bools, Int64s
from rapid_des.profiles.events import DeviceEvents, Profile
from rapid_des.values import replace

NS_PER_S = 1_000_000_000
PARTS = ("compute", "exposed_communication", "exposed_copies", "host", "waiting")
UNKNOWN = "unknown"
_COPIES = {"copy", "fill"}
_NEAR = 0.25
"""Steps whose time is farther than this share from the median are warm-up or disturbed."""
_FEW = 3
"""The number of steps below which none is left out."""


class OperatorTime(Struct, frozen=True):
    """A kernel's calls in the steady steps of all ranks."""

    name: str
    kind: str
    """Its class; `unknown` where neither its name nor its operator is known."""
    count: int
    time: int
    """The sum of its durations, in nanoseconds."""


class RankReport(Struct, frozen=True):
    """The steady steps of one rank; times in nanoseconds."""

    profile: Profile
    windows: Sequence[tuple[int, int]]
    """All steps on the GPU's clock; without marks the whole trace is one step."""
    steady: Sequence[int]
    """The numbers of the steps that are averaged."""
    parts: Mapping[str, int]
    """The mean of a steady step by part; they add up to its mean time."""
    kinds: Mapping[str, int]
    """The sum of kernels by class in a mean steady step; kernels of several streams may overlap."""
    groups: Mapping[str, int]
    """The sum of collectives by operation and group in a mean steady step."""

    @property
    def steps(self) -> Sequence[int]:
        """The time of each step."""
        return [end - start for start, end in self.windows]

    @property
    def mean(self) -> int:
        """The mean time of a steady step."""
        return sum(self.parts.values())


class ProfileReport(Struct, frozen=True):
    """The profiles of one run, a rank each, slowest rank first."""

    ranks: Sequence[RankReport]
    operators: Sequence[OperatorTime]
    """Kernels of all ranks, those with most time first."""

    @property
    def classified(self) -> float:
        """The share of device time whose class is known; 1 where there is no device event."""
        every = sum(each.time for each in self.operators)
        known = sum(each.time for each in self.operators if each.kind != UNKNOWN)
        return known / every if every else 1.0

    def as_json(self) -> Mapping[str, Any]:
        """Return the report as `profile show --json` prints it, times in seconds."""
        slowest, many = self.ranks[0], len(self.ranks)
        mean = {part: sum(rank.parts[part] for rank in self.ranks) / many / NS_PER_S for part in PARTS}
        return {
            "steps_s": [step / NS_PER_S for step in slowest.steps],
            "steady_steps": list(slowest.steady),
            "step_time_s": slowest.mean / NS_PER_S,
            "breakdown_s": mean,
            "classes_s": {kind: time / NS_PER_S for kind, time in slowest.kinds.items()},
            "communication_s": {name: time / NS_PER_S for name, time in slowest.groups.items()},
            "classified_share": self.classified,
            "operators": [
                {"name": each.name, "class": each.kind, "count": each.count, "time_s": each.time / NS_PER_S}
                for each in self.operators
            ],
            "ranks": [
                {
                    "file": str(rank.profile.path),
                    "rank": rank.profile.rank,
                    "device": rank.profile.device or None,
                    "step_time_s": rank.mean / NS_PER_S,
                    "steps_s": [step / NS_PER_S for step in rank.steps],
                    "breakdown_s": {part: time / NS_PER_S for part, time in rank.parts.items()},
                    "device_events": len(rank.profile.events),
                    "later_device_events": rank.profile.left_out,
                }
                for rank in self.ranks
            ],
        }


def profile_report(profiles: Sequence[Profile]) -> ProfileReport:
    """Return where the time of the steady steps of some ranks goes."""
    ranks = sorted(map(_rank_report, profiles), key=lambda rank: -rank.mean)
    totals: dict[tuple[str, str], list[int]] = {}
    for rank in ranks:
        for key, count, time in _operators(rank):
            found = totals.setdefault(key, [0, 0])
            found[0] += count
            found[1] += time
    operators = [OperatorTime(*key, count, time) for key, (count, time) in totals.items()]
    return ProfileReport(ranks, sorted(operators, key=lambda each: -each.time))


def _rank_report(profile: Profile) -> RankReport:
    windows, parts = list(_windows(profile)), dict.fromkeys(PARTS, 0)
    steady = _steady(profile.events, windows)
    events, kinds, groups = profile.events, dict[str, int](), dict[str, int]()
    reached = np.maximum.accumulate(events.end)
    for number in steady:
        begin, end = windows[number]
        for part, time in _parts(_between(events, reached, begin, end), begin, end).items():
            parts[part] += time
    inside = _inside(events, [windows[number] for number in steady])
    for row, _, time in _of_names(events, inside):
        kind = events.classes[row] or UNKNOWN
        kinds[kind] = kinds.get(kind, 0) + time
    for event, called in sorted(events.collectives.items()):
        if inside[event]:
            name = f"{called.name} over {called.group_size or '?'} ranks"
            groups[name] = groups.get(name, 0) + int(events.end[event] - events.start[event])
    many = len(steady)
    return RankReport(
        profile=profile,
        windows=windows,
        steady=steady,
        parts=_mean_parts(parts, many),
        kinds=_longest_first(kinds, many),
        groups=_longest_first(groups, many),
    )


def _mean_parts(parts: Mapping[str, int], many: int) -> Mapping[str, int]:
    """Return the mean of each part; what whole nanoseconds leave over is waiting, so that all add up."""
    means = {part: time // many for part, time in parts.items()}
    means["waiting"] += sum(parts.values()) // many - sum(means.values())
    return means


def _longest_first(times: Mapping[str, int], many: int) -> Mapping[str, int]:
    return {name: time // many for name, time in sorted(times.items(), key=lambda item: -item[1])}


def _windows(profile: Profile) -> Iterator[tuple[int, int]]:
    """Yield the steps on the GPU's clock; those of the host where a step launched nothing."""
    events = profile.events
    if not profile.steps:
        yield (int(events.start[0]), int(events.end.max())) if len(events) else profile.span
        return
    owner = np.searchsorted([step.start for step in profile.steps], events.called, side="right") - 1
    begins = [step.start for step in profile.steps]
    for number, first in zip(*np.unique(owner, return_index=True), strict=True):
        if number >= 0:
            begins[number] = int(events.start[first])
    for number, (begin, step) in enumerate(zip(begins, profile.steps, strict=True)):
        if number + 1 < len(begins):
            end = begins[number + 1]
        else:
            end = max([step.end, *events.end[owner == number].tolist()])
        yield begin, max(begin, end)


def _steady(events: DeviceEvents, windows: Sequence[tuple[int, int]]) -> Sequence[int]:
    """Return which steps used the GPU and are about as long as the median; of few all that used it."""
    every = range(len(windows))
    busy = [number for number in every if np.diff(np.searchsorted(events.start, windows[number]))[0]] or every
    if len(busy) < _FEW:
        return busy
    times = [windows[number][1] - windows[number][0] for number in busy]
    median = float(np.median(times))
    return [number for number, time in zip(busy, times, strict=True) if abs(time - median) <= _NEAR * median]


def _inside(events: DeviceEvents, windows: Sequence[tuple[int, int]]) -> Bools:
    """Return which events start within one of the windows."""
    found = np.zeros(len(events), np.bool_)
    for window in windows:
        first, last = np.searchsorted(events.start, window)
        found[first:last] = True
    return found


def _between(events: DeviceEvents, reached: Int64s, begin: int, end: int) -> DeviceEvents:
    """Return the events of which some part is between two instants, with one on each side of them.

    `reached` is the latest end of the events up to each. Collectives and products are left out.
    """
    first, last = int(np.searchsorted(reached, begin, side="right")), int(np.searchsorted(events.start, end))
    here = slice(max(first - 1, 0), last + 1)
    columns = ("name", "stream", "start", "end", "called", "launched")
    parts = {column: getattr(events, column)[here] for column in columns}
    return replace(events, **parts, collectives={}, products={})


def _of_names(events: DeviceEvents, inside: Bools) -> Iterator[tuple[int, int, int]]:
    """Yield the name's row, the number of events and their nanoseconds, of events that are inside."""
    names, lengths = events.name[inside], (events.end - events.start)[inside]
    counts = np.bincount(names, minlength=len(events.names))
    times = np.bincount(names, weights=lengths, minlength=len(events.names))
    for row in np.flatnonzero(counts).tolist():
        yield row, int(counts[row]), round(float(times[row]))


def _operators(rank: RankReport) -> Iterator[tuple[tuple[str, str], int, int]]:
    """Yield each kernel's (name, class), its number of calls and their time in nanoseconds."""
    events = rank.profile.events
    inside = _inside(events, [rank.windows[number] for number in rank.steady])
    for row, count, time in _of_names(events, inside):
        yield (events.names[row], events.classes[row] or UNKNOWN), count, time


def _parts(events: DeviceEvents, begin: int, end: int) -> Mapping[str, int]:
    """Return what a GPU did between two instants; the parts add up to the time between them."""
    starts, ends = np.clip(events.start, begin, end), np.clip(events.end, begin, end)
    kinds = np.array([layer_of(kind) for kind in events.classes] or [0], np.int8)[events.name]
    covered, busy = [], (np.zeros(0, np.int64), np.zeros(0, np.int64))
    for layer in range(3):
        here = (kinds <= layer) & (ends > starts)
        busy = _union(starts[here], ends[here])
        covered.append(int((busy[1] - busy[0]).sum()))
    host = _host_gaps(events, busy, begin, end)
    compute, communication, copies = covered[0], covered[1] - covered[0], covered[2] - covered[1]
    waiting = end - begin - covered[2] - host
    return dict(zip(PARTS, (compute, communication, copies, host, waiting), strict=True))


def layer_of(kind: str) -> int:
    """Return 0 for kernels that compute, 1 for messages, 2 for copies."""
    return 2 if kind in _COPIES else int(kind == "communication")


def _union(starts: Int64s, ends: Int64s) -> tuple[Int64s, Int64s]:
    """Return intervals, which stand by their start, merged where they touch or overlap."""
    if not len(starts):
        return starts, ends
    reached = np.maximum.accumulate(ends)
    # an interval starts where all before it have ended
    new = np.concatenate(([True], starts[1:] > reached[:-1]))
    last = np.concatenate((np.flatnonzero(new)[1:] - 1, [len(starts) - 1]))
    return starts[new], reached[last]


def _host_gaps(events: DeviceEvents, busy: tuple[Int64s, Int64s], begin: int, end: int) -> int:
    """Return for how long the GPU was idle because the host had not launched what came next."""
    if not len(events):
        return end - begin
    gap_begins, gap_ends = np.concatenate(([begin], busy[1])), np.concatenate((busy[0], [end]))
    following = np.searchsorted(events.start, gap_ends, side="left")
    known = following < len(events)
    launched = np.full(len(gap_ends), -1, np.int64)
    launched[known] = events.launched[following[known]]
    return int(np.clip(launched - gap_begins, 0, gap_ends - gap_begins).sum())
