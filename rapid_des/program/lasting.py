"""How long what a rank sends and joins lasts alone, where that does not depend on where its groups lie.

What libraries do follows from sizes and counts of ranks and nodes. Ranks whose routes are unlike, as where
the groups of some cross one switch more, still live alike if all that they do lasts as long.
"""

from __future__ import annotations

from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import UNSTATED, CollectiveType, NodeKind, RankTrace, TraceSet
from rapid_des.machine import Machine
from rapid_des.program.communication import Communication, Lasts
from rapid_des.program.groups import GroupTable
from rapid_des.program.library import libraries_of
from rapid_des.program.plans import NO_TREES, Call
from rapid_des.program.routes import geometry


class Lasting:
    """The collectives and messages of one rank of some traces."""

    def __init__(self, traces: TraceSet, machine: Machine, rank: RankTrace) -> None:
        self._rank, self._groups, self._machine = rank, GroupTable(traces, machine), machine
        libraries = libraries_of(traces, machine)
        self._communication = Communication(
            machine, self._groups, BoundedCache(), analytic=True, libraries=libraries
        )

    def collectives(self, name: str) -> tuple[Lasts | None, ...]:
        """Return what each distinct collective of a group takes alone; None where its routes decide."""
        rank, nodes, durations = self._rank, self._rank.nodes, list[Lasts | None]()
        members = self._groups.members(name)
        extents, axes = geometry(self._machine, members)
        here = (nodes.kind == NodeKind.COLLECTIVE) & (nodes.group == rank.groups.index(name))
        columns = (
            column[here].tolist() for column in (nodes.collective, nodes.size, nodes.stream, nodes.tag)
        )
        for kind, size, stream, tag in sorted(set(zip(*columns, strict=True))):
            if UNSTATED in (kind, size) or tag or self._machine.in_switches:
                durations.append(None)
                continue
            call = Call(CollectiveType(kind), size, extents, axes, NO_TREES)
            durations.append(self._communication.collective_lasts(call, nodes.streams[stream], members))
        return tuple(durations)

    def messages(self, peer: int) -> tuple[Lasts | None, ...]:
        """Return what each distinct message to or from one of the rank's peers, by slot, takes alone."""
        rank, nodes, durations = self._rank, self._rank.nodes, list[Lasts | None]()
        here = ((nodes.kind == NodeKind.SEND) | (nodes.kind == NodeKind.RECV)) & (nodes.peer == peer)
        columns = (column[here].tolist() for column in (nodes.kind, nodes.size, nodes.stream, nodes.group))
        for kind, size, stream, group in sorted(set(zip(*columns, strict=True))):
            ends = (rank.rank, rank.peers[peer])
            within = None if group == UNSTATED else self._groups.members(rank.groups[group])
            name = nodes.streams[stream].removesuffix("-send").removesuffix("-recv")
            sent = ends if kind == NodeKind.SEND else ends[::-1]
            durations.append(self._communication.message_lasts(size, name, sent, within))
        return tuple(durations)
