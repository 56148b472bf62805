"""Files of measured operators: how they are read, which rows a fit may see, and what a row ran.

`device calibrate` reads a user's files with this, the project's own validation those that it ships.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from msgspec import Struct, field

from rapid_des.config.documents import read_text
from rapid_des.device.operators import DTYPE_BITS, Attention, Dtype, Operator, Vector
from rapid_des.errors import InputError
from rapid_des.inputs import unpack_input


class UnsupportedRow(InputError, ValueError):  # noqa: N818 - no error: such rows are counted
    """A measured row that no model here represents; its text is the reason."""


class Record(dict[str, str]):
    """A row of a file as text by column; a column that is not there is an `InputError`."""

    def __init__(self, columns: Mapping[str, str], where: str) -> None:
        super().__init__(columns)
        self.where = where
        """File and line, for messages."""

    def __missing__(self, column: str) -> str:
        raise InputError(f"{self.where}: no column {column!r}; there are {', '.join(map(str, self))}")

    def number(self, column: str) -> float:
        """Return a finite number; `InputError` names the place of anything else."""
        text = self[column]
        try:
            value = float(text)
        except (TypeError, ValueError):
            value = math.nan
        if not math.isfinite(value):
            raise InputError(f"{self.where}: {column}: {text!r} is no number")
        return value

    def count(self, column: str, *, least: int = 1) -> int:
        """Return a whole number from `least` to 2**53."""
        value = self.number(column)
        if not least <= value <= _MOST or value != int(value):
            raise InputError(f"{self.where}: {column}: {self[column]!r} is no whole number from {least} on")
        return int(value)

    def time(self, column: str) -> float:
        """Return a measured time: above 0, in the unit of its column."""
        value = self.number(column)
        if value <= 0:
            raise InputError(f"{self.where}: {column}: {self[column]!r} is no time above 0")
        return value


_MOST = 2**53
_MORE = "fields beyond the last column"


class DataFolder(Struct, frozen=True):
    """Measured files below `path`, plain or gzipped; `split` is False (`--data`) where every row is test."""

    path: Path
    split: bool
    absent: list[str] = field(default_factory=list)
    """The requested file names that do not exist, in order of request."""

    def find(self, name: str) -> Path | None:
        """Return the file `name` or its `.gz` form; None, and remembered as absent, if neither exists."""
        for candidate in (self.path / name, self.path / f"{name}.gz"):
            if candidate.is_file():
                return candidate
        if name not in self.absent:
            self.absent.append(name)
        return None

    def read(self, name: str) -> list[Record]:
        """Return the rows of a CSV file as text by column; [] when the file is absent."""
        path = self.find(name)
        if path is None:
            return []
        try:
            text = unpack_input(path).decode("utf-8") if path.suffix == ".gz" else read_text(path)
            reader = csv.DictReader(io.StringIO(text, newline=""), restkey=_MORE)
            rows = [Record(row, f"{path}: line {reader.line_num}") for row in reader]
        except (csv.Error, EOFError, UnicodeDecodeError, OSError, zlib.error) as error:
            raise InputError(f"{path}: is no table of measurements: {error}") from None
        for row in rows:
            if _MORE in row:
                raise InputError(
                    f"{row.where}: more fields than the {len(row) - 1} columns of the first line"
                )
            if None in row.values():
                raise InputError(f"{row.where}: ends before its last column")
        return rows


DTYPES: dict[str, str] = {
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "fp16",
    "fp16": "fp16",
    "half": "fp16",
    "fp16(tensor-core,fp32-acc)": "fp16",
    "fp32": "fp32",
    "float32": "fp32",
    "fp8": "fp8",
    "fp8_block": "fp8",
    "nvfp4": "fp4",
    "fp4": "fp4",
}
"""The dtype of an operator, by its spelling in a data file."""


def dtype_of(text: str) -> Dtype:
    """Return the dtype behind a data file's spelling; an unknown one is an `UnsupportedRow`."""
    dtype = DTYPES.get(text, text)
    if dtype not in DTYPE_BITS:
        raise UnsupportedRow(f"dtype {dtype!r} is not one of {', '.join(DTYPE_BITS)}")
    return cast(Dtype, dtype)


def is_calibration(case_id: str) -> bool:
    """Return whether a case belongs to the calibration split: an even sha256.

    >>> is_calibration("a"), is_calibration("b")
    (False, False)
    """
    return int(hashlib.sha256(case_id.encode()).hexdigest()[-1], 16) % 2 == 0


def attention_operators(record: Record, library: str) -> tuple[Operator, ...]:
    """Return the operators of a row's call; vLLM first writes the new keys and values in a kernel."""
    attention = _attention(record)
    if library != "vllm":
        return (attention,)
    columns = 2 * attention.kv_heads * attention.head_dim
    written = attention.batch * attention.query_length
    write = Vector("kv_cache_write", written, columns, attention.kv_dtype or attention.dtype)
    return attention, write


def mla_operator(record: Record) -> Attention:
    """Return a row's MLA: decode over the absorbed latent, prefill with heads of 192 and 128."""
    queries, keys = record.count("q_len"), record.count("past_len", least=0) + record.count("q_len")
    heads = record.count("n_heads")
    dtype, cache = dtype_of(record["dtype"]), dtype_of(record["kv_dtype"])
    if record["op"] == "mla_decode":
        return Attention(
            record.count("batch"), queries, keys, heads, 1, head_dim=576, value_dim=512,
            dtype=dtype, kv_dtype=cache, shared_latent=True,
        )  # fmt: skip
    return Attention(
        record.count("batch"), queries, keys, heads, heads, head_dim=192, value_dim=128,
        dtype=dtype, kv_dtype=cache,
    )  # fmt: skip


def _attention(record: Record) -> Attention:
    return Attention(
        record.count("batch"), record.count("q_len"), record.count("kv_len"),
        heads=record.count("n_heads"), kv_heads=record.count("n_kv_heads"), head_dim=record.count("head_dim"),
        dtype=dtype_of(record["dtype"]), kv_dtype=dtype_of(record["kv_dtype"]),
    )  # fmt: skip
