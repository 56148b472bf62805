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
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from io import TextIOWrapper
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rapid_des.arrays import Int64s
from rapid_des.errors import ConfigError
from rapid_des.inputs import REQUESTS, open_input

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
    "class": "kind",
    "prefix_tokens": "prefix",
}
"""Optional columns, by the names of the attributes of requests."""
_LATEST, _MOST = 1e10, 10**9
"""Largest time in seconds (also since 1970), and largest count."""

Read = Callable[[str], float]
_MOST_ROWS = 1 << 24
_LONGEST = 1 << 16
"""Longest line, in characters."""


def read_trace(file: str) -> dict[str, NDArray[np.float64]]:
    """Return columns of a trace as numbers, a row a request; `ConfigError` names the line."""
    with _opened(file) as (names, rows):
        for stated in _PUBLIC:
            if set(stated) <= set(names):
                public = dict(zip(_NEEDED, stated, strict=True))
                return _columns(names, rows, public, file, answered=stated[2])
        known = (*_NEEDED, *(name for name in MARKS if name in names))
        table = _columns(names, rows, {name: name for name in known}, file)
    over = np.flatnonzero(table.get("prefix_tokens", np.zeros(1)) > table["prompt_tokens"])
    for request in over[:1].tolist():
        prefix, prompt = (int(table[name][request]) for name in ("prefix_tokens", "prompt_tokens"))
        problem = f"request {request}: {prefix} tokens of a prompt of {prompt}"
        raise ConfigError(problem, file=file, key="prefix_tokens")
    return table


def read_lengths(file: str, column: str) -> Int64s:
    """Return a column of lengths."""
    with _opened(file) as (names, rows):
        return _columns(names, rows, {"output_tokens": column}, file)["output_tokens"].astype(np.int64)


@contextmanager
def _opened(file: str) -> Iterator[tuple[Sequence[str], Iterator[tuple[int, list[str]]]]]:
    """Yield the names of columns, then numbered rows one by one."""
    try:
        with TextIOWrapper(open_input(Path(file), REQUESTS), encoding="utf-8-sig", newline="") as text:
            reader = csv.reader(_lines(text, file), skipinitialspace=True)
            names = next(reader, [])
            yield names, ((reader.line_num, row) for row in reader if row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"cannot be read: {error}", file=file) from None


def _lines(text: TextIOWrapper, file: str) -> Iterator[str]:
    for number in count(1):
        line = text.readline(_LONGEST + 1)
        if len(line) > _LONGEST:
            raise ConfigError(f"longer than {_LONGEST:,} characters", file=file, key=f"line {number}")
        if not line:
            return
        yield line


def _columns(
    names: Sequence[str],
    rows: Iterable[tuple[int, list[str]]],
    columns: Mapping[str, str],
    file: str,
    *,
    answered: str = "",
) -> dict[str, NDArray[np.float64]]:
    """Return columns by what they mean; rows with 0 in the column `answered` are left out."""
    missing = next((column for column in columns.values() if column not in names), None)
    readers = [] if missing else [_Column(names, *each, file) for each in columns.items()]
    place = names.index(answered) if answered else -1
    for line, row in rows:
        if place >= 0 and row[place : place + 1] == ["0"]:
            continue
        if len(row) > len(names):
            problem = f"{len(row)} entries; the columns are {len(names)}"
            raise ConfigError(problem, file=file, key=f"line {line}")
        for reader in readers:
            reader.take(line, row)
        if readers and len(readers[0].values) > _MOST_ROWS:
            raise ConfigError(f"more than {_MOST_ROWS:,} requests", file=file)
    if not readers or not readers[0].values:
        raise ConfigError(f"needs the column {missing or next(iter(columns.values()))} and a row", file=file)
    return {reader.meaning: np.array(reader.values, np.float64) for reader in readers}


class _Column:
    """A column of a file and the conversion of its entries."""

    def __init__(self, names: Sequence[str], meaning: str, column: str, file: str) -> None:
        self.meaning, self._column, self._file = meaning, column, file
        if names.count(column) > 1:
            raise ConfigError(f"the column {column} stands {names.count(column)} times", file=file)
        self._place = names.index(column)
        self._read, self._allowed = _READERS.get(meaning, (_whole, f"a whole number to {_MOST:.0e}"))
        self.values = array("d")

    def take(self, line: int, row: Sequence[str]) -> None:
        """Convert the entry of a row."""
        text = row[self._place] if self._place < len(row) else ""
        try:
            self.values.append(self._read(text.strip()))
        except ValueError:
            shown = f"{text[:60]!r} is not {self._allowed}"
            problem = shown if text else "nothing stands there"
            raise ConfigError(problem, file=self._file, key=f"line {line}: {self._column}") from None


def _time(text: str) -> float:
    """Return seconds: a number, or a date and a time."""
    try:
        seconds = _number(text)
    except ValueError:
        date = datetime.fromisoformat(text)
        seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    return _within(seconds, 0, _LATEST)


def _number(text: str) -> float:
    """Return a number; underscores and digits of other scripts, which `float` takes, are refused."""
    if "_" in text or not text.isascii():
        raise ValueError
    return float(text)


def _tokens(text: str) -> float:
    return _within(_whole(text), 1, _MOST)


def _whole(text: str) -> float:
    number = _number(text)
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
