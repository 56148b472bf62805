"""R8: the network of a program, and the routes and sizes that closing links add to it while it runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rapid_des.engines.compiled.flat import Array, Flat, Network
from rapid_des.network.protocol import FluidService
from rapid_des.program.faults.closures import Closures

Links = tuple[int, ...]
Profile = tuple[tuple[int, int], ...]
"""(bandwidth, latency) of each link of a route: what times on it depend on."""
UNKNOWN = -2
"""In `Network.detour`: messages of the route can not take it, and it is not known which one instead."""
_BY_HOP, _BY_FLOW = ("occupancy", "head", "lag"), ("ratio", "before", "after")
_TAILS = ("across", "along")
_BY_ROUTE, _BY_SIZE = ("route_starts", "detour"), ("payload", "parts", "first_part", "last_part")


class Column:
    """A column that grows; what was taken of it before keeps its rows."""

    def __init__(self, values: Array) -> None:
        self._room = values
        self._length = len(values)

    @property
    def values(self) -> Array:
        """Its rows so far."""
        return self._room[: self._length]

    def extend(self, values: Sequence[int] | Array) -> int:
        """Add rows; return where they begin."""
        begin, self._length = self._length, self._length + len(values)
        if self._length > len(self._room):
            room = np.zeros(self._length + self._length // 2, self._room.dtype)
            room[:begin] = self._room[:begin]
            self._room = room
        self._room[begin : self._length] = values
        return begin


class Tables:
    """Rows and columns are added behind those of the program: the numbers that engines hold stay right."""

    def __init__(self, flat: Flat, closures: Closures, *, fluid: bool) -> None:
        network = flat.network
        self._closures, self._fluid = closures, fluid
        self._tables = _BY_FLOW if fluid else (*_BY_HOP, *(_TAILS if network.along.size else ()))
        self._nowhere = int(network.back[-1]) if fluid and not closures.answered else 0
        """The route of no links, which is the route back where nothing is acknowledged."""
        self._width = getattr(network, self._tables[0]).shape[1]
        self._rows = {size: row for row, size in enumerate(network.payload.tolist())}
        self._messages = list(range(len(network.payload)))
        """Rows of what sets off; the others are pieces of that."""
        self._cut: dict[tuple[int, ...], int] = {}
        self._sizes, self._planned = len(network.payload), len(network.route_starts) - 1
        self._routes: dict[tuple[Links, Links], int] = {}
        self._places: dict[Profile, int] = {}
        """Of a route that was added: the first of its columns in the tables."""
        self._profiles: dict[int, Profile] = {}
        self._covered: set[tuple[int, int | Profile]] = set()
        self._avoided = np.zeros(0, np.int64)
        network = network._replace(detour=np.arange(self._planned, dtype=np.int32))
        by_route = ("profile", "back") if fluid else ()
        by_size = (*_BY_SIZE, "wire") if fluid else _BY_SIZE
        names = (*_BY_ROUTE, "route_links", "route_class", *by_route, *by_size, "pair_route")
        self._columns = {name: Column(getattr(network, name)) for name in names}
        self.flat = flat._replace(network=network)

    def links_of(self, route: int) -> Links:
        """Return the links of a route."""
        starts = self.flat.network.route_starts
        return tuple(self.flat.network.route_links[starts[route] : starts[route + 1]].tolist())

    def crossed(self, route: int) -> Links:
        """Return the links that a message of a route needs: in the fluid mode also those back."""
        back = self.links_of(int(self.flat.network.back[route])) if self._fluid else ()
        return self.links_of(route) + back

    def avoid(self, links: frozenset[int]) -> None:
        """Have messages on routes over some links find another one when they set off."""
        self._avoided = np.array(sorted(links), np.int64)
        self._look_for_detours(0)

    def _look_for_detours(self, first: int) -> None:
        """Have no route from the first on be taken that crosses what is avoided."""
        network = self.flat.network
        starts = network.route_starts[first:]
        lost = np.isin(network.route_links[starts[0] :], self._avoided)
        counts = np.concatenate(([0], np.cumsum(lost)))
        gone = np.diff(counts[starts - starts[0]]) > 0
        if self._fluid and first:
            gone |= [bool(np.isin(self.links_of(back), self._avoided).any()) for back in network.back[first:]]
        elif self._fluid:
            gone |= gone[network.back]
        network.detour[first:] = np.where(gone, UNKNOWN, np.arange(first, first + len(gone)))

    def piece(self, links: Links, size: int, back: Links = ()) -> tuple[int, int]:
        """Return (route, size row) of some bytes on some links; their services are then in the tables."""
        route, row = self.route(links, back), self.row(size)
        self._cover(row, route)
        return route, row

    def resized(self, route: int, size: int) -> int:
        """Return the size row of some bytes on a route that is known."""
        row = self.row(size)
        self._cover(row, route)
        return row

    def row(self, size: int) -> int:
        """Return the row of a size in bytes that goes as a whole."""
        if size not in self._rows:
            self._rows[size] = self._new_row(size)
        return self._rows[size]

    def message(self, parts: Sequence[int]) -> int:
        """Return the row of a message that goes in parts; any route that is in the tables can take it."""
        sizes = tuple(parts)
        if sizes not in self._cut:
            first, last = self.row(sizes[0]), self.row(sizes[-1])
            self._cut[sizes] = row = self._new_row(sum(sizes), (len(sizes), first, last))
            new = [each for each in dict.fromkeys((first, last, row)) if each not in self._messages]
            self._messages += new
            for route in {self._profile_of(route): route for route in self._routes.values()}.values():
                self._cover_all(new, route)
        return self._cut[sizes]

    def _new_row(self, size: int, parts: tuple[int, int, int] | None = None) -> int:
        row = len(self.flat.network.payload)
        columns = (size, *(parts or (1, row, row)), *((0,) if self._fluid else ()))
        self._extend(zip((*_BY_SIZE, "wire"), ((value,) for value in columns), strict=False))
        self._widen(rows=row + 1)
        return row

    def pairs(self, routes: Sequence[int]) -> int:
        """Add the routes of the pairs of a template; return where they begin."""
        begin = len(self.flat.network.pair_route)
        self._extend([("pair_route", routes)])
        return begin

    def route(self, links: Links, back: Links = ()) -> int:
        """Return the number of a route, and of its acknowledgements' route back; any message can take it."""
        if (links, back) not in self._routes:
            return_route = self.route(back) if back else self._nowhere
            self._routes[links, back] = route = self._added(links, return_route)
            if back or not self._closures.answered:
                self._cover_all(self._messages, route)
            self._look_for_detours(route)
        return self._routes[links, back]

    def _added(self, links: Links, return_route: int) -> int:
        network = self.flat.network
        route, place = len(network.route_starts) - 1, self._place(links)
        places = np.zeros(len(links), np.int32) if self._fluid else np.arange(place, place + len(links))
        self._extend(
            [
                ("route_starts", [network.route_starts[-1] + len(links)]),
                ("detour", [route]),
                ("route_links", links),
                ("route_class", places),
                *([("profile", [place]), ("back", [return_route])] if self._fluid else []),
            ]
        )
        return route

    def _place(self, links: Links) -> int:
        """Return the first column of a route in the tables; those of one profile have the same."""
        profile = self._profile(links)
        if profile not in self._places:
            self._places[profile] = self._width
            self._width += 1 if self._fluid else len(links)
            self._widen(columns=self._width)
        return self._places[profile]

    def _profile(self, links: Links) -> Profile:
        rates, latencies = self._closures.fabric.bandwidth, self._closures.fabric.latency
        return tuple((int(rates[link]), int(latencies[link])) for link in links)

    def _profile_of(self, route: int) -> Profile:
        if route not in self._profiles:
            self._profiles[route] = self._profile(self.links_of(route))
        return self._profiles[route]

    def _cover_all(self, rows: Iterable[int], route: int) -> None:
        for row in rows:
            self._cover(row, route)

    def _cover(self, row: int, route: int) -> None:
        """Have what a size takes on a route stand in the tables."""
        planned = route < self._planned
        key = row, route if planned else self._profile_of(route)
        if (row < self._sizes and planned) or key in self._covered:
            return
        self._covered.add(key)
        network, links = self.flat.network, self.links_of(route)
        size = int(network.payload[row])
        if self._fluid:
            if links:
                self._cover_flow(network, row, int(network.profile[route]), self._closures.flow(links, size))
            return
        classes = network.route_class[network.route_starts[route] : network.route_starts[route + 1]]
        for hop, times in zip(classes.tolist(), self._closures.services(links, size), strict=True):
            for name, value in zip(self._tables, times, strict=False):
                getattr(network, name)[row, hop] = value

    def _cover_flow(self, network: Network, row: int, profile: int, service: FluidService) -> None:
        network.wire[row] = service.wire
        for name in _BY_FLOW:
            getattr(network, name)[row, profile] = getattr(service, name)

    def _extend(self, columns: Iterable[tuple[str, Sequence[int] | Array]]) -> None:
        """Add rows to columns of the network."""
        changed = {}
        for name, values in columns:
            self._columns[name].extend(values)
            changed[name] = self._columns[name].values
        self._replace(changed)

    def _widen(self, rows: int = 0, columns: int = 0) -> None:
        """Have the tables be so large at least."""
        changed = {}
        for name in self._tables:
            table = getattr(self.flat.network, name)
            had = table.shape
            wanted = zip((rows, columns), had, strict=True)
            more = [0 if want <= now else want - now + now // 2 for want, now in wanted]
            if any(more):
                changed[name] = np.pad(table, ((0, more[0]), (0, more[1])))
        self._replace(changed)

    def _replace(self, columns: dict[str, Any]) -> None:
        self.flat = self.flat._replace(network=self.flat.network._replace(**columns))
