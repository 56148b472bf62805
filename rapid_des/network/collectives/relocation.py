"""Moving schedules about: payloads to where their bytes stand, members to who they are, several into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rapid_des.network.collectives.schedule import Pieces, Schedule
from rapid_des.network.collectives.task import Ints


def relocate(schedule: Schedule, offset: Ints, size: Ints) -> Schedule:
    """Return `schedule` with its contiguous buffer laid onto the intervals `offset[i], size[i]`, in order."""
    offset, size = _merged(offset[size > 0], size[size > 0])
    if len(offset) < 2:
        return _shifted(schedule, int(offset[0]) if len(offset) else 0)
    owner, start, length = intervals(schedule)
    bounds = np.concatenate(([0], np.cumsum(size)))
    first = np.searchsorted(bounds, start, side="right") - 1
    last = np.searchsorted(bounds, start + length, side="left")
    count = np.where(length > 0, last - first, 0)
    row = np.repeat(np.arange(len(start)), count)
    interval = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + first[row]
    low = np.maximum(start[row], bounds[interval])
    high = np.minimum((start + length)[row], bounds[interval + 1])
    return _with_pieces(schedule, owner[row], offset[interval] + low - bounds[interval], high - low)


def _merged(offset: Ints, size: Ints) -> tuple[Ints, Ints]:
    """Return the intervals with neighbours that touch as one."""
    if not len(offset):
        return offset, size
    head = np.flatnonzero(np.append(True, offset[1:] != offset[:-1] + size[:-1]))
    return offset[head], np.add.reduceat(size, head)


def _shifted(schedule: Schedule, by: int) -> Schedule:
    if by == 0:
        return schedule
    pieces = schedule.pieces
    moved = None if pieces is None else replace(pieces, offset=pieces.offset + by)
    return replace(schedule, offset=schedule.offset + by, pieces=moved)


def intervals(schedule: Schedule) -> tuple[Ints, Ints, Ints]:
    """Return owner transfer, offset and size of every interval."""
    if schedule.pieces is None:
        return np.arange(len(schedule), dtype=np.int64), schedule.offset, schedule.size
    pieces = schedule.pieces
    owner = np.repeat(np.arange(len(schedule), dtype=np.int64), np.diff(pieces.starts))
    return owner, pieces.offset, pieces.size


def _with_pieces(schedule: Schedule, owner: Ints, offset: Ints, size: Ints) -> Schedule:
    """Return `schedule` with these payloads, neighbours merged; plain columns where each is one interval."""
    fresh = np.ones(len(owner), dtype=np.bool_)
    fresh[1:] = (owner[1:] != owner[:-1]) | (offset[1:] != offset[:-1] + size[:-1])
    head = np.flatnonzero(fresh)
    owner, offset = owner[head], offset[head]
    size = np.add.reduceat(size, head) if len(head) else size
    counts = np.bincount(owner, minlength=len(schedule))
    first = np.zeros(len(schedule), dtype=np.int64)
    first[owner[::-1]] = offset[::-1]
    if np.all(counts <= 1):
        return replace(schedule, offset=first, pieces=None)
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    return replace(schedule, offset=first, pieces=Pieces(starts, offset, size))


def relabel(schedule: Schedule, names: NDArray[np.int64], members: int, *, switches: int = 0) -> Schedule:
    """Return `schedule` among `members`, its member (or switch) i being `names[i]` there."""
    return replace(
        schedule,
        members=members,
        switches=switches,
        source=names[schedule.source].astype(np.int32),
        destination=names[schedule.destination].astype(np.int32),
    )


def together(schedules: Sequence[Schedule]) -> Schedule:
    """Return schedules of the same members side by side, without waiting for each other."""
    shifts = np.cumsum([0] + [len(schedule) for schedule in schedules])
    edges = np.cumsum([0] + [len(schedule.dependencies) for schedule in schedules])
    starts = [s.dependency_starts[:-1] + e for s, e in zip(schedules, edges[:-1], strict=True)]
    dependencies = [s.dependencies + int(n) for s, n in zip(schedules, shifts[:-1], strict=True)]
    return replace(
        schedules[0],
        source=np.concatenate([s.source for s in schedules]),
        destination=np.concatenate([s.destination for s in schedules]),
        size=np.concatenate([s.size for s in schedules]),
        reduces=np.concatenate([s.reduces for s in schedules]),
        offset=np.concatenate([s.offset for s in schedules]),
        dependency_starts=np.concatenate([*starts, edges[-1:]]).astype(np.int64),
        dependencies=np.concatenate(dependencies).astype(np.int32),
        pieces=_joined_pieces(schedules),
    )


def _joined_pieces(schedules: Sequence[Schedule]) -> Pieces | None:
    if all(schedule.pieces is None for schedule in schedules):
        return None
    counts, offset, size = [], [], []
    for schedule in schedules:
        owner, start, length = intervals(schedule)
        kept = length > 0
        counts.append(np.bincount(owner[kept], minlength=len(schedule)))
        offset.append(start[kept])
        size.append(length[kept])
    starts = np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int64)
    return Pieces(starts, np.concatenate(offset), np.concatenate(size))


def in_sequence(phases: Sequence[Schedule]) -> Schedule:
    """Return one schedule in which a member starts a phase once its part of the one before has ended there.

    Its part has ended when every transfer from it and to it has arrived; a join at each member says so.
    """
    whole = phases[0]
    for phase in phases[1:]:
        whole = _then(whole, phase)
    return whole


def _then(before: Schedule, after: Schedule) -> Schedule:
    places = before.members + before.switches
    joins = len(before) + np.arange(places)
    own = np.arange(len(before))
    ends = np.concatenate([before.source, before.destination]).astype(np.int64)
    waits = [np.concatenate([joins[ends], len(before) + places + np.arange(len(after))])]
    awaited = [np.concatenate([np.tile(own, 2), joins[after.source]])]
    merged = together([before, _joins(before, places), after])
    rows = np.repeat(np.arange(len(merged)), np.diff(merged.dependency_starts))
    waiting = np.concatenate([rows, *waits])
    dependencies = np.concatenate([merged.dependencies, *awaited])
    order = np.argsort(waiting, kind="stable")
    starts = np.concatenate(([0], np.cumsum(np.bincount(waiting, minlength=len(merged)))))
    return replace(
        merged, dependency_starts=starts.astype(np.int64), dependencies=dependencies[order].astype(np.int32)
    )


def _joins(like: Schedule, places: int) -> Schedule:
    members = np.arange(places, dtype=np.int32)
    nothing = np.zeros(places, dtype=np.int64)
    return replace(
        like,
        source=members,
        destination=members,
        size=nothing,
        reduces=np.zeros(places, dtype=np.bool_),
        offset=nothing,
        dependency_starts=np.zeros(places + 1, dtype=np.int64),
        dependencies=np.zeros(0, dtype=np.int32),
        pieces=None,
    )
