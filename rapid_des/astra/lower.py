"""A trace set and ASTRA-sim's files to a program: what that simulator would do, in our own terms."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from rapid_des.astra.collectives import Scope
from rapid_des.astra.files import MemoryFile, Setup
from rapid_des.astra.groups import WORLD, GroupTable, Membership
from rapid_des.astra.issue import IssueOrder, issue_order
from rapid_des.astra.library import Library
from rapid_des.astra.ranks import LoweredRank, RankLowering
from rapid_des.astra.topology import Network, hop_table, network_of
from rapid_des.chakra.trace import NodeTable, RankTrace, TraceSet
from rapid_des.errors import TraceError
from rapid_des.program.program import HopTable, Program, RankBinding
from rapid_des.units import PS_PER_NS

DIMENSIONS = "dimensions:"
"""How the reader names groups that a trace states as dimensions: "dimensions:1,0#2", innermost first."""


@dataclass(frozen=True)
class Lowered:
    """A program with the network that it runs on."""

    program: Program
    network: Network


def lower(traces: TraceSet, setup: Setup) -> Lowered:
    """Return the program; errors name the file, or the rank and node, that is wrong."""
    _check_ranks(traces, prod(setup.network.npus_count), str(setup.files.network))
    network = network_of(setup.network, setup.files.network)
    membership = _membership(traces, setup, network)
    library = Library(setup)
    table = GroupTable(network, membership, setup.memory)
    shared = _Shared(RankLowering(setup, library), membership)
    bindings = tuple(_bind(trace, shared, table) for trace in traces.ranks)
    groups, routes = table.routed(library.templates)
    memories = np.full(table.memories, len(network.bandwidth), np.int32)
    hops = hop_table(network, library.sizes.all())
    program = Program(
        bindings=bindings,
        programs=tuple(one.program for one in shared.lowered),
        groups=groups,
        templates=tuple(library.templates),
        hops=_with_memory(hops, setup.memory) if len(memories) else hops,
        route_starts=routes.starts,
        route_links=routes.links.astype(np.int32),
        route_class=np.append(network.service_class, memories)[routes.links].astype(np.int32),
        links=len(network.fabric) + len(memories),
    )
    return Lowered(program, network)


def _check_ranks(traces: TraceSet, npus: int, file: str) -> None:
    ranks = [trace.rank for trace in traces.ranks]
    wrong = next((place for place, rank in enumerate(ranks) if rank != place), len(ranks))
    if wrong != npus or len(ranks) != npus:
        what = f"a trace for rank {ranks[npus]}" if wrong >= npus else f"no trace for rank {wrong}"
        raise TraceError(f"{file}: {npus} NPUs, but {what}; allowed: one trace for each")


def _membership(traces: TraceSet, setup: Setup, network: Network) -> Membership:
    """Resolve the group names of a trace: numbers of the groups' file, else those that the trace defines."""
    names = sorted({name for trace in traces.ranks for name in trace.groups})
    everyone = tuple(range(network.gpus))
    world = {"", WORLD} | ({"0"} if setup.dialect == "stock" else set())
    world |= {name for name in names if name.startswith(DIMENSIONS) and all(_flags(name))}
    groups = {name: everyone if name in world else _ranks_of(name, traces, setup) for name in names}
    for name, ranks in groups.items():
        if not ranks or max(ranks) >= network.gpus:
            allowed = f"at least one rank, 0 to {network.gpus - 1}"
            raise TraceError(f"process group {name!r}: {ranks}; allowed: {allowed}")
    whole = world | {name for name, ranks in groups.items() if len(ranks) == len(everyone)}
    return Membership(groups, frozenset(whole), frozenset(world))


def _ranks_of(name: str, traces: TraceSet, setup: Setup) -> tuple[int, ...]:
    stated: Mapping[str, tuple[int, ...]] = {str(number): ranks for number, ranks in setup.groups.items()}
    if name in stated:
        return stated[name]
    if name in traces.groups:
        return traces.groups[name]
    where = setup.files.groups or "the trace"
    raise TraceError(f"{where}: process group {name!r} is not defined; state it with --astra-groups")


def _flags(name: str) -> tuple[bool, ...]:
    flags = name.removeprefix(DIMENSIONS).partition("#")[0]
    return tuple(flag == "1" for flag in flags.split(","))


class _Shared:
    """Rank programs, each lowered once for all ranks that run the same nodes in groups of the same kinds."""

    def __init__(self, lowering: RankLowering, membership: Membership) -> None:
        self._lowering = lowering
        self._membership = membership
        self._numbers: dict[object, int] = {}
        self._digests: dict[int, bytes] = {}
        self.lowered: list[LoweredRank] = []

    def number(self, trace: RankTrace) -> int:
        """Return the number of a rank's program."""
        scopes = tuple(self._scope(name) for name in trace.groups)
        known = self._digests.get(id(trace.nodes))
        order = issue_order(trace.nodes) if known is None else None
        if order is not None:
            known = self._digests[id(trace.nodes)] = _digest(trace.nodes, order)
        key = (known, scopes)
        if key not in self._numbers:
            order = order or issue_order(trace.nodes)
            self.lowered.append(self._lowering.lower(trace, order, scopes))
            self._numbers[key] = len(self.lowered) - 1
        return self._numbers[key]

    def _scope(self, name: str) -> Scope:
        if name in self._membership.whole:
            return Scope()
        if name.startswith(DIMENSIONS):
            return Scope(dimensions=_flags(name))
        return Scope(members=len(self._membership.groups[name]))


def _digest(nodes: NodeTable, order: IssueOrder) -> bytes:
    """Return a fingerprint of all that lowering reads of a table, ids by their order only."""
    columns = (
        order.place, nodes.kind, nodes.duration, nodes.size, nodes.collective, nodes.group, nodes.peer,
        nodes.tag, nodes.flops, nodes.tensor_bytes, nodes.on_cpu, nodes.dependency_starts, nodes.dependencies,
    )  # fmt: skip
    digest = hashlib.blake2b(digest_size=16)
    for column in columns:
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.digest()


def _bind(trace: RankTrace, shared: _Shared, table: GroupTable) -> RankBinding:
    number = shared.number(trace)
    return table.bind(trace, number, shared.lowered[number].slots)


def _with_memory(hops: HopTable, memory: MemoryFile | None) -> HopTable:
    """Add remote memory as the last service class: latency + trunc(bytes / rate) ns, one use at a time."""
    assert memory is not None and memory.remote_mem_bw is not None
    time = np.trunc(memory.remote_mem_latency + np.trunc(hops.bytes / memory.remote_mem_bw))
    occupancy = np.maximum(time.astype(np.int64) * PS_PER_NS, 1)[:, None]
    return HopTable(
        occupancy=np.hstack((hops.occupancy, occupancy)),
        head=np.hstack((hops.head, occupancy)),
        lag=np.hstack((hops.lag, np.zeros_like(occupancy))),
        bytes=hops.bytes,
    )
