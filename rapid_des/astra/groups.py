"""The groups and channels behind the slots of rank programs, and the routes between their members."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rapid_des.arrays import Int32s, Int64s
from rapid_des.astra.files import MemoryFile
from rapid_des.astra.slots import Along, Channel, Memory, Slot, SlotNumbers
from rapid_des.astra.topology import Network
from rapid_des.chakra.trace import RankTrace
from rapid_des.errors import TraceError
from rapid_des.network.fabric import Routes
from rapid_des.program.program import Group, RankBinding, Template

WORLD = "world"

_DENSE = 2**13
"""GPUs up to which all pairs are marked in one table instead of sorted."""


@dataclass(frozen=True)
class Membership:
    """The process groups by name, and which of them are the whole world, whatever their order."""

    groups: Mapping[str, tuple[int, ...]]
    whole: frozenset[str]
    world: frozenset[str]
    """The names that mean the world itself."""

    def name(self, trace: RankTrace, slot: int | None) -> str:
        """Return the name of a group slot; every name of the world is "world"."""
        name = WORLD if slot is None else trace.groups[slot]
        return WORLD if name in self.world else name


class GroupTable:
    """Numbers groups as ranks name them. Positions of bindings are ranks: every rank has a trace."""

    def __init__(self, network: Network, membership: Membership, memory: MemoryFile | None) -> None:
        self._network = network
        self._membership = membership
        self._memory = memory
        self._world = np.arange(network.gpus, dtype=np.int32)
        self._numbers: dict[object, int] = {}
        self._groups: list[tuple[str, Int32s]] = []
        self._used: list[dict[int, None]] = []
        self._channels: dict[int, int] = {}
        self._memories: dict[int, int] = {}

    def bind(self, trace: RankTrace, program: int, slots: SlotNumbers) -> RankBinding:
        """Resolve one rank's slots."""
        places = [self._place(trace, slot) for slot in slots.numbers]
        for (group, _), templates in zip(places, slots.templates, strict=True):
            self._used[group].update(templates)
        return RankBinding(
            rank=trace.rank,
            program=program,
            groups=np.array([group for group, _ in places], np.int32),
            members=np.array([member for _, member in places], np.int32),
        )

    @property
    def memories(self) -> int:
        """How many remote memories are used."""
        return len(set(self._memories.values()))

    def _place(self, trace: RankTrace, slot: Slot) -> tuple[int, int]:
        """Return (group number, member number) of a rank's slot."""
        if isinstance(slot, Channel):
            return self._channel(trace, slot)
        if isinstance(slot, Memory):
            return self._memory_of(trace.rank), 0
        if isinstance(slot, Along):
            return self._along(trace, slot)
        name = self._membership.name(trace, slot.group)
        if name in self._membership.whole:
            return self._number(("group", name), name, self._world), trace.rank
        ranks = self._membership.groups[name]
        if trace.rank not in ranks:
            raise TraceError(f"rank {trace.rank} calls process group {name!r}, of which it is no member")
        return self._number(("group", name), name, np.array(ranks, np.int32)), ranks.index(trace.rank)

    def _channel(self, trace: RankTrace, slot: Channel) -> tuple[int, int]:
        peer = trace.peers[slot.peer]
        if peer == trace.rank or not 0 <= peer < self._network.gpus:
            allowed = f"another rank from 0 to {self._network.gpus - 1}"
            raise TraceError(f"rank {trace.rank}: a message to or from rank {peer}; allowed: {allowed}")
        source, destination = (trace.rank, peer) if slot.sends else (peer, trace.rank)
        key = source * self._network.gpus + destination
        number = self._numbers.get(key)
        if number is None:
            ends = np.array([source, destination], np.int32)
            number = self._number(key, f"{source}>{destination}", ends)
            self._channels[number] = key
        return number, 0 if slot.sends else 1

    def _along(self, trace: RankTrace, slot: Along) -> tuple[int, int]:
        size, stride = slot.axis.size, slot.axis.stride
        member = trace.rank // stride % size
        base = trace.rank - member * stride
        world = self._membership.name(trace, slot.group)
        ranks = base + stride * np.arange(size, dtype=np.int32)
        name = f"{world} along dimension {slot.axis.dimension} through rank {base}"
        return self._number(("along", world, slot.axis, base), name, ranks), member

    def _memory_of(self, rank: int) -> int:
        assert self._memory is not None
        shared = {
            "PER_NPU_MEMORY_EXPANSION": rank,
            "PER_NODE_MEMORY_EXPANSION": rank // (self._memory.num_npus_per_node or 1),
        }.get(self._memory.memory_type, 0)
        number = self._number(("memory", rank), f"remote memory of rank {rank}", np.array([rank], np.int32))
        self._memories[number] = shared
        return number

    def _number(self, key: object, name: str, ranks: Int32s) -> int:
        number = self._numbers.setdefault(key, len(self._groups))
        if number == len(self._groups):
            self._groups.append((name, ranks))
            self._used.append({})
        return number

    def routed(self, templates: list[Template]) -> tuple[tuple[Group, ...], Routes]:
        """Return all groups with the routes of their templates' pairs; each distinct route stands once.

        Remote memories come last: one route each, whose only link is numbered after those of the fabric.
        """
        channels = np.fromiter(self._channels.values(), np.int64, len(self._channels))
        uses = [
            (group, template)
            for group, used in enumerate(self._used)
            if group not in self._memories and group not in self._channels
            for template in used
        ]
        distinct, places = _distinct(self._codes(channels, uses, templates), self._network.gpus)
        routes = self._network.routes(distinct)
        chosen: list[dict[int, Int32s]] = [{} for _ in self._groups]
        for place, group in enumerate(self._channels):
            chosen[group] = dict.fromkeys(self._used[group], places[place : place + 1])
        end = len(channels)
        for group, template in uses:
            begin, end = end, end + len(templates[template].pair_source)
            chosen[group][template] = places[begin:end]
        routes = self._with_memories(routes, chosen)
        groups = tuple(
            Group(name=name, bindings=ranks, routes=chosen[number])
            for number, (name, ranks) in enumerate(self._groups)
        )
        return groups, routes

    def _codes(self, channels: Int64s, uses: list[tuple[int, int]], templates: list[Template]) -> Int64s:
        """Return source · GPUs + destination of every channel and of every pair that the groups use."""
        gpus = self._network.gpus
        parts = [channels]
        for group, template in uses:
            ranks = self._groups[group][1].astype(np.int64)
            one = templates[template]
            codes = ranks[one.pair_source]
            codes *= gpus
            codes += ranks[one.pair_destination]
            parts.append(codes)
        return np.concatenate(parts)

    def _with_memories(self, routes: Routes, chosen: list[dict[int, Int32s]]) -> Routes:
        if not self._memories:
            return routes
        shared = {memory: number for number, memory in enumerate(dict.fromkeys(self._memories.values()))}
        for group, memory in self._memories.items():
            route = np.array([len(routes) + shared[memory]], np.int32)
            chosen[group] = dict.fromkeys(self._used[group], route)
        links = len(self._network.fabric) + np.arange(len(shared))
        starts = routes.starts[-1] + 1 + np.arange(len(shared))
        return Routes(np.concatenate((routes.starts, starts)), np.concatenate((routes.links, links)))


def _distinct(codes: Int64s, gpus: int) -> tuple[Int64s, Int32s]:
    """Return the distinct (source, destination) rows in ascending order and where each code stands."""
    if gpus > _DENSE:
        found, places = np.unique(codes, return_inverse=True)
        return np.stack(np.divmod(found, gpus), 1), places.reshape(-1).astype(np.int32)
    marks = np.zeros(gpus * gpus, np.bool_)
    marks[codes] = True
    found = np.flatnonzero(marks)
    numbers = np.zeros(gpus * gpus, np.int32)
    numbers[found] = np.arange(len(found), dtype=np.int32)
    return np.stack(np.divmod(found, gpus), 1), numbers[codes]
