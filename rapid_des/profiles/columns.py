"""Columns of events as readers of profiles fill them, and the profile that they make.

NOTE: arrays and not objects: a profile has millions of events, and objects take ten times the memory. What is
in columns is given back as it is sorted, and texts that many events say stand once.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from rapid_des.arrays import Int32s, Int64s
from rapid_des.errors import TraceError
from rapid_des.profiles.events import Collective, DeviceEvents, HostStep, Profile
from rapid_des.profiles.kernel_classes import class_of

Integers: TypeAlias = NDArray[Any]
"""Whole numbers, as narrow as they may be."""
_Known = TypeVar("_Known")
KERNEL, COPY, FILL = "", "copy", "fill"
_MOST_NS = 1 << 62
_LONGEST = 86_400 * 10**9
"""The nanoseconds between the first and the last event of a profile, at most."""
_SKEW = 10**9
"""The nanoseconds by which the clocks of host and GPU may differ."""
_LONGEST_NAME = 2048
"""Letters of a name that are kept."""
_WAITING = ("Synchronize", "cudaMemcpy", "hipMemcpy", "hipMemcpyWithStream")
"""The ends of names of calls that return once the GPU is done, as cudaStreamSynchronize."""
_STEP = re.compile(
    r"ProfilerStep|\W*(?:(?:train|training)?[ _]?(?:step|iteration|iter))[ _#:=-]*\d+\W*\Z", re.IGNORECASE
)
_ORDERS = "StreamWaitEvent"
_MARKED = "ProfilerStep"
_VERSION = re.compile(r"_(?:v\d+|ptsz|ptds)\b.*")
"""What Nsight Systems adds to the names of calls, as in cudaLaunchKernel_v7000."""


class EventColumns:
    """What a reader saw, in the order of the file; times in nanoseconds."""

    def __init__(self, path: Path) -> None:
        self.path, self.device, self.rank = path, "", None  # type: Path, str, int | None
        self._names: dict[str, int] = {}
        self._kinds: dict[str, int] = {KERNEL: 0, COPY: 1, FILL: 2}
        self._events = [array(code) for code in "ibqqqqq"]
        """[event]: name, kind, stream, start, end, correlation, operator (external id)."""
        self._launches = [array("q") for _ in range(3)]
        self._operators = [array("q"), array("i")]
        self._shapes: dict[int, str] = {}
        self._texts: dict[str, str] = {}
        self._said: dict[Collective, Collective] = {}
        self.unshaped: list[tuple[int, str, int]] = []
        """Products without shapes: their start, operator and number."""
        self._waits = array("q")
        self._orders = array("q")
        self._marks: set[HostStep] = set()
        self._collectives: dict[int, Collective] = {}
        self._asked: dict[int, Collective] = {}
        """What operators asked for, by their number."""
        self._first, self._last = _MOST_NS, -_MOST_NS

    def check(self, name: str, start: int, end: int) -> None:
        """Take note of when an event was; `TraceError` for times that cannot be."""
        if end < start:
            raise TraceError(f"{self.path}: event {name[:80]!r}: ends {start - end} ns before it begins")
        self._first = min(self._first, start)
        self._last = max(self._last, end)
        if not -_MOST_NS < start <= end < _MOST_NS:
            raise TraceError(f"{self.path}: event {name[:80]!r}: {start} ns is no time")

    def add_event(
        self, name: str, kind: str, stream: int, span: tuple[int, int], keys: tuple[int, int]
    ) -> int:
        """Add a kernel, copy or fill; `keys` are its correlation and its operator's number, -1 if unknown."""
        row = self._names.setdefault(name[:_LONGEST_NAME], len(self._names))
        for column, value in zip(self._events, (row, self._kinds[kind], stream, *span, *keys), strict=True):
            column.append(value)
        return len(self._events[0]) - 1

    def add_collective(self, event: int, collective: Collective) -> None:
        """Say what an event was as a collective."""
        self._collectives[event] = self._said.setdefault(collective, collective)

    def add_asked(self, number: int, collective: Collective) -> None:
        """Say what collective an operator asked for; its kernel is one."""
        self._asked[number] = self._said.setdefault(collective, collective)

    def add_call(self, name: str, correlation: int, start: int, end: int) -> None:
        """Add a call of the host to the GPU's runtime."""
        if correlation >= 0:
            for column, value in zip(self._launches, (correlation, start, end), strict=True):
                column.append(value)
        if _VERSION.sub("", name).endswith(_WAITING):
            self._waits.append(end)
        elif _ORDERS in name:
            self._orders.append(start)

    def add_operator(self, number: int, name: str, shapes: str = "") -> None:
        """Add an operator of the framework, by which its kernels are classed; `shapes` of matrix products."""
        row = self._names.setdefault(name[:_LONGEST_NAME], len(self._names))
        self._operators[0].append(number)
        self._operators[1].append(row)
        if shapes:
            self._shapes[number] = self._texts.setdefault(shapes, shapes)

    def add_shapes(self, shapes: Mapping[int, str]) -> None:
        """Say the shapes of products, by the number of their operator."""
        self._shapes |= shapes

    def add_mark(self, name: str, start: int, end: int) -> None:
        """Add a range of the host if it marks a step."""
        if _STEP.match(name):
            self._marks.add(HostStep(name[:80], start, end))

    def profile(self) -> Profile:
        """Return the profile; the columns are empty then."""
        if self._first > self._last:
            raise TraceError(
                f"{self.path}: has no events with a duration (ph X); a profile of PyTorch has some"
            )
        events = self._device_events()
        self._check_clocks(events)
        return Profile(
            path=self.path,
            rank=self.rank,
            device=self.device,
            events=events,
            steps=self._steps(),
            waits=np.array(self._waits, np.int64),
            orders=np.sort(np.array(self._orders, np.int64)),
            span=(self._first, self._last),
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
        marked = [mark for mark in self._marks if mark.name.startswith(_MARKED)] or self._marks
        return sorted(marked, key=lambda step: step.start)

    def _device_events(self) -> DeviceEvents:
        """Return the events by start and end."""
        _, _, _, starts, ends, _, _ = self._events
        order = np.lexsort((np.frombuffer(ends, np.int64), np.frombuffer(starts, np.int64)))
        del starts, ends
        row, kind, stream, start, end, correlation, operator = self._in_order(order)
        keys, *calls = _taken(self._launches)
        place = _places(keys, correlation)
        called, launched = (_at(column, place) for column in calls)
        del keys, calls, place, correlation
        collectives = self._collectives_of(order, kind, operator)
        del order
        products = _of_operators(operator, self._shapes)
        names, classes, name = self._classed(row, kind, operator, collectives)
        return DeviceEvents(
            names=names,
            classes=classes,
            name=name,
            stream=stream,
            start=start,
            end=end,
            called=called,
            launched=launched,
            collectives=collectives,
            products=products,
        )

    def _in_order(self, order: Int64s) -> list[Integers]:
        """Return the columns of events in an order; each is given back before the next one is sorted."""
        found = []
        while self._events:
            column = self._events.pop(0)
            found.append(np.frombuffer(column, column.typecode)[order])
        return found

    def _collectives_of(self, order: Int64s, kind: Integers, operator: Integers) -> dict[int, Collective]:
        """Return what is known of collectives, by event: what it says itself, else its operator."""
        asked = _of_operators(operator, self._asked)
        of_kernels = {event: collective for event, collective in asked.items() if not kind[event]}
        if not self._collectives:
            return of_kernels
        place = np.empty(len(order), np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        return of_kernels | {int(place[event]): said for event, said in self._collectives.items()}

    def _classed(
        self, row: Integers, kind: Integers, operator: Integers, collectives: Mapping[int, Collective]
    ) -> tuple[list[str], list[str], Int32s]:
        """Return names and classes of all sorts of events, and the number of each event's sort."""
        numbers, above_rows = _taken(self._operators)
        above = _at(above_rows, _places(numbers, operator))
        del numbers, above_rows
        known = np.zeros(len(row), np.int8)
        known[list(collectives)] = 1
        names, texts = list(self._names), list(self._kinds)
        # One number for what decides a class: name, kind, operator, and whether it is a collective.
        # NOTE: rows of a table are sorted ten times as slowly.
        many = len(names) + 1
        keys = row.astype(np.int64)
        for factor, more in ((len(texts), kind), (many, above + 1), (2, known)):
            keys *= factor
            keys += more
        del above, known
        sorts, number = np.unique(keys, return_inverse=True)
        rest, said = np.divmod(sorts, 2)
        rest, operators = np.divmod(rest, many)
        rows = dict[tuple[str, str], int]()
        of = np.zeros(len(sorts), np.int32)
        for sort, (each, above_it, is_known) in enumerate(
            zip(rest.tolist(), operators.tolist(), said.tolist(), strict=True)
        ):
            name, text = names[each // len(texts)], texts[each % len(texts)]
            above_name = names[above_it - 1] if above_it else ""
            found = text or ("communication" if is_known else class_of(name, above_name))
            of[sort] = rows.setdefault((name, found), len(rows))
        return [name for name, _ in rows], [found for _, found in rows], of[number.reshape(-1)]


def _of_operators(operator: Integers, known: Mapping[int, _Known]) -> dict[int, _Known]:
    """Return what is known of each event's operator, by event."""
    if not known:
        return {}
    events = np.flatnonzero(np.isin(operator, np.fromiter(known, np.int64, len(known))))
    return {event: known[int(operator[event])] for event in events.tolist()}


def _taken(columns: list[array[int]]) -> list[Integers]:
    """Return columns as arrays, and empty the list of them."""
    found = [np.frombuffer(column, column.typecode) for column in columns]
    columns.clear()
    return found


def _places(keys: Integers, wanted: Integers) -> Int64s:
    """Return where each wanted key stands, at the last of equals; -1 where it does not."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(keys, kind="stable")
    place: Int64s = order[np.searchsorted(keys, wanted, side="right", sorter=order) - 1]
    place[(keys[place] != wanted) | (wanted < 0)] = -1
    return place


def _at(values: Integers, place: Int64s) -> Integers:
    """Return the values at places; -1 for the place -1."""
    if not len(values):
        return place
    found = values[place]
    found[place < 0] = -1
    return found
