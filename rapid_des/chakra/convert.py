"""Files to files, node by node and without loss: any generation to today's `.et`, or to jsonizer's JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from rapid_des.chakra.dialects import ReadOptions
from rapid_des.chakra.files import write_frames, write_parts
from rapid_des.chakra.generations import Generation
from rapid_des.chakra.json_forms import node_json
from rapid_des.chakra.source import (
    CONVERTED_FROM,
    TraceFile,
    discover,
    likely_generation,
    malformed,
    open_trace,
)
from rapid_des.chakra.wire import UNREADABLE, message_class
from rapid_des.errors import TraceError

Form = Literal["et", "json"]
_SAME = (Generation.TODAY, None)


class NodeFile(Struct, frozen=True):
    """One file's metadata and nodes as today's messages, nothing left out."""

    metadata: Any
    nodes: Iterator[Any]


def read_nodes(path: Path, options: ReadOptions | None = None) -> NodeFile:
    """Open a trace file of any generation for reading message by message."""
    source = _open(path, options or ReadOptions())
    return NodeFile(source.metadata, _messages(source))


def _open(path: Path, options: ReadOptions, others: Iterable[Path] = ()) -> TraceFile:
    named = None if options.generation == "auto" else Generation(options.generation)
    source = open_trace(path, generation=named, salvage=options.salvage)
    if source.generation is None and named is None and others:
        return open_trace(path, generation=likely_generation(others), salvage=options.salvage)
    return source


def _messages(source: TraceFile) -> Iterator[Any]:
    node = message_class("Node")
    for chunk in source.chunks:
        for index in range(len(chunk)):
            try:
                yield node.FromString(chunk.frame(index))
            except UNREADABLE as error:
                raise malformed(source.path, int(chunk.offsets[index]), chunk, index) from error


def write_nodes(path: Path, content: NodeFile) -> None:
    """Write metadata and nodes as today's frames."""
    frames = (message.SerializeToString() for message in (content.metadata, *content.nodes))
    write_frames(path, frames)


def convert_set(
    reference: str | Path, folder: str | Path, form: Form, options: ReadOptions
) -> tuple[Path, ...]:
    """Convert every file of a trace set, keeping all that is in it; return the paths written.

    A file of today's generation comes out with the same bytes as `et`, but for an added metadata frame where
    it has none. `json` is what jsonizer writes: one JSON document a message, one after the other.
    """
    files = discover(reference)
    written = converted_paths(reference, folder, form)
    for target, path in zip(written, files.files.values(), strict=True):
        source = _open(path, options, files.files.values())
        if form == "et":
            write_frames(target, _frames(source))
        else:
            write_parts(target, _json_parts(source))
    return written


def converted_paths(reference: str | Path, folder: str | Path, form: Form) -> tuple[Path, ...]:
    """Return the paths that `convert_set` writes, one a file of the set, which must not be in that folder."""
    files, folder = discover(reference), Path(folder)
    if folder.resolve() == files.folder.resolve():
        raise TraceError(f"{folder}: is where the traces lie; choose another folder")
    return tuple(folder / f"{files.prefix}.{rank}.{form}" for rank in files.files)


def _frames(source: TraceFile) -> Iterator[bytes]:
    frame_as_written = source.metadata_frame if source.generation in _SAME else None
    if frame_as_written is not None and _is_todays_metadata(frame_as_written):
        yield frame_as_written
    else:
        yield bytes(_converted_metadata(source).SerializeToString())
    for chunk in source.chunks:
        for index in range(len(chunk)):
            yield chunk.frame(index)


def _converted_metadata(source: TraceFile) -> Any:
    """Return the metadata with the generation of the nodes, which decides the conventions of a reader."""
    metadata = message_class("GlobalMetadata")()
    metadata.CopyFrom(source.metadata)
    if source.generation not in _SAME:
        metadata.attr.add(name=CONVERTED_FROM, string_val=str(source.generation))
    return metadata


def _is_todays_metadata(frame: bytes) -> bool:
    """Return whether field 1, if there is one, is the version and not an early attribute."""
    return b"\x0a" not in frame[:1] or frame[2:3] != b"\x0a"


def _json_parts(source: TraceFile) -> Iterator[bytes]:
    yield node_json(_converted_metadata(source)).encode()
    for message in _messages(source):
        yield node_json(message).encode()
