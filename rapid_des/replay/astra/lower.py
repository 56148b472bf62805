"""A trace set and ASTRA-sim's files to a program: what that simulator would do, in our own terms."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from rapid_des.chakra.trace import NodeTable, RankTrace, TraceSet
from rapid_des.errors import TraceError
from rapid_des.replay.astra.files import MemoryFile, Setup
from rapid_des.replay.astra.groups import GroupTable, Membership
from rapid_des.replay.astra.issue import issue_order
from rapid_des.replay.astra.library import Library
from rapid_des.replay.astra.ranks import GroupSlot, LoweredRank, RankLowering
from rapid_des.replay.astra.topology import Network, hop_table, network_of
from rapid_des.replay.program import HopTable, Program, RankBinding
from rapid_des.units import PS_PER_NS


@dataclass(frozen=True)
class Lowered:
    """A program with the network that it runs on."""

    program: Program
    network: Network


def lower(traces: TraceSet, setup: Setup) -> Lowered:
    """Return the program; errors name the file or the rank and node that is wrong."""
    network = network_of(setup.network, setup.files.network)
    _check_ranks(traces, network)
    membership = _membership(traces, setup, network)
    library = Library(setup)
    table = GroupTable(network, membership, setup.memory)
    shared = _Shared(RankLowering(setup, library), membership)
    bindings = tuple(_bind(trace, shared, table) for trace in traces.ranks)
    groups, routes = table.routed(library.templates)
    links = len(network.fabric)
    service_class = np.append(network.service_class, np.full(table.memories, len(network.bandwidth), np.int32))
    hops = hop_table(network, library.sizes.all())
    program = Program(
        bindings=bindings,
        programs=tuple(one.program for one in shared.lowered),
        groups=groups,
        templates=tuple(library.templates),
        hops=_with_memory(hops, setup.memory) if table.memories else hops,
        route_starts=routes.starts,
        route_links=routes.links.astype(np.int32),
        route_class=service_class[routes.links].astype(np.int32),
        links=links + table.memories,
    )
    return Lowered(program, network)


def _check_ranks(traces: TraceSet, network: Network) -> None:
    ranks = [trace.rank for trace in traces.ranks]
    if ranks != list(range(network.gpus)):
        missing = sorted(set(range(network.gpus)) - set(ranks))
        extra = sorted(set(ranks) - set(range(network.gpus)))
        what = f"no trace for rank {missing[0]}" if missing else f"a trace for rank {extra[0]}"
        raise TraceError(f"{network.fabric.name}: {network.gpus} NPUs but {what}; allowed: one trace for each")


def _membership(traces: TraceSet, setup: Setup, network: Network) -> Membership:
    """Resolve the group names of a trace: numbers of the groups' file, else those that the trace defines."""
    names = sorted({name for trace in traces.ranks for name in trace.groups})
    groups = {name: _ranks_of(name, traces, setup, network) for name in names}
    everyone = set(range(network.gpus))
    return Membership(groups, frozenset(name for name in names if set(groups[name]) == everyone))


def _ranks_of(name: str, traces: TraceSet, setup: Setup, network: Network) -> tuple[int, ...]:
    if name in ("", "world") or (name == "0" and setup.dialect == "stock"):
        return tuple(range(network.gpus))
    number = int(name) if name.isdigit() else None
    if number in setup.groups:
        ranks = setup.groups[number]
    elif name in traces.groups:
        ranks = traces.groups[name]
    else:
        where = setup.files.groups or "the trace"
        raise TraceError(f"{where}: process group {name!r} is not defined; state it with --astra-groups")
    if max(ranks) >= network.gpus:
        raise TraceError(f"process group {name!r}: rank {max(ranks)}; allowed: 0 to {network.gpus - 1}")
    return ranks


class _Shared:
    """Rank programs, each lowered once for all ranks that run the same nodes in groups of the same sizes."""

    def __init__(self, lowering: RankLowering, membership: Membership) -> None:
        self._lowering = lowering
        self._membership = membership
        self._numbers: dict[object, int] = {}
        self._digests: dict[int, bytes] = {}
        self.lowered: list[LoweredRank] = []

    def number(self, trace: RankTrace) -> int:
        """Return the number of a rank's program."""
        groups = tuple(self._slot(name) for name in trace.groups)
        if id(trace.nodes) not in self._digests:
            self._digests[id(trace.nodes)] = _digest(trace.nodes)
        key = (self._digests[id(trace.nodes)], groups)
        if key not in self._numbers:
            self.lowered.append(self._lowering.lower(trace.nodes, groups, f"rank {trace.rank}"))
            self._numbers[key] = len(self.lowered) - 1
        return self._numbers[key]

    def _slot(self, name: str) -> GroupSlot:
        whole = name in self._membership.whole
        return GroupSlot(None if whole else len(self._membership.groups[name]))


def _digest(nodes: NodeTable) -> bytes:
    """Return a fingerprint of all that lowering reads of a table, ids by their order only."""
    order, _ = issue_order(nodes)
    columns = (
        order, nodes.kind, nodes.duration, nodes.size, nodes.collective, nodes.group, nodes.peer, nodes.tag,
        nodes.flops, nodes.tensor_bytes, nodes.on_cpu, nodes.dependency_starts, nodes.dependencies,
    )  # fmt: skip
    digest = hashlib.blake2b(digest_size=16)
    for column in columns:
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.digest()


def _bind(trace: RankTrace, shared: _Shared, table: GroupTable) -> RankBinding:
    number = shared.number(trace)
    return table.bind(trace, number, shared.lowered[number].slots)


def _with_memory(hops: HopTable, memory: MemoryFile | None) -> HopTable:
    """Add remote memory as the last service class: latency + trunc(bytes / rate) nanoseconds, one at a time."""
    assert memory is not None and memory.remote_mem_bw is not None
    time = np.trunc(memory.remote_mem_latency + np.trunc(hops.bytes / memory.remote_mem_bw))
    occupancy = np.maximum(time.astype(np.int64) * PS_PER_NS, 1)[:, None]
    return HopTable(
        occupancy=np.hstack((hops.occupancy, occupancy)),
        head=np.hstack((hops.head, occupancy)),
        lag=np.hstack((hops.lag, np.zeros_like(occupancy))),
        bytes=hops.bytes,
    )
