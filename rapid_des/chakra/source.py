"""Discovery of trace files: a folder, a prefix or a file to one open file a rank, read as today's frames."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.chakra.files import Chunk, describe_node, looks_like_json, open_bytes, read_chunks, read_some
from rapid_des.chakra.generations import Generation, is_metadata, metadata_message, sniff, transcoder
from rapid_des.chakra.json_forms import read_json
from rapid_des.chakra.trace import MOST_RANKS
from rapid_des.chakra.wire import UNREADABLE, MalformedMessageError, Spans, message_class, split_fields
from rapid_des.config.specs import expanded, preset_folder
from rapid_des.errors import TraceError

_NUMBERED = re.compile(r"(?P<prefix>.+)\.(?P<rank>[0-9]+)\.(?P<suffix>et|eg|json)(?:\.gz)?\Z")
_BARE = re.compile(r"(?P<prefix>.+)\.(?P<suffix>et|eg)(?:\.gz)?\Z")
_PATTERN = re.compile(r"\.(%d|\*|\{rank\})\.(et|eg)\Z")


class TraceFiles(Struct, frozen=True):
    """One set of trace files: their folder, common prefix, and the file of each rank in ascending order."""

    folder: Path
    prefix: str
    files: dict[int, Path]

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks below the last that have no file, at most a hundred of them."""
        last = max(self.files)
        return tuple(rank for rank in range(min(last, 1 << 20)) if rank not in self.files)[:100]


