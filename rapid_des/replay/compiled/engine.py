"""Running a program on the compiled kernel."""

from __future__ import annotations

import numpy as np

from rapid_des.errors import TraceError
from rapid_des.replay.compiled import kernel, pools
from rapid_des.replay.compiled.calendar import PUSHED, push
from rapid_des.replay.compiled.flat import flatten
from rapid_des.replay.deadlock import explain_disagreement
from rapid_des.replay.program import Program, Records, Trail

_NEVER = 2**62


class CompiledSimulation:
    """One run of a program; `run` plays it to the end or to a given time."""

    def __init__(self, program: Program, *, trail: bool = False) -> None:
        self.program = program
        self._flat = flatten(program)
        self._board = pools.new_board(self._flat, program.links, len(program.labels), trail=trail)
        self._pools = kernel.Pools(
            calendar=pools.new_calendar(),
            instances=pools.new_instances(),
            pending=np.zeros(256, np.int32),
            ready=np.zeros(256, np.int64),
            member_rank=np.zeros(64, np.int32),
            member_visit=np.zeros(64, np.int32),
            transfers=pools.new_transfers(),
            trail=pools.new_trail(trail),
            counts=np.zeros(5, np.int64),
        )
        self._seed()

    def _seed(self) -> None:
        """Make the visits ready that wait for nothing."""
        records = np.flatnonzero(self._board.pending == 0)
        ranks = np.searchsorted(self._flat.ranks.flat, records, side="right") - 1
        calendar = pools.grown_calendar(self._pools.calendar, len(records) + 1)
        for record, rank in zip(records.tolist(), ranks.tolist(), strict=True):
            push(calendar, 0, kernel.READY, rank, record - int(self._flat.ranks.flat[rank]))
        self._pools = self._pools._replace(calendar=calendar)

    def run(self, until: int | None = None) -> None:
        """Play until nothing is left to happen, or up to and including a time in picoseconds."""
        self._pools = kernel.play(self._flat, self._board, self._pools, _NEVER if until is None else until)
        totals = self._board.totals.tolist()
        if totals[kernel.STATUS] == kernel.DISAGREES:
            key, templates = (totals[2], totals[3], totals[4]), (totals[5], totals[6])
            raise TraceError(explain_disagreement(self.program, key, templates))

    def records(self) -> Records:
        """Return what happened so far."""
        board = self._board
        return Records(
            start=board.start,
            finish=board.finish,
            met=board.met,
            link_bytes=board.link_bytes,
            link_busy=board.link_busy,
            link_wait=board.link_wait,
            hops=int(board.totals[kernel.HOPS]),
            events=int(self._pools.calendar.count[PUSHED]),
            trail=self._trail() if board.flags[1] else None,
        )

    def _trail(self) -> Trail:
        rows, trail = int(self._pools.counts[kernel.TRAIL]), self._pools.trail
        return Trail(*(column[:rows] for column in trail))


def run(program: Program, *, trail: bool = False) -> Records:
    """Play a program to its end; visits that never finish are left at NONE in the records."""
    simulation = CompiledSimulation(program, trail=trail)
    simulation.run()
    return simulation.records()
