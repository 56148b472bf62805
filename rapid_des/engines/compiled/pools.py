"""What the kernel writes: pools of events, instances and transfers, which grow, and state, which does not.

The kernel cannot allocate memory. It takes each new row from a pool of parallel columns, whose free rows are
linked through one column (`next`, or `first` for buckets) from the first free row in `counts`. When a pool is
empty, the kernel returns between two work items, `engine` provides a larger pool, and the kernel continues.
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
from rapid_des.engines.compiled.columns import RankParts
from rapid_des.engines.compiled.flat import Array, Flat
from rapid_des.program.program import NONE

TIME_CACHE = 4096
"""The number of slots of the cache from times to buckets of events; a time has one slot."""
_NO_LIMIT = 2**62


class Calendar(NamedTuple):
    """Future events: a heap of buckets, one for each distinct time (or two, if the cache lost one)."""

    time: Int64Column
    """[place in the heap] picoseconds; a node of the heap has 4 children."""
    bucket: Int32Column
    """[place in the heap] the bucket of that time."""
    first: Int32Column
    """[bucket] its first event; free buckets are linked through this column."""
    kind: Int8Column
    """[event] its kind, see `work`."""
    a: Int32Column
    """[event] its first number, see `work`."""
    b: Int32Column
    """[event] its second number, see `work`."""
    next: Int32Column
    """[event] the next event of the bucket; free events are linked through this column."""
    cached_time: Int64Column
    """[slot] the time of the bucket in the cache, in picoseconds."""
    cached_bucket: Int32Column
    """[slot] the bucket of that time."""
    counts: Int64Column
    """[length of the heap, first free bucket, first free event, events ever pushed, events in use]."""


class Instances(NamedTuple):
    """Collectives in flight; the slot of an instance and its arena rows are reused by its template only."""

    group: Int32Column
    """[instance] its group."""
    number: Int32Column
    """[instance] its number k in the group."""
    sub: Int32Column
    """[instance] its chunk and phase, as one number."""
    template: Int32Column
    """[instance] its template."""
    arena: Int64Column
    """[instance] the row of its first task in the arena (`Pools.pending`)."""
    member: Int64Column
    """[instance] the row of its first member in `Pools.member_rank` and its neighbours."""
    absent: Int32Column
    """[instance] the number of members that have not arrived."""
    left: Int32Column
    """[instance] the number of tasks not yet delivered plus members not yet done."""
    use: Int64Column
    """[instance] the row of `Network.pair_route` with the route of its first pair."""
    chunk: Int32Column
    """[instance] the chunk number of a step of a replanned collective, else NONE."""
    next: Int32Column
    """[instance] the next active instance of the group, or the next free one of the template."""


class Transfers(NamedTuple):
    """Messages and their parts in flight; the first part of a message also holds what the message needs."""

    instance: Int32Column
    """[transfer] its collective instance."""
    task: Int32Column
    """[transfer] its task in the template."""
    hop: Int64Column
    """[transfer] the row of its next hop in `Network.route_links`."""
    end: Int64Column
    """[transfer] the row after its last hop."""
    begin: Int64Column
    """[transfer] the row of its first hop."""
    size: Int32Column
    """[transfer] its size row."""
    route: Int32Column
    """[transfer] the route that it takes."""
    flowing: Int32Column
    """[transfer] fluid mode: 0 not on links, 1 a flow, 2 a flow that may end at this instant."""
    injected: Int64Column
    """[transfer] the time of its injection in picoseconds."""
    ready: Int64Column
    """[transfer] the time at which it asked for its next link, in picoseconds."""
    crossed: Int64Column
    """[transfer] the time at which its last byte crossed the hop before, in picoseconds, if last bytes are
    followed; fluid mode: the picoseconds that timetables add to its latency."""
    rank: Int32Column
    """[transfer] the rank that injected it, which orders ties on links."""
    visit: Int32Column
    """[transfer] the visit of that rank that injected it, which orders ties on links."""
    priority: Int64Column
    """[transfer] its priority on links; the smallest goes first."""
    sub: Int32Column
    """[transfer] the `sub` of its instance, which separates the steps of one visit."""
    part: Int32Column
    """[transfer] its part number in the message, from 0."""
    parts: Int32Column
    """[transfer] the number of later parts of the message that have not been made."""
    last: Int32Column
    """[transfer] the size row of the message's last part."""
    message: Int32Column
    """[transfer] the first part of its message."""
    missing: Int32Column
    """[message] the number of its parts that have not arrived."""
    credits: Int32Column
    """[message] queue pairs (R9): the number of parts that the window allows it to hand over."""
    awaited: Int32Column
    """[message] queue pairs: the number of acknowledgements that will allow another part."""
    newest: Int32Column
    """[message] queue pairs: the number of the part that was handed over last."""
    idle: Int32Column
    """[message] queue pairs: 1 if its first link has finished the newest part, else 0."""
    tag: Int64Column
    """[transfer] queue pairs: the start tag of a part at its first link, in picoseconds of service."""
    end_tag: Int64Column
    """[message] queue pairs: the start tag of its newest part plus the service time of that part."""
    marked: Int32Column
    """[transfer] queue pairs: 1 if a queue has marked the part (R14), else 0."""
    due: Int64Column
    """[transfer] where links close: the time in picoseconds at which it is at the next node or has arrived;
    events for other times are void."""
    number: Int32Column
    """[transfer] the number of pieces that closed links had stopped and sent again when this piece was; 0 for
    one that was not."""
    next: Int32Column
    """[transfer] the next transfer of its list, or the next free row."""


