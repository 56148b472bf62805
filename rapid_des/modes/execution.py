"""Running a lowered program on an engine, with the checks that every run must pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec import Struct

from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import TraceSet
from rapid_des.compiling import CompiledKernel
from rapid_des.engines.deadlock import why_unfinished
from rapid_des.errors import InputError
from rapid_des.machine import Machine
from rapid_des.program.collectives.plans import Play
from rapid_des.program.lowering import lower
from rapid_des.program.program import NONE, Namer, Program, Progress, Records
from rapid_des.values import replace

if TYPE_CHECKING:
    from rapid_des.machine import Machine
    from rapid_des.modes.symmetry import Folding
    from rapid_des.modes.symmetry.choices import WatchedChoices
    from rapid_des.program.faults.closures import Closures
    from rapid_des.program.lowering import Lowered

Announce = Callable[[str], None]
EngineName = Literal["simpy", "compiled"]
ENGINES: tuple[EngineName, ...] = ("simpy", "compiled")
SMALL, SMALL_COLD = 1_000, 60_000
"""Hops up to which interpreting (30 µs each) is faster than loading the compiled kernel (0.04 s), and up
to which, taking 2 s, it goes before compiling that (half a minute) for the first time."""
_INTERPRETED_S, _COMPILED_S = 30e-6, 0.5e-6
"""What a transfer takes, about."""
_MANY_LINKS, _FEWER = 4096, 4
"""A program with more links than the first, and at least the second times the hops of its routes, runs on
the links that it uses."""
_WORTH_FOLDING_S = 0.1
"""Shorter runs are not searched for a symmetry: importing and searching would take as long as they do."""


class TooManyHopsError(Exception):
    """Raised where a run would have more transfers than was allowed."""


class Execution(Struct, frozen=True):
    """What an engine saw, and what it cost."""

    records: Records
    engine: EngineName
    wall_s: float
    folded: float = 1.0
    """The number of ranks that each simulated rank stood for."""


class Run(Struct, frozen=True):
    """A program, what an engine saw of it, and the machine: what results and timelines are read from."""

    lowered: Lowered
    execution: Execution
    machine: Machine

    @property
    def nbytes(self) -> int:
        """Bytes of what an engine saw, which is every visit of every rank; the program comes on top."""
        records = self.execution.records
        arrays = (
            *(records.start, records.finish, records.met),
            *(records.link_bytes, records.link_busy, records.link_wait),
        )
        return sum(array.nbytes for array in arrays)


@dataclass(frozen=True)
class EngineChoice:
    """The engine, and who is notified that small programs are interpreted for now.

    >>> EngineChoice.of("simpy").fold
    True
    """

    engine: str = "auto"
    """auto takes the one that is faster for the program's size."""
    announce: Announce | None = None
    programs: int = 1
    """The number of programs about as large that are run: loading a kernel pays for all of them."""
    fold: bool = True
    """Simulate ranks that provably live alike once."""
    progress: Callable[[int, int], None] | None = field(default=None, compare=False)
    """Called some times a second with what is done of a run, and about how much there is to do."""
    inspect: Callable[[Lowered], None] | None = field(default=None, compare=False)
    """Shown a flattened run before it begins; what it raises is raised."""
    most_hops: int | None = None
    """Transfers from which on nothing is run, ranks that live alike counted once: `TooManyHopsError`."""

    @classmethod
    def of(cls, engine: str | EngineChoice) -> EngineChoice:
        """Return the choice that an engine's name stands for, or the choice as it is."""
        return cls(engine) if isinstance(engine, str) else engine

    def engine_for(self, program: Program, *, closing: bool = False) -> EngineName:
        """Return the engine for a program, whose links may close."""
        if self.engine != "auto" and self.engine not in ENGINES:
            raise InputError(f"engine {self.engine!r} is not one of auto, {', '.join(ENGINES)}")
        if self.engine == "auto":
            return self._faster(program, closing=closing)
        return "compiled" if self.engine == "compiled" else "simpy"

    def _faster(self, program: Program, *, closing: bool) -> EngineName:
        """Return the engine that is faster: interpreting what is small, or what is cheaper than compiling."""
        hops = _hops(program)
        if hops * self.programs < SMALL:  # looking for the kernel takes longer than such runs
            return "simpy"
        kernel = _kernel(program, closing=closing)
        goes_before = hops < SMALL_COLD or kernel.is_interpreted
        if goes_before and kernel.is_cold() and _is_put_off(kernel, self.announce):
            return "simpy"
        return "compiled"


