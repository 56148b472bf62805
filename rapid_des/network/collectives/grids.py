"""Algorithms for grids: buckets on a line, and trees whose edges are links of a mesh or king mesh."""

from __future__ import annotations

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import InputError
from rapid_des.network.collectives.schedule import Demand, Draft, Schedule
from rapid_des.network.collectives.trees import NO_PARENT, tree_broadcast, tree_reduce


def bucket(demand: Demand) -> Schedule:
    """Reduce-scatter, all-gather or all-reduce on a line without a link from its end to its start.

    Blocks walk one neighbour a step, in both directions at once: gathered blocks away from their owner,
    partial sums towards it.
    """
    draft = Draft(demand)
    reduced = None
    if demand.collective is not CollectiveType.ALL_GATHER:
        reduced = _walk_in(draft)
    if demand.collective in (CollectiveType.ALL_GATHER, CollectiveType.ALL_REDUCE):
        _walk_out(draft, reduced)
    return draft.seal()


def _walk_in(draft: Draft) -> Int64s:
    """Add partial sums that walk towards their block's owner; return a join at each owner."""
    members, bounds = draft.members, draft.bounds
    joins: list[tuple[Int64s, Int64s]] = []
    for direction in (1, -1):
        distance, owner = _steps(members, direction, inwards=True)
        source = owner - direction * distance
        sent = draft.add(source, source + direction, (bounds[owner], bounds[owner + 1]), reduces=True)
        follows = _previous(members, direction, distance + 1, owner, inwards=True)
        later = follows >= 0
        draft.wait(sent[later], sent[follows[later]])
        last = distance == 1
        joins.append((owner[last], sent[last]))
    done = draft.join(np.arange(members))
    for owner, sent in joins:
        draft.wait(done[owner], sent)
    return done


def _walk_out(draft: Draft, reduced: Int64s | None) -> None:
    """Add copies that walk away from their owner, there after the joins `reduced`."""
    members, bounds = draft.members, draft.bounds
    for direction in (1, -1):
        distance, owner = _steps(members, -direction, inwards=False)
        source = owner + direction * (distance - 1)
        sent = draft.add(source, source + direction, (bounds[owner], bounds[owner + 1]))
        follows = _previous(members, -direction, distance - 1, owner, inwards=False)
        later = follows >= 0
        draft.wait(sent[later], sent[follows[later]])
        if reduced is not None:
            draft.wait(sent[~later], reduced[owner[~later]])


def _steps(members: int, direction: int, *, inwards: bool) -> tuple[Int64s, Int64s]:
    """Return (distance, owner) of all transfers along one direction, the first to go first.

    Inwards, sums come in direction `direction` from `distance` away; outwards copies go the opposite
    direction.
    """
    distance, owner = np.meshgrid(np.arange(1, members), np.arange(members), indexing="ij")
    start = owner - direction * distance
    inside = (start >= 0) & (start < members)
    order = np.argsort(-distance[inside] if inwards else distance[inside], kind="stable")
    return distance[inside][order], owner[inside][order]


def _previous(members: int, direction: int, distance: Int64s, owner: Int64s, *, inwards: bool) -> Int64s:
    """Return the position of the transfer of the same block at another distance, -1 if there is none."""
    known_distance, known_owner = _steps(members, direction, inwards=inwards)
    table = np.full((members + 2, members), -1, dtype=np.int64)
    table[known_distance, known_owner] = np.arange(len(known_distance))
    position: Int64s = table[distance, owner]
    return position


def grid_tree_parents(extents: tuple[int, ...], root: int, *, diagonal: bool) -> Int64s:
    """Return a tree of shortest paths to `root` in a mesh, or a king mesh where steps may be diagonal.

    In a mesh a member steps along the first dimension in which it is off; in a king mesh along all of them.
    """
    coordinates = np.stack(np.unravel_index(np.arange(int(np.prod(extents))), extents, order="F"))
    offset = np.sign(coordinates[:, [root]] - coordinates)
    if not diagonal:
        first = np.argmax(offset != 0, axis=0)
        offset = np.where(np.arange(len(extents))[:, None] == first, offset, 0)
    parent: Int64s = np.ravel_multi_index(tuple(coordinates + offset), extents, order="F").astype(np.int64)
    parent[root] = NO_PARENT
    return parent


def grid_tree(demand: Demand, extents: tuple[int, ...], *, diagonal: bool) -> Schedule:
    """Broadcast or reduce along a grid's tree; all-reduce to the grid's centre and back."""
    if demand.collective not in (CollectiveType.ALL_REDUCE, CollectiveType.BROADCAST, CollectiveType.REDUCE):
        asked = demand.collective.name.lower()
        raise InputError(f"a grid's tree does all_reduce, broadcast and reduce, not {asked}")
    root = demand.root
    if demand.collective is CollectiveType.ALL_REDUCE:
        centre = tuple(extent // 2 for extent in extents)
        root = int(np.ravel_multi_index(centre, extents, order="F"))
    draft = Draft(demand)
    parent = grid_tree_parents(extents, root, diagonal=diagonal)
    last = None
    if demand.collective is not CollectiveType.BROADCAST:
        up = tree_reduce(draft, parent, draft.everything)
        last = up[parent == root]
    if demand.collective is not CollectiveType.REDUCE:
        tree_broadcast(draft, parent, draft.everything, after=last)
    return draft.seal()
