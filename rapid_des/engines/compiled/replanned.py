"""R8 in the kernel: a rank's part in a collective that follows another plan than the program's."""

from __future__ import annotations

from rapid_des.compiling import compilable
from rapid_des.engines.compiled.calendar import push
from rapid_des.engines.compiled.flat import Flat
from rapid_des.engines.compiled.instances import arrive, join, seat
from rapid_des.engines.compiled.plan_tables import AS_LOWERED
from rapid_des.engines.compiled.pools import PARTS, Pools, State
from rapid_des.engines.compiled.work import (
    DISAGREES,
    END,
    NONE,
    NOW,
    PLAN,
    REPLANNING,
    STATUS,
    STEP,
    add_work,
)


@compilable
def plan_of(flat: Flat, state: State, rank: int, visit: int) -> tuple[int, int, int, int]:
    """Return (caller, group, number, call) of a member's visit; the first to come fixes the call's plan."""
    visits, ranks = flat.visits, flat.ranks
    row = ranks.program[rank] + visit
    caller = visit if visits.parent[row] == NONE else visits.parent[row]
    slot = ranks.slot[rank] + visits.slot[ranks.program[rank] + caller]
    number = visits.occurrence[row]
    if caller != visit or state.number[ranks.flat[rank] + caller] != NONE:
        number = state.number[ranks.flat[rank] + caller]
    elif number == NONE:
        number = state.counter[slot]
    group = ranks.slot_group[slot]
    call = flat.replans.calls[group] + number
    if state.planned[call] == 0:
        state.planned[call] = max(AS_LOWERED, state.cursor[PLAN])
        state.called[call] = visits.template[row]
    return caller, group, number, call


@compilable
def follows_plan(flat: Flat, state: State, rank: int, visit: int) -> bool:
    """Tell whether a member's collective follows another plan than the program's."""
    if not state.flags[REPLANNING] or flat.replans.stands[flat.ranks.program[rank] + visit] == NONE:
        return False
    _, _, _, call = plan_of(flat, state, rank, visit)
    return state.planned[call] != AS_LOWERED


@compilable
def begin_part(flat: Flat, state: State, pools: Pools, rank: int, visit: int) -> None:
    """Have a member's visit stand for its rank's part in a collective; the first one begins that."""
    caller, group, number, call = plan_of(flat, state, rank, visit)
    part = state.part[flat.ranks.flat[rank] + caller]
    if part != NONE:
        _stand_beside(flat, state, pools, part, visit)
        return
    template = flat.visits.template[flat.ranks.program[rank] + visit]
    if state.called[call] != template:
        totals = state.totals
        totals[STATUS], totals[2], totals[3], totals[4] = DISAGREES, group, number, 0
        totals[5], totals[6] = state.called[call], template
        return
    record, parts, replans = flat.ranks.flat[rank] + visit, pools.parts, flat.replans
    schedule = state.schedule[record]
    first, last = replans.schedules[schedule], replans.schedules[schedule + 1]
    part = pools.counts[PARTS]
    pools.counts[PARTS] += 1
    parts.rank[part], parts.group[part], parts.number[part] = rank, group, number
    parts.visit[part] = replans.stands[flat.ranks.program[rank] + visit]
    parts.arrived[part], parts.visits[part], parts.left[part] = visit, 1, last - first
    state.part[flat.ranks.flat[rank] + caller], state.beside[record] = part, NONE
    for place in range(first, last):
        add_work(state, pools, STEP, part, replans.first[place])


@compilable
def _stand_beside(flat: Flat, state: State, pools: Pools, part: int, visit: int) -> None:
    """Have one more visit end with a part; if that is over, at once."""
    parts, rank = pools.parts, pools.parts.rank[part]
    record = flat.ranks.flat[rank] + visit
    state.beside[record] = parts.arrived[part]
    state.met[record] = state.met[flat.ranks.flat[rank] + parts.visit[part]]
    parts.arrived[part] = visit
    parts.visits[part] += 1
    if parts.left[part] > 0:
        return
    if flat.visits.server[flat.ranks.program[rank] + visit] != NONE:
        push(pools.calendar, state.cursor[NOW] + 1, END, rank, visit)
    else:
        add_work(state, pools, END, rank, visit)


@compilable
def begin_step(flat: Flat, state: State, pools: Pools, part: int, step: int) -> None:
    """Have a rank come to the instance of its next step."""
    replans, parts = flat.replans, pools.parts
    key = parts.group[part], parts.number[part], replans.sub[step]
    use = replans.use[step], replans.chunk[step]
    instance = join(flat, state, pools, replans.template[step], key, use)
    if instance == NONE:
        return
    entry = pools.instances.member[instance] + replans.member[step]
    pools.member_part[entry], pools.member_step[entry] = part, step
    pools.member_rank[entry], pools.member_visit[entry] = parts.rank[part], parts.visit[part]
    seat(flat, state, pools, instance, meets=replans.meets[step])
    arrive(flat, state, pools, instance, replans.member[step])


@compilable
def end_step(flat: Flat, state: State, pools: Pools, entry: int) -> None:
    """Have a member go on with its next step; after the last one of all chunks, its visits end."""
    parts, part = pools.parts, pools.member_part[entry]
    rank, step = pools.member_rank[entry], flat.replans.next[pools.member_step[entry]]
    if step != NONE:
        add_work(state, pools, STEP, part, step)
        return
    parts.left[part] -= 1
    visit = NONE if parts.left[part] > 0 else parts.arrived[part]
    while visit != NONE:
        following = state.beside[flat.ranks.flat[rank] + visit]
        state.met[flat.ranks.flat[rank] + visit] = state.met[flat.ranks.flat[rank] + parts.visit[part]]
        end_member(flat, state, pools, rank, visit)
        visit = following


@compilable
def end_member(flat: Flat, state: State, pools: Pools, rank: int, visit: int) -> None:
    """End a member's visit; none that takes a server is shorter than a tick."""
    served = flat.visits.server[flat.ranks.program[rank] + visit] != NONE
    if served and state.start[flat.ranks.flat[rank] + visit] == state.cursor[NOW]:
        push(pools.calendar, state.cursor[NOW] + 1, END, rank, visit)
    else:
        add_work(state, pools, END, rank, visit)
