"""Many short columns as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_MANY = 256
"""Columns that numpy joins faster than a loop does."""


def joined_columns(parts: Sequence[Array], dtype: type[np.generic]) -> Array:
    """Return columns one after the other, as another type."""
    if len(parts) > _MANY:  # it casts beside the result, which matters for few large ones
        return np.concatenate(parts, dtype=dtype, casting="unsafe")
    joined = np.empty(sum(len(part) for part in parts), dtype)
    begin = 0
    for part in parts:
        joined[begin : begin + len(part)] = part
        begin += len(part)
    return joined


def joined_starts(rows: Sequence[Array]) -> Array:
    """Join row starts: each part's begin where the part before ended."""
    starts = np.zeros(sum(len(row) - 1 for row in rows) + 1, np.int64)
    begin = 0
    for row in rows:
        starts[begin + 1 : begin + len(row)] = starts[begin] - row[0] + row[1:]
        begin += len(row) - 1
    return starts


def begins_of(lengths: Sequence[int] | Array) -> Array:
    """Return where stretches of these lengths begin, and where the last ends."""
    begins = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=begins[1:])
    return begins
