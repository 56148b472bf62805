"""The order in which a run's messages go one by one.

Ranks that issue the messages of two groups in different orders would wait for each other for ever if each
finished one message before the next. So the messages stand by their ends, which all members of a group share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import accumulate
from statistics import fmean

from rapid_des.arrays import Int64s
from rapid_des.profiles.events import DeviceEvents
from rapid_des.profiles.replay import ChosenStep

Call = tuple[str, int, int]
"""A collective: its group's name, the first of its ranks, and its number among those of the group."""


def in_turn(
    events: Mapping[int, DeviceEvents],
    steps: Mapping[int, ChosenStep],
    skews: Mapping[int, int],
    calls: Mapping[int, Mapping[int, Call]],
) -> dict[int, ChosenStep]:
    """Return the steps of ranks with their events in an order in which messages can go one by one.

    `calls` says which collective an event of a rank is, `skews` how far the clock of a rank is ahead. A
    message moves behind those that end before it; what computes stays where it began.
    """
    ends = defaultdict[Call, list[int]](list)
    for rank, found in calls.items():
        for event, call in found.items():
            ends[call].append(int(events[rank].end[event]) - skews[rank])
    common = {call: fmean(each) for call, each in ends.items()}
    return {
        rank: step._replace(events=_ordered(step, events[rank], calls[rank], common))
        for rank, step in steps.items()
    }


def _ordered(
    step: ChosenStep, events: DeviceEvents, calls: Mapping[int, Call], ends: Mapping[Call, float]
) -> list[int]:
    """Return a rank's events, its messages by their common end, but never before another of their stream."""
    latest = defaultdict[int, float](float)
    turns = dict[int, float]()
    for event in step.events:
        if event in calls:
            stream = int(events.stream[event])
            turns[event] = latest[stream] = max(ends[calls[event]], latest[stream])
    order = sorted(turns, key=lambda event: turns[event])  # stable: of equals the first to start
    places = dict(zip(order, _latest_starts(events.start, order), strict=True))
    number = {event: place for place, event in enumerate(order, 1)}
    return sorted(
        step.events, key=lambda event: (places.get(event, int(events.start[event])), number.get(event, 0))
    )


def _latest_starts(starts: Int64s, order: list[int]) -> list[int]:
    """Return for each event the latest start of it and those before it."""
    return list(accumulate(starts[order].tolist(), max))
