"""The columns of visits, ranks, templates and replanned collectives, as the kernel reads them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rapid_des.compiling.kinds import BoolColumn, Int8Column, Int32Column, Int64Column

Array = NDArray[Any]
AS_LOWERED = 1
"""The plan of collectives that run as the program says."""


class Replans(NamedTuple):
    """The steps of ranks in replanned collectives (R8); empty where none are replanned.

    A plan is a set of closed links that collectives are planned around; 0 is none, and `AS_LOWERED` is what
    the program says. A rank's schedule is its first step of each chunk in one collective under one plan.
    """

    first_member_visit: Int64Column
    """[row of `Visits`] the rank's first MEMBER of the same collective, which names its messages, or NONE."""
    first_call: Int64Column
    """[group] the row of its first collective in `State.call_plan`."""
    schedules: Int64Column
    """[schedule] its first row of `first`; one entry more holds the total."""
    first: Int64Column
    """[schedule, chunk] the first step of each chunk."""
    template: Int64Column
    """[step] its template."""
    use: Int64Column
    """[step] the row of `Network.pair_route` with the route of the template's first pair."""
    member: Int64Column
    """[step] the rank's member number in the template."""
    sub: Int64Column
    """[step] its number in the collective."""
    chunk: Int64Column
    """[step] the number of its chunk, which is part of its priority on links."""
    meets: BoolColumn
    """[step] whether it is the first of the collective, at which the members meet."""
    next: Int64Column
    """[step] the step of the same chunk that follows, or NONE."""


NO_REPLANS = Replans(*(np.zeros(0, np.bool_ if name == "meets" else np.int64) for name in Replans._fields))


class RankParts(NamedTuple):
    """What single ranks do in replanned collectives (R8): one row a rank and collective."""

    rank: Int32Column
    """[rank part] the rank that the part belongs to."""
    group: Int32Column
    """[rank part] the group of the collective."""
    number: Int32Column
    """[rank part] the instance number of the collective."""
    visit: Int32Column
    """[rank part] the first of the rank's visits that represent the collective."""
    arrived: Int32Column
    """[rank part] the visit that arrived last; the earlier ones are linked through `State.next_in_part`."""
    visits: Int32Column
    """[rank part] the number of visits that have arrived."""
    left: Int32Column
    """[rank part] the number of chunks that are not done."""


class Visits(NamedTuple):
    """The visits of all rank programs one after the other; one row a visit, as in `RankProgram`.

    Servers, slots and other visits have their number within the rank.
    """

    kind: Int8Column
    """[visit] its `VisitKind`."""
    server: Int32Column
    """[visit] its server in the rank, or NONE."""
    work: Int64Column
    """[visit] picoseconds of work at rate 1."""
    priority: Int64Column
    """[visit] its priority at its server; the smallest goes first."""
    link_priority: Int64Column
    """[visit] the priority of its transfers on links."""
    release: Int32Column
    """[visit] HOLD: the visit whose end releases it."""
    holder: Int32Column
    """[visit] the HOLD that its end releases, or NONE."""
    slot: Int32Column
    """[visit] HOLD and MEMBER: the slot of the rank that names the group; else NONE."""
    parent: Int32Column
    """[visit] MEMBER: the HOLD whose instance number it shares, or NONE."""
    occurrence: Int32Column
    """[visit] its instance number, or NONE: it is counted as the visit starts."""
    sub: Int32Column
    """[visit] the chunk and phase of the collective, as one number."""
    template: Int32Column
    """[visit] MEMBER: the template of the collective."""
    need: Int32Column
    """[visit] the number of incoming edges that must have passed."""
    edge_starts: Int64Column
    """[visit] its first row of the edge columns; the rows end where those of the next visit start."""
    edge_target: Int32Column
    """[edge] the visit of the same rank that waits."""
    edge_lag: Int64Column
    """[edge] picoseconds from the anchor."""
    edge_at_start: BoolColumn
    """[edge] whether the anchor is the visit's start; else it is its end."""


class Ranks(NamedTuple):
    """The first rows of each rank's visits, slots and servers, and what its slots and servers are.

    A slot is one communicator of a rank: a group, and the member of the group that the rank is.
    """

    program: Int64Column
    """[rank] the first row of its program in `Visits`."""
    flat: Int64Column
    """[rank] the first row of its visits in the records; one entry more holds the total."""
    slot: Int64Column
    """[rank] its first row of the slot columns."""
    server: Int64Column
    """[rank] its first row of the server columns; one entry more holds the total."""
    slot_group: Int32Column
    """[slot] the group that the slot names."""
    slot_member: Int32Column
    """[slot] the number of the rank in that group."""
    of_server: Int32Column
    """[server] its rank."""
    capacity: Int32Column
    """[server] the number of visits that it serves at a time."""
    level: Int8Column
    """[server] its level: 0 for a stream, 1 for a slot."""
    heap: Int64Column
    """[server] the first entry of its waiting visits in `State.heap`; one entry more holds the total."""


class Tasks(NamedTuple):
    """The tasks of all templates one after the other; columns that templates share are stored once.

    Templates that differ only in sizes share all columns but `size`: hence `first_task` for the shared
    columns and `first_size` for that one. In the numbers of edge targets members follow the tasks of their
    template: target t is task t, or member t - tasks where t is not below `tasks`.
    """

    members: Int32Column
    """[template] the number of its members."""
    tasks: Int32Column
    """[template] the number of its tasks."""
    first_task: Int64Column
    """[template] the row of its first task in the task columns."""
    first_size: Int64Column
    """[template] the row of its first task in `size`."""
    first_member: Int64Column
    """[template] the row of its first member in the member columns."""
    pair: Int32Column
    """[task] its pair of members in the template, or NONE: it crosses no link."""
    source: Int32Column
    """[task] the member that injects it."""
    size: Int32Column
    """[task] the size row of its message."""
    need: Int32Column
    """[task] the number of incoming edges that must have passed."""
    edge_starts: Int64Column
    """[task] its first row of the edge columns."""
    edge_target: Int32Column
    """[edge] the task or member that waits."""
    edge_lag: Int64Column
    """[edge] picoseconds from the anchor."""
    edge_at_injection: BoolColumn
    """[edge] whether the anchor is the task's injection; else it is its delivery."""
    arrival_starts: Int64Column
    """[member] its first row of the arrival columns."""
    arrival_target: Int32Column
    """[arrival] the task or member that waits for the member to come."""
    arrival_lag: Int64Column
    """[arrival] picoseconds from the member's arrival."""
    member_need: Int32Column
    """[member] the number of incoming edges that must have passed."""
    ahead: BoolColumn
    """[template] whether parts of its messages are handed over at the rate of their first link."""
