"""The steps of R8 in the compiled engine where collectives are planned anew: who takes part in which plan."""

from __future__ import annotations

from rapid_des.compiling import compilable
from rapid_des.engines.compiled.flat import Flat
from rapid_des.engines.compiled.plan_tables import Parts
from rapid_des.engines.compiled.pools import State

NONE = -1
AS_LOWERED = 1
"""The plan of collectives that nothing asks to plan anew."""


@compilable
def caller_of(flat: Flat, rank: int, visit: int) -> int:
    """Return which of a rank's visits stands for the collective of a MEMBER: its HOLD, or itself."""
    parent = flat.visits.parent[visit]
    return int(visit - flat.ranks.program[rank] if parent == NONE else parent)


@compilable
def group_of(flat: Flat, rank: int, visit: int) -> int:
    """Return the group of the collective that a MEMBER has a part in."""
    caller = flat.ranks.program[rank] + caller_of(flat, rank, visit)
    return int(flat.ranks.slot_group[flat.ranks.slot[rank] + flat.visits.slot[caller]])


@compilable
def call_of(flat: Flat, state: State, rank: int, visit: int) -> int:
    """Return which collective a MEMBER has a part in; its number need not be bound yet (R5)."""
    number = flat.visits.occurrence[visit]
    if flat.visits.parent[visit] != NONE:
        number = state.number[flat.ranks.flat[rank] + flat.visits.parent[visit]]
    elif number == NONE:
        number = state.counter[flat.ranks.slot[rank] + flat.visits.slot[visit]]
    return int(flat.replans.calls[group_of(flat, rank, visit)] + number)


@compilable
def plan_of(state: State, call: int, template: int, plan: int) -> int:
    """Return the plan of a collective: who comes first fixes it, `plan` or, where that is 0, as lowered."""
    if state.planned[call] == 0:
        state.planned[call] = plan if plan > 0 else AS_LOWERED
        state.called[call] = template
    return int(state.planned[call])


@compilable
def begin_part(  # noqa: PLR0913 - flat arrays
    flat: Flat, state: State, parts: Parts, part: int, rank: int, visit: int, number: int
) -> int:
    """Have a rank take part in a collective; return the number of its part."""
    base, score = flat.ranks.flat[rank], state.score[flat.ranks.flat[rank] + visit - flat.ranks.program[rank]]
    parts.rank[part], parts.number[part] = rank, number
    parts.group[part] = group_of(flat, rank, visit)
    parts.visit[part] = flat.replans.stands[visit]
    parts.arrived[part] = visit - flat.ranks.program[rank]
    parts.visits[part] = 1
    parts.left[part] = flat.replans.scores[score + 1] - flat.replans.scores[score]
    state.part[base + caller_of(flat, rank, visit)] = part
    state.beside[base + parts.arrived[part]] = NONE
    return part


@compilable
def stands_for(state: State, parts: Parts, base: int, part: int, visit: int) -> None:
    """Have one more visit of a rank, whose records begin at `base`, stand for its part in a collective."""
    state.beside[base + visit] = parts.arrived[part]
    parts.arrived[part] = visit
    parts.visits[part] += 1
    state.met[base + visit] = state.met[base + parts.visit[part]]
