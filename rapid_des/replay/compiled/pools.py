"""What the kernel writes: pools of events, instances and transfers that grow, and records that do not."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from rapid_des.replay.compiled.flat import Flat
from rapid_des.replay.program import NONE

Array = NDArray[Any]

TIME_CACHE = 4096
"""Slots of the direct-mapped cache from a time to its bucket of events."""


class Calendar(NamedTuple):
    """Future events: a heap of buckets, one a distinct time (or few, when the cache forgot), as linked lists."""

    time: Array
    bucket: Array
    """The heap, 4 children a node, ordered by time."""
    first: Array
    """Bucket to its first event; free buckets are linked through here."""
    kind: Array
    a: Array
    b: Array
    next: Array
    """Event columns; free events are linked through `next`."""
    cached_time: Array
    cached_bucket: Array
    count: Array
    """[heap length, first free bucket, first free event, events ever pushed, events in use]."""


class Instances(NamedTuple):
    """Collectives in flight; an instance's slot and its block of the arena serve its template only."""

    group: Array
    number: Array
    sub: Array
    template: Array
    arena: Array
    member: Array
    absent: Array
    left: Array
    """Tasks not yet delivered plus members not yet done."""
    use: Array
    next: Array
    """The next active instance of the group, or the next free one of the template."""


class Transfers(NamedTuple):
    """Tasks on their way over links."""

    instance: Array
    task: Array
    hop: Array
    end: Array
    injected: Array
    ready: Array
    rank: Array
    visit: Array
    """Who injected it: orders ties on links."""
    next: Array


class Trail(NamedTuple):
    """Every hop, if asked for."""

    link: Array
    start: Array
    finish: Array
    arrival: Array
    visit: Array
    task: Array
    place: Array


class Board(NamedTuple):
    """Fixed arrays: one entry a visit, server, group, template, slot or link."""

    pending: Array
    ready: Array
    start: Array
    finish: Array
    met: Array
    number: Array
    counter: Array
    serving: Array
    marked: Array
    """Server is among those that choose at the end of this instant."""
    waiting: Array
    """Server to how many visits wait."""
    heap: Array
    active: Array
    """Group to its first active instance."""
    free: Array
    """Template to its first free instance."""
    busy: Array
    """Link to when it is free again."""
    armed: Array
    """Link: an event for that moment is under way."""
    queue: Array
    """Link to the first of its waiting transfers (priorities only)."""
    asked: Array
    """Link to the first transfer that asked at this instant."""
    touched: Array
    touched_servers: Array
    touched_count: Array
    """By level."""
    link_bytes: Array
    link_busy: Array
    link_wait: Array
    totals: Array
    """[hops, status, five details of a disagreement]."""
    flags: Array
    """[all transfers have the same priority, hops are recorded]."""


def new_calendar(events: int = 1024) -> Calendar:
    """Return an empty calendar."""
    calendar = Calendar(
        time=np.zeros(events, np.int64),
        bucket=np.zeros(events, np.int32),
        first=np.arange(1, events + 1, dtype=np.int32),
        kind=np.zeros(events, np.int8),
        a=np.zeros(events, np.int32),
        b=np.zeros(events, np.int32),
        next=np.arange(1, events + 1, dtype=np.int32),
        cached_time=np.full(TIME_CACHE, -1, np.int64),
        cached_bucket=np.zeros(TIME_CACHE, np.int32),
        count=np.zeros(5, np.int64),
    )
    calendar.first[-1] = calendar.next[-1] = NONE
    return calendar


def new_board(flat: Flat, links: int, labels: int, *, trail: bool) -> Board:
    """Return the records and server states of a program at time 0."""
    visits, ranks = flat.visits, flat.ranks
    total, servers = int(ranks.flat[-1]), int(ranks.server[-1])
    ends = np.append(ranks.program, 0)[:-1] + np.diff(ranks.flat)
    need = [visits.need[first:last] for first, last in zip(ranks.program, ends, strict=True)]
    return Board(
        pending=np.concatenate([np.zeros(0, np.int32), *need]).astype(np.int32),
        ready=np.zeros(total, np.int64),
        start=np.full(total, NONE, np.int64),
        finish=np.full(total, NONE, np.int64),
        met=np.full(total, NONE, np.int64),
        number=np.full(total, NONE, np.int32),
        counter=np.zeros(int(ranks.slot[-1]), np.int32),
        serving=np.zeros(servers, np.int32),
        marked=np.zeros(servers, np.bool_),
        waiting=np.zeros(servers, np.int32),
        heap=np.zeros(int(ranks.heap[-1]), np.int32),
        active=np.full(len(flat.ways.label), NONE, np.int32),
        free=np.full(len(flat.tasks.tasks), NONE, np.int32),
        busy=np.zeros(links, np.int64),
        armed=np.zeros(links, np.bool_),
        queue=np.full(links, NONE, np.int32),
        asked=np.full(links, NONE, np.int32),
        touched=np.zeros(links, np.int32),
        touched_servers=np.zeros((2, servers), np.int32),
        touched_count=np.zeros(2, np.int64),
        link_bytes=np.zeros((links, labels), np.int64),
        link_busy=np.zeros((links, labels), np.int64),
        link_wait=np.zeros((links, labels), np.int64),
        totals=np.zeros(7, np.int64),
        flags=np.array([(visits.link_priority == visits.link_priority[:1]).all(), trail], np.bool_),
    )


