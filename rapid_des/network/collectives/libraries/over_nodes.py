"""Rings, chains, trees over nodes, as NCCL lays them: as many as the emptiest has ranks, each with a rail.

Members are numbered node by node, `counts` of them on each.

Ring k enters a node at its k-th rank, passes all
of them and leaves from the last to the k-th rank of the next node: through that rank's rail, over NVLink
first. Every ring carries its share of every block. What a member sends to one peer in one step, for whichever
rings, is one transfer: to its neighbour in the node, and first to the next node, where it is a ring's last.

    rank a of a node    step s: rings other than a + 1 ──► rank a + 1
                                ring a + 1 ──► rank a + 1 of the next node

In trees a node has as many heads as the emptiest node has ranks, its first ones; head k sums up the k-th part
of the buffer, of its node and then, along a double binary tree, with the k-th heads of the others, and
spreads what comes of it. In a node members send the heads their parts; or, in NVLS trees, all of the buffer
to the node's switch, which hands each head its part reduced, and multicasts the results.

    members ══► switch ──► head k ──► head k of the nodes above ──► … ──► head k ──► switch ══► members
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int32s, Int64s, rows_of, starts_by, starts_of
from rapid_des.chakra.trace import CollectiveType
from rapid_des.network.collectives.schedule import (
    Demand,
    Draft,
    Pieces,
    Schedule,
    demand,
    even_bounds,
    in_sequence,
    relabel,
    relocate,
    together,
)
from rapid_des.network.collectives.trees import double_binary_tree
from rapid_des.values import replace

C = CollectiveType


def rail_rings(of: Demand, counts: Sequence[int], *, payloads: bool = True) -> Schedule:
    """Return the transfers of an all-reduce, all-gather or reduce-scatter over nodes with these ranks.

    Every block has at least as many bytes as there are rings. Without `payloads` it is left open which bytes
    a transfer carries (`Schedule.offset` is 0): time does not need that, and it takes many times the memory.
    """
    rings = _Rings(of, counts)
    reduces = of.collective is not C.ALL_GATHER
    steps = [(step, reduces, 1) for step in range(of.members - 1)]
    if of.collective is C.ALL_REDUCE:
        steps += [(step, False, 0) for step in range(of.members - 1)]
    elif not reduces:
        steps = [(step, False, 0) for step, _, _ in steps]
    starts, awaited = rings.dependencies(len(steps))
    owners = [rings.owners(step + behind) for step, _, behind in steps]
    schedule = Schedule(
        members=of.members,
        source=np.tile(rings.source, len(steps)),
        destination=np.tile(rings.destination, len(steps)),
        size=np.concatenate([rings.sizes(owner) for owner in owners]),
        reduces=np.repeat([reducing for _, reducing, _ in steps], len(rings.source)),
        offset=np.zeros(len(rings.source) * len(steps), np.int64),
        dependency_starts=starts,
        dependencies=awaited,
    )
    return rings.with_payloads(schedule, owners) if payloads else schedule


def rail_chains(of: Demand, counts: Sequence[int], chunks: int) -> Schedule:
    """Return the transfers of a broadcast, or of a reduction to one rank, over nodes with these ranks.

    As many chains as there are rails, each with its share of the data in `chunks` chunks.
    """
    draft, rails = Draft(of), min(counts)
    nodes = np.split(np.arange(of.members), np.cumsum(counts)[:-1])
    bounds = even_bounds(int(of.size.sum()), rails * chunks).tolist()
    reduces = of.collective is C.REDUCE
    chains = [(_to_root if reduces else _from_root)(nodes, of.root, rail) for rail in range(rails)]
    for chunk, interval in enumerate(pairwise(bounds)):  # the rails in turn, so that all are busy
        chain = chains[chunk % rails]
        sent = draft.add(chain[:-1], chain[1:], interval, reduces=reduces)
        draft.wait(sent[1:], sent[:-1])
    return draft.seal()


def mesh_chains(of: Demand, chunks: int) -> Schedule:
    """Return the transfers of a broadcast, or a reduction to one rank, where every two have a link.

    Each other member passes its share on to the rest, or adds theirs up for the root: all links are as busy.
    """
    draft, reduces = Draft(of), of.collective is C.REDUCE
    others = np.delete(np.arange(of.members), of.root)
    bounds = even_bounds(int(of.size.sum()), len(others) * chunks).tolist()
    for share, interval in enumerate(pairwise(bounds)):
        partner = others[[share % len(others)]]
        rest = np.setdiff1d(others, partner)
        middle = np.repeat(partner, len(rest))
        if reduces:
            first = draft.add(rest, middle, interval, reduces=True)
            last = draft.add(partner, np.array([of.root]), interval, reduces=True)
            draft.wait(np.repeat(last, len(first)), first)
        else:
            first = draft.add(np.array([of.root]), partner, interval)
            draft.wait(last := draft.add(middle, rest, interval), np.repeat(first, len(last)))
    return draft.seal()


def _from_root(nodes: Sequence[Int64s], root: int, rail: int) -> Int64s:
    """Return the members as a broadcast passes them: round the root's node, then enters others at a rail."""
    home = _node_of(root, nodes)
    others = [np.roll(node, -rail) for node in (*nodes[home + 1 :], *nodes[:home])]
    return np.concatenate((np.roll(nodes[home], nodes[home][0] - root), *others))


