"""A fleet of replicas under a workload, on one clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import simpy
from msgspec import structs

from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import ConfigError, InfeasibleJobError
from rapid_des.frontend import Job
from rapid_des.frontend.memory.serving import kv_capacity
from rapid_des.frontend.parts import stage_sections
from rapid_des.frontend.reserve import KvPool
from rapid_des.frontend.servers import ServingSpec
from rapid_des.machine import Machine
from rapid_des.program.analytic import message_alone
from rapid_des.serving.costs import Costs, PassCosts, of_replica
from rapid_des.serving.policies import POLICIES
from rapid_des.serving.replica import Engine, Process, Replica
from rapid_des.serving.requests import Request
from rapid_des.serving.result import ServeResult
from rapid_des.serving.routers import ROUTERS, Router
from rapid_des.serving.workload import Marks, Workload, draw, parse_arrivals, parse_lengths
from rapid_des.units import serialization_time

if TYPE_CHECKING:
    from rapid_des.serving.outages import Event

Watch = Callable[[int, int], None]
"""Told how many requests are done, of how many."""
Transfer = Callable[[int, int, int], int]
_TOLD = 64
"""Requests between two tellings."""


@dataclass
class Fleet:
    """Replicas of one engine, who sends requests to them, and what has come of it."""

    engine: Engine
    workload: Workload
    router: Router
    replicas: int = 1
    prompting: int = 0
    """Replicas, the first ones, that compute prompts alone; 0: all do both."""
    transfer: Transfer = lambda *_: 0
    """Tells the picoseconds that keys and values of so many tokens take from one replica to another."""
    client: int = 0
    """Picoseconds from a client's request to its arrival at a replica."""
    watch: Watch = lambda *_: None
    outages: Sequence[Iterator[Event]] = ()
    startup: int = 0
    """Picoseconds from the end of an outage until a replica serves."""
    lose: bool = False
    """Whether requests of a replica that stops are lost."""
    slowed: Callable[[str], Costs] | None = None
    """Tells what iterations take under a fault."""
    done: list[Request] = field(default_factory=list)
    lost: list[Request] = field(default_factory=list)
    stops: list[tuple[int, int, int]] = field(default_factory=list)
    """Replica, from when, until when it serves again."""
    env: simpy.Environment = field(default_factory=simpy.Environment)

    def run(self) -> bool:
        """Serve all requests; whether that was not interrupted."""
        self._sent = self._inside = self._since = self.area = 0
        self._held: list[Request] = []
        self._end = self.env.event()
        self.members = [
            Replica(
                self.env,
                number,
                self.engine,
                self._deliver,
                self._hand_over if number < self.prompting else None,
            )
            for number in range(self.replicas)
        ]
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
        if self.client:
            self.env.timeout(self.client).callbacks.append(lambda _: self._route(request))
        else:
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
                assert self.slowed is not None
                member.price(self.slowed(event.fault))
                yield self.env.timeout(event.down)
                member.price(self.engine.costs)
            elif member.alive:
                back = int(self.env.now) + event.down + self.startup
                self.stops.append((event.replica, int(self.env.now), back))
                for request in member.stop():
                    self._leave(request)
                yield self.env.timeout(event.down + self.startup)
                member.resume()
                held, self._held = self._held, []
                for request in held:
                    self._route(request)

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
            self._leave(request)
            return
        target = self.router(alive, request)
        request.carried = True
        travel = self.transfer(request.computed, request.replica, target.number)
        self.env.timeout(travel).callbacks.append(lambda _: self._arrive(request, target))

    def _arrive(self, request: Request, target: Replica) -> None:
        """Have a request decode whose keys and values have arrived, if anybody is there by then."""
        if target.alive:
            target.submit(request)
        else:
            self._leave(request)

    def _deliver(self, request: Request) -> None:
        """Take an answered request; its client may send the next one."""
        self._count(-1)
        self.done.append(request)
        if len(self.done) % _TOLD == 0:
            self.watch(len(self.done), len(self.workload))
        self._answered()

    def _answered(self) -> None:
        """Go on after a request has left: its client may send the next one."""
        if len(self.done) + len(self.lost) == len(self.workload):
            self._end.succeed()
        elif self.workload.arrival is None and self._sent < len(self.workload):
            if self.workload.think:
                self.env.timeout(self.workload.think).callbacks.append(lambda _: self._send_next())
            else:
                self._send_next()


