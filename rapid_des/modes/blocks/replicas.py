"""The outer graph of one data-parallel replica, where all provably do the same (see `program.replicas`)."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import TraceSet
from rapid_des.errors import UnsupportedByEngine
from rapid_des.frontend.layout import Layout
from rapid_des.frontend.trace import JobTrace
from rapid_des.machine import Machine
from rapid_des.modes.execution import EngineChoice, execute
from rapid_des.modes.flattened import Run
from rapid_des.program.lowering import lower
from rapid_des.program.replicas import Replicas


def run_first_replica(
    trace: JobTrace, machine: Machine, choice: EngineChoice, *, cache: BoundedCache
) -> tuple[JobTrace, Run] | None:
    """Run the first replica of an outer graph for all; None if they might differ.

    Its records count the hops and bytes of all replicas.
    """
    replicas = _replicas(trace.job.layout)
    if replicas.count < 3 or machine.faults or machine.switching.mode == "fluid":
        return None
    traces = trace.traces
    tables = {rank.rank: rank.nodes for rank in traces.ranks}
    if any(tables[int(replicas.image[rank])] is not table for rank, table in tables.items()):
        return None
    digit = trace.job.layout.coordinates("dp")[list(tables)]
    chosen = np.flatnonzero(digit == digit[0]).tolist()
    first = replace(
        trace,
        traces=TraceSet(tuple(traces.ranks[place] for place in chosen), traces.groups),
        stage_of_rank=tuple(trace.stage_of_rank[place] for place in chosen),
    )
    try:
        lowered = lower(first.traces, machine, replicas=replicas, cache=cache)
    except UnsupportedByEngine:
        return None
    execution = execute(lowered.program, choice, ties=True, name=lowered.name)
    records, count = execution.records, replicas.count
    if records.ties:
        return None
    records = replace(
        records, hops=records.hops * count, sent=records.sent * count, received=records.received * count
    )
    execution = replace(execution, records=records, folded=execution.folded * count)
    return first, Run(lowered, execution, machine)


def _replicas(layout: Layout) -> Replicas:
    """Return the replicas that a job has by data parallelism."""
    count, digit = layout.size("dp"), layout.coordinates("dp")
    stride = prod(layout.sizes[: layout.axes.index("dp")])
    return Replicas(count, np.arange(layout.ranks) + stride * np.where(digit == count - 1, 1 - count, 1))
