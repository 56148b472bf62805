"""Runs a program on the compiled kernel, and provides larger pools when the kernel fills one.

Rows keep their numbers when their pool grows.
"""

from __future__ import annotations

import time

import numpy as np

from rapid_des.compiling import CompiledKernel, Words
from rapid_des.compiling.kinds import TupleType, kinds_of
from rapid_des.engines.compiled import kernel, pools, work
from rapid_des.engines.compiled.calendar import HEAP, PUSHED, push
from rapid_des.engines.compiled.columns import RankParts
from rapid_des.engines.compiled.flat import Array, flatten
from rapid_des.engines.compiled.pools import Pools, State
from rapid_des.engines.deadlock import explain_disagreement
from rapid_des.errors import TraceError
from rapid_des.network.fluid.state import never_end, new_fluid, widened
from rapid_des.program import rates
from rapid_des.program.program import NONE, LinkTrail, Program, Progress, RateRecords, Records
from rapid_des.program.services import widest
from rapid_des.program.timetable import FOREVER

_NEVER = FOREVER - 1
_SLICE_S = 0.2
"""The seconds that the kernel runs before Python looks for signals, as ^C, and reports progress."""
_FIRST_SLICE = 20_000
"""The number of events of the first slice; the later ones take `_SLICE_S` each."""
_TABLES = [kind for kind in kinds_of(kernel.play) if isinstance(kind, TupleType)]


def kernel_of(*, fluid: bool = False, paired: bool = False, closing: bool = False) -> CompiledKernel:
    """Return the kernel for the fluid mode, for queue pairs, for links that close, or for all else."""
    if paired:
        from rapid_des.engines.compiled.paired_kernel import PAIRED_KERNEL

        return PAIRED_KERNEL
    if fluid:
        from rapid_des.engines.compiled.fluid_kernel import FLUID_KERNEL

        return FLUID_KERNEL
    if closing:
        from rapid_des.engines.compiled.closure_kernel import CLOSING_KERNEL

        return CLOSING_KERNEL
    return kernel.KERNEL


