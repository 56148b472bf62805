"""Reduction and multicast inside switches: SHARP's trees of switches, and NVLink's NVLS.

The switches are the schedule's members beyond the group's. A switch adds up what comes in and sends it on, or
sends copies of it down; it stores and starts nothing by itself.
"""

from __future__ import annotations

import numpy as np

from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import InputError
from rapid_des.network.collectives.draft import Draft, Payload
from rapid_des.network.collectives.schedule import Schedule
from rapid_des.network.collectives.task import Ints, Task
from rapid_des.network.collectives.trees import NO_PARENT, tree_broadcast, tree_reduce

C = CollectiveType
_REDUCE_SCATTERS = (C.REDUCE_SCATTER, C.REDUCE_SCATTER_BLOCK)


def nvls(task: Task) -> Schedule:
    """All-reduce, reduce-scatter, all-gather or broadcast through one switch that every member is at.

    A member fetches its block reduced by the switch, and stores it to all others by one multicast.
    """
    draft = Draft(task, switches=1)
    bounds, switch = draft.bounds, task.members
    member = np.arange(task.members)
    fetched: Ints | None = None
    if task.collective in (C.ALL_REDUCE, *_REDUCE_SCATTERS):
        owner = np.repeat(member, task.members)
        pulled = draft.add(
            np.tile(member, task.members), switch, (bounds[owner], bounds[owner + 1]), reduces=True
        )
        fetched = draft.add(switch, member, (bounds[:-1], bounds[1:]))
        draft.wait(fetched[:, None], pulled.reshape(task.members, task.members))
    if task.collective in (C.ALL_REDUCE, C.ALL_GATHER):
        stored = draft.add(member, switch, (bounds[:-1], bounds[1:]))
        if fetched is not None:
            draft.wait(stored, fetched)
        _multicast(draft, stored)
    elif task.collective is C.BROADCAST:
        sent = draft.add(task.root, switch, draft.everything)
        others = np.delete(member, task.root)
        draft.wait(draft.add(switch, others, draft.everything), sent)
    elif task.collective not in _REDUCE_SCATTERS:
        raise InputError(
            "nvls does all_reduce, reduce_scatter, reduce_scatter_block, all_gather and broadcast, not "
            f"{task.collective.name.lower()}"
        )
    return draft.seal()


def _multicast(draft: Draft, stored: Ints) -> None:
    """Let the switch send every block on to all but its owner."""
    members = draft.members
    owner, target = np.divmod(np.arange(members * members), members)
    owner, target = owner[owner != target], target[owner != target]
    copies = draft.add(members, target, (draft.bounds[owner], draft.bounds[owner + 1]))
    draft.wait(copies, stored[owner])


def switch_tree(task: Task, per_leaf: int) -> Schedule:
    """All-reduce, reduce, broadcast or barrier in a tree: members at leaf switches, those at one root switch.

    `per_leaf` members hang on each leaf; with one leaf it is the root.
    """
    if task.members % per_leaf:
        raise InputError(f"{task.members} members can not be {per_leaf} at each leaf switch")
    leaves = task.members // per_leaf
    switches = leaves + (leaves > 1)
    draft = Draft(task, switches=switches)
    parent = np.full(task.members + switches, NO_PARENT, dtype=np.int64)
    parent[: task.members] = task.members + np.arange(task.members) // per_leaf
    if leaves > 1:
        parent[task.members : task.members + leaves] = task.members + leaves
    if task.members > 1:
        _through(draft, task, parent)
    return draft.seal()


def _through(draft: Draft, task: Task, parent: Ints) -> None:
    payload: Payload = draft.everything
    root = int(np.flatnonzero(parent == NO_PARENT)[0])
    if task.collective in (C.ALL_REDUCE, C.BARRIER):
        up = tree_reduce(draft, parent, payload)
        tree_broadcast(draft, parent, payload, after=up[parent == root])
    elif task.collective in (C.REDUCE, C.BROADCAST):
        _rooted(draft, task, parent, payload)
    else:
        asked = task.collective.name.lower()
        raise InputError(f"a tree of switches does all_reduce, reduce, broadcast and barrier, not {asked}")


def _rooted(draft: Draft, task: Task, parent: Ints, payload: Payload) -> None:
    """Hang the tree on the member that is the root: its way up turns round."""
    rerooted = parent.copy()
    above, below = int(parent[task.root]), task.root
    rerooted[task.root] = NO_PARENT
    while above != NO_PARENT:
        rerooted[above], below, above = below, above, int(parent[above])
    if task.collective is C.REDUCE:
        tree_reduce(draft, rerooted, payload)
    else:
        tree_broadcast(draft, rerooted, payload)
