"""Opens files that others wrote: regular files alone, none larger than files of its kind are.

Every input of the package is opened here, which a test of the source checks. A FIFO would be waited for, a
device such as /dev/zero read for ever, so both are refused before a byte is read. What is shown of a file on
terminals and in notebooks has a bounded size, and nothing in it is obeyed.
"""

from __future__ import annotations

import gzip
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import IO, NamedTuple

from rapid_des.errors import ConfigError

_HIDDEN = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}
_HIDDEN |= {
    code: f"\\u{code:04x}" for code in (0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
}
_MARKUP = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
"""What `html.escape` writes; the module `html` takes a millisecond to import at every start."""
_LONGEST_CELL, _MOST_CELLS, _MOST_ROWS = 200, 64, 100
_LONGEST_TEXT = 1 << 16


def printable(text: str) -> str:
    r"""Return text for a terminal: control characters that a file brought in are spelled, not obeyed.

    >>> printable("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return text.translate(_HIDDEN)


def html_text(text: str, tag: str = "p") -> str:
    """Return text as an HTML element of up to 65,536 characters before they are escaped.

    >>> html_text("a<b")
    '<p>a&lt;b</p>'
    """
    return f"<{tag}>{escaped(text)}</{tag}>"


def html_table(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    """Return an HTML table of up to 100 rows of 64 cells of 200 characters.

    >>> html_table([("1", "<i>")], head=("tp", "name"))
    '<table><thead><tr><th>tp</th><th>name</th></tr></thead><tbody><tr><td>1</td><td>&lt;i&gt;</td></tr></tbody></table>'
    """
    every = list(rows)
    body = "".join(_row(row, "td") for row in every[:_MOST_ROWS])
    if len(every) > _MOST_ROWS:
        body += _row((f"… and {len(every) - _MOST_ROWS:,} more rows",), "td")
    above = f"<thead>{_row(head, 'th')}</thead>" if head else ""
    return f"<table>{above}<tbody>{body}</tbody></table>"


def _row(cells: Sequence[str], tag: str) -> str:
    shown = [*cells[:_MOST_CELLS], "…"] if len(cells) > _MOST_CELLS else cells
    return f"<tr>{''.join(f'<{tag}>{escaped(cell, _LONGEST_CELL)}</{tag}>' for cell in shown)}</tr>"


def escaped(text: str, most: int = _LONGEST_TEXT) -> str:
    """Return text for HTML, inside an element or between the quotes of an attribute.

    >>> escaped('a<"')
    'a&lt;&quot;'
    """
    return printable(text if len(text) <= most else f"{text[:most]}…").translate(_MARKUP)


class Kind(NamedTuple):
    """A kind of input."""

    name: str
    most: int
    """The largest file that is read, in bytes."""


TEXT = Kind("a text file", 1 << 26)
"""The kind of YAML, JSON, TOML, CSV, XML and shell script files."""
REQUESTS = Kind("a table of requests", 1 << 30)
"""The kind of CSV files of requests, which are read row by row."""
TRACE = Kind("a trace", 1 << 32)
LEARNED_FILE = Kind("a file of learned operators", 1 << 26)
PART = Kind("a part of a study's results", 1 << 28)
DATABASE = Kind("a search's database", 1 << 30)

_PIECE = 1 << 20
_ONLY_LOOK = (
    os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
)
"""Flags for `os.open`. With O_NONBLOCK a FIFO that replaces the file after the check opens at once."""


def open_input(path: Path, kind: Kind = TEXT) -> BufferedReader:
    """Open a regular file for reading bytes; `ConfigError` for one that is missing, too large or a device."""
    try:
        _check(path.stat(), path, kind)  # before it is opened, which on a device may have effects
        descriptor = os.open(path, _ONLY_LOOK)
        try:
            _check(os.fstat(descriptor), path, kind)
            return os.fdopen(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise
    except (OSError, ValueError) as error:  # a name that no file can have is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot be read: {reason}", file=str(path)) from None


def check_input(path: Path, kind: Kind) -> None:
    """Raise `ConfigError` if a file that a library is to open is no input of its kind."""
    open_input(path, kind).close()


def read_input(path: Path, kind: Kind = TEXT) -> bytes:
    """Return a whole file; see `open_input`."""
    with open_input(path, kind) as file:
        return _read(file, path, kind, expected=os.fstat(file.fileno()).st_size)


def unpack_input(path: Path, kind: Kind = TEXT) -> bytes:
    """Return the content of a gzip file, up to the limit of its kind; a damaged file is an error."""
    with open_input(path, kind) as file, gzip.open(file) as unpacked:
        return _read(unpacked, path, kind)


def _read(file: IO[bytes] | gzip.GzipFile, path: Path, kind: Kind, expected: int = 0) -> bytes:
    try:
        content = b"".join(_pieces(file, kind.most, expected))
    except gzip.BadGzipFile:
        raise
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", file=str(path)) from None
    if len(content) > kind.most:
        raise _too_large(path, kind)
    return content


def _pieces(file: IO[bytes] | gzip.GzipFile, most: int, expected: int) -> Iterator[bytes]:
    """Yield what a file holds, up to one byte more than `most`.

    `read` takes memory for all that it is asked for: it is asked for the expected size, then for small
    pieces. A file may grow while it is read, files of /proc have no size, that of packed ones is not known.
    """
    asked, left = expected + 1, most + 1
    while left > 0 and (piece := file.read(min(asked, left))):
        yield piece
        left -= len(piece)
        asked = _PIECE


def _check(status: os.stat_result, path: Path, kind: Kind) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError("cannot be read: it is no regular file", file=str(path))
    if status.st_size > kind.most:
        raise _too_large(path, kind)


def _too_large(path: Path, kind: Kind) -> ConfigError:
    return ConfigError(f"larger than {kind.most >> 20} MiB, which {kind.name} is not", file=str(path))
