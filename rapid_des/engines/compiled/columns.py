"""The columns of visits, ranks and templates, as the kernel reads them."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray

from rapid_des.compiling.kinds import BoolColumn, Int8Column, Int32Column, Int64Column

Array = NDArray[Any]


class Visits(NamedTuple):
    """The columns of all rank programs one after the other."""

    kind: Int8Column
    server: Int32Column
    work: Int64Column
    priority: Int64Column
    link_priority: Int64Column
    release: Int32Column
    holder: Int32Column
    slot: Int32Column
    parent: Int32Column
    occurrence: Int32Column
    sub: Int32Column
    template: Int32Column
    need: Int32Column
    edge_starts: Int64Column
    edge_target: Int32Column
    edge_lag: Int64Column
    edge_at_start: BoolColumn


class Ranks(NamedTuple):
    """Where each rank's visits, slots and servers begin, and what its slots and servers are.

    A slot is one communicator of a rank: a group, and which member of the group the rank is.
    """

    program: Int64Column
    flat: Int64Column
    slot: Int64Column
    server: Int64Column
    slot_group: Int32Column
    slot_member: Int32Column
    of_server: Int32Column
    capacity: Int32Column
    level: Int8Column
    heap: Int64Column
    """Where the waiting visits of each server are kept."""


class Tasks(NamedTuple):
    """The columns of all templates one after the other; what templates share stands here once.

    Templates that differ in sizes alone share all but `size`: hence `first_task` for the shared columns and
    `first_size` for that one. Members come behind the tasks of their template in the numbers of edges: target
    t is task t, or if t is not below `tasks`, member t - tasks.
    """

    members: Int32Column
    tasks: Int32Column
    first_task: Int64Column
    first_size: Int64Column
    first_member: Int64Column
    pair: Int32Column
    source: Int32Column
    size: Int32Column
    need: Int32Column
    edge_starts: Int64Column
    edge_target: Int32Column
    edge_lag: Int64Column
    edge_at_injection: BoolColumn
    arrival_starts: Int64Column
    arrival_target: Int32Column
    arrival_lag: Int64Column
    member_need: Int32Column
    ahead: BoolColumn
