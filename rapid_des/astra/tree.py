r"""The double binary tree: an all-reduce up a binary tree and down again, whole chunks over every edge.

Members stand in order in the tree; its root has one child, whose subtree is complete:

        3                0           the tree rooted at the highest of four members,
       /                  \          and the one rooted at the lowest
      1                  2
     / \                  / \
    0   2                1   3
"""

from __future__ import annotations

import numpy as np

from rapid_des.astra.phases import CollectivePhase, nonzero
from rapid_des.program.builders import Edges, edges, joined, make_template
from rapid_des.program.program import Template
from rapid_des.program.services import Sizes


def parents(members: int, *, highest_root: bool) -> list[int]:
    """Return the parent of each member; the root is its own.

    >>> parents(4, highest_root=True)
    [1, 3, 1, 3]
    """
    root, first = (members - 1, 0) if highest_root else (0, 1)
    parent = [root] * members

    def hang(low: int, high: int, under: int) -> None:
        if low <= high:
            middle = (low + high) // 2
            parent[middle] = under
            hang(low, middle - 1, middle)
            hang(middle + 1, high, middle)

    hang(first, first + members - 2, root)
    return parent


def double_binary_tree(phase: CollectivePhase, rows: Sizes) -> Template:
    """Return the template: first each member's message to its parent, then the result back to it.

    The root has neither, so that the tasks of member m are number m - (m > root) of their kind.
    """
    n = phase.members
    parent = parents(n, highest_root=phase.tree == 0)
    root = next(member for member in range(n) if parent[member] == member)
    child = np.delete(np.arange(n), root)
    sender = np.concatenate((child, np.array(parent)[child]))
    receiver = np.concatenate((sender[n - 1 :], child))
    from_tasks, arrivals = _edges(phase, parent, root)
    return make_template(
        n,
        (sender, np.full(len(sender), rows.row(nonzero(phase.size, phase)))),
        (np.arange(len(sender)), sender, receiver),
        edges=joined(from_tasks),
        arrivals=joined(arrivals),
        name=phase.title,
    )


def _edges(phase: CollectivePhase, parent: list[int], root: int) -> tuple[list[Edges], list[Edges]]:
    """Return the edges among tasks and to members done, and those from arrivals."""
    n, plain = phase.members, phase.endpoint.delay
    reduced = plain + phase.endpoint.reduction(phase.size)
    up = [member - (member > root) for member in range(n)]
    down = [n - 1 + number for number in up]
    children: list[list[int]] = [[] for _ in range(n)]
    for member in range(n):
        if member != root:
            children[parent[member]].append(member)
    from_tasks, arrivals = [], []
    for member, below in enumerate(children):
        done = 2 * (n - 1) + member
        ups, downs = [up[child] for child in below], [down[child] for child in below]
        if not below:
            arrivals.append(edges(member, up[member], plain))
            from_tasks += [edges(up[member], done, plain, at_start=True), edges(down[member], done, plain)]
            continue
        for task in downs if member == root else [up[member]]:
            arrivals.append(edges(member, task, reduced))
            from_tasks.append(edges(ups, task, reduced))
        if member != root:
            from_tasks += [
                edges(up[member], downs, reduced, at_start=True),
                edges(down[member], downs, reduced),
            ]
        from_tasks.append(edges(downs[0], done, at_start=True))
    return from_tasks, arrivals
