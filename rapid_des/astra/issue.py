"""The order in which a rank issues its nodes."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.chakra.trace import NodeTable


@dataclass(frozen=True)
class IssueOrder:
    """In which order a rank prefers its nodes, and in which it would issue them if all took equal time."""

    place: Int64s
    """Of each node by ascending id."""
    nodes: Int64s
    """Ascending id among the nodes whose dependencies are done: this order numbers messages that nothing else
    tells apart, and gives collectives their queues."""


def issue_order(nodes: NodeTable) -> IssueOrder:
    """Return the orders of a node table."""
    count = len(nodes)
    ascending = np.argsort(nodes.ids, kind="stable").astype(np.int64)
    by_id = np.empty(count, np.int64)
    by_id[ascending] = np.arange(count)
    waiting = np.repeat(np.arange(count), np.diff(nodes.dependency_starts))
    if (by_id[nodes.dependencies] < by_id[waiting]).all():
        return IssueOrder(by_id, ascending)
    return IssueOrder(by_id, _earliest_ids_first(nodes, by_id, ascending, waiting))


def _earliest_ids_first(nodes: NodeTable, by_id: Int64s, ascending: Int64s, waiting: Int64s) -> Int64s:
    count = len(nodes)
    order = np.argsort(nodes.dependencies, kind="stable")
    followers = np.split(waiting[order], np.cumsum(np.bincount(nodes.dependencies, minlength=count))[:-1])
    missing = np.diff(nodes.dependency_starts).tolist()
    places = by_id.tolist()
    free = [place for place, node in enumerate(ascending.tolist()) if missing[node] == 0]
    issued = []
    while free:
        node = int(ascending[heapq.heappop(free)])
        issued.append(node)
        for follower in followers[node].tolist():
            missing[follower] -= 1
            if missing[follower] == 0:
                heapq.heappush(free, places[follower])
    rest = [node for node in ascending.tolist() if missing[node]]
    return np.array(issued + rest, np.int64)
