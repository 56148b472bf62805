"""What ASTRA-sim's log prints of each rank: the times of GPU, communication and host, and the overlap.

Each is how long at least one node of its kind is under way, as ASTRA-sim's statistics count it. A node of
communication is under way from its issue to its end.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Bools, Int64s
from rapid_des.chakra.trace import NodeKind
from rapid_des.program.lowering import Lowered
from rapid_des.program.program import NONE, Records
from rapid_des.units import PS_PER_NS


class AstraTimes(Struct, frozen=True):
    """The times of one rank in nanoseconds."""

    gpu_time_ns: int
    comm_time_ns: int
    cpu_time_ns: int
    overlap_ns: int
    """The time in which the GPU computes while a communication is under way."""


def statistics_of(lowered: Lowered, records: Records) -> list[AstraTimes]:
    """Return the statistics of each rank, in the order of the bindings."""
    return [_of_rank(lowered, records, position) for position in range(len(lowered.program.bindings))]


def _of_rank(lowered: Lowered, records: Records, position: int) -> AstraTimes:
    program, nodes = lowered.program, lowered.traces.ranks[position].nodes
    table = program.programs[program.bindings[position].program]
    visits = np.flatnonzero(table.node != NONE)
    kind, on_cpu = nodes.kind[table.node[visits]], nodes.on_cpu[table.node[visits]]
    flat = visits + int(program.visits()[position])
    spans = records.start[flat], records.finish[flat]
    computes = kind == NodeKind.COMPUTE
    talks = np.isin(kind, (NodeKind.COLLECTIVE, NodeKind.SEND, NodeKind.RECV))
    gpu, host = computes & ~on_cpu, computes & on_cpu
    lengths = [_covered(*spans, chosen) for chosen in (gpu, talks, host, gpu | talks)]
    gpu_time, comm_time, cpu_time, either = lengths
    both = gpu_time + comm_time - either
    return AstraTimes(*(time // PS_PER_NS for time in (gpu_time, comm_time, cpu_time, both)))


def _covered(start: Int64s, finish: Int64s, chosen: Bools) -> int:
    """Return how many picoseconds the chosen nodes cover, those that overlap once."""
    start, finish = start[chosen], finish[chosen]
    order = np.argsort(start, kind="stable")
    start, finish = start[order], finish[order]
    before: Int64s = np.concatenate(([0], np.maximum.accumulate(finish)[:-1])) if len(finish) else finish
    return int(np.maximum(finish - np.maximum(start, before), 0).sum())
