"""Arguments as machine code takes them: addresses of tables of 64-bit words.

A column is three words: the address of its first entry, its length, and the length of a row if it has rows. A
table is the words of its fields one after the other, a table in it the address of its own words.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rapid_des.compiling.kinds import Column, Kind, Scalar, Table

COLUMN_WORDS = 3


def words_of(kind: Kind) -> int:
    """Return how many words a field takes in a table."""
    return COLUMN_WORDS if isinstance(kind, Column) else 1


class Words(NamedTuple):
    """A table's words with what they point to, so that who calls again reads anew only what has changed."""

    argument: tuple[Any, ...]
    words: NDArray[np.int64]
    parts: list[Words]
    """The tables in it."""

    @property
    def address(self) -> int:
        """Where the words stand."""
        return int(self.words.__array_interface__["data"][0])

    @classmethod
    def of(cls, argument: tuple[Any, ...], kind: Table, before: Words | None = None) -> Words:
        """Return a table's words as it is now, given those of what stood in its place before."""
        if before is not None and before.argument is argument:
            return before
        parts, words = list[Words](), list[int]()
        known = iter(() if before is None else before.parts)
        for value, (name, field) in zip(argument, kind.fields, strict=True):
            if isinstance(field, Column):
                words += column_words(value, field, f"{kind.name}.{name}")
            elif isinstance(field, Scalar):
                words.append(int(value))
            else:
                parts.append(cls.of(value, field, next(known, None)))
                words.append(parts[-1].address)
        return cls(argument, np.array(words, np.int64), parts)


def column_words(array: Any, kind: Column, name: str) -> tuple[int, int, int]:
    """Return a column's words."""
    there = array.__array_interface__
    fits = array.dtype == kind.dtype and array.ndim == kind.dimensions
    assert fits, f"{name} is {array.ndim} x {array.dtype}, not {kind.dimensions} x {kind.dtype}"
    assert there["strides"] is None and array.flags.aligned, f"{name} is not contiguous"
    return there["data"][0], len(array), array.shape[1] if array.ndim > 1 else 0