def serve(  # noqa: PLR0913 - what a server is asked, by name
    job: Job,
    machine: Machine,
    *,
    arrivals: str | None = None,
    requests: int = 1000,
    prompt: str | None = None,
    output: str | None = None,
    seed: int = 0,
    watch: Watch = lambda *_: None,
    cache: BoundedCache | None = None,
) -> ServeResult:
    """Serve requests that come as `arrivals` says, and return what became of them.

    Texts that are not given stand in the job's `serving` section; lengths that stand nowhere are those of its
    `inference` section. An interrupt (^C) ends it with what is answered by then.

    >>> from rapid_des.frontend import load_job
    >>> from rapid_des.machine import load_machine
    >>> job, machine = load_job("llama2_7b_inference"), load_machine("dgx_a100")
    >>> result = serve(job, machine, arrivals="clients count=4", requests=8, output="uniform low=2 high=9")
    >>> len(result), result.kv_occupancy["max"] < 0.01
    (8, True)
    """
    _ = job.inference  # or it is no job that serves
    spec = job.spec.serving or ServingSpec()
    workload = _workload(
        job, spec, {"arrivals": arrivals, "prompt": prompt, "output": output}, (requests, seed)
    )
    return serve_workload(job, machine, workload, watch=watch, cache=cache)


def serve_workload(
    job: Job,
    machine: Machine,
    workload: Workload,
    *,
    watch: Watch = lambda *_: None,
    cache: BoundedCache | None = None,
) -> ServeResult:
    """Serve requests that are known one by one."""
    engine = _engine(job, machine, workload, cache)
    _check_lengths(job, workload, engine)
    spec, host = job.spec.serving or ServingSpec(), job.host
    fleet = Fleet(
        engine,
        workload,
        ROUTERS[spec.router],
        replicas=job.spec.parallelism.dp,
        prompting=spec.prefill_replicas or 0,
        transfer=_transfer(of_replica(job), machine),
        client=int((host.request if host else None) or 0),
        watch=watch,
        lose=spec.on_outage == "lose",
    )
    if spec.outages:
        _fail(fleet, job, machine, spec, cache)
    complete = fleet.run()
    return ServeResult.of(fleet, name=job.name, gpus=job.gpus, interrupted=not complete)


def _fail(fleet: Fleet, job: Job, machine: Machine, spec: ServingSpec, cache: BoundedCache | None) -> None:
    """Have a fleet's replicas fail as the job says."""
    from rapid_des.serving.outages import events, parse_outage, slowed, startup_time

    alone, outages = of_replica(job), [parse_outage(text) for text in spec.outages]
    if spec.startup is not None:
        fleet.startup = startup_time(job, machine, spec.startup, alone, cache)
    fleet.outages = tuple(events(outages, fleet.replicas, fleet.startup))
    priced = {
        outage.fault: _costs(alone, slowed(machine, outage.fault), cache)
        for outage in outages
        if outage.fault is not None
    }
    fleet.slowed = priced.__getitem__


def _workload(job: Job, spec: ServingSpec, texts: dict[str, str | None], drawn: tuple[int, int]) -> Workload:
    stated = {name: text if text is not None else getattr(spec, name) for name, text in texts.items()}
    if stated["arrivals"] is None:
        raise ConfigError(
            "nothing says when requests come; --arrivals 'poisson rate=4/s'",
            file=job.file,
            key="serving.arrivals",
        )
    usual = {"prompt": job.inference.prompt_length, "output": job.inference.output_length}
    lengths = [
        parse_lengths(stated[name] or str(usual[name] or ""), f"--{name}") for name in ("prompt", "output")
    ]
    prefix = None if spec.prefix is None else parse_lengths(spec.prefix, "serving.prefix")
    marks = Marks(prefix, spec.sessions, spec.users)
    return draw(parse_arrivals(stated["arrivals"]), (lengths[0], lengths[1]), *drawn, marks)


