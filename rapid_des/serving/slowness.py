"""Iteration costs of each replica under the machine's faults that affect its own GPUs.

A replica that stands behind others is priced as the last of a row of replicas with like batches, as faults
that the others meet are left away: who waits for nobody lasts as long as the slowest of them, itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations

import numpy as np
from msgspec import Struct, field

from rapid_des.errors import ConfigError
from rapid_des.frontend import Job
from rapid_des.machine import Machine
from rapid_des.network.faults.specs import Fault, parse_fault
from rapid_des.serving.costs import PassCosts
from rapid_des.serving.pools import Pool


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
        return PassCosts(place.job, self.machine.unfaulted.with_faults(met), copies=place.number + 1)

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
