"""Replicas that stop and restart cold, or run on slowed links or GPUs for a while.

An outage takes a replica's requests and its KV cache. After `down` it loads its weights (`startup`) and
serves again; its requests are sent to replicas that live, from the start, or are lost, as the job's
`on_outage` says. One that is out from 0 s on is a cold start. With `fault` a replica goes on, each iteration
at what it takes on the machine with that fault.

`Slowness` holds the iteration costs of each replica under the machine's faults that affect its own GPUs.

A replica that stands behind others is priced as the last of a row of replicas with like batches, as faults
that the others meet are left away: who waits for nobody lasts as long as the slowest of them, itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Struct, field, structs
from numpy.random import default_rng

from rapid_des.bounded_cache import BoundedCache
from rapid_des.config import Document, Spec, decode
from rapid_des.errors import ConfigError
from rapid_des.frontend import Job, memory
from rapid_des.frontend.servers import StartupSpec
from rapid_des.machine import Machine
from rapid_des.network.faults.specs import Fault, parse_fault, read_value, stated_words
from rapid_des.runs.loading import load_reliability
from rapid_des.serving.costs import PassCosts
from rapid_des.serving.failures import Event, ServerFailures
from rapid_des.serving.half_batches import costs_of
from rapid_des.serving.pools import Pool, pools_of
from rapid_des.serving.resharding import ReshardingTraffic, as_traces
from rapid_des.simulation import replay
from rapid_des.units import PS_PER_S, Duration, ceil_divide

Meets = Callable[[int, str], bool]
"""Whether a fault affects a replica."""


_MOST_DRAWN = 20_000
"""The most outages that one replica draws: a clock of picoseconds could hold them without end."""


class Outage(Spec, frozen=True):
    """When, and for how long, a replica is down or slow."""

    replica: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Which; unset: the one of `gpu`, else each that meets the fault, or each if drawn."""
    gpu: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """The id of a GPU that fails: the replica that contains it stops."""
    at: Duration | None = None
    """Start of the outage; unset: drawn."""
    mtbf: Duration | None = None
    """Mean of the drawn exponential times from the end of one outage to the start of the next."""
    down: Duration = Duration(0)
    """Duration; the restart comes in addition."""
    fault: str | None = None
    """A fault of the machine, as for --fault, that slows the replica instead of stopping it."""
    reliability: str | None = None
    """A reliability file or preset, from which all outages are drawn; `seed` goes with it, nothing else."""
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**32)] = 0


def parse_outage(text: str) -> Outage:
    """Return what a text such as `replica=1 at=30s down=60s` states; `ConfigError` says what is allowed.

    >>> parse_outage("replica=1 at=30s down=60s").down
    Duration('60 s')
    """
    file = f"--outage {text!r}"
    tree = {key: read_value(value) for key, value in stated_words(text, file).items()}
    outage = decode(Document(Path(file), tree), Outage)
    if outage.reliability is not None:
        if beyond := tree.keys() - {"reliability", "seed"}:
            raise ConfigError("reliability goes with seed alone", file=file, key=min(beyond))
        return outage
    _check(outage, file)
    return outage


def _check(outage: Outage, file: str) -> None:
    """Raise `ConfigError` for an outage that states too little or too much."""
    if (outage.at is None) == (outage.mtbf is None):
        raise ConfigError("states one of at=… and mtbf=…", file=file)
    if outage.replica is not None and outage.gpu is not None:
        raise ConfigError("states one of replica=… and gpu=…", file=file)
    if outage.at is not None and outage.replica is None and outage.gpu is None and outage.fault is None:
        raise ConfigError("replica=… or gpu=… must say which one", file=file)
    if outage.mtbf is not None and not outage.mtbf:
        raise ConfigError("must be above 0", file=file, key="mtbf")
    if outage.fault is not None:
        parse_fault(outage.fault)
        if not outage.down:
            raise ConfigError("says how long the fault lasts", file=file, key="down")


def failing(pools: Sequence[Pool], machine: Machine, reference: str, first: int = 0) -> ServerFailures:
    """Return the failures of a reliability file that the replicas of a server meet."""
    starts = [(first + pool.first + number * pool.each, pool.each)
              for pool in pools for number in range(pool.replicas)]  # fmt: skip
    replicas = [range(start, start + each) for start, each in starts]
    return ServerFailures(load_reliability(reference), machine, replicas)


