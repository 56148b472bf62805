"""Trees: binomial, double binary, and along links of a mesh or king mesh; and buckets on a line."""

from __future__ import annotations

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import InputError
from rapid_des.network.collectives.schedule import Demand, Draft, Payload, Schedule

NO_PARENT = -1


def depths(parent: Int64s) -> Int64s:
    """Return every member's distance from its root."""
    depth = np.zeros(len(parent), dtype=np.int64)
    ancestor = parent
    while np.any(ancestor != NO_PARENT):
        depth += ancestor != NO_PARENT
        ancestor = np.where(ancestor == NO_PARENT, NO_PARENT, parent[ancestor])
    return depth


def tree_reduce(draft: Draft, parent: Int64s, payload: Payload) -> Int64s:
    """Add a reduction towards the root; return the transfer that leaves each member (-1 at the root).

    Who has neither parent nor children takes no part, here and below.
    """
    senders = np.argsort(-depths(parent), kind="stable")  # the deepest first: dependencies point back
    senders = senders[parent[senders] != NO_PARENT]
    up = np.full(len(parent), -1, dtype=np.int64)
    up[senders] = draft.add(senders, parent[senders], payload, reduces=True)
    # whose parent sends on: the parent's transfer waits for it
    inner = senders[parent[parent[senders]] != NO_PARENT]
    draft.wait(up[parent[inner]], up[inner])
    return up


def tree_broadcast(draft: Draft, parent: Int64s, payload: Payload, *, after: Int64s | None = None) -> Int64s:
    """Add a broadcast from the root, after the transfers `after`; return what arrives at each member."""
    receivers = np.argsort(depths(parent), kind="stable")
    receivers = receivers[parent[receivers] != NO_PARENT]
    down = np.full(len(parent), -1, dtype=np.int64)
    down[receivers] = draft.add(parent[receivers], receivers, payload)
    inner = receivers[parent[parent[receivers]] != NO_PARENT]
    draft.wait(down[inner], down[parent[inner]])
    if after is not None:
        top = receivers[parent[parent[receivers]] == NO_PARENT]
        draft.wait(down[top][:, None], after[None, :])
    return down


def binomial_parents(members: int, root: int) -> Int64s:
    """Return the binomial tree's parents: a member's number (from the root) without its lowest set bit."""
    number = np.arange(1, members)
    parent = np.full(members, NO_PARENT, dtype=np.int64)
    parent[(number + root) % members] = ((number & (number - 1)) + root) % members
    return parent


def binomial(demand: Demand) -> Schedule:
    """Broadcast, reduce or all-reduce (reduce, then broadcast) along one binomial tree."""
    draft = Draft(demand)
    parent = binomial_parents(demand.members, demand.root)
    last = None
    if demand.collective is not CollectiveType.BROADCAST:
        up = tree_reduce(draft, parent, draft.everything)
        last = up[parent == demand.root]
    if demand.collective is not CollectiveType.REDUCE:
        tree_broadcast(draft, parent, draft.everything, after=last)
    return draft.seal()


def binomial_blocks(demand: Demand) -> Schedule:
    """Scatter or gather: a transfer carries the blocks of the whole subtree below it."""
    members, root = demand.members, demand.root
    draft = Draft(demand, order=(np.arange(members) + root) % members)
    number = np.arange(1, members)
    low_bit = number & -number  # the size of the subtree of a member, if the last member does not cut it off
    if demand.collective is CollectiveType.SCATTER:
        number = number[np.argsort(-low_bit, kind="stable")]
    else:
        number = number[np.argsort(low_bit, kind="stable")]
    upper = number & (number - 1)  # the parent: without the lowest set bit
    end = np.minimum(number + (number & -number), members)
    upper_end, lower_end = (upper + root) % members, (number + root) % members
    down = demand.collective is CollectiveType.SCATTER
    source, destination = (upper_end, lower_end) if down else (lower_end, upper_end)
    transfers = np.full(members, -1, dtype=np.int64)
    transfers[number] = draft.add(source, destination, (draft.bounds[number], draft.bounds[end]))
    inner = number[upper > 0]
    parents = inner & (inner - 1)
    if demand.collective is CollectiveType.SCATTER:
        draft.wait(transfers[inner], transfers[parents])
    else:
        draft.wait(transfers[parents], transfers[inner])
    return draft.seal()


def in_order_parents(members: int) -> Int64s:
    """Return the binary tree whose leaves are the odd members; member 0 is the root and has one child.

    A member's height is that of its lowest set bit. Where the usual parent lies beyond the last member, the
    next one down that side takes its place.
    """
    parent = np.full(members, NO_PARENT, dtype=np.int64)
    for member in range(1, members):
        bit = member & -member
        usual = (member ^ bit) | (bit << 1)
        parent[member] = usual if usual < members else member ^ bit
    return parent


def double_tree_parents(members: int) -> tuple[Int64s, Int64s]:
    """Return two binary trees; a member that passes data on in one is a leaf of the other (or a root).

    The second is the first mirrored (even n) or shifted by one (odd n).
    """
    first = in_order_parents(members)
    member = np.arange(members)
    name = members - 1 - member if members % 2 == 0 else (member + 1) % members
    second = np.full(members, NO_PARENT, dtype=np.int64)
    second[name] = np.where(first == NO_PARENT, NO_PARENT, name[first])
    return first, second


def double_binary_tree(demand: Demand) -> Schedule:
    """All-reduce: each tree reduces one half of the buffer to its root and broadcasts it from there."""
    draft = Draft(demand)
    for parent, payload in zip(double_tree_parents(demand.members), _halves(draft), strict=True):
        up = tree_reduce(draft, parent, payload)
        root = int(np.flatnonzero(parent == NO_PARENT)[0])
        tree_broadcast(draft, parent, payload, after=up[parent == root])
    return draft.seal()


def rooted_double_binary_tree(demand: Demand) -> Schedule:
    """Broadcast or reduce one half along each of two trees of the other members, below the root."""
    draft = Draft(demand)
    others = (demand.root + np.arange(1, demand.members)) % demand.members
    for tree, payload in zip(double_tree_parents(demand.members - 1), _halves(draft), strict=True):
        parent = np.full(demand.members, NO_PARENT, dtype=np.int64)
        parent[others] = np.where(tree == NO_PARENT, demand.root, others[tree])
        if demand.collective is CollectiveType.BROADCAST:
            tree_broadcast(draft, parent, payload)
        else:
            tree_reduce(draft, parent, payload)
    return draft.seal()


def _halves(draft: Draft) -> tuple[Payload, Payload]:
    total = int(draft.bounds[-1])
    middle = total - total // 2
    return (0, middle), (middle, total)


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
