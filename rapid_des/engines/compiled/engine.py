"""Runs a program on a compiled kernel, slice by slice, with larger pools where the kernel fills one.

Rows keep their numbers when their pool grows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

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
from rapid_des.values import replace

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


class KernelRun:
    """A program, the state of its run and the pools, as kernels read and change them."""

    def __init__(self, program: Program, *, trail: bool = False) -> None:
        self.program = program
        self.flat = flatten(program)
        fluid = program.fluid is not None
        self.state = pools.new_state(
            self.flat, program.links, len(program.labels), trail=trail and not fluid, fluid=fluid
        )
        self.pools = pools.new_pools(trail=trail, fluid=fluid)
        self._words: tuple[Words | None, ...] = (None, None, None)
        self.fluid = new_fluid(self.flat.network.capacity, flows=256, hops=widest(program)) if fluid else None
        self.noticed = np.zeros(0, np.int64)
        """When the closure of each link is noticed, where links may close (`stopping`)."""
        self._seed()

    def _seed(self) -> None:
        """Put the visits that wait for nothing on the stack."""
        records = np.flatnonzero(self.state.pending == 0)
        ranks = np.searchsorted(self.flat.ranks.flat, records, side="right") - 1
        within = records - self.flat.ranks.flat[ranks]
        self.pools = _with_stack(self.pools, len(records))
        self.pools.stack_kind[: len(records)] = work.READY
        self.pools.stack_a[: len(records)] = ranks
        self.pools.stack_b[: len(records)] = within
        if self.fluid is not None:
            self._seed_capacities()
        self.state.cursor[work.DEPTH] = len(records)
        self.state.cursor[work.PHASE] = 1

    def _seed_capacities(self) -> None:
        """Schedule the steps of the timetables of links in the fluid mode."""
        steps = [
            (moment, link)
            for link, table in self.program.link_timetables.items()
            for moment in table.time.tolist()
        ]
        self.pools = with_events(self.pools, len(steps) + 1)
        for moment, link in steps:
            push(self.pools.calendar, moment, work.LINK_RATE, link, 0)

    def play(self, limit: int) -> None:
        """Call the kernel: it plays up to a time, or until it wants something (`work`)."""
        if self.fluid is None:
            self.call(kernel_of(paired=self.program.queue_pairs is not None), limit)
            return
        # A flow has the number of its transfer, so the tables of flows are as long as that pool.
        slots = len(self.pools.transfers.next)
        if len(self.fluid.hops) < slots:
            self.fluid = widened(self.fluid, slots)
        self.call(kernel_of(fluid=True), self.fluid, self.noticed, limit)

    def call(self, compiled: CompiledKernel, *more: Any) -> None:
        """Call a kernel with the tables that all kernels take, and more behind them."""
        # the next call reuses the words of tables that are the same objects
        self._words = words = tuple(map(Words.of, (self.flat, self.state, self.pools), _TABLES, self._words))
        compiled(*words, *more)

    def provide(self, status: int, wanted: int) -> None:
        """Provide the rows that the kernel wants."""
        self.pools = _LARGER[status](self.pools, wanted)

    @property
    def now(self) -> int:
        """The last moment that was played."""
        return int(self.state.cursor[work.NOW])

    @property
    def events(self) -> int:
        """The number of events made so far."""
        return int(self.pools.calendar.counts[PUSHED])

    def note_hops(self, *, on: bool) -> None:
        """Start a new trail, or stop recording; the run must have been made with a trail."""
        self.pools.counts[pools.TRAIL] = 0
        self.state.flags[work.RECORDING] = on

    def records(self) -> Records:
        """Return the records of the simulation so far."""
        state = self.state
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
            events=int(self.pools.calendar.counts[PUSHED]),
            trail=self.trail() if state.flags[work.RECORDING] else None,
            beyond=self._beyond(),
        )

    def _beyond(self) -> bool:
        """Return whether an event lies past FOREVER, or a flow ends there."""
        calendar = self.pools.calendar
        waiting = calendar.time[: calendar.counts[HEAP]]
        flows = self.fluid is not None and never_end(self.fluid)
        return flows or int(waiting.max(initial=0)) > FOREVER

    def trail(self) -> LinkTrail:
        """Return the hops that were recorded so far."""
        rows, trail = int(self.pools.counts[pools.TRAIL]), self.pools.trail
        return LinkTrail(*(column[:rows] for column in trail))


class Player(Protocol):
    """Calls a kernel, and provides what it wants: a `KernelRun` itself, or who changes links meanwhile."""

    def play(self, limit: int) -> None:
        """Call the kernel: it plays up to a time in picoseconds, or until it wants something."""

    def provide(self, status: int, wanted: int) -> None:
        """Provide what the kernel wants, by the status at which it returned."""


class ChoiceWatch(Protocol):
    """Looks at the choices by rank that links make in a run whose hops are recorded."""

    def are_alike(self, trail: LinkTrail, now: int, choices: int) -> bool:
        """Return whether the choices of one part of a run need not count, given its hops and its last moment.

        It is called for one part after the other.
        """


class CompiledSimulation:
    """One run of a program; `run` plays it to the end or to a given time.

    With `to_ties` it ends soon after a link has chosen by rank (`Records.ties`), with a `watch` only if that
    choice counts.
    """

    def __init__(
        self,
        kernel: KernelRun,
        *,
        player: Player | None = None,
        progress: Progress | None = None,
        to_ties: bool = False,
        watch: ChoiceWatch | None = None,
    ) -> None:
        self.kernel, self._player, self._to_ties = kernel, player or kernel, to_ties
        self._watch, self._ties, self.counted = watch, 0, False
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
            if self._to_ties and self._chose():
                return
            took = time.perf_counter() - self._slice_began
            events = max(1, int(events * min(2.0, _SLICE_S / took)))
        self._chose()
        if totals[work.STATUS] == work.DISAGREES:
            group, number, sub, mine, other = totals[2:7].tolist()
            raise TraceError(explain_disagreement(self.kernel.program, (group, number, sub), (mine, other)))

    def _chose(self) -> bool:
        """Return whether a link has chosen by rank where that counts."""
        kernel, ties = self.kernel, int(self.kernel.state.totals[work.TIES])
        choices, self._ties = ties - self._ties, ties
        counts = choices > 0
        if self._watch is not None:
            counts = not self._watch.are_alike(kernel.trail(), kernel.now, choices)
            kernel.note_hops(on=True)
        self.counted |= counts
        return self.counted

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


def _with_rank_parts(small: Pools, _: int) -> Pools:
    """Return pools with twice as many rows for the ranks' parts in replanned collectives."""
    room = 2 * len(small.rank_parts.rank)
    return small._replace(rank_parts=RankParts(*(_wider(column, room) for column in small.rank_parts)))


def with_transfers(small: Pools, _: int = 1) -> Pools:
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


_LARGER: dict[int, Callable[[Pools, int], Pools]] = {
    work.MORE_EVENTS: with_events,
    work.MORE_STACK: _with_stack,
    work.MORE_INSTANCES: _with_instances,
    work.MORE_TRANSFERS: with_transfers,
    work.MORE_TRAIL: _with_trail,
    work.MORE_RANK_PARTS: _with_rank_parts,
}
"""Enlarges the pool that a kernel has filled, by the status with which it says so."""


def run(
    program: Program,
    *,
    trail: bool = False,
    progress: Progress | None = None,
    to_ties: bool = False,
    watch: ChoiceWatch | None = None,
) -> Records:
    """Play a program to its end; visits that never finish are left at NONE in the records.

    With `to_ties` the end comes soon after a link has chosen by rank; choices that `watch` finds alike do not
    count.
    """
    kernel = KernelRun(program, trail=trail or watch is not None)
    simulation = CompiledSimulation(kernel, progress=progress, to_ties=to_ties, watch=watch)
    simulation.run()
    records = simulation.records()
    return records if watch is None else replace(records, trail=None, ties=int(simulation.counted))
