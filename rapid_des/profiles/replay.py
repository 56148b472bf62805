"""Replaying a profiled step: the host issues, streams run in order, and what follows from that is simulated.

A device event starts once the host has called for it, the event before it on its stream is done, and the
event of another stream is done that it was seen to wait for (the last that ended before it, where nothing
else explains its start). What is left until its start is its own lag. A host that waited for the GPU goes on
when the last event that had ended is done. So the replay of what was measured gives the measured step, and
scaled kernels move what depends on them. A message takes what it took, its wait for other ranks included.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s, starts_of
from rapid_des.chakra.trace import UNSTATED, NodeKind, NodeTable, RankTrace, TraceSet
from rapid_des.errors import TraceError
from rapid_des.machine import Machine
from rapid_des.modes.execution import EngineChoice, execute
from rapid_des.profiles.breakdown import profile_report
from rapid_des.profiles.events import Profile
from rapid_des.program.lowering import lower
from rapid_des.program.program import NONE
from rapid_des.units import seconds

_PS_PER_NS = 1000
_HOST, _AT_ONCE = "host", 2_000
"""Gaps up to so many nanoseconds are launches that take effect, and not waits for other streams."""


class ReplayedStep(Struct, frozen=True):
    """A step as measured and as replayed, in picoseconds."""

    measured: int
    simulated: int
    step: int
    """The number of the step in the profile: the steady one that is nearest to their mean."""
    scaled: Mapping[str, float]
    """By how much kernels of a class are faster than measured."""
    events: int
    """Device events of the step."""

    def as_json(self) -> Mapping[str, Any]:
        """Return what `replay FILE --json` prints, times in seconds."""
        return {
            "step_time_s": seconds(self.simulated),
            "measured_s": seconds(self.measured),
            "step": self.step,
            "device_events": self.events,
            "speed": dict(self.scaled),
        }


class _ReplayNodes:
    """The nodes of the replay: (name, stream, duration, what they wait for, host node that issues them)."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, int, Sequence[int], int]] = []

    def add(self, name: str, stream: str, duration: int, after: Sequence[int], issuer: int = NONE) -> int:
        self.rows.append((name, stream, duration, after, issuer))
        return len(self.rows) - 1

    def table(self) -> NodeTable:
        """Return the node table; an issued node starts when its issuer is done."""
        count, (names, streams, lengths, after, issuer) = len(self.rows), zip(*self.rows, strict=True)
        known, lanes = {name: n for n, name in enumerate(dict.fromkeys(names))}, list(dict.fromkeys(streams))
        duration = _PS_PER_NS * np.array(lengths, np.int64)
        issuers = np.array(issuer, np.int32)
        unstated, zero = np.full(count, UNSTATED, np.int32), np.zeros(count, np.int64)
        return NodeTable(
            ids=np.arange(count, dtype=np.uint64),
            kind=np.full(count, NodeKind.COMPUTE, np.int8),
            name=np.array([known[name] for name in names], np.int32),
            stream=np.array([lanes.index(stream) for stream in streams], np.int32),
            duration=duration,
            size=zero,
            collective=unstated.astype(np.int8),
            group=unstated,
            peer=unstated,
            tag=zero,
            priority=zero,
            flops=zero,
            tensor_bytes=zero,
            on_cpu=np.array([stream == _HOST for stream in streams]),
            issuer=issuers,
            issued=np.where(issuers == NONE, 0, duration[issuers]),
            bound=unstated.astype(np.int8),
            dependency_starts=starts_of([len(row) for row in after]),
            dependencies=np.array([node for row in after for node in row], np.int32),
            names=tuple(known),
            streams=tuple(lanes),
        )


def replay_step(
    profile: Profile, machine: Machine, scaled: Mapping[str, float] | None = None
) -> ReplayedStep:
    """Replay the steady step nearest to the mean, with kernels of some classes `scaled` times as fast.

    The machine only gives the rank a place: all durations are measured.
    """
    (rank,) = profile_report([profile]).ranks
    if not len(profile.events):
        raise TraceError(f"{profile.path}: has no device events, so there is nothing to replay")
    number = min(rank.steady, key=lambda step: abs(rank.steps[step] - rank.mean))
    begin, end = rank.windows[number]
    events = profile.events
    chosen = np.flatnonzero((events.start >= begin) & (events.start < end))
    nodes, first, last = _placed(profile, chosen, (begin, end), scaled or {})
    traces = TraceSet((RankTrace(0, nodes.table()),), {"world": (0,)})
    lowered = lower(traces, machine)
    records = execute(lowered.program, EngineChoice(), name=lowered.name).records
    visits = np.flatnonzero(lowered.program.programs[0].node != NONE)
    done = int(records.finish[visits[last]].max())
    simulated = done - int(records.start[visits[first]])
    if not (events.start >= end).any():  # what the host does after the last event stays as it was
        simulated += _PS_PER_NS * (end - int(events.end[chosen].max()))
    return ReplayedStep((end - begin) * _PS_PER_NS, simulated, number, scaled or {}, len(chosen))


