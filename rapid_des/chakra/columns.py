"""The nodes of one file as columns of what was written, before any dialect says what it means."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from msgspec import Struct, field

from rapid_des.arrays import Bools, Int32s, Int64s
from rapid_des.chakra.source import NodeChunk, TraceFile, malformed
from rapid_des.chakra.wire import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    Fields,
    MalformedMessageError,
    Spans,
    distinct_spans,
    split_fields,
    unpack_varints,
)
from rapid_des.errors import TraceError

WANTED = (
    "is_cpu_op",
    "comm_type",
    "comm_size",
    "comm_src",
    "comm_dst",
    "comm_tag",
    "comm_priority",
    "pg_name",
    "comm_group",
    "communicator_id",
    "involved_dim",
    "num_ops",
    "tensor_size",
    "stream",
    "tid",
    "rapid_duration_ps",
    "rapid_stream",
    "rapid_position",
    "rapid_tensor_bytes",
    "rapid_issuer",
    "rapid_issued_ps",
    "rapid_bound",
    "rapid_communicator",
)

# By field number of a value in `AttributeProto`: its type on the wire (-1: a list, which is not read), and
# how its bits become an integer. Fields 3 and 5 are double and float, 13 and 21 unsigned with 64 bits.
_WIRES = np.full(33, -1)
_WIRES[[7, 9, 11, 13, 15, 17, 27]] = VARINT
_WIRES[[5, 19, 23]] = FIXED32
_WIRES[[3, 21, 25]] = FIXED64
_WIRES[[28, 29, 31]] = BYTES
_FORMS = np.zeros(33, np.int64)
_REAL, _UNSIGNED = 5, 6
_LOW, _SINGLE = 0xFFFFFFFF, 5
_READ: Mapping[int, Callable[[Int64s], Int64s]] = {
    1: lambda bits: (((bits & _LOW) + 2**31) & _LOW) - 2**31,
    2: lambda bits: bits & _LOW,
    3: lambda bits: (bits >> 1) & 0x7FFFFFFFFFFFFFFF ^ -(bits & 1),
    4: lambda bits: (bits != 0).astype(np.int64),
}
"""The function that decodes the bits of each integer form of the wire; form 0 needs no decoding."""
_FORMS[[7, 23]] = 1
_FORMS[[11, 19]] = 2
_FORMS[[15, 17]] = 3
_FORMS[27] = 4
_FORMS[[3, 5]] = _REAL
_FORMS[[13, 21]] = _UNSIGNED
GROUP_NODES = (b"process_group:init", b"record_param_comms")


class Attribute(Struct):
    """One attribute over all nodes: an integer where `stated`, a text where `text` is a slot in `texts`."""

    value: Int64s
    stated: Bools
    text: Int32s
    texts: list[bytes] = field(default_factory=list)


class RawTable(Struct):
    """The nodes of one file in file order."""

    ids: Int64s
    kind: Int64s
    duration: Int64s
    offsets: Int64s
    name: Int32s
    names: list[bytes]
    attributes: dict[str, Attribute]
    """The attributes named in `WANTED` that have a value in at least one node, by name."""
    attribute_names: frozenset[bytes]
    """All attribute names in this file. If several files are read together, the names in any of them (as in
    `names`).
    """
    dependencies: dict[str, tuple[Int64s, Int64s]]
    """`data` and `ctrl`: (how many each node has, the ids as int64 bits)."""
    conflicts: int
    """The number of attributes that a node states twice with different values; the first value is used."""
    group_frames: list[bytes]
    """The encoded nodes that describe process groups."""

    def __len__(self) -> int:
        return len(self.ids)


class _Texts:
    """Distinct strings over all chunks, numbered in order of first appearance."""

    def __init__(self) -> None:
        self.number: dict[bytes, int] = {}

    def codes(self, buffer: bytes, spans: Spans) -> Int32s:
        local, strings = distinct_spans(buffer, spans)
        numbers = [self.number.setdefault(string, len(self.number)) for string in strings]
        return np.array(numbers, np.int32)[local] if numbers else local


def read_columns(source: TraceFile) -> RawTable:
    """Read all nodes of an open file; a malformed node is a `TraceError` with its byte offset."""
    reader = _Reader(source.path)
    for chunk in source.chunks:
        try:
            reader.add(chunk)
        except MalformedMessageError as error:
            frame = error.message
            raise malformed(source.path, int(chunk.offsets[frame]), chunk, frame) from error
    return reader.table()


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.parts: dict[str, list[Int64s]] = {}
        self.size = 0
        self.names = _Texts()
        self.names_seen = 0
        self.group_names: list[int] = []
        self.attribute_names = _Texts()
        self.values: dict[str, list[tuple[Int64s, Int64s]]] = {}
        self.strings: dict[str, list[tuple[Int64s, Int32s]]] = {}
        self.texts: dict[str, _Texts] = {}
        self.conflicts = 0
        self.group_frames: list[bytes] = []

    def add(self, chunk: NodeChunk) -> None:
        fields = split_fields(chunk.buffer, chunk.frames)
        count = len(chunk)
        for name, number in (("ids", 1), ("kind", 3), ("duration", 7)):
            rows = fields.rows(number, VARINT)
            column = np.zeros(count, np.int64)
            column[fields.owner[rows]] = fields.value[rows]
            self._append(name, column)
        self._append("offsets", chunk.offsets)
        self._add_names(chunk, fields)
        self._add_dependencies(chunk, fields, "ctrl", 4)
        self._add_dependencies(chunk, fields, "data", 5)
        self._add_attributes(chunk, fields)
        self.size += count

    def _append(self, name: str, column: Int64s) -> None:
        self.parts.setdefault(name, []).append(column)

    def _add_names(self, chunk: NodeChunk, fields: Fields) -> None:
        rows = fields.rows(2, BYTES)
        empty = self.names.number.setdefault(b"", len(self.names.number))
        column = np.full(len(chunk), empty, np.int64)
        # Of a field that is written twice the last one counts, as protobuf says: later rows overwrite.
        column[fields.owner[rows]] = self.names.codes(chunk.buffer, fields.payload.take(rows))
        self._append("name", column)
        new = list(itertools.islice(self.names.number, self.names_seen, None))
        self.names_seen += len(new)
        # One search of all new names together costs less than one a name, and most files have no such node.
        if any(mark in b"\n".join(new) for mark in GROUP_NODES):
            marked = (text for text in new if any(mark in text for mark in GROUP_NODES))
            self.group_names += [self.names.number[text] for text in marked]
        if self.group_names:
            named = np.flatnonzero(np.isin(column, self.group_names))
            self.group_frames += [chunk.frame(int(index)) for index in named]

    def _add_dependencies(self, chunk: NodeChunk, fields: Fields, name: str, number: int) -> None:
        # Repeated integers are packed in one field, or stand in a field each: old writers do either.
        rows = np.flatnonzero((fields.number == number) & ((fields.wire == VARINT) | (fields.wire == BYTES)))
        owner = fields.owner[rows]
        try:
            values, counts = unpack_varints(chunk.buffer, fields.payload.take(rows))
        except MalformedMessageError as error:
            raise MalformedMessageError(int(owner[error.message])) from error
        per_node = np.bincount(owner, weights=counts, minlength=len(chunk)).astype(np.int64)
        self._append(f"{name} counts", per_node)
        self._append(f"{name} values", values.copy())

    def _add_attributes(self, chunk: NodeChunk, fields: Fields) -> None:
        rows = fields.rows(10, BYTES)
        node = fields.owner[rows].astype(np.int64)
        try:
            inner = split_fields(chunk.buffer, fields.payload.take(rows))
        except MalformedMessageError as error:
            raise MalformedMessageError(int(node[error.message])) from error
        name_rows = inner.rows(1, BYTES)
        code = np.full(len(node), -1, np.int64)
        code[inner.owner[name_rows]] = self.attribute_names.codes(chunk.buffer, inner.payload.take(name_rows))
        inside = np.clip(inner.number, 0, 32)  # a valid index for fields that are unknown, too
        is_value = (inner.number >= 3) & (inner.number <= 32) & (_WIRES[inside] == inner.wire)
        value_rows = np.flatnonzero(is_value)
        value_row = np.full(len(node), -1, np.int64)
        value_row[inner.owner[value_rows]] = value_rows
        for name in WANTED:
            number = self.attribute_names.number.get(name.encode())
            if number is not None:
                chosen = np.flatnonzero((code == number) & (value_row >= 0))
                if len(chosen):
                    self._add_values(chunk, name, node[chosen], inner, value_row[chosen])

    def _add_values(self, chunk: NodeChunk, name: str, node: Int64s, inner: Fields, rows: Int64s) -> None:
        numeric = inner.wire[rows] != BYTES
        values = self._integers(chunk, name, node[numeric], inner, rows[numeric])
        self.values.setdefault(name, []).append((node[numeric] + self.size, values))
        texts = self.texts.setdefault(name, _Texts())
        codes = texts.codes(chunk.buffer, inner.payload.take(rows[~numeric]))
        self.strings.setdefault(name, []).append((node[~numeric] + self.size, codes))

    def _integers(self, chunk: NodeChunk, name: str, node: Int64s, inner: Fields, rows: Int64s) -> Int64s:
        values, broken = integers(inner.number[rows], inner.value[rows])
        if len(broken):
            frame = int(node[broken[0]])
            raise TraceError(
                f"{self.path}: node at byte {int(chunk.offsets[frame])}: {name} is no whole number in 64 bits"
            )
        return values

    def table(self) -> RawTable:
        joined = {name: np.concatenate(parts) for name, parts in self.parts.items()}
        empty = np.zeros(0, np.int64)
        attributes = {name: self._attribute(name) for name in self.values}
        return RawTable(
            ids=joined.get("ids", empty),
            kind=joined.get("kind", empty),
            duration=joined.get("duration", empty),
            offsets=joined.get("offsets", empty),
            name=joined.get("name", empty).astype(np.int32),
            names=list(self.names.number),
            attributes=attributes,
            attribute_names=frozenset(self.attribute_names.number),
            dependencies={
                kind: (joined.get(f"{kind} counts", empty), joined.get(f"{kind} values", empty))
                for kind in ("data", "ctrl")
            },
            conflicts=self.conflicts,
            group_frames=self.group_frames,
        )

    def _attribute(self, name: str) -> Attribute:
        value = np.zeros(self.size, np.int64)
        stated = np.zeros(self.size, np.bool_)
        text = np.full(self.size, -1, np.int32)
        # Written backwards, so that of several values of one node the first is what stays.
        for node, values in self.values[name]:
            value[node[::-1]] = values[::-1]
            stated[node] = True
            self.conflicts += int((value[node] != values).sum())
        for node, codes in self.strings[name]:
            text[node[::-1]] = codes[::-1]
            self.conflicts += int((text[node] != codes).sum())
        return Attribute(value, stated, text, list(self.texts[name].number))


def integers(kind: Int64s, bits: Int64s) -> tuple[Int64s, Int64s]:
    """Return (attribute values of any numeric kind as integers, the rows that are no integer in range).

    `kind` is the field number of the value in `AttributeProto`, `bits` what stood on the wire.
    """
    form = _FORMS[kind]
    present = np.flatnonzero(np.bincount(form)).tolist()
    values, broken = bits.copy(), np.zeros(0, np.int64)
    for number in present if present != [0] else ():
        rows = np.flatnonzero(form == number)
        given = bits[rows]
        if number in _READ:
            values[rows] = _READ[number](given)
        elif number == _UNSIGNED:
            broken = np.concatenate([broken, rows[given < 0]])
        elif number == _REAL:
            values[rows], whole = _from_real(given, kind[rows] == _SINGLE)
            broken = np.concatenate([broken, rows[~whole]])
    return values, np.sort(broken)


def _from_real(bits: Int64s, single: Bools) -> tuple[Int64s, Bools]:
    """Return floating-point values as integers (bits where they are none), and which are integers."""
    numbers = bits.view(np.float64).copy()
    # A double has all 64 bits; a float has the low 32, which are widened.
    numbers[single] = (bits[single] & _LOW).astype(np.uint32).view(np.float32)
    whole = np.isfinite(numbers) & (np.abs(np.nan_to_num(numbers)) < 2.0**63)
    # A value that is not finite or too large compares 0.0 with 0.5, so it is no integer, without a warning.
    whole &= np.floor(np.where(whole, numbers, 0.0)) == np.where(whole, numbers, 0.5)
    values = bits.copy()
    values[whole] = numbers[whole].astype(np.int64)
    return values, whole
