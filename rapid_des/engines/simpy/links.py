"""Messages cross links: a piece of a message is a process that asks link after link to be served (R3, R6).

A message is one piece or, where the machine sends it in parts, one a part; it has arrived when all have.
Where links close (R8) a piece is interrupted, and its rest becomes another piece of the message.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from simpy.events import Event, Timeout
from simpy.exceptions import Interrupt

from rapid_des.arrays import Int64s
from rapid_des.engines.simpy.servers import (
    Arbiter,
    Hop,
    InFlightMessage,
    Key,
    Legs,
    LinkServer,
    Parts,
    PicosecondEnvironment,
    Piece,
    service_time_of,
)
from rapid_des.program.delays import column_of, message_hash
from rapid_des.program.program import NO_LOAD, NONE, LinkTrail, Program, RateRecords, SprayTable
from rapid_des.program.services import services_of
from rapid_des.program.timetable import advance, hop_times, tail_crosses

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


Steps = Generator[Event, Any, None]
"""The generator of a SimPy process."""
NO_TIMETABLE: tuple[list[int], list[int], list[int]] = ([], [], [])
NO_PACE: tuple[list[int], list[int]] = ([], [])


class RoutedParts(list[tuple[int, Legs]]):
    """The parts of a message on a route, with the size row of each."""

    def __init__(self, parts: Parts, route: int, rows: Sequence[int]) -> None:
        super().__init__(parts)
        self.route, self.rows = route, rows


class ClosureActions(Protocol):
    """The actions taken where links close (see `link_closures`)."""

    def around(self, message: InFlightMessage, parts: Parts) -> Parts:
        """Return the parts of a message that starts now, on a route without links known to be closed."""
        ...

    def stops(self, piece: Piece, place: int) -> bool:
        """Stop a piece if its next link is closed."""
        ...

    def go_on(self, piece: Piece, hop: Hop, interrupt: Interrupt) -> Generator[Event, Any, bool]:
        """Continue with the bytes that got through before a link closed; return whether there are any."""
        ...


class TieCounter:
    """Counts the instants at which a link chose by rank among those that asked for it (R3).

    Folding identical ranks into one is exact only without such choices. Messages that one rank sends at one
    instant are no tie, because their order belongs to the rank.
    """

    def __init__(self) -> None:
        self.count = 0
        self._first: dict[int, tuple[int, int, int]] = {}
        """Maps a link to (instant, position of the rank, hop) of the first message that asked then."""
        self._counted: dict[int, int] = {}

    def asks(self, link: int, moment: int, position: int, place: int) -> None:
        """See a rank's message ask for a link that is its hop number `place`."""
        first = self._first.get(link)
        if first is None or first[0] != moment:
            self._first[link] = (moment, position, place)
        elif (position != first[1] or place or first[2]) and self._counted.get(link) != moment:
            self._counted[link] = moment
            self.count += 1


