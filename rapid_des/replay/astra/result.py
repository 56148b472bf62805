"""What that simulator would print: when each rank finished, and how long no GPU operator ran by then."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rapid_des.replay.astra.nodes import GPU
from rapid_des.replay.program import Int64s, Program, Records, VisitKind
from rapid_des.units import PS_PER_NS


@dataclass(frozen=True)
class AstraResult:
    """Nanoseconds by position in `ranks`, and what was read but not followed."""

    ranks: tuple[int, ...]
    finish_ns: tuple[int, ...]
    exposed_communication_ns: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def tree(self) -> dict[str, object]:
        """Return the result as JSON's objects."""
        rows = zip(self.ranks, self.finish_ns, self.exposed_communication_ns, strict=True)
        return {
            "ranks": {
                str(rank): {"finish_ns": finish, "exposed_communication_ns": exposed}
                for rank, finish, exposed in rows
            },
            "finish_ns": max(self.finish_ns, default=0),
            "notes": list(self.notes),
        }


def result_of(program: Program, records: Records, notes: tuple[str, ...] = ()) -> AstraResult:
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
    return AstraResult(ranks, tuple(finish), tuple(exposed), notes)


def _gpu_operators(program: Program, number: int) -> Int64s:
    table = program.programs[number]
    return np.flatnonzero((table.kind == VisitKind.COMPUTE) & (table.server == GPU))