def new_instances() -> Instances:
    """Return room for a few instances."""
    small, large = np.zeros(16, np.int32), np.zeros(16, np.int64)
    return Instances(
        group=small.copy(),
        number=small.copy(),
        sub=small.copy(),
        template=small.copy(),
        arena=large.copy(),
        member=large.copy(),
        absent=small.copy(),
        left=small.copy(),
        use=large.copy(),
        next=small.copy(),
    )


def new_transfers(room: int = 256) -> Transfers:
    """Return room for transfers, all free."""
    transfers = Transfers(
        instance=np.zeros(room, np.int32),
        task=np.zeros(room, np.int32),
        hop=np.zeros(room, np.int64),
        end=np.zeros(room, np.int64),
        injected=np.zeros(room, np.int64),
        ready=np.zeros(room, np.int64),
        rank=np.zeros(room, np.int32),
        visit=np.zeros(room, np.int32),
        next=np.arange(1, room + 1, dtype=np.int32),
    )
    transfers.next[-1] = NONE
    return transfers


def new_trail(wanted: bool) -> Trail:
    """Return room for the first hops, or for none if no trail is wanted."""
    room = 1024 if wanted else 0
    return Trail(
        link=np.zeros(room, np.int32),
        start=np.zeros(room, np.int64),
        finish=np.zeros(room, np.int64),
        arrival=np.zeros(room, np.int64),
        visit=np.zeros(room, np.int64),
        task=np.zeros(room, np.int32),
        place=np.zeros(room, np.int32),
    )


@njit(cache=True)
def wider(column: Array, room: int) -> Array:
    """Return a copy of a column with room for more."""
    copy = np.zeros(room, column.dtype)
    copy[: len(column)] = column
    return copy


@njit(cache=True)
def grown_calendar(calendar: Calendar, least: int) -> Calendar:
    """Return the calendar with room for `least` more events and as many buckets."""
    had = len(calendar.next)
    room = max(2 * had, had + least)
    grown = Calendar(
        wider(calendar.time, room),
        wider(calendar.bucket, room),
        wider(calendar.first, room),
        wider(calendar.kind, room),
        wider(calendar.a, room),
        wider(calendar.b, room),
        wider(calendar.next, room),
        calendar.cached_time,
        calendar.cached_bucket,
        calendar.count,
    )
    for place in range(had, room):
        grown.first[place] = place + 1
        grown.next[place] = place + 1
    grown.first[room - 1] = calendar.count[1]
    grown.next[room - 1] = calendar.count[2]
    calendar.count[1] = had
    calendar.count[2] = had
    return grown


@njit(cache=True)
def grown_transfers(transfers: Transfers, free: int) -> Transfers:
    """Return the transfers with twice the room; the new places come before `free` in the free list."""
    had = len(transfers.next)
    room = 2 * had
    grown = Transfers(
        wider(transfers.instance, room),
        wider(transfers.task, room),
        wider(transfers.hop, room),
        wider(transfers.end, room),
        wider(transfers.injected, room),
        wider(transfers.ready, room),
        wider(transfers.rank, room),
        wider(transfers.visit, room),
        wider(transfers.next, room),
    )
    for place in range(had, room):
        grown.next[place] = place + 1
    grown.next[room - 1] = free
    return grown


@njit(cache=True)
def grown_instances(instances: Instances) -> Instances:
    """Return the instances with twice the room."""
    room = 2 * len(instances.group)
    return Instances(
        wider(instances.group, room),
        wider(instances.number, room),
        wider(instances.sub, room),
        wider(instances.template, room),
        wider(instances.arena, room),
        wider(instances.member, room),
        wider(instances.absent, room),
        wider(instances.left, room),
        wider(instances.use, room),
        wider(instances.next, room),
    )


@njit(cache=True)
def grown_trail(trail: Trail) -> Trail:
    """Return the trail with twice the room."""
    room = 2 * len(trail.link)
    return Trail(
        wider(trail.link, room),
        wider(trail.start, room),
        wider(trail.finish, room),
        wider(trail.arrival, room),
        wider(trail.visit, room),
        wider(trail.task, room),
        wider(trail.place, room),
    )
