"""What a machine's communication libraries make of collectives and messages: costs and templates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from math import prod

import msgspec
import numpy as np
from msgspec import Struct

from rapid_des.arrays import Bools, Int64s, starts_of
from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import LIBRARIES, CollectiveType, Exchange, TraceSet
from rapid_des.errors import InputError, TraceError, UnsupportedByEngine
from rapid_des.machine import Machine
from rapid_des.network.collectives.libraries.library import (
    CollectiveRequest,
    LinkRates,
    cost_of,
    library_name,
    message_cost,
    schedule_of,
    uses_switches,
)
from rapid_des.network.collectives.libraries.nccl import GroupPlacement, LibraryCost
from rapid_des.network.collectives.schedule import ROOTED, SHARDED_INPUT, Schedule, relabel
from rapid_des.network.dimensions import Dimension, FullyConnected, InfraGraph, Switched
from rapid_des.network.specs import DeepEp, HybridEp, LibraryChoice, Native, Nccl
from rapid_des.program.collectives.pacing import TransferPaths, crossings, paced, paced_ring
from rapid_des.program.collectives.plans import AxisPhase, ServedCollective
from rapid_des.program.collectives.templates import bytes_of, like_template, one_transfer, transfer_template
from rapid_des.program.program import Template
from rapid_des.program.replicas import cut_of
from rapid_des.program.services import MessageSizes
from rapid_des.program.switch_trees import with_switches
from rapid_des.values import replace

_SCALARS = 256
"""Bytes of a sum up to which it takes no link: its last members are done when its closed form says."""


class LaidOut(Struct, frozen=True):
    """A collective as a library does it: what it costs, and its transfers among the group's members."""

    library: str
    cost: LibraryCost
    request: CollectiveRequest
    order: tuple[int, ...]
    """The members sorted by rank, and so by node and rail."""
    as_rings: bool = False
    """Whether the transfers of a large tree are laid as rings, which load every rail alike."""

    @property
    def name(self) -> str:
        """The collective and how it is done, for people."""
        operation = self.request.collective.name.lower()
        return f"{operation} of {self.request.size} B by {self.cost.algorithm} {self.cost.protocol}"

    @property
    def takes_links(self) -> bool:
        """Whether its data takes links. A few scalars do not: their time is the start and the hops."""
        least = self.request.place.ranks
        if self.request.collective is CollectiveType.ALL_REDUCE:
            least = max(least, _SCALARS + 1)
        return self.request.collective in SHARDED_INPUT or self.request.size >= least

    @property
    def plain_ring(self) -> bool:
        """Whether the collective is one ring of all members in order, one block each."""
        nodes, collective = self.request.place.nodes, self.request.collective
        meshed = self.request.meshed and nodes == 1
        ring = self.cost.algorithm == "ring" or self.as_rings
        return ring and nodes in (1, self.request.place.ranks) and not meshed and collective not in ROOTED

    @property
    def served(self) -> ServedCollective:
        """The library's operation, for reports."""
        operation, request = self.request.collective.name.lower(), self.request
        return served_by(self.library, self.cost, operation, request.place.ranks, request.size)

    @property
    def chunked(self) -> bool:
        """Whether its messages never go in parts.

        Trees and switches cut their data into chunks already. In a ring over uneven nodes a member has
        several blocks for the next one at once: if their parts took turns on the link, every block would
        arrive with the last one.
        """
        cut = self.cost.algorithm in ("nvls", "nvls_tree", "tree") and not self.as_rings
        return cut or (self.cost.algorithm == "ring" and not self.request.even)

    @property
    def below(self) -> tuple[tuple[int, ...], ...]:
        """The members below each tree of switches, grouped by node; empty: one tree over all members."""
        if self.cost.algorithm != "nvls_tree":
            return ()
        return tuple(
            self.order[begin:end] for begin, end in pairwise(starts_of(self.request.counts).tolist())
        )

    def line(self, ranks: Sequence[int]) -> list[int]:
        """Return the group's ranks in the order in which rings pass them."""
        return [ranks[member] for member in self.order]

    def schedule(self) -> Schedule:
        """Return the transfers among members in the group's own order."""
        laid = replace(self.cost, algorithm="ring") if self.as_rings else self.cost
        schedule = schedule_of(laid, self.request)
        if self.order == tuple(range(schedule.members)):
            return schedule
        switches = np.arange(schedule.members, schedule.members + schedule.switches)
        names = np.append(np.array(self.order, np.int64), switches)  # switches keep their numbers
        return relabel(schedule, names, schedule.members, switches=schedule.switches)


