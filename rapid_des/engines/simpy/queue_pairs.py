"""R9 and R13: every message has a queue pair; those of a GPU take turns on its links, held back by windows.

part 0 ──► first link ──► … ──► last link ──► arrived
              │ has finished it     │ its acknowledgement is back, a window later
              ▼                     ▼
           part 1 is handed over once both have happened
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import cast

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.engines.simpy.links import NO_TIMETABLE, Links, RoutedParts, TieCounter
from rapid_des.engines.simpy.servers import (
    Arbiter,
    Hop,
    InFlightMessage,
    Key,
    LinkServer,
    Parts,
    PicosecondEnvironment,
    Piece,
    service_time_of,
)
from rapid_des.program import rates
from rapid_des.program.delays import draw_of
from rapid_des.program.program import (
    NONE,
    PauseTable,
    Program,
    QueuePairTable,
    RateRecords,
    RateTable,
    WorkLevel,
)
from rapid_des.program.timetable import advance, left_at

TRANSIT, LOCAL = 0, 1
"""The two classes of requests for a link: pieces that came over another link, and parts at their first hop.
"""


class Port(LinkServer):
    """The sending end of a link; `pace` is the times and rates of its acknowledgements."""

    def __init__(
        self,
        arbiter: Arbiter,
        number: int,
        serve: Callable[[Piece, Hop], int],
        pace: tuple[Sequence[int], Sequence[int]],
    ) -> None:
        super().__init__(arbiter, number, serve)
        self._pace = pace
        self.tag = 0
        """The start tag of the part at its first hop that was taken last, in picoseconds of service."""
        self.served = [0, 0]
        """The picoseconds of service of each class, plus what a class lost while it was idle."""
        self.free = 0
        """The time in picoseconds at which it has finished the last transfer that it took."""
        self.stopped = False
        self.stopped_for = 0
        """The picoseconds of stops that have ended."""
        self._since = 0
        self._owed = self._posted = 0

    def choose(self) -> None:
        """Serve the first transfer of the class that was served less."""
        if self.stopped or not self.queue or not self.is_free:
            return
        heads: dict[int, Hop] = {}
        for _, hop in sorted(self.queue, key=itemgetter(0)):
            heads.setdefault(int(hop.place == 0), hop)
        first = min(hop.piece.message.priority for hop in heads.values())
        kinds = [kind for kind, hop in sorted(heads.items()) if hop.piece.message.priority == first]
        kind = min(kinds, key=self.served.__getitem__)
        hop = heads[kind]
        if len(heads) == 1:
            self.served[1 - kind] = max(self.served)
        self.served[kind] += service_time_of(hop.piece, hop.place)
        if isinstance(hop.piece, QueuedPiece) and kind == LOCAL:
            self.tag = hop.piece.tag
        hop.cancel()
        self.begin(hop)

    def stop(self) -> None:
        """Take no transfer until `go`."""
        self.stopped, self._since = True, self.env.now

    def go(self) -> None:
        """End a stop, and choose again."""
        self.stopped = False
        self.stopped_for += self.env.now - self._since
        self.arbiter.touch(self)

    def owe(self, time: int) -> None:
        """Add the time of acknowledgements to send, in picoseconds."""
        self._owed, self._posted = self.left(self.env.now) + time, self.env.now

    def take(self, free: int) -> None:
        """Set the time at which it has finished, with acknowledgements too."""
        self.free, self._owed = free, 0

    def left(self, moment: int) -> int:
        """Return the time of unsent acknowledgements at a moment: an idle link has been sending them."""
        return left_at(self._pace, max(self.free, self._posted), moment, self._owed)

    def held_up(self, moment: int) -> int:
        """Return how long the link still sends acknowledgements, in picoseconds."""
        return advance(*self._pace, moment, self.left(moment)) - moment


class Buffer:
    """The bytes that came over a link and wait at the node behind it; when full, it stops the link (R13)."""

    def __init__(self, port: Port, arbiter: Arbiter, table: PauseTable) -> None:
        self.order = port.order
        self._port, self._arbiter, self._table = port, arbiter, table
        self._latency = int(table.latency[port.order])
        self._held = 0
        self._full = False

    def add(self, size: int) -> None:
        """Add bytes to the buffer; a negative number removes them."""
        self._held += size
        self._arbiter.touch(self)

    def choose(self) -> None:
        """Stop the link, or let it continue."""
        if not self._full and self._held > self._table.stop_above:
            self._notify(full=True, act=self._port.stop)
        elif self._full and self._held <= self._table.go_at:
            self._notify(full=False, act=self._port.go)

    def _notify(self, *, full: bool, act: Callable[[], None]) -> None:
        self._full = full
        env = self._arbiter.env
        env.at(env.now + self._latency, act)


class QueuePair(Struct, eq=False):
    """A message's queue pair."""

    message: InFlightMessage
    parts: RoutedParts
    back: Sequence[int]
    acknowledgements: Sequence[int]
    """The number of acknowledgements of each part."""
    credits: int
    """The number of parts that it may still hand over."""
    awaited: int
    """The number of parts whose acknowledgement will allow it to hand over another part."""
    handed: int = 0
    """The number of parts that it has handed over."""
    idle: bool = True
    """Whether its first link has finished what was handed over."""
    end: int = 0
    """The start tag of its last part plus that part's service time."""


