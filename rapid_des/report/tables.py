"""A report as parts (sentences, facts by label, tables), which `text` and `html` render.

The rows of a table are those that `--json` prints.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias

from msgspec import Struct

from rapid_des.inputs import html_table, html_text
from rapid_des.units import PS_PER_S, Size, time_text

_GIB = 2**30
_HEADINGS = {"id": "point", "tokens_per_s": "tokens/s", "tokens_per_gpu_s": "tokens/s/GPU"}
_HEADINGS |= {"tokens_per_day": "tokens/day"}
_HEADINGS |= {"mfu": "MFU", "gpus": "GPUs"}
_UNITS = ("_s", "_ps", "_bytes", "_j")


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
    ('1.5 ms', '50.0%', '1 GiB', '-')
    """
    if value is None or isinstance(value, str):
        return "-" if value is None else value
    if key in ("mfu", "goodput"):
        return f"{value:.1%}"
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


def counted(number: int, noun: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "file"), counted(2000, "file")
    ('1 file', '2,000 files')
    """
    return f"{number:,} {noun}" + "s" * (number != 1)


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


Plain: TypeAlias = Mapping[str, Any]
Show: TypeAlias = str | Callable[[Any], str]
"""The format of a column's values, or the function that returns one as text."""
_LABEL = 16
"""The least width of a fact's label in characters, by which facts of different reports look alike."""
_GAP = "  "
_LONGEST_HTML = 1 << 20
"""The number of characters of HTML after which no other part is added."""


class Column(Struct, frozen=True):
    """A column of a table."""

    key: str
    """The key of its values in the rows."""
    title: str | None = None
    """The heading; None: the key in words."""
    show: Show | None = None
    """The format of its values; None: `shown` with the key."""
    width: int = 0
    """The least width in characters."""
    side: str = ""
    """The side that cells stand on, `<` or `>`; empty: texts stand left, numbers right."""

    @property
    def heading(self) -> str:
        """The heading as printed."""
        return heading(self.key) if self.title is None else self.title

    def cell(self, row: Plain) -> str:
        """Return the text of this column in a row; empty where the row has no such key."""
        value = row.get(self.key, "")
        if value is None or isinstance(value, str):
            return "-" if value is None else value
        if self.show is None:
            return shown(self.key, value)
        return self.show(value) if callable(self.show) else format(value, self.show)


class Table(Struct, frozen=True):
    """A table; without rows nothing is printed of it."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Plain]
    shared: bool = False
    """Whether columns that are equal in all rows are stated once above the others."""


Part: TypeAlias = str | Mapping[str, str] | Table


def columns(*keys: str, **others: str | tuple[str | None, Show]) -> tuple[Column, ...]:
    """Return columns of keys, then of keys with their headings, or with their headings and formats."""
    named = (Column(key, *((each,) if isinstance(each, str) else each)) for key, each in others.items())
    return (*map(Column, keys), *named)


def share_table(title: str, times: Mapping[str, int], step: int, *, bars: bool = False) -> Table:
    """Return times with their shares of a step."""
    rows = [{"name": name, "time_ps": time, "share": time / max(step, 1)} for name, time in times.items()]
    names = [
        Column("name", "", width=45),
        Column("time_ps", "", time_text, 12),
        Column("share", "", ".1%", 6),
    ]
    bar = Column("share", "", lambda share: "█" * round(30 * share), side="<")
    return Table(title, [*names, bar] if bars else names, rows)


class Report:
    """A result that prints the report of its command; a notebook shows the report as HTML."""

    __slots__ = ()

    def report(self) -> Iterable[Part]:
        """Return the parts of the report."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(text(self.report()))

    def __repr__(self) -> str:
        first = next(text(self.report()), "")
        return f"<{type(self).__name__}: {first}>"

    def _repr_html_(self) -> str:
        """Return the report for a notebook."""
        return html(self.report())


