"""Batches of small files of a set: the bytes of several files are split at once, as if they were one file.

Only plain files are read in batches. A file that is damaged, of another generation, in a container or
otherwise unusual is read alone, which also reports its problem. Where it is not known which file of a batch
is unusual, all of them are read alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s, starts_of
from rapid_des.chakra.columns import Attribute, RawTable, read_columns
from rapid_des.chakra.files import is_bare
from rapid_des.chakra.generations import SAMPLE, Generation, generation_of, is_metadata
from rapid_des.chakra.groups import by_first_appearance
from rapid_des.chakra.interpret import Copies, Key
from rapid_des.chakra.kernels import on_bytes, scan_frames
from rapid_des.chakra.source import NodeChunk, TraceFile, metadata_of
from rapid_des.chakra.wire import Fields, MalformedMessageError, Spans, message_class, split_fields
from rapid_des.errors import ConfigError, TraceError
from rapid_des.inputs import TRACE, read_input
from rapid_des.values import replace

Read = tuple[TraceFile, RawTable]

SMALL = 1 << 15
"""The largest file, in bytes, that is read in a batch with others."""
ROOM = 1 << 18
"""The largest sum of file sizes, in bytes, of one batch."""


class Prefetcher:
    """Reads small files of a set ahead, in the order in which they will be asked for."""

    def __init__(self, paths: Iterable[Path], copies: Copies) -> None:
        self._copies = copies
        self._waiting = iter([path for path in paths if 0 < copies.size(path) <= SMALL])
        self._passed: set[Path] = set()
        self._ready: dict[Path, Read] = {}

    def take(self, path: Path) -> Read | None:
        """Return a file that could be read with others; None for one that is to be read by itself."""
        if 0 < self._copies.size(path) <= SMALL and path not in self._passed:
            contents = dict(self._contents(path))
            if len(contents) > 1:
                self._ready = read_batch(contents)
        return self._ready.pop(path, None)

    def _contents(self, first: Path) -> Iterator[tuple[Path, bytes]]:
        """Yield the next files from `first` on, those that are the same once."""
        room, begun = ROOM, False
        seen: set[Key] = set()
        while room > 0 and (path := next(self._waiting, None)) is not None:
            self._passed.add(path)
            begun = begun or path == first
            if not begun:
                continue
            try:
                content = read_input(path, TRACE)
            except ConfigError:  # whoever reads it by itself says what is wrong
                continue
            key = self._copies.key(path, content)
            if key is not None:
                if key in seen or key in self._copies.known:
                    continue
                seen.add(key)
            if is_bare(content):
                room -= len(content)
                yield path, content


class _Joined(Struct, frozen=True):
    """Files one behind the other: their bytes, frames and fields, and where each file begins in them."""

    buffer: bytes
    begins: Int64s
    frames: Spans
    first_frames: Int64s
    fields: Fields
    first_fields: Int64s
    """The position of each frame's first field in `fields`."""

    def fields_of(self, first: int, end: int) -> Fields:
        """Return the fields of some frames, the first of which becomes message 0."""
        rows = slice(self.first_fields[first], self.first_fields[end])
        fields = self.fields
        payload = Spans(fields.payload.starts[rows], fields.payload.ends[rows])
        owner = fields.owner[rows] - np.int32(first)
        return Fields(owner, fields.number[rows], fields.wire[rows], fields.value[rows], payload)


def read_batch(contents: dict[Path, bytes]) -> dict[Path, Read]:
    """Return the files that are of today's generation and plain; none of them if one is damaged."""
    try:
        joined = _split(list(contents.values()))
        opened = [_opened(joined, file, path) for file, path in enumerate(contents)] if joined else []
        return _tables(joined, opened) if joined else {}
    except (MalformedMessageError, TraceError):
        return {}


