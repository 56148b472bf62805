"""A fleet of replicas, who sends requests to them and what becomes of these: SimPy processes on one clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, cast

import simpy

from rapid_des.errors import DeadlockError, InputError
from rapid_des.serving.batch import Costs
from rapid_des.serving.engine import Engine, Process
from rapid_des.serving.lockstep import LockstepGroup, LockstepReplica
from rapid_des.serving.pipelined import PipelinedReplica
from rapid_des.serving.records import Stop
from rapid_des.serving.replica import Replica
from rapid_des.serving.requests import Request
from rapid_des.serving.routers import Router
from rapid_des.serving.transfers import Transfer
from rapid_des.serving.workload import LATEST_PS, LATEST_S, Workload

if TYPE_CHECKING:
    from rapid_des.serving.outages import Event

Watch = Callable[[int, int], None]
"""Told how many requests are done, of how many."""
_MOST_IN_VAIN = 1_000
_TOLD = 64
"""Requests between two tellings."""


class Clock(simpy.Environment):
    """A server's clock, which ends before the integers of 64 bits do in which its times are kept."""

    def step(self) -> None:
        """Let the next event happen."""
        if self.peek() > LATEST_PS and self.peek() < inf:
            problem = f"the server runs for more than {LATEST_S / 86400:.0f} days"
            raise InputError(
                f"{problem}, which is where a clock of picoseconds ends: wait or serve less long"
            )
        super().step()


