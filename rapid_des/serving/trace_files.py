"""Requests of CSV files: columns by this package's names, or by those of two public traces.

| column | Azure LLM inference traces | BurstGPT |
|---|---|---|
| `arrival_s` | `TIMESTAMP`, a date and a time | `Timestamp`, seconds |
| `prompt_tokens` | `ContextTokens` | `Request tokens` |
| `output_tokens` | `GeneratedTokens` | `Response tokens` |

These are at github.com/Azure/AzurePublicDataset and github.com/HPMLL/BurstGPT. Requests without a token out,
which BurstGPT has where they failed, are left out of public traces.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rapid_des.arrays import Int64s
from rapid_des.errors import ConfigError

_NEEDED = ("arrival_s", "prompt_tokens", "output_tokens")
_PUBLIC = (
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    ("Timestamp", "Request tokens", "Response tokens"),
)
MARKS = {
    "session": "session",
    "adapter": "adapter",
    "user": "user",
    "priority": "priority",
    "prefix_tokens": "prefix",
}
"""Columns that may be there, by the names that requests have for them."""
_LATEST, _MOST = 1e10, 10**9
"""Seconds (since 1970 too), and whatever is counted."""

Row = Mapping[str, str | None]
Read = Callable[[str], float]


def read_trace(file: str) -> dict[str, NDArray[np.float64]]:
    """Return columns of a trace as numbers, a row a request; `ConfigError` names the line."""
    names, rows = _rows(file)
    for stated in _PUBLIC:
        if set(stated) <= set(names):
            answered = [(line, row) for line, row in rows if row[stated[2]] != "0"]
            public = dict(zip(_NEEDED, stated, strict=True))
            return {name: _column(answered, theirs, name, file) for name, theirs in public.items()}
    columns = (*_NEEDED, *(name for name in MARKS if name in names))
    return {name: _column(rows, name, name, file) for name in columns}


def read_lengths(file: str, column: str) -> Int64s:
    """Return a column of lengths."""
    return _column(_rows(file)[1], column, "output_tokens", file).astype(np.int64)


def _rows(file: str) -> tuple[Sequence[str], list[tuple[int, Row]]]:
    """Return the names of columns, and rows with their lines."""
    try:
        with Path(file).open(newline="", encoding="utf-8-sig") as text:
            reader = csv.DictReader(text, skipinitialspace=True)
            names = list(reader.fieldnames or ())
            rows: list[tuple[int, Row]] = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"can not be read: {error}", file=file) from None
    return names, rows


def _column(rows: Sequence[tuple[int, Row]], column: str, meaning: str, file: str) -> NDArray[np.float64]:
    """Return a column, as what it means is read."""
    if not rows or column not in rows[0][1]:
        raise ConfigError(f"needs the column {column} and a row", file=file)
    read, allowed = _READERS.get(meaning, (_whole, f"a whole number to {_MOST:.0e}"))
    values = np.zeros(len(rows))
    for place, (line, row) in enumerate(rows):
        text = row[column]
        try:
            values[place] = read((text or "").strip())
        except ValueError:
            problem = "nothing stands there" if not text else f"{text!r} is not {allowed}"
            raise ConfigError(problem, file=file, key=f"line {line}: {column}") from None
    return values


def _time(text: str) -> float:
    """Return seconds: a number, or a date and a time."""
    try:
        seconds = float(text)
    except ValueError:
        date = datetime.fromisoformat(text[:26])  # 2023-11-16 18:17:03.9799600 has more digits than it takes
        seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    return _within(seconds, 0, _LATEST)


def _tokens(text: str) -> float:
    return _within(_whole(text), 1, _MOST)


def _whole(text: str) -> float:
    number = float(text)
    if not number.is_integer():
        raise ValueError
    return _within(number, -_MOST, _MOST)


def _within(number: float, least: float, most: float) -> float:
    if not least <= number <= most:
        raise ValueError
    return number


_READERS: Mapping[str, tuple[Read, str]] = {
    "arrival_s": (_time, f"a time: seconds from 0 to {_LATEST:.0e}, or a date and a time"),
    "prompt_tokens": (_tokens, f"a whole number from 1 to {_MOST:.0e}"),
    "output_tokens": (_tokens, f"a whole number from 1 to {_MOST:.0e}"),
    "prefix_tokens": (lambda text: _within(_whole(text), 0, _MOST), f"a whole number from 0 to {_MOST:.0e}"),
}
