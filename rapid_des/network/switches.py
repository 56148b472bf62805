"""Trees of switches over groups of GPUs, for collectives that work inside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct, field

from rapid_des.arrays import Bools, Int32s
from rapid_des.bounded_cache import BoundedCache
from rapid_des.network.collectives.trees import NO_PARENT
from rapid_des.network.fabric import Fabric
from rapid_des.network.routing import UNREACHED, levels, pick, waves
from rapid_des.network.specs import Routing

_ROOM = 2**24
"""The most distances, of four bytes each, that the trees of a fabric keep."""


class SwitchTree(Struct, frozen=True):
    """The switches at which the paths of a group's members to one root meet, the root among them."""

    parents: tuple[int, ...]
    """The parent switch of each member, then of each switch; switches are numbered after the members."""
    switches: tuple[int, ...]
    """The fabric's node of each switch, in the order in which the members first reach them."""


class SwitchTrees(Struct, frozen=True, eq=False, dict=True):
    """Chooses trees over the links that live; no path leads through a GPU, so that GPUs take no part.

    The root is the switch nearest to the member farthest from it, then the one with the fewest hops to all,
    then that of the innermost dimension; of equal ones the one that `routing.ecmp` picks for the group.
    Paths to it are shortest, over the lowest nodes. A switch where none meet is no part of the tree.
    """

    fabric: Fabric
    dead: frozenset[int]
    routing: Routing
    hops: BoundedCache = field(default_factory=lambda: BoundedCache(_ROOM))
    """The hops of every node to a switch and from it, by switch."""
    trees: BoundedCache = field(default_factory=lambda: BoundedCache(_ROOM))
    """The tree of each group."""

    @cached_property
    def _alive(self) -> Bools:
        return self.fabric.alive(self.dead)

    @cached_property
    def _beyond_gpus(self) -> Bools:
        """[link] whether it lives and does not begin at a GPU."""
        return self._alive & (self.fabric.source >= self.fabric.gpus)

    def over(self, gpus: Sequence[int]) -> SwitchTree | None:
        """Return the tree over a group; None if no switch reaches all of them, there and back."""
        group = tuple(gpus)
        return self.trees.get_or_make(group, lambda: self._tree(group), weight=lambda _: len(group))

    def _tree(self, gpus: tuple[int, ...]) -> SwitchTree | None:
        root = self._root(gpus)
        return None if root is None else self._grown(gpus, root)

    def _root(self, gpus: tuple[int, ...]) -> int | None:
        members, best = np.array(gpus, np.int64), list[int]()
        least: tuple[int, int, int] | None = None
        for distance, switch in self._switches_near(gpus[0]):
            if least is not None and distance > least[0]:
                break
            there, back = (hops[members] for hops in self._around(switch))
            if (there == UNREACHED).any() or (back == UNREACHED).any():
                continue
            depth = int(max(there.max(), back.max()))
            rank = (depth, int(there.sum() + back.sum()), self._dimension(switch))
            if least is None or rank < least:
                least, best = rank, []
            if rank == least:
                best.append(switch)
        if not best:
            return None
        ends = np.array([min(gpus)]), np.array([max(gpus)])
        return sorted(best)[int(pick(self.routing, *ends, len(gpus), len(best))[0])]

    def _switches_near(self, gpu: int) -> Iterator[tuple[int, int]]:
        """Yield (hops, switch) of all switches within reach of a GPU, the nearest first."""
        fabric, passes = self.fabric, self._beyond_gpus.copy()
        starts, links = fabric.outgoing
        own = links[starts[gpu] : starts[gpu + 1]]
        passes[own] = self._alive[own]
        search = waves(fabric.outgoing, fabric.destination, gpu, passes)
        for hops, reached in enumerate(search):
            for switch in reached[reached >= fabric.gpus + fabric.nics].tolist():
                yield hops, switch

    def _around(self, switch: int) -> tuple[Int32s, Int32s]:
        """Return the hops to a switch and from it, of every node, through no GPU."""
        fabric = self.fabric

        def search() -> tuple[Int32s, Int32s]:
            into = self._alive & (fabric.destination >= fabric.gpus)
            there = levels(fabric.incoming, fabric.source, switch, into)
            return there, levels(fabric.outgoing, fabric.destination, switch, self._beyond_gpus)

        return self.hops.get_or_make(switch, search, weight=lambda _: 2 * fabric.nodes)

    def _dimension(self, switch: int) -> int:
        starts, links = self.fabric.outgoing
        return int(self.fabric.dimension[links[starts[switch]]])

    def _grown(self, gpus: tuple[int, ...], root: int) -> SwitchTree:
        parents = self._paths_up(gpus, root)
        children = Counter(parents.values())
        met = {root} | {node for node, count in children.items() if count > 1 and self._is_switch(node)}
        switches, parent_node = list[int](), dict[int, int]()
        for gpu in gpus:
            node = gpu
            while node != root and node not in parent_node:
                higher = parents[node]
                while higher not in met:
                    higher = parents[higher]
                parent_node[node] = higher
                if higher not in switches:
                    switches.append(higher)
                node = higher
        member = {switch: len(gpus) + number for number, switch in enumerate(switches)}
        tree = [member[parent_node[node]] if node != root else NO_PARENT for node in (*gpus, *switches)]
        return SwitchTree(tuple(tree), tuple(switches))

    def _paths_up(self, gpus: tuple[int, ...], root: int) -> dict[int, int]:
        """Return the next node towards the root of every node on the members' paths."""
        hops, _ = self._around(root)
        parents: dict[int, int] = {}
        for gpu in gpus:
            node = gpu
            while node != root and node not in parents:
                ends = self._neighbours(node)
                parents[node] = int(ends[hops[ends] == hops[node] - 1].min())
                node = parents[node]
        return parents

    def _neighbours(self, node: int) -> Int32s:
        """Return where the living links of a node lead, but for GPUs."""
        starts, links = self.fabric.outgoing
        outgoing = links[starts[node] : starts[node + 1]]
        ends: Int32s = self.fabric.destination[outgoing[self._alive[outgoing]]]
        return ends[ends >= self.fabric.gpus]

    def _is_switch(self, node: int) -> bool:
        return node >= self.fabric.gpus + self.fabric.nics
