"""The nodes that can replace others, and those in repair: a SimPy store and a process for each repair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import nullcontext
from typing import Any, TypeAlias

import simpy
from msgspec import Struct

from rapid_des.runs.times import Time

Process: TypeAlias = Generator[simpy.Event, Any, None]


class Tier(Struct, frozen=True):
    """Spare nodes that need equally long to be ready."""

    count: int
    start: Time


class Spares:
    """The spare nodes of one replication; without tiers one is always at hand."""

    def __init__(
        self,
        env: simpy.Environment,
        tiers: tuple[Tier, ...],
        retire_after: int | None,
        unit: int | None = None,
        crews: int | None = None,
    ) -> None:
        """Take the number of nodes of a unit that has such tiers for itself, and the number of repair crews.

        None: the job has the tiers, and there are as many crews as failures.
        """
        self._crews = None if crews is None else simpy.Resource(env, crews)
        self._env, self._tiers, self._retire_after, self._unit = env, tiers, retire_after, unit
        self._stores = dict[int, simpy.PriorityStore]()  # by unit
        self._placed = dict[int, int]()  # the node at a place in the job, where it is not the first one
        self._repairs = Counter[int]()
        self._in_repair = Counter[tuple[int, int]]()  # by unit and node
        self._out = self._most = self._changed = self._node_time = 0
        self.retired = 0
        """The number of nodes that were not repaired again."""

    def release(self, places: range, repair: int) -> None:
        """Send the nodes at these places of the job to repair."""
        if places:
            self._count(len(places))
            nodes = [(self._unit_of(place), self._placed.get(place, place)) for place in places]
            self._in_repair.update(nodes)
            self._env.process(self._repaired(nodes, repair))

    def take(self, place: int, uniform: float) -> Process:
        """Wait for a spare node and its start."""
        if self._tiers:
            tier, node = yield self._ready(place).get()
            self._placed[place] = node
            yield self._env.timeout(self._tiers[tier].start.at(uniform))

    def left(self, place: int) -> int:
        """Return the number of nodes that are ready for a place."""
        return len(self._ready(place).items)

    def never(self, place: int) -> bool:
        """Return whether a node for a place would be waited for without end."""
        unit, ready, most = self._unit_of(place), self._ready(place), self._retire_after
        coming = sum(
            count if most is None else max(min(count, most - 1 - self._repairs[node]), 0)
            for (of, node), count in self._in_repair.items()
            if of == unit
        )
        return bool(self._tiers) and len(ready.items) + coming <= len(ready.get_queue)

    def usage(self, wall: int) -> tuple[float, int]:
        """Return the mean and the largest number of nodes in repair."""
        self._count(0)
        return self._node_time / max(wall, 1), self._most

    def _ready(self, place: int) -> simpy.PriorityStore:
        """Return the nodes that are ready for a place: those of its unit."""
        return self._store(self._unit_of(place))

    def _unit_of(self, place: int) -> int:
        return 0 if self._unit is None else place // self._unit

    def _store(self, unit: int) -> simpy.PriorityStore:
        if unit not in self._stores:
            ready = [tier for tier, nodes in enumerate(self._tiers) for _ in range(nodes.count)]
            # a spare is its tier and the number of the node; those of the job have numbers from 0
            store = self._stores[unit] = simpy.PriorityStore(self._env)
            store.items = [(tier, -1 - unit * len(ready) - number) for number, tier in enumerate(ready)]
        return self._stores[unit]

    def _repaired(self, nodes: list[tuple[int, int]], repair: int) -> Process:
        with nullcontext() if self._crews is None else self._crews.request() as crew:
            if crew is not None:
                yield crew
            yield self._env.timeout(repair)
        self._count(-len(nodes))
        self._in_repair.subtract(nodes)
        for unit, node in nodes if self._tiers else ():
            self._repairs[node] += 1
            if self._retire_after is not None and self._repairs[node] >= self._retire_after:
                self.retired += 1
            else:
                yield self._store(unit).put((0, node))

    def _count(self, nodes: int) -> None:
        now = int(self._env.now)
        self._node_time += self._out * (now - self._changed)
        self._changed = now
        self._out += nodes
        self._most = max(self._most, self._out)
