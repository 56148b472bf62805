"""Servers of visits and messages: resources that choose at the end of an instant (R2, R3, R4).

`Server` and `ServiceRequest` have the interface of SimPy's `Resource` and its requests, but another rule. A
`simpy.Resource` grants a request at once, knowing only earlier requests. Here an `Arbiter` waits for all
other events of the instant, so the choice does not depend on their order. `InService` holds the visits that a
rank serves at the same time, which slow its computing (R6).

Messages, their pieces and the hops of a piece cross links; a link serves one piece at a time.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from msgspec import Struct, field
from simpy import Environment
from simpy.events import Event, EventPriority, Process, Timeout

from rapid_des.program.program import NONE
from rapid_des.program.timetable import finish_of, left_after

if TYPE_CHECKING:
    from rapid_des.program.program import Progress

Key = tuple[object, ...]
"""The order key (priority, ready time, …): the smallest waiting request is served; no two are equal."""
_AFTER_NORMAL_EVENTS = 2
"""The SimPy priority that follows all normal events of an instant: 0 is urgent, 1 normal."""
_PROGRESS_EVERY = 1024
"""The number of actions between two reports of progress (some milliseconds)."""


class PicosecondEnvironment(Environment):
    """A SimPy environment whose time is integer picoseconds."""

    if TYPE_CHECKING:

        @property
        def now(self) -> int:
            """The current time in picoseconds."""
            ...

    def __init__(self, progress: Progress | None = None) -> None:
        super().__init__(0)
        self._progress = progress
        self.actions = 0
        """The number of calls of `at` so far."""

    def beyond(self, moment: int) -> bool:
        """Return whether an event lies after a moment."""
        return any(time > moment for time, *_ in self._queue)

    def at(self, moment: int, action: Callable[[], None]) -> None:
        """Schedule an action at a moment; an action for the present moment runs at once."""
        self.actions += 1
        if self._progress is not None and self.actions % _PROGRESS_EVERY == 0:
            self._progress(self.actions)
        if moment == self.now:
            action()
        else:
            Timeout(self, moment - self.now).callbacks.append(lambda _: action())


class EndOfInstant(Event):
    """Happens after all other events of the present time, but before servers of later levels choose."""

    def __init__(self, env: PicosecondEnvironment, level: int, callback: Callable[[Event], None]) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
        self.callbacks.append(callback)
        env.schedule(self, EventPriority(_AFTER_NORMAL_EVENTS + level))


class Chooser(Protocol):
    """An object that an arbiter calls at the end of an instant."""

    order: int

    def choose(self) -> None:
        """Act on what happened at this instant."""
        ...


class Arbiter:
    """Lets the touched servers of one level choose once everything else of an instant has happened (R4)."""

    def __init__(self, env: PicosecondEnvironment, level: int) -> None:
        self.env = env
        self.level = level
        self._touched: dict[int, Chooser] = {}

    def touch(self, server: Chooser) -> None:
        """Let `server` choose at the end of this instant."""
        if not self._touched:
            EndOfInstant(self.env, self.level, self._choose)
        self._touched[server.order] = server

    def _choose(self, _: Event) -> None:
        touched, self._touched = self._touched, {}
        for order in sorted(touched):
            touched[order].choose()


Asker = TypeVar("Asker", bound="ServiceRequest")


class ServiceRequest(Event):
    """Asks a server; succeeds when the server says so."""

    def __init__(self, server: Queue[Any], key: Key) -> None:
        super().__init__(server.env)
        self.server = server
        heapq.heappush(server.queue, (key, self))
        server.asked()

    def cancel(self) -> None:
        """Withdraw the request."""
        self.server.queue[:] = [entry for entry in self.server.queue if entry[1] is not self]
        heapq.heapify(self.server.queue)


class Queue(ABC, Generic[Asker]):
    """The requests that wait for a server."""

    def __init__(self, arbiter: Arbiter, order: int) -> None:
        self.env = arbiter.env
        self.arbiter = arbiter
        self.order = order
        self.queue: list[tuple[Key, Asker]] = []
        """A heap."""

    @abstractmethod
    def asked(self) -> None:
        """Note a new request."""

    @abstractmethod
    def choose(self) -> None:
        """Serve the smallest requests that have room."""


class Server(Queue[ServiceRequest]):
    """A GPU stream or a slot: serves `capacity` requests at a time; a request succeeds when that begins."""

    def __init__(self, arbiter: Arbiter, capacity: int, order: int) -> None:
        super().__init__(arbiter, order)
        self.capacity = capacity
        self.users = 0

    def asked(self) -> None:
        """Let the server choose, if it has room."""
        if self.users < self.capacity:
            self.arbiter.touch(self)

    def choose(self) -> None:
        """Serve the smallest requests, up to the capacity."""
        while self.queue and self.users < self.capacity:
            _, request = heapq.heappop(self.queue)
            self.users += 1
            request.succeed()

    def release(self) -> None:
        """Make room for another request."""
        self.users -= 1
        if self.queue:
            self.arbiter.touch(self)


class InService:
    """The visits that one rank's servers serve, as the sum of their weights."""

    def __init__(self, env: PicosecondEnvironment) -> None:
        self.env = env
        self._sum = 0
        self._changed = Event(env)

    def add(self, weight: int) -> None:
        """Count a visit that its server now serves, or with its weight negated no more."""
        if weight:
            self._sum += weight
            changed, self._changed = self._changed, Event(self.env)
            changed.succeed()

    def compute(
        self, work: int, table: tuple[Sequence[int], Sequence[int]], shares: Sequence[int], weight: int
    ) -> Generator[Event, Any, None]:
        """Work until all is done, at the share that the others in service leave; `weight` is the visit's."""
        left = (work, 0)
        while True:
            since, share = self.env.now, shares[self._sum - weight]
            finish = finish_of(table, since, left, share)
            yield Timeout(self.env, finish - since) | self._changed
            if self.env.now == finish:
                return
            left = left_after(table, since, self.env.now, left, share)


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
    """A piece's request to cross a link; it succeeds when the piece may go on or has arrived."""

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
