"""Reading exports of Nsight Systems: `nsys export --type sqlite` or `--type jsonlines`, one profile a GPU.

Tables and their columns are those of NVIDIA's export documentation (Nsight Systems, SQLite Export Schema
Reference; JSON and Text Format Description). Tables are absent where nothing of their kind was recorded, and
columns come and go with versions: only those named here are read.
"""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from zlib import error as ZlibError  # noqa: N812 - the module has no other name for it

import msgspec

from rapid_des.errors import TraceError
from rapid_des.inputs import check_input, open_input
from rapid_des.profiles.columns import COPY, FILL, KERNEL, EventColumns
from rapid_des.profiles.events import GZIP, PROFILE, Profile

_RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
_TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": KERNEL,
    "CUPTI_ACTIVITY_KIND_MEMCPY": COPY,
    "CUPTI_ACTIVITY_KIND_MEMSET": FILL,
}
_NAMES = {COPY: "Memcpy", FILL: "Memset"}
_DIRECTIONS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
"""The names of copies by CUPTI's `copyKind`."""
_NEEDED = ("start", "end", "deviceId", "streamId")
_PROCESS = ~0xFFFFFF
"""The bits of a global thread id that are its process: the last 24 are the thread's."""
_LONGEST_LINE = 1 << 26
_LONGEST_TEXT = 1 << 24
"""Bytes of a row or text of a database, at most."""


class _Gpus:
    """The columns of each GPU of each process; calls and ranges of a process belong to all of its GPUs."""

    def __init__(self, path: Path) -> None:
        self.path, self._of = path, dict[tuple[int, int], EventColumns]()

    def at(self, process: int, device: int) -> EventColumns:
        """Return the columns of a GPU."""
        return self._of.setdefault((process & _PROCESS, device), EventColumns(self.path))

    def all_of(self, process: int) -> Iterator[EventColumns]:
        """Yield the columns of a process's GPUs."""
        return (columns for (owner, _), columns in self._of.items() if owner == process & _PROCESS)

    def profiles(self, devices: Mapping[int, str]) -> Sequence[Profile]:
        """Return the profile of each GPU, by the process and the number of the GPU."""
        if not self._of:
            raise TraceError(f"{self.path}: has no kernels; nsys profile needs --trace cuda")
        for rank, ((_, device), columns) in enumerate(sorted(self._of.items())):
            columns.device = devices.get(device, "")
            columns.rank = rank if len(self._of) > 1 else None
        return [columns.profile() for _, columns in sorted(self._of.items())]


def read_sqlite(path: Path) -> Sequence[Profile]:
    """Read an SQLite export."""
    check_input(path, PROFILE)
    gpus = _Gpus(path)
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_TEXT)
            return gpus.profiles(_read_tables(database, gpus))
    except sqlite3.Error as problem:
        raise TraceError(f"{path}: is no export of Nsight Systems: {problem}") from None


def _read_tables(database: sqlite3.Connection, gpus: _Gpus) -> dict[int, str]:
    """Read the tables that are there; return the GPUs' names."""
    names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    tables = {name for (name,) in names}
    texts = dict(database.execute("SELECT id, value FROM StringIds")) if "StringIds" in tables else {}
    for table, kind in _TABLES.items():
        if table in tables:
            _read_events(database, table, kind, (gpus, texts))
    if _RUNTIME in tables:
        for row in _rows(database, _RUNTIME, ("start", "end", "nameId"), ("correlationId", "globalTid")):
            start, end, name, correlation, thread = row
            _add_call(gpus, _text(texts, name), (start, end), (correlation, thread))
    if "NVTX_EVENTS" in tables:
        for row in _rows(database, "NVTX_EVENTS", ("start", "end"), ("text", "textId", "globalTid")):
            start, end, text, number, thread = row
            _add_mark(gpus, text or _text(texts, number), (start, end), thread)
    if "TARGET_INFO_GPU" in tables:
        return {n: str(name) for n, name in _rows(database, "TARGET_INFO_GPU", ("id", "name"), ())}
    return {}


def _read_events(
    database: sqlite3.Connection, table: str, kind: str, into: tuple[_Gpus, Mapping[int, str]]
) -> None:
    gpus, texts = into
    others = ("correlationId", "globalPid", "demangledName", "shortName", "mangledName", "copyKind")
    for row in _rows(database, table, _NEEDED, others):
        start, end, device, stream, correlation, process, *names, copied = row
        name = next(filter(None, (_text(texts, each) for each in names)), "") or _copy_name(kind, copied)
        _add_event(gpus, (name, kind), (start, end), (device, stream, correlation, process))


def _copy_name(kind: str, copied: object) -> str:
    direction = _DIRECTIONS.get(copied, "") if isinstance(copied, int) else ""
    return f"{_NAMES.get(kind, 'kernel')} {direction}".strip()


