"""When two groups of GPUs are the same to a simulation: equal routes up to the names of the links."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.machine import Machine
from rapid_des.network.fabric import Fabric
from rapid_des.program.plans import tree_pairs

_LARGE = 64
"""Members above which not all pairs of a group are compared."""


def all_pairs(groups: Sequence[Sequence[int]]) -> Int64s:
    """Return every ordered pair of different members of each group, as rows, group by group."""
    member = np.array(groups, np.int64).reshape(len(groups), -1)
    source, destination = np.nonzero(~np.eye(member.shape[1], dtype=bool))
    return np.stack((member[:, source], member[:, destination]), 2).reshape(-1, 2)


def telling_pairs(group: Sequence[int]) -> Int64s:
    """Return the pairs by whose routes a large group is told from others: to neighbours, and from the first.

    All pairs are quadratic; groups that agree in these and not in others do not occur in regular fabrics.
    """
    member = np.array(group, np.int64)
    star = np.stack((np.broadcast_to(member[:1], len(member) - 1), member[1:]), 1)
    return np.concatenate((np.stack((member, np.roll(member, -1)), 1), star))


def signatures(machine: Machine, groups: Sequence[Sequence[int]]) -> list[bytes]:
    """Return a key for each group of GPUs, all of one size; equal keys give equal results.

    Two groups have one key if a renaming of links maps the routes between their members, in member order,
    onto each other with equal bandwidth and latency; likewise those in the trees of switches over them, where
    the machine uses such.
    """
    if len(groups[0]) > _LARGE:
        pairs = np.stack([telling_pairs(group) for group in groups])
    else:
        pairs = all_pairs(groups).reshape(len(groups), -1, 2)
    if not machine.in_switches:
        return route_keys(machine, [(b"", own) for own in pairs])
    known = [machine.switch_trees.over(tuple(group)) for group in groups]
    marks = [b"" if tree is None else repr(tree.parents).encode() for tree in known]
    branches = [
        np.concatenate((own, tree_pairs(machine, [group]))) for own, group in zip(pairs, groups, strict=True)
    ]
    return route_keys(machine, list(zip(marks, branches, strict=True)))


def route_keys(machine: Machine, groups: Sequence[tuple[bytes, Int64s]]) -> list[bytes]:
    """Return a key of the routes of each (what tells it apart, pairs of nodes), but for names of links."""
    routes = machine.router.routes(np.concatenate([pairs for _, pairs in groups]))
    ends = np.cumsum([0, *(len(pairs) for _, pairs in groups)])
    fabric, known, keys = machine.fabric, dict[tuple[bytes, ...], bytes](), []
    for (mark, _), first, last in zip(groups, ends, ends[1:], strict=False):
        starts = routes.starts[first : last + 1]
        links = np.asarray(routes.links[starts[0] : starts[-1]], np.int64)
        # Most groups are copies of one another, their links as many numbers further on.
        columns = np.diff(starts), links - links[:1], fabric.bandwidth[links], fabric.latency[links]
        likeness = tuple(column.tobytes() for column in columns)
        if likeness not in known:
            known[likeness] = _canonical(fabric, links, np.diff(starts))
        keys.append(mark + known[likeness])
    return keys


def _canonical(fabric: Fabric, links: Int64s, lengths: Int64s) -> bytes:
    """Return the routes with links numbered by first use, and what each such link is like."""
    _, first_use, names = np.unique(links, return_index=True, return_inverse=True)
    number = np.empty(len(first_use), np.int64)
    number[np.argsort(first_use, kind="stable")] = np.arange(len(first_use))
    used = links[np.sort(first_use)]
    parts = (lengths, number[names], fabric.bandwidth[used], fabric.latency[used])
    return b"|".join(np.ascontiguousarray(part, np.int64).tobytes() for part in parts)
