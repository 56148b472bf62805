"""A report as parts (sentences, facts, tables), which `text` and `html` render.

The rows of a table are those that `--json` prints. `shown` formats a value by the unit in its key.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias

from msgspec import Struct

from rapid_des.printable import html_table, html_text
from rapid_des.units import PS_PER_S, Duration, Size

Plain: TypeAlias = Mapping[str, Any]
_GIB = int(Size.parse("1 GiB"))
_LABEL = 16
"""The least width of a fact's label in characters, by which facts of different reports look alike."""
_GAP = "  "
_HEADINGS = {
    "id": "point",
    "tokens_per_s": "tokens/s",
    "tokens_per_gpu_s": "tokens/s/GPU",
    "mfu": "MFU",
    "gpus": "GPUs",
}
_UNITS = ("_s", "_ps", "_bytes", "_j")


class Column(Struct, frozen=True):
    """A column of a table."""

    key: str
    """The key of its values in the rows."""
    heading: str | None = None
    """The heading; None: the key in words."""
    show: Callable[[Any], str] | None = None
    """The function that returns a value as text; None: `shown` with the key."""
    width: int = 0
    """The least width in characters."""
    side: str = ""
    """The side that cells stand on, `<` or `>`; empty: texts stand left, numbers right."""

    @property
    def title(self) -> str:
        """The heading as printed."""
        return heading(self.key) if self.heading is None else self.heading

    def cell(self, row: Plain) -> str:
        """Return the text of this column in a row; empty where the row has no such key."""
        if self.key not in row:
            return ""
        return shown(self.key, row[self.key]) if self.show is None else self.show(row[self.key])


class Table(Struct, frozen=True):
    """A table; without rows nothing is printed of it."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Plain]
    shared: bool = False
    """Whether columns that are equal in all rows are stated once above the others."""


class Facts(Struct, frozen=True):
    """Values by label."""

    rows: Mapping[str, str]


Part: TypeAlias = str | Facts | Table


def columns(*keys: str, **headings: str) -> tuple[Column, ...]:
    """Return columns of keys, then of keys with headings; values are shown by their keys' units."""
    return (*map(Column, keys), *(Column(key, title) for key, title in headings.items()))


def heading(key: str) -> str:
    """Return the title of a column.

    >>> heading("step_time_s"), heading("tp"), heading("mfu")
    ('step time', 'tp', 'MFU')
    """
    unit = next((unit for unit in _UNITS if key.endswith(unit)), "")
    return _HEADINGS.get(key) or key.removesuffix(unit).replace("_", " ")


