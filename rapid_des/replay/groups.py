"""Who meets whom: the global groups and channels behind the slots of rank programs, and their routes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from rapid_des.chakra.trace import RankTrace, TraceSet
from rapid_des.errors import TraceError
from rapid_des.machine import Machine
from rapid_des.network.fabric import Routes
from rapid_des.replay.above import with_switches
from rapid_des.replay.plans import geometry
from rapid_des.replay.program import Group, Int32s, Int64s, RankBinding, Template


@dataclass(frozen=True)
class Whole:
    """A slot that is a process group, or its calls of one kind and size where those are counted apart."""

    group: int
    call: tuple[int, ...] = ()


@dataclass(frozen=True)
class Along:
    """A slot that is the part of a process group along one of its axes, through this rank."""

    group: int
    axis: int


@dataclass(frozen=True)
class Channel:
    """A slot that is the send or the receive side of messages with one tag between two ranks."""

    peer: int
    tag: int
    sends: bool


Slot = Whole | Along | Channel

Geometry = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class SlotTable:
    """What the slots of one rank program are, which templates each runs, and how statistics call it."""

    slots: tuple[Slot, ...]
    templates: tuple[tuple[int, ...], ...]
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Routed:
    """All groups with their routes."""

    groups: tuple[Group, ...]
    routes: Routes
    ways_back: Int32s
    """[route] the number of the route that its acknowledgements take."""


class GroupTable:
    """Numbers groups and channels as ranks name them."""

    def __init__(self, traces: TraceSet, machine: Machine) -> None:
        self._traces = traces
        self._machine = machine
        self._fabric = machine.fabric
        self._positions = {trace.rank: position for position, trace in enumerate(traces.ranks)}
        self._numbers: dict[tuple[object, ...], int] = {}
        self._ranks: list[tuple[str, tuple[int, ...]]] = []
        self._used: list[set[int]] = []
        self._labels: list[str] = []
        self.geometry = cache(self._geometry)
        self.places = cache(self._places)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names that link statistics are split by."""
        return tuple(dict.fromkeys(self._labels)) or ("",)

    def members(self, name: str) -> tuple[int, ...]:
        """Return the ranks of a process group; `TraceError` if nobody defined it."""
        if name not in self._traces.groups:
            known = ", ".join(sorted(self._traces.groups)[:8])
            raise TraceError(f"process group {name!r} is not defined; known groups: {known}")
        return self._traces.groups[name]

    def _geometry(self, name: str) -> Geometry:
        return geometry(self._fabric, self.members(name))

    def bind(self, position: int, program: int, table: SlotTable) -> RankBinding:
        """Resolve one rank's slots."""
        trace = self._traces.ranks[position]
        places = [
            self._resolve(trace, slot, label) for slot, label in zip(table.slots, table.labels, strict=True)
        ]
        for (group, _), templates in zip(places, table.templates, strict=True):
            self._used[group].update(templates)
        return RankBinding(
            rank=trace.rank,
            program=program,
            groups=np.array([group for group, _ in places], np.int32),
            members=np.array([member for _, member in places], np.int32),
        )

    def _resolve(self, trace: RankTrace, slot: Slot, label: str) -> tuple[int, int]:
        if isinstance(slot, Channel):
            ends = (trace.rank, trace.peers[slot.peer])
            source, destination = ends if slot.sends else ends[::-1]
            name = f"{source}>{destination} tag {slot.tag}"
            number = self._number(
                ("channel", source, destination, slot.tag), name, (source, destination), label
            )
            if slot.sends:
                self._labels[number] = label  # both ends may name the stream; the sender's name counts
            return number, 0 if slot.sends else 1
        name = trace.groups[slot.group]
        ranks = self.members(name)
        if trace.rank not in self.places(name):
            raise TraceError(
                f"rank {trace.rank} calls process group {name!r}, of which it is no member: {ranks}"
            )
        place = ranks.index(trace.rank) if len(ranks) < 64 else self.places(name)[trace.rank]
        if isinstance(slot, Whole):
            return self._number(("group", name, *slot.call), name, ranks, label), place
        extents, _ = self.geometry(name)
        stride = int(np.prod(extents[: slot.axis], dtype=np.int64))
        member = place // stride % extents[slot.axis]
        base = place - member * stride
        key = ("along", name, slot.axis, base)
        if key in self._numbers:
            return self._numbers[key], member
        line = tuple(ranks[base + step * stride] for step in range(extents[slot.axis]))
        return self._number(key, f"{name} axis {slot.axis}", line, label), member

    def _places(self, name: str) -> Mapping[int, int]:
        return {rank: place for place, rank in enumerate(self.members(name))}

    def _number(self, key: tuple[object, ...], name: str, ranks: tuple[int, ...], label: str) -> int:
        if key not in self._numbers:
            missing = [rank for rank in ranks if rank not in self._positions]
            if missing:
                shown = ", ".join(map(str, missing[:8]))
                raise TraceError(f"group {name} needs rank {shown}, of which there is no trace")
            self._numbers[key] = len(self._ranks)
            self._ranks.append((name, ranks))
            self._labels.append(label)
            self._used.append(set())
        return self._numbers[key]

    def routed(self, templates: Sequence[Template], *, both_ways: bool) -> Routed:
        """Return all groups with the routes of their templates' pairs and of the ways back, each once.

        Without `both_ways` the ways back are left out.
        """
        pattern = [_pattern(template) for template in templates]
        uses: dict[bytes, dict[int, int]] = {}
        for group, used in enumerate(self._used):
            for template in sorted(used):
                uses.setdefault(pattern[template], {}).setdefault(group, template)
        keys = [self._pairs(list(use), templates[next(iter(use.values()))]) for use in uses.values()]
        pairs = np.concatenate([np.zeros(0, np.int64), *[part.reshape(-1) for part in keys]])
        width = self._fabric.nodes
        reverse = pairs % width * width + pairs // width if both_ways else pairs[:0]
        distinct, places = np.unique(np.concatenate((pairs, reverse)), return_inverse=True)
        there, back = np.split(places.reshape(-1), [len(pairs)])
        ways_back = np.zeros(len(distinct) if both_ways else 0, np.int32)
        if both_ways:
            ways_back[there], ways_back[back] = back, there
        chosen: list[dict[int, Int32s]] = [{} for _ in self._ranks]
        flat, begin = there.astype(np.int32), 0
        rows: dict[tuple[bytes, int], Int32s] = {}
        for (name, use), part in zip(uses.items(), keys, strict=True):
            found = flat[begin : begin + part.size].reshape(part.shape)
            begin += part.size
            rows |= {(name, group): row for group, row in zip(use, found, strict=True)}
        for group, used in enumerate(self._used):
            chosen[group] = {template: rows[pattern[template], group] for template in sorted(used)}
        numbers = {label: number for number, label in enumerate(self.labels)}
        labels = [numbers[label] for label in self._labels]
        groups = (self._group(index, labels[index], of_group) for index, of_group in enumerate(chosen))
        routes = self._machine.router.routes(np.stack(np.divmod(distinct, width), 1))
        return Routed(tuple(groups), routes, ways_back)

    def _group(self, index: int, label: int, routes: dict[int, Int32s]) -> Group:
        name, ranks = self._ranks[index]
        bindings = np.array([self._positions[rank] for rank in ranks], np.int32)
        return Group(name=name, bindings=bindings, label=label, routes=routes)

    def _pairs(self, groups: Sequence[int], template: Template) -> Int64s:
        """Return source * nodes + destination of a template's pairs, a row for each group that runs it."""
        rows = [self._ranks[group][1] for group in groups]
        if template.pair_source.max(initial=0) >= template.members:
            rows = [with_switches(self._machine, ranks) for ranks in rows]
        nodes = np.array(rows, np.int64)
        return nodes[:, template.pair_source] * self._fabric.nodes + nodes[:, template.pair_destination]


def _pattern(template: Template) -> bytes:
    """Return a fingerprint of who sends to whom among how many: equal ones take equal routes."""
    digest = hashlib.blake2b(str(template.members).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(template.pair_source).data)
    digest.update(np.ascontiguousarray(template.pair_destination).data)
    return digest.digest()
