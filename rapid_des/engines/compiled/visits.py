"""R1 to R3 in the kernel: visits of a rank wait, are served, and make others ready."""

from __future__ import annotations

from rapid_des.compiling import compilable
from rapid_des.engines.compiled.calendar import push
from rapid_des.engines.compiled.flat import Flat
from rapid_des.engines.compiled.instances import count_member, join, member_arrives
from rapid_des.engines.compiled.pools import Pools, State
from rapid_des.engines.compiled.replanned import begin_part, follows_plan
from rapid_des.engines.compiled.steps import (
    begin_work,
    changes_pace,
    dequeue,
    enqueue,
    number_of,
    resume,
    sort_ascending,
    touch,
    visit_end,
)
from rapid_des.engines.compiled.work import (
    COMPUTE,
    CONTENDS,
    DONE,
    END,
    HOLD,
    JOIN,
    NONE,
    NOW,
    PHASE,
    READY,
    SERVER,
    SERVERS_CHOOSE,
    START,
    STATUS,
    WORKED,
    add_work,
)

_LEVELS = 2


@compilable
def server_takes(flat: Flat, state: State, pools: Pools) -> bool:
    """Let the next touched server choose; return whether it took a visit, which is then a work item.

    Servers choose in the order of their numbers, streams before slots. A server that took a visit chooses
    again, until it is full or none waits. After the last server of a level the next phase begins.
    """
    ranks, cursor, level = flat.ranks, state.cursor, state.cursor[PHASE] - SERVERS_CHOOSE
    if level < 0 or cursor[SERVER] == state.touched_count[level]:
        if level >= 0:
            state.touched_count[level] = 0
        cursor[PHASE] += 1
        cursor[SERVER] = 0
        if level + 1 < _LEVELS:  # servers were touched in any order, but choose by number (R3)
            sort_ascending(state.touched_servers[level + 1], state.touched_count[level + 1])
        return False
    server = state.touched_servers[level, cursor[SERVER]]
    if state.waiting[server] == 0 or state.serving[server] >= ranks.capacity[server]:
        state.marked[server] = False
        cursor[SERVER] += 1
        return False
    state.serving[server] += 1
    rank = ranks.of_server[server]
    add_work(state, pools, START, rank, dequeue(flat.visits, ranks, state, rank, server))
    return True


@compilable
def visit_is_ready(flat: Flat, state: State, pools: Pools, rank: int, visit: int) -> None:
    """Let a visit wait for its server; a visit without a server starts."""
    ranks, server = flat.ranks, flat.visits.server[flat.ranks.program[rank] + visit]
    if server == NONE:
        start_visit(flat, state, pools, rank, visit)
        return
    enqueue(flat.visits, ranks, state, rank, visit)
    server += ranks.server[rank]
    if state.serving[server] < ranks.capacity[server]:
        touch(state, ranks.level[server], server)


@compilable
def take_visit(flat: Flat, state: State, pools: Pools, rank: int, visit: int) -> None:
    """Start a visit that its server takes, and slow the others beside it (R6)."""
    added = 0
    if state.flags[CONTENDS]:
        added = flat.contention.weight[flat.ranks.program[rank] + visit]
        state.present[rank] += added
    start_visit(flat, state, pools, rank, visit)
    # NOTE: visits that follow it are not in service yet, so the order of these two steps does not matter.
    if added != 0:
        _others_change_pace(flat, state, pools, rank)


@compilable
def start_visit(flat: Flat, state: State, pools: Pools, rank: int, visit: int) -> None:
    """Start a visit, and schedule its end if that is known."""
    visits, now, row = flat.visits, state.cursor[NOW], flat.ranks.program[rank] + visit
    kind, calendar = visits.kind[row], pools.calendar
    state.start[flat.ranks.flat[rank] + visit] = now
    if kind == COMPUTE:
        slowed = state.flags[CONTENDS] and flat.contention.first[row] != NONE
        end = begin_work(flat, state, rank, row, now) if slowed else visit_end(flat, rank, row, now)
        push(calendar, end, END, rank, visit)
    elif kind == JOIN and visits.work[row] > 0:
        push(calendar, now + visits.work[row], END, rank, visit)
    elif kind == JOIN:
        add_work(state, pools, END, rank, visit)
    elif kind == HOLD:
        number_of(flat, state, rank, row, flat.ranks.flat[rank] + visit)
        if state.finish[flat.ranks.flat[rank] + visits.release[row]] != NONE:
            # The visit that releases it has ended, but no visit is shorter than a tick.
            push(calendar, now + 1, END, rank, visit)
    else:
        _arrive_at_collective(flat, state, pools, rank, visit)
    if state.totals[STATUS] == DONE:  # not if members disagree about the collective
        _release_followers(flat, state, pools, rank, row, at_start=True)