def shown(key: str, value: Any) -> str:
    """Return a value as text, by the unit in its key.

    >>> shown("step_time_s", 0.0015), shown("mfu", 0.5), shown("memory_bytes", 2**30), shown("mfu", None)
    ('1.5 ms', '50.0 %', '1 GiB', '-')
    """
    if value is None or isinstance(value, str):
        return value or ("-" if value is None else "")
    if key == "mfu":
        return percent(value)
    if key.startswith("tokens_per"):
        return f"{value:,.0f}" if value >= 100 else f"{value:.4g}"
    if key.endswith(_UNITS):
        return _with_unit(key, value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _with_unit(key: str, value: float) -> str:
    if key.endswith("_bytes"):
        return f"{value / _GIB:.4g} GiB" if value >= _GIB else str(Size(round(value)))
    if key.endswith("_j"):
        return f"{value / 1000:.4g} kJ"
    return time_text(round(value) if key.endswith("_ps") else round(value * PS_PER_S))


def percent(share: float, digits: int = 1) -> str:
    """Return a share of 1 in percent.

    >>> percent(0.5), percent(0.123, 0)
    ('50.0 %', '12 %')
    """
    return f"{100 * share:.{digits}f} %"


def count(number: int) -> str:
    """Return a whole number with commas.

    >>> count(1234567)
    '1,234,567'
    """
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "file"), counted(2000, "file")
    ('1 file', '2,000 files')
    """
    return f"{number:,} {noun}" + "s" * (number != 1)


def time_text(picoseconds: int) -> str:
    """Return a time or a difference of times as people write it.

    >>> time_text(0), time_text(-1_500_000)
    ('0', '-1.5 us')
    """
    if picoseconds == 0:
        return "0"
    return f"{'-' if picoseconds < 0 else ''}{Duration(abs(picoseconds))}"


def seconds_text(seconds: float | None) -> str:
    """Return a time in seconds as people write it.

    >>> seconds_text(0.0015), seconds_text(None)
    ('1.5 ms', '–')
    """
    return "–" if seconds is None else time_text(round(seconds * PS_PER_S))


def added_text(picoseconds: int) -> str:
    """Return a difference of times with its sign.

    >>> added_text(1_500_000)
    '+1.5 us'
    """
    return ("+" if picoseconds > 0 else "") + time_text(picoseconds)


def change_text(after: float, before: float) -> str:
    """Return by how many percent a time is longer than another one.

    >>> change_text(3, 2)
    '+50.00%'
    """
    return f"{after / max(before, 1e-12) - 1:+.2%}"


def names_text(names: Sequence[str], most: int = 8) -> str:
    """Return the first names, and how many more there are.

    >>> names_text(["a", "b", "c"], 2)
    'a, b, … 1 more'
    """
    more = f", … {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def spans(numbers: Sequence[int]) -> str:
    """Return numbers as text, with runs of consecutive ones as ranges.

    >>> spans((2, 0, 1, 5))
    '0-2 5'
    """
    runs = groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for run in (list(members) for _, members in runs)]
    return " ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ends)


def split_shared(table: Table) -> tuple[str, list[Column]]:
    """Return what all rows share as text, and the columns that tables print."""
    if not table.shared or len(table.rows) < 2:
        return "", list(table.columns)
    equal = [column for column in table.columns if len({column.cell(row) for row in table.rows}) == 1]
    first = ((column.title, column.cell(table.rows[0])) for column in equal)
    stated = ", ".join(f"{title} {cell}" for title, cell in first if cell not in ("", "-"))
    return stated and f"in all rows: {stated}", [column for column in table.columns if column not in equal]


def text(parts: Iterable[Part], width: int | None = None) -> Iterator[str]:
    """Yield the lines of a report: the first part stands at the margin, the others are indented.

    With a `width`, that of a terminal, sentences are wrapped and cells folded; without, nothing is.
    """
    previous: Part = ""
    for number, part in enumerate(parts):
        if isinstance(previous, Table) and not isinstance(part, Table):
            yield ""
        if isinstance(part, Table):
            yield from _table_lines(part, width)
            previous = part if part.rows else previous
            continue
        labels = {"": part} if isinstance(part, str) else part.rows
        longest = 0 if isinstance(part, str) else max([_LABEL, *map(len, labels)]) + 1
        for label, value in labels.items():
            yield from wrapped(f"{_GAP if number else ''}{label:<{longest}}{value}", width, hanging=longest)
        previous = part


def wrapped(line: str, width: int | None, *, hanging: int = 0) -> Iterator[str]:
    """Yield a line in pieces of at most `width` characters, the later ones indented."""
    if width is None or len(line) <= width:
        yield line
        return
    indent = " " * (
        len(line) - len(line.lstrip()) + (hanging if hanging < width // 2 else 0) + 2 * (not hanging)
    )
    yield from textwrap.wrap(line, width, subsequent_indent=indent, drop_whitespace=True)


def _table_lines(table: Table, width: int | None) -> Iterator[str]:
    if not table.rows:
        return
    shared, kept = split_shared(table)
    yield ""
    if table.title:
        yield from wrapped(f"{_GAP}{table.title}", width)
    if shared:
        yield from wrapped(f"{_GAP}{_GAP}{shared}", width)
    indent = 2 * _GAP if table.title else _GAP
    cells = [
        [column.title for column in kept],
        *([column.cell(row) for column in kept] for row in table.rows),
    ]
    widths = [max([column.width, *map(len, each)])
              for column, each in zip(kept, zip(*cells, strict=True), strict=True)]  # fmt: skip
    sides = [_side(column, table.rows) for column in kept]
    if width is not None and len(indent) + sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        yield from _folded(cells, sides, indent, width)
        return
    for row in cells if any(cells[0]) else cells[1:]:
        padded = (f"{cell:{side}{wide}}" for cell, side, wide in zip(row, sides, widths, strict=True))
        yield f"{indent}{_GAP.join(padded)}".rstrip()


def _side(column: Column, rows: Sequence[Plain]) -> str:
    """Return the side that a column's cells stand on."""
    if column.side:
        return column.side
    values = [row.get(column.key) for row in rows]
    return "<" if any(isinstance(value, str | list | tuple) for value in values) else ">"


def _folded(cells: Sequence[Sequence[str]], sides: Sequence[str], indent: str, width: int) -> Iterator[str]:
    """Yield the lines of a table that is too wide for the terminal, its cells folded by rich."""
    from io import StringIO

    from rich.console import Console
    from rich.table import Table as Grid

    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(cells[0]))
    for title, side in zip(cells[0], sides, strict=True):
        grid.add_column(title, justify="left" if side == "<" else "right", overflow="fold")
    for row in cells[1:]:
        grid.add_row(*row)
    drawn = StringIO()
    console = Console(file=drawn, width=width - len(indent), color_system=None, markup=False, emoji=False)
    console.print(grid)
    yield from (f"{indent}{line}".rstrip() for line in drawn.getvalue().splitlines())


def html(parts: Iterable[Part]) -> str:
    """Return a report as HTML for a notebook, escaped and bounded in size."""
    found = list[str]()
    for part in parts:
        if isinstance(part, str):
            found.append(html_text(part.strip()))
        elif isinstance(part, Facts):
            found.append(html_table(part.rows.items()))
        elif part.rows:
            shared, kept = split_shared(part)
            found += [html_text(line) for line in (part.title, shared) if line]
            rows = ([column.cell(row) for column in kept] for row in part.rows)
            found.append(html_table(rows, [column.title for column in kept]))
    return "".join(found)