def split_shared(table: Table) -> tuple[str, list[Column]]:
    """Return what all rows share as text, and the other columns."""
    if not table.shared or len(table.rows) < 2:
        return "", list(table.columns)
    cells = {column: {column.cell(row) for row in table.rows} for column in table.columns}
    equal = {column: each.pop() for column, each in cells.items() if len(each) == 1}
    stated = ", ".join(f"{column.heading} {cell}" for column, cell in equal.items() if cell not in ("", "-"))
    return stated and f"in all rows: {stated}", [column for column in table.columns if column not in equal]


def text(parts: Iterable[Part], width: int | None = None) -> Iterator[str]:
    """Yield the lines of a report: the first part stands at the margin, the others are indented.

    With a `width`, that of a terminal, sentences are wrapped and cells folded; without, nothing is.
    """
    previous: Part | None = None
    for part in parts:
        if isinstance(part, Table) and not part.rows:
            continue
        margin = "" if previous is None else _GAP
        if margin and (isinstance(part, Table) or isinstance(previous, Table)):
            yield ""
        for line in _lines(part, margin, width):
            fits = width is None or len(line) <= width or "\n" in line  # several lines are a file's text
            yield from [line] if fits else textwrap.wrap(line, width or 0, subsequent_indent=2 * _GAP)
        previous = part


def _lines(part: Part, margin: str, width: int | None) -> Iterator[str]:
    if isinstance(part, str):
        yield f"{margin}{part}"
    elif isinstance(part, Table):
        yield from _table_lines(part, margin, width)
    else:
        longest = max([_LABEL, *map(len, part)])
        yield from (f"{margin}{label:<{longest}} {value}" for label, value in part.items())


def _table_lines(table: Table, margin: str, width: int | None) -> Iterator[str]:
    shared, kept = split_shared(table)
    indent = margin + _GAP * bool(table.title)
    yield from (f"{space}{line}" for space, line in ((margin, table.title), (indent, shared)) if line)
    heads = [column.heading for column in kept]
    cells = [heads] * any(heads) + [[column.cell(row) for column in kept] for row in table.rows]
    widths = [max([column.width, *(len(row[place]) for row in cells)]) for place, column in enumerate(kept)]
    sides = [column.side or _side(column.key, table.rows) for column in kept]
    if width is not None and len(indent) + sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        yield from (f"{indent}{line}" for line in _folded(cells, sides, width - len(indent)))
        return
    for row in cells:
        padded = (f"{cell:{side}{wide}}" for cell, side, wide in zip(row, sides, widths, strict=True))
        yield f"{indent}{_GAP.join(padded)}".rstrip()


def _side(key: str, rows: Sequence[Plain]) -> str:
    return "<" if any(isinstance(row.get(key), str | list | tuple) for row in rows) else ">"


def _folded(cells: Sequence[Sequence[str]], sides: Sequence[str], width: int) -> Iterator[str]:
    """Yield the lines of a table that is too wide for the terminal, its cells folded by rich."""
    from rich.console import Console
    from rich.table import Table as Grid

    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for side in sides:
        grid.add_column(justify="left" if side == "<" else "right", overflow="fold")
    for row in cells:
        grid.add_row(*row)
    console = Console(width=width, color_system=None, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(grid)
    yield from (line.rstrip() for line in captured.get().splitlines())


def html(parts: Iterable[Part]) -> str:
    """Return a report as HTML for a notebook, escaped and bounded in size."""
    found = list[str]()
    for part in parts:
        if sum(map(len, found)) > _LONGEST_HTML:
            return "".join([*found, html_text("…")])
        if isinstance(part, str):
            found.append(html_text(part.strip()))
        elif not isinstance(part, Table):
            found.append(html_table(list(part.items())))
        elif part.rows:
            shared, kept = split_shared(part)
            found += [html_text(line) for line in (part.title, shared) if line]
            rows = [[column.cell(row) for column in kept] for row in part.rows]
            found.append(html_table(rows, [column.heading for column in kept]))
    return "".join(found)


def joules_text(value: float) -> str:
    """Return an energy with three or four digits.

    >>> joules_text(9123.0), joules_text(0.25)
    ('9.123 kJ', '0.25 J')
    """
    for size, unit in ((10**6, "MJ"), (10**3, "kJ")):
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value:.4g} J"
