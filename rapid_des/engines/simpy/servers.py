"""SimPy resources that choose at the end of an instant (R2, R3, R4)."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Protocol

from simpy import Environment
from simpy.events import Event
from simpy.resources import base

Key = tuple[int, ...]
_AFTER_NORMAL_EVENTS = 2


class Clock(Environment):
    """A SimPy environment whose time is integer picoseconds."""

    if TYPE_CHECKING:

        @property
        def now(self) -> int:
            """The current time in picoseconds."""
            ...


class Request(base.Put):  # type: ignore[type-arg]
    """A visit's wish to be served; it succeeds when the server takes it.

    NOTE: begins as an event alone; what `Put` adds for things that are got again took a tenth of a run.
    """

    def __init__(self, server: Server, key: Key) -> None:
        Event.__init__(self, server.env)
        self.key = key
        heapq.heappush(server.put_queue, (key, self))
        server.arbiter.touch(server)


class Server(base.BaseResource):  # type: ignore[type-arg]
    """A GPU stream, a slot or a directed link: serves `capacity` visits at a time, smallest key first."""

    put_queue: list[tuple[Key, Request]]
    """A heap of the visits that wait."""

    def __init__(self, env: Clock, arbiter: Arbiter, capacity: int, order: int) -> None:
        self.arbiter = arbiter
        self.env = env
        self.order = order
        self.serving = 0
        self.askers: set[tuple[Key, int]] = set()
        self.asked = 0
        super().__init__(env, capacity)

    def request(self, key: Key) -> Request:
        """Ask to be served; `key` starts with (priority, ready time)."""
        self.askers.add((key[3:4], key[-1]))
        self.asked += 1
        return Request(self, key)

    def release(self, _: object = None) -> None:
        """Make room for one more visit."""
        self.serving -= 1
        if self.put_queue:
            self.arbiter.touch(self)

    def choose(self) -> None:
        """Serve the smallest of those waiting, up to the capacity."""
        self.arbiter.ties += self.asked > 1 and self._rank_decides()
        self.asked = 0
        self.askers.clear()
        while self.put_queue and self.serving < self.capacity:
            self.serving += 1
            heapq.heappop(self.put_queue)[1].succeed()

    def _rank_decides(self) -> bool:
        """Tell whether who asked at one instant are not all first hops of one rank's transfers."""
        return len(self.askers) > 1 or any(place for _, place in self.askers)


class Chooser(Protocol):
    """What an arbiter calls at the end of an instant."""

    order: int

    def choose(self) -> None:
        """Act on what happened at this instant."""
        ...


class Arbiter:
    """Lets the touched servers of one level choose once everything else of an instant has happened."""

    def __init__(self, env: Clock, level: int) -> None:
        self.env = env
        self.priority = _AFTER_NORMAL_EVENTS + level
        self.touched: dict[int, Chooser] = {}
        self.ties = 0

    def touch(self, server: Chooser) -> None:
        """Have `server` choose at the end of this instant."""
        if not self.touched:
            choice = Event(self.env)
            choice._ok, choice._value = True, None  # noqa: SLF001 - as simpy.Timeout does
            choice.callbacks = [self._choose]
            self.env.schedule(choice, self.priority)  # type: ignore[arg-type]
        self.touched[server.order] = server

    def _choose(self, _: Event) -> None:
        touched, self.touched = self.touched, {}
        for order in sorted(touched):
            touched[order].choose()
