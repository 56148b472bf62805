"""Reduction and multicast inside switches: SHARP's trees of switches, and NVLink's NVLS.

The switches are the schedule's members beyond the group's. A switch adds up what comes in and sends it on, or
sends copies of it down; it stores and starts nothing by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import InputError
from rapid_des.network.collectives.schedule import Demand, Draft, Payload, Schedule, demand, together
from rapid_des.network.collectives.trees import NO_PARENT, tree_broadcast, tree_reduce
from rapid_des.values import replace

C = CollectiveType
_REDUCE_SCATTERS = (C.REDUCE_SCATTER, C.REDUCE_SCATTER_BLOCK)


def nvls(demand: Demand, chunks: int = 1) -> Schedule:
    """All-reduce, reduce-scatter, all-gather or broadcast through one switch that every member is at.

    A member fetches its block reduced by the switch, and stores it to all others by one multicast. It fetches
    two of `chunks` at a time: the next begins once the last but one has come.
    """
    if demand.collective not in IN_SWITCH["nvls"]:
        allowed = ", ".join(kind.name.lower() for kind in C if kind in IN_SWITCH["nvls"])
        raise InputError(f"nvls does {allowed}, not {demand.collective.name.lower()}")
    parts = demand.chunks(chunks)
    offset, size = np.concatenate([(part.offset, part.size) for part in parts], axis=1)
    draft = Draft(replace(demand, offset=offset, size=size), switches=1)
    fetched: list[Int64s] = []
    for index in range(chunks):
        bounds = draft.bounds[index * demand.members : (index + 1) * demand.members + 1]
        if demand.collective is C.BROADCAST:
            _multicast(draft, bounds[[0, -1]], owners=np.array([demand.root]))
            continue
        if demand.collective is not C.ALL_GATHER:
            fetched.append(_fetch(draft, bounds, after=fetched[index - 2 : index - 1]))
        if demand.collective not in _REDUCE_SCATTERS:
            _multicast(draft, bounds, owners=np.arange(demand.members), after=fetched[-1:])
    return draft.seal()


def nvls_each(parts: Sequence[Demand]) -> Schedule:
    """Return `nvls` of each part of a demand, side by side.

    Parts whose blocks all have bytes differ in these alone: one part's transfers stand for the others'.
    """
    first = parts[0]
    if first.collective is C.BROADCAST or not all(part.size.all() for part in parts):
        return together([nvls(part) for part in parts])
    shape = _of_unit_blocks(first.collective, first.members)
    count, transfers, awaited = len(parts), len(shape), len(shape.dependencies)
    # Copies of one shape: part i's transfers are numbered from i times their count, and so are dependencies.
    begins = np.repeat(np.arange(count), awaited)
    starts = shape.dependency_starts[:-1] + awaited * np.arange(count)[:, None]
    return replace(
        shape,
        source=np.tile(shape.source, count),
        destination=np.tile(shape.destination, count),
        size=np.concatenate([part.size[shape.offset] for part in parts]),
        reduces=np.tile(shape.reduces, count),
        offset=np.concatenate([part.offset[shape.offset] for part in parts]),
        dependency_starts=np.append(starts, count * awaited),
        dependencies=np.tile(shape.dependencies, count) + (begins * transfers).astype(np.int32),
    )


@cache
def _of_unit_blocks(collective: CollectiveType, members: int) -> Schedule:
    """Return `nvls` of blocks of one byte: the offset of a transfer is the number of its block."""
    size = 1 if collective is C.ALL_GATHER else members
    return nvls(demand(collective, members, size))


def _fetch(draft: Draft, bounds: Int64s, *, after: Sequence[Int64s]) -> Int64s:
    """Add the fetch of each member's block, summed by the switch from all members; return the arrivals."""
    members, blocks = draft.members, (bounds[:-1], bounds[1:])
    owner = np.repeat(np.arange(members), members)  # for each block one source after the other
    payload = bounds[owner], bounds[owner + 1]
    pulled = draft.add(np.tile(np.arange(members), members), members, payload, reduces=True)
    fetched = draft.add(members, np.arange(members), blocks)
    draft.wait(fetched[:, None], pulled.reshape(members, members))
    for before in after:
        draft.wait(pulled, before[owner])
    return fetched


def _multicast(draft: Draft, bounds: Int64s, *, owners: Int64s, after: Sequence[Int64s] = ()) -> None:
    """Add transfers of each owner's block to the switch, and from there to all other members."""
    members = draft.members
    stored = draft.add(owners, members, (bounds[:-1], bounds[1:]))
    for before in after:
        draft.wait(stored, before)
    # every pair of a block and a member, without the pairs of a block and its owner
    block, target = np.divmod(np.arange(len(owners) * members), members)
    others = owners[block] != target
    block, target = block[others], target[others]
    draft.wait(draft.add(members, target, (bounds[block], bounds[block + 1])), stored[block])


