"""Aligned columns of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TypeAlias

WIDTH = 120
Row: TypeAlias = Sequence[str]


def table(title: str, header: Row, sides: str, rows: Iterable[Row]) -> Iterator[str]:
    """Yield a title and aligned columns, each to the side that `sides` says; nothing without rows."""
    cells = [header, *rows]
    if len(cells) == 1:
        return
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    yield f"\n  {title}"
    for row in cells:
        padded = (f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True))
        line = f"    {'  '.join(padded)}".rstrip()
        yield line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"


def spans(numbers: Sequence[int]) -> str:
    """Return numbers as text, with runs of consecutive ones as ranges.

    >>> spans((2, 0, 1, 5))
    '0-2 5'
    """
    runs = groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for run in (list(members) for _, members in runs)]
    return " ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ends)
