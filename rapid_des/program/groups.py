"""Who meets whom: the global groups and channels behind the slots of rank programs, and their routes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int32s, Int64s
from rapid_des.chakra.trace import UNSTATED, NodeKind, NodeTable, RankTrace, TraceSet
from rapid_des.errors import TraceError, UnsupportedByEngine
from rapid_des.network.fabric import Routes
from rapid_des.program.channels import ChannelSlots
from rapid_des.program.program import Group, RankBinding, Template
from rapid_des.program.replicas import Replicas
from rapid_des.program.routes import Wired, routes_of_groups
from rapid_des.values import replace


class Whole(Struct, frozen=True):
    """A slot that is a process group, or its calls of one kind and size where those are counted apart."""

    group: int
    call: tuple[int, ...] = ()


class Along(Struct, frozen=True):
    """A slot that is the part of a process group along one of its axes, through this rank."""

    group: int
    axis: int
    size: int
    stride: int
    """Distance in the group between members that are neighbours along the axis."""


class Channel(Struct, frozen=True):
    """A slot that is the send or the receive side of messages between two ranks."""

    peer: int
    tag: int | None
    """The tag of the messages; None: messages of all tags, which visits distinguish (`RankProgram.sub`)."""
    sends: bool
    tagged: bool = False
    """Whether visits distinguish messages by the tags themselves."""


class Memory(Struct, frozen=True):
    """A slot that is a memory outside the GPUs: a link of its own beside the fabric's."""

    sharers: int
    """Number of neighbouring ranks that share the memory."""


Slot = Whole | Along | Channel | Memory
Geometry = tuple[tuple[int, ...], tuple[int, ...]]


class SlotTable(Struct, frozen=True):
    """The slots of one rank program: what each is, which templates run in it, its name in statistics."""

    slots: tuple[Slot, ...]
    templates: tuple[tuple[int, ...], ...]
    labels: tuple[str, ...]


class SlotNumbers:
    """Numbers the slots of one rank program, and collects the templates and the label of each."""

    def __init__(self, slots: Iterable[Slot] = ()) -> None:
        self._numbers: dict[Slot, int] = {}
        self._templates: list[set[int]] = []
        self._labels: list[str | None] = []
        for slot in slots:
            self.number(slot)

    def number(self, slot: Slot, label: str | None = None) -> int:
        """Return the number of a slot, a new one if needed; the first label stays."""
        number = self._numbers.setdefault(slot, len(self._numbers))
        if number == len(self._labels):
            self._templates.append(set())
            self._labels.append(None)
        if self._labels[number] is None:
            self._labels[number] = label
        return number

    def __len__(self) -> int:
        return len(self._numbers)

    def label(self, number: int) -> str:
        """Return the name of a slot in statistics."""
        return self._labels[number] or ""

    def use(self, number: int, template: int) -> int:
        """Record that a slot runs a template; return the template."""
        self._templates[number].add(template)
        return template

    def table(self) -> SlotTable:
        """Return the slots that were collected."""
        return SlotTable(
            slots=tuple(self._numbers),
            templates=tuple(tuple(sorted(templates)) for templates in self._templates),
            labels=tuple(label or "" for label in self._labels),
        )


class Routed(Struct, frozen=True):
    """All groups with their routes."""

    groups: tuple[Group, ...]
    routes: Routes
    return_routes: Int32s
    """[route] The number of the route that its acknowledgements take."""
    links: int
    """Number of links: those of the fabric, then one for each memory."""

    def unanswered(self) -> Routed:
        """Return the routes plus an empty one, which becomes the return route of every route."""
        routes = Routes(np.append(self.routes.starts, self.routes.starts[-1]), self.routes.links)
        return replace(self, routes=routes, return_routes=np.full(len(routes), len(routes) - 1, np.int32))


