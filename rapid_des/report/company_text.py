"""What a report says of kernels that collectives beside them slow."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rapid_des.program.lowering import Lowered
from rapid_des.program.program import NONE, Records
from rapid_des.units import Duration

_TOLD = 1e-3
"""Share of a rank's time from which on a report tells how much slower its kernels are."""


def company_notes(lowered: Lowered, records: Records, position: int) -> Iterator[str]:
    """Yield a line if a rank's kernels take longer beside collectives; nothing where faults slow them too."""
    program = lowered.program
    own = program.programs[program.bindings[position].program]
    if own.company is None or program.visit_timetables:
        return
    slowed = np.flatnonzero(own.company.kind != NONE)
    visits = slowed + int(program.visits()[position])
    longer = int((records.finish[visits] - records.start[visits] - np.maximum(own.work[slowed], 1)).sum())
    if longer > _TOLD * records.makespan:
        yield (
            f"kernels take {Duration(longer)} longer beside collectives and messages, which take SMs and "
            "memory bandwidth from them (collectives.contention: false leaves that out)"
        )
