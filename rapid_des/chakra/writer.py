"""Writing a trace set as files that other tools read: today's schema, one file a rank, and the groups."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rapid_des.chakra.files import varint, write_frames, write_parts
from rapid_des.chakra.groups import WORLD
from rapid_des.chakra.source import discover
from rapid_des.chakra.trace import (
    BOUNDS,
    EXCHANGES,
    LIBRARIES,
    UNSTATED,
    NodeKind,
    NodeTable,
    RankTrace,
    TraceSet,
)
from rapid_des.chakra.wire import message_class
from rapid_des.errors import TraceError
from rapid_des.units import PS_PER_US, ceil_divide
from rapid_des.values import asdict

FRAME_VERSION = "0.0.4"
FORMAT = "1"
_INT32 = range(-(2**31), 2**31)
_EXACT_TIME = b"\x0a\x11rapid_duration_ps\x68"
_ISSUER, _ISSUED = b"\x0a\x0crapid_issuer\x68", b"\x0a\x0frapid_issued_ps\x68"
_MEMORY = (NodeKind.MEM_LOAD, NodeKind.MEM_STORE)


def write_set(traces: TraceSet, folder: str | Path, prefix: str) -> tuple[Path, ...]:
    """Write PREFIX.<rank>.et for every rank and PREFIX.groups.json; return the paths.

    `duration_micros` is rounded up to whole microseconds as other tools expect; the attribute
    `rapid_duration_ps` carries the exact time. Reading the files gives the same trace set. A `TraceError`
    says that the folder holds ranks which would become part of the set.

    >>> import tempfile
    >>> from rapid_des.chakra.reader import read_set
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths = write_set(read_set("workloads/traces/two_stages"), folder, "copy")
    >>> [path.name for path in paths]
    ['copy.groups.json', 'copy.0.et', 'copy.1.et']
    """
    folder = Path(folder)
    _refuse_leftovers(traces, folder, prefix)
    written = set_paths(folder, prefix, [rank.rank for rank in traces.ranks])
    members = {name: list(ranks) for name, ranks in traces.groups.items()}
    write_parts(written[0], [json.dumps(members).encode(), b"\n"])
    for rank, path in zip(traces.ranks, written[1:], strict=True):
        write_frames(path, _frames(rank, traces))
    return written


def set_paths(folder: str | Path, prefix: str, ranks: Iterable[int]) -> tuple[Path, ...]:
    """Return the paths of the group file and of the ranks' files that `write_set` writes."""
    names = (f"{prefix}.groups.json", *(f"{prefix}.{rank}.et" for rank in ranks))
    return tuple(Path(folder, name) for name in names)


def _refuse_leftovers(traces: TraceSet, folder: Path, prefix: str) -> None:
    """Refuse a folder in which files of other ranks would become part of the set that is written."""
    try:
        present = discover(folder / prefix).files
    except TraceError:
        return
    extra = sorted(present.keys() - {rank.rank for rank in traces.ranks})
    if extra:
        raise TraceError(
            f"{folder}: already holds {present[extra[0]].name}, a rank that this set does not have"
        )


def _frames(rank: RankTrace, of: TraceSet) -> Iterator[bytes]:
    metadata = message_class("GlobalMetadata")(version=FRAME_VERSION)
    metadata.attr.add(name="rapid_format", string_val=FORMAT)
    if of.libraries:
        metadata.attr.add(name=LIBRARIES, string_val=of.libraries)
    if of.exchanges:
        metadata.attr.add(
            name=EXCHANGES, string_val=json.dumps([asdict(exchange) for exchange in of.exchanges])
        )
    if of.unordered_streams:
        streams = metadata.attr.add(name="rapid_unordered_streams")
        streams.string_list.values.extend(sorted(of.unordered_streams))
    yield bytes(metadata.SerializeToString())
    yield from _node_frames(rank)


class _NodeValues(NamedTuple):
    """The values of a node that determine its attributes, without its time."""

    kind: int
    stream: int
    size: int
    collective: int
    group: int
    peer: int
    tag: int
    priority: int
    flops: int
    tensor_bytes: int
    on_cpu: bool
    bound: int


def _node_frames(rank: RankTrace) -> Iterator[bytes]:
    nodes = rank.nodes
    heads = _Heads(nodes)
    times: dict[int, bytes] = {}
    tails: dict[_NodeValues, bytes] = {}
    columns = zip(*(getattr(nodes, name).tolist() for name in _NodeValues._fields), strict=True)
    ids, names, durations = nodes.ids.tolist(), nodes.name.tolist(), nodes.duration.tolist()
    needed = nodes.ids[nodes.dependencies].tolist()
    starts = nodes.dependency_starts.tolist()
    issues = _issues(nodes)
    ascending = bool((nodes.ids[1:] > nodes.ids[:-1]).all())
    for index, columns_row in enumerate(columns):
        row = _NodeValues(*columns_row)
        tail = tails.get(row)
        if tail is None:
            tail = tails[row] = _tail(row, rank)
        tail += issues.get(index, b"")
        if not ascending:
            tail += _position(index)
        time = times.get(durations[index])
        if time is None:
            time = times[durations[index]] = _time(durations[index])
        identity = b"\x08" + varint(ids[index]) if ids[index] else b""
        head = heads.bytes_of(names[index], row.kind)
        needs = _packed(needed[starts[index] : starts[index + 1]])
        yield b"".join((identity, head, needs, time, tail))


