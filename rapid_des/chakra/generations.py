"""Which wire generation a file is, and every older node as one of today's.

No version string in the files says it reliably, so fields are looked at: see `sniff`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

from rapid_des.chakra.files import Chunk
from rapid_des.chakra.wire import (
    BYTES,
    VARINT,
    Fields,
    MalformedMessageError,
    Spans,
    entire,
    message_class,
    split_fields,
)


class Generation(StrEnum):
    """A wire form found in the wild; the value is what people write after `--generation`."""

    V0_0_1 = "0.0.1"
    V0_0_2 = "0.0.2"
    V0_0_3A = "0.0.3a"
    V0_0_3B = "0.0.3b"
    TODAY = "today"
    SHIFTED = "llmservingsim2"
    """Today's generation with a node type inserted at 4: the numbers of compute, send, receive and collective
    are one higher.
    """


SAMPLE = 4096
_NAME_SAMPLE = 256
_NODE_TYPES_OLD = {0: 0, 1: 2, 2: 3, 3: 4, 4: 5, 5: 6, 6: 7}
_COLLECTIVES_0_0_1 = {1: 0, 2: 6, 3: 2, 4: 7}
_COLLECTIVES_0_0_3 = {0: 0, 1: 6, 2: 2, 3: 7, 4: 5}
_SHIFTED_NAMES = {b"COMP_NODE": 5, b"COMM_SEND_NODE": 6, b"COMM_RECV_NODE": 7, b"COMM_COLL_NODE": 8}
_SHIFTED = tuple(_SHIFTED_NAMES)
UNKNOWN_COLLECTIVE = -1
COLLECTIVE_NODE = 7


def is_metadata(fields: Fields) -> bool:
    """Return whether a file's first frame is metadata: nothing but byte strings in fields 1 and 2."""
    return bool(((fields.wire == BYTES) & ((fields.number == 1) | (fields.number == 2))).all())


def sniff(chunk: Chunk, first: int) -> Generation | None:
    """Return the generation that the frames from `first` on prove, or None if they fit several.

    What counts are the first `SAMPLE` of them; see `generation_of`.
    """
    frames = Spans(chunk.frames.starts[first : first + SAMPLE], chunk.frames.ends[first : first + SAMPLE])
    return generation_of(chunk.buffer, split_fields(chunk.buffer, frames))


def generation_of(buffer: bytes, fields: Fields) -> Generation | None:
    """Return the generation that the fields of nodes prove, or None if they fit several.

    Field 11 with a typed attribute inside is 0.0.2 or 0.0.3; an integer in fields 8 to 11 or above is 0.0.1;
    bytes in field 10, or the storage fields of 2026 under their own node types, are today's.
    """
    attributes = fields.rows(11, BYTES)
    if len(attributes):
        try:
            inner = split_fields(buffer, fields.payload.take(attributes))
        except MalformedMessageError as error:
            raise MalformedMessageError(int(fields.owner[attributes[error.message]])) from error
        if len(inner.rows(2, VARINT)):
            return _typed_attributes(inner)
    types = set(fields.value[fields.rows(3, VARINT)].tolist())
    old = (fields.wire == VARINT) & (fields.number >= 8) & ((fields.number != 12) | (9 not in types))
    if old.any():
        return Generation.V0_0_1
    if _is_shifted(buffer, fields, types):
        return Generation.SHIFTED
    modern = ((fields.number == 10) | (fields.number == 11)) & (fields.wire == BYTES)
    if modern.any() or len(fields.rows(12, VARINT)) or types & {7, 8, 9}:
        return Generation.TODAY
    return None


_ONLY_0_0_2 = {(4, 5), (5, 0), (6, 2), (7, 5), (9, 2)}
_ONLY_0_0_3B = {(7, 0), (8, 2), (9, 0), (10, 5), (11, 0), (12, 0), (13, 2)}


def _typed_attributes(inner: Fields) -> Generation:
    """Return the generation (0.0.2 or a wire called 0.0.3) by the (field, wire type) of attribute values."""
    seen = set(zip(inner.number.tolist(), inner.wire.tolist(), strict=True))
    if seen & _ONLY_0_0_2:
        return Generation.V0_0_2
    return Generation.V0_0_3B if seen & _ONLY_0_0_3B else Generation.V0_0_3A


def _is_shifted(buffer: bytes, fields: Fields, types: set[int]) -> bool:
    """Return whether names say another type than the numbers do, by one."""
    if not types & {5, 6, 7, 8}:
        return False
    rows = fields.rows(2, BYTES)[:_NAME_SAMPLE]
    kind_rows = fields.rows(3, VARINT)[: 2 * _NAME_SAMPLE]
    kinds = dict(zip(fields.owner[kind_rows].tolist(), fields.value[kind_rows].tolist(), strict=True))
    spans = fields.payload.take(rows)
    for row, start, end in zip(rows.tolist(), spans.starts.tolist(), spans.ends.tolist(), strict=True):
        name = buffer[start:end]
        if name.startswith(_SHIFTED):
            number = next(number for prefix, number in _SHIFTED_NAMES.items() if name.startswith(prefix))
            return kinds.get(int(fields.owner[row])) == number
    return 8 in types and _typed_eight_with_collective(buffer, fields)


def _typed_eight_with_collective(buffer: bytes, fields: Fields) -> bool:
    eights = set(fields.owner[fields.rows(3, VARINT)][fields.value[fields.rows(3, VARINT)] == 8].tolist())
    rows = [row for row in fields.rows(10, BYTES) if int(fields.owner[row]) in eights]
    pairs = ((fields.payload.starts[row], fields.payload.ends[row]) for row in rows)
    return any(buffer[start : start + 11] == b"\x0a\x09comm_type" for start, end in pairs)