def execute(
    program: Program,
    choice: EngineChoice,
    *,
    trail: bool = False,
    ties: bool = False,
    name: Namer | None = None,
) -> Execution:
    """Play a program to its end; `trail` records every hop, `ties` counts choices among equals on links.

    Raises `DeadlockError` if a visit never finishes; a byte that was sent and not received is a defect.
    """
    folding, execution = execute_folded(program, choice, trail=trail, ties=ties, name=name)
    if folding is None:
        return execution
    return replace(execution, records=folding.unfolded(program, execution.records))


def execute_folded(
    program: Program,
    choice: EngineChoice,
    *,
    trail: bool = False,
    ties: bool = False,
    name: Namer | None = None,
) -> tuple[Folding | None, Execution]:
    """Play a program as `execute` does, and return what of the folded program was seen, if it was folded."""
    began = time.perf_counter()
    folding, chosen, records = _folded_run(program, choice, trail=trail, ties=ties, keeps_order=False)
    if folding is not None and not folding.keeps_order and records.ties:
        folding, chosen, records = _folded_run(program, choice, trail=trail, ties=ties, keeps_order=True)
    if folding is not None and not records.finished:
        records = folding.unfolded(program, records)  # positions are named by the whole program
    wall_s = time.perf_counter() - began
    execution = Execution(records, chosen, wall_s, folding.factor if folding else 1.0)
    return folding, _checked(program, execution, name)


def _folded_run(
    program: Program, choice: EngineChoice, *, trail: bool, ties: bool, keeps_order: bool
) -> tuple[Folding | None, EngineName, Records]:
    """Return what a program was folded to, if anything, the engine, and what it saw of that.

    With `keeps_order` it is folded only along what keeps the order of transfers: such a run always counts.
    Others do not if links chose by rank.
    """
    folding = _folding(program, choice.engine, keeps_order=keeps_order) if choice.fold and not trail else None
    played = folding.program if folding else program
    if choice.most_hops is not None and expected_hops(played) > choice.most_hops:
        raise TooManyHopsError
    chosen = choice.engine_for(played)
    records = None if trail else _recurring(played, chosen, choice)
    if records is None:
        may_tie = folding is not None and not folding.keeps_order
        watch = folding.watched if folding is not None else None
        records = _run(
            played, chosen, choice, trail=trail, ties=ties or may_tie, to_ties=may_tie, watch=watch
        )
    return folding, chosen, records


def _checked(program: Program, execution: Execution, name: Namer | None) -> Execution:
    if not execution.records.finished:
        raise why_unfinished(program, execution.records, name)
    assert execution.records.sent == execution.records.received, "bytes were lost"
    return execution


def _folding(program: Program, engine: str, *, keeps_order: bool) -> Folding | None:
    """Return the program folded along its symmetry, if a run takes so long that looking for one pays."""
    run_s = _expected_s(program, engine)
    if run_s < _WORTH_FOLDING_S:
        return None
    from rapid_des.modes import symmetry

    budget = symmetry.Budget(run_s)
    return symmetry.fold(program, replace(budget, discarded=0.0) if keeps_order else budget)


def _recurring(program: Program, engine: EngineName, choice: EngineChoice) -> Records | None:
    """Return the records of a program of which few periods stand for all; None if none is known to."""
    if not choice.fold or engine != "compiled" or _expected_s(program, engine) < _WORTH_FOLDING_S:
        return None
    from rapid_des.modes.symmetry.recurrence import FEW, KEPT, WORTH, run_shortened, shortened

    for kept in (FEW, KEPT):
        short = shortened(program, kept=kept, worth=WORTH)
        if short is None:  # nor is it for more periods
            return None
        records = run_shortened(short, progress=_teller(program, choice))
        if records is not None:
            return records
    return None


def _expected_s(program: Program, engine: str) -> float:
    """Return about how long running a program takes, the kernel's compilation aside."""
    if engine == "auto":
        hops = _hops(program)
        is_cold = SMALL <= hops < 4 * SMALL_COLD and _kernel(program).is_cold()
        engine = "simpy" if hops < SMALL or is_cold else "compiled"
    return expected_hops(program) * (_INTERPRETED_S if engine == "simpy" else _COMPILED_S)


def execute_closing(
    program: Program,
    closures: Closures,
    choice: EngineChoice,
    *,
    trail: bool,
    name: Namer | None,
) -> Execution:
    """Play a program whose links close in mid-flight (R8), see `execute`."""
    began = time.perf_counter()
    engine = choice.engine_for(program, closing=True)
    if engine == "compiled":
        from rapid_des.engines.compiled import replanning

        records = replanning.run(program, closures, trail=trail, progress=_teller(program, choice))
    else:
        from rapid_des.engines.simpy import engine as simpy_engine

        records = simpy_engine.run(program, closures=closures, trail=trail, progress=_teller(program, choice))
    return _checked(program, Execution(records, engine, time.perf_counter() - began), name)