class CompiledSimulation:
    """One run of a program; `run` plays it to the end or to a given time.

    With `to_ties` it ends soon after a link has chosen by rank (`Records.ties`).
    """

    def __init__(
        self,
        program: Program,
        *,
        trail: bool = False,
        progress: Progress | None = None,
        to_ties: bool = False,
    ) -> None:
        self.program, self._to_ties = program, to_ties
        self._progress, self._reported_at = progress, 0.0
        self._flat = flatten(program)
        fluid = program.fluid is not None
        self._state = pools.new_state(
            self._flat, program.links, len(program.labels), trail=trail and not fluid, fluid=fluid
        )
        self._pools = pools.new_pools(trail=trail, fluid=fluid)
        self._words: tuple[Words | None, ...] = (None, None, None)
        self._fluid = (
            new_fluid(self._flat.network.capacity, flows=256, hops=widest(program)) if fluid else None
        )
        self._noticed = np.zeros(0, np.int64)
        self._seed()

    def _seed(self) -> None:
        """Put the visits that wait for nothing on the stack."""
        records = np.flatnonzero(self._state.pending == 0)
        ranks = np.searchsorted(self._flat.ranks.flat, records, side="right") - 1
        within = records - self._flat.ranks.flat[ranks]
        self._pools = _with_stack(self._pools, len(records))
        self._pools.stack_kind[: len(records)] = work.READY
        self._pools.stack_a[: len(records)] = ranks
        self._pools.stack_b[: len(records)] = within
        if self._fluid is not None:
            self._seed_capacities()
        self._state.cursor[work.DEPTH] = len(records)
        self._state.cursor[work.PHASE] = 1

    def _seed_capacities(self) -> None:
        """Schedule the steps of the timetables of links in the fluid mode."""
        steps = [
            (moment, link)
            for link, table in self.program.link_timetables.items()
            for moment in table.time.tolist()
        ]
        self._pools = with_events(self._pools, len(steps) + 1)
        for moment, link in steps:
            push(self._pools.calendar, moment, work.LINK_RATE, link, 0)

    def _play(self, limit: int) -> None:
        if self._fluid is None:
            paired = self.program.queue_pairs is not None
            kernel_of(paired=paired)(*self._arguments(), limit)
            return
        # A flow has the number of its transfer, so the tables of flows are as long as that pool.
        slots = len(self._pools.transfers.next)
        if len(self._fluid.hops) < slots:
            self._fluid = widened(self._fluid, slots)
        kernel_of(fluid=True)(*self._arguments(), self._fluid, self._noticed, limit)

    def _arguments(self) -> tuple[Words, ...]:
        """Return the arguments of every kernel: the program, the state and the pools."""
        arguments = self._flat, self._state, self._pools
        words = tuple(map(Words.of, arguments, _TABLES, self._words))
        self._words = words  # the next call reuses the words of tables that are the same objects
        return words

    def run(self, until: int | None = None) -> None:
        """Play until no event is left, or up to and including a time in picoseconds.

        An interrupt ends the run between two slices; `records` then returns what has happened.
        """
        limit = _NEVER if until is None else until
        # A slice has at most twice the events of the one before, so that the first ones stay short.
        totals, events = self._state.totals, _FIRST_SLICE
        while self._play_slice(limit, events) == work.LIMIT_REACHED:
            if self._progress is not None:
                self._progress(int(totals[work.WORKED]))
            if self._to_ties and totals[work.TIES]:
                return
            took = time.perf_counter() - self._slice_began
            events = max(1, int(events * min(2.0, _SLICE_S / took)))
        if totals[work.STATUS] == work.DISAGREES:
            group, number, sub, mine, other = totals[2:7].tolist()
            raise TraceError(explain_disagreement(self.program, (group, number, sub), (mine, other)))

    @property
    def now(self) -> int:
        """The last moment that was played."""
        return int(self._state.cursor[work.NOW])

    @property
    def events(self) -> int:
        """The number of events made so far."""
        return int(self._pools.calendar.counts[PUSHED])

    def advance(self, events: int = _NEVER, until: int = _NEVER) -> bool:
        """Play about `events` more events, or up to a time; return whether the events ended it."""
        paused = self._play_slice(until, events) == work.LIMIT_REACHED
        if self._progress is not None and time.perf_counter() - self._reported_at > _SLICE_S:
            self._reported_at = time.perf_counter()
            self._progress(int(self._state.totals[work.WORKED]))
        return paused

    def note_hops(self, *, on: bool) -> None:
        """Start a new trail, or stop recording; the simulation must have been made with a trail."""
        self._pools.counts[pools.TRAIL] = 0
        self._state.flags[work.RECORDING] = on

    def _play_slice(self, limit: int, events: int) -> int:
        """Play until about `events` more events were made; return the status at which it ended."""
        self._slice_began = time.perf_counter()
        self._state.cursor[work.EVENT_LIMIT] = self._pools.calendar.counts[PUSHED] + events
        totals = self._state.totals
        self._play(limit)
        while totals[work.STATUS] not in (work.DONE, work.DISAGREES, work.LIMIT_REACHED):
            self._provide(int(totals[work.STATUS]), int(totals[work.WANTED]))
            self._play(limit)
        return int(totals[work.STATUS])

    def _provide(self, status: int, wanted: int) -> None:
        """Provide the rows that the kernel wants."""
        self._pools = _with_room(self._pools, status, wanted)

    def records(self) -> Records:
        """Return the records of the simulation so far."""
        state = self._state
        return Records(
            start=state.start,
            finish=state.finish,
            met=state.met,
            link_bytes=state.link_bytes,
            link_busy=state.link_busy,
            link_wait=state.link_wait,
            hops=int(state.totals[work.HOPS]),
            sent=int(state.totals[work.SENT]),
            received=int(state.totals[work.RECEIVED]),
            link_stopped=np.where(state.stopped, NONE, state.link_stopped) if len(state.stopped) else None,
            rates=_rates(state),
            ties=int(state.totals[work.TIES]),
            events=int(self._pools.calendar.counts[PUSHED]),
            trail=self._trail() if state.flags[work.RECORDING] else None,
            beyond=self._beyond(),
        )

    def _beyond(self) -> bool:
        """Return whether an event lies past FOREVER, or a flow ends there."""
        calendar = self._pools.calendar
        waiting = calendar.time[: calendar.counts[HEAP]]
        flows = self._fluid is not None and never_end(self._fluid)
        return flows or int(waiting.max(initial=0)) > FOREVER

    def _trail(self) -> LinkTrail:
        rows, trail = int(self._pools.counts[pools.TRAIL]), self._pools.trail
        return LinkTrail(*(column[:rows] for column in trail))


def _rates(state: State) -> RateRecords | None:
    """Return the records of marks and rates (R14); None where nothing is marked."""
    if not len(state.marks):
        return None
    cuts, held, slowest = (state.rates[:, which] for which in (rates.CUTS, rates.HELD, rates.SLOWEST))
    return RateRecords(state.marks, cuts, held, slowest)


