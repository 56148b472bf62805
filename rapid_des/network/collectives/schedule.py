"""The data that a collective has to move, and the result of an algorithm: transfers joined by dependencies.

A logical buffer names every byte once, whoever holds it: the one tensor that all-reduce, reduce and
broadcast work on; the concatenated shards of all-gather and gather; the full tensor that reduce-scatter and
scatter cut; for all-to-all the tensors of all members one after the other. Pieces of an uneven cut differ by
one byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from rapid_des.arrays import Bools, Int32s, Int64s, ranges, rows_of, starts_by, starts_of
from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import InputError
from rapid_des.values import replace

SHARDED_INPUT = frozenset({CollectiveType.ALL_GATHER, CollectiveType.GATHER})
ROOTED = frozenset(
    {CollectiveType.BROADCAST, CollectiveType.REDUCE, CollectiveType.GATHER, CollectiveType.SCATTER}
)
_ONE_TENSOR = frozenset({CollectiveType.ALL_REDUCE, CollectiveType.BROADCAST, CollectiveType.REDUCE})


def even_bounds(size: int, parts: int) -> Int64s:
    """Return the `parts + 1` boundaries that cut `size` bytes evenly, longer parts first.

    >>> even_bounds(10, 4).tolist()
    [0, 3, 6, 8, 10]
    """
    quotient, remainder = divmod(size, parts)
    index = np.arange(parts + 1, dtype=np.int64)
    return index * quotient + np.minimum(index, remainder)


class Demand(Struct, frozen=True, eq=False):
    """One collective over one group: block b of the logical buffer is `offset[b], size[b]`.

    Block b belongs to member b; in an all-to-all block `s * members + d` goes from member s to member d.
    Blocks need not be adjacent (a chunk of a larger collective).
    """

    collective: CollectiveType
    members: int
    root: int
    offset: Int64s
    size: Int64s

    @property
    def total(self) -> int:
        """Bytes of the logical buffer that this demand covers."""
        return int(self.size.sum())

    def chunks(self, count: int) -> list[Demand]:
        """Return `count` parts, each an interval of the one tensor, else that part of every block.

        A barrier is not cut.
        """
        if count == 1 or self.collective is CollectiveType.BARRIER:
            return [self]
        return [self._chunk(index, count) for index in range(count)]

    def _chunk(self, index: int, count: int) -> Demand:
        if self.collective in _ONE_TENSOR:
            start, end = even_bounds(self.total, count)[index : index + 2]
            bounds = even_bounds(int(end - start), self.members) + start + self.offset[0]
            return replace(self, offset=bounds[:-1].copy(), size=np.diff(bounds))
        quotient, remainder = np.divmod(self.size, count)
        start = index * quotient + np.minimum(index, remainder)
        end = (index + 1) * quotient + np.minimum(index + 1, remainder)
        return replace(self, offset=self.offset + start, size=end - start)


def demand(collective: CollectiveType, members: int, size: int, *, root: int = 0) -> Demand:
    """Return the blocks of a collective whose input buffer on each rank has `size` bytes.

    `size` is Chakra's: the shard for all-gather and gather, else the full tensor. A barrier's message has at
    least one byte.
    """
    if members < 1:
        raise InputError(f"a collective needs at least 1 member, not {members}")
    if size < 0:
        raise InputError(f"a collective's size must be 0 bytes or more, not {size}")
    if not 0 <= root < members:
        raise InputError(f"root {root} is not one of the {members} members (0 to {members - 1})")
    if collective is CollectiveType.BARRIER:
        bounds = even_bounds(max(size, 1), members)
    elif collective in SHARDED_INPUT:
        bounds = np.arange(members + 1, dtype=np.int64) * size
    elif collective is CollectiveType.ALL_TO_ALL:
        tensors = np.arange(members, dtype=np.int64)[:, None] * size
        bounds = np.append((tensors + even_bounds(size, members)[:-1]).reshape(-1), members * size)
    else:
        bounds = even_bounds(size, members)
    return Demand(collective, members, root, bounds[:-1].copy(), np.diff(bounds))


class Pieces(Struct, frozen=True, eq=False):
    """The payloads of transfers that carry several intervals: rows of a compressed sparse table.

    Transfer t carries the intervals `offset[i], size[i]` for i in `starts[t] : starts[t + 1]`; their sizes
    add up to the transfer's.
    """

    starts: Int64s
    offset: Int64s
    size: Int64s


class Schedule(Struct, frozen=True, eq=False):
    """Transfers among members 0..members-1 as read-only columns, ordered so that dependencies point back.

    A transfer starts once its source member has arrived at the collective and all transfers it depends on
    have arrived; one that waits for nothing carries its source's own input. A member is done once it has
    arrived and every transfer from it and to it has arrived.
    A *join* (source equals destination, 0 bytes) moves nothing and arrives the instant it may start: it
    stands for "all of these have arrived here"; no other transfer has 0 bytes.
    Members `members … members + switches - 1` are switches that combine or multiply data in transit; they
    have nothing of their own, arrive at once, and whoever uses the schedule says which switches they are.
    """

    members: int
    source: Int32s
    destination: Int32s
    size: Int64s
    """The bytes of each transfer."""
    reduces: Bools
    """Whether the receiver combines the payload with its own copy instead of replacing it."""
    offset: Int64s
    """The offset of the payload in the logical buffer of the collective; the proof of the data property reads
    it.
    """
    dependency_starts: Int64s
    dependencies: Int32s
    """Transfer t waits for dependencies[dependency_starts[t] : dependency_starts[t + 1]]."""
    switches: int = 0
    pieces: Pieces | None = None
    """The payloads that have several intervals; None: transfer t carries the one at `offset[t]` of `size[t]`
    bytes.
    """

    def __len__(self) -> int:
        return len(self.source)


PAYLOADS = frozenset({"reduces", "offset", "pieces"})
"""The fields that say what a transfer carries, on which no time depends."""
Payload: TypeAlias = tuple[ArrayLike, ArrayLike]
"""The start and end of each transfer's interval in the draft's own (local) order of the blocks."""


class Draft:
    """A schedule in the making; its local buffer holds the demand's blocks in `order`, one after the other.

    Transfers of 0 bytes are accepted and vanish, with the edges to them, when the draft is sealed.
    """

    def __init__(self, demand: Demand, *, order: Int64s | None = None, switches: int = 0) -> None:
        self._offset = demand.offset if order is None else demand.offset[order]
        self._size = demand.size if order is None else demand.size[order]
        self.members = demand.members
        self.bounds: Int64s = starts_of(self._size)
        """Boundaries of the blocks in the local buffer, in `order`."""
        self.everything: Payload = (0, int(self.bounds[-1]))
        self._switches = switches
        self._columns: list[tuple[NDArray[Any], ...]] = []
        self._edges: list[tuple[Int64s, Int64s]] = []
        self._length = 0

    def add(
        self, source: ArrayLike, destination: ArrayLike, payload: Payload, *, reduces: ArrayLike = False
    ) -> Int64s:
        """Append transfers (all arguments broadcast against each other) and return their numbers."""
        start, end = payload
        ends = np.asarray(source, dtype=np.int32), np.asarray(destination, dtype=np.int32)
        columns = np.broadcast_arrays(
            *ends, start, np.subtract(end, start), np.asarray(reduces, dtype=np.bool_)
        )
        self._columns.append(tuple(column.reshape(-1) for column in columns))
        numbers = np.arange(self._length, self._length + columns[0].size, dtype=np.int64)
        self._length += columns[0].size
        return numbers.reshape(columns[0].shape)

    def join(self, member: ArrayLike) -> Int64s:
        """Append joins: points in time at a member, on which many transfers can wait."""
        return self.add(member, member, (0, 0))

    def wait(self, transfers: ArrayLike, dependencies: ArrayLike) -> None:
        """Let `transfers` wait for `dependencies` (broadcast against each other)."""
        waiting, awaited = np.broadcast_arrays(transfers, dependencies)
        self._edges.append((waiting.reshape(-1).astype(np.int64), awaited.reshape(-1).astype(np.int64)))

    def seal(self) -> Schedule:
        """Return the schedule, its payloads where the demand's blocks stand."""
        source, destination, offset, size, reduces = self._stacked()
        stays = size > 0
        self._mark_joins(stays, source == destination)
        starts, dependencies = _compressed(self._edges, stays)
        if not np.all(stays):
            source, destination, offset, size, reduces = (
                column[stays] for column in (source, destination, offset, size, reduces)
            )
        schedule = Schedule(
            self.members, source, destination, size, reduces, offset, starts, dependencies, self._switches
        )
        return relocate(schedule, self._offset, self._size)

    def _mark_joins(self, stays: Bools, joins: Bools) -> None:
        """Mark the joins that still wait for something."""
        if np.any(joins):
            # edges are in the order of `wait`: a join behind a join that stays is found after that one
            for waiting, awaited in self._edges:
                stays[waiting[joins[waiting] & stays[awaited]]] = True

    def _stacked(self) -> list[NDArray[Any]]:
        if not self._columns:
            return [np.zeros(0, dtype=kind) for kind in (np.int32, np.int32, np.int64, np.int64, np.bool_)]
        return [_stack(list(column)) for column in zip(*self._columns, strict=True)]


