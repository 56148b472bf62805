"""Checks that pools have room for all that a work item makes, before it is done.

A work item makes a work item or an event for each of its outgoing edges, a transfer if it is a task that
sends, an instance if it is the first member of a collective to arrive. An item without room changes nothing,
so it can be done again when the pools are larger.
"""

from __future__ import annotations

from rapid_des.compiling import compilable
from rapid_des.engines.compiled.calendar import USED
from rapid_des.engines.compiled.flat import Flat
from rapid_des.engines.compiled.pools import (
    ARENA,
    FREE_TRANSFER,
    MADE,
    MEMBERS,
    RANK_PARTS,
    TRAIL,
    Pools,
    State,
)
from rapid_des.engines.compiled.replanned import follows_plan, plan_of
from rapid_des.engines.compiled.work import (
    AT_NODE,
    CLOSING,
    CONTENDS,
    DETOUR,
    END,
    FIRE,
    LATE_MESSAGE,
    MEMBER,
    MORE_EVENTS,
    MORE_INSTANCES,
    MORE_RANK_PARTS,
    MORE_STACK,
    MORE_TRAIL,
    MORE_TRANSFERS,
    NO_SCHEDULE,
    NONE,
    PAIRED,
    PLAN_STEP,
    QUEUE_PAIR,
    READY,
    RECORDING,
    SPARE,
    START,
    STATUS,
    WANTED,
)

_LACKING = -1
"""Returned instead of a number of items if a pool is full; the totals name the pool."""


@compilable
def has_room(state: State, pools: Pools, wanted: int) -> bool:
    """Return whether `wanted` events and trail rows have room; else the totals name the full pool."""
    if pools.calendar.counts[USED] + wanted >= len(pools.calendar.next):
        state.totals[STATUS], state.totals[WANTED] = MORE_EVENTS, wanted
        return False
    if state.flags[RECORDING] and pools.counts[TRAIL] + wanted > len(pools.trail.link):
        state.totals[STATUS], state.totals[WANTED] = MORE_TRAIL, wanted
        return False
    return True


@compilable
def has_room_for(flat: Flat, state: State, pools: Pools, top: int) -> bool:
    """Return whether all that a work item makes has room; else the totals name the full pool."""
    kind, a, b = pools.stack_kind[top], pools.stack_a[top], pools.stack_b[top]
    made = 0
    if kind <= END:
        made = _made_by_visit(flat, state, pools, top)
    elif kind == PLAN_STEP:
        made = _made_by_joining(flat, state, pools, flat.replans.template[b], flat.replans.member[b])
    elif kind == FIRE:
        made = _made_by_firing(flat, state, pools, a, b)
    elif kind in (AT_NODE, QUEUE_PAIR, LATE_MESSAGE):
        made = _made_by_transfer(flat, state, pools, top)
    if made == _LACKING:
        return False
    # What an item makes goes to the stack or to the calendar: both must have room for all of it.
    if top + 1 + made + SPARE >= len(pools.stack_kind):
        state.totals[STATUS], state.totals[WANTED] = MORE_STACK, top + 1 + made + SPARE
        return False
    if pools.calendar.counts[USED] + made + SPARE >= len(pools.calendar.next):
        state.totals[STATUS], state.totals[WANTED] = MORE_EVENTS, made + SPARE
        return False
    return True


@compilable
def _made_by_visit(flat: Flat, state: State, pools: Pools, top: int) -> int:
    """Return the number of items that a visit makes which is ready, is taken or ends, or `_LACKING`."""
    kind, a, b = pools.stack_kind[top], pools.stack_a[top], pools.stack_b[top]
    visits, ranks = flat.visits, flat.ranks
    visit = ranks.program[a] + b
    made = visits.edge_starts[visit + 1] - visits.edge_starts[visit]
    if state.flags[CONTENDS]:  # an event for each server of the rank that now works faster or slower
        made += ranks.server[a + 1] - ranks.server[a]
    starts = kind == START or (kind == READY and visits.server[visit] == NONE)
    if not starts or visits.kind[visit] != MEMBER:
        return made
    if follows_plan(flat, state, a, b):
        more = _made_by_plan(flat, state, pools, a, b)
    else:
        member = ranks.slot_member[ranks.slot[a] + visits.slot[visit]]
        more = _made_by_joining(flat, state, pools, visits.template[visit], member)
    return _LACKING if more == _LACKING else made + more