class _Step:
    """What a replay has placed of a step so far, in the order of time."""

    def __init__(self, profile: Profile, begin: int, scaled: Mapping[str, float]) -> None:
        self.nodes = _ReplayNodes()
        self.events, self.scaled, self._begin = profile.events, scaled, begin
        self._ends, self._ended = list[int](), list[int]()  # of device events, ascending, with their nodes
        self._on_stream: dict[int, tuple[int, int]] = {}
        self._host: tuple[int, int] = (NONE, begin)
        self._calls: dict[int, int] = {}
        # a call that returned after its own event was done waited for it: copies from pageable memory
        events = self.events
        waited = np.flatnonzero((events.called >= 0) & (events.launched >= events.end))
        ends = np.sort(np.concatenate((profile.waits[:, 1], events.launched[waited])))
        self._waits: Int64s = ends

    def call(self, when: int) -> None:
        """Place the host's work up to a launching call, which waits for the GPU where it was seen to wait."""
        before, since = self._host
        after, ready = list[int](), since
        place = int(np.searchsorted(self._waits, when, side="right")) - 1
        if place >= 0 and self._waits[place] > since:
            found = self._last_ended(int(self._waits[place]))
            if found is not None and found[0] > since:
                ready, after = found[0], [found[1]]
        since = max(since, ready)
        self._calls[when] = node = self.nodes.add(_HOST, _HOST, max(when - since, 0), after)
        self._host = node, max(when, since) if before == NONE or when >= since else since

    def event(self, event: int, *, is_end: bool = False) -> int:
        """Place a device event behind all that it waits for; the end of a step is the start of the next."""
        start, stop, stream, called = (
            int(column[event])
            for column in (self.events.start, self.events.end, self.events.stream, self.events.called)
        )
        issuer = self._calls.get(called, NONE)
        before, free = self._on_stream.get(stream, (NONE, self._begin))
        ready, after = max(free, called if issuer != NONE else free), list[int]()
        if start - ready > _AT_ONCE:
            found = self._last_ended(start)
            if found is not None and found[0] > ready:
                ready, after = found[0], [found[1]]
        row, lane = int(self.events.name[event]), f"stream {stream}"
        lag = self.nodes.add("lag", lane, max(start - ready, 0), after, issuer)
        if is_end:
            return lag
        length = stop - (start if before == NONE else max(start, free))
        scaled = round(max(length, 0) / self.scaled.get(self.events.classes[row], 1.0))
        node = self.nodes.add(self.events.names[row], lane, scaled, (lag,))
        self._on_stream[stream] = node, max(stop, free)
        place = bisect_right(self._ends, stop)
        self._ends.insert(place, stop)
        self._ended.insert(place, node)
        return node

    def _last_ended(self, when: int) -> tuple[int, int] | None:
        """Return when the last device event up to a time ended, and its node."""
        place = bisect_right(self._ends, when) - 1
        return None if place < 0 else (self._ends[place], self._ended[place])


def _placed(
    profile: Profile, chosen: Int64s, window: tuple[int, int], scaled: Mapping[str, float]
) -> tuple[_ReplayNodes, int, Sequence[int]]:
    """Return the nodes, that of the first device event, and those of which the last to end ends the step."""
    events, step, last = profile.events, _Step(profile, window[0], scaled), list[int]()
    following = np.flatnonzero(events.start >= window[1])[:1].tolist()
    calls = sorted({int(when) for when in events.called[[*chosen.tolist(), *following]] if when >= 0})
    starts = [(int(events.start[event]), event) for event in (*chosen.tolist(), *following)]
    first, call = NONE, 0
    for start, event in starts:
        while call < len(calls) and calls[call] <= start:
            step.call(calls[call])
            call += 1
        node = step.event(event, is_end=event in following)
        first = node if first == NONE else first
        last.append(node)
    return step.nodes, first, last[-1:] if following else last
