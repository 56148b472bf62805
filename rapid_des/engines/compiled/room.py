"""Larger pools of what the kernel ran out of; rows keep their numbers."""

from __future__ import annotations

import numpy as np

from rapid_des.engines.compiled.flat import Array
from rapid_des.engines.compiled.plan_tables import Parts
from rapid_des.engines.compiled.pools import (
    ARENA,
    FREE_TRANSFER,
    MADE,
    MEMBERS,
    Instances,
    Pools,
    Trail,
    Transfers,
)


def _wider(column: Array, room: int) -> Array:
    copy = np.zeros(room, column.dtype)
    copy[: len(column)] = column
    return copy


def with_events(pools: Pools, least: int) -> Pools:
    """Return pools with room for at least `least` more events."""
    calendar = pools.calendar
    had = len(calendar.next)
    room = max(2 * had, had + least + 1)
    columns = {
        name: _wider(getattr(calendar, name), room)
        for name in ("time", "bucket", "first", "kind", "a", "b", "next")
    }
    for name, free in (("first", 1), ("next", 2)):
        columns[name][had:] = np.arange(had + 1, room + 1)
        columns[name][-1] = calendar.counts[free]
        calendar.counts[free] = had
    return pools._replace(calendar=calendar._replace(**columns))


def with_stack(pools: Pools, least: int) -> Pools:
    """Return pools with room for at least `least` work items."""
    room = max(2 * len(pools.stack_kind), least + 1)
    names = ("stack_kind", "stack_a", "stack_b")
    kind, a, b = (_wider(getattr(pools, name), room) for name in names)
    return pools._replace(stack_kind=kind, stack_a=a, stack_b=b)


def with_instances(pools: Pools, wanted: int) -> Pools:
    """Return pools with room for an instance of `wanted` tasks and members; only what is short grows."""
    made, arena, members = (int(pools.counts[index]) for index in (MADE, ARENA, MEMBERS))
    instances = pools.instances
    if made == len(instances.group):
        instances = Instances(*(_wider(column, 2 * made) for column in instances))
    arena_room, member_room = len(pools.pending), len(pools.member_rank)
    if arena + wanted > arena_room:
        arena_room = max(arena_room + arena_room // 2, arena + wanted)
    if members + wanted > member_room:
        member_room = max(2 * member_room, members + min(wanted, 2**20))
    return pools._replace(
        instances=instances,
        pending=_wider(pools.pending, arena_room),
        ready=_wider(pools.ready, arena_room),
        member_rank=_wider(pools.member_rank, member_room),
        member_visit=_wider(pools.member_visit, member_room),
        member_part=_wider(pools.member_part, member_room),
        member_step=_wider(pools.member_step, member_room),
    )


def with_parts(pools: Pools) -> Pools:
    """Return pools with twice the room for parts of ranks in collectives that are planned anew."""
    room = 2 * len(pools.parts.rank)
    return pools._replace(parts=Parts(*(_wider(column, room) for column in pools.parts)))


def with_transfers(pools: Pools) -> Pools:
    """Return pools with twice the room for transfers on their way."""
    had = len(pools.transfers.next)
    transfers = Transfers(*(_wider(column, 2 * had) for column in pools.transfers))
    transfers.next[had:] = np.arange(had + 1, 2 * had + 1)
    transfers.next[-1] = pools.counts[FREE_TRANSFER]
    pools.counts[FREE_TRANSFER] = had
    return pools._replace(transfers=transfers)


def with_trail(pools: Pools, least: int) -> Pools:
    """Return pools with room for at least `least` more hops in the trail."""
    room = 2 * len(pools.trail.link) + least
    return pools._replace(trail=Trail(*(_wider(column, room) for column in pools.trail)))
