"""What the kernel writes: pools of events, instances and transfers that grow, and records that do not."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rapid_des.engines.compiled.flat import Flat
from rapid_des.program.program import NONE

Array = NDArray[Any]

TIME_CACHE = 4096
"""Slots of the direct-mapped cache from a time to its bucket of events."""


class Calendar(NamedTuple):
    """Future events: a heap of buckets, one a distinct time (or two, when the cache forgot one)."""

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
    counts: Array
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
    begin: Array
    size: Array
    route: Array
    flowing: Array
    """Fluid mode: 0 not on links, 1 a flow, 2 a flow that may end at this instant."""
    injected: Array
    ready: Array
    rank: Array
    visit: Array
    """Who injected it: orders ties on links."""
    part: Array
    """Which part of its message it is."""
    parts: Array
    """How many parts come after it and do not exist yet."""
    last: Array
    """The size row of the message's last part."""
    whole: Array
    """The message's first part, which counts in `missing` those that have not arrived."""
    missing: Array
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
    """[hops, status, five details of a disagreement, bytes sent, bytes received, ties]."""
    state: Array
    """Where the loop stands."""
    flags: Array
    """[all transfers have the same priority, hops are recorded, links are fluid]."""


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
        counts=np.zeros(5, np.int64),
    )
    calendar.first[-1] = calendar.next[-1] = NONE
    return calendar


def new_board(flat: Flat, links: int, labels: int, *, trail: bool, fluid: bool) -> Board:
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
        totals=np.zeros(10, np.int64),
        state=np.array([0, 0, 0, 0, 0, 0, NONE, NONE], np.int64),
        flags=np.array([(visits.link_priority == visits.link_priority[:1]).all(), trail, fluid], np.bool_),
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
        begin=np.zeros(room, np.int64),
        size=np.zeros(room, np.int32),
        route=np.zeros(room, np.int32),
        flowing=np.zeros(room, np.int8),
        injected=np.zeros(room, np.int64),
        ready=np.zeros(room, np.int64),
        rank=np.zeros(room, np.int32),
        visit=np.zeros(room, np.int32),
        part=np.zeros(room, np.int32),
        parts=np.zeros(room, np.int32),
        last=np.zeros(room, np.int32),
        whole=np.zeros(room, np.int32),
        missing=np.zeros(room, np.int32),
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


class Pools(NamedTuple):
    """Everything that grows."""

    calendar: Calendar
    instances: Instances
    pending: Array
    """What each task and member of the instances still waits for; `ready` is the latest of what came."""
    ready: Array
    member_rank: Array
    member_visit: Array
    """Which visit each member of an instance is."""
    transfers: Transfers
    trail: Trail
    stack_kind: Array
    stack_a: Array
    stack_b: Array
    """Work items of the current instant."""
    counts: Array
    """[instances made, arena used, members used, first free transfer, trail length]."""


MADE, ARENA, MEMBERS, FREE_TRANSFER, TRAIL = 0, 1, 2, 3, 4


def new_pools(*, trail: bool) -> Pools:
    """Return small pools."""
    return Pools(
        calendar=new_calendar(),
        instances=new_instances(),
        pending=np.zeros(1024, np.int32),
        ready=np.zeros(1024, np.int64),
        member_rank=np.zeros(256, np.int32),
        member_visit=np.zeros(256, np.int32),
        transfers=new_transfers(),
        trail=new_trail(trail),
        stack_kind=np.zeros(2048, np.int8),
        stack_a=np.zeros(2048, np.int32),
        stack_b=np.zeros(2048, np.int32),
        counts=np.zeros(5, np.int64),
    )