def transcoder(generation: Generation) -> Callable[[bytes], bytes] | None:
    """Return the function from a frame of a generation to today's, or None where they are the same."""
    return {
        Generation.V0_0_1: _from_0_0_1,
        Generation.V0_0_2: _attribute_era("v0_0_2", _NODE_TYPES_OLD),
        Generation.V0_0_3A: _attribute_era("v0_0_3a", {}),
        Generation.V0_0_3B: _attribute_era("v0_0_3b", {}),
        Generation.SHIFTED: _unshift,
        Generation.TODAY: None,
    }[generation]


def metadata_message(frame: bytes, generation: Generation) -> Any:
    """Return a metadata frame as today's `GlobalMetadata`; early files have the attributes in field 1."""
    metadata = message_class("GlobalMetadata")()
    fields = split_fields(frame, entire(frame))
    for number, start, end in _payloads(fields):
        payload = frame[start:end]
        if number == 1 and not payload.startswith(b"\x0a"):
            metadata.version = payload.decode(errors="backslashreplace")
        elif generation in _PACKAGES_0_0_3 and number == 1:
            old = message_class("AttributeProto", _PACKAGES_0_0_3[generation]).FromString(payload)
            _copy_attribute(old, metadata.attr.add())
        else:
            metadata.attr.add().MergeFromString(payload)
    return metadata


_PACKAGES_0_0_3 = {
    Generation.V0_0_3A: "rapid_des.chakra.v0_0_3a",
    Generation.V0_0_3B: "rapid_des.chakra.v0_0_3b",
}


def _payloads(fields: Fields) -> Sequence[tuple[int, int, int]]:
    columns = (fields.number, fields.payload.starts, fields.payload.ends)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _unshift(frame: bytes) -> bytes:
    node = message_class("Node").FromString(frame)
    if node.type >= 5:
        node.type -= 1
    return bytes(node.SerializeToString())


_INTEGER_FIELDS = {
    "tensor_loc": "uint32_val",
    "tensor_size": "uint64_val",
    "input_tensor_loc": "uint32_val",
    "input_tensor_size": "uint64_val",
    "output_tensor_loc": "uint32_val",
    "output_tensor_size": "uint64_val",
    "num_ops": "int64_val",
    "communicator_id": "uint32_val",
    "comm_src": "int32_val",
    "comm_dst": "int32_val",
    "comm_size": "int64_val",
    "comm_tag": "int32_val",
    "comm_priority": "int32_val",
}


def _from_0_0_1(frame: bytes) -> bytes:
    old = message_class("Node", "rapid_des.chakra.v0_0_1").FromString(frame)
    node = message_class("Node")(id=old.id, name=old.name, type=_NODE_TYPES_OLD.get(old.node_type, 0))
    node.data_deps.extend(old.parent)
    node.duration_micros = old.simulated_run_time
    for name, kind in _INTEGER_FIELDS.items():
        if old.HasField(name):
            node.attr.add(name=name, **{kind: getattr(old, name)})
    if node.type == COLLECTIVE_NODE:
        known = _COLLECTIVES_0_0_1.get(old.comm_type, UNKNOWN_COLLECTIVE)
        node.attr.add(name="comm_type", int64_val=known)
    if old.involved_dim:
        node.attr.add(name="involved_dim").bool_list.values.extend(old.involved_dim)
    return bytes(node.SerializeToString())


_RENAMED = {"src": "comm_src", "dst": "comm_dst"}


def _attribute_era(package: str, types: dict[int, int]) -> Callable[[bytes], bytes]:
    def transcode(frame: bytes) -> bytes:
        old = message_class("Node", f"rapid_des.chakra.{package}").FromString(frame)
        node = message_class("Node")(id=old.id, name=old.name, type=types.get(old.type, old.type))
        node.data_deps.extend(old.parent)
        for side, prefix in ((node.inputs, "input"), (node.outputs, "output")):
            texts = (
                getattr(old, f"{prefix}s"),
                getattr(old, f"{prefix}_shapes"),
                getattr(old, f"{prefix}_types"),
            )
            if any(texts):
                side.values, side.shapes, side.types = texts
        for attribute in old.attribute:
            if attribute.name == "runtime":
                node.duration_micros = max(attribute.i, getattr(attribute, "u", 0), 0)
            else:
                _copy_attribute(attribute, node.attr.add())
        return bytes(node.SerializeToString())

    return transcode


def _copy_attribute(old: Any, new: Any) -> None:
    new.name = _RENAMED.get(old.name, old.name)
    new.doc_string = old.doc_string
    for field, value in old.ListFields():
        if field.name in {"name", "type", "doc_string"}:
            continue
        if field.name in {"s", "strings"}:
            _copy_text(field.name, value, new)
        elif field.name.endswith("s"):
            getattr(new, _LISTS[field.name]).values.extend(value)
        elif old.name == "comm_type":
            new.int64_val = _COLLECTIVES_0_0_3.get(value, UNKNOWN_COLLECTIVE)
        else:
            setattr(new, _SINGLES[field.name], value)


_SINGLES = {"b": "bool_val", "f": "float_val", "u": "uint64_val", "i": "int64_val"}
_LISTS = {"bools": "bool_list", "floats": "float_list", "uints": "uint64_list", "ints": "int64_list"}


def _copy_text(kind: str, value: Any, new: Any) -> None:
    """Copy text as text where it is UTF-8, as bytes elsewhere."""
    texts = [value] if kind == "s" else list(value)
    try:
        decoded = [text.decode() for text in texts]
    except UnicodeDecodeError:
        if kind == "s":
            new.bytes_val = value
        else:
            new.bytes_list.values.extend(texts)
        return
    if kind == "s":
        new.string_val = decoded[0]
    else:
        new.string_list.values.extend(decoded)