class GroupTable:
    """Numbers groups, channels and memories as ranks name them."""

    def __init__(self, traces: TraceSet, machine: Wired, replicas: Replicas | None = None) -> None:
        self._traces = traces
        self._replicas = replicas
        self._machine = machine
        self._fabric = machine.fabric
        self._positions = {trace.rank: position for position, trace in enumerate(traces.ranks)}
        self._present = np.array([trace.rank for trace in traces.ranks], np.int64)
        self._numbers: dict[tuple[object, ...], int] = {}
        self._ranks: list[tuple[str, tuple[int, ...]]] = []
        self._used: list[tuple[int, ...]] = []
        self._labels: list[str] = []
        self._memories: dict[int, int] = {}
        self._tagged: dict[int, bool] = {}
        self.members = cache(self._members)
        self.here = cache(self._here)
        self.places = cache(self._places)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names that link statistics are split by."""
        return tuple(dict.fromkeys(self._labels)) or ("",)

    @property
    def families(self) -> tuple[Int64s, ...]:
        """The groups that work at the same time."""
        return families_of(self._traces)

    @staticmethod
    def label(nodes: NodeTable, stream: int) -> str:
        """Return the name of messages on a stream in statistics."""
        return nodes.streams[stream].removesuffix("-send").removesuffix("-recv")

    @cached_property
    def by_tag(self) -> bool:
        """Whether the messages of each tag are a channel; else all of a pair are one, which is cheaper.

        So they are where no stream puts messages in order, as many may wait in a channel then, and where
        statistics call those of a pair differently.
        """
        if self._traces.unordered_streams:
            return True
        labels = cache(self._message_labels)
        known = dict[tuple[int, int, int], str]()
        for trace in self._traces.ranks:
            of_table = labels(trace.nodes)
            if of_table is None:
                return True
            for kind, peer, label in of_table:
                pair = (trace.rank, trace.peers[peer], kind)
                if known.setdefault(pair, label) != label:
                    return True
        return False

    def _message_labels(self, nodes: NodeTable) -> set[tuple[int, int, str]] | None:
        """Return kind, peer and label of a table's messages; None where one's tag or peer says too little."""
        places = np.flatnonzero((nodes.kind == NodeKind.SEND) | (nodes.kind == NodeKind.RECV))
        tags, peers = nodes.tag[places], nodes.peer[places]
        if (tags < 0).any() or (tags > np.iinfo(np.int32).max).any() or (peers == UNSTATED).any():
            return None
        columns = (nodes.kind[places], peers, nodes.stream[places])
        stated = set(zip(*(column.tolist() for column in columns), strict=True))
        return {(kind, peer, self.label(nodes, stream)) for kind, peer, stream in stated}

    def _members(self, name: str) -> tuple[int, ...]:
        """Return the ranks of a process group; `TraceError` if nobody defined it."""
        if name not in self._traces.groups:
            known = ", ".join(sorted(self._traces.groups)[:8])
            raise TraceError(f"process group {name!r} is not defined; known groups: {known}")
        ranks = self._traces.groups[name]
        if max(ranks, default=0) >= self._fabric.gpus:
            raise TraceError(f"group {name} needs rank {max(ranks)}, of which there is no trace")
        return ranks

    def simulated(self, ranks: tuple[int, ...]) -> int:
        """Return how many members of a group are in the program: all without replicas."""
        return len(self.here(ranks))

    def _here(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        return ranks if self._replicas is None else self._replicas.here(ranks, self._present)

    def bind(self, position: int, program: int, table: SlotTable) -> RankBinding:
        """Resolve one rank's slots."""
        trace = self._traces.ranks[position]
        places = [
            self._resolve(trace, slot, label) for slot, label in zip(table.slots, table.labels, strict=True)
        ]
        for (group, _), templates in zip(places, table.templates, strict=True):
            if self._used[group] != templates:
                self._used[group] = tuple(sorted({*self._used[group], *templates}))
        return RankBinding(
            rank=trace.rank,
            program=program,
            groups=np.array([group for group, _ in places], np.int32),
            members=np.array([member for _, member in places], np.int32),
        )

    def bind_messages(
        self, traces: Sequence[RankTrace], of_trace: Int64s, slots: ChannelSlots
    ) -> list[RankBinding]:
        """Resolve the slots of ranks that only compute and exchange messages, before any other rank.

        `of_trace` is the number of each rank's program; `slots` are those of all programs.
        """
        assert not self._ranks
        bound = slots.bind(traces, of_trace, self._fabric.gpus)
        ends = list(zip(bound.source.tolist(), bound.destination.tolist(), strict=True))
        self._ranks += [(f"{source}>{destination}", (source, destination)) for source, destination in ends]
        self._labels += [""] * len(ends)
        self._used += bound.templates()
        self._numbers = {("channel", *pair, None): number for number, pair in enumerate(ends)}
        groups, members = bound.of_ranks(bound.group), bound.of_ranks(bound.member)
        ranks = [trace.rank for trace in traces]
        return list(map(RankBinding, ranks, of_trace.tolist(), groups, members))

    def _resolve(self, trace: RankTrace, slot: Slot, label: str) -> tuple[int, int]:
        if isinstance(slot, Channel):
            return self._channel(trace, slot, label), 0 if slot.sends else 1
        if isinstance(slot, Memory):
            number = self._number(
                ("memory", trace.rank), f"memory of rank {trace.rank}", (trace.rank,), label
            )
            self._memories[number] = trace.rank // slot.sharers
            return number, 0
        name = trace.groups[slot.group]
        ranks = self.members(name)
        if trace.rank not in self.places(name):
            raise TraceError(
                f"rank {trace.rank} calls process group {name!r}, of which it is no member: {ranks}"
            )
        place = self.places(name)[trace.rank]
        if isinstance(slot, Whole):
            return self._number(("group", name, *slot.call), name, ranks, label), place
        member = place // slot.stride % slot.size
        base = place - member * slot.stride
        key = ("along", name, slot.axis, base)
        if key in self._numbers:
            return self._numbers[key], member
        line = ranks[base : base + slot.size * slot.stride : slot.stride]
        return self._number(key, f"{name} axis {slot.axis}", line, label), member

    def _channel(self, trace: RankTrace, slot: Channel, label: str) -> int:
        ends = (trace.rank, trace.peers[slot.peer])
        source, destination = ends if slot.sends else ends[::-1]
        key = ("channel", source, destination, slot.tag)
        number = self._numbers.get(key, -1)
        if number < 0:
            name = f"{source}>{destination}" + ("" if slot.tag is None else f" tag {slot.tag}")
            number = self._number(key, name, (source, destination), label)
            self._tagged[number] = slot.tagged
        if slot.sends:
            self._labels[number] = label  # both ends may name the stream; the sender's name counts
        return number

    def _places(self, name: str) -> Mapping[int, int]:
        return {rank: place for place, rank in enumerate(self.here(self.members(name)))}

    def _number(self, key: tuple[object, ...], name: str, ranks: tuple[int, ...], label: str) -> int:
        if key not in self._numbers:
            missing = [rank for rank in self.here(ranks) if rank not in self._positions]
            if missing:
                shown = ", ".join(map(str, missing[:8]))
                raise TraceError(f"group {name} needs rank {shown}, of which there is no trace")
            self._numbers[key] = len(self._ranks)
            self._ranks.append((name, ranks))
            self._labels.append(label)
            self._used.append(())
        return self._numbers[key]

    def within_replica(self) -> list[tuple[int, ...]]:
        """Return the members of what replica 0 has for itself: groups and both ends of channels.

        Raises `UnsupportedByEngine` for memories, which replicas may share.
        """
        if self._memories:
            raise UnsupportedByEngine("replicas may share a memory")
        lines = dict.fromkeys(ranks for _, ranks in self._ranks)
        return [line for line in lines if 1 < len(line) == self.simulated(line)]

    def proving_pairs(self, templates: Sequence[Template]) -> Int64s:
        """Return pairs of GPUs, as rows, from whose routes the links of all others' images follow.

        In a group that all replicas share that is all pairs, or a ring's where every route leaves its
        source by one link and comes to its destination by one; raises `UnsupportedByEngine` where those are
        too many.
        """
        rows = [np.zeros((0, 2), np.int64)]
        for (_, ranks), used in zip(self._ranks, self._used, strict=True):
            nodes, simulated = np.array(ranks, np.int64), self.simulated(ranks)
            if simulated < len(ranks) and self._machine.router.joins_arms(nodes):
                rows.append(np.stack((nodes, np.roll(nodes, -1)), 1)[:simulated])
                continue
            for template in map(templates.__getitem__, used):
                if simulated < len(ranks) and len(template.pair_source) > 2 * simulated:
                    raise UnsupportedByEngine("too many pairs to compare their routes in all replicas")
                rows.append(
                    np.stack((nodes[template.pair_source], nodes[template.pair_destination % len(nodes)]), 1)
                )
        return np.unique(np.concatenate(rows), axis=0)

    def routed(self, templates: Sequence[Template], *, both_directions: bool) -> Routed:
        """Return all groups with the routes of their templates' pairs and of the routes back, each once.

        Without `both_directions` the routes back are left out.
        """
        uses = [
            (ranks, () if number in self._memories else used)
            for number, ((_, ranks), used) in enumerate(zip(self._ranks, self._used, strict=True))
        ]
        routed = routes_of_groups(uses, templates, self._machine, both_directions=both_directions)
        routes, chosen, links = routed.routes, list(routed.of_group), len(self._fabric)
        if self._memories:
            shared = {memory: number for number, memory in enumerate(dict.fromkeys(self._memories.values()))}
            for group, memory in self._memories.items():
                route = np.array([len(routes) + shared[memory]], np.int32)
                chosen[group] = dict.fromkeys(self._used[group], route)
            routes = _with_links(routes, links + np.arange(len(shared), dtype=np.int32))
            links += len(shared)
        numbers = {label: number for number, label in enumerate(self.labels)}
        labels = [numbers[label] for label in self._labels]
        bindings = {
            ranks: np.array([self._positions[rank] for rank in self.here(ranks)], np.int32)
            for ranks in dict.fromkeys(ranks for _, ranks in self._ranks)
        }
        groups = tuple(
            Group(name, bindings[ranks], label, routes_of, tagged=self._tagged.get(number, False))
            for number, ((name, ranks), label, routes_of) in enumerate(
                zip(self._ranks, labels, chosen, strict=True)
            )
        )
        return Routed(groups, routes, routed.return_routes, links)


def _with_links(routes: Routes, links: Int32s) -> Routes:
    """Return more routes: one of each of the links, alone."""
    starts = routes.starts[-1] + 1 + np.arange(len(links))
    return Routes(np.concatenate((routes.starts, starts)), np.concatenate((routes.links, links)))


def families_of(traces: TraceSet) -> tuple[Int64s, ...]:
    """Return the families of a trace set: as stated, else its groups of one form.

    Groups have one form if their ranks are equally far from the first; such as have ranks in common do not
    work at the same time.
    """
    if traces.families:
        return traces.families
    forms: dict[tuple[int, ...], dict[tuple[int, ...], None]] = {}
    for ranks in traces.groups.values():
        if len(ranks) > 1:
            forms.setdefault(tuple(rank - ranks[0] for rank in ranks), {})[ranks] = None
    families = (np.array(sorted(groups), np.int64) for groups in forms.values())
    return tuple(rows for rows in families if len(set(rows.ravel().tolist())) == rows.size)
