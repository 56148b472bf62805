"""The rules R1 to R6 as one loop (the SimPy engine is the definition; this one has nothing to decide).

    next instant ──► work items, off a stack ──► streams choose ──► slots choose ──► links choose ──► …
                            ▲                          │                 │
                            └────── visits taken ──────┴─────────────────┘

Instant by instant: everything that becomes ready or free at a time is worked off a stack, then the touched
servers choose, streams before slots before links. Before each work item it is made sure that there is room
for all that the item can make; if not the loop ends, is given larger pools, and goes on where it was.
"""

from __future__ import annotations

from rapid_des.compiling import Kernel, compilable
from rapid_des.engines.compiled.calendar import HEAP, PUSHED, USED, pop, recycle, recycle_bucket
from rapid_des.engines.compiled.carried import fire, flow, hand, stand, touch_link
from rapid_des.engines.compiled.flat import Flat
from rapid_des.engines.compiled.instances import deliver
from rapid_des.engines.compiled.link_queues import links_choose
from rapid_des.engines.compiled.pools import Calendar, Pools, State
from rapid_des.engines.compiled.queue_pairs import stop_or_go
from rapid_des.engines.compiled.replanned import begin_step
from rapid_des.engines.compiled.rooms import has_room_for
from rapid_des.engines.compiled.served import end_visit, server_takes, take_visit, visit_is_ready
from rapid_des.engines.compiled.work import (
    ASKING,
    CAPACITY,
    CLOSING,
    DEPTH,
    DONE,
    END,
    FIRE,
    FLOW,
    FLUID,
    FREE,
    FREED,
    HAND,
    HOP,
    LATE,
    LINKS,
    LINKS_APART,
    LINKS_CHOOSE,
    MORE_STACK,
    NEXT_INSTANT,
    NONE,
    NOW,
    PAIRED,
    PAUSE,
    PAUSED,
    PHASE,
    READY,
    SPARE,
    START,
    STATUS,
    STEP,
    WAKE,
    WAKING,
    WANTED,
    WORK,
    add_work,
)


@compilable
def play(flat: Flat, state: State, pools: Pools, until: int) -> None:
    """Play until nothing is left to happen, past `until`, to a pause, or until room is wanted."""
    cursor, status = state.cursor, state.totals
    status[STATUS] = DONE
    while status[STATUS] == DONE:
        if cursor[PHASE] == NEXT_INSTANT and not _next_instant(state, pools, until):
            return
        if cursor[PHASE] == LINKS_CHOOSE:
            _links(flat, state, pools)
        elif cursor[DEPTH] > 0 or server_takes(flat, state, pools):
            _work_off(flat, state, pools)


@compilable
def _next_instant(state: State, pools: Pools, until: int) -> bool:
    """Make work items of all events of the next instant, in any order (R4); tell whether there are any."""
    calendar, totals = pools.calendar, state.totals
    if calendar.counts[HEAP] == 0 or calendar.time[0] > until:
        return False
    if calendar.counts[PUSHED] >= state.cursor[PAUSE]:
        totals[STATUS] = PAUSED
        return False
    if calendar.counts[USED] + SPARE >= len(pools.stack_kind):
        totals[STATUS], totals[WANTED] = MORE_STACK, calendar.counts[USED] + SPARE
        return False
    now = calendar.time[0]
    while calendar.counts[HEAP] > 0 and calendar.time[0] == now:
        bucket = pop(calendar)
        _empty(state, pools, calendar, bucket)
        recycle_bucket(calendar, bucket)
    state.cursor[NOW], state.cursor[PHASE] = now, WORK
    return True


@compilable
def _empty(state: State, pools: Pools, calendar: Calendar, bucket: int) -> None:
    """Make work items of the events in a bucket."""
    event = calendar.first[bucket]
    while event != NONE:
        add_work(state, pools, calendar.kind[event], calendar.a[event], calendar.b[event])
        following = calendar.next[event]
        recycle(calendar, event)
        event = following


@compilable
def _links(flat: Flat, state: State, pools: Pools) -> None:
    """Have links choose; whoever called `play` does that for flows, queue pairs, and links that close."""
    flags, cursor = state.flags, state.cursor
    if not (flags[FLUID] or flags[CLOSING] or flags[PAIRED]):
        links_choose(flat, state, pools)
    elif cursor[LINKS] + cursor[ASKING] + cursor[WAKING] > 0:
        state.totals[STATUS] = LINKS_APART
    else:
        cursor[PHASE] = NEXT_INSTANT


@compilable
def _work_off(flat: Flat, state: State, pools: Pools) -> None:
    """Do the work item on the top of the stack, if there is room for what it makes; else leave it there."""
    top = state.cursor[DEPTH] - 1
    if not has_room_for(flat, state, pools, top):
        return
    state.cursor[DEPTH] = top
    kind, a, b = pools.stack_kind[top], pools.stack_a[top], pools.stack_b[top]
    if kind == READY:
        visit_is_ready(flat, state, pools, a, b)
    elif kind == START:
        take_visit(flat, state, pools, a, b)
    elif kind == END:
        end_visit(flat, state, pools, a, b)
    elif kind == FIRE:
        fire(flat, state, pools, a, b)
    elif kind == HOP:
        stand(flat, state, pools, a)
    else:
        _work_off_rarer(flat, state, pools, top)


@compilable
def _work_off_rarer(flat: Flat, state: State, pools: Pools, top: int) -> None:
    """Do a work item of a kind that a plain program has none of."""
    kind, a, b = pools.stack_kind[top], pools.stack_a[top], pools.stack_b[top]
    if kind == STEP:
        begin_step(flat, state, pools, a, b)
    elif kind == LATE:
        deliver(flat, state, pools, a, b)
    elif kind == FLOW:
        flow(state, pools, a, b)
    elif kind == HAND:
        hand(flat, state, pools, a, b)
    elif kind == CAPACITY:
        touch_link(state, a)
    elif kind == WAKE:
        state.cursor[WAKING] = 1
    else:
        _look_at_queue(state, a, b, frees=kind == FREE)


@compilable
def _look_at_queue(state: State, link: int, stops: int, frees: bool) -> None:  # noqa: FBT001
    """Have a link that is free, stopped or let go choose, also if nobody asks it at this instant."""
    if frees:
        state.armed[link] = False
    else:
        stop_or_go(state, link, stops, state.cursor[NOW])
    if state.asked[link] == NONE:
        state.asked[link] = FREED
        touch_link(state, link)


KERNEL = Kernel(play)