def _split(contents: list[bytes]) -> _Joined | None:
    """Return files split into frames and fields; None where a frame is cut."""
    buffer = b"".join(contents)
    begins = starts_of([*map(len, contents)])
    starts, ends = (np.empty(len(buffer), np.int64) for _ in range(2))
    count, _, problem = on_bytes(scan_frames, buffer, 0, starts, ends)
    frames = Spans(starts[:count], ends[:count])
    first_frames = np.searchsorted(frames.ends, begins, side="right")
    if problem or (frames.ends[first_frames[1:] - 1] != begins[1:]).any():
        return None
    fields = split_fields(buffer, frames)
    first_fields = np.searchsorted(fields.owner, np.arange(count + 1))
    return _Joined(buffer, begins, frames, first_frames, fields, first_fields)


def _opened(joined: _Joined, file: int, path: Path) -> TraceFile | None:
    """Return a file without its nodes; None if it does not prove to be today's."""
    first, end = joined.first_frames[file : file + 2].tolist()
    metadata, frame = message_class("GlobalMetadata")(), None
    if is_metadata(joined.fields_of(first, first + 1)):
        frame = joined.buffer[joined.frames.starts[first] : joined.frames.ends[first]]
        metadata = metadata_of(path, frame, Generation.TODAY)
        first += 1
    if end - first > SAMPLE or generation_of(joined.buffer, joined.fields_of(first, end)) != Generation.TODAY:
        return None
    return TraceFile(path, Generation.TODAY, metadata, frame, "et", iter(()))


def _tables(joined: _Joined, opened: list[TraceFile | None]) -> dict[Path, Read]:
    """Return the tables of opened files; none if something in their nodes is to be reported."""
    files = [(file, source) for file, source in enumerate(opened) if source is not None]
    skipped = [int(source.metadata_frame is not None) for _, source in files]
    firsts = joined.first_frames[[file for file, _ in files]] + skipped
    counts = joined.first_frames[[file + 1 for file, _ in files]] - firsts
    bounds = starts_of(counts)
    if not bounds[-1]:
        return {}
    rows = np.arange(bounds[-1]) + np.repeat(firsts - bounds[:-1], counts)
    offsets = joined.frames.starts[rows] - np.repeat(joined.begins[[file for file, _ in files]], counts)
    chunk = NodeChunk(joined.buffer, joined.frames.take(rows), offsets)
    raw = read_columns(replace(files[0][1], chunks=iter([chunk])))
    if raw.conflicts or raw.group_frames:
        return {}
    tables = _portions(raw, bounds)
    return {source.path: (source, table) for (_, source), table in zip(files, tables, strict=True)}


def _portions(raw: RawTable, bounds: Int64s) -> Iterator[RawTable]:
    """Yield the tables of the files whose nodes are one behind the other in a table."""
    needs = {
        kind: (counts, values, starts_of(counts)[bounds].tolist())
        for kind, (counts, values) in raw.dependencies.items()
    }
    for file, (begin, end) in enumerate(pairwise(bounds.tolist())):
        rows = slice(begin, end)
        attributes = {name: _portion(attribute, rows) for name, attribute in raw.attributes.items()}
        yield RawTable(
            ids=raw.ids[rows],
            kind=raw.kind[rows],
            duration=raw.duration[rows],
            offsets=raw.offsets[rows],
            name=raw.name[rows],
            names=raw.names,
            attributes={name: part for name, part in attributes.items() if part is not None},
            attribute_names=raw.attribute_names,
            dependencies={
                kind: (counts[rows], values[ends[file] : ends[file + 1]])
                for kind, (counts, values, ends) in needs.items()
            },
            conflicts=0,
            group_frames=[],
        )


def _portion(attribute: Attribute, rows: slice) -> Attribute | None:
    """Return an attribute of some nodes; None where none of them has it."""
    stated, text = attribute.stated[rows], attribute.text[rows]
    texts: tuple[bytes, ...] = ()
    if attribute.texts:
        text, texts = by_first_appearance(text.astype(np.int64), attribute.texts)
    if not texts and not stated.any():
        return None
    return Attribute(attribute.value[rows], stated, text, list(texts))