class QueuedPiece(Piece, eq=False):
    """A part with the flow that sends it."""

    flow: QueuePair | None = None
    tag: int = 0
    """The start tag at the first link, in picoseconds of service."""
    answer: int = 0
    """The picoseconds from its arrival until the window advances."""
    marked: bool = False


class PairedLinks(Links):
    """Links with ports; and the queue pairs that use them."""

    def __init__(
        self, program: Program, arbiter: Arbiter, *, trail: list[Hop] | None, ties: TieCounter | None
    ) -> None:
        super().__init__(program, arbiter, trail=trail, ties=ties)
        assert program.queue_pairs is not None
        self._table: QueuePairTable = program.queue_pairs
        self._nodes = Arbiter(arbiter.env, WorkLevel.BUFFER)
        self._buffers: dict[int, Buffer] = {}
        table = self._table.rates
        self._rates = None if table is None else PairRates(program, table, self.env)

    def send(self, message: InFlightMessage, parts: Parts) -> None:
        """Start a message; one to another GPU has a queue pair of its own."""
        if not parts[0][1]:
            super().send(message, parts)
            return
        assert isinstance(parts, RoutedParts), "nothing reroutes queue pairs"
        program, table, route = self.program, self._table, parts.route
        classes = program.route_class[self._starts[route] : self._starts[route + 1]].tolist()
        back = int(table.back[route])
        allowance = int(table.allowance[parts.rows[0], classes[0]])
        flow = QueuePair(
            message,
            parts,
            program.route_links[self._starts[back] : self._starts[back + 1]].tolist(),
            [int(table.acknowledgements[row]) for row in parts.rows],
            allowance,
            max(0, len(parts) - allowance),
        )
        message.pieces = len(parts)
        self._hand_over(flow)

    def _answer(self, size: int, route: int) -> int:
        return int(self._table.answer[size, self.program.route_class[self._starts[route + 1] - 1]])

    def _hand_over(self, flow: QueuePair) -> None:
        """Start the next part, if the flow may send one."""
        if flow.idle and flow.credits and flow.handed < len(flow.parts):
            route, legs = self.route_of(flow.message, flow.parts, flow.handed)
            part = QueuedPiece(flow.message, legs, flow.parts[flow.handed][0], flow.handed, flow=flow)
            part.answer = self._answer(flow.parts.rows[flow.handed], route)
            self.start(part)
            flow.handed, flow.credits, flow.idle = flow.handed + 1, flow.credits - 1, False

    def _key(self, piece: Piece, place: int) -> Key:
        priority, *rest = super()._key(piece, place)
        self._hold(piece, place, piece.size)
        if place or not isinstance(piece, QueuedPiece) or piece.flow is None:
            return (priority, TRANSIT, *rest)
        piece.tag = max(self._port(piece.legs[0][0]).tag, piece.flow.end)
        piece.flow.end = piece.tag + service_time_of(piece, 0)
        return (priority, LOCAL, piece.tag, *rest)

    def _waiting(self, link: int) -> int:
        """Return the services of those that came over other links and wait for one."""
        waiting = (hop for _, hop in self._port(link).queue if hop.place)
        return sum(service_time_of(hop.piece, hop.place) for hop in waiting)

    def _held_up(self, link: int) -> int:
        return self._port(link).held_up(self.env.now)

    def serve(self, piece: Piece, hop: Hop) -> int:
        """Begin a hop; what its sender waits for follows."""
        delay = super().serve(piece, hop)
        if hop.place and self._rates is not None and isinstance(piece, QueuedPiece):
            piece.marked |= self._rates.marks(piece, hop, self._waiting(hop.link))
        self._hold(piece, hop.place, -piece.size)
        self._port(hop.link).take(hop.free)
        flow = piece.flow if isinstance(piece, QueuedPiece) else None
        if flow is not None and hop.place == 0:
            self._sent(piece, flow, hop)
        if (
            isinstance(piece, QueuedPiece)
            and flow is not None
            and hop.place == len(piece.legs) - 1
            and flow.awaited
        ):
            flow.awaited -= 1
            moment = max(self.env.now + 1, hop.arrival + piece.answer)
            self.env.at(moment, lambda: self._answered(flow))
        return delay

    def _sent(self, piece: Piece, flow: QueuePair, hop: Hop) -> None:
        """Continue a flow when its first link has finished its newest part and its rate allows another."""
        moment, more = hop.free, flow.handed < len(flow.parts)
        if self._rates is not None:
            part = piece.size, service_time_of(piece, 0)
            moment = self._rates.goes_on(flow.parts.route, part, hop, more=more)
        if more:
            self.env.at(moment, lambda: self._left(flow))

    def _hold(self, piece: Piece, place: int, size: int) -> None:
        """Add bytes of a piece that waits before a hop to the buffer of the link by which it came."""
        if self._table.pause is None or not place:
            return
        link = piece.legs[place - 1][0]
        if link not in self._buffers:
            self._buffers[link] = Buffer(self._port(link), self._nodes, self._table.pause)
        self._buffers[link].add(size)

    def stopped(self) -> Int64s | None:
        """Return how long each link was stopped; None where none can be."""
        if self._table.pause is None:
            return None
        times = np.zeros(self.program.links, np.int64)
        for link, server in self._servers.items():
            port = cast("Port", server)
            times[link] = NONE if port.stopped else port.stopped_for
        return times

    def rates(self) -> RateRecords | None:
        """Return the records of marks and rates; None where nothing is marked."""
        return None if self._rates is None else self._rates.records()

    def _left(self, flow: QueuePair) -> None:
        flow.idle = True
        self._hand_over(flow)

    def _answered(self, flow: QueuePair) -> None:
        flow.credits += 1
        self._hand_over(flow)

    def arrive(self, piece: Piece) -> None:
        """Record the arrival of a part, whose acknowledgements go back."""
        if isinstance(piece, QueuedPiece) and piece.flow is not None:
            count = piece.flow.acknowledgements[piece.part]
            for link in piece.flow.back:
                time = count * int(self._table.acknowledgement_time[link])
                self._port(link).owe(time)
            if self._rates is not None and piece.marked:
                self._rates.arrives_marked(piece.flow.parts.route)
        super().arrive(piece)

    def _port(self, link: int) -> Port:
        return cast("Port", self.server(link))

    def _new_server(self, link: int) -> LinkServer:
        time, rate, _ = self.timetables.get(link, NO_TIMETABLE)
        return Port(self._arbiter, link, self.serve, (time, rate))