def discover(reference: str | Path) -> TraceFiles:
    """Return the trace files that a folder, a prefix (`runs/job` for runs/job.0.et, …) or a file means.

    The bare name of a preset under `workloads/traces` works where nothing else has that name.
    """
    path = expanded(_PATTERN.sub("", str(reference)))
    if path.is_dir():
        return _only_set(path)
    if path.is_file():
        return _single(path)
    presets = _sets(preset_folder("job") / "traces")
    if not path.parent.is_dir():
        raise TraceError(f"{path}: no such file or folder")
    sets = _sets(path.parent)
    if path.name in sets:
        return sets[path.name]
    if str(path) in presets:
        return presets[path.name]
    near = difflib.get_close_matches(path.name, sets, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    if not sets:
        wanted = f"{path.name}.<rank>.et in {path.parent.resolve()}"
        raise TraceError(f"{path}: no such file or folder, and no trace files {wanted}")
    raise TraceError(f"{path}: no trace files {path.name}.<rank>.et{hint} {_listing(path.parent, sets)}")


def _listing(folder: Path, sets: dict[str, TraceFiles]) -> str:
    listed = ", ".join(f"{name} ({len(sets[name].files)} ranks)" for name in list(sets)[:12])
    more = f" and {len(sets) - 12} more" if len(sets) > 12 else ""
    return f"(prefixes in {folder}: {listed}{more})"


def _single(path: Path) -> TraceFiles:
    match = _NUMBERED.match(path.name)
    if match:
        return TraceFiles(path.parent, match["prefix"], {_rank(match["rank"], path): path})
    return TraceFiles(path.parent, path.name.split(".")[0], {0: path})


def _rank(digits: str, path: Path) -> int:
    if len(digits) > 9 or (rank := int(digits)) >= MOST_RANKS:
        raise TraceError(f"{path}: the rank in its name is too large; allowed: 0 to {MOST_RANKS - 1}")
    return rank


def _only_set(folder: Path) -> TraceFiles:
    sets = _sets(folder)
    if len(sets) > 1:
        raise TraceError(
            f"{folder}: holds several trace sets; name one as FOLDER/PREFIX {_listing(folder, sets)}"
        )
    if sets:
        return next(iter(sets.values()))
    bare = [path for path in _entries(folder) if _BARE.match(path.name)]
    if len(bare) == 1:
        return _single(bare[0])
    named = f"; files without a rank: {', '.join(path.name for path in bare[:6])}" if bare else ""
    archives = [path.name for path in _entries(folder) if path.suffix in {".tar", ".tgz", ".zip"}]
    packed = f"; unpack first: {', '.join(archives[:6])}" if archives else ""
    raise TraceError(f"{folder}: no trace files PREFIX.<rank>.et{named}{packed}")


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise TraceError(f"{folder}: cannot be read: {error.strerror or error}") from error


def _sets(folder: Path) -> dict[str, TraceFiles]:
    """Return all sets of a folder by prefix; JSON counts only for prefixes that have no .et or .eg."""
    if not folder.is_dir():
        return {}
    sets: dict[str, dict[str, dict[int, Path]]] = {}
    for path in _entries(folder):
        match = _NUMBERED.match(path.name)
        if match is None or not path.is_file():
            continue
        ranks = sets.setdefault(match["prefix"], {}).setdefault(match["suffix"], {})
        rank = _rank(match["rank"], path)
        if rank in ranks:
            raise TraceError(f"{folder}: rank {rank} has two files, {ranks[rank].name} and {path.name}")
        ranks[rank] = path
    return {
        prefix: TraceFiles(folder, prefix, dict(sorted(_preferred(forms).items())))
        for prefix, forms in sorted(sets.items())
    }


def _preferred(forms: dict[str, dict[int, Path]]) -> dict[int, Path]:
    return forms.get("et") or forms.get("eg") or forms["json"]


_BATCH = 4096
CONVERTED_FROM = "converted_from"
"""The metadata attribute with the generation from which a file was converted."""


class NodeChunk(Struct, frozen=True):
    """Some nodes of a file as today's frames; `offsets` are where they stood in the file (0 in JSON)."""

    buffer: bytes
    frames: Spans
    offsets: Int64s

    def __len__(self) -> int:
        return len(self.offsets)

    def frame(self, index: int) -> bytes:
        """Return one node's bytes."""
        return self.buffer[self.frames.starts[index] : self.frames.ends[index]]


class TraceFile(Struct, frozen=True):
    """An open trace file; `chunks` can be consumed once."""

    path: Path
    generation: Generation | None
    """The wire generation. None if the fields fit several generations and no option names one; the file is
    then read as today's generation.
    """
    metadata: Any
    """The file's metadata as today's `GlobalMetadata` message; empty where the file has none."""
    metadata_frame: bytes | None
    """The encoded metadata frame as the file has it."""
    form: str
    """The form of the file: `et` (protobuf frames) or `json`."""
    chunks: Iterator[NodeChunk]


def open_trace(path: Path, *, generation: Generation | None = None, salvage: bool) -> TraceFile:
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
        likely = generation or sniff(first, int(starts_with_metadata))
    except MalformedMessageError as error:
        bad = error.message + int(starts_with_metadata)
        raise malformed(path, first.offset_of(bad), first, bad) from error
    if likely is None and path.suffix == ".eg" and not starts_with_metadata:
        likely = Generation.V0_0_1
    metadata, frame = message_class("GlobalMetadata")(), None
    if starts_with_metadata:
        frame = first.frame(0)
        metadata = metadata_of(path, frame, likely or Generation.TODAY)
    nodes = _nodes(path, itertools.chain([first], chunks), int(starts_with_metadata), likely)
    return TraceFile(path, likely, metadata, frame, "et", nodes)


def likely_generation(paths: Iterable[Path]) -> Generation:
    """Return the first generation that a file of a set proves, for those of its files that fit several."""
    for path in paths:
        likely = open_trace(path, salvage=True).generation
        if likely is not None:
            return likely
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


def _packed(frames: list[bytes], offsets: Int64s) -> NodeChunk:
    ends = np.cumsum([len(frame) for frame in frames], dtype=np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    return NodeChunk(b"".join(frames), Spans(starts, ends), offsets)


def _repacked(frames: Iterator[bytes]) -> Iterator[NodeChunk]:
    while batch := list(itertools.islice(frames, _BATCH)):
        yield _packed(batch, np.zeros(len(batch), np.int64))
