"""Columns of events as readers of profiles fill them, and the profile that they make.

Memory is bounded: of a profile with more events than `_MOST` the earliest stay, and of those whole steps.

    file ──► events, calls, operators, marks, each with its time
                 │ if one has too many rows: its earliest stay, and of the others what is before that
                 └──► profile: whole steps, and how many device events were left out
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from rapid_des.arrays import Int32s
from rapid_des.errors import TraceError
from rapid_des.profiles.events import Collective, DeviceEvents, HostStep, Profile
from rapid_des.profiles.host_traces import PRODUCTS
from rapid_des.profiles.kernel_classes import class_of
from rapid_des.profiles.tables import EventTable, Integers, SaidOnce, at, places, said_of

KERNEL, COPY, FILL = KINDS = "", "copy", "fill"
_MOST_NS = 1 << 62
_LONGEST = 86_400 * 10**9
"""The nanoseconds between the first and the last event of a profile, at most."""
_SKEW = 10**9
"""The nanoseconds by which the clocks of host and GPU may differ."""
_LONGEST_NAME = 2048
"""Letters of a name that are kept."""
_MOST = 1 << 20
"""Device events that are kept, about; twice as many operators and calls."""
_WAITING = ("Synchronize", "cudaMemcpy", "hipMemcpy", "hipMemcpyWithStream")
"""The ends of names of calls that return once the GPU is done, as cudaStreamSynchronize."""
_STEP = re.compile(
    r"ProfilerStep|\W*(?:(?:train|training)?[ _]?(?:step|iteration|iter))[ _#:=-]*\d+\W*\Z", re.IGNORECASE
)
_ORDERS = "StreamWaitEvent"
_MARKED = "ProfilerStep"
_VERSION = re.compile(r"_(?:v\d+|ptsz|ptds)\b.*")
"""What Nsight Systems adds to the names of calls, as in cudaLaunchKernel_v7000."""


class _DeviceRows(NamedTuple):
    """Columns of device events; numbers of names, of kinds and of collectives, and times in nanoseconds."""

    name: Integers
    kind: Integers
    said: Integers
    stream: Integers
    start: Integers
    end: Integers
    operator: Integers
    called: Integers
    """When the call began that launched an event, and when it ended; -1 if it is not known."""
    launched: Integers


class EventColumns:
    """What a reader saw, in the order of the file; times in nanoseconds."""

    def __init__(self, path: Path) -> None:
        self.path, self.device, self.rank = path, "", None  # type: Path, str, int | None
        self._names, self._shapes = SaidOnce("(further names)"), SaidOnce("")
        self._said = SaidOnce[Collective | None](None)
        # name, kind, collective, stream, start, end, correlation, operator (external id)
        self._events = EventTable("ibiqqqqq", 4)
        # correlation, start, end of calls that launch
        self._launches = EventTable("qqq", 1)
        # number (external id), name, shapes, collective, start
        self._operators = EventTable("qiiiq", 4)
        # ends of calls that wait for the GPU; starts of calls that make a stream wait
        self._waits, self._orders = EventTable("q", 0), EventTable("q", 0)
        # name, start, end of ranges that mark steps
        self._marks = EventTable("iqq", 1)
        self._mark_names = SaidOnce("")
        self._first, self._last = _MOST_NS, -_MOST_NS
        self._until = _MOST_NS
        """What begins then or later is left out."""
        self._seen = self._left_out = 0

    def check(self, name: str, start: int, end: int) -> None:
        """Take note of when an event was; `TraceError` for times that cannot be."""
        if end < start:
            raise TraceError(f"{self.path}: event {name[:80]!r}: ends {start - end} ns before it begins")
        self._first, self._last = min(self._first, start), max(self._last, end)
        if not -_MOST_NS < start <= end < _MOST_NS:
            raise TraceError(f"{self.path}: event {name[:80]!r}: {start} ns is no time")
        self._seen += 1
        if not self._seen % _MOST:
            self._shorten()

    def _shorten(self) -> None:
        """Leave out what is late, until no table has more rows than it may have."""
        twice = self._launches, self._operators
        others = self._waits, self._orders, self._marks
        allowed = {self._events: _MOST} | dict.fromkeys(twice, 2 * _MOST) | dict.fromkeys(others, _MOST)
        late = [table.time_behind(most) for table, most in allowed.items()]
        self._until = min([self._until, *(time for time in late if time is not None)])
        for table in allowed:
            gone = table.keep_before(self._until)
            self._left_out += gone if table is self._events else 0

    def add_event(
        self,
        what: tuple[str, str],
        stream: int,
        span: tuple[int, int],
        keys: tuple[int, int],
        collective: Collective | None = None,
    ) -> None:
        """Add a device event.

        `what` is its name and its kind, `keys` are its correlation and its operator's number, -1 if unknown.
        """
        if span[0] >= self._until:
            self._left_out += 1
            return
        said = collective and self._collective(collective)
        name, kind = what
        self._events.append(self._name(name), KINDS.index(kind), said or 0, stream, *span, *keys)

    def add_call(self, name: str, correlation: int, start: int, end: int) -> None:
        """Add a call of the host to the GPU's runtime."""
        if start >= self._until:
            return
        if correlation >= 0:
            self._launches.append(correlation, start, end)
        if _VERSION.sub("", name[:_LONGEST_NAME]).endswith(_WAITING):
            self._waits.append(end)
        elif _ORDERS in name:
            self._orders.append(start)

    def add_operator(
        self, number: int, name: str, start: int, shapes: str = "", collective: Collective | None = None
    ) -> None:
        """Add an operator of the framework, by which its kernels are classed.

        `shapes` are those of a matrix product. A kernel of an operator that asked for a collective is one.
        """
        if start < self._until:
            said = collective and self._collective(collective)
            shaped = self._shapes.number(shapes, len(shapes))
            self._operators.append(number, self._name(name), shaped, said or 0, start)

    def add_mark(self, name: str, start: int, end: int) -> None:
        """Add a range of the host if it marks a step."""
        if start < self._until and _STEP.match(name[:_LONGEST_NAME]):
            self._marks.append(self._mark_names.number(name[:80], 80), start, end)

    def unshaped(self) -> list[tuple[int, str, int]]:
        """Return products without shapes: their start, operator and number."""
        if self._until < _MOST_NS:
            raise TraceError(
                f"{self.path}: has too many events to be linked with a host trace; profile fewer steps"
            )
        numbers, rows, shapes, _, starts = map(self._operators.column, range(5))
        products = [row for row, name in enumerate(self._names.values) if name in PRODUCTS]
        found = np.flatnonzero((shapes == 0) & np.isin(rows, products))
        return [(int(starts[row]), self._names.values[rows[row]], int(numbers[row])) for row in found]

    def _name(self, name: str) -> int:
        return self._names.number(name[:_LONGEST_NAME], min(len(name), _LONGEST_NAME))

    def _collective(self, said: Collective) -> int:
        return self._said.number(said, 200 + len(said.ranks))

    def profile(self, shapes: Mapping[int, str] | None = None) -> Profile:
        """Return the profile; the columns are empty then.

        `shapes` are those of products that were said elsewhere, by the number of their operator.
        """
        if self._first > self._last:
            raise TraceError(
                f"{self.path}: has no events with a duration (ph X); a profile of PyTorch has some"
            )
        if self._until < _MOST_NS:
            self._shorten()
        steps, rows = self._steps(), self._matched()
        whole = self._whole_steps(steps, rows.called)
        events = self._device_events(self._whole(rows, steps, whole), shapes or {})
        self._check_clocks(events)
        (waits,), (orders,) = self._waits.taken(), self._orders.taken()
        return Profile(
            path=self.path,
            rank=self.rank,
            device=self.device,
            events=events,
            steps=steps[:whole],
            waits=waits,
            orders=np.sort(orders),
            span=(self._first, self._last),
            left_out=self._left_out,
        )

    def _check_clocks(self, events: DeviceEvents) -> None:
        """Raise `TraceError` if a clock jumped while the profile was written."""
        if (apart := self._last - self._first) > _LONGEST:
            days = f"events are {apart / _LONGEST:.4g} days apart"
            raise TraceError(f"{self.path}: {days}: a clock jumped; allowed: up to a day")
        late = np.where(events.called >= 0, events.called - events.start, 0)
        if late.max(initial=0) > _SKEW:
            event = int(late.argmax())
            what = f"{events.names[events.name[event]][:80]!r}: begins {late[event] / 1e9:.4g} s"
            raise TraceError(f"{self.path}: event {what} before it was launched: a clock jumped")

    def _steps(self) -> Sequence[HostStep]:
        """Return the marked steps, each once: those of PyTorch's profiler if there are any."""
        texts = self._mark_names.values
        rows = (column.tolist() for column in self._marks.taken())
        marks = {HostStep(texts[name], start, end) for name, start, end in zip(*rows, strict=True)}
        marked = [mark for mark in marks if mark.name.startswith(_MARKED)] or marks
        return sorted(marked, key=lambda step: step.start)

    def _matched(self) -> _DeviceRows:
        """Return the device events by start and end, with the calls that launched them."""
        order = np.lexsort((self._events.column(5), self._events.column(4)))
        name, kind, said, stream, start, end, correlation, operator = self._events.taken(order)
        del order
        keys, *calls = self._launches.taken()
        place = places(keys, correlation)
        called, launched = (at(column, place) for column in calls)
        return _DeviceRows(name, kind, said, stream, start, end, operator, called, launched)

    def _whole_steps(self, steps: Sequence[HostStep], called: Integers) -> int:
        """Return how many steps were kept to their end; 0 if already the first is cut off."""
        if self._until == _MOST_NS or not len(called):
            return len(steps)
        starts = [step.start for step in steps]
        return max(int(np.searchsorted(starts, called.max(), side="right")) - 1, 0)

    def _whole(self, rows: _DeviceRows, steps: Sequence[HostStep], whole: int) -> _DeviceRows:
        """Return the rows without those of a step that was cut off."""
        if whole in (0, len(steps)):
            return rows
        kept = rows.called < steps[whole].start
        self._left_out += int(np.count_nonzero(~kept))
        return _DeviceRows(*(column[kept] for column in rows))

    def _device_events(self, rows: _DeviceRows, shapes: Mapping[int, str]) -> DeviceEvents:
        numbers, above, shaped, asked, _ = self._operators.taken()
        known = [
            said_of(places(numbers[said > 0], rows.operator), said[said > 0], values)
            for said, values in ((shaped, self._shapes.values), (asked, self._said.values))
        ]
        products, called_for = cast("tuple[dict[int, str], dict[int, Collective]]", known)
        if shapes:
            events = np.flatnonzero(np.isin(rows.operator, list(shapes))).tolist()
            products |= {event: shapes[int(rows.operator[event])] for event in events}
        own = {event: self._said.values[rows.said[event]] for event in np.flatnonzero(rows.said).tolist()}
        of_kernels = {event: said for event, said in called_for.items() if not rows.kind[event]}
        collectives = of_kernels | cast("dict[int, Collective]", own)
        names, classes, name = self._classed(rows, at(above, places(numbers, rows.operator)), collectives)
        columns = {
            column: getattr(rows, column) for column in ("stream", "start", "end", "called", "launched")
        }
        return DeviceEvents(
            names=names, classes=classes, name=name, collectives=collectives, products=products, **columns
        )

    def _classed(
        self, rows: _DeviceRows, above: Integers, collectives: Mapping[int, Collective]
    ) -> tuple[list[str], list[str], Int32s]:
        """Return names and classes of all sorts of events, and the number of each event's sort."""
        known = np.zeros(len(rows.name), np.int8)
        known[list(collectives)] = 1
        names = self._names.values
        # One number for what decides a class: name, kind, operator, and whether it is a collective.
        # NOTE: rows of a table are sorted ten times as slowly.
        many = len(names) + 1
        keys = rows.name.astype(np.int64)
        for factor, more in ((len(KINDS), rows.kind), (many, above + 1), (2, known)):
            keys *= factor
            keys += more
        del above, known
        sorts, number = np.unique(keys, return_inverse=True)
        rest, said = np.divmod(sorts, 2)
        rest, operators = np.divmod(rest, many)
        found_rows = dict[tuple[str, str], int]()
        of = np.zeros(len(sorts), np.int32)
        for sort, (each, above_it, is_known) in enumerate(
            zip(rest.tolist(), operators.tolist(), said.tolist(), strict=True)
        ):
            name, text = names[each // len(KINDS)], KINDS[each % len(KINDS)]
            above_name = names[above_it - 1] if above_it else ""
            found = text or ("communication" if is_known else class_of(name, above_name))
            of[sort] = found_rows.setdefault((name, found), len(found_rows))
        return [name for name, _ in found_rows], [found for _, found in found_rows], of[number.reshape(-1)]
