"""Sampled timings as a table: one row a measurement, one column a size."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Floats
from rapid_des.config.documents import read_rows
from rapid_des.device.operators import Attention, Gemm, Operator, Vector
from rapid_des.errors import InputError

GEMM_SIZES = ("m", "n", "k", "batch")
ATTENTION_SIZES = ("batch", "query_length", "key_length", "heads", "kv_heads", "head_dim")
VECTOR_SIZES = ("rows", "columns")
SIZES = tuple(dict.fromkeys(GEMM_SIZES + ATTENTION_SIZES + VECTOR_SIZES))
COLUMNS = ("operator", *SIZES, "time_us", "spread_us", "device", "method")
"""The columns that `rapid-des device sample` writes; a size that an operator does not have is blank."""


_LARGEST = 1e15
_NUMBER = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?\Z")


class Shape(Struct, frozen=True):
    """An operator as a regressor sees it: a name for all that is not a size, and the sizes."""

    name: str
    names: tuple[str, ...]
    sizes: tuple[float, ...]


class Samples(Struct, frozen=True):
    """The measurements of one operator."""

    names: tuple[str, ...]
    sizes: Floats
    time_us: Floats


def shape_of(operator: Operator) -> Shape | None:
    """Return an operator's shape; None for those that are not sampled (grouped, windowed, paged, …).

    >>> shape_of(Gemm(8, 16, 32)).name
    'gemm/bf16'
    """
    if isinstance(operator, Gemm):
        if operator.accumulate or operator.weight_dtype not in {None, operator.dtype}:
            return None
        return _shape(f"gemm/{operator.dtype}", operator, GEMM_SIZES)
    if isinstance(operator, Vector):
        return _shape(f"{operator.kind}/{operator.phase}/{operator.dtype}", operator, VECTOR_SIZES)
    if isinstance(operator, Attention) and _is_plain(operator):
        mask = "causal" if operator.causal else "full"
        name = "attention" if operator.fused else "unfused_attention"
        return _shape(f"{name}/{operator.phase}/{operator.dtype}/{mask}", operator, ATTENTION_SIZES)
    return None


def read_samples(path: Path, *, by: Sequence[str], sizes: Sequence[str], time: str) -> dict[str, Samples]:
    """Return a CSV's samples grouped by the columns `by`; the sizes of a group are those it fills in.

    Units of `time` are microseconds. A missing column, an empty file or a value that is no number is an
    `InputError` naming the file and the line.
    """
    records = read_rows(path, (*by, time))
    groups: dict[str, list[tuple[int, Mapping[str, str]]]] = defaultdict(list)
    for line, record in enumerate(records, start=2):
        if None in record or None in record.values():
            raise InputError(f"{path}: line {line} has not {len(records[0])} cells")
        groups["/".join(record[name] for name in by)].append((line, record))
    return {name: _samples(path, rows, sizes, time) for name, rows in groups.items()}


def write_samples(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write rows with the columns `COLUMNS`."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _samples(
    path: Path, rows: Sequence[tuple[int, Mapping[str, str]]], sizes: Sequence[str], time: str
) -> Samples:
    filled = tuple(name for name in sizes if name in rows[0][1] and all(row[name] for _, row in rows))
    if not filled:
        raise InputError(f"{path}: line {rows[0][0]}: none of the sizes {', '.join(sizes)} is given")
    table = [[number_in(path, line, row[name]) for name in (*filled, time)] for line, row in rows]
    values = np.array(table)
    return Samples(filled, values[:, :-1], values[:, -1])


def number_in(path: Path, line: int, text: str) -> float:
    """Return a size or a time; what is no finite number from 0 on is an `InputError`."""
    number = float(text) if _NUMBER.match(text.strip()) else -1.0
    if not 0 <= number <= _LARGEST:
        problem = f"{text[:60]!r} is no number; allowed: 0 to {_LARGEST:.0e}"
        raise InputError(f"{path}: line {line}: {problem}")
    return number


def _shape(name: str, operator: Operator, names: tuple[str, ...]) -> Shape:
    return Shape(name, names, tuple(float(getattr(operator, size)) for size in names))


def _is_plain(attention: Attention) -> bool:
    return (
        attention.window is None
        and attention.page_size is None
        and not attention.shared_latent
        and attention.value_dim in {None, attention.head_dim}
        and attention.kv_dtype in {None, attention.dtype}
    )
