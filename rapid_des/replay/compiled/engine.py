"""Running a program on the compiled kernel."""

from __future__ import annotations

import numpy as np

from rapid_des.errors import TraceError
from rapid_des.replay.compiled import kernel, pools
from rapid_des.replay.compiled.calendar import PUSHED
from rapid_des.replay.compiled.flat import flatten
from rapid_des.replay.deadlock import explain_disagreement
from rapid_des.replay.program import Program, Records, Trail
from rapid_des.replay.timetable import FOREVER

_NEVER = FOREVER - 1


class CompiledSimulation:
    """One run of a program; `run` plays it to the end or to a given time."""

    def __init__(self, program: Program, *, trail: bool = False) -> None:
        self.program = program
        self._flat = flatten(program)
        self._board = pools.new_board(self._flat, program.links, len(program.labels), trail=trail)
        self._pools = pools.new_pools(trail=trail)
        self._seed()

    def _seed(self) -> None:
        """Make the visits ready that wait for nothing."""
        records = np.flatnonzero(self._board.pending == 0)
        ranks = np.searchsorted(self._flat.ranks.flat, records, side="right") - 1
        within = records - self._flat.ranks.flat[ranks]
        self._pools = pools.with_stack(self._pools, len(records))
        self._pools.stack_kind[: len(records)] = kernel.READY
        self._pools.stack_a[: len(records)] = ranks
        self._pools.stack_b[: len(records)] = within
        self._board.state[kernel.DEPTH] = len(records)
        self._board.state[kernel.PHASE] = 1

    def run(self, until: int | None = None) -> None:
        """Play until nothing is left to happen, or up to and including a time in picoseconds."""
        limit = _NEVER if until is None else until
        totals = self._board.totals
        kernel.play(self._flat, self._board, self._pools, limit)
        while totals[kernel.STATUS] not in (kernel.DONE, kernel.DISAGREES):
            self._pools = _with_room(self._pools, int(totals[kernel.STATUS]), int(totals[kernel.WANTED]))
            kernel.play(self._flat, self._board, self._pools, limit)
        if totals[kernel.STATUS] == kernel.DISAGREES:
            group, number, sub, one, other = totals[2:7].tolist()
            raise TraceError(explain_disagreement(self.program, (group, number, sub), (one, other)))

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
            sent=int(board.totals[kernel.SENT]),
            received=int(board.totals[kernel.RECEIVED]),
            ties=int(board.totals[kernel.TIES]),
            events=int(self._pools.calendar.counts[PUSHED]),
            trail=self._trail() if board.flags[1] else None,
        )

    def _trail(self) -> Trail:
        rows, trail = int(self._pools.counts[pools.TRAIL]), self._pools.trail
        return Trail(*(column[:rows] for column in trail))


def _with_room(had: pools.Pools, status: int, wanted: int) -> pools.Pools:
    """Return larger pools of the kind that the kernel ran out of."""
    if status == kernel.MORE_EVENTS:
        return pools.with_events(had, wanted)
    if status == kernel.MORE_STACK:
        return pools.with_stack(had, wanted)
    if status == kernel.MORE_INSTANCES:
        return pools.with_instances(had, wanted)
    if status == kernel.MORE_TRANSFERS:
        return pools.with_transfers(had)
    return pools.with_trail(had, wanted)


def run(program: Program, *, trail: bool = False) -> Records:
    """Play a program to its end; visits that never finish are left at NONE in the records."""
    simulation = CompiledSimulation(program, trail=trail)
    simulation.run()
    return simulation.records()
