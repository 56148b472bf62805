"""GPUs that faults slow: what their ranks run, and how long."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import TypeAlias, TypeVar

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.chakra.trace import UNSTATED, NodeKind, NodeTable, RankTrace, TraceSet
from rapid_des.device.device import Device
from rapid_des.machine import Machine
from rapid_des.network.faults import GpuFactors
from rapid_des.program.services import service_times
from rapid_des.values import replace

Pace: TypeAlias = Callable[[int, GpuFactors], Int64s]
"""Maps (position of a rank, remaining share of its GPU) to the duration of each node in picoseconds."""
_Priced = TypeVar("_Priced")
_HOW_STATED_TIMES_GROW = (
    "slowed GPUs: stated kernel durations grow by the compute factor only, memory nodes by the hbm factor"
)


def priced_on_slow_gpus(
    machine: Machine, price: Callable[[Device], _Priced], gpus: Container[int]
) -> dict[int, _Priced]:
    """Return for each slowed GPU what `price` makes of its device; GPUs of equal factors share one."""
    by_factors: dict[GpuFactors, _Priced] = {}
    priced = {}
    for gpu, share in machine.slowed.items():
        if gpu not in gpus:
            continue
        if share not in by_factors:
            by_factors[share] = price(machine.device.slowed(compute=share.compute, hbm=share.hbm))
        priced[gpu] = by_factors[share]
    return priced


def on_slow_gpus(traces: TraceSet, slow: Mapping[int, TraceSet]) -> TraceSet:
    """Return the traces with the tables of slowed GPUs' ranks taken from their own pricing of the job."""
    ranks = []
    for position, trace in enumerate(traces.ranks):
        other = slow.get(trace.rank)
        ranks.append(trace if other is None else replace(trace, nodes=other.ranks[position].nodes))
    return replace(traces, ranks=tuple(ranks))


def stretched(traces: TraceSet, machine: Machine) -> TraceSet:
    """Return foreign traces as slowed GPUs run them.

    Stated durations of GPU kernels grow by the compute factor, those of memory nodes by the memory's; nodes
    without a duration are priced on the slowed device.
    """
    stretched: dict[tuple[int, GpuFactors], NodeTable] = {}
    ranks: list[RankTrace] = []
    for trace, table in zip(traces.ranks, traces.table_numbers(), strict=True):
        share = machine.slowed.get(trace.rank)
        if share is None:
            ranks.append(trace)
            continue
        key = (table, share)
        if key not in stretched:
            stretched[key] = _stretched(trace.nodes, machine.device, share)
        ranks.append(replace(trace, nodes=stretched[key]))
    slow = any(fault.timed and (fault.compute or fault.hbm) for fault in machine.faults)
    notes = (*traces.notes, _HOW_STATED_TIMES_GROW) if stretched or slow else traces.notes
    return replace(traces, ranks=tuple(ranks), notes=notes)


def pace_of(traces: TraceSet, machine: Machine) -> Pace:
    """Return the function of the durations of foreign traces' nodes on a GPU that faults have slowed.

    The traces are those of healthy GPUs; see `stretched`.
    """
    tables = traces.table_numbers()
    times: dict[tuple[int, GpuFactors], Int64s] = {}

    def pace(position: int, factors: GpuFactors) -> Int64s:
        key = (tables[position], factors)
        if key not in times:
            times[key] = _stretched(traces.ranks[position].nodes, machine.device, factors).duration
        return times[key]

    return pace


def _stretched(nodes: NodeTable, device: Device, share: GpuFactors) -> NodeTable:
    stated = nodes.duration != UNSTATED
    duration = service_times(nodes, device.slowed(compute=share.compute, hbm=share.hbm))
    kernels = stated & (nodes.kind == NodeKind.COMPUTE) & ~nodes.on_cpu
    moves = stated & np.isin(nodes.kind, (NodeKind.MEM_LOAD, NodeKind.MEM_STORE))
    for mine, factor in ((kernels, share.compute), (moves, share.hbm)):
        duration[mine] = [-(-time // factor) for time in duration[mine].tolist()]
    return replace(nodes, duration=duration)
