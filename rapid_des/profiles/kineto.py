"""Reading a trace of PyTorch's profiler: Kineto JSON, plain or gzip, of CUDA or ROCm.

A large file is decoded piece by piece, each up to the end of an event, so that memory does not grow with it.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any, NoReturn
from zlib import error as ZlibError  # noqa: N812 - the module has no other name for it

import msgspec
from msgspec import Struct

from rapid_des.errors import TraceError
from rapid_des.inputs import open_input
from rapid_des.profiles.columns import COPY, FILL, KERNEL, EventColumns
from rapid_des.profiles.events import GZIP, PROFILE, Collective, Profile
from rapid_des.profiles.host_traces import PRODUCTS, Shapes, linked

NS_PER_US = 1000
_PIECE = 1 << 23
_MOST_PIECES = 8
"""Pieces of a file that is decoded whole, at most."""
_MOST_US = (1 << 62) / NS_PER_US
_ON_DEVICE = {"kernel": KERNEL, "gpu_memcpy": COPY, "memcpy": COPY, "gpu_memset": FILL, "memset": FILL}
"""Categories of device events; older profilers wrote them with a capital."""
_LAUNCHES = {"cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "hip_driver"}
_COMMUNICATES = "record_param_comms"
"""The operator whose arguments say what a collective is, of profilers that do not say so of the kernel."""
_BEGIN = re.compile(rb'"traceEvents"\s*:\s*\[')
_EVENT_ENDS = re.compile(rb"\}\s*,")
_TRIES = 64
"""How many ends of mappings are tried as the end of an event."""
_BYTES = {
    "float": 4, "float32": 4, "int": 4, "int32": 4, "bfloat16": 2, "half": 2, "float16": 2, "double": 8,
    "float64": 8, "long": 8, "int64": 8, "byte": 1, "uint8": 1, "int8": 1, "char": 1, "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
"""Bytes of an element, by the name of its number format in lower case."""
_EXPECTED = re.compile(r"`(\w+)[^`]*`")
_KINDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "a mapping",
    "array": "a list",
    "null": "nothing",
}


class _Arguments(Struct, frozen=True, gc=False):
    """What this module reads of an event's arguments; profilers of several years differ in their types."""

    stream: Any = None
    correlation: Any = None
    external: Any = msgspec.field(default=None, name="External id")
    collective: Any = msgspec.field(default=None, name="Collective name")
    group_size: Any = msgspec.field(default=None, name="Group size")
    elements: Any = msgspec.field(default=None, name="In msg nelems")
    dtype: Any = None
    group: Any = msgspec.field(default=None, name="Process Group Name")
    ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    shapes: Any = msgspec.field(default=None, name="Input Dims")
    types: Any = msgspec.field(default=None, name="Input type")


_NONE = _Arguments()


class _Event(Struct, frozen=True, gc=False):
    """An event of the trace. Times are in microseconds."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    ts: float = 0.0
    dur: float | None = None
    args: _Arguments | None = None


class _Ranks(Struct, frozen=True):
    rank: int | None = None


class _Device(Struct, frozen=True):
    name: str = ""


class _File(Struct, frozen=True):
    events: list[_Event] = msgspec.field(name="traceEvents")
    ranks: _Ranks | None = msgspec.field(default=None, name="distributedInfo")
    devices: list[_Device] = msgspec.field(default_factory=list, name="deviceProperties")


def read_kineto(path: Path, host: Shapes | None = None) -> Profile:
    """Read a trace of PyTorch's profiler; `TraceError` names the file and what is wrong.

    `host` are the shapes that the host's trace of the same run says.
    """
    columns = EventColumns(path)
    for found in _files(path):
        for event in found.events:
            _add(columns, event)
        found.events.clear()  # before the next part is decoded
        if found.ranks:
            columns.rank = found.ranks.rank
        columns.device = columns.device or next((device.name for device in found.devices if device.name), "")
    return columns.profile(None if host is None else linked(columns.unshaped(), host, str(path)))


def _add(columns: EventColumns, event: _Event) -> None:
    category = (event.cat or "").lower()
    kind = _ON_DEVICE.get(category)
    if event.ph != "X":
        if kind is not None and event.ph in ("B", "E"):
            raise TraceError(f"{columns.path}: event {event.name[:80]!r}: ph {event.ph}; allowed on a GPU: X")
        return
    span = _span(event, columns.path)
    columns.check(event.name, *span)
    if kind is not None:
        _add_on_device(columns, event, kind, span)
    elif category in _LAUNCHES:
        columns.add_call(event.name, _number((event.args or _NONE).correlation), *span)
    elif category == "cpu_op":
        _add_operator(columns, event, span[0])
    elif not category.startswith("gpu"):
        columns.add_mark(event.name, *span)


def _add_on_device(columns: EventColumns, event: _Event, kind: str, span: tuple[int, int]) -> None:
    if event.dur is None:
        raise TraceError(f"{columns.path}: event {event.name[:80]!r}: has no end (dur)")
    said = event.args or _NONE
    keys = _number(said.correlation), _number(said.external)
    collective = _collective(said) if said.collective else None
    columns.add_event((event.name, kind), _number(said.stream), span, keys, collective)


def _add_operator(columns: EventColumns, event: _Event, start: int) -> None:
    said = event.args or _NONE
    if (number := _number(said.external)) < 0:
        return
    shapes = f"{said.shapes} {said.types}" if event.name in PRODUCTS and said.shapes else ""
    collective = _collective(said) if said.collective and event.name == _COMMUNICATES else None
    columns.add_operator(number, event.name, start, shapes[:400], collective)


def _collective(said: _Arguments) -> Collective:
    elements, width = _number(said.elements), _BYTES.get(str(said.dtype).lower())
    size = elements * width if width and elements >= 0 else None
    ranks = _number(said.group_size)
    group, members = str(said.group or "")[:80], str(said.ranks or "")
    return Collective(str(said.collective)[:80], None if ranks < 0 else ranks, size, group, members)


def _span(event: _Event, path: Path) -> tuple[int, int]:
    """Return when an event started and ended, in nanoseconds."""
    duration = event.dur or 0.0
    if not -_MOST_US <= event.ts <= _MOST_US:  # nor is NaN
        raise TraceError(f"{path}: event {event.name[:80]!r}: ts {event.ts} is no time in microseconds")
    if not 0 <= duration <= _MOST_US:
        raise TraceError(f"{path}: event {event.name[:80]!r}: dur {duration} us; allowed: 0 or more")
    start = round(event.ts * NS_PER_US)
    return start, start + round(duration * NS_PER_US)


def _number(value: object) -> int:
    """Return a whole number, or -1 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and -1 < value < 2**63 else -1