def _teller(program: Program, choice: EngineChoice) -> Progress | None:
    """Return what an engine calls to report a program's progress."""
    report = choice.progress
    if report is None:
        return None
    expected = expected_hops(program)
    return lambda done: report(done, expected)


def _run(  # noqa: PLR0913 - options by name
    program: Program,
    engine: str,
    choice: EngineChoice,
    *,
    trail: bool,
    ties: bool = False,
    to_ties: bool = False,
    watch: WatchedChoices | None = None,
) -> Records:
    """Run a program; each engine is imported with its library only if it is the one.

    With `ties` the records count them, as whoever folds must know; the compiled engine always does. With
    `to_ties` it need not go on behind one; those do not count that `watch` finds alike.
    """
    if program.links > max(_MANY_LINKS, _FEWER * len(program.route_links)):
        from rapid_des.modes.used_links import UsedLinks

        used = UsedLinks.of(program)
        if used is not None:
            how = {"trail": trail, "ties": ties, "to_ties": to_ties}
            seen = _run(used.program, engine, choice, watch=watch, **how)
            return used.whole(seen)
    if engine == "simpy":
        from rapid_des.engines.simpy import engine as simpy_engine

        return simpy_engine.run(program, trail=trail, ties=ties, progress=_teller(program, choice))
    from rapid_des.engines import compiled

    progress = _teller(program, choice)
    return compiled.run(program, trail=trail, progress=progress, to_ties=to_ties, watch=watch)


def _kernel(program: Program, *, closing: bool = False) -> CompiledKernel:
    """Return the kernel, asked for as the engine asks: that very one knows that it is loaded."""
    from rapid_des.engines import compiled

    if closing:
        return compiled.kernel_of(fluid=False, closing=True)
    if program.fluid is not None:
        return compiled.kernel_of(fluid=True)
    return compiled.kernel_of(paired=program.queue_pairs is not None)


@cache
def _is_put_off(kernel: CompiledKernel, announce: Announce | None) -> bool:
    """Return whether this process does without a cold kernel: its first small user does, and says so.

    Who has only small programs thus waits for the compiler once, and not at the first try.
    """
    if kernel.is_interpreted:
        if announce is not None and kernel.advice:
            announce(kernel.advice)
        return True
    try:
        if kernel.ask():
            return False
    except OSError:
        return True
    if announce is not None:
        announce("interpreted; the next run will compile the kernels first, once (half a minute)")
    return True


def expected_hops(program: Program) -> int:
    """Return about how many transfers and visits a program makes."""
    members = np.array([template.members for template in program.templates], np.int64)
    shares = program.template_tasks / members if len(members) else np.zeros(1)
    ranks = np.bincount(
        [binding.program for binding in program.bindings], minlength=len(program.programs)
    ).tolist()
    return sum(
        count * (len(table) + int(shares[table.template[table.template != NONE]].sum()))
        for count, table in zip(ranks, program.programs, strict=True)
    )


def _hops(program: Program) -> float:
    """Return about how many hops the parts of all messages take, a visit counted as one.

    What is large anyway is not looked at so closely: it is counted as if its messages took one hop each.
    """
    transfers = expected_hops(program)
    if transfers > SMALL_COLD or not program.templates:
        return transfers
    links = len(program.route_links) / max(1, len(program.route_starts) - 1)
    if program.fluid is not None or program.hops.parts is None:
        return transfers * max(1.0, links)
    sizes = np.concatenate([template.size for template in program.templates])
    parts = float(program.hops.parts.count[sizes].mean()) if len(sizes) else 1.0
    return transfers * max(1.0, links * parts)


def alone(choice: EngineChoice) -> EngineChoice:
    """Return the choice for a small program that is simulated by itself, of any size and untold."""
    return EngineChoice(choice.engine, announce=choice.announce, programs=choice.programs, fold=choice.fold)


def on_idle_links(traces: TraceSet, machine: Machine, choice: EngineChoice, cache: BoundedCache) -> Play:
    """Return what simulates a trace by itself, with the libraries that `traces` name."""
    engine = alone(choice)

    def play(one: TraceSet) -> int:
        lowered = lower(replace(one, libraries=traces.libraries), machine, cache=cache)
        return execute(lowered.program, engine, name=lowered.name).records.makespan

    return play