class Links:
    """The links of a program, each a server; and their books."""

    def __init__(
        self, program: Program, arbiter: Arbiter, *, trail: list[Hop] | None, ties: TieCounter | None
    ) -> None:
        self.env: PicosecondEnvironment = arbiter.env
        self.timetables = {
            link: (table.time.tolist(), table.rate.tolist(), table.lag.tolist())
            for link, table in program.link_timetables.items()
        }
        self.pace_tables = {
            link: (table.time.tolist(), table.rate.tolist())
            for link, table in program.pace_timetables.items()
        }
        self.payload: list[int] = program.hops.bytes.tolist()
        self.closing: ClosureActions | None = None
        self.sprayed = None if program.spray is None else SprayedRoutes(program, program.spray, self.load)
        self.trail = trail
        self.ties = ties
        self.hops = 0
        self.received = 0
        self.program = program
        self._starts = program.route_starts.tolist()
        self._arbiter = arbiter
        self._servers: dict[int, LinkServer] = {}
        self._parts: dict[tuple[int, int], RoutedParts] = {}
        self._books: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0, 0])
        """The bytes, picoseconds of service and picoseconds that pieces waited, by link and label."""

    def parts(self, route: int, size: int) -> RoutedParts:
        """Return the parts of a message of a size row on a route; kept, as collectives repeat themselves."""
        parts = self._parts.get((route, size))
        if parts is None:
            rows, table = [size], self.program.hops.parts
            if table is not None and self._starts[route] < self._starts[route + 1]:
                rows = [int(table.first[size])] * int(table.count[size] - 1) + [int(table.last[size])]
            parts = self._parts[route, size] = RoutedParts(
                [
                    (self.payload[row], self._legs(self.part_route(route, part), row))
                    for part, row in enumerate(rows)
                ],
                route,
                rows,
            )
        return parts

    def part_route(self, route: int, part: int) -> int:
        """Return the route that a part of a message takes, if its number says so."""
        sprayed = self.sprayed
        if sprayed is None or sprayed.per_message or sprayed.by_load:
            return route
        return sprayed.choose(route, NONE, part)

    def message_route(self, route: int, size: int, sender: tuple[int, int]) -> int:
        """Return the route of a message that starts now; `sender` is its rank's position and its task."""
        sprayed = self.sprayed
        if sprayed is None or not sprayed.per_message:
            return route
        table, (position, task) = self.program.hops.parts, sender
        first = size if table is None else int(table.first[size])
        return sprayed.choose(route, first, message_hash(position, self.env.now, task))

    def load(self, link: int) -> int:
        """Return the service left on a link, with that of requests waiting since an earlier instant (R12)."""
        server, now = self._servers.get(link), self.env.now
        if server is None:
            return 0
        left = 0 if server.serving is None else max(0, server.serving.free - now)
        waiting = (hop for _, hop in server.queue if hop.ready < now)
        return left + sum(service_time_of(hop.piece, hop.place) for hop in waiting)

    def route_of(self, message: InFlightMessage, parts: RoutedParts, part: int) -> tuple[int, Legs]:
        """Return the route, with its legs, of a part that starts now."""
        legs, sprayed = parts[part][1], self.sprayed
        if sprayed is None or sprayed.per_message or not sprayed.by_load or not legs:
            return self.part_route(parts.route, part), legs
        position, injected, _, _, task = message.order
        number, row = message_hash(position, injected, task) + part, parts.rows[part]
        route = sprayed.choose(parts.route, row, number)
        return route, self._legs(route, row)

    def _legs(self, route: int, size: int) -> Legs:
        program, hops = self.program, slice(self._starts[route], self._starts[route + 1])
        rows = services_of(program.hops, size, program.route_class[hops])
        return list(zip(program.route_links[hops].tolist(), rows, strict=True))

    def send(self, message: InFlightMessage, parts: Parts) -> None:
        """Start a message."""
        if self.closing is not None:
            parts = self.closing.around(message, parts)
        message.pieces = len(parts)
        chosen = self.sprayed is not None and isinstance(parts, RoutedParts)
        if chosen or (len(parts) > 1 and self.pace_tables):
            self.env.process(self._part_by_part(message, parts))
            return
        wait = 0
        for number, (size, legs) in enumerate(parts):
            self.start(Piece(message, legs, size, number), wait)
            wait += self._pace(message, legs)

    def _part_by_part(self, message: InFlightMessage, parts: Parts) -> Steps:
        """Start parts one after another, each on the route that it chooses then."""
        for part, (size, planned) in enumerate(parts):
            legs = self.route_of(message, parts, part)[1] if isinstance(parts, RoutedParts) else planned
            self.start(Piece(message, legs, size, part))
            if part + 1 < len(parts):
                yield Timeout(self.env, self._pace(message, legs))

    def _pace(self, message: InFlightMessage, legs: Legs) -> int:
        """Return the time from the start of one part to the start of the next.

        A sender hands parts over at the rate of the slowest link of their route as that is by then.
        """
        now, moment = self.env.now, self.env.now
        for link, (occupancy, *_) in legs[: 1 if message.ahead else None]:
            time, rate = self.pace_tables.get(link, NO_PACE)
            moment = max(moment, advance(time, rate, now, occupancy))
        return moment - now

    def start(self, piece: Piece, wait: int = 0) -> None:
        """Start a piece after a delay."""
        if not piece.legs:
            wait = 1  # a message to its own GPU: no link, but a tick, so that an instant ends (R4)
        self.env.process(self._travel(piece, wait))

    def _travel(self, piece: Piece, wait: int) -> Steps:
        """Take a piece over its links."""
        env, closing = self.env, self.closing
        if wait:
            yield Timeout(env, wait)
        for place in range(len(piece.legs)):
            if closing is not None and closing.stops(piece, place):
                break
            hop = self._ask(piece, place)
            try:
                yield hop
            except Interrupt as interrupt:
                assert closing is not None, "only closing links interrupt"
                if not (yield from closing.go_on(piece, hop, interrupt)):
                    break
        self.arrive(piece)

    def arrive(self, piece: Piece) -> None:
        """Record the arrival of a piece, and with the last piece that of its message."""
        message = piece.message
        message.arrived += piece.size
        message.pieces -= 1
        if message.pieces == 0:
            assert message.arrived == message.size, "bytes were lost or doubled at a closing link"
            self.deliver(message)

    def _ask(self, piece: Piece, place: int) -> Hop:
        link, now, message = piece.legs[place][0], self.env.now, piece.message
        if self.ties is not None:
            self.ties.asks(link, now, message.order[0], place)
        hop = Hop(self.server(link), self._key(piece, place), piece, place)
        hop.ready = now
        if self.closing is not None:
            hop.process = self.env.active_process
        return hop

    def _key(self, piece: Piece, place: int) -> Key:
        message = piece.message
        return (message.priority, self.env.now, piece.part, message.order, place, piece.number)

    def _held_up(self, _: int) -> int:
        """Return how long a link is busy yet before it begins what it takes now."""
        return 0

    def serve(self, piece: Piece, hop: Hop) -> int:
        """Begin a hop that its link has taken: all its times follow. Return how long the piece is on it."""
        link, service = piece.legs[hop.place]
        now, size = self.env.now, piece.size
        start = now + self._held_up(link)
        table = self.timetables.get(link, NO_TIMETABLE)
        free, forward, _ = hop_times(service[:3], table, start)
        piece.crossed = tail_crosses(service[3:], table, start, free, piece.crossed)
        _, _, lag, across, _ = service
        arrival = piece.crossed - (across - lag)
        onward = forward if hop.place < len(piece.legs) - 1 else arrival
        hop.start, hop.size, hop.free, hop.onward, hop.arrival = start, size, free, onward, arrival
        self.hops += 1
        books = self._books[link, piece.message.label]
        books[0] += size
        books[1] += free - start
        books[2] += start - hop.ready
        if self.trail is not None:
            self.trail.append(hop)
        if self.closing is not None:
            piece.hops.append(hop)
        return onward - now

    def deliver(self, message: InFlightMessage) -> None:
        """Deliver a message."""
        self.received += message.size
        message.arrives()

    def server(self, link: int) -> LinkServer:
        """Return the server of a link."""
        server = self._servers.get(link)
        if server is None:
            server = self._servers[link] = self._new_server(link)
        return server

    def stopped(self) -> Int64s | None:
        """Return how long each link was stopped (R13); None where none can be."""
        return None

    def rates(self) -> RateRecords | None:
        """Return the records of marks and rates (R14); None where nothing is marked."""
        return None

    def _new_server(self, link: int) -> LinkServer:
        return LinkServer(self._arbiter, link, self.serve)

    def book(self, link: int, label: int, *, size: int, busy: int) -> None:
        """Add bytes and picoseconds of service to a link's sums."""
        books = self._books[link, label]
        books[0] += size
        books[1] += busy

    def sums(self, which: int) -> NDArray[np.int64]:
        """Return [link, label] of what was booked: 0 bytes, 1 service, 2 waits."""
        table = np.zeros((self.program.links, len(self.program.labels)), np.int64)
        for place, sums in self._books.items():
            table[place] = sums[which]
        return table


def trail_of(hops: list[Hop]) -> LinkTrail:
    """Return hops as the columns of a trail."""
    orders = [hop.piece.message.order for hop in hops]
    return LinkTrail(
        link=np.array([hop.link for hop in hops], np.int32),
        start=np.array([hop.start for hop in hops], np.int64),
        finish=np.array([hop.free for hop in hops], np.int64),
        arrival=np.array([hop.arrival for hop in hops], np.int64),
        visit=np.array([visit for _, _, visit, _, _ in orders], np.int64),
        task=np.array([task for _, _, _, _, task in orders], np.int32),
        position=np.array([hop.place for hop in hops], np.int32),
    )