class _Heads:
    """The encoded (name, type) pairs."""

    def __init__(self, nodes: NodeTable) -> None:
        self.names = nodes.names
        self.known: dict[tuple[int, int], bytes] = {}

    def bytes_of(self, name: int, kind: int) -> bytes:
        head = self.known.get((name, kind))
        if head is None:
            head = self.known[name, kind] = _message(name=self.names[name], type=kind).SerializeToString()
        return head


def _message(**fields: Any) -> Any:
    try:
        return message_class("Node")(**fields)
    except ValueError as error:
        raise TraceError(f"node {fields.get('name', '')!r}: cannot be written: {error}") from error


def _packed(ids: list[int]) -> bytes:
    if not ids:
        return b""
    body = b"".join(map(varint, ids))
    return b"\x2a" + varint(len(body)) + body


def _position(index: int) -> bytes:
    node = _message()
    node.attr.add(name="rapid_position", uint64_val=index)
    return bytes(node.SerializeToString())


def _time(duration: int) -> bytes:
    if duration == UNSTATED:
        return b""
    micros = ceil_divide(duration, PS_PER_US)
    field = b"\x38" + varint(micros) if micros else b""
    return field + _attribute(_EXACT_TIME, duration)


def _issues(nodes: NodeTable) -> dict[int, bytes]:
    """Return by position which node of the host issues a node, and when."""
    issued = np.flatnonzero(nodes.issuer != UNSTATED)
    columns = issued, nodes.ids[nodes.issuer[issued]], nodes.issued[issued]
    return {
        place: _attribute(_ISSUER, issuer) + _attribute(_ISSUED, when)
        for place, issuer, when in zip(*(column.tolist() for column in columns), strict=True)
    }


def _attribute(head: bytes, value: int) -> bytes:
    """Return an unsigned attribute of a node.

    NOTE: spelt out because such values rarely repeat; a protobuf message costs twenty times as much.
    """
    content = head + varint(value)
    return b"\x52" + varint(len(content)) + content


def _tail(row: _NodeValues, rank: RankTrace) -> bytes:
    """Return the attributes; the value kinds are those that upstream's readers ask for."""
    node = _message()
    node.attr.add(name="is_cpu_op", bool_val=row.on_cpu)
    if row.collective != UNSTATED:
        node.attr.add(name="comm_type", int64_val=row.collective)
    _add_sizes(node, row)
    collective = row.kind == NodeKind.COLLECTIVE
    if row.group != UNSTATED and not (collective and rank.groups[row.group] == WORLD):
        name = "pg_name" if collective else "rapid_communicator"
        node.attr.add(name=name, string_val=rank.groups[row.group])
    _add_message(node, row, rank)
    if row.priority:
        _add_int32(node, "comm_priority", row.priority)
    if row.flops:
        node.attr.add(name="num_ops", int64_val=row.flops)
    if row.bound != UNSTATED:
        node.attr.add(name="rapid_bound", string_val=BOUNDS[row.bound])
    node.attr.add(name="rapid_stream", string_val=rank.nodes.streams[row.stream])
    return bytes(node.SerializeToString())


def _add_sizes(node: Any, row: _NodeValues) -> None:
    memory = row.kind in _MEMORY
    communicates = row.kind in (NodeKind.SEND, NodeKind.RECV, NodeKind.COLLECTIVE)
    if row.size != UNSTATED and (communicates or (row.size and not memory)):
        node.attr.add(name="comm_size", int64_val=row.size)
    tensor_size = max(row.size, 0) if memory else row.tensor_bytes
    if tensor_size:
        node.attr.add(name="tensor_size", uint64_val=tensor_size)
    if tensor_size != row.tensor_bytes:
        node.attr.add(name="rapid_tensor_bytes", uint64_val=row.tensor_bytes)


def _add_message(node: Any, row: _NodeValues, rank: RankTrace) -> None:
    if row.peer != UNSTATED:
        ends = (rank.rank, rank.peers[row.peer])
        source, target = ends if row.kind == NodeKind.SEND else reversed(ends)
        node.attr.add(name="comm_src", int32_val=source)
        node.attr.add(name="comm_dst", int32_val=target)
    if row.tag or row.peer != UNSTATED:
        _add_int32(node, "comm_tag", row.tag)


def _add_int32(node: Any, name: str, value: int) -> None:
    kind = "int32_val" if value in _INT32 else "int64_val"
    node.attr.add(name=name, **{kind: value})
