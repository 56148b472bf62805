"""What the kernel writes: pools of events, instances and transfers that grow, and records that do not.

The kernel can't allocate. Whatever it makes more of, it takes from a pool: rows of parallel columns, the
free ones linked through one of them (`next`, or `first` of buckets) with the first free row in `counts`. When
a pool is empty, the kernel returns between two work items, gets a larger one (of `engine`) and goes on as if
nothing had been.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np

from rapid_des.compiling.kinds import (
    BoolColumn,
    Int8Column,
    Int32Column,
    Int32Matrix,
    Int64Column,
    Int64Matrix,
)
from rapid_des.engines.compiled.flat import Array, Flat
from rapid_des.engines.compiled.plan_tables import Parts
from rapid_des.program.program import NONE

TIME_CACHE = 4096
"""Slots of the direct-mapped cache from a time to its bucket of events."""
_UNPAUSED = 2**62


class Calendar(NamedTuple):
    """Future events: a heap of buckets, one a distinct time (or two, when the cache forgot one)."""

    time: Int64Column
    bucket: Int32Column
    """The heap, 4 children a node, ordered by time."""
    first: Int32Column
    """Bucket to its first event; free buckets are linked through here."""
    kind: Int8Column
    a: Int32Column
    b: Int32Column
    next: Int32Column
    """Event columns; free events are linked through `next`."""
    cached_time: Int64Column
    cached_bucket: Int32Column
    counts: Int64Column
    """[heap length, first free bucket, first free event, events ever pushed, events in use]."""


class Instances(NamedTuple):
    """Collectives in flight; an instance's slot and its block of the arena serve its template only."""

    group: Int32Column
    number: Int32Column
    sub: Int32Column
    template: Int32Column
    arena: Int64Column
    member: Int64Column
    absent: Int32Column
    left: Int32Column
    """Tasks not yet delivered plus members not yet done."""
    use: Int64Column
    chunk: Int32Column
    """Of a step of a collective that is replanned the number of its chunk, else NONE."""
    next: Int32Column
    """The next active instance of the group, or the next free one of the template."""


class Transfers(NamedTuple):
    """Tasks on their way over links."""

    instance: Int32Column
    task: Int32Column
    hop: Int64Column
    end: Int64Column
    begin: Int64Column
    size: Int32Column
    route: Int32Column
    flowing: Int32Column
    """Fluid mode: 0 not on links, 1 a flow, 2 a flow that may end at this instant."""
    injected: Int64Column
    ready: Int64Column
    crossed: Int64Column
    """When the last byte had crossed the hop before, if that is followed. Fluid mode: what timetables add."""
    rank: Int32Column
    visit: Int32Column
    """Who injected it: orders ties on links."""
    priority: Int64Column
    sub: Int32Column
    """That of its instance, which tells the steps of one visit apart."""
    part: Int32Column
    """Which part of its message it is."""
    parts: Int32Column
    """How many parts come after it and do not exist yet."""
    last: Int32Column
    """The size row of the message's last part."""
    message: Int32Column
    """The message's first part, which counts in `missing` those that have not arrived."""
    missing: Int32Column
    credits: Int32Column
    """Of a message on a queue pair (R9): parts that it may hand over."""
    awaited: Int32Column
    """Acknowledgements that will let it hand over more."""
    newest: Int32Column
    """The number of the part that it handed over last."""
    idle: Int32Column
    """Its first link is done with that one."""
    tag: Int64Column
    """Of a part on a queue pair: its start tag."""
    end_tag: Int64Column
    """Of a message: the start tag of its newest part, and that one's service."""
    marked: Int32Column
    """Of a part on a queue pair: a queue has marked it (R14)."""
    due: Int64Column
    """Where links close: when it stands at the next node, or has arrived; events for other times are void."""
    number: Int32Column
    """How many pieces closed links had stopped and sent again when this one was; 0: none did so with it."""
    next: Int32Column