def two_levels(members: int, per_leaf: int) -> tuple[int, ...]:
    """Return the parents in a tree of leaf switches with `per_leaf` members each, and one root over them.

    Of members, then of switches; with one leaf it is the root.

    >>> two_levels(4, 2)
    (4, 4, 5, 5, 6, 6, -1)
    """
    if members % per_leaf:
        raise InputError(f"{members} members cannot be {per_leaf} at each leaf switch")
    leaves = members // per_leaf
    below = tuple(members + member // per_leaf for member in range(members))
    return (*below, *((members + leaves,) * leaves if leaves > 1 else ()), NO_PARENT)


def switch_tree(demand: Demand, per_leaf: int) -> Schedule:
    """Return the schedule `below_switches` for a tree of two levels."""
    return below_switches(demand, two_levels(demand.members, per_leaf))


def below_switches(demand: Demand, parents: Sequence[int]) -> Schedule:
    """Everything but exchanges in a tree of switches; `parents` are those of members, then of switches.

    A switch sends on what has come from all below it, or copies to all below it. Blocks that belong to one
    member (reduce-scatter, all-gather) turn down at the highest switch of their route, not at the root.
    """
    parent = np.array(parents, dtype=np.int64)
    draft = Draft(demand, switches=len(parent) - demand.members)
    if demand.members > 1:
        _through(draft, demand, parent)
    return draft.seal()


def _through(draft: Draft, demand: Demand, parent: Int64s) -> None:
    payload: Payload = draft.everything
    root = int(np.flatnonzero(parent == NO_PARENT)[0])
    if demand.collective in (C.ALL_REDUCE, C.BARRIER):
        up = tree_reduce(draft, parent, payload)
        tree_broadcast(draft, parent, payload, after=up[parent == root])
    elif demand.collective in (C.REDUCE, C.BROADCAST):
        _rooted(draft, parent, demand.root, payload, reduces=demand.collective is C.REDUCE)
    elif demand.collective in (C.ALL_GATHER, *_REDUCE_SCATTERS):
        for owner in range(demand.members):
            block = draft.bounds[owner], draft.bounds[owner + 1]
            _rooted(draft, parent, owner, block, reduces=demand.collective is not C.ALL_GATHER)
    else:
        allowed = ", ".join(kind.name.lower() for kind in C if kind in IN_SWITCH["switch_tree"])
        raise InputError(f"a tree of switches does {allowed}, not {demand.collective.name.lower()}")


def _rooted(draft: Draft, parent: Int64s, member: int, payload: Payload, *, reduces: bool) -> None:
    """Reduce to a member or broadcast from it: the tree with that member as its root."""
    # the edges from the member up to the root are turned round; all others keep their direction
    rerooted = parent.copy()
    upper, lower = int(parent[member]), member
    rerooted[member] = NO_PARENT
    while upper != NO_PARENT:
        rerooted[upper], lower, upper = lower, upper, int(parent[upper])
    while len(bare := _bare_switches(rerooted, draft.members)):
        rerooted[bare] = NO_PARENT
    if reduces:
        tree_reduce(draft, rerooted, payload)
    else:
        tree_broadcast(draft, rerooted, payload)


def _bare_switches(parent: Int64s, members: int) -> Int64s:
    """Return the switches with nobody below them, as the top of a tree whose paths met before it."""
    switches = np.arange(members, len(parent))
    bare: Int64s = switches[(parent[switches] != NO_PARENT) & ~np.isin(switches, parent)]
    return bare


_BLOCKS = frozenset({C.ALL_REDUCE, C.BROADCAST, C.ALL_GATHER, *_REDUCE_SCATTERS})

IN_SWITCH: dict[str, frozenset[CollectiveType]] = {
    "nvls": _BLOCKS,
    "switch_tree": _BLOCKS | {C.REDUCE, C.BARRIER},
    "sharp": _BLOCKS | {C.REDUCE, C.BARRIER},
}
"""The collectives of each in-switch algorithm: `nvls` uses one switch; the others, which are the same, use a
tree of switches.
"""


def fits(name: str, parents: Sequence[int], members: int) -> bool:
    """Return whether an algorithm of `IN_SWITCH` works in a tree of switches; empty `parents`: no tree."""
    switches = len(parents) - members
    return switches == 1 or (switches > 1 and name != "nvls")
