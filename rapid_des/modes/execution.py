"""Running a lowered program on an engine, with the checks that every run must pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rapid_des.engines.deadlock import require_finished
from rapid_des.errors import InputError, UnsupportedByEngine
from rapid_des.modes.symmetry import fold, unfold
from rapid_des.program.program import NONE, Namer, Program, Records

EngineName = Literal["simpy", "compiled"]
ENGINES: tuple[EngineName, ...] = ("simpy", "compiled")
SMALL, SMALL_COLD = 1_000, 60_000
"""Transfers up to which interpreting (30 µs each) is faster than loading the compiled kernel (0.04 s), and
than compiling it (15 s) with some patience."""


@dataclass(frozen=True)
class Execution:
    """What an engine saw, and what it cost."""

    records: Records
    engine: EngineName
    wall_s: float
    folded: float = 1.0
    """How many ranks each simulated rank stood for."""


@dataclass(frozen=True)
class EngineChoice:
    """Which engine, and who is told that its kernel must be compiled first."""

    engine: str = "auto"
    """auto takes the one that is faster for the program's size."""
    announce: Callable[[str], None] | None = None
    cold: Callable[[], None] | None = None
    """Is told when a run is interpreted because the kernel (not the fluid mode's) has yet to be compiled."""
    fold: bool = True
    """Simulate ranks that provably live alike once."""

    @classmethod
    def of(cls, engine: str | EngineChoice) -> EngineChoice:
        """Return the choice that an engine's name stands for, or the choice as it is."""
        return cls(engine) if isinstance(engine, str) else engine

    def engine_for(self, program: Program) -> EngineName:
        """Return the engine for a program."""
        if self.engine != "auto" and self.engine not in ENGINES:
            raise InputError(f"engine {self.engine!r} is not one of auto, {', '.join(ENGINES)}")
        if program.closures is not None:
            return _that_reroutes(self.engine)
        if self.engine == "auto":
            return self._faster(program)
        return self._compiled(program) if self.engine == "compiled" else "simpy"

    def _faster(self, program: Program) -> EngineName:
        """Return the engine that is faster: interpreting what is small, or what is cheaper than compiling."""
        hops = expected_hops(program, SMALL_COLD)
        if hops < SMALL:  # looking for the kernel takes longer than such a run
            return "simpy"
        if hops >= SMALL_COLD or not kernel_is_cold(fluid=program.fluid is not None):
            return self._compiled(program)
        if self.cold is not None and program.fluid is None:
            self.cold()
        return "simpy"

    def _compiled(self, program: Program) -> EngineName:
        if self.announce is not None and kernel_is_cold(fluid=program.fluid is not None):
            self.announce("compiling the replay kernel, once for this installation (about 15 s) …")
        return "compiled"


def execute(
    program: Program, choice: EngineChoice, *, trail: bool = False, name: Namer | None = None
) -> Execution:
    """Play a program to its end.

    Raises `DeadlockError` if a visit never finishes; a byte that was sent and not received is a defect.
    """
    began = time.perf_counter()
    folding = fold(program) if choice.fold and not trail and program.fluid is None else None
    chosen = choice.engine_for(folding.program if folding else program)
    records = _run(folding.program if folding else program, chosen, trail=trail)
    if folding is not None and records.ties:
        folding, chosen = None, choice.engine_for(program)
        records = _run(program, chosen, trail=trail)
    elif folding is not None:
        records = unfold(folding, program, records)
    wall_s = time.perf_counter() - began
    require_finished(program, records, name)
    assert records.sent == records.received, "bytes were lost on the way"
    return Execution(records, chosen, wall_s, folding.factor if folding else 1.0)


def _that_reroutes(engine: str) -> EngineName:
    if engine == "compiled":
        raise UnsupportedByEngine("engine compiled does not reroute in mid-flight: use --engine simpy")
    return "simpy"


def _run(program: Program, engine: str, *, trail: bool) -> Records:
    """Run a program; each engine is imported with its library only if it is the one."""
    if program.closures is not None:
        from rapid_des.engines.simpy import rerouting

        return rerouting.run(program, trail=trail)
    if engine == "simpy":
        from rapid_des.engines.simpy import engine as simpy_engine

        return simpy_engine.run(program, trail=trail)
    from rapid_des.engines import compiled

    return compiled.run(program, trail=trail)


def kernel_is_cold(*, fluid: bool = False) -> bool:
    """Tell whether the kernel (of the fluid mode) has yet to be compiled on this machine."""
    from rapid_des.engines.compiled import fluid_kernel, jit, kernel

    return jit.is_cold(fluid_kernel.play_fluid if fluid else kernel.play)


def expected_hops(program: Program, limit: int) -> int:
    """Return about how many transfers and visits a program makes; counting stops at `limit`."""
    members = np.array([template.members for template in program.templates], np.int64)
    shares = program.template_tasks / members if len(members) else np.zeros(1)
    sizes = [
        len(table) + int(shares[table.template[table.template != NONE]].sum()) for table in program.programs
    ]
    total = 0
    for binding in program.bindings:
        total += sizes[binding.program]
        if total >= limit:
            break
    return total
