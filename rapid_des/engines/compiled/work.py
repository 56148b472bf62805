"""Work items, and where the loop over them stands: names of the columns in `State` and `Pools`."""

from __future__ import annotations

from rapid_des.compiling import compilable
from rapid_des.engines.compiled.pools import Pools, State

NONE = -1
READY, START, END, FIRE, HOP, FREE, FLOW, CAPACITY, HAND, WAKE, LATE, PAUSE_LINK, STEP = range(13)
"""Work items: a visit is ready, is taken by its server, ends; a task or member fires; a transfer stands at a
node; a link is free; a flow joins (b = 1) or may end (0), or a transfer that a closing link may cut is due at
a node (2); a link's rate changes (fluid mode); a message may hand over one part more (b = 1), or its first
link is done with the last one (R9), or a notice comes to a route's sender (b = 2, R14); what closed links
stopped may set off again (R8); a message that comes late arrives (R11: instance, task); a link is stopped
(b = 1) or let go (R13); a rank's part in a collective that is replanned comes to a step."""
COMPUTE, HOLD, MEMBER, JOIN = 0, 1, 2, 3
HOPS, STATUS = 0, 1
DONE, DISAGREES, MORE_EVENTS, MORE_STACK, MORE_INSTANCES, MORE_TRANSFERS, MORE_TRAIL = 0, 1, 2, 3, 4, 5, 6
LINKS_APART = 7
"""Links that flows share, with queue pairs, or that close choose next (see `fluid_kernel`, `paired_kernel`,
`closing_kernel`)."""
PAUSED = 8
"""Enough events for one call (`cursor[PAUSE]`): Python looks for signals, and calls again."""
STOPPED_WAKES, DETOUR, NO_SCHEDULE, MORE_PARTS = 9, 10, 11, 12
"""Closed links: what they stopped may set off again; a message needs a route around them; a rank comes to a
collective and it is not known what it does there under a plan, or there is no room to note that it is there.
"""
SENT, RECEIVED, TIES, WORKED = 7, 8, 9, 10
"""In `State.totals`; WORKED are visits that ended and tasks that fired, see `expected_hops`."""
WANTED = 2
"""In `State.totals`: how much more room is needed."""
PHASE, DEPTH, LINKS, SERVER, ASKING, NOW, JOINING, ENDING, PAUSE = 0, 1, 2, 3, 4, 5, 6, 7, 8
STOPPED, WAKING, PLAN = 9, 10, 11
"""In `State.cursor`: where the loop stands, so that it can go on after a call that ended for want of room.

JOINING,
ENDING and STOPPED begin lists of transfers; PAUSE is the count of events made at which a call ends, between
instants; WAKING is 1 if stopped transfers may set off again before links choose, 2 if they have; PLAN is that
of collectives that begin now, 0 for none."""
NEXT_INSTANT, WORK, SERVERS_CHOOSE, LINKS_CHOOSE = 0, 1, 2, 4
"""Phases; SERVERS_CHOOSE and the one after it let streams and slots choose."""
NOTICE = 2
SPARE = 4
"""Events and work items that one item makes beyond those of its edges, at most."""
FREED = -2
"""In `State.asked`: a link that nobody asked, but that became free."""
(
    FIFO,
    RECORDING,
    FLUID,
    TAILS,
    PAIRED,
    CLOSING,
    CONTENDS,
    PARTS_SPRAY,
    MESSAGES_SPRAY,
    DELAYED,
    PARTS_CHOOSE,
    MESSAGES_CHOOSE,
    REPLANNING,
) = range(13)
"""In `State.flags`."""


@compilable
def add_work(state: State, pools: Pools, kind: int, a: int, b: int) -> None:
    """Put a work item on the stack; the caller has made sure that there is room."""
    depth = state.cursor[DEPTH]
    pools.stack_kind[depth], pools.stack_a[depth], pools.stack_b[depth] = kind, a, b
    state.cursor[DEPTH] = depth + 1
