"""Reading a PyTorch profiler trace (Kineto JSON, plain or gzip): what a GPU did, and when it was launched."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from zlib import decompressobj
from zlib import error as ZlibError  # noqa: N812 - the module has no other name for it

import msgspec
import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int32s, Int64s
from rapid_des.errors import TraceError
from rapid_des.inputs import Kind, open_input, read_input, unpack_input
from rapid_des.profiles.kernel_classes import class_of

PROFILE = Kind("a profile", 1 << 31)
NS_PER_US = 1000
_HEAD = 1 << 16
_FIRST_KEYS = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"')
_GZIP = b"\x1f\x8b"
_MOST_NS = 1 << 62
_ON_DEVICE = {"kernel": "", "gpu_memcpy": "copy", "memcpy": "copy", "gpu_memset": "fill", "memset": "fill"}
"""Categories of device events and their class if it is known; older profilers wrote them with a capital."""
_LAUNCHES = {"cuda_runtime", "cuda_driver", "runtime", "hip_runtime"}
_WAITING = ("Synchronize", "cudaMemcpy", "hipMemcpy")
"""The ends of names of calls that return once the GPU is done, as cudaStreamSynchronize."""
_STEP = "ProfilerStep"
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


class Collective(NamedTuple):
    """What an NCCL kernel's arguments say of its collective."""

    name: str
    group_size: int | None


class DeviceEvents(Struct, frozen=True):
    """Kernels, copies and fills of one GPU by their start; times in nanoseconds of the profiler's clock."""

    names: Sequence[str]
    classes: Sequence[str]
    """[name]: the class of the kernel; empty if it is not known."""
    name: Int32s
    """[event]: the row of `names`."""
    stream: Int64s
    start: Int64s
    end: Int64s
    called: Int64s
    """[event]: when the host's launching call began; -1 where the trace has no such call."""
    launched: Int64s
    """[event]: when that call ended, or -1."""
    collectives: Mapping[int, Collective]
    """What events were collectives of which arguments are known, by event."""

    def __len__(self) -> int:
        return len(self.start)


class HostStep(NamedTuple):
    """A step as the training loop marked it, in nanoseconds."""

    name: str
    start: int
    end: int


class Profile(Struct, frozen=True):
    """The events of one rank's profile."""

    path: Path
    rank: int | None
    device: str
    events: DeviceEvents
    steps: Sequence[HostStep]
    """The steps that `torch.profiler` marked (`ProfilerStep#7`), in order; none if the loop marked none."""
    waits: Int64s
    """[call]: when calls of the host that wait for the GPU ended."""
    span: tuple[int, int]
    """The first and the last nanosecond of any event."""


def read_profile(path: Path) -> Profile:
    """Read a trace of PyTorch's profiler; `TraceError` names the file and what is wrong."""
    found = _decoded(path)
    events = [event for event in found.events if event.ph == "X"]
    if not events:
        raise TraceError(f"{path}: has no events with a duration (ph X); a profile of PyTorch has some")
    times = [_checked(event, path) for event in events]
    return Profile(
        path=path,
        rank=found.ranks.rank if found.ranks else None,
        device=next((device.name for device in found.devices if device.name), ""),
        events=_device_events(events, times),
        steps=_steps(events, times),
        waits=_waits(events, times),
        span=(min(start for start, _ in times), max(end for _, end in times)),
    )


def is_profile(path: Path) -> bool:
    """Return whether a file begins as PyTorch's profiles do, plain or packed."""
    if not path.is_file():
        return False
    with open_input(path, PROFILE) as file:
        head = file.read(_HEAD)
    with suppress(ZlibError):
        head = decompressobj(31).decompress(head, _HEAD) if head.startswith(_GZIP) else head
    return any(key in head for key in _FIRST_KEYS)


def _decoded(path: Path) -> _File:
    content = _content(path)
    try:
        found = msgspec.json.decode(content, type=_File | list[_Event], strict=False)
    except msgspec.ValidationError as problem:
        raise TraceError(f"{path}: is no profile of PyTorch: {_in_words(str(problem))}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path}: is no JSON: a text in it is not UTF-8") from None
    except msgspec.DecodeError as problem:
        what = str(problem).removeprefix("JSON is malformed: ")
        raise TraceError(f"{path}: is no JSON: {what}") from None
    except RecursionError:
        raise TraceError(f"{path}: is JSON nested deeper than a profile") from None
    return _File(found) if isinstance(found, list) else found