class Channels(NamedTuple):
    """By pair of an instance, in its stretch of the arena: who sends its messages in order (R7).

    Numbers of transfers plus one, 0: none. Fluid mode, else empty.
    """

    turn: Int32Column
    """Who is on the links, or joins them at the next tick."""
    last: Int32Column
    """The last of those that wait; `Transfers.next` of each is the one behind it, of the last the first."""


class Trail(NamedTuple):
    """Every hop, if asked for."""

    link: Int32Column
    start: Int64Column
    finish: Int64Column
    arrival: Int64Column
    visit: Int64Column
    task: Int32Column
    position: Int32Column


_Columns = TypeVar("_Columns", Instances, Parts, Transfers, Trail)


class State(NamedTuple):
    """Fixed arrays: one entry a visit, server, group, template, slot or link."""

    pending: Int32Column
    ready: Int64Column
    start: Int64Column
    finish: Int64Column
    met: Int64Column
    number: Int32Column
    counter: Int32Column
    serving: Int32Column
    marked: BoolColumn
    """Server is among those that choose at the end of this instant."""
    waiting: Int32Column
    """Server to how many visits wait."""
    heap: Int32Column
    present: Int64Column
    """Rank to the sum of the weights of its visits in service, where that slows anything; so the next."""
    computing: Int32Column
    """Rank to how many of its visits are in service that others may slow."""
    working: Int32Column
    """Server to the COMPUTE visit that others may slow, or NONE."""
    since: Int64Column
    ticks: Int64Column
    parts: Int64Column
    """What was left of it then, see `timetable.left_after`."""
    share: Int64Column
    """From then on, until its end unless that changes."""
    until: Int64Column
    active: Int32Column
    """Group to its first active instance."""
    free: Int32Column
    """Template to its first free instance."""
    busy: Int64Column
    """Link to when it is free again."""
    armed: BoolColumn
    """Link: an event for that moment is under way."""
    queue: Int32Column
    """Link to the first of its waiting transfers (priorities only)."""
    asked: Int32Column
    """Link to the first transfer that asked at this instant."""
    local: Int32Column
    """Link to the first of the parts that wait at their first hop (R9)."""
    local_tag: Int64Column
    """Link to the start tag of the last of those that it took."""
    served: Int64Matrix
    """[link, class] picoseconds of service, less claims that lapsed."""
    owed: Int64Column
    """Link to the picoseconds that its acknowledgements took when the last ones were posted."""
    posted: Int64Column
    held: Int64Column
    """Link to the bytes in its buffer (R13)."""
    full: BoolColumn
    """Link: it was, when that was looked at last; its sender knows that a latency later."""
    stopped: BoolColumn
    stopped_since: Int64Column
    """Link to when it was stopped last, and below to how long it has been in all."""
    link_stopped: Int64Column
    changed: Int32Column
    """Links whose buffers changed at this instant."""
    is_changed: BoolColumn
    marks: Int64Column
    """Link to the parts that it marked (R14)."""
    backlog: Int64Column
    """Link to the services of those that came over links and wait for it."""
    rates: Int64Matrix
    """[route, column] of `program.rates`."""
    waits: Int64Column
    """Link to the services of those that wait for it, where routes are chosen by load and it has a queue."""
    touched: Int32Column
    touched_servers: Int32Matrix
    touched_count: Int64Column
    """By level."""
    planned: Int32Column
    """Collective (`Replans.calls`) to the plan that it follows, 0 before its first member comes."""
    called: Int32Column
    """Collective to the template of the visit that came first."""
    schedule: Int32Column
    """By row of the records, as the next three: a rank's schedule in a collective under `schedule_plan`."""
    schedule_plan: Int32Column
    part: Int32Column
    """A collective's visit to the rank's part in it, or NONE."""
    beside: Int32Column
    """A visit to the next one that stands for the same part, or NONE."""
    link_bytes: Int64Matrix
    link_busy: Int64Matrix
    link_wait: Int64Matrix
    totals: Int64Column
    """[hops, status, five details of a disagreement, bytes sent, bytes received, ties]."""
    cursor: Int64Column
    """Where the loop stands."""
    flags: BoolColumn
    """[all transfers have the same priority, hops are recorded, links are fluid, last bytes are followed,
    messages have queue pairs, links close, visits slow each other, parts are sprayed, messages are, messages
    come late, parts choose by load, messages do, collectives are replanned]."""


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


