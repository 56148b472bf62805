"""A collective's schedule to the template that engines run."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rapid_des.arrays import Int32s, Int64s, digest, entries_of, fingerprint, ranges, rows_of, starts_of
from rapid_des.bounded_cache import BoundedCache
from rapid_des.network.collectives.schedule import PAYLOADS, Schedule
from rapid_des.program.builders import make_template
from rapid_des.program.program import NONE, Rows, TaskEdges, Template
from rapid_des.program.services import MessageSizes
from rapid_des.values import fields, replace

_LARGE, _LARGEST = 64, 512
"""Largest group in which each member of a collective that takes no link has a task of its own; the second
where members should be alike."""


class Templates:
    """The templates of one program; those that differ in nothing but their sizes share all other columns.

    `memory` keeps templates from one program to the next.
    """

    def __init__(self, sizes: MessageSizes, memory: BoundedCache) -> None:
        self._sizes = sizes
        self._memory = memory
        self._known: dict[bytes, Template] = {}
        self._transfers: dict[int, Template] = {}
        self._numbers: dict[Hashable, int] = {}
        self.numbered: list[Template] = []

    def number(self, key: Hashable, build: Callable[[], Template]) -> int:
        """Return the number of the program's template that `key` stands for; it is built once."""
        number = self._numbers.get(key)
        if number is None:
            self.numbered.append(build())
            number = self._numbers[key] = len(self.numbered) - 1
        return number

    def of(
        self,
        key: Hashable,
        schedule: Callable[[], Schedule],
        *,
        name: str,
        segment: int | None = None,
        whole: bool = False,
    ) -> Template:
        """Return the template of the schedule that `key` stands for; see `template_of`.

        `whole`: its messages never go in parts.
        """

        def make() -> tuple[bytes, Template, Int64s]:
            built = schedule()
            cut = _cut(built, segment)
            structure = _structure(built, cut)
            shape = self._known.get(structure)
            shape = shape or _template(built, cut, MessageSizes(), name=name, whole=False)
            return structure, shape, cut.size

        structure, shape, sizes = self._memory.get_or_make(("template", key, segment), make, weight=_weight)
        shape = self._known.setdefault(structure, shape)
        return replace(shape, size=self._sizes.rows(sizes, whole=whole), name=name, shape=structure)

    def message(self, size: int, segment: int | None = None) -> Template:
        """Return the template of a message: member 0 sends, member 1 receives."""
        name = _message_name(size)
        if segment is not None and size > segment:
            return template_of(one_transfer(size), self._sizes, name=name, segment=segment)
        return self.transfer(size, name)

    def messages(self, sizes: Int64s) -> Int32s:
        """Return the number of the template of a whole message, for each of many sizes."""
        values, places = np.unique(sizes, return_inverse=True)
        rows = self._sizes.rows(values)
        numbers = [
            self.number(
                ("message", size), partial(self._transfer, rows[place : place + 1], _message_name(size))
            )
            for place, size in enumerate(values.tolist())
        ]
        return np.array(numbers, np.int32)[places]

    def transfer(self, size: int, name: str, members: int = 2) -> Template:
        """Return the template of one transfer; see `transfer_template`."""
        return self._transfer(np.array([self._sizes.row(size)], np.int32), name, members)

    def _transfer(self, row: Int32s, name: str, members: int = 2) -> Template:
        if members not in self._transfers:
            shape = transfer_template(0, MessageSizes(), name="", members=members)
            self._transfers[members] = replace(shape, shape=("transfer", members))
        return replace(self._transfers[members], size=row, name=name)


def _message_name(size: int) -> str:
    return f"a message of {size} B"


def _weight(made: tuple[bytes, Template, Int64s]) -> int:
    """Return roughly the bytes of a cached template; templates may share a shape."""
    _, shape, sizes = made
    return sizes.nbytes + bytes_of(shape)


def bytes_of(template: Template) -> int:
    """Return roughly the bytes of a template's columns."""
    columns = (getattr(template, name) for name in fields(template))
    return 1000 + sum(column.nbytes for column in columns if isinstance(column, np.ndarray))


class _Cut(Struct, frozen=True):
    """A schedule's transfers cut into segments, which are the tasks of its template.

    What follows a transfer waits for all of its segments. Where both have several, a join after the last
    segment stands between them: without it, each segment would wait for each. Joins are the last tasks.
    """

    first: Int64s
    """[transfer and one more] the first segment; the last entry is their number."""
    joined: Int64s
    """The transfers that a join follows."""
    size: Int64s
    """[task] the bytes that it sends."""

    @property
    def counts(self) -> Int64s:
        """[transfer] the number of segments."""
        return np.diff(self.first)

    def segments_of(self, transfers: NDArray[np.integer[Any]]) -> Int64s:
        """Return the segments of transfers, one transfer after the other."""
        return entries_of(self.first, transfers)

    def edges(self, origin: Int32s, target: Int32s) -> tuple[Rows, Rows]:
        """Return the edges between tasks that stand for edges between transfers."""
        if len(self.size) == len(self.counts):
            return origin, target
        end = np.full(len(self.counts), NONE, np.int64)
        end[self.joined] = self.first[-1] + np.arange(len(self.joined))
        # An edge starts at the join behind its transfer if there is one, else at each of its segments, and
        # leads to each segment of its target: origins times targets edges.
        ends = end[origin]
        first, many = np.where(ends == NONE, self.first[origin], ends), self.counts[target]
        lengths = np.where(ends == NONE, self.counts[origin], 1) * many
        edge, place = rows_of(lengths), ranges(0, lengths)
        before, after = np.divmod(place, many[edge])  # the segment of the origin, and that of the target
        joins = np.repeat(end[self.joined], self.counts[self.joined])
        return (
            np.concatenate((first[edge] + before, self.segments_of(self.joined))),
            np.concatenate((self.first[target][edge] + after, joins)),
        )


