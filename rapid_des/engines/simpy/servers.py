"""Servers of visits and messages: resources that choose at the end of an instant (R2, R3, R4).

`Server` and `ServiceRequest` have the interface of SimPy's `Resource` and its requests, but another rule. A
`simpy.Resource` grants a request at once, knowing only earlier requests. Here an `Arbiter` waits for all
other events of the instant, so the choice does not depend on their order. `InService` holds the visits that a
rank serves at the same time, which slow its computing (R6).
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from simpy import Environment
from simpy.events import Event, EventPriority, Timeout

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
