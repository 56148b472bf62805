"""Operators priced by regressors on measured samples, behind the interface of the native models.

A device file says `operators: learned:FILE`. Each operator that FILE has a regressor for, and whose sizes lie
in the sampled range, is priced by it; any other by the fallback that FILE declares (`native` or `roofline`).
Every estimate says which it was; `fallbacks` and `unused` sum up where FILE and a job missed each other.
"""

from __future__ import annotations

import csv
import json
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec
import numpy as np
from msgspec import Struct, field

from rapid_des.arrays import Floats
from rapid_des.bounded_cache import BoundedCache
from rapid_des.config.documents import read_rows
from rapid_des.device.device import Device
from rapid_des.device.operators import Attention, Estimate, Gemm, Operator, OperatorModel, Vector
from rapid_des.device.pricing import OperatorSource, operator_model, prices_of
from rapid_des.errors import InputError, RapidDesError
from rapid_des.inputs import LEARNED_FILE, open_input
from rapid_des.learned.regressors import Forest, Regressor, Trend
from rapid_des.values import replace

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


FORMAT = "rapid-des learned operators 1"
_MOST_UNPACKED = 1 << 28
"""The most bytes that a file's arrays may take."""
_LONGEST_US = 1e12
_MOST_NAMES = 8

Fallback = Literal["native", "roofline"]
FALLBACKS: tuple[Fallback, ...] = ("native", "roofline")


class LeftOut(msgspec.Struct, frozen=True):
    """Samples of one kind that no regressor was fitted to."""

    rows: int
    reason: str


class LearnedFile(Struct, frozen=True):
    """Regressors by operator, where their samples came from, and what prices the rest."""

    regressors: Mapping[str, Regressor]
    source: str
    fallback: Fallback
    left_out: Mapping[str, LeftOut] = field(default_factory=dict)
    """The samples that were read and not used, by the names in their file."""

    def save(self, path: Path) -> None:
        """Write a `.npz` of plain arrays and one JSON text: no code, the same bytes for the same model."""
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        described = {}
        for number, (name, regressor) in enumerate(self.regressors.items()):
            prefix = f"r{number}"
            arrays |= regressor.forest.arrays(prefix)
            arrays[f"{prefix}.coefficients"] = regressor.trend.coefficients
            described[name] = _describe(regressor, prefix)
        head = {"format": FORMAT, "source": self.source, "fallback": self.fallback, "operators": described}
        arrays["head"] = np.frombuffer(json.dumps(head).encode(), dtype=np.uint8)
        with path.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def load_learned(path: Path) -> LearnedFile:
    """Return a file's regressors; a file that is none, or is damaged, is an `InputError` naming it."""
    if not path.exists():
        raise InputError(f"{path}: there is no such file of learned operators")
    try:
        with open_input(path, LEARNED_FILE) as packed:
            _check_size(packed)
            with np.load(packed, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        head = json.loads(bytes(arrays["head"]).decode())
        if head["format"] != FORMAT:
            raise InputError(f"{path}: format {head['format']!r}, this version reads {FORMAT!r}")
        regressors = {name: _restore(entry, arrays) for name, entry in head["operators"].items()}
        if head["fallback"] not in FALLBACKS or not isinstance(head["source"], str):
            raise ValueError(f"fallback {head['fallback']!r} is not one of {', '.join(FALLBACKS)}")
        return LearnedFile(regressors, head["source"], head["fallback"])
    except RapidDesError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the readers of zip and npy make of damaged bytes
        problem = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path}: no file of learned operators ({problem:.200})") from None


def _check_size(file: BinaryIO) -> None:
    """Refuse a container whose parts unpack to more than any file of regressors holds."""
    with zipfile.ZipFile(file) as packed:
        size = sum(part.file_size for part in packed.infolist())
    if size > _MOST_UNPACKED:
        raise ValueError(f"unpacks to {size:,} bytes; allowed: {_MOST_UNPACKED:,}")
    file.seek(0)


