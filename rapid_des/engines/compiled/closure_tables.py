"""R8: the network of a program, with the routes and sizes that closing links add during the run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rapid_des.engines.compiled.flat import Array, Flat, Network
from rapid_des.network.protocol import FluidService
from rapid_des.program.faults.closures import Closures

Links = tuple[int, ...]
Profile = tuple[tuple[int, int], ...]
"""The (bandwidth, latency) of each link of a route, on which its times depend."""
UNKNOWN = -2
"""The value in `Network.detour` of a route that is closed, for which no other has been found yet."""
_BY_HOP, _BY_FLOW = ("occupancy", "head", "lag"), ("ratio", "before", "after")
_TAILS = ("across", "along")
_BY_ROUTE, _BY_SIZE = ("route_starts", "detour"), ("payload", "parts", "first_part", "last_part")


class GrowingArray:
    """A column that grows; arrays that were read from it before keep their rows."""

    def __init__(self, values: Array) -> None:
        self._room = values
        self._length = len(values)

    @property
    def values(self) -> Array:
        """The rows so far."""
        return self._room[: self._length]

    def extend(self, values: Sequence[int] | Array) -> int:
        """Add rows; return the number of the first one."""
        begin, self._length = self._length, self._length + len(values)
        if self._length > len(self._room):
            room = np.zeros(self._length + self._length // 2, self._room.dtype)
            room[:begin] = self._room[:begin]
            self._room = room  # arrays that were read before stay as they are
        self._room[begin : self._length] = values
        return begin


class ClosureTables:
    """Adds rows and columns behind those of the program, so that numbers which engines hold stay valid."""

    def __init__(self, flat: Flat, closures: Closures, *, fluid: bool) -> None:
        network = flat.network
        self._closures, self._fluid = closures, fluid
        self._tables = _BY_FLOW if fluid else (*_BY_HOP, *(_TAILS if network.along.size else ()))
        self._empty_route = int(network.back[-1]) if fluid and not closures.answered else 0
        """The route without links, which is the route back where nothing is acknowledged."""
        self._width = getattr(network, self._tables[0]).shape[1]
        """The number of columns of the service tables that are used."""
        self._rows = {size: row for row, size in enumerate(network.payload.tolist())}
        """Maps bytes to the size row of a transfer of one part."""
        self._messages = list(range(len(network.payload)))
        """The size rows of messages and their parts; other rows are pieces that closures cut off."""
        self._part_rows: dict[tuple[int, ...], int] = {}
        """Maps the bytes of all parts to the size row of the message."""
        self._sizes, self._planned = len(network.payload), len(network.route_starts) - 1
        self._routes: dict[tuple[Links, Links], int] = {}
        self._places: dict[Profile, int] = {}
        """Maps the profile of an added route to its first column in the service tables."""
        self._profiles: dict[int, Profile] = {}
        self._filled: set[tuple[int, int | Profile]] = set()
        """The (size row, route or profile) whose services are in the tables."""
        self._avoided = np.zeros(0, np.int64)
        network = network._replace(detour=np.arange(self._planned, dtype=np.int32))
        by_route = ("profile", "back") if fluid else ()
        by_size = (*_BY_SIZE, "wire") if fluid else _BY_SIZE
        names = (*_BY_ROUTE, "route_links", "route_class", *by_route, *by_size, "pair_route")
        self._columns = {name: GrowingArray(getattr(network, name)) for name in names}
        self.flat = flat._replace(network=network)

    def links_of(self, route: int) -> Links:
        """Return the links of a route."""
        starts = self.flat.network.route_starts
        return tuple(self.flat.network.route_links[starts[route] : starts[route + 1]].tolist())

    def crossed(self, route: int) -> Links:
        """Return the links that a message of a route needs, for a flow also those of the route back."""
        back = self.links_of(int(self.flat.network.back[route])) if self._fluid else ()
        return self.links_of(route) + back

    def avoid(self, links: frozenset[int]) -> None:
        """Mark the routes over some links: their messages need another route when they start."""
        self._avoided = np.array(sorted(links), np.int64)
        self._mark_lost_routes(0)

    def _mark_lost_routes(self, first: int) -> None:
        """Mark the routes from number `first` on that cross an avoided link."""
        network = self.flat.network
        starts = network.route_starts[first:]
        lost = np.isin(network.route_links[starts[0] :], self._avoided)
        # The avoided links of a route are the difference of two running counts, for all routes at once.
        counts = np.concatenate(([0], np.cumsum(lost)))
        gone = np.diff(counts[starts - starts[0]]) > 0
        if self._fluid and first:
            gone |= [bool(np.isin(self.links_of(back), self._avoided).any()) for back in network.back[first:]]
        elif self._fluid:
            gone |= gone[network.back]
        network.detour[first:] = np.where(gone, UNKNOWN, np.arange(first, first + len(gone)))

    def piece(self, links: Links, size: int, back: Links = ()) -> tuple[int, int]:
        """Return (route, size row) of bytes on links, and add their services to the tables."""
        route, row = self.route(links, back), self.row(size)
        self._fill(row, route)
        return route, row

    def resized(self, route: int, size: int) -> int:
        """Return the size row of bytes on a known route, and add their services to the tables."""
        row = self.row(size)
        self._fill(row, route)
        return row

    def row(self, size: int) -> int:
        """Return the size row of a transfer of one part, in bytes."""
        if size not in self._rows:
            self._rows[size] = self._new_row(size)
        return self._rows[size]

    def message(self, parts: Sequence[int]) -> int:
        """Return the size row of a message in parts, with services on every added route."""
        sizes = tuple(parts)
        if sizes not in self._part_rows:
            first, last = self.row(sizes[0]), self.row(sizes[-1])
            self._part_rows[sizes] = row = self._new_row(sum(sizes), (len(sizes), first, last))
            new = [each for each in dict.fromkeys((first, last, row)) if each not in self._messages]
            self._messages += new
            # Routes of one profile have the same services: one of each is enough.
            for route in {self._profile_of(route): route for route in self._routes.values()}.values():
                self._fill_all(new, route)
        return self._part_rows[sizes]

    def _new_row(self, size: int, parts: tuple[int, int, int] | None = None) -> int:
        row = len(self.flat.network.payload)
        columns = (size, *(parts or (1, row, row)), *((0,) if self._fluid else ()))
        self._extend(zip((*_BY_SIZE, "wire"), ((value,) for value in columns), strict=False))
        self._widen_tables(rows=row + 1)
        return row

    def pairs(self, routes: Sequence[int]) -> int:
        """Add the routes of the pairs of a template; return the row of the first one."""
        begin = len(self.flat.network.pair_route)
        self._extend([("pair_route", routes)])
        return begin

    def route(self, links: Links, back: Links = ()) -> int:
        """Return the number of the route over some links, added if needed with services for every message."""
        if (links, back) not in self._routes:
            return_route = self.route(back) if back else self._empty_route
            self._routes[links, back] = route = self._add_route(links, return_route)
            if back or not self._closures.answered:
                self._fill_all(self._messages, route)
            self._mark_lost_routes(route)
        return self._routes[links, back]

    def _add_route(self, links: Links, return_route: int) -> int:
        network = self.flat.network
        route, place = len(network.route_starts) - 1, self._first_column(links)
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

    def _first_column(self, links: Links) -> int:
        """Return the first column of a route in the service tables; routes of one profile share columns."""
        profile = self._profile(links)
        if profile not in self._places:
            self._places[profile] = self._width
            self._width += 1 if self._fluid else len(links)
            self._widen_tables(columns=self._width)
        return self._places[profile]

    def _profile(self, links: Links) -> Profile:
        rates, latencies = self._closures.fabric.bandwidth, self._closures.fabric.latency
        return tuple((int(rates[link]), int(latencies[link])) for link in links)

    def _profile_of(self, route: int) -> Profile:
        if route not in self._profiles:
            self._profiles[route] = self._profile(self.links_of(route))
        return self._profiles[route]

    def _fill_all(self, rows: Iterable[int], route: int) -> None:
        for row in rows:
            self._fill(row, route)

    def _fill(self, row: int, route: int) -> None:
        """Add the services of a size on a route to the tables."""
        planned = route < self._planned
        key = row, route if planned else self._profile_of(route)
        if (row < self._sizes and planned) or key in self._filled:
            return
        self._filled.add(key)
        network, links = self.flat.network, self.links_of(route)
        size = int(network.payload[row])
        if self._fluid:
            if links:
                self._fill_flow(network, row, int(network.profile[route]), self._closures.flow(links, size))
            return
        classes = network.route_class[network.route_starts[route] : network.route_starts[route + 1]]
        for hop, times in zip(classes.tolist(), self._closures.services(links, size), strict=True):
            for name, value in zip(self._tables, times, strict=False):
                getattr(network, name)[row, hop] = value

    def _fill_flow(self, network: Network, row: int, profile: int, service: FluidService) -> None:
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

    def _widen_tables(self, rows: int = 0, columns: int = 0) -> None:
        """Extend the service tables to a number of rows and columns."""
        changed = {}
        for name in self._tables:
            table = getattr(self.flat.network, name)
            had = table.shape
            wanted = zip((rows, columns), had, strict=True)
            # Half as much again, so that many small additions do not copy the table each time.
            more = [0 if want <= now else want - now + now // 2 for want, now in wanted]
            if any(more):
                changed[name] = np.pad(table, ((0, more[0]), (0, more[1])))
        self._replace(changed)

    def _replace(self, columns: dict[str, Any]) -> None:
        self.flat = self.flat._replace(network=self.flat.network._replace(**columns))