@compilable
def _arrive_at_collective(flat: Flat, state: State, pools: Pools, rank: int, visit: int) -> None:
    """Let a member arrive at its collective: at the instance of its number, or as a plan says (R8)."""
    visits, ranks, row = flat.visits, flat.ranks, flat.ranks.program[rank] + visit
    planned = follows_plan(flat, state, rank, visit)
    if visits.parent[row] == NONE:
        number = number_of(flat, state, rank, row, ranks.flat[rank] + visit)
    else:
        number = state.number[ranks.flat[rank] + visits.parent[row]]
    if planned:
        begin_part(flat, state, pools, rank, visit)
        return
    slot = ranks.slot[rank] + visits.slot[row]
    key = ranks.slot_group[slot], number, visits.sub[row]
    instance = join(flat, state, pools, visits.template[row], key, (NONE, NONE))
    if instance == NONE:
        return
    member = ranks.slot_member[slot]
    entry = pools.instances.member[instance] + member
    pools.member_rank[entry], pools.member_visit[entry] = rank, visit
    count_member(flat, state, pools, instance, True)
    member_arrives(flat, state, pools, instance, member)


@compilable
def end_visit(flat: Flat, state: State, pools: Pools, rank: int, visit: int) -> None:
    """End a visit: its server may take another one, and the HOLD that it releases ends."""
    visits, now, row = flat.visits, state.cursor[NOW], flat.ranks.program[rank] + visit
    server, added = visits.server[row], 0
    if state.flags[CONTENDS] and server != NONE:
        if flat.contention.first[row] != NONE:
            worker = flat.ranks.server[rank] + server
            if state.working[worker] != visit or state.until[worker] != now:
                return  # its share has changed since this end was scheduled
            state.working[worker] = NONE
            state.computing[rank] -= 1
        added = flat.contention.weight[row]
        state.present[rank] -= added
    state.finish[flat.ranks.flat[rank] + visit] = now
    state.totals[WORKED] += 1
    if server != NONE:
        _free_server(flat, state, flat.ranks.server[rank] + server)
    if visits.holder[row] != NONE:
        _end_hold(flat, state, pools, rank, visits.holder[row])
    if added != 0:
        _others_change_pace(flat, state, pools, rank)
    _release_followers(flat, state, pools, rank, row, at_start=False)


@compilable
def _free_server(flat: Flat, state: State, server: int) -> None:
    """Free a place of a server, which chooses at the end of this instant if visits wait."""
    state.serving[server] -= 1
    if state.waiting[server] > 0:
        touch(state, flat.ranks.level[server], server)


@compilable
def _end_hold(flat: Flat, state: State, pools: Pools, rank: int, holder: int) -> None:
    """End the HOLD that a visit releases, if it has started; no visit is shorter than a tick."""
    since = state.start[flat.ranks.flat[rank] + holder]
    if since == state.cursor[NOW]:
        push(pools.calendar, since + 1, END, rank, holder)
    elif since != NONE:
        add_work(state, pools, END, rank, holder)


@compilable
def _others_change_pace(flat: Flat, state: State, pools: Pools, rank: int) -> None:
    """Schedule new ends of a rank's other COMPUTE visits whose share changes now (R6)."""
    if state.computing[rank] == 0:
        return
    now = state.cursor[NOW]
    for worker in range(flat.ranks.server[rank], flat.ranks.server[rank + 1]):
        if changes_pace(flat, state, rank, worker, now):  # the event of the old end becomes void
            end = resume(flat, state, rank, worker, now)
            push(pools.calendar, end, END, rank, state.working[worker])


@compilable
def _release_followers(flat: Flat, state: State, pools: Pools, rank: int, row: int, at_start: bool) -> None:  # noqa: FBT001, PLR0913
    """Count down the visits that wait for a visit's start, or for its end (R1)."""
    visits, now = flat.visits, state.cursor[NOW]
    for edge in range(visits.edge_starts[row], visits.edge_starts[row + 1]):
        if visits.edge_at_start[edge] != at_start:
            continue
        target = visits.edge_target[edge]
        record = flat.ranks.flat[rank] + target
        if state.pending[record] == 0:
            continue  # more predecessors have finished than it needs
        state.pending[record] -= 1
        moment = max(state.ready[record], now + visits.edge_lag[edge])
        state.ready[record] = moment
        if state.pending[record] > 0:
            continue
        if moment == now:
            add_work(state, pools, READY, rank, target)
        else:
            push(pools.calendar, moment, READY, rank, target)