def _to_root(nodes: Sequence[Int64s], root: int, rail: int) -> Int64s:
    """Return the members as a reduction passes them: every node is entered at the rail, the root comes last.

    The chain of the root's own rail begins in the root's node and comes back for the root alone.
    """
    home = _node_of(root, nodes)
    around = np.roll(nodes[home], -rail)
    passed = [np.roll(node, -rail) for node in (*nodes[home + 1 :], *nodes[:home])]
    last = around[around != root]
    parts = (last, *passed) if around[0] == root else (*passed, last)
    return np.concatenate((*parts, [root]))


def _node_of(member: int, nodes: Sequence[Int64s]) -> int:
    return next(number for number, node in enumerate(nodes) if member in node)


class _Rings:
    """The position of each member in each ring, and the blocks that it holds."""

    def __init__(self, of: Demand, counts: Sequence[int]) -> None:
        self._rings, self._members = np.arange(min(counts)), of.members
        node, count = rows_of(counts), np.repeat(counts, counts)
        first = np.arange(of.members) - (starts_of(counts)[:-1])[node]
        place = (first[:, None] + self._rings) % count[:, None]
        self._at = (np.arange(of.members) - first)[:, None] + place  # [position, ring]
        self._position = np.argsort(self._at, axis=0)  # [member, ring]
        self._before = self._at[(self._position - 1) % of.members, self._rings]  # [member, ring]
        after = self._at[(self._position + 1) % of.members, self._rings]  # [member, ring]
        # The transfers of a step: of each member to the next node, then to its neighbour, if it has such.
        near = node[after] == node[:, None]
        key = (2 * np.arange(of.members)[:, None] + near).ravel()
        self._order = np.argsort(key, kind="stable")
        begins = np.append(True, np.diff(key[self._order]) > 0)
        self._begins = np.flatnonzero(begins)
        self._transfer = np.empty(key.shape, np.int64)  # [member, ring], flat: in which transfer it goes
        self._transfer[self._order] = np.cumsum(begins) - 1
        leading = self._order[self._begins]
        self.source = (leading // len(self._rings)).astype(np.int32)
        self.destination = after.ravel()[leading].astype(np.int32)
        bounds = np.stack([even_bounds(int(size), len(self._rings)) for size in of.size])
        self._offset = of.offset[:, None] + bounds[:, :-1]  # [block, ring]
        self._size = np.diff(bounds, axis=1)

    def owners(self, behind: int) -> Int64s:
        """Return the owner of the block that each member sends in each ring: the one `behind` places back."""
        owners: Int64s = self._at[(self._position - behind) % self._members, self._rings]
        return owners

    def sizes(self, owners: Int64s) -> Int64s:
        """Return the bytes of each transfer of a step."""
        each = self._size[owners, self._rings].ravel()
        sizes: Int64s = np.add.reduceat(each[self._order], self._begins)
        return sizes

    def dependencies(self, steps: int) -> tuple[Int64s, Int32s]:
        """Return the dependencies of a number of steps: a member passes on what came in the step before."""
        count = len(self.source)
        transfer = self._transfer.reshape(self._before.shape)
        key = np.sort((transfer * count + transfer[self._before, self._rings]).ravel())
        waiting, awaited = np.divmod(key[np.append(True, np.diff(key) > 0)], count)
        lengths = np.diff(starts_by(waiting, count))
        first = count * np.arange(steps - 1)[:, None]
        counts = np.concatenate((np.zeros_like(lengths), np.tile(lengths, steps - 1)))
        return starts_of(counts), (first + awaited).ravel().astype(np.int32)

    def with_payloads(self, schedule: Schedule, owners: list[Int64s]) -> Schedule:
        """Return the schedule with what each transfer carries."""
        offset, size = (
            np.concatenate([column[owner, self._rings].ravel()[self._order] for owner in owners])
            for column in (self._offset, self._size)
        )
        counts = np.diff(np.append(self._begins, len(self._order)))
        pieces = Pieces(starts_of(np.tile(counts, len(owners))), offset, size)
        return replace(schedule, offset=offset[pieces.starts[:-1]], pieces=pieces)


def node_trees(size: int, counts: Sequence[int], *, switched: bool = False, chunks: int) -> Schedule:
    """Return the transfers of an all-reduce of `size` bytes over nodes with these numbers of ranks.

    With `switched` each node has a switch: the members behind the ranks, in the order of the nodes.
    """
    whole = demand(CollectiveType.ALL_REDUCE, sum(counts), size)
    nodes = _Nodes(whole, tuple(counts), switched)
    bounds = even_bounds(size, chunks)
    return together([in_sequence(list(nodes.phases(begin, end))) for begin, end in pairwise(bounds.tolist())])


class _Nodes(Struct, frozen=True):
    whole: Demand
    counts: tuple[int, ...]
    switched: bool

    def phases(self, begin: int, end: int) -> Iterator[Schedule]:
        """Yield what happens to one interval of the buffer: in the nodes, among them, and in them again."""
        parts = begin + even_bounds(end - begin, min(self.counts))
        reduction, spreading = self._draft(), self._draft()
        for node, members in enumerate(self._members()):
            if len(members) == 1:
                continue
            if self.switched:
                self._through_switch(reduction, spreading, self.whole.members + node, members, parts)
            else:
                _directly(reduction, spreading, members, parts)
        yield reduction.seal()
        yield self._among_nodes(parts)
        yield spreading.seal()

    def _draft(self) -> Draft:
        return Draft(self.whole, switches=len(self.counts) if self.switched else 0)

    def _members(self) -> list[Int64s]:
        return np.split(np.arange(self.whole.members), np.cumsum(self.counts)[:-1])

    def _through_switch(
        self, reduction: Draft, spreading: Draft, switch: int, members: Int64s, parts: Int64s
    ) -> None:
        heads, of_head = members[: min(self.counts)], (parts[:-1], parts[1:])
        sent = reduction.add(members, switch, (parts[0], parts[-1]), reduces=True)
        reduction.wait(reduction.add(switch, heads, of_head)[:, None], sent)
        stored = spreading.add(heads, switch, of_head)
        spreading.wait(spreading.add(switch, members, (parts[0], parts[-1]))[:, None], stored)

    def _among_nodes(self, parts: Int64s) -> Schedule:
        """Return the trees of every head with those of its place on other nodes."""
        first = np.array([members[0] for members in self._members()])
        trees = []
        for head, (begin, end) in enumerate(pairwise(parts.tolist())):
            part = demand(CollectiveType.ALL_REDUCE, len(first), end - begin)
            tree = relocate(double_binary_tree(part), np.array([begin]), np.array([end - begin]))
            trees.append(relabel(tree, first + head, self.whole.members))
        return replace(together(trees), switches=self._draft().seal().switches)


def _directly(reduction: Draft, spreading: Draft, members: Int64s, parts: Int64s) -> None:
    heads = np.arange(len(parts) - 1)
    head, member = np.divmod(np.arange(len(heads) * len(members)), len(members))
    head, member = head[head != member], member[head != member]
    interval = parts[head], parts[head + 1]
    reduction.add(members[member], members[head], interval, reduces=True)
    spreading.add(members[head], members[member], interval)