def new_state(flat: Flat, links: int, labels: int, *, trail: bool, fluid: bool) -> State:
    """Return the records and server states of a program at time 0."""
    return State(
        **_of_visits(flat),
        **_of_servers(flat),
        **_of_links(flat, links),
        **{name: np.zeros((links, labels), np.int64) for name in ("link_bytes", "link_busy", "link_wait")},
        **{name: np.zeros(0, np.int32) for name in _REPLANNED},
        active=np.full(len(flat.network.label), NONE, np.int32),
        free=np.full(len(flat.tasks.tasks), NONE, np.int32),
        totals=np.zeros(11, np.int64),
        cursor=np.array([0, 0, 0, 0, 0, 0, NONE, NONE, _UNPAUSED, NONE, 0, 0], np.int64),
        flags=_flags(flat, trail=trail, fluid=fluid),
    )


_REPLANNED = ("planned", "called", "schedule", "schedule_plan", "part", "beside")
"""What replanning gives room to."""


def _of_visits(flat: Flat) -> dict[str, Array]:
    """Return what is recorded of visits, and what they wait for: rank after rank, in program order."""
    ranks, total = flat.ranks, int(flat.ranks.flat[-1])
    ends = np.append(ranks.program, 0)[:-1] + np.diff(ranks.flat)
    need = [flat.visits.need[first:last] for first, last in zip(ranks.program, ends, strict=True)]
    return {
        "pending": np.concatenate([np.zeros(0, np.int32), *need]).astype(np.int32),
        "ready": np.zeros(total, np.int64),
        **{name: np.full(total, NONE, np.int64) for name in ("start", "finish", "met")},
        "number": np.full(total, NONE, np.int32),
        "counter": np.zeros(int(ranks.slot[-1]), np.int32),
    }


def _of_servers(flat: Flat) -> dict[str, Array]:
    """Return idle servers; what visits slow each other has room only where any do."""
    ranks, servers = flat.ranks, int(flat.ranks.server[-1])
    contends = bool(flat.contention.weight.size)
    slowed = ("since", "ticks", "parts", "share", "until")
    return {
        "serving": np.zeros(servers, np.int32),
        "marked": np.zeros(servers, np.bool_),
        "waiting": np.zeros(servers, np.int32),
        "heap": np.zeros(int(ranks.heap[-1]), np.int32),
        "present": np.zeros(len(ranks.program) * contends, np.int64),
        "computing": np.zeros(len(ranks.program) * contends, np.int32),
        "working": np.full(servers * contends, NONE, np.int32),
        **{name: np.zeros(servers * contends, np.int64) for name in slowed},
        "touched_servers": np.zeros((2, servers), np.int32),
        "touched_count": np.zeros(2, np.int64),
    }


def _of_links(flat: Flat, links: int) -> dict[str, Array]:
    """Return idle links; queue pairs, buffers, marks and loads have room only where a program has them."""
    network = flat.network
    ports = links if len(network.acknowledgements) else 0
    buffers = links if len(network.pause.latency) else 0
    marking = links if len(network.rates.control) else 0
    return {
        "busy": np.zeros(links, np.int64),
        "armed": np.zeros(links, np.bool_),
        "queue": np.full(links, NONE, np.int32),
        "asked": np.full(links, NONE, np.int32),
        "local": np.full(ports, NONE, np.int32),
        "local_tag": np.zeros(ports, np.int64),
        "served": np.zeros((ports, 2), np.int64),
        "owed": np.zeros(ports, np.int64),
        "posted": np.zeros(ports, np.int64),
        **{name: np.zeros(buffers, np.int64) for name in ("held", "stopped_since", "link_stopped")},
        **{name: np.zeros(buffers, np.bool_) for name in ("full", "stopped", "is_changed")},
        "changed": np.zeros(buffers, np.int32),
        "marks": np.zeros(marking, np.int64),
        "backlog": np.zeros(marking, np.int64),
        "rates": network.rates.rows.copy(),
        "waits": np.zeros(links * _by_load(flat), np.int64),
        "touched": np.zeros(links, np.int32),
    }


