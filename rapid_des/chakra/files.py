"""Trace files on disk: containers recognised by content, frames in and out. Nothing here knows a schema."""

from __future__ import annotations

import contextlib
import gzip
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, BinaryIO, cast

import numpy as np
from msgspec import Struct

from rapid_des.chakra.kernels import TOO_LONG, on_bytes, scan_frames
from rapid_des.chakra.wire import UNREADABLE, Spans, message_class
from rapid_des.errors import ConfigError, TraceError
from rapid_des.inputs import TRACE, open_input

CHUNK = 1 << 20
_UNPACKED, _RATIO, _MOST_UNPACKED = 1 << 24, 200, TRACE.most
"""Limits on the unpacked bytes of a gzip file: the larger of the first and the second times the packed size,
and at most the third.
"""
_MOST_EMPTY = 4096
"""The most empty frames in one chunk; an empty frame is a node that states nothing."""
_GZIP = b"\x1f\x8b"
_REFUSED = {
    b"version https://git-lfs": "is a Git-LFS pointer, not the trace; run `git lfs pull` where it came from",
    b"PK\x03\x04": "is a zip archive; unpack it and name the files inside",
    b"\x28\xb5\x2f\xfd": "is zstd-compressed; unpack it first (gzip is read as it is)",
    b"BZh": "is bzip2-compressed; unpack it first (gzip is read as it is)",
    b"\xfd7zXZ": "is xz-compressed; unpack it first (gzip is read as it is)",
}


class Chunk(Struct, frozen=True):
    """Some whole frames of a file: the bytes they lie in, and where in the (unpacked) file those start."""

    buffer: bytes
    frames: Spans
    offset: int

    def offset_of(self, frame: int) -> int:
        """Return the byte of the file where a frame's content starts."""
        return self.offset + int(self.frames.starts[frame])

    def frame(self, index: int) -> bytes:
        """Return one frame's content."""
        return self.buffer[self.frames.starts[index] : self.frames.ends[index]]


def _problem(head: bytes) -> str | None:
    """Return why a file with these first bytes cannot be read; None if it can."""
    if head[257:262] == b"ustar":
        return "is a tar archive; unpack it and name the files inside"
    return next((problem for magic, problem in _REFUSED.items() if head.startswith(magic)), None)


def is_bare(content: bytes) -> bool:
    """Return whether a file's content is frames as they are, in no container."""
    head = content[:512]
    return not (_problem(head) or head.startswith(_GZIP) or looks_like_json(head[:256]))


def open_bytes(path: Path) -> IO[bytes]:
    """Open a trace file for reading; a gzip file, known by its first bytes, is unpacked while it is read."""
    try:
        file = open_input(path, TRACE)
    except ConfigError as error:
        raise TraceError(str(error)) from None
    try:
        head = file.read(512)
        file.seek(0)
        if problem := _problem(head):
            raise TraceError(f"{path}: {problem}")
        return cast("IO[bytes]", _Unpacked(file)) if head.startswith(_GZIP) else file
    except BaseException as error:
        file.close()
        if isinstance(error, OSError):
            raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error
        raise


class _Unpacked(gzip.GzipFile):
    """The unpacked content of a gzip file, as a stream that also closes the file."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(fileobj=file, mode="rb")
        self._packed = file

    def close(self) -> None:
        """Close this and the file below."""
        super().close()
        self._packed.close()


def read_some(stream: IO[bytes], size: int, *, path: Path) -> bytes:
    """Read up to `size` bytes; a damaged gzip container, or one that is a bomb, is a `TraceError`."""
    try:
        packed = isinstance(cast("object", stream), gzip.GzipFile)
        if packed and stream.tell() > min(_MOST_UNPACKED, max(_UNPACKED, _RATIO * path.stat().st_size)):
            allowed = f"{_RATIO} times its size, or {_UNPACKED:,} bytes, and in no case {_MOST_UNPACKED:,}"
            raise TraceError(f"{path}: unpacks to more than {stream.tell():,} bytes; allowed: {allowed}")
        return stream.read(size)
    except (EOFError, zlib.error, OSError) as error:
        where = stream.tell()
        raise TraceError(f"{path}: the gzip data is damaged or cut after byte {where}: {error}") from error


def looks_like_json(head: bytes) -> bool:
    """Return whether a file that starts so is JSON: a bare frame of length 123 also starts with a brace.

    >>> looks_like_json(b'{ "version": 1}'), looks_like_json(bytes([123, 10, 5]) + b"0.0.4")
    (True, False)
    """
    text = head.lstrip(b"\xef\xbb\xbf").lstrip()
    return text[:1] in (b"{", b"[") and text[1:].lstrip()[:1] in (b'"', b"}", b"{", b"]")


def read_chunks(path: Path, *, salvage: bool) -> Iterator[Chunk]:
    """Yield a file's frames, some thousands at a time.

    A cut or impossible frame is a `TraceError` with its byte offset and the last good node, after everything
    before it was yielded; with `salvage` the file ends there instead.
    """
    last = b""
    with open_bytes(path) as stream:
        pending, offset, ended = b"", 0, False
        while not ended or pending:
            block = b"" if ended else read_some(stream, max(CHUNK, len(pending)), path=path)
            ended = ended or not block
            pending += block
            starts, ends = (np.empty(len(pending) // 2 + 1, np.int64) for _ in range(2))
            count, position, problem = on_bytes(scan_frames, pending, 0, starts, ends)
            if int((starts[:count] == ends[:count]).sum()) > _MOST_EMPTY:
                raise TraceError(f"{path}: more than {_MOST_EMPTY} empty frames; it is no trace")
            if count:
                chunk = Chunk(pending, Spans(starts[:count], ends[:count]), offset)
                last = chunk.frame(count - 1)
                yield chunk
            if problem == TOO_LONG or (ended and problem and not count):
                if salvage:
                    return
                raise _broken(path, offset + position, len(pending) - position, last=last)
            pending, offset = pending[position:], offset + position


def _broken(path: Path, offset: int, left: int, *, last: bytes) -> TraceError:
    return TraceError(
        f"{path}: truncated or corrupt at byte {offset}: the frame that starts there is not whole "
        f"({left} bytes are left); last good node: {describe_node(last)}"
    )


def describe_node(frame: bytes) -> str:
    """Return a node's id and name for a message; the two fields are the same in every generation."""
    if not frame:
        return "none"
    try:
        node = message_class("Node").FromString(frame)
    except UNREADABLE:
        return "not readable as a node"
    return f"{node.id} ({node.name!r})" if node.type or node.id else "none (only a metadata frame)"


def varint(number: int) -> bytes:
    r"""Return the base-128 form of a non-negative integer.

    >>> varint(300)
    b'\xac\x02'
    """
    low = bytearray()
    while number > 127:
        low.append(number & 127 | 128)
        number >>= 7
    low.append(number)
    return bytes(low)


def write_frames(path: Path, frames: Iterable[bytes]) -> None:
    """Write length-delimited frames; the file appears when it is whole."""
    write_parts(path, (part for frame in frames for part in (varint(len(frame)), frame)))


def write_parts(path: Path, parts: Iterable[bytes]) -> None:
    """Write bytes to a file beside `path` and give it that name once all are there."""
    partial = path.with_name(f".{path.name}.{os.urandom(6).hex()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as stream:
            for part in parts:
                stream.write(part)
        partial.replace(path)
    except OSError as error:
        raise TraceError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
