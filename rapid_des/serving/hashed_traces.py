"""Reads traces in Mooncake's format: each line is a JSON object, in a plain file or in gzip.

`timestamp` is in milliseconds; `input_length` and `output_length` are in tokens. Each of the `hash_ids`
identifies a block of the prompt and all blocks before it (github.com/kvcache-ai/Mooncake, FAST25-release).
Dynamo's traces have the same format.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import IO, Annotated, TypeAlias

import msgspec
import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.errors import ConfigError
from rapid_des.inputs import REQUESTS, open_input
from rapid_des.serving.contents import HashedBlocks
from rapid_des.units import ceil_divide

_Tokens: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
_LONGEST = 1 << 20
"""Longest line, in bytes."""
_MOST_ROWS = 1 << 24
_MOST_KEYS = 1 << 27
_GZIP = b"\x1f\x8b"


class _Line(Struct):
    timestamp: Annotated[float, msgspec.Meta(ge=0, le=1e13)]
    input_length: _Tokens
    output_length: _Tokens
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0, le=2**62)]] = []


class HashedTrace(Struct, frozen=True):
    """The requests of a file, in its order."""

    arrival_s: Sequence[float]
    prompt: Sequence[int]
    output: Sequence[int]
    keys: Sequence[Sequence[int]]
    """The keys of the blocks of each prompt; empty where the file states none."""

    def blocks(self, order: Int64s, size: int) -> HashedBlocks:
        """Return the blocks of the requests in another order."""
        chosen = [self.keys[place] for place in order.tolist()]
        starts = np.cumsum([0, *map(len, chosen)])
        return HashedBlocks(size, starts, np.array([key for keys in chosen for key in keys], np.int64))


def is_hashed(file: str) -> bool:
    """Return whether a file begins as gzip or with a JSON object, and so is of this format."""
    with open_input(Path(file), REQUESTS) as raw:
        first = raw.read(64)
    return first.startswith(_GZIP) or first.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")


def read_hashed(file: str, size: int) -> HashedTrace:
    """Return the requests of a file, whose blocks have `size` tokens; `ConfigError` names the line."""
    decoder, rows, keys = msgspec.json.Decoder(_Line), list[_Line](), 0
    for number, text in _lines(file):
        key = f"line {number}"
        try:
            row = decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            problem = f"not a request with timestamp, input_length, output_length and hash_ids: {error}"
            raise ConfigError(problem, file=file, key=key) from None
        blocks = ceil_divide(row.input_length, size)
        if len(row.hash_ids) > blocks:
            allowed = f"up to {blocks}, the blocks of {size} tokens in a prompt of {row.input_length}"
            problem = f"{len(row.hash_ids)} hash_ids; allowed: {allowed} (block= states another size)"
            raise ConfigError(problem, file=file, key=key)
        rows.append(row)
        keys += len(row.hash_ids)
        if len(rows) > _MOST_ROWS or keys > _MOST_KEYS:
            raise ConfigError(f"more than {_MOST_ROWS:,} requests or {_MOST_KEYS:,} blocks", file=file)
    if not rows:
        raise ConfigError("has no request", file=file)
    return HashedTrace(
        [row.timestamp / 1000 for row in rows],
        [row.input_length for row in rows],
        [row.output_length for row in rows],
        [row.hash_ids for row in rows],
    )


def _lines(file: str) -> Iterator[tuple[int, bytes]]:
    """Yield numbered lines that are not empty."""
    try:
        with open_input(Path(file), REQUESTS) as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            if packed:
                with gzip.open(raw) as unpacked:
                    yield from _split(unpacked, file)
            else:
                yield from _split(raw, file)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"cannot be read: {error}", file=file) from None


def _split(source: IO[bytes] | gzip.GzipFile, file: str) -> Iterator[tuple[int, bytes]]:
    read = 0
    for number in count(1):
        line = source.readline(_LONGEST + 1)
        read += len(line)
        if len(line) > _LONGEST or read > REQUESTS.most:
            problem = f"longer than {_LONGEST:,} bytes" if len(line) > _LONGEST else "is too large unpacked"
            raise ConfigError(problem, file=file, key=f"line {number}")
        if not line:
            return
        if line.strip():
            yield number, line