def _by_load(flat: Flat) -> bool:
    """Whether parts or messages choose their routes by load."""
    return bool(flat.network.sprays[2] or flat.network.sprays[3])


def _flags(flat: Flat, *, trail: bool, fluid: bool) -> Array:
    """Return what the program asks of the kernel, in the order of `State.flags`."""
    priority, sprays = flat.visits.link_priority, flat.network.sprays
    in_order = bool((priority == priority[:1]).all())
    asked = (
        in_order and not (_by_load(flat) and flat.network.link_time.size),
        trail,
        fluid,
        flat.network.along.size,
        len(flat.network.acknowledgements),
        flat.network.detour.size,
        flat.contention.weight.size,
        sprays[0],
        sprays[1],
        flat.delays.noise.size,
        sprays[2],
        sprays[3],
        flat.replans.stands.size,
    )
    return np.array(asked, np.bool_)


def _rows(kind: type[_Columns], room: int, wide: str) -> _Columns:
    """Return `room` empty rows: columns of 32-bit integers, those named in `wide` of 64."""
    names = wide.split()
    return kind(*(np.zeros(room, np.int64 if name in names else np.int32) for name in kind._fields))


def new_transfers(room: int = 256) -> Transfers:
    """Return room for transfers, all free."""
    transfers = _rows(Transfers, room, wide="hop end begin injected ready crossed priority tag end_tag due")
    transfers.next[:] = np.arange(1, room + 1)
    transfers.next[-1] = NONE
    return transfers


class Pools(NamedTuple):
    """Everything that grows."""

    calendar: Calendar
    instances: Instances
    pending: Int32Column
    """What each task and member of the instances still waits for; `ready` is the latest of what came."""
    ready: Int64Column
    member_rank: Int32Column
    member_visit: Int32Column
    """Which visit each member of an instance is."""
    channels: Channels
    member_part: Int32Column
    member_step: Int32Column
    """And of a step of a collective that is replanned, which part and step."""
    parts: Parts
    transfers: Transfers
    trail: Trail
    stack_kind: Int8Column
    stack_a: Int32Column
    stack_b: Int32Column
    """Work items of the current instant."""
    counts: Int64Column
    """[instances made, arena used, members used, first free transfer, trail length, parts made]."""


MADE, ARENA, MEMBERS, FREE_TRANSFER, TRAIL, PARTS = 0, 1, 2, 3, 4, 5
_ARENA = 1024


def new_pools(*, trail: bool, fluid: bool = False) -> Pools:
    """Return small pools."""
    return Pools(
        calendar=new_calendar(),
        instances=_rows(Instances, 16, wide="arena member use"),
        pending=np.zeros(_ARENA, np.int32),
        ready=np.zeros(_ARENA, np.int64),
        member_rank=np.zeros(256, np.int32),
        member_visit=np.zeros(256, np.int32),
        channels=Channels(*np.zeros((2, _ARENA * fluid), np.int32)),
        member_part=np.zeros(256, np.int32),
        member_step=np.zeros(256, np.int32),
        parts=_rows(Parts, 16, wide=""),
        transfers=new_transfers(),
        trail=_rows(Trail, 1024 if trail else 0, wide="start finish arrival visit"),
        stack_kind=np.zeros(2048, np.int8),
        stack_a=np.zeros(2048, np.int32),
        stack_b=np.zeros(2048, np.int32),
        counts=np.zeros(6, np.int64),
    )
