"""Replaying a profiled step: the host issues, streams run in order, and what follows from that is simulated.

A device event starts once the host has called for it, the event before it on its stream is done, and those
of other streams are done that it waited for: the last that ended before it where nothing else explains its
start, and what other streams had done where the host made its stream wait for an event. What is left until
its start is its own lag. A host that waited for the GPU goes on when the last event that had ended is done.
So the replay of what was measured gives the measured step, and scaled kernels move what depends on them. A
message takes what it took, its wait for other ranks included, unless it is simulated on a machine.

Two policies bound what overlap gives. Without any overlap a message starts when all streams are done, and all
wait for it. With full overlap messages have streams of their own, and only the next step waits for them.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.chakra.trace import (
    UNSTATED,
    CollectiveType,
    NodeKind,
    NodeTable,
    RankTrace,
    TraceSet,
    node_table,
)
from rapid_des.errors import InputError, TraceError
from rapid_des.machine import load_machine
from rapid_des.modes.execution import EngineChoice, execute
from rapid_des.profiles.breakdown import profile_report
from rapid_des.profiles.events import Profile
from rapid_des.program.lowering import Lowered, lower
from rapid_des.program.program import NONE
from rapid_des.units import seconds

_PS_PER_NS = 1000
HOST = "host"
"""What the host does between its calls, as a class whose speed may be asked for."""
_TAKES_EFFECT = 2_000
"""Nanoseconds that a launch may take to start a kernel; a longer gap is a wait for another stream. It is
chosen, not measured: any value replays what was measured alike."""
OVERLAPS = ("measured", "none", "full")
_MESSAGE = "communication"
_PLACE = "dgx_a100"
"""A machine that gives the rank a place: all durations are measured, and nothing crosses a link."""


class ReplayedStep(Struct, frozen=True):
    """A step as measured and as replayed, in picoseconds."""

    measured: int
    simulated: int
    step: int
    """The number of the step in the profile: the steady one that is nearest to their mean."""
    scaled: Mapping[str, float]
    """The factor by which kernels of a class, or the host, are faster than measured."""
    events: int
    """Device events of the step."""
    unmet: tuple[str, ...] = ()
    """The classes in `scaled` of which the step has no kernel."""
    overlap: str = "measured"
    """How messages overlap with what computes: one of `OVERLAPS`."""

    def as_json(self) -> Mapping[str, Any]:
        """Return what `replay FILE --json` prints, times in seconds."""
        return {
            "step_time_s": seconds(self.simulated),
            "measured_s": seconds(self.measured),
            "step": self.step,
            "device_events": self.events,
            "speed": {kind: factor if factor < math.inf else 0.0 for kind, factor in self.scaled.items()},
            "unmet": list(self.unmet),
            "overlap": self.overlap,
        }


def replay_step(
    profile: Profile,
    scaled: Mapping[str, float] | None = None,
    *,
    overlap: str = "measured",
    engine: str | EngineChoice = "auto",
) -> ReplayedStep:
    """Replay the steady step nearest to the mean, with kernels of some classes `scaled` times as fast.

    The class "host" is what the host does between its launches.
    `overlap` is how messages overlap with what computes: one of `OVERLAPS`.
    """
    chosen = chosen_step(profile)
    step = StepProgram(profile, chosen.begin, scaled or {}, overlap=overlap)
    nodes = step.place(chosen)
    traces = TraceSet((RankTrace(0, step.table()),), {"world": (0,)})
    lowered = lower(traces, load_machine(_PLACE))
    records = execute(lowered.program, EngineChoice.of(engine), name=lowered.name).records
    visits = visits_of(lowered, 0)[nodes]
    times = records.start[visits], records.finish[visits]
    simulated = simulated_time(profile, chosen, *times)
    met = {profile.events.classes[row] for row in profile.events.name[chosen.events]} | {HOST}
    return ReplayedStep(
        measured=chosen.length * _PS_PER_NS,
        simulated=simulated,
        step=chosen.number,
        scaled=scaled or {},
        events=len(chosen.events),
        unmet=tuple(kind for kind in scaled or {} if kind not in met),
        overlap=overlap,
    )


class ChosenStep(NamedTuple):
    """A step of a profile that is replayed; times in nanoseconds."""

    number: int
    begin: int
    end: int
    events: Sequence[int]
    """Its device events."""
    following: Sequence[int]
    """The first event of the next step; empty behind the last one."""

    @property
    def length(self) -> int:
        """The measured time of the step."""
        return self.end - self.begin


def chosen_step(profile: Profile, number: int | None = None) -> ChosenStep:
    """Return a step of a profile, by default the steady one that is nearest to the mean."""
    events = profile.events
    if not len(events):
        raise TraceError(f"{profile.path}: has no device events, so there is nothing to replay")
    (rank,) = profile_report([profile]).ranks
    if number is None:
        number = min(rank.steady, key=lambda step: abs(rank.steps[step] - rank.mean))
    begin, end = rank.windows[number]
    inside = np.flatnonzero((events.start >= begin) & (events.start < end)).tolist()
    return ChosenStep(number, begin, end, inside, np.flatnonzero(events.start >= end)[:1].tolist())


def visits_of(lowered: Lowered, position: int) -> Int64s:
    """Return the visit of each node of a rank, by its position in the program."""
    program = lowered.program
    own = program.programs[program.bindings[position].program].node
    return np.flatnonzero(own != NONE) + int(program.visits()[position])


def simulated_time(profile: Profile, chosen: ChosenStep, starts: Int64s, finishes: Int64s) -> int:
    """Return the picoseconds of a replayed step, of the times of its events in order.

    The next step begins as its first event does. Behind the last one the host's tail stays as it was.
    """
    if chosen.following:
        return int(starts[-1] - starts[0])
    tail = chosen.end - int(profile.events.end[chosen.events].max())
    return int(finishes.max() - starts[0]) + _PS_PER_NS * tail


class SimulatedCollective(NamedTuple):
    """A collective that is simulated on a machine: what is sent, and among whom."""

    collective: CollectiveType
    size: int
    slot: int
    """The number of the group among those of its rank."""


class _Row(NamedTuple):
    """A node of a replayed step."""

    name: str
    stream: str
    length: int
    """Nanoseconds."""
    waits: Sequence[int]
    issuer: int = NONE
    """The host's node that issues it."""
    sent: SimulatedCollective | None = None


