"""What crosses links: messages, their pieces and the hops of a piece. A link serves one piece at a time."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from msgspec import Struct, field
from simpy.events import Event, Process, Timeout

from rapid_des.engines.simpy.servers import Arbiter, Key, Queue, ServiceRequest
from rapid_des.program.program import NONE

Service: TypeAlias = tuple[int, int, int, int, int]
"""The times (occupancy, head, lag, across, along) of a hop, see `HopTable` and `TailTable`."""
Legs: TypeAlias = Sequence[tuple[int, Service]]
"""The links of a route, each with the times to cross it."""
Parts: TypeAlias = Sequence[tuple[int, Legs]]
"""The bytes and the legs of each part of a message; all parts take one route."""


class InFlightMessage(Struct, eq=False):
    """A transfer in flight."""

    arrives: Callable[[], None]
    """The function to call when the message has arrived."""
    priority: int
    order: tuple[int, int, int, int, int]
    """The order among messages of equal priority and ready time (R3): position of the source rank, time of
    injection, source visit, sub-instance, task.
    """
    label: int
    size: int
    ahead: bool
    """Whether its parts are handed over at the rate of their first link."""
    channel: deque[Any] = field(default_factory=deque)
    """The flows of its collective on the same route, in order (R7); only the first of them may be sent."""
    pieces: int = 0
    """The number of its pieces that are in transit or stopped."""
    arrived: int = 0
    """The bytes that have arrived."""


class Piece(Struct, eq=False):
    """Some bytes of a message on a route of their own."""

    message: InFlightMessage
    legs: Legs
    size: int
    part: int = 0
    """The number of its part of the message."""
    number: int = 0
    """The number of pieces that closed links had stopped and sent again when this piece was; 0 for a first
    piece.
    """
    hops: list[Hop] = field(default_factory=list)
    """The hops that a link has begun to serve."""
    crossed: int = 0
    """The time at which its last byte has crossed the last of `hops`, in picoseconds."""
    cut: int = NONE
    """The farthest hop at which bytes were cut off; what earlier hops still serve is lost."""


class Hop(ServiceRequest):
    """A piece asks to cross one link; succeeds when the piece is ready for its next hop or has arrived."""

    ready = NONE
    """The time of the request, in picoseconds."""
    start = NONE
    size = NONE
    free = NONE
    """The time at which the link is free again, in picoseconds."""
    onward = NONE
    """The time at which the piece is ready for its next hop or has arrived, in picoseconds."""
    arrival = NONE
    """The time at which the last byte is at the other end, in picoseconds."""
    process: Process | None = None
    """The piece's SimPy process, which closing links interrupt."""
    server: LinkServer

    def __init__(self, server: LinkServer, key: Key, piece: Piece, place: int) -> None:
        self.piece = piece
        self.place = place
        """How many hops came before."""
        super().__init__(server, key)

    def succeed_after(self, delay: int) -> None:
        """Succeed after some picoseconds."""
        self._ok, self._value = True, None
        self.env.schedule(self, delay=delay)

    @property
    def link(self) -> int:
        """The link that is asked."""
        return self.server.order


class LinkServer(Queue[Hop]):
    """A directed link: it serves one piece at a time.

    When it takes a piece all times of the hop follow. So the piece need not be woken before it has crossed,
    and the end of service is an event only where others wait for it.
    """

    def __init__(self, arbiter: Arbiter, number: int, serve: Callable[[Piece, Hop], int]) -> None:
        super().__init__(arbiter, number)
        self.serving: Hop | None = None
        """The hop that it serves, or served last."""
        self._serve = serve
        self._wakes = NONE
        """The time of the latest event that lets it choose again, in picoseconds."""

    @property
    def is_free(self) -> bool:
        """Whether it can serve a piece now."""
        return self.serving is None or self.serving.free <= self.env.now

    def asked(self) -> None:
        """Choose at the end of this instant, or once the link is free."""
        if self.is_free:
            self.arbiter.touch(self)
        else:
            self._choose_when_free()

    def choose(self) -> None:
        """Serve the smallest of those waiting."""
        if self.queue and self.is_free:
            self.begin(heapq.heappop(self.queue)[1])

    def begin(self, hop: Hop) -> None:
        """Serve a piece that no longer waits."""
        self.serving = hop
        hop.succeed_after(self._serve(hop.piece, hop))
        if self.queue:
            self._choose_when_free()

    def is_done_earlier(self, hop: Hop) -> None:
        """Note that the end of a service was moved forward."""
        if self.serving is hop:
            if hop.free == self.env.now:
                self.serving = None
            if self.queue:
                self._choose_when_free()

    def _choose_when_free(self) -> None:
        if self.serving is None or self.serving.free <= self.env.now:
            self.arbiter.touch(self)
        elif self._wakes != self.serving.free:
            self._wakes = self.serving.free
            Timeout(self.env, self._wakes - self.env.now).callbacks.append(self._wake)

    def _wake(self, _: Event) -> None:
        if self.queue:
            self.arbiter.touch(self)


def service_time_of(piece: Piece, place: int) -> int:
    """Return how long a piece takes a link, at rate 1."""
    _, (occupancy, *_) = piece.legs[place]
    return occupancy