class PairRates:
    """The rate of every route, and the marks of every link."""

    def __init__(self, program: Program, table: RateTable, env: PicosecondEnvironment) -> None:
        self._table, self._env = table, env
        self._offsets: list[int] = program.visits().tolist()
        self._sizes = {size: row for row, size in enumerate(program.hops.bytes.tolist())}
        self._control: list[int] = table.control.tolist()
        self._rows: list[list[int]] = table.rows.tolist()
        self._marks = np.zeros(program.links, np.int64)

    def marks(self, piece: Piece, hop: Hop, waiting: int) -> bool:
        """Return whether a part is marked on a link, given the service that waits there."""
        link, (position, _, visit, _, task) = hop.link, piece.message.order
        thresholds = int(self._table.first[link]), int(self._table.full[link])
        packets = int(self._table.packets[self._sizes[piece.size]])
        chance = rates.chance(waiting, thresholds, self._control[rates.MOST], packets)
        if chance == 0:
            return False
        draw_key = position, visit - self._offsets[position], task, rates.which(piece.part, hop.place)
        marked = draw_of(self._control[rates.SEED], *draw_key) >> rates.UNUSED < chance
        self._marks[link] += marked
        return marked

    def goes_on(self, route: int, part: tuple[int, int], hop: Hop, *, more: bool) -> int:
        """Return when what follows a part (bytes, service time) at its first link may be handed over."""
        row = self._rows[route]
        moment = max(hop.free, hop.start + rates.paced(row, self._control, self._env.now, part))
        row[rates.HELD] += (moment - hop.free) * more
        return moment

    def arrives_marked(self, route: int) -> None:
        """Notify the sender of a marked part, unless it was notified within the CNP interval."""
        now, row = self._env.now, self._rows[route]
        if rates.notifies(row, self._control, now):
            moment = now + int(self._table.echo[route])
            self._env.at(moment, lambda: rates.cut(row, self._control, moment))

    def records(self) -> RateRecords:
        """Return the marks and the resulting rates."""
        rows = np.array(self._rows, np.int64).reshape(-1, rates.COLUMNS)
        return RateRecords(
            self._marks, *(rows[:, which] for which in (rates.CUTS, rates.HELD, rates.SLOWEST))
        )