def served_by(library: str, cost: LibraryCost, operation: str, ranks: int, size: int) -> ServedCollective:
    """Return what serves an operation of this many bytes among this many ranks, for reports."""
    how = f"{library} {cost.algorithm}", cost.protocol, cost.channels, cost.hbm_bytes
    return ServedCollective(operation, ranks, size, *how)


def libraries_of(traces: TraceSet, machine: Machine) -> LibraryChoice:
    """Return the libraries that serve a trace set on a machine: those that it names, else NCCL."""
    asked = LibraryChoice(default=Nccl())
    if traces.libraries:
        try:
            asked = msgspec.json.decode(traces.libraries, type=LibraryChoice)
        except msgspec.DecodeError as error:
            raise TraceError(f"metadata {LIBRARIES}: {error}") from None
    return machine.collectives.libraries_for(asked)


class Libraries:
    """The libraries of a machine, asked for what they take among its GPUs; `memory` keeps what is costly."""

    def __init__(self, machine: Machine, choice: LibraryChoice, memory: BoundedCache) -> None:
        self._machine, self._memory = machine, memory
        self._choice = choice
        self._active = machine.switching.mode != "store_and_forward" and any(
            not isinstance(library, Native) for library in self._choice.stated().values()
        )
        self._node = prod(machine.fabric.extents[0]) if machine.fabric.extents else machine.fabric.gpus
        self._meshed = isinstance(machine.spec.fabric[0], FullyConnected)
        self._rates = cache(lambda: link_rates(machine))

    def __bool__(self) -> bool:
        return self._active

    def lay_out(  # noqa: PLR0913 - a collective, by what states it
        self,
        kind: str,
        collective: CollectiveType,
        size: int,
        ranks: tuple[int, ...],
        exchange: Exchange | None = None,
        *,
        even: bool = False,
    ) -> LaidOut | None:
        """Return how a library does a collective; None where the machine's own algorithms do it.

        `kind` is the stream of the collective. With `even` all rails of its nodes get equal shares
        (`_in_equal_shares`). `InputError` where copies should travel once and no library here has constants
        of kernels that do so.
        """
        if not self._active or self._machine.collectives.choice(collective.name.lower()) is not None:
            return None
        order, counts = self._places(ranks)
        size = _in_equal_shares(collective, size, counts) if even else size
        switched = collective is CollectiveType.ALL_REDUCE and self._switched(kind, ranks, order, counts)
        exchanges = collective is CollectiveType.ALL_TO_ALL and len(counts) > 1
        blocks = self._nic_blocks(ranks) if exchanges else 0
        if exchange is not None and exchange.copies:
            exchange = replace(exchange, copies=tuple(exchange.copies[member] for member in order))
        request = CollectiveRequest(
            collective, size, counts, switched, blocks, meshed=self._meshed, exchange=exchange
        )
        with self._naming_the_machine():
            for library in self._choice.of(kind):
                cost = cost_of(library, request, self._rates_among(request.place))
                if (
                    exchange is not None
                    and exchange.once
                    and not isinstance(library, DeepEp | HybridEp | Native)
                ):
                    problem = "no library here has measured kernels in which copies of a token travel once"
                    raise InputError(f"{problem} (collectives.measured.kernels: normal)")
                if cost is not None:
                    laid = LaidOut(library_name(library), cost, request, order)
                    return replace(laid, as_rings=self._goes_as_rings(laid, ranks))
        return None

    def _switched(self, kind: str, ranks: Sequence[int], order: Sequence[int], counts: Sequence[int]) -> bool:
        """Return whether a library that reduces in nodes' switches finds one in each, at all ranks there."""
        if not any(uses_switches(library, counts) for library in self._choice.of(kind)):
            return False
        bounds = pairwise(starts_of(counts).tolist())
        nodes = [tuple(ranks[member] for member in order[begin:end]) for begin, end in bounds]
        machine, trees = self._machine, self._machine.switch_trees

        def each_below_one() -> bool:
            return all(tree is not None and len(tree.switches) == 1 for tree in map(trees.over, nodes))

        return self._memory.get_or_make(("one switch", machine.network, tuple(nodes)), each_below_one)

    def _nic_blocks(self, ranks: Sequence[int]) -> int:
        """Return the blocks of an all-to-all that the busiest NIC sends: those of its node to its place."""
        # All members of a node send through its NIC at a place to the peers at that place of other nodes; the
        # node's own member there is no such peer.
        blocks = {divmod(rank, self._node) for rank in ranks}
        nodes, places = Counter(node for node, _ in blocks), Counter(place for _, place in blocks)
        return max(
            count * (peers - ((node, place) in blocks))
            for node, count in nodes.items()
            for place, peers in places.items()
        )

    def _rates_among(self, place: GroupPlacement) -> LinkRates:
        """Return the rates for a group: in a mesh only the links among its members count."""
        rates = self._rates()
        if not self._meshed or place.per_node == 1:
            return rates
        among, all_links = place.per_node - 1, self._node - 1
        return LinkRates(rates.node * among // all_links, rates.network)

    def message(
        self, kind: str, size: int, ends: tuple[int, int], among: Sequence[int]
    ) -> LibraryCost | None:
        """Return what a library takes for a message between two GPUs; None where links alone decide.

        `among` are the ranks of its communicator.
        """
        if not self._active or ends[0] == ends[1]:
            return None
        inter_node = ends[0] // self._node != ends[1] // self._node
        counts = Counter(rank // self._node for rank in among)
        place = GroupPlacement(len(among), len(counts), min(counts.values()))
        with self._naming_the_machine():
            for library in self._choice.of(kind):
                cost = message_cost(library, place, size, self._rates(), inter_node=inter_node)
                if cost is not None:
                    return cost
        return None

    def template(self, laid: LaidOut, ranks: Sequence[int], sizes: MessageSizes) -> Template:
        """Return the transfers of a collective among these GPUs, with the library's lags."""
        machine = self._machine
        key = ("laid", machine.unfaulted.network, machine.dead, laid, tuple(ranks))
        template, sent = self._memory.get_or_make(
            key, lambda: self._template(laid, ranks), weight=lambda made: bytes_of(made[0])
        )
        return replace(template, size=sizes.rows(sent, whole=laid.chunked))

    def _template(self, laid: LaidOut, ranks: Sequence[int]) -> tuple[Template, Int64s]:
        """Return `template`, and the bytes of its transfers."""
        schedule = laid.schedule()
        template = like_template(schedule, MessageSizes(), self._memory, name=laid.name, whole=laid.chunked)
        template = replace(template, below=laid.below)
        return self._paced(template, schedule, laid, ranks), schedule.size

    def _paced(self, template: Template, schedule: Schedule, laid: LaidOut, ranks: Sequence[int]) -> Template:
        """Return a template with the library's lags."""
        if not len(template.pair_source):
            return template
        if laid.plain_ring:
            steps, block = len(schedule) // schedule.members, int(schedule.size.max())
            return paced_ring(template, laid.cost, self._hops(laid.line(ranks), block), steps)
        members = tuple(ranks)
        if schedule.switches:
            members = with_switches(self._machine.switch_trees, ranks, laid.below)
        crossed = crossings(schedule, self._machine.unfaulted, members)
        peers = self._peers(schedule, np.array(members, np.int64))
        paths = TransferPaths(crossed.time, crossed.occupancy, *peers, meshed=self._meshed)
        return paced(template, schedule, laid.cost, paths, self._memory)

    def cut(self, laid: LaidOut, ranks: Sequence[int], simulated: int, sizes: MessageSizes) -> Template:
        """Return the part of the first `simulated` ranks in a collective; see `program.replicas`.

        `UnsupportedByEngine` for what has no cut.
        """
        request, members = laid.request, len(ranks)
        if not laid.plain_ring or laid.order != tuple(range(members)):
            raise UnsupportedByEngine(f"{laid.name} among {members} has no cut")
        cut = cut_of(AxisPhase(None, request.collective, "ring", request.size), members, simulated)
        hops = self._hops(ranks, int(cut.size[0]))
        template = replace(cut.template(members, simulated), size=sizes.rows(cut.size), name=laid.name)
        return paced_ring(template, laid.cost, hops, len(cut.size) // simulated)

    def _hops(self, ranks: Sequence[int], block: int) -> Int64s:
        """Return the picoseconds that a block takes alone from each rank to the next."""
        return crossings(_to_neighbours(len(ranks), block), self._machine.unfaulted, ranks).time

    def _goes_as_rings(self, laid: LaidOut, ranks: tuple[int, ...]) -> bool:
        """Return whether rings bring a tree's data within the time of the library's closed form."""
        place, cost = laid.request.place, laid.cost
        if cost.algorithm != "tree" or cost.protocol == "ll":
            return False
        block = -(-laid.request.size // place.ranks)
        line = laid.line(ranks)
        node = np.array(line) // self._node
        inter_node = node != np.roll(node, -1)
        hops = np.where(inter_node, self._hops(line, -(-block // place.per_node)), self._hops(line, block))
        steady = 2 * (place.ranks - 1) * int(hops.max())
        return max(2 * int(hops.sum()), steady) + cost.start // 2 <= cost.duration

    def _peers(self, schedule: Schedule, members: Int64s) -> tuple[Bools, Int64s, Int64s]:
        """Return which transfers go to another node, by which NIC, and in which order a rank begins its own.

        They leave by the NIC of the peer's place in its node (PXN: over NVLink first, then the rail). A rank
        begins with the next node and, there, with its own rail, so that all rails are busy at once.
        """
        node, place = np.divmod(members, self._node)
        source, destination = schedule.source, schedule.destination
        among = np.maximum(source, destination) < schedule.members
        beyond = (node[destination] - node[source]) % (int(node.max()) + 1)
        send_order = beyond * self._node + (place[destination] - place[source]) % self._node
        nic = node[source] * self._node + place[destination]
        return among & (beyond > 0), nic, np.where(among, send_order, 0)

    def message_template(
        self, cost: LibraryCost, size: int, ends: tuple[int, int], sizes: MessageSizes
    ) -> Template:
        """Return the template of a message between two GPUs, with the library's lags."""
        name = f"a message of {size} B by {cost.algorithm} {cost.protocol}"
        schedule = one_transfer(size)
        crossed = crossings(schedule, self._machine.unfaulted, ends)
        template = transfer_template(size, sizes, name=name)
        here, first = np.zeros(1, np.bool_), np.zeros((2, 1), np.int64)
        paths = TransferPaths(crossed.time, crossed.occupancy, here, *first)
        return paced(template, schedule, cost, paths, self._memory)

    def _places(self, ranks: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the members sorted by rank, and how many there are on each node."""
        nodes = Counter(rank // self._node for rank in sorted(ranks))
        return tuple(sorted(range(len(ranks)), key=ranks.__getitem__)), tuple(nodes.values())

    @contextmanager
    def _naming_the_machine(self) -> Iterator[None]:
        try:
            yield
        except InputError as error:
            raise InputError(f"{self._machine.path}: collectives.libraries: {error}") from None


_LEAST_UNEVEN = 1000
"""How many times as large a buffer is, at least, as what it may be rounded up by."""


def _in_equal_shares(collective: CollectiveType, size: int, counts: Sequence[int]) -> int:
    """Return the bytes of a buffer, rounded up by less than a thousandth so that rails get equal shares.

    >>> _in_equal_shares(CollectiveType.ALL_REDUCE, 1_000_001, (8, 8))
    1000064
    """
    blocks = {CollectiveType.ALL_GATHER: 1, CollectiveType.ALL_REDUCE: sum(counts)}
    blocks[CollectiveType.REDUCE_SCATTER] = sum(counts)
    share = blocks.get(collective, 0) * counts[0]
    if not share or len(set(counts)) > 1 or size < _LEAST_UNEVEN * share:
        return size
    return -(-size // share) * share


def _to_neighbours(members: int, size: int) -> Schedule:
    """Return one message from every member to the next; the last member sends to the first."""
    source = np.arange(members, dtype=np.int32)
    none = np.zeros(members + 1, np.int64)
    return Schedule(
        members=members,
        source=source,
        destination=np.roll(source, -1),
        size=np.full(members, size, np.int64),
        reduces=np.zeros(members, np.bool_),
        offset=none[1:],
        dependency_starts=none,
        dependencies=source[:0],
    )


def link_rates(machine: Machine) -> LinkRates:
    """Return what a machine's links give a GPU, as its file states them: in its node, and beyond."""
    inner, *outer = machine.spec.fabric
    if isinstance(inner, InfraGraph):
        return LinkRates(int(machine.fabric.bandwidth.max()))
    links = inner.size - 1 if isinstance(inner, FullyConnected) else 1
    if not outer or isinstance(outer[0], InfraGraph):
        return LinkRates(int(inner.bandwidth) * links)
    return LinkRates(int(inner.bandwidth) * links, _beyond(outer[0]))


def _beyond(outer: Dimension) -> int:
    """Return a GPU's rate in a dimension beyond its node: all ports of its NICs, if messages are split."""
    if not isinstance(outer, Switched):
        return int(outer.bandwidth)
    nics, shared = (1, 1) if outer.nic is None else (outer.nic.count, outer.nic.gpus)
    ports = (outer.planes if nics == 1 else nics) if outer.spread == "split" else 1
    return int(outer.bandwidth) * ports // shared