def _files(path: Path) -> Iterator[_File]:
    """Yield the parts of a file as if each were one."""
    with open_input(path, PROFILE) as plain:
        packed = plain.read(2) == GZIP
        plain.seek(0)
        with gzip.open(plain) if packed else plain as file:
            yield from _decoded_parts(path, file)  # type: ignore[arg-type]


def _decoded_parts(path: Path, file: IO[bytes]) -> Iterator[_File]:
    text = _read(path, file)
    begin = _BEGIN.search(text)
    if len(text) < _PIECE or (begin is None and not text.lstrip().startswith(b"[")):
        text += b"" if len(text) < _PIECE else _rest(path, file)
        yield _whole(path, text)
        return
    start = begin.end() if begin else text.index(b"[") + 1
    opening, text = text[:start], text[start:]
    while more := _read(path, file):
        events, text = _events(path, text)
        yield _File(events)
        text += more
        if len(text) > 4 * _PIECE:
            raise TraceError(f"{path}: has an event of more than {_PIECE >> 18} MiB, or is no JSON")
    yield _whole(path, opening + text)  # the last events, and the keys before and behind them


def _events(path: Path, text: bytes) -> tuple[list[_Event], bytes]:
    """Return the events that end within a text, and what is left of it."""
    ends = [found.end() for found in _EVENT_ENDS.finditer(text, max(0, len(text) - (1 << 20)))]
    for end in reversed(ends[-_TRIES:]):
        try:
            events = msgspec.json.decode(
                b"[" + text[:end].rstrip()[:-1] + b"]", type=list[_Event], strict=False
            )
        except msgspec.ValidationError as problem:
            _refuse(path, problem)
        except msgspec.DecodeError:  # the end of a mapping inside an event
            continue
        return events, text[end:]
    return [], text


def _read(path: Path, file: IO[bytes]) -> bytes:
    """Return the next piece of a file; empty at its end."""
    pieces, left = list[bytes](), _PIECE
    try:
        while left and (piece := file.read(left)):
            pieces.append(piece)
            left -= len(piece)
    except (EOFError, OSError, ZlibError) as problem:
        raise TraceError(f"{path}: the gzip file is damaged or cut off ({problem})") from None
    return b"".join(pieces)


def _rest(path: Path, file: IO[bytes]) -> bytes:
    """Return what follows the first piece, if a file is none of those that are decoded piece by piece."""
    pieces = list(islice(iter(lambda: _read(path, file), b""), _MOST_PIECES))
    if len(pieces) == _MOST_PIECES:
        raise TraceError(
            f"{path}: is no profile of PyTorch: no 'traceEvents' in its first {_PIECE >> 20} MiB"
        )
    return b"".join(pieces)


def _whole(path: Path, text: bytes) -> _File:
    try:
        found = msgspec.json.decode(text, type=_File | list[_Event], strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        _refuse(path, problem)
    return _File(found) if isinstance(found, list) else found


def _refuse(path: Path, problem: Exception) -> NoReturn:
    if isinstance(problem, msgspec.ValidationError):
        raise TraceError(f"{path}: is no profile of PyTorch: {_in_words(str(problem))}") from None
    if isinstance(problem, UnicodeDecodeError) or "UTF-8" in str(problem):  # msgspec from 0.23 on
        raise TraceError(f"{path}: is no JSON: a text in it is not UTF-8") from None
    if isinstance(problem, RecursionError):
        raise TraceError(f"{path}: is JSON nested deeper than a profile") from None
    what = str(problem).removeprefix("JSON is malformed: ")
    raise TraceError(f"{path}: is no JSON: {what}") from None


def _in_words(problem: str) -> str:
    """Return what msgspec says of a file in the field's words."""
    if "missing required field" in problem:
        return "it has no 'traceEvents'"
    what, _, place = problem.partition(" - at ")
    place = place.strip("`").removeprefix("$.") or "the file"
    kinds = [_KINDS.get(kind, "something else") for kind in _EXPECTED.findall(what)]
    return f"{place}: {kinds[1]}; allowed: {kinds[0]}" if len(kinds) == 2 else f"{place}: {what}"
