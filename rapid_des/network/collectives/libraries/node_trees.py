"""Trees over nodes, as NCCL lays them: nodes reduce to their heads, whose rails carry two trees each.

Members are numbered node by node, `counts` of them on each. A node has as many heads as the emptiest node has
ranks, its first ones; head k sums up the k-th part of the buffer, of its node and then, along a double binary
tree, with the k-th heads of the others, and spreads what comes of it. In a node members send the heads their
parts; or, in NVLS trees, all of the buffer to the node's switch, which hands each head its part reduced, and
multicasts the results.

    members ══► switch ──► head k ──► head k of the nodes above ──► … ──► head k ──► switch ══► members
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.chakra.trace import CollectiveType
from rapid_des.network.collectives.schedule import (
    Demand,
    Draft,
    Schedule,
    demand,
    even_bounds,
    in_sequence,
    relabel,
    relocate,
    together,
)
from rapid_des.network.collectives.trees import double_binary_tree


def node_trees(size: int, counts: Sequence[int], *, switched: bool = False, chunks: int = 1) -> Schedule:
    """Return the transfers of an all-reduce of `size` bytes over nodes of so many ranks.

    With `switched` each node has a switch: the members behind the ranks, in the order of the nodes.
    """
    whole = demand(CollectiveType.ALL_REDUCE, sum(counts), size)
    nodes = _Nodes(whole, tuple(counts), switched)
    bounds = even_bounds(size, chunks)
    return together([in_sequence(list(nodes.phases(begin, end))) for begin, end in pairwise(bounds.tolist())])


@dataclass(frozen=True)
class _Nodes:
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
