"""R10 and R12: which of the routes of its pair a message takes, or a part of it."""

from __future__ import annotations

from collections.abc import Callable

from rapid_des.program.delays import column_of
from rapid_des.program.program import NO_LOAD, Program, SprayTable
from rapid_des.program.services import services_of

Load = Callable[[int], int]
"""Maps a link to the picoseconds of work that wait there."""


class SprayedRoutes:
    """The routes that stand for every pair's planned one."""

    def __init__(self, program: Program, spray: SprayTable, load: Load) -> None:
        self.per_message, self.by_load = spray.per_message, spray.load is not None
        self._program, self._load = program, load
        self._minimal, self._bias = spray.load or NO_LOAD
        starts, routes = spray.starts.tolist(), spray.routes.tolist()
        self._rows = [routes[first:last] for first, last in zip(starts, starts[1:], strict=False)]

    def choose(self, route: int, size: int, number: int) -> int:
        """Return the route of a number: that column of a pair's row, or the least loaded from there on.

        `size` is the size row of what is to take it.
        """
        row: list[int] = self._rows[route]
        if not self.by_load or len(row) == 1:
            return row[number % len(row)]
        minimal, best = int(self._minimal[route]), list[tuple[int, int]]()
        for place in range(len(row)):
            column = column_of(number, place, minimal, len(row))
            extra = self._bias if column >= minimal else 0
            best.append((self._crossing(row[column], size) + extra, place))
        _, place = min(best)
        return row[column_of(number, place, minimal, len(row))]

    def _crossing(self, route: int, size: int) -> int:
        """Return the time to cross an idle route plus the work that waits on its links."""
        program = self._program
        hops = slice(*program.route_starts[route : route + 2].tolist())
        rows = list(services_of(program.hops, size, program.route_class[hops]))
        idle = sum(head + lag for _, head, lag, *_ in rows[:-1]) + rows[-1][0] + rows[-1][2]
        return idle + sum(map(self._load, program.route_links[hops].tolist()))
