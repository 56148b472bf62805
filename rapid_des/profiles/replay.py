"""Replaying a profiled step: the host issues, streams run in order, and what follows from that is simulated.

A device event starts once the host has called for it, the event before it on its stream is done, and the
event of another stream is done that it was seen to wait for (the last that ended before it, where nothing
else explains its start). What is left until its start is its own lag. A host that waited for the GPU goes on
when the last event that had ended is done. So the replay of what was measured gives the measured step, and
scaled kernels move what depends on them. A message takes what it took, its wait for other ranks included.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.chakra.trace import NodeKind, NodeTable, RankTrace, TraceSet, node_table
from rapid_des.errors import TraceError
from rapid_des.machine import load_machine
from rapid_des.modes.execution import EngineChoice, execute
from rapid_des.profiles.breakdown import profile_report
from rapid_des.profiles.events import Profile
from rapid_des.program.lowering import lower
from rapid_des.program.program import NONE
from rapid_des.units import seconds

_PS_PER_NS = 1000
_HOST = "host"
_TAKES_EFFECT = 2_000
"""Nanoseconds that a launch may take to start a kernel; a longer gap is a wait for another stream. It is
chosen, not measured: any value replays what was measured alike."""
_PLACE = "dgx_a100"
"""A machine that gives the rank a place: all durations are measured, and nothing crosses a link."""


class ReplayedStep(Struct, frozen=True):
    """A step as measured and as replayed, in picoseconds."""

    measured: int
    simulated: int
    step: int
    """The number of the step in the profile: the steady one that is nearest to their mean."""
    scaled: Mapping[str, float]
    """The factor by which kernels of a class are faster than measured."""
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


def replay_step(
    profile: Profile, scaled: Mapping[str, float] | None = None, *, engine: str | EngineChoice = "auto"
) -> ReplayedStep:
    """Replay the steady step nearest to the mean, with kernels of some classes `scaled` times as fast."""
    events = profile.events
    if not len(events):
        raise TraceError(f"{profile.path}: has no device events, so there is nothing to replay")
    (rank,) = profile_report([profile]).ranks
    number = min(rank.steady, key=lambda step: abs(rank.steps[step] - rank.mean))
    begin, end = rank.windows[number]
    chosen = np.flatnonzero((events.start >= begin) & (events.start < end)).tolist()
    following = np.flatnonzero(events.start >= end)[:1].tolist()
    step = _Step(profile, begin, scaled or {})
    nodes = step.place([*chosen, *following])
    traces = TraceSet((RankTrace(0, step.table()),), {"world": (0,)})
    lowered = lower(traces, load_machine(_PLACE))
    records = execute(lowered.program, EngineChoice.of(engine), name=lowered.name).records
    visits = np.flatnonzero(lowered.program.programs[0].node != NONE)
    first = int(records.start[visits[nodes[0]]])
    if following:  # the next step begins as its first event does
        simulated = int(records.start[visits[nodes[-1]]]) - first
    else:  # what the host does after the last event stays as it was
        tail = end - int(events.end[chosen].max())
        simulated = int(records.finish[visits[nodes]].max()) - first + _PS_PER_NS * tail
    return ReplayedStep((end - begin) * _PS_PER_NS, simulated, number, scaled or {}, len(chosen))


class _Step:
    """The nodes of a step, placed in the order of time."""

    def __init__(self, profile: Profile, begin: int, scaled: Mapping[str, float]) -> None:
        events = self._events = profile.events
        self._scaled, self._begin = scaled, begin
        self._rows: list[tuple[str, str, int, Sequence[int], int]] = []
        """(name, stream, nanoseconds, what it waits for, the host's node that issues it) by node."""
        self._ended: list[tuple[int, int]] = []
        """(measured end, node) of device events, ascending."""
        self._free: dict[int, int] = {}
        """When each stream was done with what is placed."""
        self._host = begin
        """When the host was done with what is placed."""
        self._calls: dict[int, int] = {}
        # a call that returned after its own event was done waited for it: copies from pageable memory
        waited = events.launched[(events.called >= 0) & (events.launched >= events.end)]
        self._waits: Int64s = np.sort(np.concatenate((profile.waits, waited)))

    def place(self, events: Sequence[int]) -> list[int]:
        """Place device events, and before each the calls of the host up to its start; return their nodes."""
        called = self._events.called[events]
        calls = np.unique(called[called >= 0]).tolist()[::-1]
        placed = list[int]()
        for event in events:
            while calls and calls[-1] <= self._events.start[event]:
                self._call(calls.pop())
            placed.append(self._event(event))
        return placed

    def table(self) -> NodeTable:
        """Return the node table; an issued node starts when its issuer is done."""
        names, streams, lengths, waits, issuer = zip(*self._rows, strict=True)
        known, lanes = ({text: n for n, text in enumerate(dict.fromkeys(each))} for each in (names, streams))
        duration, issuers = _PS_PER_NS * np.array(lengths, np.int64), np.array(issuer, np.int32)
        return node_table(
            [NodeKind.COMPUTE] * len(names),
            [0] * len(names),
            streams=tuple(lanes),
            names=tuple(known),
            waits=waits,
            name=[known[name] for name in names],
            stream=[lanes[stream] for stream in streams],
            duration=duration,
            on_cpu=[stream == _HOST for stream in streams],
            issuer=issuers,
            issued=np.where(issuers == NONE, 0, duration[issuers]),
        )

    def _add(self, name: str, stream: str, length: int, waits: Sequence[int], issuer: int = NONE) -> int:
        self._rows.append((name, stream, max(length, 0), waits, issuer))
        return len(self._rows) - 1

    def _call(self, when: int) -> None:
        """Place the host's work up to a launching call, which waits for the GPU where it was seen to wait."""
        since, waits = self._host, list[int]()
        place = bisect_right(self._waits, when) - 1
        if place >= 0 and self._waits[place] > since:
            since, waits = self._behind_last_ended(int(self._waits[place]), since)
        self._calls[when] = self._add(_HOST, _HOST, when - since, waits)
        self._host = max(when, since)

    def _event(self, event: int) -> int:
        """Place a device event behind all that it waits for."""
        columns = self._events.start, self._events.end, self._events.stream, self._events.called
        start, end, stream, called = (int(column[event]) for column in columns)
        issuer = self._calls.get(called, NONE)
        ready, waits = max(self._free.get(stream, self._begin), called), list[int]()
        begun = max(start, self._free.get(stream, start))
        if start - ready > _TAKES_EFFECT:
            ready, waits = self._behind_last_ended(start, ready)
        row, lane = int(self._events.name[event]), f"stream {stream}"
        lag = self._add("lag", lane, start - ready, waits, issuer)
        faster = self._scaled.get(self._events.classes[row], 1.0)
        node = self._add(self._events.names[row], lane, round((end - begun) / faster), (lag,))
        self._free[stream] = max(end, begun)
        insort(self._ended, (end, node))
        return node

    def _behind_last_ended(self, when: int, since: int) -> tuple[int, list[int]]:
        """Return the end of the last device event up to a time, and its node; `since` if that is later."""
        place = bisect_right(self._ended, when, key=lambda pair: pair[0]) - 1
        if place < 0 or self._ended[place][0] <= since:
            return since, []
        return self._ended[place][0], [self._ended[place][1]]
