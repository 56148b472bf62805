"""A fleet of replicas, the clients of requests, and routing, faults and answers: SimPy processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, cast

import simpy
from msgspec import Struct, field

from rapid_des.errors import DeadlockError
from rapid_des.frontend.servers import AutoscalerSpec
from rapid_des.serving.agents import Awaited
from rapid_des.serving.autoscaler import Autoscaler, FleetSize
from rapid_des.serving.batch import Costs
from rapid_des.serving.classes import RequestClass
from rapid_des.serving.contents import Contents
from rapid_des.serving.engine import Engine, Process
from rapid_des.serving.environment import ServerEnvironment
from rapid_des.serving.groups import ReplicaGroup
from rapid_des.serving.images import EncoderPool
from rapid_des.serving.pipelined import LockstepGroup, LockstepReplica, PipelinedReplica
from rapid_des.serving.records import Stop
from rapid_des.serving.replica import Replica
from rapid_des.serving.requests import NEVER, Request, Turns
from rapid_des.serving.routers import Router
from rapid_des.serving.transfers import Transfer
from rapid_des.serving.workload import Workload
from rapid_des.values import replace

if TYPE_CHECKING:
    from rapid_des.serving.failures import Event

Watch = Callable[[int, int], None]
"""Called with the number of finished requests and the number of all."""
_MOST_IN_VAIN = 1_000
_PROGRESS_EVERY = 64
"""Number of requests between two progress reports."""


class Fleet(Struct, dict=True):
    """Replicas of one engine, the source of their requests, and the results so far."""

    engine: Engine
    """The engine of the replicas that answer."""
    workload: Workload
    router: Router
    replicas: int = 1
    prompting: int = 0
    """Number of replicas, the first ones, that only compute prompts; 0: all replicas do both."""
    prompting_engine: Engine | None = None
    """The engine of these; None: the same engine."""
    transfer: Transfer = lambda env, *_: env.timeout(0)
    """Moves keys and values from one replica to another."""
    client: int = 0
    """Picoseconds that a front end takes to receive a request; it takes them one after the other."""
    tokenizing: int = 0
    """Additional picoseconds for each token of its prompt."""
    front_ends: int = 0
    """Number of front ends; 0: one for each replica that takes requests."""
    latency: int = 0
    """Additional picoseconds between client and replica, for each request independently."""
    watch: Watch = lambda *_: None
    until: int | None = None
    """Number of the first requests with whose answers the run ends; None: all."""
    outages: Sequence[Iterator[Event]] = ()
    startup: int = 0
    """Picoseconds from the end of an outage until a replica serves."""
    autoscaler: AutoscalerSpec | None = None
    """When replicas start and stop; None: all serve always."""
    takes: tuple[int, ...] | None = None
    """Numbers of the classes of requests that the replicas take; None: of all."""
    beside: Sequence[ReplicaGroup] = ()
    """Further replicas, with engines of their own; their numbers follow."""
    classes: Sequence[RequestClass] = (RequestClass("", ""),)
    encoders: EncoderPool | None = None
    """Encoders of images with GPUs of their own; None: there are none."""
    name: str = ""
    device: str = ""
    lose: bool = False
    """Whether requests of a stopped replica are lost."""
    priced: Callable[[int, Sequence[str]], Costs] | None = None
    """Returns the iteration costs of a replica under given faults; None: there are no faults."""
    done: list[Request] = field(default_factory=list)
    lost: list[Request] = field(default_factory=list)
    shed: list[Request] = field(default_factory=list)
    """Requests that were turned away."""
    stops: list[Stop] = field(default_factory=list)
    turns: Turns = field(default_factory=Turns)
    env: simpy.Environment = field(default_factory=ServerEnvironment)

    def run(self) -> bool:
        """Serve all requests; return False if that was interrupted."""
        self._sent = self._inside = self._since = self.area = self._in_vain = 0
        """`_in_vain`: number of times that outages stopped requests since one was answered."""
        self._left = self._until = len(self.workload) if self.until is None else self.until
        self._contents = Contents(self.workload.blocks)
        self._awaited = None if self.workload.after is None else Awaited(self.workload.after)
        self._held: list[Request] = []
        self._faults: dict[int, list[str]] = defaultdict(list)
        self._stranded: list[Request] = []
        """Requests with computed prompts for whose keys and values no decoding replica is up."""
        self._end = self.env.event()
        self._scalers: list[Autoscaler] = []
        self._sizes: list[FleetSize] = []
        self.members: list[Replica] = []
        self._takers: dict[int, list[Replica]] = defaultdict(list)
        """The replicas that may take a request, by the number of its class."""
        groups = self.groups
        self._caches_prefixes = any(group.engine.prefix_tiers is not None for group in groups)
        for group in groups:
            self._begin(group)
        self._front_ends = [0] * (self.front_ends or self.prompting or len(self.members))
        """The times at which the front ends are free, as a heap."""
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

    @property
    def groups(self) -> list[ReplicaGroup]:
        """The replicas in order of their numbers, by engine and role."""
        own = ReplicaGroup(
            self.engine,
            self.replicas - self.prompting,
            tuple(range(len(self.classes))) if self.takes is None else self.takes,
            self.autoscaler,
            self.startup,
            self.name,
            self.device,
        )
        if self.prompting:
            prompting = replace(own, engine=self.prompting_engine or self.engine, replicas=self.prompting)
            return [prompting, replace(own, takes=())]
        return [own, *self.beside]

    def _begin(self, group: ReplicaGroup) -> None:
        """Start the replicas of a group."""
        engine, first = group.engine, len(self.members)
        members = [
            _kind_of(engine)(
                self.env, number, engine, self._deliver, self._hand_over if number < self.prompting else None
            )
            for number in range(first, first + group.replicas)
        ]
        if engine.together > 1 and len(engine.shares) == 1:
            for begin in range(0, len(members), engine.together):
                LockstepGroup(self.env, cast(list[LockstepReplica], members[begin : begin + engine.together]))
        for member in members:
            if self.priced is not None:
                member.costs = self.priced(member.number, ())
        if group.autoscaler is None:
            size = FleetSize(engine.gpus)
            size.set(0, len(members))
            for member in members:
                member.resume()
        else:
            scaler = Autoscaler(self.env, group.autoscaler, members, group.startup, self._go_on)
            self._scalers.append(scaler)
            size = scaler.size
        size.name = group.name
        self._sizes.append(size)
        for kind in group.takes:
            self._takers[kind] += members
        self.members += members

    @property
    def sizes(self) -> list[FleetSize]:
        """How many replicas each group has over time; empty if all serve always."""
        return self._sizes if self._scalers else []

    def _open(self, members: Sequence[Replica]) -> list[Replica]:
        """Return the replicas that take requests; those that drain do so where no other is up."""
        alive = [member for member in members if member.alive]
        return [member for member in alive if not member.draining] or alive

    def _count(self, change: int) -> None:
        """Change the number of requests between sending and answer."""
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
        """Send the next request of the workload now, or once the answers that it waits for are there."""
        number = self._sent
        self._sent += 1
        awaited, session = self._awaited, self.workload.session(number)
        if self.turns.begins(session, number) if awaited is None else awaited.begins(number):
            self._send(number)

    def _send(self, number: int) -> None:
        """Send a request to a front end."""
        self._count(1)
        request = self.workload.request(number, int(self.env.now))
        if self._caches_prefixes:
            request.path = self._contents.path(request)
        if self.client or self.tokenizing or self.latency:
            now = int(self.env.now)
            begin = max(now, heappop(self._front_ends))
            ready = begin + self.client + request.prompt * self.tokenizing
            heappush(self._front_ends, ready)
            request.front_end_queue = begin - now
            self.env.timeout(ready + self.latency - now).callbacks.append(lambda _: self._receive(request))
        else:
            self._receive(request)

    def _receive(self, request: Request) -> None:
        if self.encoders is not None and request.images and not request.encoding:
            request.encoding = self.encoders.time(int(self.env.now), request.images)
            self.env.timeout(request.encoding).callbacks.append(lambda _: self._receive(request))
            return
        request.received = int(self.env.now)
        if self._is_full(request.kind):
            self._drop(request, self.shed)
        else:
            self._route(request)

    def _is_full(self, kind: int) -> bool:
        """Return whether all replicas of a class have a full queue, so that its request is turned away."""
        most = self.classes[kind].max_queued
        takers = () if most is None else self._open(self._takers[kind])
        return bool(takers) and all(member.sizes[0] >= most for member in takers if most is not None)

    def _drop(self, request: Request, dropped: list[Request]) -> None:
        """Record a request that is never answered; its client goes on at this instant."""
        self._count(-1)
        self.area -= int(self.env.now) - request.arrival
        dropped.append(request)
        self.env.timeout(0).callbacks.append(lambda _: self._answered(request))

    def _route(self, request: Request) -> None:
        alive = self._open(self._takers[request.kind])
        if alive:
            self.router(alive, request).submit(request)
        else:
            self._held.append(request)

    def _break(self, events: Iterator[Event]) -> Process:
        """Stop replicas at the given outages, and restart them."""
        for event in events:
            if event.at > self.env.now:
                yield self.env.timeout(event.at - self.env.now)
            member = self.members[event.replica]
            if event.fault is not None:
                yield from self._slow(member, event.fault, event.down)
            elif member.alive:
                yield from self._stop(member, event.down)

    def _slow(self, member: Replica, fault: str, down: int) -> Process:
        """Slow a replica, and those in lockstep with it, by a fault for a while."""
        now = int(self.env.now)
        self.stops.append(Stop(member.number, now, now + down, fault))
        self._faults[member.number].append(fault)
        self._reprice(member)
        yield self.env.timeout(down)
        self._faults[member.number].remove(fault)
        self._reprice(member)

    def _reprice(self, member: Replica) -> None:
        """Price the iterations of a replica, and of those in lockstep with it, under its faults."""
        assert self.priced is not None
        faults = dict.fromkeys(fault for mate in member.mates for fault in self._faults[mate.number])
        costs = self.priced(member.number, tuple(faults))
        for mate in member.mates:
            mate.price(costs)

    def _stop(self, member: Replica, down: int) -> Process:
        """Stop a replica, and those that cannot run without it, for a while."""
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
        """Send the requests that had no replica, now that one is up."""
        held, self._held = self._held, []
        for request in held:
            self._route(request)
        computed, self._stranded = self._stranded, []
        for request in computed:
            self._hand_over(request)

    def _leave(self, request: Request) -> None:
        """Send a request of a stopped replica to another one, or lose it."""
        if self.lose:
            self._drop(request, self.lost)
        else:
            request.again()
            self._route(request)

    def _hand_over(self, request: Request) -> None:
        """Send a request to a decoding replica, and its keys and values after it."""
        alive = self._open(self.members[self.prompting :])
        if not alive:
            self._stranded.append(request)
            return
        target = self.router(alive, request)
        request.carried = True
        sent = self.transfer(self.env, request.computed, request.replica, target.number)
        sent.callbacks.append(lambda _: self._arrive(request, target))

    def _arrive(self, request: Request, target: Replica) -> None:
        """Start decoding a request whose keys and values have arrived, if a replica is still up."""
        request.transfer = int(self.env.now) - request.first_token
        if target.alive:
            target.submit(request)
        else:
            self._leave(request)

    def _deliver(self, request: Request) -> None:
        """Record an answered request; its client may send the next one."""
        self._count(-1)
        self.done.append(request)
        for scaler in self._scalers:
            scaler.answered(request)
        self._in_vain = 0
        if len(self.done) % _PROGRESS_EVERY == 0:
            self.watch(len(self.done), len(self.workload))
        self._answered(request)

    def _answered(self, request: Request) -> None:
        """Let the session of a finished request go on, and its client send the next one."""
        if self._awaited is not None:
            for number in self._awaited.end(request.number):
                self._after(self.workload.session_think, partial(self._send, number))
        elif request.session != NEVER:
            self._after(self.workload.session_think, lambda: self._next_turn(request.session))
        self._left -= request.number < self._until
        if not self._left:
            self._end.succeed()
        elif self.workload.arrival is None and self._sent < len(self.workload):
            self._after(self.workload.think, self._ask)

    def _next_turn(self, session: int) -> None:
        """Send the turn of a session that waits, if one does."""
        number = self.turns.end(session)
        if number is not None:
            self._send(number)

    def _after(self, think: int, send: Callable[[], None]) -> None:
        """Send after a think time."""
        if think:
            self.env.timeout(think).callbacks.append(lambda _: send())
        else:
            send()

    def _ask(self) -> None:
        """Send the next request of a client after its think time, unless all have been sent."""
        if self._sent < len(self.workload):
            self._send_next()


def _kind_of(engine: Engine) -> type[Replica]:
    if len(engine.shares) > 1:
        return PipelinedReplica
    return Replica if engine.together == 1 else LockstepReplica
