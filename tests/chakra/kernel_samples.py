"""Random arguments for each of the reader's kernels, malformed ones among them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from rapid_des.chakra import kernels
from rapid_des.chakra.files import varint
from rapid_des.chakra.kernels import OUTCOMES, Loop
from rapid_des.chakra.kernels import _read_only as read_only

Arguments = tuple[Any, ...]
_VARINTS = (0, 1, 127, 128, 300, 2**31, 2**32 - 1, 2**35, 2**63 - 1, 2**63, 2**64 - 1)
_BROKEN = (
    b"\x80",
    b"\x08",
    b"\x0b",
    b"\x00\x01",
    b"\x12\x05ab",
    b"\x09\x01",
    b"\x0d",
    b"\x08" + b"\xff" * 11,
)


def _field(draw: random.Random) -> bytes:
    """Return a field as protobuf writes it, of any wire type."""
    wire = draw.choice((0, 1, 2, 5))
    tag = varint(draw.choice((1, 2, 3, 10, 16, 300, 2**29 - 1)) * 8 + wire)
    if wire == 0:
        return tag + varint(draw.choice(_VARINTS))
    payload = draw.randbytes({1: 8, 5: 4}.get(wire, draw.randrange(9)))
    return tag + (varint(len(payload)) if wire == 2 else b"") + payload


def _spans(parts: list[bytes]) -> tuple[bytes, Arguments]:
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    return b"".join(parts), (ends - np.array([len(part) for part in parts], np.int64), ends)


def _frames(draw: random.Random) -> Arguments:
    """Return frames of which some are cut, and some begin with a length that is too long."""
    frames = [b"".join(_field(draw) for _ in range(draw.randrange(4))) for _ in range(draw.randrange(9))]
    buffer = b"".join(varint(len(frame)) + frame for frame in frames)
    buffer += draw.choice((b"", b"\x05ab", b"\x80", b"\xff" * 9))
    size = draw.choice((len(buffer), len(buffer) // 4))  # also too little
    room = (np.zeros(size, np.int64) for _ in range(2))
    return np.frombuffer(buffer, np.uint8), 0, *room


def _messages(draw: random.Random) -> Arguments:
    """Return messages of which some are malformed."""
    parts = [b"".join(_field(draw) for _ in range(draw.randrange(6))) for _ in range(draw.randrange(1, 6))]
    parts += draw.choices((b"", *_BROKEN), k=draw.randrange(2))
    buffer, spans = _spans(parts)
    size = len(buffer) // 2 + 1
    owner = np.zeros(size, np.int32)
    field, value, starts, ends = (np.zeros(size, np.int64) for _ in range(4))
    return np.frombuffer(buffer, np.uint8), *spans, owner, field, value, starts, ends


def _packed(draw: random.Random) -> Arguments:
    """Return spans of varints of which some are cut or too long."""
    parts = [b"".join(map(varint, draw.choices(_VARINTS, k=draw.randrange(5)))) for _ in range(6)]
    parts += draw.choices((b"", b"\x80", b"\xff" * 11), k=1)
    buffer, (starts, ends) = _spans(parts)
    counts = np.zeros(len(parts), np.int64)
    return np.frombuffer(buffer, np.uint8), starts, ends, np.zeros(len(buffer), np.int64), counts


def _texts(draw: random.Random) -> Arguments:
    """Return strings of which many are equal."""
    buffer, spans = _spans([draw.choice((b"", b"a", b"ab", b"ba", draw.randbytes(3))) for _ in range(40)])
    codes, firsts = np.zeros(40, np.int32), np.zeros(40, np.int64)
    return np.frombuffer(buffer, np.uint8), *spans, np.full(128, -1, np.int32), codes, firsts


def _dependencies(draw: random.Random, size: int, *, back: bool) -> tuple[list[int], list[int]]:
    """Return the rows of a compressed sparse table; with `back` every row names smaller numbers only."""
    rows = [
        [draw.randrange(row if back else size) for _ in range(draw.randrange(4)) if row or not back]
        for row in range(size)
    ]
    return [0, *np.cumsum([len(row) for row in rows]).tolist()], [other for row in rows for other in row]


def _graph(draw: random.Random) -> Arguments:
    """Return edges that may form circles."""
    size = draw.randrange(1, 12)
    starts, children = (np.array(column, np.int64) for column in _dependencies(draw, size, back=False))
    room = (np.zeros(size, np.int64) for _ in range(2))
    return read_only(starts), read_only(children), np.bincount(children, minlength=size), *room


def _chains(draw: random.Random) -> Arguments:
    """Return nodes in order with their dependencies and weights."""
    size = draw.randrange(1, 12)
    starts, needs = _dependencies(draw, size, back=True)
    weights = [draw.randrange(2**40) for _ in range(size)]
    columns = (np.array(column, np.int64) for column in (range(size), starts, needs, weights))
    return *map(read_only, columns), np.zeros(size, np.int64)


SAMPLES: dict[Loop, Callable[[random.Random], Arguments]] = {
    kernels.scan_frames: _frames,
    kernels.scan_fields: _messages,
    kernels.scan_varints: _packed,
    kernels.intern_spans: _texts,
    kernels.ready_order: _graph,
    kernels.longest_paths: _chains,
}
"""What makes arguments for each kernel, without the outcome."""


def arguments(function: Loop, sample: int) -> Arguments:
    """Return a sample of a kernel's arguments: the same for the same number."""
    return *SAMPLES[function](random.Random(sample)), np.zeros(OUTCOMES, np.int64)
