"""What that simulator would print: when each rank finished, and how long no GPU operator ran by then."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.astra.lower import Lowered
from rapid_des.astra.ranks import GPU
from rapid_des.modes.execution import Execution
from rapid_des.program.program import Program, Records, VisitKind
from rapid_des.units import PS_PER_NS


@dataclass(frozen=True)
class AstraRun:
    """What a replay leaves behind for link tables and further questions."""

    lowered: Lowered
    execution: Execution


@dataclass(frozen=True)
class AstraResult:
    """Nanoseconds by position in `ranks`, and what was read but not followed."""

    ranks: tuple[int, ...]
    finish_ns: tuple[int, ...]
    exposed_communication_ns: tuple[int, ...]
    hops: int
    notes: tuple[str, ...] = ()
    engine: str = ""
    wall_s: float = 0.0
    run: AstraRun | None = field(default=None, repr=False)

    def tree(self) -> dict[str, object]:
        """Return the result as JSON's objects."""
        rows = zip(self.ranks, self.finish_ns, self.exposed_communication_ns, strict=True)
        return {
            "ranks": {
                str(rank): {"finish_ns": finish, "exposed_communication_ns": exposed}
                for rank, finish, exposed in rows
            },
            "finish_ns": max(self.finish_ns, default=0),
            "engine": self.engine,
            "hops": self.hops,
            "simulation_wall_s": round(self.wall_s, 6),
            "notes": list(self.notes),
        }


def result_of(program: Program, records: Records) -> AstraResult:
    """Summarise a finished run by rank."""
    offsets = program.visits().tolist()
    finish, exposed = [], []
    for position, binding in enumerate(program.bindings):
        window = slice(offsets[position], offsets[position + 1])
        end = int(records.finish[window].max(initial=0)) // PS_PER_NS
        computes = _gpu_operators(program, binding.program)
        busy = int((records.finish[window] - records.start[window])[computes].sum()) // PS_PER_NS
        finish.append(end)
        exposed.append(end - busy)
    ranks = tuple(binding.rank for binding in program.bindings)
    return AstraResult(ranks, tuple(finish), tuple(exposed), records.hops)


def _gpu_operators(program: Program, number: int) -> Int64s:
    table = program.programs[number]
    return np.flatnonzero((table.kind == VisitKind.COMPUTE) & (table.server == GPU))