def _costs(job: Job, machine: Machine, cache: BoundedCache | None) -> PassCosts:
    """Return the costs of a replica's iterations, those of earlier servers with `cache` among them."""
    if cache is None:
        return PassCosts(job, machine)
    return cache.get_or_make(("iterations", job, machine), lambda: PassCosts(job, machine, cache))


def _engine(job: Job, machine: Machine, workload: Workload, cache: BoundedCache | None) -> Engine:
    spec, alone = job.spec.serving or ServingSpec(), of_replica(job)
    pool = job.spec.memory.kv_pool
    if pool is None:
        problem = f"the profile {job.software.name} does not say how large the KV cache is; state it here"
        raise ConfigError(problem, file=job.file, key="memory.kv_pool")
    limits = structs.replace(
        pool,
        tokens=spec.max_batched_tokens or pool.tokens,
        sequences=min(spec.max_sequences or pool.sequences, spec.max_batched_tokens or pool.tokens),
    )
    return Engine(
        policy=POLICIES[spec.policy],
        costs=_costs(alone, machine, cache),
        pages=_pages(alone, machine, limits, workload),
        page_size=pool.page,
        max_batched_tokens=limits.tokens,
        max_sequences=limits.sequences,
        order=spec.order,
        swap=_swap(alone, machine) if spec.preemption == "swap" else 0,
    )


def _swap(job: Job, machine: Machine) -> int:
    """Return the picoseconds that keys and values of a token take between a GPU and its host."""
    host = machine.device.spec.host
    if host is None:
        problem = f"device {machine.device.spec.name} states no bandwidths of its `host`, to swap to"
        raise ConfigError(problem, file=job.file, key="serving.preemption")
    many = 1 << 12
    return max(1, serialization_time(cached_bytes(job, many), min(host.to_host, host.from_host)) // many)


def _transfer(job: Job, machine: Machine) -> Transfer:
    """Return what tells how long keys and values travel, each GPU's part to its like, as a message alone."""

    def travel(tokens: int, source: int, target: int) -> int:
        return message_alone(cached_bytes(job, tokens), machine, source * job.gpus, target * job.gpus)

    return travel


def cached_bytes(job: Job, tokens: int) -> int:
    """Return what keys and values of a request of so many tokens take of a GPU, of the stage with most."""
    shard = job.shard(1, 1, 1)
    return max(
        sum(
            count * job.kinds[section.kind].layer.mixer.cache_bytes(shard, tokens)
            for section, count in stage_sections(job, stage).items()
            if section.name == "block"
        )
        for stage in range(job.stages)
    )


def _pages(job: Job, machine: Machine, pool: KvPool, workload: Workload) -> int:
    """Return how many pages the KV cache of a replica has; `InfeasibleJobError` if there is room for none."""
    longest = structs.replace(
        job.inference,
        batch=1,
        prompt_length=int(workload.prompt.max()),
        output_length=int(workload.output.max()),
        requests=(),
        micro_batch=None,
    )
    memory = structs.replace(job.spec.memory, kv_pool=pool)
    asked = replace(job, spec=structs.replace(job.spec, inference=longest, memory=memory))
    found = kv_capacity(asked, int(machine.device.spec.hbm.capacity))
    assert found is not None, "the pool is stated"
    if found.size < 0 or not found.pages:
        raise InfeasibleJobError(f"{job.name}: {found.shortage}")
    return found.pages


def _check_lengths(job: Job, workload: Workload, engine: Engine) -> None:
    """Raise `ConfigError` for a request that no replica could ever answer, or for a pool that is empty."""
    split, spec = job.spec.parallelism, job.spec.serving
    if spec is not None and spec.prefill_replicas and spec.prefill_replicas >= split.dp:
        problem = f"{spec.prefill_replicas} of dp {split.dp} replicas leave none to decode"
        raise ConfigError(problem, file=job.file, key="serving.prefill_replicas")
    total = workload.prompt + workload.output
    longest = int(total.argmax())
    room, most = engine.pages * engine.page_size, job.model.spec.max_positions
    if total[longest] > min(room, most):
        why = f"a replica's KV cache holds {room}" if room < most else f"the model has max_positions {most}"
        lengths = f"{workload.prompt[longest]} tokens in and {workload.output[longest]} out"
        raise ConfigError(f"request {longest} has {lengths}; {why}", file=job.file, key="serving")