def _cut(schedule: Schedule, segment: int | None) -> _Cut:
    """Return a schedule's transfers cut into segments of this many bytes; None: each is whole."""
    if segment is None or schedule.size.max(initial=0) <= segment:
        return _Cut(np.arange(len(schedule) + 1), np.zeros(0, np.int64), schedule.size)
    counts: Int64s = np.maximum(1, -(-schedule.size // segment))  # rounded up; a join of 0 B is one task
    target = rows_of(np.diff(schedule.dependency_starts))
    later = np.zeros(len(schedule), np.int64)  # segments that wait for each transfer
    np.add.at(later, schedule.dependencies, counts[target])
    joined = np.flatnonzero((counts > 1) & (later > 1))
    # the bytes from each segment on; all segments but the last are full
    left = np.repeat(schedule.size, counts) - ranges(0, counts) * segment
    size = np.concatenate((np.minimum(segment, left), np.zeros(len(joined), np.int64)))
    return _Cut(starts_of(counts), joined, size)


def _structure(schedule: Schedule, cut: _Cut) -> bytes:
    """Return a fingerprint of all that a template takes from a schedule but its sizes."""
    return digest(cut.first) + fingerprint(schedule, without=PAYLOADS | {"size"})


def like_template(
    schedule: Schedule, sizes: MessageSizes, memory: BoundedCache, *, name: str, whole: bool
) -> Template:
    """Return `template_of` a schedule; `memory` keeps what schedules that differ in sizes alone share."""
    cut = _cut(schedule, None)
    key = ("transfers", _structure(schedule, cut))
    shape = memory.get_or_make(
        key, lambda: _template(schedule, cut, MessageSizes(), name="", whole=False), weight=bytes_of
    )
    return replace(shape, size=sizes.rows(cut.size, whole=whole), name=name)


def template_of(
    schedule: Schedule, sizes: MessageSizes, *, name: str, segment: int | None = None, whole: bool = False
) -> Template:
    """Return the template of a schedule.

    A task waits for its source member's arrival and for its predecessors; a member is done when it has
    arrived and its last transfers, those that nothing later proves to have arrived, are in. With `segment`
    a transfer is as many tasks as it has segments, and what follows waits for all of them. `whole`: its
    messages never go in parts.
    """
    return _template(schedule, _cut(schedule, segment), sizes, name=name, whole=whole)


def _template(schedule: Schedule, cut: _Cut, sizes: MessageSizes, *, name: str, whole: bool) -> Template:
    origin = schedule.dependencies
    target = rows_of(np.diff(schedule.dependency_starts)).astype(np.int32)
    gated = np.flatnonzero(_needs_arrival(schedule, origin, target))
    done_of, done_member = _last_transfers(schedule, origin, target)
    # A task is a segment of a transfer, or a join of segments behind them, which crosses no pair.
    transfer = np.concatenate((rows_of(cut.counts), cut.joined))
    tasks, members = len(cut.size), np.arange(schedule.members)
    pair, pair_source, pair_destination = pairs_of(schedule)
    pairs = np.append(pair[transfer[: cut.first[-1]]], np.full(len(cut.joined), NONE, np.int32))
    origins, targets = cut.edges(origin, target)
    # Moments behind the tasks are the members' ends: what no later task proves to have arrived leads there.
    last = np.repeat(tasks + done_member, cut.counts[done_of])
    arriving = np.repeat(schedule.source[gated], cut.counts[gated])
    return make_template(
        schedule.members,
        (_injectors(schedule)[transfer], sizes.rows(cut.size, whole=whole)),
        (pairs, pair_source, pair_destination),
        edges=TaskEdges(np.concatenate((origins, cut.segments_of(done_of))), np.concatenate((targets, last))),
        arrivals=TaskEdges(
            np.concatenate((arriving, members)), np.concatenate((cut.segments_of(gated), tasks + members))
        ),
        name=name,
    )


def _needs_arrival(schedule: Schedule, origin: Int32s, target: Int32s) -> NDArray[np.bool_]:
    """Return which tasks must wait for their source's arrival: those that follow no task of that source."""
    proven = np.zeros(len(schedule), np.bool_)
    proven[target[schedule.source[origin] == schedule.source[target]]] = True
    return ~proven & (schedule.source < schedule.members)


def _last_transfers(schedule: Schedule, origin: Int32s, target: Int32s) -> tuple[Int32s, Int32s]:
    """Return (task, member) for each transfer that a member must itself see in before it is done."""
    later_source, later_destination = schedule.source[target], schedule.destination[target]
    tasks, members = [], []
    for end in (schedule.source, schedule.destination):
        proven = np.zeros(len(schedule), np.bool_)
        # A later transfer to or from the same member proves that this one has arrived there.
        proven[origin[(later_source == end[origin]) | (later_destination == end[origin])]] = True
        last = np.flatnonzero(~proven & (end < schedule.members))
        tasks.append(last)
        members.append(end[last])
    # Encode (task, member) as one integer to drop transfers that both ends must see, such as to itself.
    both = np.sort(np.concatenate(tasks) * schedule.members + np.concatenate(members))
    both = both[np.append(True, both[1:] != both[:-1])] if len(both) else both
    task, member = np.divmod(both, schedule.members)
    return task.astype(np.int32), member.astype(np.int32)


def pairs_of(schedule: Schedule) -> tuple[Int32s, Int32s, Int32s]:
    """Return of each transfer its number among the pairs of members that send, and the ends of these."""
    width = schedule.members + schedule.switches
    moves = schedule.source != schedule.destination
    keys, places = np.unique(
        schedule.source[moves].astype(np.int64) * width + schedule.destination[moves], return_inverse=True
    )
    pair = np.full(len(schedule), NONE, np.int32)
    pair[moves] = places
    return pair, (keys // width).astype(np.int32), (keys % width).astype(np.int32)


def _injectors(schedule: Schedule) -> Int32s:
    """Return the member whose visit orders a task on links: its source, for a switch its first sender."""
    source, starts = schedule.source.copy(), schedule.dependency_starts
    left = np.flatnonzero(source >= schedule.members)
    source[left[starts[left] == starts[left + 1]]] = 0
    while len(left := left[source[left] >= schedule.members]):
        awaited = schedule.dependencies[entries_of(starts, left)]
        begins = starts_of(starts[left + 1] - starts[left])[:-1]
        ready = np.maximum.reduceat(source[awaited], begins) < schedule.members
        source[left[ready]] = np.minimum.reduceat(source[awaited], begins)[ready]
    return source


def transfer_template(size: int, sizes: MessageSizes, *, name: str, members: int = 2) -> Template:
    """Return the template of one transfer from the first member to the last, to itself if it is alone.

    Each member is done when the transfer has arrived and it has arrived itself: the sender of a message when
    it is there, the receiver not before it asked.
    """
    member = np.arange(members)
    return make_template(
        members,
        (member[:1], np.array([sizes.row(size)])),
        (member[:1], member[:1], member[-1:]),
        edges=TaskEdges(np.zeros(members, np.int64), 1 + member),
        arrivals=TaskEdges(np.append(0, member), np.append(0, 1 + member)),
        name=name,
    )


def one_transfer(size: int) -> Schedule:
    """Return the schedule of one message from member 0 to member 1."""
    return Schedule(
        members=2,
        source=np.array([0], np.int32),
        destination=np.array([1], np.int32),
        size=np.array([size], np.int64),
        reduces=np.zeros(1, np.bool_),
        offset=np.zeros(1, np.int64),
        dependency_starts=np.zeros(2, np.int64),
        dependencies=np.zeros(0, np.int32),
    )


def fixed_template(
    members: int, duration: int, sizes: MessageSizes, *, name: str, alike: bool = False
) -> Template:
    """Return a collective that takes no link: all members are done `duration` after the last arrived.

    Every member of a small group has a task of its own, so that none stands out where runs are folded; with
    `alike` also of a larger one.
    """
    each = members <= (_LARGEST if alike else _LARGE)
    tasks, every = (members if each else 1), np.arange(members)
    task, member = np.divmod(np.arange(tasks * members), members)
    lag = np.full(members, duration, np.int64)
    edges = TaskEdges(every % tasks, tasks + every, lag)
    return _linkless((members, tasks), edges, TaskEdges(member, task), sizes, name)


def fixed_message(duration: int, sizes: MessageSizes) -> Template:
    """Return a message that takes no link: it arrives `duration` after it was sent."""
    ends = np.array([0, 0]), np.array([1, 2]), np.full(2, duration, np.int64)
    return _linkless(
        (2, 1), TaskEdges(*ends), TaskEdges(np.array([0, 1]), np.array([0, 2])), sizes, "a message"
    )


def _linkless(
    count: tuple[int, int], edges: TaskEdges, arrivals: TaskEdges, sizes: MessageSizes, name: str
) -> Template:
    members, tasks = count
    nobody, row = np.zeros(0, np.int32), np.full(tasks, sizes.row(0), np.int32)
    pairs = np.full(tasks, NONE, np.int32), nobody, nobody
    return make_template(
        members, (np.arange(tasks, dtype=np.int32), row), pairs, edges=edges, arrivals=arrivals, name=name
    )