class StepProgram:
    """The nodes of a step, placed in the order of time."""

    def __init__(
        self,
        profile: Profile,
        begin: int,
        scaled: Mapping[str, float],
        sent: Mapping[int, SimulatedCollective] | None = None,
        *,
        overlap: str = "measured",
    ) -> None:
        """Begin a step; `sent` says which events are collectives that a machine's network carries."""
        if overlap not in OVERLAPS:
            raise InputError(f"overlap {overlap!r} is not one of {', '.join(OVERLAPS)}")
        self._alone, self._apart = overlap == "none", overlap == "full"
        self._messages, self._latest = set[int](), list[int]()
        """The nodes of messages, and the last one."""
        self._last = dict[str, int]()
        """The last node of each stream."""
        events = self._events = profile.events
        self._scaled, self._begin, self._sent = scaled, begin, sent or {}
        self._rows: list[_Row] = []
        self._ended: list[tuple[int, int]] = []
        """(measured end, node) of device events, ascending."""
        self._of: dict[int, list[tuple[int, int]]] = {}
        """The same by stream."""
        self._free: dict[int, int] = {}
        """When each stream was done with what is placed."""
        self._host = begin
        """When the host was done with what is placed."""
        self._calls: dict[int, int] = {}
        self._orders, self._behind_others_of = profile.orders, set[int]()
        # a call that returned after its own event was done waited for it: copies from pageable memory
        waited = events.launched[(events.called >= 0) & (events.launched >= events.end)]
        self._waits: Int64s = np.sort(np.concatenate((profile.waits, waited)))

    def place(self, step: ChosenStep) -> list[int]:
        """Place device events, and before each the calls of the host up to its start; return their nodes."""
        events = [*step.events, *step.following]
        called = self._events.called[events]
        each = np.unique(called[called >= 0])
        # a call is for a stream that waits for another stream if the call before it was to make it wait
        ordered = np.searchsorted(self._orders, each)
        self._behind_others_of = set(each[1:][ordered[1:] > ordered[:-1]].tolist())
        calls = each.tolist()[::-1]
        placed, following = list[int](), set(step.following) if self._apart else set[int]()
        for event in events:
            while calls and calls[-1] <= self._events.start[event]:
                self._call(calls.pop())
            behind = self._last_messages() if event in following else []
            placed.append(self._event(event, behind))
        return placed

    def _last_messages(self) -> list[int]:
        """Return the last message of each stream."""
        return [node for node in self._last.values() if node in self._messages]

    def table(self) -> NodeTable:
        """Return the node table; an issued node starts when its issuer is done."""
        rows = self._rows
        known, lanes = (
            {text: number for number, text in enumerate(dict.fromkeys(each))}
            for each in ((row.name for row in rows), (row.stream for row in rows))
        )
        sent = [row.sent for row in rows]
        duration = _PS_PER_NS * np.array([row.length for row in rows], np.int64)
        issuers = np.array([row.issuer for row in rows], np.int32)
        return node_table(
            [NodeKind.COMPUTE if each is None else NodeKind.COLLECTIVE for each in sent],
            [0 if each is None else each.size for each in sent],
            streams=tuple(lanes),
            names=tuple(known),
            waits=[row.waits for row in rows],
            name=[known[row.name] for row in rows],
            stream=[lanes[row.stream] for row in rows],
            duration=np.where([each is None for each in sent], duration, UNSTATED),
            on_cpu=[row.stream == HOST for row in rows],
            collective=[UNSTATED if each is None else each.collective for each in sent],
            group=[UNSTATED if each is None else each.slot for each in sent],
            issuer=issuers,
            issued=np.where(issuers == NONE, 0, duration[issuers]),
        )

    def _add(self, row: _Row) -> int:
        self._rows.append(row._replace(length=max(row.length, 0)))
        return len(self._rows) - 1

    def _call(self, when: int) -> None:
        """Place the host's work up to a launching call, which waits for the GPU where it was seen to wait."""
        since, waits = self._host, list[int]()
        place = bisect_right(self._waits, when) - 1
        if place >= 0 and self._waits[place] > since:
            since, waits = self._behind_last_ended(int(self._waits[place]), since)
            waits = self._unless_message(waits)
        length = round((when - since) / self._scaled.get(HOST, 1.0))
        self._calls[when] = self._add(_Row(HOST, HOST, length, waits))
        self._host = max(when, since)

    def _event(self, event: int, behind: Sequence[int]) -> int:
        """Place a device event behind all that it waits for, and `behind` some nodes more."""
        columns = self._events.start, self._events.end, self._events.stream, self._events.called
        start, end, stream, called = (int(column[event]) for column in columns)
        issuer = self._calls.get(called, NONE)
        ready, waits = max(self._free.get(stream, self._begin), called), list[int]()
        begun = max(start, self._free.get(stream, start))
        if start - ready > _TAKES_EFFECT:
            ready, waits = self._behind_last_ended(start, ready)
        if called in self._behind_others_of:
            ready, waits = self._behind_others(stream, start, (ready, waits))
        row = int(self._events.name[event])
        message = self._events.classes[row] == _MESSAGE
        lane = f"{'messages' if message and self._apart else 'stream'} {stream}"
        waits = [*self._by_policy(waits, message=message), *behind]
        lag = self._add(_Row("lag", lane, start - ready, waits, issuer))
        faster = self._scaled.get(self._events.classes[row], 1.0)
        length, sent = round((end - begun) / faster), self._sent.get(event)
        node = self._add(_Row(self._events.names[row], lane, length, (lag,), sent=sent))
        self._free[stream], self._last[lane] = max(end, begun), node
        if message:
            self._messages.add(node)
            self._latest = [node]
        insort(self._ended, (end, node))
        insort(self._of.setdefault(stream, []), (end, node))
        return node

    def _by_policy(self, waits: list[int], *, message: bool) -> list[int]:
        """Return what an event waits for, as the policy has messages overlap."""
        if self._alone:
            return [*waits, *(self._last.values() if message else self._latest)]
        return self._unless_message(waits)

    def _unless_message(self, waits: list[int]) -> list[int]:
        """Return what the step waits for where nothing in it waits for a message."""
        return [node for node in waits if node not in self._messages] if self._apart else waits

    def _behind_others(self, stream: int, when: int, known: tuple[int, list[int]]) -> tuple[int, list[int]]:
        """Return when the last of what other streams had done by a time ended, and the nodes of it."""
        ready, waits = known
        for other, ended in self._of.items():
            place = bisect_right(ended, when, key=lambda pair: pair[0]) - 1
            if other != stream and place >= 0:
                ready = max(ready, ended[place][0])
                waits = [*waits, ended[place][1]]
        return ready, waits

    def _behind_last_ended(self, when: int, since: int) -> tuple[int, list[int]]:
        """Return the end of the last device event up to a time, and its node; `since` if that is later."""
        place = bisect_right(self._ended, when, key=lambda pair: pair[0]) - 1
        if place < 0 or self._ended[place][0] <= since:
            return since, []
        return self._ended[place][0], [self._ended[place][1]]
