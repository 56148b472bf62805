"""Runs a program on the compiled kernel, slice by slice."""

from __future__ import annotations

import time
from typing import Protocol

from rapid_des.engines.compiled import work
from rapid_des.engines.compiled.kernel_run import KernelRun
from rapid_des.engines.deadlock import explain_disagreement
from rapid_des.errors import TraceError
from rapid_des.program.program import Program, Progress, Records
from rapid_des.program.timetable import FOREVER

_NEVER = FOREVER - 1
_SLICE_S = 0.2
"""The seconds that the kernel runs before Python looks for signals, as ^C, and reports progress."""
_FIRST_SLICE = 20_000
"""The number of events of the first slice; the later ones take `_SLICE_S` each."""


class Player(Protocol):
    """Calls a kernel, and provides what it wants: a `KernelRun` itself, or who changes links meanwhile."""

    def play(self, limit: int) -> None:
        """Call the kernel: it plays up to a time in picoseconds, or until it wants something."""

    def provide(self, status: int, wanted: int) -> None:
        """Provide what the kernel wants, by the status at which it returned."""


class CompiledSimulation:
    """One run of a program; `run` plays it to the end or to a given time.

    With `to_ties` it ends soon after a link has chosen by rank (`Records.ties`).
    """

    def __init__(
        self,
        kernel: KernelRun,
        *,
        player: Player | None = None,
        progress: Progress | None = None,
        to_ties: bool = False,
    ) -> None:
        self.kernel, self._player, self._to_ties = kernel, player or kernel, to_ties
        self._progress, self._reported_at = progress, 0.0

    def run(self, until: int | None = None) -> None:
        """Play until no event is left, or up to and including a time in picoseconds.

        An interrupt ends the run between two slices; `records` then returns what has happened.
        """
        limit = _NEVER if until is None else until
        # A slice has at most twice the events of the one before, so that the first ones stay short.
        totals, events = self.kernel.state.totals, _FIRST_SLICE
        while self._play_slice(limit, events) == work.LIMIT_REACHED:
            if self._progress is not None:
                self._progress(int(totals[work.WORKED]))
            if self._to_ties and totals[work.TIES]:
                return
            took = time.perf_counter() - self._slice_began
            events = max(1, int(events * min(2.0, _SLICE_S / took)))
        if totals[work.STATUS] == work.DISAGREES:
            group, number, sub, mine, other = totals[2:7].tolist()
            raise TraceError(explain_disagreement(self.kernel.program, (group, number, sub), (mine, other)))

    def advance(self, events: int = _NEVER, until: int = _NEVER) -> bool:
        """Play about `events` more events, or up to a time; return whether the events ended it."""
        paused = self._play_slice(until, events) == work.LIMIT_REACHED
        if self._progress is not None and time.perf_counter() - self._reported_at > _SLICE_S:
            self._reported_at = time.perf_counter()
            self._progress(int(self.kernel.state.totals[work.WORKED]))
        return paused

    def _play_slice(self, limit: int, events: int) -> int:
        """Play until about `events` more events were made; return the status at which it ended."""
        self._slice_began = time.perf_counter()
        self.kernel.state.cursor[work.EVENT_LIMIT] = self.kernel.events + events
        totals = self.kernel.state.totals
        self._player.play(limit)
        while totals[work.STATUS] not in (work.DONE, work.DISAGREES, work.LIMIT_REACHED):
            self._player.provide(int(totals[work.STATUS]), int(totals[work.WANTED]))
            self._player.play(limit)
        return int(totals[work.STATUS])

    def records(self) -> Records:
        """Return the records of the simulation so far."""
        return self.kernel.records()


def run(
    program: Program, *, trail: bool = False, progress: Progress | None = None, to_ties: bool = False
) -> Records:
    """Play a program to its end; visits that never finish are left at NONE in the records.

    With `to_ties` the end comes soon after a link has chosen by rank.
    """
    simulation = CompiledSimulation(KernelRun(program, trail=trail), progress=progress, to_ties=to_ties)
    simulation.run()
    return simulation.records()