class Channels(NamedTuple):
    """The order in which a member's messages to another one join their links (R7); empty outside that mode.

    A channel is a pair of an instance; its row is the pair's number after the instance's first arena row.
    Entries are transfer numbers plus one; 0 is none.
    """

    turn: Int32Column
    """[channel] the transfer that is on the links, or joins them at the next tick."""
    last: Int32Column
    """[channel] the last of the transfers that wait; they form a ring through `Transfers.next`."""


class Trail(NamedTuple):
    """The hops of a run, if they are recorded: one row a hop in the order of service."""

    link: Int32Column
    """[hop] its link."""
    start: Int64Column
    """[hop] the start of service in picoseconds."""
    finish: Int64Column
    """[hop] the time at which the link is free again, in picoseconds."""
    arrival: Int64Column
    """[hop] the time at which the last byte is at the other end, in picoseconds."""
    visit: Int64Column
    """[hop] the visit that injected the transfer, as a row of the records."""
    task: Int32Column
    """[hop] the task of the transfer."""
    position: Int32Column
    """[hop] the position of the hop in its route, from 0."""


_Columns = TypeVar("_Columns", Instances, RankParts, Transfers, Trail)


class State(NamedTuple):
    """Arrays of fixed length: records of visits, and the state of servers, groups, templates and links."""

    pending: Int32Column
    """[visit] the number of incoming edges that must still pass."""
    ready: Int64Column
    """[visit] the time in picoseconds at which it is ready, as far as known."""
    start: Int64Column
    """[visit] the start in picoseconds, or NONE."""
    finish: Int64Column
    """[visit] the end in picoseconds, or NONE."""
    met: Int64Column
    """[visit] MEMBER: the arrival of its instance's last member in picoseconds; else NONE."""
    number: Int32Column
    """[visit] its instance number, or NONE."""
    counter: Int32Column
    """[slot of a rank] the next instance number."""
    serving: Int32Column
    """[server] the number of visits in service."""
    marked: BoolColumn
    """[server] whether it chooses at the end of this instant."""
    waiting: Int32Column
    """[server] the number of visits that wait."""
    heap: Int32Column
    """[server, place] the visits that wait, as a binary heap."""
    present: Int64Column
    """[rank] the sum of the weights of its visits in service; empty without contention, as the next seven."""
    computing: Int32Column
    """[rank] the number of its visits in service that others may slow."""
    working: Int32Column
    """[server] the COMPUTE visit in service that others may slow, or NONE."""
    since: Int64Column
    """[server] the time in picoseconds of the last change of that visit's share."""
    ticks: Int64Column
    """[server] whole ticks of work that were left at that time, see `timetable.left_after`."""
    fractions: Int64Column
    """[server] the rest of that work, in 1 / `FULL_RATE` of a tick."""
    share: Int64Column
    """[server] the visit's share of the rate since then, in 1 / `timetable.ALONE`."""
    until: Int64Column
    """[server] the end of the visit in picoseconds if its share stays the same."""
    active: Int32Column
    """[group] its first active instance, or NONE."""
    free: Int32Column
    """[template] its first free instance, or NONE."""
    busy: Int64Column
    """[link] the time in picoseconds at which it is free again."""
    armed: BoolColumn
    """[link] whether an event for that time has been pushed."""
    queue: Int32Column
    """[link] the first of the transfers in its queue, or NONE."""
    asked: Int32Column
    """[link] the first transfer that asks for it at this instant, NONE or FREED."""
    local: Int32Column
    """[link] the first of the parts that wait at their first hop (R9); empty without queue pairs, as the next
    four."""
    local_tag: Int64Column
    """[link] the start tag of the last of those that it took, in picoseconds of service."""
    served: Int64Matrix
    """[link, class] picoseconds of service, plus what a class lost while it was idle."""
    owed: Int64Column
    """[link] picoseconds of acknowledgements to send when the last one was posted."""
    posted: Int64Column
    """[link] the time in picoseconds at which the last acknowledgement was posted."""
    held: Int64Column
    """[link] the bytes in its buffer (R13); empty if no link pauses, as the next six."""
    full: BoolColumn
    """[link] whether the buffer was too full at the last check; its sender knows it a latency later."""
    stopped: BoolColumn
    """[link] whether it is stopped."""
    stopped_since: Int64Column
    """[link] the time in picoseconds of its last stop or restart."""
    link_stopped: Int64Column
    """[link] picoseconds that it was stopped, without a stop that lasts."""
    changed: Int32Column
    """[index] the links whose buffers changed at this instant."""
    is_changed: BoolColumn
    """[link] whether it is in `changed`."""
    marks: Int64Column
    """[link] the number of parts that it marked (R14); empty without marks."""
    backlog: Int64Column
    """[link] service time in picoseconds of the waiting parts that came over links; empty without marks."""
    rates: Int64Matrix
    """[route, column] the state of its rate, see `program.rates`."""
    waits: Int64Column
    """[link] the service time, in picoseconds, of those that wait; empty if no route is chosen by load."""
    touched: Int32Column
    """[index] the links that choose at the end of this instant."""
    touched_servers: Int32Matrix
    """[level, index] the servers that choose at the end of this instant."""
    touched_count: Int64Column
    """[level] the number of those servers."""
    call_plan: Int32Column
    """[collective] the plan that it follows, 0 before its first member arrives; see `Replans.first_call`."""
    call_template: Int32Column
    """[collective] the template of the visit that arrived first."""
    schedule: Int32Column
    """[visit] the rank's schedule in its collective under the plan `schedule_plan`."""
    schedule_plan: Int32Column
    """[visit] the plan of that schedule."""
    rank_part: Int32Column
    """[visit] the row of `RankParts` for the collective that it starts, or NONE."""
    next_in_part: Int32Column
    """[visit] the next visit that represents the same collective, or NONE."""
    link_bytes: Int64Matrix
    """[link, label] bytes of payload."""
    link_busy: Int64Matrix
    """[link, label] picoseconds of service."""
    link_wait: Int64Matrix
    """[link, label] picoseconds that transfers waited for the link."""
    totals: Int64Column
    """[hops, status, five details of the status, bytes sent, bytes received, ties, visits and tasks done]."""
    cursor: Int64Column
    """The place at which the loop continues; `work` names the entries."""
    flags: BoolColumn
    """The features that the program needs; `work` names the entries."""


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
    calendar.first[-1] = calendar.next[-1] = NONE  # all rows are free, linked in order
    return calendar


