"""Simulates a collective by itself, for modes in which no collective waits for another."""

from __future__ import annotations

from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import TraceSet
from rapid_des.machine import Machine
from rapid_des.modes.execution import EngineChoice, execute
from rapid_des.program.collectives.alone import Play
from rapid_des.program.lowering import lower
from rapid_des.values import replace


def on_idle_links(traces: TraceSet, machine: Machine, choice: EngineChoice, cache: BoundedCache) -> Play:
    """Return what simulates a trace by itself, with the libraries that `traces` name."""
    engine = EngineChoice(choice.engine, announce=choice.announce, programs=choice.programs, fold=choice.fold)

    def play(one: TraceSet) -> int:
        lowered = lower(replace(one, libraries=traces.libraries), machine, cache=cache)
        return execute(lowered.program, engine, name=lowered.name).records.makespan

    return play
