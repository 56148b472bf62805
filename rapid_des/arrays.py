"""Columns: the array types that everybody names, and rows of different lengths in one flat array.

Ragged rows are `starts` and entries: row r is entries[starts[r]:starts[r + 1]]; the last start is the total.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence, Set
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Int8s = NDArray[np.int8]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Floats = NDArray[np.float64]

_Array = TypeVar("_Array", bound=NDArray[Any])
_MANY = 256
"""The number of columns from which numpy's concatenation is faster than a Python loop."""


def starts_of(lengths: Sequence[int] | NDArray[np.integer[Any]]) -> Int64s:
    """Return where each of the rows starts that follow one another, and at the end their total.

    >>> starts_of([2, 0, 3]).tolist()
    [0, 2, 2, 5]
    """
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def starts_by(row: NDArray[np.integer[Any]], rows: int) -> Int64s:
    """Return the starts of entries that are sorted by `row`, the row of each, among `rows` rows.

    >>> starts_by(np.array([0, 0, 2, 2, 2]), 3).tolist()
    [0, 2, 2, 5]
    """
    return starts_of(np.bincount(row, minlength=rows))


def rows_of(lengths: Sequence[int] | NDArray[np.integer[Any]]) -> Int64s:
    """Return of every entry the row that it is in.

    >>> rows_of([2, 0, 3]).tolist()
    [0, 0, 2, 2, 2]
    """
    return np.repeat(np.arange(len(lengths)), lengths)


def ranges(first: int | NDArray[np.integer[Any]], lengths: NDArray[np.integer[Any]]) -> Int64s:
    """Return, row after row, the integers that count up from its `first`, as many as it is long.

    With first 0 that is every entry's position in its row.

    >>> ranges(np.array([7, 0, 4]), np.array([2, 0, 3])).tolist()
    [7, 8, 4, 5, 6]
    """
    if len(lengths) and (lengths == lengths[0]).all():  # several times faster
        rows: Int64s = np.broadcast_to(first, lengths.shape)[:, None] + np.arange(int(lengths[0]))
        return rows.reshape(-1)
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    entries: Int64s = np.arange(total) + np.repeat(first - (ends - lengths), lengths)
    return entries


def entries_of(starts: Int64s, rows: NDArray[np.integer[Any]]) -> Int64s:
    """Return where the entries of the given rows stand, one row after the other.

    >>> entries_of(starts_of([2, 0, 3]), np.array([2, 0])).tolist()
    [2, 3, 4, 0, 1]
    """
    return ranges(starts[rows], starts[1:][rows] - starts[rows])


def distinct(column: NDArray[Any]) -> NDArray[Any]:
    """Return the different values of a column, ascending.

    NOTE: `np.unique` without further outputs imports `numpy.ma`, which takes 12 ms.

    >>> distinct(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    ordered = np.sort(column)
    is_first = np.ones(len(ordered), np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first]


def to_the_next(values: Int64s, end: int) -> Int64s:
    """Return the differences to the next values, of the last one to `end`; faster than `np.diff` with ends.

    >>> to_the_next(np.array([2, 5, 9]), 10).tolist()
    [3, 4, 1]
    """
    differences = np.empty_like(values)
    np.subtract(values[1:], values[:-1], out=differences[:-1])
    differences[-1] = end - values[-1]
    return differences


def levels_of(column: NDArray[Any]) -> tuple[NDArray[Any], Int64s]:
    """Return a column's values, numbers by size and names as they come, and each entry's place among these.

    >>> [part.tolist() for part in levels_of(np.array(["base", "A", "base", "B"]))]
    [['base', 'A', 'B'], [0, 1, 0, 2]]
    >>> [part.tolist() for part in levels_of(np.array([4, 1, 2, 4]))]
    [[1, 2, 4], [2, 0, 1, 2]]
    """
    if column.dtype.kind in "biuf":
        return np.unique(column, return_inverse=True)
    return as_they_come(column)


def as_they_come(column: NDArray[Any]) -> tuple[NDArray[Any], Int64s]:
    """Return the different values of a column in the order of their first entries, and each entry's place.

    >>> [part.tolist() for part in as_they_come(np.array([4, 1, 2, 4]))]
    [[4, 1, 2], [0, 1, 2, 0]]
    """
    values, first, place = np.unique(column, return_index=True, return_inverse=True)
    order = np.argsort(first)
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return values[order], places[place]


def equals_before(column: NDArray[np.integer[Any]]) -> Int64s:
    """Return for each entry the number of equal entries before it.

    >>> equals_before(np.array([7, 3, 7, 7])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(column, kind="stable")
    begins = np.diff(column[order], prepend=column[order][:1] - 1) != 0
    first_of_equals = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
    count = np.empty(len(order), np.int64)
    count[order] = np.arange(len(order)) - first_of_equals
    return count


def digest(*columns: NDArray[Any], label: str = "") -> bytes:
    """Return a fingerprint of columns in order, by type, shape and content."""
    state = hashlib.blake2b(label.encode(), digest_size=16)
    for column in columns:
        state.update(f" {column.dtype.str}{column.shape}".encode())
        state.update(np.ascontiguousarray(column).reshape(-1).data)
    return state.digest()


def fingerprint(value: Struct, *, without: Set[str] = frozenset()) -> bytes:
    """Return a digest of a frozen value, by the content of all its fields but some.

    A field that is added later is in it: a key of a cache that is made of it never says too little.
    """
    fields = {name: getattr(value, name) for name in value.__struct_fields__ if name not in without}
    columns = {name: field for name, field in fields.items() if isinstance(field, np.ndarray)}
    plain = [(name, field) for name, field in fields.items() if name not in columns]
    return digest(*columns.values(), label=repr((*columns, *plain)))


def frozen(column: _Array) -> _Array:
    """Return the array, made read-only."""
    column.setflags(write=False)
    return column


_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


def hashed(source: Int64s, destination: Int64s, salts: Iterable[Int64s | int]) -> Int64s:
    """Return 63 bits of each flow's hash with all salts."""
    state = (source * 2**32 + destination).astype(np.uint64)
    for salt in salts:
        state = state + np.broadcast_to(salt, len(source)).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in _MIX:
            state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    return (state >> np.uint64(1)).astype(np.int64)


def joined(parts: Sequence[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    """Return columns one after the other, as another type."""
    if len(parts) > _MANY:  # it casts beside the result, which matters for few large ones
        return np.concatenate(parts, dtype=dtype, casting="unsafe")
    columns = np.empty(sum(len(part) for part in parts), dtype)
    begin = 0
    for part in parts:
        columns[begin : begin + len(part)] = part
        begin += len(part)
    return columns


def joined_starts(rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Join row starts: each part's begin where the part before ended."""
    starts = np.zeros(sum(len(row) - 1 for row in rows) + 1, np.int64)
    begin = 0
    for row in rows:
        starts[begin + 1 : begin + len(row)] = starts[begin] - row[0] + row[1:]
        begin += len(row) - 1
    return starts


def distinct_rows(*columns: Int8s | Int64s) -> tuple[Int64s, Int64s]:
    """Return the different rows of some columns, and which of them each row is."""
    key = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, codes = np.unique(column, return_inverse=True)
        key = np.unique(key * len(values) + codes, return_inverse=True)[1]
    first = np.unique(key, return_index=True)[1]
    return np.stack([column[first].astype(np.int64) for column in columns], 1), key