class LearnedOperators:
    """A model that prices one job by a file of regressors, and records where file and job differ."""

    def __init__(self, file: LearnedFile, name: str, fallback: OperatorModel, prices: BoundedCache) -> None:
        self.file, self.name = file, name
        self._fallback, self._prices = fallback, prices
        self._asked: dict[Operator, None] = {}

    def estimate(self, operator: Operator) -> Estimate:
        """Return the latency of one operator."""
        self._asked[operator] = None
        return self._prices.get_or_make(operator, partial(self._price, operator))

    def unused(self) -> tuple[str, ...]:
        """Return the operators that the file has a regressor for and that nothing has asked for so far."""
        asked = {shape.name for operator in self._asked if (shape := shape_of(operator))}
        return tuple(name for name in self.file.regressors if name not in asked)

    def fallbacks(self) -> Mapping[str, str]:
        """Return the operators that were asked for and left to the fallback, by name, and why.

        The name is that of the samples; for what no sample can describe it is the kind of operator.
        """
        named = ((shape_of(operator), operator) for operator in self._asked)
        missed = (
            (shape.name if shape else type(operator).__name__, self._missing(shape))
            for shape, operator in named
        )
        return {name: why for name, why in missed if why}

    def _missing(self, shape: Shape | None) -> str:
        """Return why the file does not price a shape; nothing if it does."""
        regressor = self.file.regressors.get(shape.name) if shape else None
        if shape is None or regressor is None:
            return "no samples"
        return "" if regressor.inside(shape.sizes) else "outside the sampled range"

    def _price(self, operator: Operator) -> Estimate:
        below, shape = self._fallback.estimate(operator), shape_of(operator)
        why = self._missing(shape)
        if shape is None or why:
            return replace(below, detail={**below.detail, "fallback": why})
        regressor, model = self.file.regressors[shape.name], f"learned:{self.name}"
        microseconds = float(regressor.predict(np.array([shape.sizes], dtype=np.float64))[0])
        if not 0 < microseconds < _LONGEST_US:
            raise InputError(f"{model}: {shape.name}: predicts {microseconds} us, which is no time")
        detail = {
            "model": model,
            "regressor": regressor.kind,
            "cross_validation_error": regressor.error,
            "native_duration_ps": below.duration,
        }
        return replace(below, duration=round(microseconds * 1e6), detail=detail, model=model)


def _model(path: Path, device: Device, memory: BoundedCache) -> LearnedOperators:
    """Return the model of a file for a device; what the file leaves out, its fallback prices."""
    prices = prices_of(device, memory)
    file = prices.get_or_make("file", lambda: load_learned(path))
    return LearnedOperators(file, path.name, operator_model(device.priced_by(file.fallback), memory), prices)


def learned_notes(models: Iterable[OperatorModel]) -> tuple[str, ...]:
    """Return, for the models that priced one job, where it and a file of regressors missed each other."""
    by_file: dict[str, list[LearnedOperators]] = {}
    for model in models:
        if isinstance(model, LearnedOperators):
            by_file.setdefault(model.name, []).append(model)
    notes = []
    for name, learned in by_file.items():
        unused = [each for each in learned[0].unused() if all(each in other.unused() for other in learned)]
        if unused:
            notes.append(f"learned:{name} has samples of what nothing here asks for: {_some(unused)}")
        reasons = {each: why for model in learned for each, why in model.fallbacks().items()}
        if reasons:
            left = _some([f"{each} ({why})" for each, why in reasons.items()])
            notes.append(f"learned:{name} left to the {learned[0].file.fallback} model: {left}")
    return tuple(notes)


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _describe(regressor: Regressor, prefix: str) -> dict[str, object]:
    return {
        "prefix": prefix,
        "names": list(regressor.names),
        "low": regressor.low.tolist(),
        "high": regressor.high.tolist(),
        "kind": regressor.kind,
        "degree": regressor.trend.degree,
        "error": regressor.error,
        "rows": regressor.rows,
    }


def _restore(entry: Mapping[str, Any], arrays: dict[str, Any]) -> Regressor:
    prefix = entry["prefix"]
    names, low, high = (list(entry[key]) for key in ("names", "low", "high"))
    regressor = Regressor(
        names=tuple(str(name) for name in names),
        low=np.array(low, np.float64),
        high=np.array(high, np.float64),
        kind=str(entry["kind"]),
        trend=Trend(int(entry["degree"]), arrays[f"{prefix}.coefficients"].astype(np.float64)),
        forest=Forest.from_arrays(arrays, prefix),
        error=float(entry["error"]),
        rows=int(entry["rows"]),
    )
    regressor.check()
    return regressor


OPERATORS = OperatorSource(_model, learned_notes)
