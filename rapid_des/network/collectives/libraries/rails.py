"""Rings and chains over nodes, as NCCL lays them: as many as a node has ranks, each through its own rail.

Members are numbered node by node, `per_node` on each. Ring k enters a node at its k-th rank, passes all of
them and leaves from the last to the k-th rank of the next node: through that rank's rail, over NVLink first.
Every ring carries its share of every block. A member sends to its neighbour in the node for all rings but
one, and to the next node, first, for that one; what it sends to one peer in one step is one transfer.

    rank a of a node    step s: rings other than a + 1 ──► rank a + 1
                                ring a + 1 ──► rank a + 1 of the next node
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from rapid_des.arrays import Int32s, Int64s, starts_of
from rapid_des.chakra.trace import CollectiveType
from rapid_des.network.collectives.schedule import Demand, Draft, Pieces, Schedule, even_bounds

C = CollectiveType


def rail_rings(of: Demand, per_node: int, *, payloads: bool = True) -> Schedule:
    """Return the transfers of an all-reduce, all-gather or reduce-scatter over nodes of `per_node` > 1 ranks.

    Every block has at least `per_node` bytes. Without `payloads` it is left open which bytes a transfer
    carries (`Schedule.offset` is 0): time does not need that, and it takes `per_node` times the memory.
    """
    rings = _Rings(of, per_node)
    reduces = of.collective is not C.ALL_GATHER
    steps = [(step, reduces, 1) for step in range(of.members - 1)]
    if of.collective is C.ALL_REDUCE:
        steps += [(step, False, 0) for step in range(of.members - 1)]
    elif not reduces:
        steps = [(step, False, 0) for step, _, _ in steps]
    starts, awaited = rings.dependencies(len(steps))
    owners = [rings.owners(step + behind) for step, _, behind in steps]
    source = np.repeat(np.arange(of.members, dtype=np.int32), 2)
    schedule = Schedule(
        members=of.members,
        source=np.tile(source, len(steps)),
        destination=np.tile(rings.peers.ravel(), len(steps)),
        size=np.concatenate([rings.sizes(owner) for owner in owners]),
        reduces=np.repeat([reducing for _, reducing, _ in steps], 2 * of.members),
        offset=np.zeros(2 * of.members * len(steps), np.int64),
        dependency_starts=starts,
        dependencies=awaited,
    )
    return rings.with_payloads(schedule, owners) if payloads else schedule


def rail_chains(of: Demand, per_node: int, chunks: int) -> Schedule:
    """Return the transfers of a broadcast, or of a reduction to one rank, over nodes of `per_node` ranks.

    As many chains as a node has ranks, each with its share of the data in `chunks` chunks, and each through a
    rail of its own from node to node.
    """
    draft, reduces = Draft(of), of.collective is C.REDUCE
    bounds = even_bounds(int(of.size.sum()), per_node * chunks).tolist()
    chains = [(_to_root if reduces else _from_root)(of, per_node, rail) for rail in range(per_node)]
    for chunk, interval in enumerate(pairwise(bounds)):  # the rails in turn, so that all are busy
        chain = chains[chunk % per_node]
        sent = draft.add(chain[:-1], chain[1:], interval, reduces=reduces)
        draft.wait(sent[1:], sent[:-1])
    return draft.seal()


def _from_root(of: Demand, per_node: int, rail: int) -> Int64s:
    """Return the members as a broadcast passes them: round the root's node, then enters others at a rail."""
    node, place = divmod(of.root, per_node)
    nodes = (node + np.arange(of.members // per_node)) % (of.members // per_node)
    enters = np.where(nodes == node, place, rail)
    places = (enters[:, None] + np.arange(per_node)) % per_node
    return (nodes[:, None] * per_node + places).ravel()


def _to_root(of: Demand, per_node: int, rail: int) -> Int64s:
    """Return the members as a reduction passes them: every node is entered at the rail, the root comes last.

    The chain of the root's own rail begins in the root's node and comes back for the root alone.
    """
    node, place = divmod(of.root, per_node)
    others = (node + 1 + np.arange(of.members // per_node - 1)) % (of.members // per_node)
    around = (rail + np.arange(per_node)) % per_node
    last = node * per_node + around[around != place]
    passed = (others[:, None] * per_node + around).ravel()
    parts = (last, passed) if rail == place else (passed, last)
    return np.concatenate((*parts, [of.root]))


class _Rings:
    """Who is where in which ring, and what he holds."""

    def __init__(self, of: Demand, per_node: int) -> None:
        self._width, self._members = per_node, of.members
        member, ring = np.arange(of.members)[:, None], np.arange(per_node)
        node, place = np.divmod(member, per_node)
        self._position = node * per_node + (place - ring) % per_node  # [member, ring]
        position_node, position_place = np.divmod(member, per_node)
        self._at = position_node * per_node + (position_place + ring) % per_node  # [position, ring]
        beside = node * per_node + (place + 1) % per_node
        self.peers = np.hstack(((beside + per_node) % of.members, beside)).astype(np.int32)
        self._leaves = (place + 1) % per_node == ring  # [member, ring]: goes to the next node
        bounds = np.stack([even_bounds(int(size), per_node) for size in of.size])
        self._offset = of.offset[:, None] + bounds[:, :-1]  # [block, ring]
        self._size = np.diff(bounds, axis=1)

    def owners(self, behind: int) -> Int64s:
        """Return whose block each member sends in each ring: that of the one so many places behind it."""
        place = (self._position - behind) % self._members
        return self._at[place, np.arange(self._width)]

    def sizes(self, owners: Int64s) -> Int64s:
        """Return the bytes that each member sends to the next node, and to its neighbour, in turn."""
        each = self._size[owners, np.arange(self._width)]
        far = (each * self._leaves).sum(axis=1)
        return np.stack((far, each.sum(axis=1) - far), 1).ravel()

    def dependencies(self, steps: int) -> tuple[Int64s, Int32s]:
        """Return the dependencies of so many steps: a member sends on what came in the step before."""
        member = np.arange(self._members)
        node, place = np.divmod(member, self._width)
        before = node * self._width + (place - 1) % self._width
        near, far = 2 * before + 1, 2 * ((before - self._width) % self._members)
        to_neighbour = np.stack((near, far), 1) if self._width > 2 else far[:, None]
        row = np.hstack((near[:, None], to_neighbour)).ravel()
        lengths = np.tile([1, to_neighbour.shape[1]], self._members)
        first = 2 * self._members * np.arange(steps - 1)[:, None]
        awaited = (first + row).ravel().astype(np.int32)
        counts = np.concatenate((np.zeros_like(lengths), np.tile(lengths, steps - 1)))
        return starts_of(counts), awaited

    def with_payloads(self, schedule: Schedule, owners: list[Int64s]) -> Schedule:
        """Return the schedule with what each transfer carries."""
        owner = np.stack(owners)  # [step, member, ring]
        ring = np.arange(self._width)
        far = np.broadcast_to(self._leaves, owner.shape)
        order = np.argsort(~far, axis=2, kind="stable")
        offset, size = (
            np.take_along_axis(column[owner, ring], order, axis=2).ravel()
            for column in (self._offset, self._size)
        )
        counts = np.tile([1, self._width - 1], len(schedule) // 2)
        pieces = Pieces(starts_of(counts), offset, size)
        return replace(schedule, offset=offset[pieces.starts[:-1]], pieces=pieces)