def availability(
    job: Job, machine: Machine, reference: str | None, cache: BoundedCache | None
) -> float | None:
    """Return the share of the time in which a replica runs, by a reliability file; None: none is stated."""
    if reference is None:
        return None
    pools, spec, startup = pools_of(job), job.spec.serving, 0
    if spec is not None and spec.startup is not None:
        startup = max(startup_time(pool.job, machine, spec.startup, pool.alone, cache) for pool in pools)
    return failing(pools, machine, reference).availability(startup)


def located(outage: Outage, pools: Sequence[Pool], first: int = 0) -> Outage:
    """Return an outage with the replica that contains its GPU; `first`: the server's first GPU."""
    if outage.gpu is None:
        return outage
    before = 0
    for pool in pools:
        within = outage.gpu - first - pool.first
        if 0 <= within < pool.replicas * pool.each:
            return structs.replace(outage, gpu=None, replica=before + within // pool.each)
        before += pool.replicas
    problem = (
        f"no replica has gpu{outage.gpu}; theirs are {first + pools[0].first} to {first + pools[-1].end - 1}"
    )
    raise ConfigError(problem, file="--outage", key="gpu")


def events(
    outages: Sequence[Outage], replicas: int, startup: int, meets: Meets = lambda *_: True
) -> Iterator[Iterator[Event]]:
    """Yield for every outage the events of each replica that it is about, ascending in time.

    Drawn ones have no end: they are asked for one by one.
    """
    for place, outage in enumerate(outages):
        chosen: Sequence[int] = range(replicas) if outage.replica is None else (outage.replica,)
        if outage.fault is not None and outage.replica is None:
            chosen = [replica for replica in chosen if meets(replica, outage.fault)]
            if not chosen:
                raise ConfigError(f"no replica meets {outage.fault!r}", file="--outage", key="fault")
        if chosen[-1] >= replicas:
            problem = f"there is no replica {chosen[-1]}, there are {replicas}, from 0 on"
            raise ConfigError(problem, file="--outage", key="replica")
        for replica in chosen:
            if outage.at is not None:
                yield iter((Event(int(outage.at), replica, int(outage.down), outage.fault),))
            else:
                yield _drawn(outage, place, replica, startup)


def _drawn(outage: Outage, place: int, replica: int, startup: int) -> Iterator[Event]:
    assert outage.mtbf is not None
    random, now = default_rng([outage.seed, place, replica]), 0
    for _ in range(_MOST_DRAWN):
        now += 1 + int(random.exponential(int(outage.mtbf)))
        yield Event(now, replica, int(outage.down), outage.fault)
        now += int(outage.down) + (0 if outage.fault else startup)
    problem = f"{_MOST_DRAWN:,} outages of replica {replica} in {Duration(now)}: state a longer mtbf"
    raise ConfigError(problem, file="--outage", key="mtbf")


def startup_time(
    job: Job, machine: Machine, spec: StartupSpec, replica: Job, cache: BoundedCache | None
) -> int:
    """Return how long a replica takes until it serves, from nothing: weights, then all else.

    Weights of a GPU are what the memory model says that it holds. From `storage` the GPUs of a node share its
    bandwidth; from `peer` each takes its own from the GPU of its place in the next replica, over the fabric.
    """
    weights = [used.categories.get("weights", 0) for used in memory(replica).stages]
    if spec.weights == "peer":
        return int(spec.initialise) + _from_peer(job, machine, weights, cache)
    gpus_per_node = machine.spec.gpus_per_node or machine.fabric.gpus
    of_stage = replica.layout.coordinates("pp").tolist()
    nodes: dict[int, int] = {}
    for rank, stage in enumerate(of_stage):
        nodes[rank // gpus_per_node] = nodes.get(rank // gpus_per_node, 0) + weights[stage]
    assert spec.storage is not None
    return int(spec.initialise) + ceil_divide(max(nodes.values()) * PS_PER_S, int(spec.storage))


def _from_peer(job: Job, machine: Machine, weights: Sequence[int], cache: BoundedCache | None) -> int:
    replicas, stages = job.layout.coordinates("dp").tolist(), job.layout.coordinates("pp").tolist()
    if job.spec.parallelism.dp == 1:
        raise ConfigError("peer: there is no other replica", file=job.file, key="serving.startup.weights")
    of = {number: [rank for rank, replica in enumerate(replicas) if replica == number] for number in (0, 1)}
    between = {(source, target): weights[stages[target]] for source, target in zip(of[1], of[0], strict=True)}
    bandwidth = int(machine.device.spec.hbm.bandwidth)
    traces = as_traces(ReshardingTraffic(between, {}), job.gpus, bandwidth)
    return int(replay(traces, machine, cache=cache).step_time)


class ReplicaGpus(Struct, frozen=True):
    """The GPUs of a replica and of those that share its experts."""

    job: Job
    """The job of the replica, or of those that share experts."""
    number: int
    """Index of the replica (or group) on the machine, counted from the first GPU."""

    @property
    def gpus(self) -> range:
        """Its GPUs."""
        each = self.job.gpus
        return range(self.number * each, (self.number + 1) * each)


class Slowness(Struct):
    """Iteration costs under the machine's constant faults and those of outages."""

    pools: Sequence[Pool]
    machine: Machine
    healthy: Callable[[Job], PassCosts]
    """Returns the iteration costs without faults."""
    first: int = 0
    """The server's first GPU."""
    _links: dict[ReplicaGpus, frozenset[int]] = field(default_factory=dict)
    _costs: dict[tuple[ReplicaGpus, tuple[Fault, ...]], PassCosts] = field(default_factory=dict)

    def costs(self, replica: int, faults: Sequence[str] = ()) -> PassCosts:
        """Return the iteration costs of a replica while these faults are present too."""
        place = self._place(replica)
        every = (*self.machine.faults, *map(parse_fault, faults))
        met = tuple(fault for fault in every if self._meets(place, fault))
        key = place, met
        if key not in self._costs:
            self._costs[key] = self._priced(place, met)
        return self._costs[key]

    def check(self, replica: int, fault: str) -> None:
        """Raise `ConfigError` for a fault that affects no part of a replica."""
        place = self._place(replica)
        if not self._meets(place, parse_fault(fault)):
            gpus = f"GPUs {place.gpus[0]} to {place.gpus[-1]}"
            problem = f"replica {replica} ({gpus}) meets nothing of {fault!r}"
            raise ConfigError(problem, file="--outage", key="fault")

    def meets(self, replica: int, fault: str) -> bool:
        """Return whether a fault affects a replica's GPUs, or links between them."""
        return self._meets(self._place(replica), parse_fault(fault))

    def _priced(self, place: ReplicaGpus, met: tuple[Fault, ...]) -> PassCosts:
        if not met:
            return self.healthy(place.job)
        return costs_of(place.job, self.machine.unfaulted.with_faults(met), copies=place.number + 1)

    def _place(self, replica: int) -> ReplicaGpus:
        prompting = self.pools[0].replicas if len(self.pools) > 1 else 0
        pool = self.pools[0] if replica < self.pools[0].replicas else self.pools[-1]
        within = replica if pool is self.pools[0] else replica - prompting
        return ReplicaGpus(pool.alone, (self.first + pool.first + within * pool.each) // pool.alone.gpus)

    def _meets(self, place: ReplicaGpus, fault: Fault) -> bool:
        healthy = self.machine.healthy
        faulty = self.machine.unfaulted.with_faults([fault])
        touched = faulty.lost | set(faulty.slowed)
        changed = (faulty.fabric.bandwidth != healthy.bandwidth) | (faulty.fabric.latency != healthy.latency)
        links = faulty.dead | set(np.flatnonzero(changed).tolist())
        if not touched and not links:
            return True  # losses and loads change no rate
        return not touched.isdisjoint(place.gpus) or not links.isdisjoint(self._links_of(place))

    def _links_of(self, place: ReplicaGpus) -> frozenset[int]:
        """Return the links of all routes between a replica's GPUs."""
        if place not in self._links:
            route = self.machine.planned.route
            pairs = permutations(place.gpus, 2)
            self._links[place] = frozenset(link for pair in pairs for link in route(*pair))
        return self._links[place]