def _in_words(problem: str) -> str:
    """Return what msgspec says of a file in the field's words."""
    if "missing required field" in problem:
        return "it has no 'traceEvents'"
    what, _, place = problem.partition(" - at ")
    place = place.strip("`").removeprefix("$.") or "the file"
    kinds = [_KINDS.get(kind, "something else") for kind in _EXPECTED.findall(what)]
    return f"{place}: {kinds[1]}; allowed: {kinds[0]}" if len(kinds) == 2 else f"{place}: {what}"


def _content(path: Path) -> bytes:
    content = read_input(path, PROFILE)
    if not content.startswith(_GZIP):
        return content
    try:
        return unpack_input(path, PROFILE)
    except (EOFError, OSError, ZlibError) as problem:
        raise TraceError(f"{path}: the gzip file is damaged or cut off ({problem})") from None


def _checked(event: _Event, path: Path) -> tuple[int, int]:
    """Return when an event started and ended, in nanoseconds."""
    duration = event.dur or 0.0
    if not (math.isfinite(event.ts) and math.isfinite(duration)) or abs(event.ts) * NS_PER_US > _MOST_NS:
        raise TraceError(f"{path}: event {event.name[:80]!r}: ts {event.ts} is no time in microseconds")
    if duration < 0 or duration * NS_PER_US > _MOST_NS:
        raise TraceError(f"{path}: event {event.name[:80]!r}: dur {duration} us; allowed: 0 or more")
    start = round(event.ts * NS_PER_US)
    return start, start + round(duration * NS_PER_US)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None


def _device_events(events: Sequence[_Event], times: Sequence[tuple[int, int]]) -> DeviceEvents:
    launched: dict[int, tuple[int, int]] = {}
    operators: dict[int, str] = {}
    on_device: list[int] = []
    for number, event in enumerate(events):
        category = (event.cat or "").lower()
        if category in _ON_DEVICE:
            on_device.append(number)
        elif event.args is not None:
            if category in _LAUNCHES and (key := _number(event.args.correlation)) is not None:
                launched[key] = times[number]
            elif category == "cpu_op" and (key := _number(event.args.external)) is not None:
                operators[key] = event.name
    on_device.sort(key=lambda number: times[number])
    rows: dict[tuple[str, str], int] = {}
    columns = [_row(events[number], rows, operators, launched) for number in on_device]
    table = np.array(columns, np.int64).reshape(-1, 4)
    span = np.array([times[number] for number in on_device], np.int64).reshape(-1, 2)
    return DeviceEvents(
        names=[name for name, _ in rows],
        classes=[kind for _, kind in rows],
        name=table[:, 0].astype(np.int32),
        stream=table[:, 1],
        start=span[:, 0],
        end=span[:, 1],
        called=table[:, 2],
        launched=table[:, 3],
        collectives=dict(_collectives(events, on_device)),
    )


def _row(
    event: _Event,
    rows: dict[tuple[str, str], int],
    operators: Mapping[int, str],
    launched: Mapping[int, tuple[int, int]],
) -> tuple[int, int, int, int]:
    """Return the row of a device event's name, its stream, and when its launching call began and ended."""
    arguments = event.args or _Arguments()
    operator = operators.get(_number(arguments.external) or -1, "")
    kind = _ON_DEVICE[(event.cat or "").lower()]
    if not kind:
        kind = "communication" if arguments.collective else class_of(event.name, operator)
    name = rows.setdefault((event.name, kind), len(rows))
    stream = _number(arguments.stream)
    when = launched.get(_number(arguments.correlation) or -1, (-1, -1))
    return name, -1 if stream is None else stream, *when


def _collectives(events: Sequence[_Event], on_device: Sequence[int]) -> Iterator[tuple[int, Collective]]:
    for place, number in enumerate(on_device):
        said = events[number].args
        if said is not None and said.collective:
            yield place, Collective(str(said.collective), _number(said.group_size))


def _waits(events: Sequence[_Event], times: Sequence[tuple[int, int]]) -> Int64s:
    ends = [
        end
        for event, (_, end) in zip(events, times, strict=True)
        if (event.cat or "").lower() in _LAUNCHES and event.name.endswith(_WAITING)
    ]
    return np.array(ends, np.int64)


def _steps(events: Sequence[_Event], times: Sequence[tuple[int, int]]) -> Sequence[HostStep]:
    """Return the marked steps on the host, each once."""
    marks = {
        HostStep(event.name, *span)
        for event, span in zip(events, times, strict=True)
        if event.name.startswith(_STEP) and not (event.cat or "").startswith("gpu")
    }
    return sorted(marks, key=lambda step: step.start)