def _rows(
    database: sqlite3.Connection, table: str, needed: Sequence[str], others: Sequence[str]
) -> Iterator[tuple[Any, ...]]:
    """Yield the named columns of a table; those of `others` that it lacks are None."""
    there = {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
    if missing := [name for name in needed if name not in there]:
        raise sqlite3.Error(f"{table} has no column {missing[0]}")
    chosen = ", ".join(f'"{name}"' if name in there else "NULL" for name in (*needed, *others))
    yield from database.execute(f"SELECT {chosen} FROM {table}")  # noqa: S608 - names of this module


def _text(texts: Mapping[int, str], number: object) -> str:
    return str(texts.get(number, "")) if isinstance(number, int) else ""


def _add_event(
    gpus: _Gpus, what: tuple[str, str], span: tuple[object, object], keys: tuple[object, ...]
) -> None:
    device, stream, correlation, process = (_whole_number(key) for key in keys)
    columns, (start, end) = gpus.at(max(process, 0), device), map(_whole_number, span)
    columns.check(what[0], start, end)
    columns.add_event(what, stream, (start, end), (correlation, -1))


def _add_call(gpus: _Gpus, name: str, span: tuple[object, object], keys: tuple[object, object]) -> None:
    (start, end), (correlation, thread) = map(_whole_number, span), map(_whole_number, keys)
    for columns in gpus.all_of(max(thread, 0)):
        columns.check(name, start, end)
        columns.add_call(name, correlation, start, end)


def _add_mark(gpus: _Gpus, text: object, span: tuple[object, object], thread: object) -> None:
    start, end = map(_whole_number, span)
    if end > start:  # moments have no end
        for columns in gpus.all_of(max(_whole_number(thread), 0)):
            columns.add_mark(str(text), start, end)


def _whole_number(value: object) -> int:
    """Return a whole number, which JSON lines hold as text too; -1 for anything else."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        value = int(value)
    return value if isinstance(value, int) and 0 <= value < 2**62 else -1


def read_lines(path: Path) -> Sequence[Profile]:
    """Read JSON lines: an event a line, and the texts that events name by number behind all of them."""
    gpus, texts = _Gpus(path), dict[int, str]()
    for line in _lines(path):  # NOTE: read three times, for what others need may stand behind them
        _add_texts(texts, line)
    for line in _lines(path):
        if isinstance(event := line.get("CudaEvent"), dict):
            _add_cuda_event(gpus, texts, event)
    for line in _lines(path):
        _add_host_event(gpus, texts, line)
    return gpus.profiles({})


def _add_texts(texts: dict[int, str], line: Mapping[str, Any]) -> None:
    match line:
        case {"data": list(values)}:
            texts |= {number: str(value) for number, value in enumerate(values)}
        case {"type": "String", "id": number, "value": value}:
            texts[_whole_number(number)] = str(value)


def _add_host_event(gpus: _Gpus, texts: Mapping[int, str], line: Mapping[str, Any]) -> None:
    match line:
        case {"TraceProcessEvent": {"startNs": start, "endNs": end, "name": name, **others}}:
            keys = others.get("correlationId"), others.get("globalTid")
            _add_call(gpus, _text(texts, _whole_number(name)), (start, end), keys)
        case {"NvtxEvent": {"Timestamp": start, "EndTimestamp": end, **others}}:
            text = others.get("Text") or _text(texts, _whole_number(others.get("TextId")))
            _add_mark(gpus, text, (start, end), others.get("GlobalTid"))


def _add_cuda_event(gpus: _Gpus, texts: Mapping[int, str], event: Mapping[str, Any]) -> None:
    part = next((part for part in _PARTS if isinstance(event.get(part), dict)), "")
    if not part:  # synchronisations and the like
        return
    said = {name: _whole_number(value) for name, value in event[part].items()}
    name = _text(texts, said.get("demangledName", said.get("shortName")))
    keys = tuple(event.get(key) for key in ("deviceId", "streamId", "correlationId", "globalPid"))
    span = event.get("startNs"), event.get("endNs")
    if None in span:
        raise TraceError(f"{gpus.path}: event {name[:80]!r}: has no startNs or no endNs")
    kind = _PARTS[part]
    _add_event(gpus, (name or _copy_name(kind, said.get("copyKind")), kind), span, keys)


_PARTS = {"kernel": KERNEL, "memcpy": COPY, "memset": FILL}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the mappings of a file, one a line."""
    decoder = msgspec.json.Decoder()
    with open_input(path, PROFILE) as plain:
        packed = plain.read(2) == GZIP
        plain.seek(0)
        number = 0
        try:
            with gzip.open(plain) if packed else plain as file:
                while text := file.readline(_LONGEST_LINE):
                    number += 1
                    line = decoder.decode(text) if text.strip() else {}
                    if isinstance(line, dict):
                        yield line
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise TraceError(f"{path}: line {number}: is no JSON: {problem}") from None
        except (EOFError, OSError, ZlibError) as problem:
            raise TraceError(f"{path}: the gzip file is damaged or cut off ({problem})") from None
