"""Every test of this folder runs on every engine, but for R8: only the definition closes links.

What holds a rule is named by it: `pytest -k r4` runs what holds R4 (see `rapid_des.program.program`).
"""

from __future__ import annotations

import pytest

from rapid_des.modes.execution import ENGINES, EngineChoice, Execution, execute
from rapid_des.program.lowering import lower
from tests.engines.agreement import RUN


@pytest.fixture(params=ENGINES)
def engine(request):
    """The name of an engine."""
    return request.param


@pytest.fixture
def run(engine):
    """Play a hand-made program; unfinished visits are left at NONE."""
    return RUN[engine]


@pytest.fixture
def replayed(engine):
    """Lower traces and play them with every check: `replayed(traces, machine).finish[rank][node]`."""

    def play(traces, machine, **options) -> Replayed:
        lowered = lower(traces, machine)
        done = execute(lowered.program, EngineChoice(engine, fold=False), name=lowered.name, **options)
        return Replayed(lowered, done)

    return play


class Replayed:
    """Start and finish of every node by rank and position."""

    def __init__(self, lowered, done: Execution) -> None:
        self.records, self.program = done.records, lowered.program
        self.start, self.finish = [], []
        offsets = lowered.program.visits()
        for position, binding in enumerate(lowered.program.bindings):
            own = (lowered.program.programs[binding.program].node != -1).nonzero()[0] + offsets[position]
            self.start.append(self.records.start[own].tolist())
            self.finish.append(self.records.finish[own].tolist())
