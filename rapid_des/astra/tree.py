r"""The double binary tree: an all-reduce up a binary tree and down again, whole chunks over every edge.

Members stand in order in the tree; its root has one child, whose subtree is complete:

        3                0           the tree rooted at the highest of four members,
       /                  \          and the one rooted at the lowest
      1                  2
     / \                  / \
    0   2                1   3
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rapid_des.astra.phases import Phase, nonzero
from rapid_des.program.program import Template
from rapid_des.program.services import Sizes


@dataclass
class _Edges:
    """Edges of one origin kind, in the order that they are named."""

    origin: list[int] = field(default_factory=list)
    target: list[int] = field(default_factory=list)
    lag: list[int] = field(default_factory=list)
    at_injection: list[bool] = field(default_factory=list)

    def add(self, origin: int, target: int, lag: int, *, at_injection: bool = False) -> None:
        self.origin.append(origin)
        self.target.append(target)
        self.lag.append(lag)
        self.at_injection.append(at_injection)


def parents(members: int, *, highest_root: bool) -> list[int]:
    """Return the parent of each member; the root is its own.

    >>> parents(4, highest_root=True)
    [1, 3, 1, 3]
    """
    root, first = (members - 1, 0) if highest_root else (0, 1)
    parent = [root] * members

    def place(low: int, high: int, above: int) -> None:
        if low <= high:
            middle = (low + high) // 2
            parent[middle] = above
            place(low, middle - 1, middle)
            place(middle + 1, high, middle)

    place(first, first + members - 2, root)
    return parent


def double_binary_tree(phase: Phase, rows: Sizes) -> Template:
    """Return the template: first each member's message to its parent, then the result back to it.

    The root has neither, so that the tasks of member m are number m - (m > root) of their kind.
    """
    n = phase.members
    parent = parents(n, highest_root=phase.tree == 0)
    root = next(member for member in range(n) if parent[member] == member)
    edges, arrivals = _edges(phase, parent, root)
    tasks = 2 * (n - 1)
    need = np.bincount([*edges.target, *arrivals.target], minlength=tasks + n).astype(np.int32)
    child = np.delete(np.arange(n, dtype=np.int32), root)
    above = np.array(parent, np.int32)[child]
    sender = np.concatenate((child, above))
    order, first = np.argsort(edges.origin, kind="stable"), np.argsort(arrivals.origin, kind="stable")
    return Template(
        members=n,
        pair=np.arange(tasks, dtype=np.int32),
        pair_source=sender,
        pair_destination=np.concatenate((above, child)),
        source=sender,
        size=np.full(tasks, rows.row(nonzero(phase.size, phase)), np.int32),
        need=need[:tasks],
        edge_starts=_starts(edges.origin, tasks),
        edge_target=np.array(edges.target, np.int32)[order],
        edge_lag=np.array(edges.lag, np.int64)[order],
        edge_at_injection=np.array(edges.at_injection, np.bool_)[order],
        arrival_starts=_starts(arrivals.origin, n),
        arrival_target=np.array(arrivals.target, np.int32)[first],
        arrival_lag=np.array(arrivals.lag, np.int64)[first],
        member_need=need[tasks:],
        name=phase.title,
    )


def _starts(origin: list[int], rows: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.concatenate(([0], np.cumsum(np.bincount(origin, minlength=rows)))).astype(np.int64)


def _edges(phase: Phase, parent: list[int], root: int) -> tuple[_Edges, _Edges]:
    """Return the edges among tasks and members, and those from arrivals."""
    n, plain = phase.members, phase.endpoint.delay
    reduced = plain + phase.endpoint.reduction(phase.size)
    up = [member - (member > root) for member in range(n)]
    down = [n - 1 + number for number in up]
    edges, arrivals = _Edges(), _Edges()
    for member in range(n):
        below = [child for child in range(n) if parent[child] == member != child]
        done = 2 * (n - 1) + member
        if not below:
            arrivals.add(member, up[member], plain)
            edges.add(up[member], done, plain, at_injection=True)
            edges.add(down[member], done, plain)
            continue
        for task in [down[child] for child in below] if member == root else [up[member]]:
            arrivals.add(member, task, reduced)
            for child in below:
                edges.add(up[child], task, reduced)
        for child in below if member != root else ():
            edges.add(up[member], down[child], reduced, at_injection=True)
            edges.add(down[member], down[child], reduced)
        edges.add(down[below[0]], done, 0, at_injection=True)
    return edges, arrivals
