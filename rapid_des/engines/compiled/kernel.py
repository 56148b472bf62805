"""The rules R1 to R6 as one loop; the SimPy engine defines the results, this one returns the same.

    next instant ──► work items, off a stack ──► streams choose ──► slots choose ──► links choose ──► …
                            ▲                          │                 │
                            └────── visits taken ──────┴─────────────────┘

At each instant the loop does the work items on a stack: all that becomes ready or free. Then the touched
servers choose, streams before slots before links. Before each work item the loop checks that the pools have
room for all that the item makes. If not, it returns, its caller provides larger pools, and it continues.
"""

from __future__ import annotations

from rapid_des.compiling import CompiledKernel, compilable
from rapid_des.engines.compiled.calendar import HEAP, PUSHED, USED, pop, recycle, recycle_bucket
from rapid_des.engines.compiled.flat import Flat
from rapid_des.engines.compiled.instances import task_is_delivered
from rapid_des.engines.compiled.link_queues import links_choose
from rapid_des.engines.compiled.messages import fire, flow_event, queue_pair_event, reach_node, touch_link
from rapid_des.engines.compiled.pools import Calendar, Pools, State
from rapid_des.engines.compiled.queue_pairs import set_link_stopped
from rapid_des.engines.compiled.replanned import begin_step
from rapid_des.engines.compiled.room_checks import has_room_for
from rapid_des.engines.compiled.visits import end_visit, server_takes, take_visit, visit_is_ready
from rapid_des.engines.compiled.work import (
    ASKING,
    AT_NODE,
    CLOSING,
    DEPTH,
    DONE,
    END,
    EVENT_LIMIT,
    FIRE,
    FLOW,
    FLUID,
    FREED,
    LATE_MESSAGE,
    LIMIT_REACHED,
    LINK_FREE,
    LINK_RATE,
    LINKS,
    LINKS_CHOOSE,
    LINKS_OF_CALLER,
    MORE_STACK,
    NEXT_INSTANT,
    NONE,
    NOW,
    PAIRED,
    PHASE,
    PLAN_STEP,
    QUEUE_PAIR,
    READY,
    RESTART,
    RESTARTING,
    SPARE,
    START,
    STATUS,
    WANTED,
    WORK,
    add_work,
)


@compilable
def play(flat: Flat, state: State, pools: Pools, until: int) -> None:
    """Play until no event is left, or none up to `until`, to the limit of events, or until a pool is full."""
    cursor, status = state.cursor, state.totals
    status[STATUS] = DONE
    while status[STATUS] == DONE:
        if cursor[PHASE] == NEXT_INSTANT and not _next_instant(state, pools, until):
            return
        if cursor[PHASE] == LINKS_CHOOSE:
            _serve_links(flat, state, pools)
        elif cursor[DEPTH] > 0 or server_takes(flat, state, pools):
            _work_off(flat, state, pools)


@compilable
def _next_instant(state: State, pools: Pools, until: int) -> bool:
    """Make work items of all events of the next instant, in any order (R4); return whether there are any."""
    calendar, totals = pools.calendar, state.totals
    if calendar.counts[HEAP] == 0 or calendar.time[0] > until:
        return False
    # A call ends only between instants, so that Python always sees a consistent state.
    if calendar.counts[PUSHED] >= state.cursor[EVENT_LIMIT]:
        totals[STATUS] = LIMIT_REACHED
        return False
    if calendar.counts[USED] + SPARE >= len(pools.stack_kind):
        totals[STATUS], totals[WANTED] = MORE_STACK, calendar.counts[USED] + SPARE
        return False
    now = calendar.time[0]
    # One time can have several buckets, because the calendar's cache can lose a time.
    while calendar.counts[HEAP] > 0 and calendar.time[0] == now:
        bucket = pop(calendar)
        _empty_bucket(state, pools, calendar, bucket)
        recycle_bucket(calendar, bucket)
    state.cursor[NOW], state.cursor[PHASE] = now, WORK
    return True


@compilable
def _empty_bucket(state: State, pools: Pools, calendar: Calendar, bucket: int) -> None:
    """Make work items of the events in a bucket, and recycle the events."""
    event = calendar.first[bucket]
    while event != NONE:
        add_work(state, pools, calendar.kind[event], calendar.a[event], calendar.b[event])
        following = calendar.next[event]
        recycle(calendar, event)
        event = following


@compilable
def _serve_links(flat: Flat, state: State, pools: Pools) -> None:
    """Let links choose; for flows, queue pairs and links that close the caller of `play` does that."""
    flags, cursor = state.flags, state.cursor
    if not (flags[FLUID] or flags[CLOSING] or flags[PAIRED]):
        links_choose(flat, state, pools)
    elif cursor[LINKS] + cursor[ASKING] + cursor[RESTARTING] > 0:
        state.totals[STATUS] = LINKS_OF_CALLER
    else:
        cursor[PHASE] = NEXT_INSTANT


@compilable
def _work_off(flat: Flat, state: State, pools: Pools) -> None:
    """Do the work item on top of the stack if there is room for what it makes; else leave it there."""
    top = state.cursor[DEPTH] - 1
    if not has_room_for(flat, state, pools, top):
        return
    state.cursor[DEPTH] = top  # only now: without room the item stays on the stack
    kind, a, b = pools.stack_kind[top], pools.stack_a[top], pools.stack_b[top]
    # The kinds that every program has come first; the others are in a function of their own.
    if kind == READY:
        visit_is_ready(flat, state, pools, a, b)
    elif kind == START:
        take_visit(flat, state, pools, a, b)
    elif kind == END:
        end_visit(flat, state, pools, a, b)
    elif kind == FIRE:
        fire(flat, state, pools, a, b)
    elif kind == AT_NODE:
        reach_node(flat, state, pools, a)
    else:
        _work_off_rarer(flat, state, pools, top)


@compilable
def _work_off_rarer(flat: Flat, state: State, pools: Pools, top: int) -> None:
    """Do a work item of a kind that only programs with a special feature have."""
    kind, a, b = pools.stack_kind[top], pools.stack_a[top], pools.stack_b[top]
    if kind == PLAN_STEP:
        begin_step(flat, state, pools, a, b)
    elif kind == LATE_MESSAGE:
        task_is_delivered(flat, state, pools, a, b)
    elif kind == FLOW:
        flow_event(state, pools, a, b)
    elif kind == QUEUE_PAIR:
        queue_pair_event(flat, state, pools, a, b)
    elif kind == LINK_RATE:
        touch_link(state, a)
    elif kind == RESTART:
        state.cursor[RESTARTING] = 1
    else:
        _link_may_choose(state, a, b, frees=kind == LINK_FREE)


@compilable
def _link_may_choose(state: State, link: int, stops: int, frees: bool) -> None:  # noqa: FBT001
    """Let a link choose that became free, was stopped or continues, even if no transfer asks for it now."""
    if frees:
        state.armed[link] = False
    else:
        set_link_stopped(state, link, stops, state.cursor[NOW])
    if state.asked[link] == NONE:
        state.asked[link] = FREED
        touch_link(state, link)


KERNEL = CompiledKernel(play)
