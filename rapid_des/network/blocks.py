"""A block: the links of one dimension among its positions and switches, and the rule of its routes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from rapid_des.arrays import Int64s, starts_by, starts_of
from rapid_des.errors import TopologyError
from rapid_des.network.fabric import Routes
from rapid_des.network.specs import Dimension, Rate

NextNode: TypeAlias = Callable[[Int64s, Int64s, Int64s], Int64s]
"""(source, destination, current) to the next local node, elementwise; current differs from destination."""

LARGEST_BLOCK = 2**25
"""Links: a fully connected block of 5,793 positions. More is a mistake in the file."""


@dataclass(frozen=True, eq=False)
class Block:
    """Directed links among local nodes, sorted by (source, destination).

    Local nodes 0..positions-1 are the endpoints, then come `nics` NICs, then switches.
    """

    positions: int
    nics: int
    nodes: int
    source: Int64s
    destination: Int64s
    bandwidth: Int64s
    latency: Int64s
    next_node: NextNode
    star: bool = False
    """Every route is one path out of its source, to all destinations the same, and one path in to its
    destination, from all sources the same."""
    nics_each: int = 1
    """NICs of a position, where each has some of its own."""

    def __len__(self) -> int:
        return len(self.source)

    @cached_property
    def _keys(self) -> Int64s:
        return self.source * self.nodes + self.destination

    @cached_property
    def _arms(self) -> tuple[Int64s, Int64s]:
        """The links out of and in to each position of a star, as rows."""
        position = np.arange(self.positions)
        routes = self._stepped(position, np.roll(position, 1))
        half = int(routes.starts[1]) // 2
        links = routes.links.reshape(self.positions, 2 * half)
        return links[:, :half], np.roll(links[:, half:], -1, axis=0)

    def walk(self, source: Int64s, destination: Int64s) -> Routes:
        """Return the routes of many flows between positions, as local link ids."""
        if not self.star or self.positions == 1:
            return self._stepped(source, destination)
        out, into = self._arms
        moves = source != destination
        stays = not moves.all()
        links = np.concatenate((out[source], into[destination]), axis=1)
        hops = links.shape[1]
        lengths = np.where(moves, hops, 0) if stays else np.full(len(source), hops)
        starts = starts_of(lengths)
        return Routes(starts, (links[moves] if stays else links).reshape(-1))

    def _stepped(self, source: Int64s, destination: Int64s) -> Routes:
        current, flows = source.copy(), np.flatnonzero(source != destination)
        hops: list[tuple[Int64s, Int64s]] = []
        while len(flows):
            assert len(hops) <= self.nodes, "a shape's route never arrives"
            here = current[flows]
            there = self.next_node(source[flows], destination[flows], here)
            hops.append((flows, np.searchsorted(self._keys, here * self.nodes + there)))
            current[flows] = there
            flows = flows[there != destination[flows]]
        if not hops:
            return Routes(np.zeros(len(source) + 1, np.int64), np.zeros(0, np.int64))
        flow = np.concatenate([hop[0] for hop in hops])
        order = np.argsort(flow, kind="stable")
        return Routes(starts_by(flow, len(source)), np.concatenate([hop[1] for hop in hops])[order])


@dataclass(frozen=True, eq=False)
class Wires:
    """Links that a shape lays, with one rate for all of them or one each."""

    source: Int64s
    destination: Int64s
    bandwidth: Int64s
    latency: Int64s


def wires(source: Int64s, destination: Int64s, rate: Rate | Dimension) -> Wires:
    """Return links of one rate."""
    size = len(source)
    return Wires(source, destination, np.full(size, rate.bandwidth), np.full(size, rate.latency))


def both_directions(
    source: Int64s, destination: Int64s, rate: Rate | Dimension, reverse: Rate | None = None
) -> list[Wires]:
    """Return links and their opposites, which have `reverse`'s rate where it is given."""
    return [wires(source, destination, rate), wires(destination, source, reverse or rate)]


def block(positions: int, nodes: int, laid: list[Wires], next_node: NextNode, *, nics: int = 0) -> Block:
    """Return the block of all links laid, sorted."""
    source = np.concatenate([part.source for part in laid]).astype(np.int64)
    destination = np.concatenate([part.destination for part in laid]).astype(np.int64)
    order = np.lexsort((destination, source))
    bandwidth = np.concatenate([part.bandwidth for part in laid])
    latency = np.concatenate([part.latency for part in laid])
    columns = source[order], destination[order], bandwidth[order], latency[order]
    return Block(positions, nics, nodes, *columns, next_node)


def check_links(links: int, name: str) -> None:
    """Refuse a block of more links than any machine has, before it takes the memory."""
    if links > LARGEST_BLOCK:
        raise TopologyError(f"dimension {name}: {links} links; allowed: up to {LARGEST_BLOCK} in one block")
