"""Tables of events that do not outgrow the memory: of many rows the earliest stay, and texts stand once.

NOTE: bytes and not objects: a profile has millions of events, and objects take ten times the memory.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from rapid_des.arrays import Bools, Int64s

Integers: TypeAlias = NDArray[Any]
"""Whole numbers, as narrow as they may be."""
_Known = TypeVar("_Known")
_MOST_LETTERS = 1 << 26


class EventTable:
    """Rows of whole numbers; `codes` are their types as in `struct`, and that at `at` is the time."""

    def __init__(self, codes: str, at: int) -> None:
        row = struct.Struct(f"={codes}")
        self._pack, self._rows, self._at = row.pack, bytearray(), f"f{at}"
        self._type = np.dtype([(f"f{place}", code) for place, code in enumerate(codes)])

    def append(self, *values: int) -> None:
        """Add a row."""
        self._rows += self._pack(*values)

    def column(self, place: int) -> Integers:
        """Return a column; the table cannot grow while it is held."""
        return np.frombuffer(self._rows, self._type)[f"f{place}"]

    def time_behind(self, most: int) -> int | None:
        """Return the time of the first row behind the earliest `most`; None if there are no more."""
        times = np.frombuffer(self._rows, self._type)[self._at]
        return int(np.partition(times, most)[most]) if len(times) > most else None

    def keep_before(self, time: int) -> int:
        """Keep the rows before a time; return how many went."""
        rows = np.frombuffer(self._rows, self._type)
        kept: Bools = rows[self._at] < time
        gone = int(np.count_nonzero(~kept))
        if gone:
            self._rows = bytearray(rows[kept].tobytes())
        return gone

    def taken(self, order: Int64s | None = None) -> list[Integers]:
        """Return the columns, in an order; the table is empty then."""
        rows = np.frombuffer(self._rows, self._type)
        self._rows = bytearray()
        return [rows[name].copy() if order is None else rows[name][order] for name in self._type.names or ()]


class SaidOnce(Generic[_Known]):
    """What rows say, each once, by number; 0 is what stands for all that came when there was too much."""

    def __init__(self, others: _Known) -> None:
        self.values = [others]
        self._numbers: dict[_Known, int] = {others: 0}
        self._letters = 0

    def number(self, value: _Known, letters: int) -> int:
        """Return the number of a value, which has `letters` letters."""
        number = self._numbers.get(value)
        if number is not None:
            return number
        if self._letters > _MOST_LETTERS:
            return 0
        self._letters += letters
        self.values.append(value)
        return self._numbers.setdefault(value, len(self._numbers))


def places(keys: Integers, wanted: Integers) -> Int64s:
    """Return where each wanted key stands, at the last of equals; -1 where it does not."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(keys, kind="stable")
    place: Int64s = order[np.searchsorted(keys, wanted, side="right", sorter=order) - 1]
    place[(keys[place] != wanted) | (wanted < 0)] = -1
    return place


def at(values: Integers, place: Int64s, missing: int = -1) -> Integers:
    """Return the values at places; `missing` for the place -1."""
    if not len(values):
        return np.full(len(place), missing, np.int64)
    found = values[place]
    found[place < 0] = missing
    return found


def said_of(place: Int64s, numbers: Integers, values: Sequence[_Known]) -> dict[int, _Known]:
    """Return what is known of each row: the value whose number stands at its place, if it is not 0."""
    found = at(numbers, place, 0)
    return {row: values[found[row]] for row in np.flatnonzero(found).tolist()}