def new_state(flat: Flat, links: int, labels: int, *, trail: bool, fluid: bool) -> State:
    """Return the records and server states of a program at time 0."""
    return State(
        **_visit_columns(flat),
        **_server_columns(flat),
        **_link_columns(flat, links),
        **{name: np.zeros((links, labels), np.int64) for name in ("link_bytes", "link_busy", "link_wait")},
        **{name: np.zeros(0, np.int32) for name in _REPLANNED},
        active=np.full(len(flat.network.label), NONE, np.int32),
        free=np.full(len(flat.tasks.tasks), NONE, np.int32),
        totals=np.zeros(11, np.int64),
        cursor=np.array([0, 0, 0, 0, 0, 0, NONE, NONE, _NO_LIMIT, NONE, 0, 0], np.int64),
        flags=_flags(flat, trail=trail, fluid=fluid),
    )


_REPLANNED = ("call_plan", "call_template", "schedule", "schedule_plan", "rank_part", "next_in_part")
"""Columns that are empty unless collectives are replanned."""


def _visit_columns(flat: Flat) -> dict[str, Array]:
    """Return the columns of `State` by visit: rank after rank, in program order."""
    ranks, total = flat.ranks, int(flat.ranks.flat[-1])
    # Ranks with one program read the same visits, but each has records of its own.
    ends = np.append(ranks.program, 0)[:-1] + np.diff(ranks.flat)
    need = [flat.visits.need[first:last] for first, last in zip(ranks.program, ends, strict=True)]
    return {
        "pending": np.concatenate([np.zeros(0, np.int32), *need]).astype(np.int32),
        "ready": np.zeros(total, np.int64),
        **{name: np.full(total, NONE, np.int64) for name in ("start", "finish", "met")},
        "number": np.full(total, NONE, np.int32),
        "counter": np.zeros(int(ranks.slot[-1]), np.int32),
    }


