"""Trees of switches over groups of GPUs: where a fabric that reduces and multiplies data does so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rapid_des.network.collectives.trees import NO_PARENT
from rapid_des.network.ecmp import pick
from rapid_des.network.fabric import Fabric
from rapid_des.network.search import UNREACHED, levels
from rapid_des.network.specs import Routing

_REMEMBERED = 2**26
"""Bytes of distances that are kept, at eight a node and root."""

Hops = NDArray[np.int32]


@dataclass(frozen=True)
class SwitchTree:
    """The switches at which the ways of a group's members to one root meet, the root among them."""

    parents: tuple[int, ...]
    """Of each member, then of each switch: the next switch above it, counted on after the members."""
    switches: tuple[int, ...]
    """The fabric's nodes, in the order in which the members come upon them."""


@dataclass(frozen=True, eq=False)
class SwitchTrees:
    """Chooses trees over the links that live; no way leads through a GPU, so that GPUs take no part.

    The root is the switch nearest to the member farthest from it, then the one with the fewest hops to all,
    then that of the innermost dimension; of equal ones the one that `routing.ecmp` picks for the group. Ways
    to it are shortest, over the lowest nodes. A switch where none meet is no part of the tree.
    """

    fabric: Fabric
    dead: frozenset[int]
    routing: Routing
    _known: dict[tuple[int, ...], SwitchTree | None] = field(init=False, repr=False, default_factory=dict)
    _hops: dict[int, tuple[Hops, Hops]] = field(init=False, repr=False, default_factory=dict)
    _alive: NDArray[np.bool_] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        alive = np.ones(len(self.fabric), np.bool_)
        alive[sorted(self.dead)] = False
        object.__setattr__(self, "_alive", alive)

    def over(self, gpus: Sequence[int]) -> SwitchTree | None:
        """Return the tree over a group; None if no switch reaches all of them, there and back."""
        group = tuple(gpus)
        if group not in self._known:
            self._known[group] = self._tree(group)
        return self._known[group]

    def _tree(self, gpus: tuple[int, ...]) -> SwitchTree | None:
        root = self._root(gpus)
        return None if root is None else self._grown(gpus, root)

    def _root(self, gpus: tuple[int, ...]) -> int | None:
        members, best = np.array(gpus, np.int64), list[int]()
        least: tuple[int, int, int] | None = None
        for distance, switch in self._near(gpus[0]):
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

    def _near(self, gpu: int) -> Iterator[tuple[int, int]]:
        """Yield (hops, switch) of all switches within reach of a GPU, the nearest first."""
        fabric = self.fabric
        passes = self._alive & ((fabric.source >= fabric.gpus) | (fabric.source == gpu))
        hops = levels(fabric.outgoing, fabric.destination, gpu, passes, fabric.nodes)
        first = fabric.gpus + fabric.nics
        found = first + np.flatnonzero(hops[first:] != UNREACHED)
        order = np.lexsort((found, hops[found]))
        yield from zip(hops[found[order]].tolist(), found[order].tolist(), strict=True)

    def _around(self, switch: int) -> tuple[Hops, Hops]:
        """Return the hops to a switch and from it, of every node, through no GPU."""
        if switch not in self._hops:
            fabric = self.fabric
            if len(self._hops) * fabric.nodes * 8 > _REMEMBERED:
                self._hops.clear()
            into = self._alive & (fabric.destination >= fabric.gpus)
            out = self._alive & (fabric.source >= fabric.gpus)
            there = levels(fabric.incoming, fabric.source, switch, into, fabric.nodes)
            back = levels(fabric.outgoing, fabric.destination, switch, out, fabric.nodes)
            self._hops[switch] = there, back
        return self._hops[switch]

    def _dimension(self, switch: int) -> int:
        starts, links = self.fabric.outgoing
        return int(self.fabric.dimension[links[starts[switch]]])

    def _grown(self, gpus: tuple[int, ...], root: int) -> SwitchTree:
        above = self._ways_up(gpus, root)
        met = {root} | {node for node, below in _below(above).items() if below > 1 and self._is_switch(node)}
        switches, parent_node = list[int](), dict[int, int]()
        for gpu in gpus:
            node = gpu
            while node != root and node not in parent_node:
                higher = above[node]
                while higher not in met:
                    higher = above[higher]
                parent_node[node] = higher
                if higher not in switches:
                    switches.append(higher)
                node = higher
        place = {switch: len(gpus) + number for number, switch in enumerate(switches)}
        parents = [place[parent_node[node]] if node != root else NO_PARENT for node in (*gpus, *switches)]
        return SwitchTree(tuple(parents), tuple(switches))

    def _ways_up(self, gpus: tuple[int, ...], root: int) -> dict[int, int]:
        """Return the next node on the way to the root of every node on the members' ways."""
        hops, _ = self._around(root)
        above: dict[int, int] = {}
        for gpu in gpus:
            node = gpu
            while node != root and node not in above:
                ends = self._next(node)
                above[node] = int(ends[hops[ends] == hops[node] - 1].min())
                node = above[node]
        return above

    def _next(self, node: int) -> Hops:
        """Return where the living links of a node lead, but for GPUs."""
        starts, links = self.fabric.outgoing
        own = links[starts[node] : starts[node + 1]]
        ends: Hops = self.fabric.destination[own[self._alive[own]]]
        return ends[ends >= self.fabric.gpus]

    def _is_switch(self, node: int) -> bool:
        return node >= self.fabric.gpus + self.fabric.nics


def _below(above: dict[int, int]) -> dict[int, int]:
    """Return how many nodes come together at each node."""
    counts: dict[int, int] = {}
    for node in above.values():
        counts[node] = counts.get(node, 0) + 1
    return counts
