"""Which reader a profile needs: its first bytes say what wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from zlib import decompressobj
from zlib import error as ZlibError  # noqa: N812 - the module has no other name for it

from rapid_des.errors import TraceError
from rapid_des.inputs import open_input
from rapid_des.profiles.events import GZIP, PROFILE, Profile
from rapid_des.profiles.host_traces import read_host_trace
from rapid_des.profiles.kineto import read_kineto
from rapid_des.profiles.nsight import read_lines, read_sqlite

_SQLITE = b"SQLite format 3\x00"
_HEAD = 1 << 16
_KINETO = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"')
_NSIGHT = (b'"CudaEvent"', b'"TraceProcessEvent"', b'"NvtxEvent"')


def read_profile(path: Path) -> Profile:
    """Read the profile of one GPU; `TraceError` names the file and what is wrong, or the GPUs of several."""
    profiles = read_profiles(path)
    if len(profiles) > 1:
        raise TraceError(f"{path}: has {len(profiles)} GPUs; allowed here: one")
    return profiles[0]


def read_profiles(path: Path) -> Sequence[Profile]:
    """Read a profile: that of one rank, or an Nsight Systems export of all GPUs of a host."""
    head = _head(path)
    if head.startswith(_SQLITE) or (any(key in head for key in _NSIGHT) and _KINETO[0] not in head):
        return read_sqlite(path) if head.startswith(_SQLITE) else read_lines(path)
    return [read_kineto(path)]


def read_run(paths: Sequence[Path]) -> list[Profile]:
    """Read the profiles of a run, a rank each; a host trace before a profile is of the same rank."""
    profiles, host = list[Profile](), None
    for path in paths:
        if is_host_trace(path):
            host = read_host_trace(path)
        elif host is None:
            profiles += read_profiles(path)
        else:
            profiles.append(read_kineto(path, host))
            host = None
    if host is not None:
        raise TraceError(f"{paths[-1]}: is a host trace; name the profile of the same rank behind it")
    return profiles


def is_host_trace(path: Path) -> bool:
    """Return whether a file begins as PyTorch's execution traces of the host do, plain or packed."""
    head = _head(path) if path.is_file() else b""
    return b'"schema"' in head and b'"nodes"' in head and _KINETO[0] not in head


def is_profile(path: Path) -> bool:
    """Return whether a file begins as profiles do, plain or packed."""
    if not path.is_file():
        return False
    head = _head(path)
    return head.startswith(_SQLITE) or any(key in head for key in (*_KINETO, *_NSIGHT))


def _head(path: Path) -> bytes:
    with open_input(path, PROFILE) as file:
        head = file.read(_HEAD)
    with suppress(ZlibError):
        head = decompressobj(31).decompress(head, _HEAD) if head.startswith(GZIP) else head
    return head
