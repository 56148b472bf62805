"""Protobuf bytes to columns, without an object per message: the generic half of the trace reader."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rapid_des.chakra.kernels import intern_spans, scan_fields, scan_varints
from rapid_des.chakra.running import on_bytes

VARINT = 0
FIXED64 = 1
BYTES = 2
FIXED32 = 5


class MalformedMessageError(ValueError):
    """Bytes that are no protobuf message; `message` is its position among those that were split."""

    def __init__(self, message: int) -> None:
        self.message = message
        super().__init__(f"message {message} is malformed")


@dataclass(frozen=True)
class Spans:
    """Byte ranges in a buffer, as columns."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Spans:
        """Return the ranges at `rows`."""
        return Spans(self.starts[rows], self.ends[rows])


def whole(message: bytes) -> Spans:
    """Return the one range that is all of a message."""
    return Spans(np.zeros(1, np.int64), np.full(1, len(message), np.int64))


@dataclass(frozen=True)
class Fields:
    """The fields of many messages, in wire order: a row each."""

    owner: NDArray[np.int32]
    """Position of the message."""
    number: NDArray[np.int64]
    wire: NDArray[np.int64]
    value: NDArray[np.int64]
    """The integer, as int64 bits; the length where the wire type is BYTES."""
    payload: Spans

    def rows(self, number: int, wire: int) -> NDArray[np.int64]:
        """Return the rows with this field number and wire type."""
        return np.flatnonzero((self.number == number) & (self.wire == wire))


def split_fields(buffer: bytes, messages: Spans) -> Fields:
    """Split each message into its fields; `MalformedMessageError` names the first that can not be."""
    bound = int((messages.ends - messages.starts).sum()) // 2 + 1
    owner = np.empty(bound, np.int32)
    tag, value, starts, ends = (np.empty(bound, np.int64) for _ in range(4))
    spans = (messages.starts, messages.ends)
    count, bad, _ = on_bytes(scan_fields, buffer, spans, owner, tag, value, (starts, ends))
    if bad >= 0:
        raise MalformedMessageError(bad)
    payload = Spans(starts[:count], ends[:count])
    return Fields(owner[:count], tag[:count] >> 3, tag[:count] & 7, value[:count], payload)


def unpack_varints(buffer: bytes, spans: Spans) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (all integers of the spans, as int64 bits; how many each span holds)."""
    values = np.empty(int((spans.ends - spans.starts).sum()), np.int64)
    counts = np.zeros(len(spans), np.int64)
    count, bad, _ = on_bytes(scan_varints, buffer, spans.starts, spans.ends, values, counts)
    if bad >= 0:
        raise MalformedMessageError(bad)
    return values[:count], counts


def distinct_spans(buffer: bytes, spans: Spans) -> tuple[NDArray[np.int32], list[bytes]]:
    """Return (the number of each span's string, the distinct strings in order of first appearance)."""
    codes = np.empty(len(spans), np.int32)
    firsts = np.empty(len(spans), np.int64)
    slots = np.full(1 << (2 * len(spans) + 1).bit_length(), -1, np.int32)
    count, *_ = on_bytes(intern_spans, buffer, (spans.starts, spans.ends), slots, codes, firsts)
    found = firsts[:count]
    pairs = zip(spans.starts[found].tolist(), spans.ends[found].tolist(), strict=True)
    return codes, [bytes(buffer[start:end]) for start, end in pairs]
