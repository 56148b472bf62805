"""One trace file, whatever its container and generation, as today's frames."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rapid_des.chakra.files import Chunk, describe_node, looks_like_json, open_bytes, read_chunks, read_some
from rapid_des.chakra.generations import Generation, is_metadata, metadata_message, sniff, transcoder
from rapid_des.chakra.json_forms import read_json
from rapid_des.chakra.messages import UNREADABLE, message_class
from rapid_des.chakra.wire import MalformedMessageError, Spans, split_fields
from rapid_des.errors import TraceError

_BATCH = 4096
CONVERTED_FROM = "converted_from"
"""Metadata attribute: the generation that a converted file had."""


@dataclass(frozen=True)
class NodeChunk:
    """Some nodes of a file as today's frames; `offsets` are where they stood in the file (0 in JSON)."""

    buffer: bytes
    frames: Spans
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets)

    def frame(self, index: int) -> bytes:
        """Return one node's bytes."""
        return self.buffer[self.frames.starts[index] : self.frames.ends[index]]


@dataclass(frozen=True)
class TraceFile:
    """An open trace file; `chunks` can be consumed once."""

    path: Path
    generation: Generation | None
    """None where the fields fit several generations and none was named; read as today's."""
    metadata: Any
    """Today's `GlobalMetadata`; empty where the file has none."""
    metadata_frame: bytes | None
    """The frame as it stood in the file."""
    form: str
    """`et` or `json`."""
    chunks: Iterator[NodeChunk]


def open_trace(path: Path, *, generation: Generation | None = None, salvage: bool = False) -> TraceFile:
    """Open a trace file of any generation; `generation` overrides what the fields say."""
    with open_bytes(path) as stream:
        head = read_some(stream, 256, path=path)
    if looks_like_json(head):
        metadata, frames = read_json(path)
        return TraceFile(path, Generation.TODAY, metadata, None, "json", _repacked(frames))
    chunks = read_chunks(path, salvage=salvage)
    first = next(chunks, None)
    if first is None:
        return TraceFile(path, None, message_class("GlobalMetadata")(), None, "et", iter(()))
    starts_with_metadata = False
    try:
        starts_with_metadata = is_metadata(split_fields(first.buffer, _head(first)))
        found = generation or sniff(first, int(starts_with_metadata))
    except MalformedMessageError as error:
        bad = error.message + int(starts_with_metadata)
        raise malformed(path, first.offset_of(bad), first, bad) from error
    if found is None and path.suffix == ".eg" and not starts_with_metadata:
        found = Generation.V0_0_1
    metadata, frame = message_class("GlobalMetadata")(), None
    if starts_with_metadata:
        frame = first.frame(0)
        metadata = metadata_of(path, frame, found or Generation.TODAY)
    nodes = _nodes(path, itertools.chain([first], chunks), int(starts_with_metadata), found)
    return TraceFile(path, found, metadata, frame, "et", nodes)


def likely_generation(paths: Iterable[Path]) -> Generation:
    """Return the first generation that a file of a set proves, for those of its files that fit several."""
    for path in paths:
        found = open_trace(path, salvage=True).generation
        if found is not None:
            return found
    return Generation.TODAY


def malformed(path: Path, offset: int, chunk: Chunk | NodeChunk, frame: int) -> TraceError:
    """Return the error for a frame that is no node, naming the node before it."""
    last = chunk.frame(frame - 1) if frame else b""
    return TraceError(
        f"{path}: corrupt at byte {offset}: the frame there is not a node; "
        f"last good node: {describe_node(last)}"
    )


def _head(chunk: Chunk) -> Spans:
    return Spans(chunk.frames.starts[:1], chunk.frames.ends[:1])


def metadata_of(path: Path, frame: bytes, generation: Generation) -> Any:
    """Return a metadata frame as today's `GlobalMetadata`; what is none is a `TraceError`."""
    try:
        return metadata_message(frame, generation)
    except (MalformedMessageError, *UNREADABLE) as error:
        raise TraceError(f"{path}: the metadata frame at byte 0 is corrupt: {error}") from error


def _nodes(
    path: Path, chunks: Iterable[Chunk], skipped: int, generation: Generation | None
) -> Iterator[NodeChunk]:
    convert = transcoder(generation or Generation.TODAY)
    for chunk in chunks:
        frames = Spans(chunk.frames.starts[skipped:], chunk.frames.ends[skipped:])
        skipped = 0
        plain = NodeChunk(chunk.buffer, frames, frames.starts + chunk.offset)
        if len(plain):
            yield plain if convert is None else _transcoded(path, plain, convert)


def _transcoded(path: Path, chunk: NodeChunk, convert: Callable[[bytes], bytes]) -> NodeChunk:
    frames = []
    for index in range(len(chunk)):
        try:
            frames.append(convert(chunk.frame(index)))
        except UNREADABLE as error:
            raise malformed(path, int(chunk.offsets[index]), chunk, index) from error
    return _packed(frames, chunk.offsets)


def _packed(frames: list[bytes], offsets: NDArray[np.int64]) -> NodeChunk:
    ends = np.cumsum([len(frame) for frame in frames], dtype=np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    return NodeChunk(b"".join(frames), Spans(starts, ends), offsets)


def _repacked(frames: Iterator[bytes]) -> Iterator[NodeChunk]:
    while batch := list(itertools.islice(frames, _BATCH)):
        yield _packed(batch, np.zeros(len(batch), np.int64))
