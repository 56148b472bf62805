"""Faults that come and go, as timetables of a program's servers (rule R6)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rapid_des.machine import Machine
from rapid_des.network.faults import Fault, gpu_timetables, link_timetables
from rapid_des.program.lowering import Lowered
from rapid_des.program.program import Program, Timetable, VisitKind


def with_timetables(lowered: Lowered, machine: Machine, faults: tuple[Fault, ...], horizon: int) -> Program:
    """Return the program with the timetables of its links, and of its ranks' compute streams.

    A GPU under a timed fault computes at the smaller of its arithmetic's and its memory's rate: what bounds
    an operator is not known to a program.
    """
    program, per_node = lowered.program, machine.spec.gpus_per_node
    links = {
        link: Timetable(*(np.array(column, np.int64) for column in zip(*table, strict=True)))
        for link, table in link_timetables(machine.fabric, faults, horizon, per_node).items()
    }
    gpus = gpu_timetables(machine.fabric, faults, horizon, per_node)
    streams = {}
    for position, binding in enumerate(program.bindings):
        table = gpus.get(binding.rank)
        if table is None:
            continue
        time, compute, hbm = (np.array(column, np.int64) for column in zip(*table, strict=True))
        rates = Timetable(time, np.minimum(compute, hbm), np.zeros_like(time))
        own = program.programs[binding.program]
        computes = (own.kind == VisitKind.COMPUTE) & (own.server >= 0)
        for server in np.unique(own.server[computes]).tolist():
            streams[position, server] = rates
    return replace(program, link_timetables=links, stream_timetables=streams)
