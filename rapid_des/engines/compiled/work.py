"""Names of the numbers that steer the kernel's loop: work items, statuses, and columns of `State` arrays."""

from __future__ import annotations

from rapid_des.compiling import compilable
from rapid_des.engines.compiled.pools import Pools, State

NONE = -1
(
    READY,
    START,
    END,
    FIRE,
    AT_NODE,
    LINK_FREE,
    FLOW,
    LINK_RATE,
    QUEUE_PAIR,
    RESTART,
    LATE_MESSAGE,
    PAUSE_LINK,
    PLAN_STEP,
) = range(13)
"""Kinds of events and work items, each with two numbers a and b:

- READY, START, END (rank, visit): a visit is ready, is taken by its server, ends.
- FIRE (instance, target): a task or a member has all that it waits for.
- AT_NODE (transfer, -): a transfer is at a node, and asks for its next link or has arrived.
- LINK_FREE (link, -): a link is free while transfers wait for it.
- FLOW (transfer, FLOW_MAY_END, FLOW_JOINS or TRANSFER_DUE): see there.
- LINK_RATE (link, -): a link's rate changes (fluid mode).
- QUEUE_PAIR (message or route, FIRST_LINK_DONE, ACKNOWLEDGED or NOTICE): see there.
- RESTART (-, -): what closed links stopped may be sent again (R8).
- LATE_MESSAGE (instance, task): a delayed message arrives (R11).
- PAUSE_LINK (link, 1 or 0): a node stops a link, or lets it continue (R13).
- PLAN_STEP (part, step): a rank reaches a step of a replanned collective (R8).

Kinds up to END concern visits (see `room_checks`).
"""
FIRST_LINK_DONE, ACKNOWLEDGED, NOTICE = 0, 1, 2
"""What happens to a queue pair: its first link has finished its newest part, or its window moves by a part
(R9); or a notice of marks reaches the sender of a route (R14)."""
FLOW_MAY_END, FLOW_JOINS, TRANSFER_DUE = 0, 1, 2
"""What happens to a transfer: its flow ends if its rate has not changed; its flow joins the links; it is at
the next node if no closing link has cut it."""
COMPUTE, HOLD, MEMBER, JOIN = 0, 1, 2, 3
"""The values of `VisitKind`."""
HOPS, STATUS = 0, 1
"""Columns of `State.totals`: the hops served, and why the loop returned."""
DONE, DISAGREES, MORE_EVENTS, MORE_STACK, MORE_INSTANCES, MORE_TRANSFERS, MORE_TRAIL = 0, 1, 2, 3, 4, 5, 6
"""Statuses: nothing is left to do before the limit, members disagree about a collective, a pool is full."""
LINKS_OF_CALLER = 7
"""Status: the links choose next, and the caller of `play` does that (`fluid_kernel`, `paired_kernel`,
`closure_kernel`)."""
LIMIT_REACHED = 8
"""Status: this call has made `cursor[EVENT_LIMIT]` events. Python looks for signals, and calls again."""
RESTART_STOPPED, DETOUR, NO_SCHEDULE, MORE_RANK_PARTS = 9, 10, 11, 12
"""Statuses where links close: stopped transfers may be sent again; a message needs a route around closed
links; the schedule of a rank in a replanned collective is not known; the pool of rank parts is full."""
SENT, RECEIVED, TIES, WORKED = 7, 8, 9, 10
"""Columns of `State.totals`: bytes sent and received, ties that ranks decided (R3), and the number of visits
ended plus tasks fired (see `expected_hops`)."""
WANTED = 2
"""Column of `State.totals`: the number of rows that a full pool lacks, or what else a status is about."""
PHASE, DEPTH, LINKS, SERVER, ASKING, NOW, JOINING, ENDING, EVENT_LIMIT = 0, 1, 2, 3, 4, 5, 6, 7, 8
STOPPED, RESTARTING, PLAN = 9, 10, 11
"""Columns of `State.cursor`, from which the loop continues after a call that ended because a pool was full:

- PHASE: the phase of the instant. NOW: its time in picoseconds.
- DEPTH: the number of work items on the stack.
- LINKS, ASKING: at this instant, the numbers of touched links, and of transfers that ask for one or may end.
- SERVER: the index of the touched server that chooses next.
- JOINING, ENDING, STOPPED: the first transfer of a list of those that ask or join, may end, were stopped.
- EVENT_LIMIT: the number of events ever made at which a call returns, between two instants.
- RESTARTING: 1 if stopped transfers may be sent again before links choose, 2 if they have been.
- PLAN: the plan of collectives that start now, 0 for none.
"""
NEXT_INSTANT, WORK, SERVERS_CHOOSE, LINKS_CHOOSE = 0, 1, 2, 4
"""Phases of an instant. In SERVERS_CHOOSE streams choose, in the phase after it slots."""
SPARE = 4
"""The largest number of events and work items that one item makes besides those of its edges."""
FREED = -2
"""In `State.asked`: no transfer asks for the link, but the link became free."""
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
"""Columns of `State.flags`; they say what a program needs:

- FIFO: all transfers have one priority. RECORDING: hops go into the trail.
- FLUID: flows share links (R7). PAIRED: messages have queue pairs (R9). CLOSING: links close (R8).
- TAILS: last bytes are followed. CONTENDS: visits slow each other (R6).
- PARTS_SPRAY, MESSAGES_SPRAY: parts, or whole messages, take several routes (R10).
- PARTS_CHOOSE, MESSAGES_CHOOSE: parts, or whole messages, choose their routes by load (R12).
- DELAYED: messages arrive late (R11). REPLANNING: collectives are replanned (R8).
"""


@compilable
def add_work(state: State, pools: Pools, kind: int, a: int, b: int) -> None:
    """Put a work item on the stack; the caller has made sure that there is room."""
    depth = state.cursor[DEPTH]
    pools.stack_kind[depth], pools.stack_a[depth], pools.stack_b[depth] = kind, a, b
    state.cursor[DEPTH] = depth + 1
