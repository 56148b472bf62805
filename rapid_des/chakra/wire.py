"""Protobuf: message classes of every wire generation, and bytes to columns without an object per message.

The classes come from committed descriptors in a descriptor pool of our own. The pool is private, so that
they live beside any other copy of the Chakra schema in the process, and the descriptors are plain bytes, so
that no generated code ties us to one protobuf runtime. To change a schema, edit the `.proto` files and run
`python -m rapid_des.chakra.wire` where grpcio-tools is installed.
"""

from __future__ import annotations

import functools
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from msgspec import Struct

from rapid_des.arrays import Bools, Int32s, Int64s
from rapid_des.chakra.kernels import intern_spans, on_bytes, scan_fields, scan_varints

VARINT = 0
FIXED64 = 1
BYTES = 2
FIXED32 = 5


class MalformedMessageError(ValueError):
    """Bytes that are no protobuf message; `message` is its position among those that were split."""

    def __init__(self, message: int) -> None:
        self.message = message
        super().__init__(f"message {message} is malformed")


class Spans(Struct, frozen=True):
    """Byte ranges in a buffer, as columns."""

    starts: Int64s
    ends: Int64s

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, rows: Int64s | Bools) -> Spans:
        """Return the ranges at `rows`."""
        return Spans(self.starts[rows], self.ends[rows])


def entire(message: bytes) -> Spans:
    """Return the one range that is all of a message."""
    return Spans(np.zeros(1, np.int64), np.full(1, len(message), np.int64))


class Fields(Struct, frozen=True):
    """The fields of many messages, in wire order: a row each."""

    owner: Int32s
    """The position of the message that the field belongs to."""
    number: Int64s
    wire: Int64s
    value: Int64s
    """The integer value as int64 bits; for wire type BYTES the length in bytes."""
    payload: Spans

    def rows(self, number: int, wire: int) -> Int64s:
        """Return the rows with this field number and wire type."""
        return np.flatnonzero((self.number == number) & (self.wire == wire))


def split_fields(buffer: bytes, messages: Spans) -> Fields:
    """Split each message into its fields; `MalformedMessageError` names the first that cannot be."""
    bound = int((messages.ends - messages.starts).sum()) // 2 + 1
    owner = np.empty(bound, np.int32)
    tag, value, starts, ends = (np.empty(bound, np.int64) for _ in range(4))
    count, bad, _ = on_bytes(
        scan_fields, buffer, messages.starts, messages.ends, owner, tag, value, starts, ends
    )
    if bad >= 0:
        raise MalformedMessageError(bad)
    payload = Spans(starts[:count], ends[:count])
    return Fields(owner[:count], tag[:count] >> 3, tag[:count] & 7, value[:count], payload)


def unpack_varints(buffer: bytes, spans: Spans) -> tuple[Int64s, Int64s]:
    """Return (all integers of the spans, as int64 bits; how many each span holds)."""
    values = np.empty(int((spans.ends - spans.starts).sum()), np.int64)
    counts = np.zeros(len(spans), np.int64)
    count, bad, _ = on_bytes(scan_varints, buffer, spans.starts, spans.ends, values, counts)
    if bad >= 0:
        raise MalformedMessageError(bad)
    return values[:count], counts


def distinct_spans(buffer: bytes, spans: Spans) -> tuple[Int32s, list[bytes]]:
    """Return (the number of each span's string, the distinct strings in order of first appearance)."""
    codes = np.empty(len(spans), np.int32)
    firsts = np.empty(len(spans), np.int64)
    slots = np.full(1 << (2 * len(spans) + 1).bit_length(), -1, np.int32)
    count, *_ = on_bytes(intern_spans, buffer, spans.starts, spans.ends, slots, codes, firsts)
    chosen = firsts[:count]
    pairs = zip(spans.starts[chosen].tolist(), spans.ends[chosen].tolist(), strict=True)
    return codes, [bytes(buffer[start:end]) for start, end in pairs]


TODAY = "rapid_des.chakra"
SCHEMAS = ("chakra", "v0_0_1", "v0_0_2", "v0_0_3a", "v0_0_3b")
UNREADABLE = (DecodeError, ValueError, OverflowError)
"""The exceptions that protobuf runtimes raise for bytes or values that do not fit a message."""
_DESCRIPTORS = "descriptors.bin"


@functools.cache
def _pool() -> Any:
    pool = descriptor_pool.DescriptorPool()
    packed = resources.files("rapid_des.chakra.schema").joinpath(_DESCRIPTORS).read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(packed).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


@functools.cache
def message_class(name: str, package: str = TODAY) -> Any:
    r"""Return the message class `package.name`.

    >>> message_class("Node")(id=3, name="gemm").SerializeToString()
    b'\x08\x03\x12\x04gemm'
    """
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{package}.{name}"))


def compile_descriptors(folder: Path) -> bytes:
    """Return the serialized FileDescriptorSet of the schemas in `folder`; needs grpcio-tools."""
    import tempfile

    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / _DESCRIPTORS
        files = [f"{name}.proto" for name in SCHEMAS]
        status = protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={target}", *files])
        if status:
            raise RuntimeError(f"protoc failed with status {status}")
        return target.read_bytes()


def _main() -> None:
    folder = Path(__file__).with_name("schema")
    (folder / _DESCRIPTORS).write_bytes(compile_descriptors(folder))


if __name__ == "__main__":
    _main()
