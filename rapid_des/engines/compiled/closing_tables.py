"""R8: the network of a program, and the routes and sizes that closing links add to it while it runs."""

from __future__ import annotations

import numpy as np

from rapid_des.engines.compiled.flat import Array, Flat
from rapid_des.program.faults.closures import Closures

Links = tuple[int, ...]
UNKNOWN = -2
"""In `Network.detour`: messages of the route can not take it, and it is not known which one instead."""
_BY_HOP, _BY_FLOW = ("occupancy", "head", "lag"), ("ratio", "before", "after")
_TAILS = ("across", "along")


class Tables:
    """Rows and columns are added behind those of the program: the numbers that engines hold stay right."""

    def __init__(self, flat: Flat, closures: Closures, *, fluid: bool) -> None:
        network = flat.network
        self._closures, self._fluid = closures, fluid
        self._tables = _BY_FLOW if fluid else (*_BY_HOP, *(_TAILS if network.along.size else ()))
        self._rows = {size: row for row, size in enumerate(network.payload.tolist())}
        self._sizes, self._planned = len(network.payload), len(network.route_starts) - 1
        self._routes: dict[tuple[Links, Links], int] = {}
        self._covered: set[tuple[int, int]] = set()
        detour = np.arange(self._planned, dtype=np.int32)
        self.flat = flat._replace(network=network._replace(detour=detour))

    def links_of(self, route: int) -> Links:
        """Return the links of a route."""
        starts = self.flat.network.route_starts
        return tuple(self.flat.network.route_links[starts[route] : starts[route + 1]].tolist())

    def crossed(self, route: int) -> Links:
        """Return the links that a message of a route needs: in the fluid mode also those back."""
        back = self.links_of(int(self.flat.network.back[route])) if self._fluid else ()
        return self.links_of(route) + back

    def avoid(self, links: frozenset[int]) -> None:
        """Have messages of the program's routes over some links find another one when they set off."""
        network = self.flat.network
        lost = np.isin(network.route_links[: network.route_starts[self._planned]], sorted(links))
        counts = np.concatenate(([0], np.cumsum(lost)))
        gone = np.diff(counts[network.route_starts[: self._planned + 1]]) > 0
        if self._fluid:
            gone |= gone[network.back[: self._planned]]
        network.detour[:] = np.where(gone, UNKNOWN, np.arange(self._planned))

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
        """Return the row of a size in bytes."""
        if size not in self._rows:
            network = self.flat.network
            self._rows[size] = len(network.payload)
            columns = {"payload": np.append(network.payload, size)}
            if self._fluid:
                columns["wire"] = np.append(network.wire, 0)
            self._replace(columns | {name: _grown(getattr(network, name), rows=1) for name in self._tables})
        return self._rows[size]

    def route(self, links: Links, back: Links = ()) -> int:
        """Return the number of a route, and of its acknowledgements' route back; any message can take it."""
        if (links, back) not in self._routes:
            return_route = self.route(back) if back else 0
            self._routes[links, back] = route = self._added(links, return_route)
            for row in range(self._sizes if back or not self._fluid else 0):
                self._cover(row, route)
        return self._routes[links, back]

    def _added(self, links: Links, return_route: int) -> int:
        network = self.flat.network
        route, columns = len(network.route_starts) - 1, len(getattr(network, self._tables[0])[0])
        places = np.zeros(len(links), np.int32) if self._fluid else np.arange(columns, columns + len(links))
        changed = {
            "route_starts": np.append(network.route_starts, network.route_starts[-1] + len(links)),
            "route_links": np.append(network.route_links, np.array(links, np.int32)),
            "route_class": np.append(network.route_class, places.astype(np.int32)),
        }
        if self._fluid:
            changed["profile"] = np.append(network.profile, np.int32(columns))
            changed["back"] = np.append(network.back, np.int32(return_route))
        width = 1 if self._fluid else len(links)
        self._replace(
            changed | {name: _grown(getattr(network, name), columns=width) for name in self._tables}
        )
        return route

    def _cover(self, row: int, route: int) -> None:
        """Have what a size takes on a route stand in the tables."""
        if (row < self._sizes and route < self._planned) or (row, route) in self._covered:
            return
        self._covered.add((row, route))
        network, links = self.flat.network, self.links_of(route)
        size = int(network.payload[row])
        if self._fluid:
            service, profile = self._closures.flow(links, size), network.profile[route]
            network.wire[row] = service.wire
            for name in _BY_FLOW:
                getattr(network, name)[row, profile] = getattr(service, name)
            return
        classes = network.route_class[network.route_starts[route] : network.route_starts[route + 1]]
        for hop, times in zip(classes.tolist(), self._closures.services(links, size), strict=True):
            for name, value in zip(self._tables, times, strict=False):
                getattr(network, name)[row, hop] = value

    def _replace(self, columns: dict[str, Array]) -> None:
        self.flat = self.flat._replace(network=self.flat.network._replace(**columns))


def _grown(table: Array, rows: int = 0, columns: int = 0) -> Array:
    return np.pad(table, ((0, rows), (0, columns)))