@compilable
def _made_by_plan(flat: Flat, state: State, pools: Pools, a: int, b: int) -> int:
    """Return the number of steps that a member starts in a replanned collective (R8), or `_LACKING`."""
    caller, _, _, call = plan_of(flat, state, a, b)
    plan, record = state.call_plan[call], flat.ranks.flat[a] + b
    if state.rank_part[flat.ranks.flat[a] + caller] != NONE:
        return 0
    if state.schedule_plan[record] != plan:
        state.totals[STATUS] = NO_SCHEDULE
        state.totals[WANTED], state.totals[3], state.totals[4] = a, b, plan
        return _LACKING
    if pools.counts[RANK_PARTS] == len(pools.rank_parts.rank):
        state.totals[STATUS] = MORE_RANK_PARTS
        return _LACKING
    schedule = state.schedule[record]
    return flat.replans.schedules[schedule + 1] - flat.replans.schedules[schedule]


@compilable
def _made_by_joining(flat: Flat, state: State, pools: Pools, template: int, member: int) -> int:
    """Return the number of items that a member makes as it arrives at an instance, or `_LACKING`."""
    tasks, counts = flat.tasks, pools.counts
    members = tasks.members[template]
    wanted = tasks.tasks[template] + members
    # A free instance brings its arena rows; a new one needs a row, its range, and rows for its members.
    if state.free[template] == NONE and (
        counts[MADE] == len(pools.instances.group)
        or counts[ARENA] + wanted > len(pools.pending)
        or counts[MEMBERS] + members > len(pools.member_rank)
    ):
        state.totals[STATUS], state.totals[WANTED] = MORE_INSTANCES, wanted
        return _LACKING
    entry = tasks.first_member[template] + member
    return tasks.arrival_starts[entry + 1] - tasks.arrival_starts[entry]


@compilable
def _made_by_firing(flat: Flat, state: State, pools: Pools, instance: int, target: int) -> int:
    """Return the number of items that a task or member makes when it fires, or `_LACKING`."""
    tasks, instances = flat.tasks, pools.instances
    template = instances.template[instance]
    if target >= tasks.tasks[template]:
        if instances.chunk[instance] == NONE:
            return 0
        entry = instances.member[instance] + target - tasks.tasks[template]
        return pools.rank_parts.visits[pools.member_part[entry]]
    if pools.counts[FREE_TRANSFER] == NONE:
        state.totals[STATUS] = MORE_TRANSFERS
        return _LACKING
    entry = tasks.first_task[template] + target
    # A route over closed links is found here, before anything of the item is done.
    if state.flags[CLOSING] and tasks.pair[entry] != NONE:
        route = flat.network.pair_route[instances.use[instance] + tasks.pair[entry]]
        if flat.network.detour[route] < 0:
            state.totals[STATUS], state.totals[WANTED] = DETOUR, route
            return _LACKING
    return tasks.edge_starts[entry + 1] - tasks.edge_starts[entry]


@compilable
def _made_by_transfer(flat: Flat, state: State, pools: Pools, top: int) -> int:
    """Return the number of items that a transfer makes at a node, as a new part, or late, or `_LACKING`."""
    kind, a, b = pools.stack_kind[top], pools.stack_a[top], pools.stack_b[top]
    tasks, transfers, instance, task = flat.tasks, pools.transfers, a, b
    if kind != LATE_MESSAGE:
        makes_part = kind == QUEUE_PAIR or (transfers.parts[a] > 0 and not state.flags[PAIRED])
        if makes_part and pools.counts[FREE_TRANSFER] == NONE:
            state.totals[STATUS] = MORE_TRANSFERS
            return _LACKING
        if makes_part or transfers.hop[a] < transfers.end[a]:
            return 0
        instance, task = transfers.instance[a], transfers.task[a]
    entry = tasks.first_task[pools.instances.template[instance]] + task
    return tasks.edge_starts[entry + 1] - tasks.edge_starts[entry]
