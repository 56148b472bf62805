"""Running a lowered program on an engine, with the checks that every run must pass."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from rapid_des.errors import InputError
from rapid_des.replay import simpy_engine
from rapid_des.replay.deadlock import Namer, require_finished
from rapid_des.replay.program import Program, Records

EngineName = Literal["simpy", "compiled"]
ENGINES: tuple[EngineName, ...] = ("simpy", "compiled")
SMALL = 4_000
"""Hops up to which interpreting (50 µs a hop) is faster than loading the compiled kernel (0.2 s)."""


@dataclass(frozen=True)
class Execution:
    """What an engine saw, and what it cost."""

    records: Records
    engine: EngineName
    wall_s: float


def execute(
    program: Program, *, engine: str = "auto", trail: bool = False, name: Namer | None = None
) -> Execution:
    """Play a program to its end.

    `engine` auto takes the one that is faster for this size. Raises `DeadlockError` if a visit never
    finishes; a byte that was sent and not received is a defect.
    """
    chosen = engine_for(program) if engine == "auto" else engine
    if chosen not in ENGINES:
        raise InputError(f"engine {engine!r} is not one of auto, {', '.join(ENGINES)}")
    began = time.perf_counter()
    records = _run(program, chosen, trail=trail)
    wall_s = time.perf_counter() - began
    require_finished(program, records, name)
    assert records.sent == records.received, "bytes were lost on the way"
    return Execution(records, "simpy" if chosen == "simpy" else "compiled", wall_s)


def _run(program: Program, engine: str, *, trail: bool) -> Records:
    if engine == "simpy":
        return simpy_engine.run(program, trail=trail)
    from rapid_des.replay import compiled  # numba takes a third of a second to import

    return compiled.run(program, trail=trail)


def engine_for(program: Program) -> EngineName:
    """Return the engine that is faster: by an estimate of the hops, and of the visits of all ranks."""
    return "simpy" if expected_hops(program) < SMALL else "compiled"


def expected_hops(program: Program) -> int:
    """Return about how many hops and visits a program makes."""
    total = 0
    for binding in program.bindings:
        table = program.programs[binding.program]
        used = table.template[table.template >= 0]
        if len(used) > SMALL:
            return SMALL
        share = sum(
            len(program.templates[template]) / program.templates[template].members for template in used
        )
        total += len(table) + int(share)
        if total > SMALL:
            break
    return total