def _server_columns(flat: Flat) -> dict[str, Array]:
    """Return the columns of `State` for idle servers; those of contention are empty if there is none."""
    ranks, servers = flat.ranks, int(flat.ranks.server[-1])
    contends = bool(flat.contention.weight.size)
    slowed = ("since", "ticks", "fractions", "share", "until")
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


def _link_columns(flat: Flat, links: int) -> dict[str, Array]:
    """Return the columns of `State` for idle links; features that the program lacks have empty columns."""
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
        "waits": np.zeros(links * _chooses_by_load(flat), np.int64),
        "touched": np.zeros(links, np.int32),
    }


def _chooses_by_load(flat: Flat) -> bool:
    """Return whether parts or messages choose their routes by load."""
    return bool(flat.network.sprays[2] or flat.network.sprays[3])


def _flags(flat: Flat, *, trail: bool, fluid: bool) -> Array:
    """Return the features that the program needs, in the order of `State.flags`."""
    priority, sprays = flat.visits.link_priority, flat.network.sprays
    # With one priority links serve in the order of asking, and need no queue. By load they need one where
    # links have timetables, because what waits counts at rate 1.
    in_order = bool((priority == priority[:1]).all())
    asked = (
        in_order and not (_chooses_by_load(flat) and flat.network.link_time.size),
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
        flat.replans.first_member_visit.size,
    )
    return np.array(asked, np.bool_)


def _empty_rows(kind: type[_Columns], room: int, wide: str) -> _Columns:
    """Return columns of `room` zeros: 32-bit integers, or 64-bit integers if named in `wide`."""
    names = wide.split()
    return kind(*(np.zeros(room, np.int64 if name in names else np.int32) for name in kind._fields))


def new_transfers(room: int = 256) -> Transfers:
    """Return a pool of free transfers."""
    transfers = _empty_rows(
        Transfers, room, wide="hop end begin injected ready crossed priority tag end_tag due"
    )
    transfers.next[:] = np.arange(1, room + 1)
    transfers.next[-1] = NONE
    return transfers


class Pools(NamedTuple):
    """Everything that grows. An instance owns a range of arena rows: its tasks, then its members."""

    calendar: Calendar
    instances: Instances
    pending: Int32Column
    """[arena row] the number of incoming edges of the task or member that must still pass."""
    ready: Int64Column
    """[arena row] the time in picoseconds at which it is ready, as far as known."""
    member_rank: Int32Column
    """[member of an instance] its rank."""
    member_visit: Int32Column
    """[member of an instance] its visit in that rank."""
    channels: Channels
    member_part: Int32Column
    """[member of an instance] its row of `rank_parts`, in a replanned collective."""
    member_step: Int32Column
    """[member of an instance] the step of its rank, in a replanned collective."""
    rank_parts: RankParts
    transfers: Transfers
    trail: Trail
    stack_kind: Int8Column
    """[depth] the kind of a work item of this instant, see `work`."""
    stack_a: Int32Column
    """[depth] its first number."""
    stack_b: Int32Column
    """[depth] its second number."""
    counts: Int64Column
    """[instances made, arena rows used, members used, first free transfer, trail rows, rank parts made]."""


MADE, ARENA, MEMBERS, FREE_TRANSFER, TRAIL, RANK_PARTS = 0, 1, 2, 3, 4, 5
_ARENA = 1024


def new_pools(*, trail: bool, fluid: bool) -> Pools:
    """Return pools of the first size."""
    return Pools(
        calendar=new_calendar(),
        instances=_empty_rows(Instances, 16, wide="arena member use"),
        pending=np.zeros(_ARENA, np.int32),
        ready=np.zeros(_ARENA, np.int64),
        member_rank=np.zeros(256, np.int32),
        member_visit=np.zeros(256, np.int32),
        channels=Channels(*np.zeros((2, _ARENA * fluid), np.int32)),
        member_part=np.zeros(256, np.int32),
        member_step=np.zeros(256, np.int32),
        rank_parts=_empty_rows(RankParts, 16, wide=""),
        transfers=new_transfers(),
        trail=_empty_rows(Trail, 1024 if trail else 0, wide="start finish arrival visit"),
        stack_kind=np.zeros(2048, np.int8),
        stack_a=np.zeros(2048, np.int32),
        stack_b=np.zeros(2048, np.int32),
        counts=np.zeros(6, np.int64),
    )