def _wider(column: Array, room: int) -> Array:
    """Return a column of `room` rows with the rows of another one first."""
    copy = np.zeros(room, column.dtype)
    copy[: len(column)] = column
    return copy


def with_events(small: Pools, least: int) -> Pools:
    """Return pools with room for at least `least` more events."""
    calendar = small.calendar
    had = len(calendar.next)
    room = max(2 * had, had + least + 1)
    columns = {
        name: _wider(getattr(calendar, name), room)
        for name in ("time", "bucket", "first", "kind", "a", "b", "next")
    }
    for name, free in (("first", 1), ("next", 2)):  # the new rows go before the other free ones
        columns[name][had:] = np.arange(had + 1, room + 1)
        columns[name][-1] = calendar.counts[free]
        calendar.counts[free] = had
    return small._replace(calendar=calendar._replace(**columns))


def _with_stack(small: Pools, least: int) -> Pools:
    """Return pools with room for at least `least` work items."""
    room = max(2 * len(small.stack_kind), least + 1)
    names = ("stack_kind", "stack_a", "stack_b")
    kind, a, b = (_wider(getattr(small, name), room) for name in names)
    return small._replace(stack_kind=kind, stack_a=a, stack_b=b)


def _with_instances(small: Pools, wanted: int) -> Pools:
    """Return pools with room for an instance of `wanted` tasks and members; only full ones grow."""
    made, arena, members = (int(small.counts[index]) for index in (pools.MADE, pools.ARENA, pools.MEMBERS))
    instances = small.instances
    if made == len(instances.group):
        instances = pools.Instances(*(_wider(column, 2 * made) for column in instances))
    arena_room, member_room = len(small.pending), len(small.member_rank)
    if arena + wanted > arena_room:
        arena_room = max(arena_room + arena_room // 2, arena + wanted)
    # `wanted` counts tasks too, so a large template with few members would ask for too many rows.
    if members + wanted > member_room:
        member_room = max(2 * member_room, members + min(wanted, 2**20))
    return small._replace(
        instances=instances,
        pending=_wider(small.pending, arena_room),
        ready=_wider(small.ready, arena_room),
        channels=_with_channels(small.channels, arena_room),
        member_rank=_wider(small.member_rank, member_room),
        member_visit=_wider(small.member_visit, member_room),
        member_part=_wider(small.member_part, member_room),
        member_step=_wider(small.member_step, member_room),
    )


def _with_channels(small: pools.Channels, room: int) -> pools.Channels:
    """Return channels for each row of the arena; none outside the fluid mode."""
    return pools.Channels(*(_wider(column, room) for column in small)) if len(small.turn) else small


def with_rank_parts(small: Pools) -> Pools:
    """Return pools with twice as many rows for the ranks' parts in replanned collectives."""
    room = 2 * len(small.rank_parts.rank)
    return small._replace(rank_parts=RankParts(*(_wider(column, room) for column in small.rank_parts)))


def with_transfers(small: Pools) -> Pools:
    """Return pools with twice as many rows for transfers."""
    had = len(small.transfers.next)
    transfers = pools.Transfers(*(_wider(column, 2 * had) for column in small.transfers))
    transfers.next[had:] = np.arange(had + 1, 2 * had + 1)
    transfers.next[-1] = small.counts[pools.FREE_TRANSFER]
    small.counts[pools.FREE_TRANSFER] = had
    return small._replace(transfers=transfers)


def _with_trail(small: Pools, least: int) -> Pools:
    """Return pools with room for at least `least` more hops in the trail."""
    room = 2 * len(small.trail.link) + least
    return small._replace(trail=pools.Trail(*(_wider(column, room) for column in small.trail)))


def _with_room(small: Pools, status: int, wanted: int) -> Pools:
    """Return pools of which the full one, named by a status, is larger."""
    if status == work.MORE_EVENTS:
        return with_events(small, wanted)
    if status == work.MORE_STACK:
        return _with_stack(small, wanted)
    if status == work.MORE_INSTANCES:
        return _with_instances(small, wanted)
    if status == work.MORE_TRANSFERS:
        return with_transfers(small)
    return _with_trail(small, wanted)


def run(
    program: Program, *, trail: bool = False, progress: Progress | None = None, to_ties: bool = False
) -> Records:
    """Play a program to its end; visits that never finish are left at NONE in the records.

    With `to_ties` the end comes soon after a link has chosen by rank.
    """
    simulation = CompiledSimulation(program, trail=trail, progress=progress, to_ties=to_ties)
    simulation.run()
    return simulation.records()
