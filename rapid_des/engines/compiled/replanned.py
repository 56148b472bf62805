"""R8 in the kernel: the steps of a rank in a replanned collective."""

from __future__ import annotations

from rapid_des.compiling import compilable
from rapid_des.engines.compiled.calendar import push
from rapid_des.engines.compiled.columns import AS_LOWERED
from rapid_des.engines.compiled.flat import Flat
from rapid_des.engines.compiled.instances import count_member, join, member_arrives
from rapid_des.engines.compiled.pools import RANK_PARTS, Pools, State
from rapid_des.engines.compiled.work import (
    DISAGREES,
    END,
    NONE,
    NOW,
    PLAN,
    PLAN_STEP,
    REPLANNING,
    STATUS,
    add_work,
)


@compilable
def plan_of(flat: Flat, state: State, rank: int, visit: int) -> tuple[int, int, int, int]:
    """Return (caller, group, number, call) of a member's visit; the first one fixes the collective's plan.

    The caller is the visit that counts the instance number: the HOLD of the member, or the member itself.
    """
    visits, ranks = flat.visits, flat.ranks
    row = ranks.program[rank] + visit
    caller = visit if visits.parent[row] == NONE else visits.parent[row]
    slot = ranks.slot[rank] + visits.slot[ranks.program[rank] + caller]
    number = visits.occurrence[row]
    # The number may be bound already, by the HOLD or by an earlier member of the same one.
    if caller != visit or state.number[ranks.flat[rank] + caller] != NONE:
        number = state.number[ranks.flat[rank] + caller]
    elif number == NONE:
        number = state.counter[slot]
    group = ranks.slot_group[slot]
    call = flat.replans.first_call[group] + number
    if state.call_plan[call] == 0:  # every later member follows the plan of the first, whenever it arrives
        state.call_plan[call] = max(AS_LOWERED, state.cursor[PLAN])
        state.call_template[call] = visits.template[row]
    return caller, group, number, call


@compilable
def follows_plan(flat: Flat, state: State, rank: int, visit: int) -> bool:
    """Return whether a member's collective follows another plan than the program's."""
    if (
        not state.flags[REPLANNING]
        or flat.replans.first_member_visit[flat.ranks.program[rank] + visit] == NONE
    ):
        return False
    _, _, _, call = plan_of(flat, state, rank, visit)
    return state.call_plan[call] != AS_LOWERED


@compilable
def begin_part(flat: Flat, state: State, pools: Pools, rank: int, visit: int) -> None:
    """Let a member's visit represent its rank's part in a collective; the first one starts the part."""
    caller, group, number, call = plan_of(flat, state, rank, visit)
    part = state.rank_part[flat.ranks.flat[rank] + caller]
    if part != NONE:
        _join_part(flat, state, pools, part, visit)
        return
    template = flat.visits.template[flat.ranks.program[rank] + visit]
    if state.call_template[call] != template:
        totals = state.totals
        totals[STATUS], totals[2], totals[3], totals[4] = DISAGREES, group, number, 0
        totals[5], totals[6] = state.call_template[call], template
        return
    # From here on all chunks run side by side, each as a chain of steps.
    record, parts, replans = flat.ranks.flat[rank] + visit, pools.rank_parts, flat.replans
    schedule = state.schedule[record]
    first, last = replans.schedules[schedule], replans.schedules[schedule + 1]
    part = pools.counts[RANK_PARTS]
    pools.counts[RANK_PARTS] += 1
    parts.rank[part], parts.group[part], parts.number[part] = rank, group, number
    parts.visit[part] = replans.first_member_visit[flat.ranks.program[rank] + visit]
    parts.arrived[part], parts.visits[part], parts.left[part] = visit, 1, last - first
    state.rank_part[flat.ranks.flat[rank] + caller], state.next_in_part[record] = part, NONE
    for place in range(first, last):
        add_work(state, pools, PLAN_STEP, part, replans.first[place])


@compilable
def _join_part(flat: Flat, state: State, pools: Pools, part: int, visit: int) -> None:
    """Add a visit that ends with a rank's part; if the part is done, the visit ends at once."""
    parts, rank = pools.rank_parts, pools.rank_parts.rank[part]
    record = flat.ranks.flat[rank] + visit
    state.next_in_part[record] = parts.arrived[part]
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
    """Let a rank arrive at the instance of its next step."""
    replans, parts = flat.replans, pools.rank_parts
    key = parts.group[part], parts.number[part], replans.sub[step]
    use = replans.use[step], replans.chunk[step]
    instance = join(flat, state, pools, replans.template[step], key, use)
    if instance == NONE:
        return
    entry = pools.instances.member[instance] + replans.member[step]
    pools.member_part[entry], pools.member_step[entry] = part, step
    pools.member_rank[entry], pools.member_visit[entry] = parts.rank[part], parts.visit[part]
    count_member(flat, state, pools, instance, meets=replans.meets[step])
    member_arrives(flat, state, pools, instance, replans.member[step])


@compilable
def end_step(flat: Flat, state: State, pools: Pools, entry: int) -> None:
    """Continue a rank's part with the next step; after the last step of all chunks its visits end."""
    parts, part = pools.rank_parts, pools.member_part[entry]
    rank, step = pools.member_rank[entry], flat.replans.next[pools.member_step[entry]]
    if step != NONE:
        add_work(state, pools, PLAN_STEP, part, step)
        return
    parts.left[part] -= 1
    # After the last chunk all visits that represent the part end, the one that arrived last first.
    visit = NONE if parts.left[part] > 0 else parts.arrived[part]
    while visit != NONE:
        following = state.next_in_part[flat.ranks.flat[rank] + visit]
        state.met[flat.ranks.flat[rank] + visit] = state.met[flat.ranks.flat[rank] + parts.visit[part]]
        end_member(flat, state, pools, rank, visit)
        visit = following


@compilable
def end_member(flat: Flat, state: State, pools: Pools, rank: int, visit: int) -> None:
    """End a member's visit; a visit on a server takes at least a tick."""
    served = flat.visits.server[flat.ranks.program[rank] + visit] != NONE
    if served and state.start[flat.ranks.flat[rank] + visit] == state.cursor[NOW]:
        push(pools.calendar, state.cursor[NOW] + 1, END, rank, visit)
    else:
        add_work(state, pools, END, rank, visit)
