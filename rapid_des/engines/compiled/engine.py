"""Running a program on the compiled kernel."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

import numpy as np

from rapid_des.compiling import Kernel
from rapid_des.engines.compiled import kernel, pools, room
from rapid_des.engines.compiled.calendar import HEAP, PUSHED, push
from rapid_des.engines.compiled.flat import flatten
from rapid_des.engines.deadlock import explain_disagreement
from rapid_des.errors import TraceError
from rapid_des.network.fluid.state import never_end, new_fluid, widened
from rapid_des.program import rates
from rapid_des.program.program import NONE, Program, Progress, RateRecords, Records, Trail
from rapid_des.program.services import widest
from rapid_des.program.timetable import FOREVER

_NEVER = FOREVER - 1
_SLICE_S = 0.2
"""How long the kernel plays before Python looks for signals, as ^C, and progress is told."""
_FIRST_SLICE = 20_000
"""Events of the first slice; the others are as many as take the time."""


@cache
def kernel_of(*, fluid: bool = False, paired: bool = False, closing: bool = False) -> Kernel:
    """Return what plays programs of the fluid mode, with queue pairs, whose links close, or the others."""
    package = Path(__file__).parents[2]
    sources = [
        *package.glob("engines/compiled/*.py"),
        *(package / "program" / f"{name}.py" for name in ("delays", "rates", "spraying", "timetable")),
    ]
    if paired:
        from rapid_des.engines.compiled.paired_kernel import play_paired

        return Kernel(play_paired, sorted(sources))
    if not fluid and not closing:
        return Kernel(kernel.play, sorted(sources))
    if not fluid:
        from rapid_des.engines.compiled.closing_kernel import play_closing

        return Kernel(play_closing, sorted(sources))
    from rapid_des.engines.compiled.fluid_kernel import play_fluid

    sharing = [package / "network" / "fluid" / f"{name}.py" for name in ("__init__", "state")]
    return Kernel(play_fluid, sorted([*sources, *sharing]))


class CompiledSimulation:
    """One run of a program; `run` plays it to the end or to a given time."""

    def __init__(self, program: Program, *, trail: bool = False, progress: Progress | None = None) -> None:
        self.program = program
        self._progress = progress
        self._flat = flatten(program)
        fluid = program.fluid is not None
        self._state = pools.new_state(
            self._flat, program.links, len(program.labels), trail=trail and not fluid, fluid=fluid
        )
        self._pools = pools.new_pools(trail=trail)
        self._fluid = (
            new_fluid(self._flat.network.capacity, flows=256, hops=widest(program)) if fluid else None
        )
        self._noticed = np.zeros(0, np.int64)
        self._seed()

    def _seed(self) -> None:
        """Make the visits ready that wait for nothing."""
        records = np.flatnonzero(self._state.pending == 0)
        ranks = np.searchsorted(self._flat.ranks.flat, records, side="right") - 1
        within = records - self._flat.ranks.flat[ranks]
        self._pools = room.with_stack(self._pools, len(records))
        self._pools.stack_kind[: len(records)] = kernel.READY
        self._pools.stack_a[: len(records)] = ranks
        self._pools.stack_b[: len(records)] = within
        if self._fluid is not None:
            self._seed_capacities()
        self._state.cursor[kernel.DEPTH] = len(records)
        self._state.cursor[kernel.PHASE] = 1

    def _seed_capacities(self) -> None:
        """Have links of the fluid mode change their rates when their timetables say so."""
        steps = [
            (moment, link)
            for link, table in self.program.link_timetables.items()
            for moment in table.time.tolist()
        ]
        self._pools = room.with_events(self._pools, len(steps) + 1)
        for moment, link in steps:
            push(self._pools.calendar, moment, kernel.CAPACITY, link, 0)

    def _play(self, limit: int) -> None:
        if self._fluid is None:
            paired = self.program.queue_pairs is not None
            kernel_of(paired=paired)(self._flat, self._state, self._pools, limit)
            return
        slots = len(self._pools.transfers.next)
        if len(self._fluid.hops) < slots:
            self._fluid = widened(self._fluid, slots)
        kernel_of(fluid=True)(self._flat, self._state, self._pools, self._fluid, self._noticed, limit)

    def run(self, until: int | None = None) -> None:
        """Play until nothing is left to happen, or up to and including a time in picoseconds.

        An interrupt ends it between two slices; `records` then returns what happened until then.
        """
        limit = _NEVER if until is None else until
        totals, events = self._state.totals, _FIRST_SLICE
        while self._play_slice(limit, events) == kernel.PAUSED:
            if self._progress is not None:
                self._progress(int(totals[kernel.WORKED]))
            took = time.perf_counter() - self._slice_began
            events = max(1, int(events * min(2.0, _SLICE_S / took)))
        if totals[kernel.STATUS] == kernel.DISAGREES:
            group, number, sub, one, other = totals[2:7].tolist()
            raise TraceError(explain_disagreement(self.program, (group, number, sub), (one, other)))

    def _play_slice(self, limit: int, events: int) -> int:
        """Play until about so many more events were made; return why it ended."""
        self._slice_began = time.perf_counter()
        self._state.cursor[kernel.PAUSE] = self._pools.calendar.counts[PUSHED] + events
        totals = self._state.totals
        self._play(limit)
        while totals[kernel.STATUS] not in (kernel.DONE, kernel.DISAGREES, kernel.PAUSED):
            self._answer(int(totals[kernel.STATUS]), int(totals[kernel.WANTED]))
            self._play(limit)
        return int(totals[kernel.STATUS])

    def _answer(self, status: int, wanted: int) -> None:
        """Give the kernel what it wants: more room."""
        self._pools = _with_room(self._pools, status, wanted)

    def records(self) -> Records:
        """Return what happened so far."""
        state = self._state
        return Records(
            start=state.start,
            finish=state.finish,
            met=state.met,
            link_bytes=state.link_bytes,
            link_busy=state.link_busy,
            link_wait=state.link_wait,
            hops=int(state.totals[kernel.HOPS]),
            sent=int(state.totals[kernel.SENT]),
            received=int(state.totals[kernel.RECEIVED]),
            link_stopped=np.where(state.stopped, NONE, state.link_stopped) if len(state.stopped) else None,
            rates=_rates(state),
            ties=int(state.totals[kernel.TIES]),
            events=int(self._pools.calendar.counts[PUSHED]),
            trail=self._trail() if state.flags[1] else None,
            beyond=self._beyond(),
        )

    def _beyond(self) -> bool:
        """Whether an event lies past FOREVER, or a flow ends there."""
        calendar = self._pools.calendar
        waiting = calendar.time[: calendar.counts[HEAP]]
        flows = self._fluid is not None and never_end(self._fluid)
        return flows or int(waiting.max(initial=0)) > FOREVER

    def _trail(self) -> Trail:
        rows, trail = int(self._pools.counts[pools.TRAIL]), self._pools.trail
        return Trail(*(column[:rows] for column in trail))


def _rates(state: pools.State) -> RateRecords | None:
    """Return what marks did; None where nothing is marked."""
    if not len(state.marks):
        return None
    cuts, held, slowest = (state.rates[:, which] for which in (rates.CUTS, rates.HELD, rates.SLOWEST))
    return RateRecords(state.marks, cuts, held, slowest)


def _with_room(had: pools.Pools, status: int, wanted: int) -> pools.Pools:
    """Return larger pools of the kind that the kernel ran out of."""
    if status == kernel.MORE_EVENTS:
        return room.with_events(had, wanted)
    if status == kernel.MORE_STACK:
        return room.with_stack(had, wanted)
    if status == kernel.MORE_INSTANCES:
        return room.with_instances(had, wanted)
    if status == kernel.MORE_TRANSFERS:
        return room.with_transfers(had)
    return room.with_trail(had, wanted)


def run(program: Program, *, trail: bool = False, progress: Progress | None = None) -> Records:
    """Play a program to its end; visits that never finish are left at NONE in the records."""
    simulation = CompiledSimulation(program, trail=trail, progress=progress)
    simulation.run()
    return simulation.records()
