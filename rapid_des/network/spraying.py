"""Equal ways over switches, for messages that are spread over several of them.

A way comes by the GPUs by which the planned route comes. Between two of those it is any shortest path over
switches and NICs, where the planned one is as short; dead links are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from rapid_des.arrays import Int32s, Int64s, starts_of
from rapid_des.network.fabric import Fabric, Routes
from rapid_des.network.paths import levels
from rapid_des.network.specs import Spray

Path = tuple[int, ...]
_PLACES = 64
"""Length of the sequence that stands for unequal shares."""
_TRIES = 4
"""Numbers that are tried for each way: some give one that is known."""


def spread(
    fabric: Fabric, dead: frozenset[int], routes: Routes, spray: Spray
) -> tuple[Routes, Int64s, Int32s]:
    """Return the routes with other ways behind them, and which of all these each route's parts take in turn.

    The latter as the starts of rows, one a route, and their columns.
    """
    equal_routes = _EqualRoutes(fabric, dead)
    known, cycles = [routes.of(route) for route in range(len(routes))], list[list[int]]()
    for route, planned in enumerate(known[:]):
        paths = equal_routes.of(planned, spray.ways)
        numbers = [route, *range(len(known), len(known) + len(paths) - 1)]
        known += paths[1:]
        shares = [int(fabric.bandwidth[list(path)].min()) if path else 1 for path in paths]
        equal = spray.weights == "equal" or len(set(shares)) == 1
        cycles.append([numbers[number] for number in _interleaved([1] * len(paths) if equal else shares)])
    links = np.array([link for path in known for link in path], np.int64)
    order = np.array([number for row in cycles for number in row], np.int32)
    return Routes(starts_of([len(path) for path in known]), links), starts_of(list(map(len, cycles))), order


def _interleaved(shares: Sequence[int]) -> Iterator[int]:
    """Yield whose turn it is so that each gets its share: the one that is farthest behind, the first on ties.

    >>> list(_in_turn([1, 1, 1])), list(_in_turn([2, 1]))[:6]
    ([0, 1, 2], [0, 1, 0, 0, 1, 0])
    """
    behind = [0] * len(shares)
    for _ in range(len(shares) if len(set(shares)) == 1 else _PLACES):
        behind = [claim + share for claim, share in zip(behind, shares, strict=True)]
        chosen = max(range(len(shares)), key=behind.__getitem__)
        behind[chosen] -= sum(shares)
        yield chosen


class _EqualRoutes:
    """Shortest paths over switches between GPUs."""

    def __init__(self, fabric: Fabric, dead: frozenset[int]) -> None:
        self._fabric = fabric
        self._alive = fabric.alive(dead)
        self._hops = cache(self._hops_to)

    def of(self, planned: Path, most: int) -> list[Path]:
        """Return the planned route, and up to `most` ways with it."""
        paths = {planned: None}
        for number in range(1, most * _TRIES):
            if len(paths) == most:
                break
            paths[self._route(planned, number)] = None
        return list(paths)

    def _route(self, planned: Path, number: int) -> Path:
        """Return a way by its number: the digits say how far beside the plan it turns where ways part."""
        fabric, links = self._fabric, list[int]()
        for leg in self._legs(planned):
            node, end = int(fabric.source[leg[0]]), int(fabric.destination[leg[-1]])
            hops = self._hops(end)
            if hops[node] != len(leg):
                links += leg
                continue
            for link in leg:
                nearer = self._nearer(node, end, hops)
                at = nearer.index(link) if link in nearer else 0
                number, turn = divmod(number, len(nearer))
                links.append(nearer[(at + turn) % len(nearer)])
                node = int(fabric.destination[links[-1]])
        return tuple(links)

    def _legs(self, planned: Path) -> Iterator[list[int]]:
        """Yield the parts of a route from GPU to GPU."""
        leg = list[int]()
        for link in planned:
            leg.append(link)
            if self._fabric.destination[link] < self._fabric.gpus:
                yield leg
                leg = []
        if leg:
            yield leg

    def _nearer(self, node: int, end: int, hops: Int32s) -> list[int]:
        """Return the links from a node that lead one hop nearer to a leg's end, by destination."""
        fabric = self._fabric
        starts, outgoing = fabric.outgoing
        links = outgoing[starts[node] : starts[node + 1]]
        ends = fabric.destination[links]
        passes = self._alive[links] & ((ends >= fabric.gpus) | (ends == end))
        return [int(link) for link in links[passes & (hops[ends] == hops[node] - 1)]]

    def _hops_to(self, end: int) -> Int32s:
        fabric = self._fabric
        passes = self._alive & ((fabric.destination >= fabric.gpus) | (fabric.destination == end))
        return levels(fabric.incoming, fabric.source, end, passes, fabric.nodes)
