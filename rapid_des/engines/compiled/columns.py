"""The columns of visits, ranks and templates, as the kernel reads them."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray

Array = NDArray[Any]


class Visits(NamedTuple):
    """The columns of all rank programs one after the other."""

    kind: Array
    server: Array
    work: Array
    priority: Array
    link_priority: Array
    release: Array
    holder: Array
    slot: Array
    parent: Array
    occurrence: Array
    sub: Array
    template: Array
    need: Array
    edge_starts: Array
    edge_target: Array
    edge_lag: Array
    edge_at_start: Array


class Ranks(NamedTuple):
    """Where each rank's visits, slots and servers begin, and what its slots and servers are.

    A slot is one communicator of a rank: a group, and which member of the group the rank is.
    """

    program: Array
    flat: Array
    slot: Array
    server: Array
    slot_group: Array
    slot_member: Array
    of_server: Array
    capacity: Array
    level: Array
    heap: Array
    """Where the waiting visits of each server are kept."""


class Tasks(NamedTuple):
    """The columns of all templates one after the other; what templates share stands here once.

    Templates that differ in sizes alone share all but `size`: hence `first_task` for the shared columns and
    `first_size` for that one. Members come behind the tasks of their template in the numbers of edges: target
    t is task t, or if t is not below `tasks`, member t - tasks.
    """

    members: Array
    tasks: Array
    first_task: Array
    first_size: Array
    first_member: Array
    pair: Array
    source: Array
    size: Array
    need: Array
    edge_starts: Array
    edge_target: Array
    edge_lag: Array
    edge_at_injection: Array
    arrival_starts: Array
    arrival_target: Array
    arrival_lag: Array
    member_need: Array
    ahead: Array