def _stack(parts: list[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _compressed(edges: list[tuple[Int64s, Int64s]], stays: Bools) -> tuple[Int64s, Int32s]:
    """Return the dependency table of the transfers that stay, renumbered; rows in the order of the edges."""
    count = int(stays.sum())
    if not edges:
        return np.zeros(count + 1, dtype=np.int64), np.zeros(0, dtype=np.int32)
    waiting, awaited = (_stack(list(side)) for side in zip(*edges, strict=True))
    if count < len(stays):
        # edges of transfers that vanish go with them; the other transfers move up in number
        both = stays[waiting] & stays[awaited]
        number = np.cumsum(stays) - 1
        waiting, awaited = number[waiting[both]], number[awaited[both]]
    if np.any(waiting[1:] < waiting[:-1]):
        order = np.argsort(waiting, kind="stable")
        waiting, awaited = waiting[order], awaited[order]
    starts = starts_by(waiting, count)
    return starts, awaited.astype(np.int32)


def relocate(schedule: Schedule, offset: Int64s, size: Int64s) -> Schedule:
    """Return `schedule` with its contiguous buffer laid onto the intervals `offset[i], size[i]`, in order."""
    offset, size = _merged(offset[size > 0], size[size > 0])
    # one interval: the whole buffer moves by its offset, and no payload is split
    if len(offset) < 2:
        return _shifted(schedule, int(offset[0]) if len(offset) else 0)
    owner, start, length = intervals(schedule)
    bounds = starts_of(size)
    # the intervals of the buffer that each payload touches, from `first` up to and without `last`
    first = np.searchsorted(bounds, start, side="right") - 1
    last = np.searchsorted(bounds, start + length, side="left")
    count = np.where(length > 0, last - first, 0)
    row, interval = rows_of(count), ranges(first, count)
    # a piece is where a payload and an interval overlap
    low = np.maximum(start[row], bounds[interval])
    high = np.minimum((start + length)[row], bounds[interval + 1])
    return _with_pieces(schedule, owner[row], offset[interval] + low - bounds[interval], high - low)


def _merged(offset: Int64s, size: Int64s) -> tuple[Int64s, Int64s]:
    """Return the intervals with neighbours that touch as one."""
    if not len(offset):
        return offset, size
    head = np.flatnonzero(np.append(True, offset[1:] != offset[:-1] + size[:-1]))
    return offset[head], np.add.reduceat(size, head)


def _shifted(schedule: Schedule, by: int) -> Schedule:
    if by == 0:
        return schedule
    pieces = schedule.pieces
    moved = None if pieces is None else replace(pieces, offset=pieces.offset + by)
    return replace(schedule, offset=schedule.offset + by, pieces=moved)


def intervals(schedule: Schedule) -> tuple[Int64s, Int64s, Int64s]:
    """Return owner transfer, offset and size of every interval."""
    if schedule.pieces is None:
        return np.arange(len(schedule), dtype=np.int64), schedule.offset, schedule.size
    pieces = schedule.pieces
    return rows_of(np.diff(pieces.starts)), pieces.offset, pieces.size


def _with_pieces(schedule: Schedule, owner: Int64s, offset: Int64s, size: Int64s) -> Schedule:
    """Return `schedule` with these payloads, neighbours merged; plain columns where each is one interval."""
    fresh = np.ones(len(owner), dtype=np.bool_)
    fresh[1:] = (owner[1:] != owner[:-1]) | (offset[1:] != offset[:-1] + size[:-1])
    head = np.flatnonzero(fresh)
    owner, offset = owner[head], offset[head]
    size = np.add.reduceat(size, head) if len(head) else size
    counts = np.bincount(owner, minlength=len(schedule))
    first = np.zeros(len(schedule), dtype=np.int64)
    first[owner[::-1]] = offset[::-1]  # of several pieces the first one is written last, and stays
    if np.all(counts <= 1):
        return replace(schedule, offset=first, pieces=None)
    return replace(schedule, offset=first, pieces=Pieces(starts_of(counts), offset, size))


def relabel(schedule: Schedule, names: Int64s, members: int, *, switches: int = 0) -> Schedule:
    """Return `schedule` among `members`, its member (or switch) i being `names[i]` there."""
    return replace(
        schedule,
        members=members,
        switches=switches,
        source=names[schedule.source].astype(np.int32),
        destination=names[schedule.destination].astype(np.int32),
    )


def together(schedules: Sequence[Schedule]) -> Schedule:
    """Return schedules of the same members side by side, without waiting for each other."""
    if len(schedules) == 1:
        return schedules[0]
    shifts = starts_of([len(schedule) for schedule in schedules])
    edges = starts_of([len(schedule.dependencies) for schedule in schedules])
    # Each schedule's transfers, and its dependencies, are numbered behind those of the ones before.
    starts = [s.dependency_starts[:-1] + e for s, e in zip(schedules, edges[:-1], strict=True)]
    dependencies = [s.dependencies + int(n) for s, n in zip(schedules, shifts[:-1], strict=True)]
    return replace(
        schedules[0],
        source=np.concatenate([s.source for s in schedules]),
        destination=np.concatenate([s.destination for s in schedules]),
        size=np.concatenate([s.size for s in schedules]),
        reduces=np.concatenate([s.reduces for s in schedules]),
        offset=np.concatenate([s.offset for s in schedules]),
        dependency_starts=np.concatenate([*starts, edges[-1:]]),
        dependencies=np.concatenate(dependencies).astype(np.int32),
        pieces=_joined_pieces(schedules),
    )


def _joined_pieces(schedules: Sequence[Schedule]) -> Pieces | None:
    if all(schedule.pieces is None for schedule in schedules):
        return None
    counts, offset, size = [], [], []
    for schedule in schedules:
        owner, start, length = intervals(schedule)
        solid = length > 0
        counts.append(np.bincount(owner[solid], minlength=len(schedule)))
        offset.append(start[solid])
        size.append(length[solid])
    return Pieces(starts_of(np.concatenate(counts)), np.concatenate(offset), np.concatenate(size))


def in_sequence(phases: Sequence[Schedule]) -> Schedule:
    """Return one schedule in which a member starts a phase once its part of the one before has ended there.

    Its part has ended when every transfer from it and to it has arrived; a join at each member says so.
    """
    return reduce(_then, phases)


def _then(before: Schedule, after: Schedule) -> Schedule:
    ends = before.members + before.switches
    joins = len(before) + np.arange(ends)
    # A member's join waits for all that it sends or receives in `before`; its sends in `after` wait for it.
    waits = np.concatenate(
        [joins[before.source], joins[before.destination], len(before) + ends + np.arange(len(after))]
    )
    awaited = np.concatenate([np.tile(np.arange(len(before)), 2), joins[after.source]])
    merged = together([before, _joins(before, ends), after])
    rows = rows_of(np.diff(merged.dependency_starts))
    waiting = np.concatenate([rows, waits])
    dependencies = np.concatenate([merged.dependencies, awaited])
    # Old and new dependencies, sorted into rows.
    order = np.argsort(waiting, kind="stable")
    starts = starts_by(waiting, len(merged))
    return replace(merged, dependency_starts=starts, dependencies=dependencies[order].astype(np.int32))


def _joins(like: Schedule, ends: int) -> Schedule:
    members = np.arange(ends, dtype=np.int32)
    nothing = np.zeros(ends, dtype=np.int64)
    return replace(
        like,
        source=members,
        destination=members,
        size=nothing,
        reduces=np.zeros(ends, dtype=np.bool_),
        offset=nothing,
        dependency_starts=np.zeros(ends + 1, dtype=np.int64),
        dependencies=np.zeros(0, dtype=np.int32),
        pieces=None,
    )