@dataclass
class Fleet:
    """Replicas of one engine, who sends requests to them, and what has come of it."""

    engine: Engine
    """Of replicas that answer."""
    workload: Workload
    router: Router
    replicas: int = 1
    prompting: int = 0
    """Replicas, the first ones, that compute prompts alone; 0: all do both."""
    prompting_engine: Engine | None = None
    """Of those; None: as the others."""
    transfer: Transfer = lambda env, *_: env.timeout(0)
    """Moves keys and values from one replica to another."""
    client: int = 0
    """Picoseconds that a request takes from its client to a replica, where one front end receives and
    tokenizes all of them, one after the other."""
    tokenizing: int = 0
    """What each token of its prompt adds."""
    latency: int = 0
    """What lies between client and replica besides, for each request by itself."""
    watch: Watch = lambda *_: None
    outages: Sequence[Iterator[Event]] = ()
    startup: int = 0
    """Picoseconds from the end of an outage until a replica serves."""
    lose: bool = False
    """Whether requests of a replica that stops are lost."""
    priced: Callable[[int, Sequence[str]], Costs] | None = None
    """Tells what iterations of a replica take while faults are there; None: there are none."""
    done: list[Request] = field(default_factory=list)
    lost: list[Request] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    env: simpy.Environment = field(default_factory=Clock)

    def run(self) -> bool:
        """Serve all requests; whether that was not interrupted."""
        self._sent = self._inside = self._since = self.area = self._front = 0
        self._held: list[Request] = []
        self._faults: dict[int, list[str]] = defaultdict(list)
        self._in_vain = 0
        """Outages that stopped requests since one was answered."""
        self._stranded: list[Request] = []
        """Requests whose prompts are computed and whose keys and values no replica is there to take."""
        self._end = self.env.event()
        self.members = self._begun(range(self.prompting), self.prompting_engine or self.engine)
        self.members += self._begun(range(self.prompting, self.replicas), self.engine)
        if self.workload.arrival is None:
            for _ in range(min(self.workload.clients, len(self.workload))):
                self._send_next()
        else:
            self.env.process(self._come())
        for events in self.outages:
            self.env.process(self._break(events))
        try:
            self.env.run(until=self._end)
        except KeyboardInterrupt:
            return False
        return True

    def _begun(self, numbers: Sequence[int], engine: Engine) -> list[Replica]:
        """Return replicas of an engine that serve."""
        members = [
            _kind_of(engine)(
                self.env, number, engine, self._deliver, self._hand_over if number < self.prompting else None
            )
            for number in numbers
        ]
        if engine.together > 1 and len(engine.shares) == 1:
            for begin in range(0, len(members), engine.together):
                LockstepGroup(self.env, cast(list[LockstepReplica], members[begin : begin + engine.together]))
        for member in members:
            if self.priced is not None:
                member.costs = self.priced(member.number, ())
            member.resume()
        return members

    def _count(self, change: int) -> None:
        """Note that so many more requests are between sending and answer."""
        now = int(self.env.now)
        self.area += self._inside * (now - self._since)
        self._inside, self._since = self._inside + change, now

    def _come(self) -> Process:
        assert self.workload.arrival is not None
        for arrival in self.workload.arrival.tolist():
            if arrival > self.env.now:
                yield self.env.timeout(arrival - self.env.now)
            self._send_next()

    def _send_next(self) -> None:
        """Have the next request of the workload sent now."""
        number, work = self._sent, self.workload
        self._sent += 1
        self._count(1)
        request = work.request(number, int(self.env.now))
        if self.client or self.tokenizing or self.latency:
            now = int(self.env.now)
            self._front = max(self._front, now) + self.client + request.prompt * self.tokenizing
            self.env.timeout(self._front + self.latency - now).callbacks.append(
                lambda _: self._receive(request)
            )
        else:
            self._receive(request)

    def _receive(self, request: Request) -> None:
        request.received = int(self.env.now)
        self._route(request)

    def _route(self, request: Request) -> None:
        alive = [member for member in self.members[: self.prompting or None] if member.alive]
        if alive:
            self.router(alive, request).submit(request)
        else:
            self._held.append(request)

    def _break(self, events: Iterator[Event]) -> Process:
        """Have replicas fail as events say, and come back."""
        for event in events:
            if event.at > self.env.now:
                yield self.env.timeout(event.at - self.env.now)
            member = self.members[event.replica]
            if event.fault is not None:
                yield from self._slow(member, event.fault, event.down)
            elif member.alive:
                yield from self._stop(member, event.down)

    def _slow(self, member: Replica, fault: str, down: int) -> Process:
        """Have a replica, and who waits for it, go on under a fault for a while."""
        now = int(self.env.now)
        self.stops.append(Stop(member.number, now, now + down, fault))
        self._faults[member.number].append(fault)
        self._reprice(member)
        yield self.env.timeout(down)
        self._faults[member.number].remove(fault)
        self._reprice(member)

    def _reprice(self, member: Replica) -> None:
        """Have a replica's iterations, and those that wait for it, take what its faults make them take."""
        assert self.priced is not None
        faults = dict.fromkeys(fault for mate in member.mates for fault in self._faults[mate.number])
        costs = self.priced(member.number, tuple(faults))
        for mate in member.mates:
            mate.price(costs)

    def _stop(self, member: Replica, down: int) -> Process:
        """Have a replica, and who can not go on without it, stop for a while."""
        now, mates = int(self.env.now), member.mates
        self.stops += [Stop(mate.number, now, now + down + self.startup) for mate in mates]
        had = [request for mate in mates for request in mate.stop()]
        self._count_in_vain(len(had))
        for request in had:
            self._leave(request)
        yield self.env.timeout(down + self.startup)
        for mate in mates:
            mate.resume()
        self._go_on()

    def _count_in_vain(self, stopped: int) -> None:
        """Raise `DeadlockError` where outages stop requests so often that none is ever answered."""
        self._in_vain += stopped > 0
        if self._in_vain > _MOST_IN_VAIN:
            problem = f"{_MOST_IN_VAIN:,} outages stopped requests, and not one was answered between them"
            raise DeadlockError(f"{problem}: state a longer mtbf, or a shorter down or startup")

    def _go_on(self) -> None:
        """Send on the requests for which no replica was there, now that one is."""
        held, self._held = self._held, []
        for request in held:
            self._route(request)
        computed, self._stranded = self._stranded, []
        for request in computed:
            self._hand_over(request)

    def _leave(self, request: Request) -> None:
        """Send a request of a replica that has stopped to another, or lose it."""
        if not self.lose:
            request.again()
            self._route(request)
            return
        self._count(-1)
        self.area -= int(self.env.now) - request.arrival
        self.lost.append(request)
        self._answered()

    def _hand_over(self, request: Request) -> None:
        """Send a request on to a replica that decodes; its keys and values travel."""
        alive = [member for member in self.members[self.prompting :] if member.alive]
        if not alive:
            self._stranded.append(request)
            return
        target = self.router(alive, request)
        request.carried = True
        sent = self.transfer(self.env, request.computed, request.replica, target.number)
        sent.callbacks.append(lambda _: self._arrive(request, target))

    def _arrive(self, request: Request, target: Replica) -> None:
        """Have a request decode whose keys and values have arrived, if anybody is there by then."""
        request.transfer = int(self.env.now) - request.first_token
        if target.alive:
            target.submit(request)
        else:
            self._leave(request)

    def _deliver(self, request: Request) -> None:
        """Take an answered request; its client may send the next one."""
        self._count(-1)
        self.done.append(request)
        self._in_vain = 0
        if len(self.done) % _TOLD == 0:
            self.watch(len(self.done), len(self.workload))
        self._answered()

    def _answered(self) -> None:
        """Go on after a request has left: its client may send the next one."""
        if len(self.done) + len(self.lost) == len(self.workload):
            self._end.succeed()
        elif self.workload.arrival is None and self._sent < len(self.workload):
            if self.workload.think:
                self.env.timeout(self.workload.think).callbacks.append(lambda _: self._ask())
            else:
                self._send_next()

    def _ask(self) -> None:
        """Have a client that has thought send its next request, unless others have sent all by now."""
        if self._sent < len(self.workload):
            self._send_next()


def _kind_of(engine: Engine) -> type[Replica]:
    if len(engine.shares) > 1:
        return PipelinedReplica
    return Replica if engine.together == 1 else LockstepReplica
