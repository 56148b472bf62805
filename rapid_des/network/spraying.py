"""Equal routes over switches, and longer ones beside them, for messages that are spread over several of them.

An equal route comes by the GPUs by which the planned one comes. Between two of those it is any shortest path
over switches and NICs, where the planned one is as short; dead links are left out. A detour is a shortest
path to a third switch and a shortest one on from there, longer than the plan and by no node twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int32s, Int64s, hashed, starts_of
from rapid_des.network.fabric import Fabric, Routes
from rapid_des.network.routing import UNREACHED, levels
from rapid_des.network.specs import Spray

Path = tuple[int, ...]
_PLACES = 64
"""The length of the sequence that represents unequal shares."""
_TRIES = 4
"""The numbers that are tried for each route, since some give a route that is already known."""
_THIRD, _AFTER = 21, 22
"""The salts that are hashed with a flow's source and destination."""


class AlternativeRoutes(Struct, frozen=True):
    """Routes, then their alternatives; row i says which of all these may carry what route i carries."""

    routes: Routes
    starts: Int64s
    numbers: Int32s
    """The route numbers, row after row."""
    minimal: Int32s
    """[row] the number of its columns that are not detours; these come first."""


def spread(fabric: Fabric, dead: frozenset[int], routes: Routes, spray: Spray) -> AlternativeRoutes:
    """Return the candidates for each route: in order of use by parts, or each once to choose from."""
    equal_routes = _EqualRoutes(fabric, dead)
    known = [routes.of(route) for route in range(len(routes))]
    rows, minimal = list[list[int]](), list[int]()
    for route, planned in enumerate(known[:]):
        paths = equal_routes.of(planned, spray.ways)
        detours = equal_routes.detours(planned, spray.detours)
        others = [*paths[1:], *detours]
        numbers = [route, *range(len(known), len(known) + len(others))]
        known += others
        shares = [int(fabric.bandwidth[list(path)].min()) if path else 1 for path in paths]
        equal = spray.weights == "equal" or len(set(shares)) == 1
        minimal.append(len(paths))
        if detours:
            rows.append(numbers)
        else:
            places = _interleaved([1] * len(paths) if equal else shares)
            rows.append([numbers[place] for place in places])
    links = np.array([link for path in known for link in path], np.int64)
    return AlternativeRoutes(
        Routes(starts_of([len(path) for path in known]), links),
        starts_of(list(map(len, rows))),
        np.array([number for row in rows for number in row], np.int32),
        np.array(minimal, np.int32),
    )


def _interleaved(shares: Sequence[int]) -> Iterator[int]:
    """Yield who goes next so that each gets its share: the one that is farthest behind, the first on ties.

    >>> list(_interleaved([1, 1, 1])), list(_interleaved([2, 1]))[:6]
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
        """Return the planned route, and up to `most` equal routes with it."""
        paths = {planned: None}
        for number in range(1, most * _TRIES):
            if len(paths) == most:
                break
            paths[self._route(planned, number)] = None
        return list(paths)

    def detours(self, planned: Path, most: int) -> list[Path]:
        """Return up to `most` longer routes between the ends of a route that crosses no GPU."""
        longer, legs = dict[Path, None](), list(self._legs(planned))
        if most == 0 or len(legs) != 1:
            return []
        thirds = self._thirds(planned)
        for number in range(2 * most * _TRIES if len(thirds) else 0):
            path = self._over(planned, thirds, number)
            if path is not None:
                longer[path] = None
            if len(longer) == most:
                break
        return list(longer)

    def _thirds(self, planned: Path) -> Int64s:
        """Return the switches where a route may turn: of the dimensions that it crosses between switches."""
        fabric, first = self._fabric, self._fabric.gpus + self._fabric.nics
        links, between = list(planned), (fabric.source >= first) & (fabric.destination >= first)
        dimensions = fabric.dimension[links][between[links]]
        there = fabric.destination[between & self._alive & np.isin(fabric.dimension, dimensions)]
        return np.setdiff1d(there, fabric.destination[links]).astype(np.int64)

    def _over(self, planned: Path, thirds: Int64s, number: int) -> Path | None:
        """Return a route over one of the third switches; None if that is no longer one, or comes back."""
        fabric = self._fabric
        ends = int(fabric.source[planned[0]]), int(fabric.destination[planned[-1]])
        flow = np.array([ends[0]]), np.array([ends[1]])
        third = int(thirds[int(hashed(*flow, (number, _THIRD))[0]) % len(thirds)])
        draws = (int(hashed(*flow, (number, _AFTER, half))[0]) for half in (0, 1))
        there, on = map(self._shortest, ((ends[0], third), (third, ends[1])), draws)
        path = (*there, *on)
        nodes = {ends[0], *fabric.destination[list(path)].tolist()}
        simple = len(nodes) == len(path) + 1
        return path if there and on and simple and len(path) > len(planned) else None

    def _shortest(self, ends: tuple[int, int], number: int) -> Path:
        """Return one of the shortest paths by no other GPU, by its number; none if there is none."""
        (node, end), links = ends, list[int]()
        hops = self._hops(end)
        if hops[node] == UNREACHED:
            return ()
        while node != end:
            nearer = self._nearer(node, end, hops)
            number, branch = divmod(number, len(nearer))
            links.append(nearer[branch])
            node = int(self._fabric.destination[links[-1]])
        return tuple(links)

    def _route(self, planned: Path, number: int) -> Path:
        """Return a route by its number: the digits say how far beside the plan it turns where routes part."""
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
                number, branch = divmod(number, len(nearer))
                links.append(nearer[(at + branch) % len(nearer)])
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
        return levels(fabric.incoming, fabric.source, end, passes)
