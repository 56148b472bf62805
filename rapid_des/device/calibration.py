"""Fitting the constants of operator models to measured times: a deterministic pattern search within bounds.

The loss is the mean absolute log error, averaged within a case and then over cases, so that a long sweep does
not outvote the rest. Constants that are utilisations stay at or below 1. Geometry (tiles, blocks an SM holds,
splitting rules) is no subject of a fit: the kernels fix it.

The files of measured operators are read here: `device calibrate` reads a user's files, the project's own
validation those that it ships.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Generic, Self, TypeVar, cast

import numpy as np
from msgspec import Struct, field, structs

from rapid_des.arrays import Floats
from rapid_des.config.documents import read_text
from rapid_des.device.device import Device
from rapid_des.device.gemm import gemm_times_us
from rapid_des.device.gemm.candidates import UTILISATIONS, GemmConstants
from rapid_des.device.operators import DTYPE_BITS, Attention, Dtype, Gemm, Operator, Vector
from rapid_des.device.pricing import operator_model
from rapid_des.errors import InputError
from rapid_des.inputs import unpack_input
from rapid_des.values import asdict, replace


class UnsupportedRow(InputError, ValueError):  # noqa: N818 - no error: such rows are counted
    """A measured row that no model here represents; its text is the reason."""


class Record(dict[str, str]):
    """A row of a file as text by column; a column that is not there is an `InputError`."""

    def __init__(self, columns: Mapping[str, str] | Iterable[tuple[str, str]], where: str) -> None:
        super().__init__(columns)
        self.where = where
        """File and line, for messages."""

    def __missing__(self, column: str) -> str:
        raise InputError(f"{self.where}: no column {column!r}; there are {', '.join(map(str, self))}")

    def number(self, column: str) -> float:
        """Return a finite number; a blank is an `UnsupportedRow`, and `InputError` places anything else."""
        text = self[column]
        if text == "":
            raise UnsupportedRow(f"{column} is not printed")
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
            reader = csv.reader(io.StringIO(text, newline=""))
            columns = next(reader, [])
            rows = [(f"{path}: line {reader.line_num}", fields) for fields in reader if fields]
        except (csv.Error, EOFError, UnicodeDecodeError, OSError, zlib.error) as error:
            raise InputError(f"{path}: is no table of measurements: {error}") from None
        for where, fields in rows:
            if len(fields) > len(columns):
                raise InputError(f"{where}: more fields than the {len(columns)} columns of the first line")
            if len(fields) < len(columns):
                raise InputError(f"{where}: ends before its last column")
        return [Record(zip(columns, fields, strict=True), where) for where, fields in rows]


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


_Call = TypeVar("_Call")

Bounds = Mapping[str, tuple[float, float]]
"""The least and the greatest value of a constant, by name."""

_FIRST_STEP = 0.3
_LAST_STEP = 0.02
_SMALLEST_GAIN = 1e-5
_FIRST_SHARE_OF_RANGE = 0.01
_UNLIMITED = (-math.inf, math.inf)

FLASH: Bounds = {
    "tensor_utilisation": (0.2, 0.97), "softmax_ops": (2, 40), "overlap": (0, 1), "cta_us": (0, 15),
    "kernel_us": (0, 20), "input_passes": (0, 12), "norm": (1, 6),
}  # fmt: skip
DECODE: Bounds = {
    "tensor_utilisation": (0.2, 0.97), "stream_gbps": (5, 400), "cta_us": (0, 15), "kernel_us": (0, 15),
    "combine_us": (0, 10), "combine_split_us": (0, 1), "regroup_us": (0, 10), "row_passes": (0, 80),
    "norm": (1, 8),
}  # fmt: skip
KERNEL: Bounds = {
    "step_us": (0.02, 6), "row_us": (0, 20), "kernel_us": (0, 60), "norm": (1, 12),
    "vector_utilisation": (0.05, 1),
}  # fmt: skip
BOUNDS: Mapping[str, Bounds] = {
    "attention": FLASH, "decode": DECODE, "decode_mha": DECODE, "mla_decode": DECODE, "mla_prefill": FLASH,
    "vector": KERNEL,
}  # fmt: skip
"""The constants that a fit may change in each section, with their bounds."""


class MeasuredCalls(Struct, Generic[_Call], frozen=True):
    """Measured calls of one device; `cases` name what each belongs to."""

    device: Device
    operators: tuple[_Call, ...]
    measured_us: Floats
    cases: tuple[str, ...]

    def weights(self) -> Floats:
        """Return weights that sum to 1 with every case weighing the same."""
        _, index, counts = np.unique(np.array(self.cases), return_inverse=True, return_counts=True)
        share: Floats = 1.0 / counts[index] / len(counts)
        return share

    def log_error(self, predicted_us: Floats) -> float:
        """Return the mean absolute log error, every case weighing the same."""
        return float(np.sum(self.weights() * np.abs(np.log(predicted_us / self.measured_us))))

    def thinned(self, most: int) -> Self:
        """Return at most `most` calls, evenly spaced in their order."""
        count = len(self.cases)
        chosen = np.unique(np.linspace(0, count - 1, min(most, count)).astype(int)).tolist()
        operators, cases = tuple(self.operators[i] for i in chosen), tuple(self.cases[i] for i in chosen)
        return replace(self, operators=operators, measured_us=self.measured_us[chosen], cases=cases)


class MeasuredGemms(MeasuredCalls[Gemm], frozen=True):
    """Measured GEMMs of one device, library and dtype."""

    def predicted_us(self, fit: GemmConstants) -> Floats:
        """Return the model's times with the given constants, launch included."""
        return gemm_times_us(self.operators, self.device, fit)


class SectionCalls(MeasuredCalls[tuple[Operator, ...]], frozen=True):
    """Measured calls that one section prices on one device; each runs its kernels one after the other."""

    section: str
    dtype: str
    """The dtype of the cache or of the vector kernels; it selects the scope of the constants."""

    @property
    def known(self) -> Mapping[str, float]:
        """The constants of the section that price these calls today."""
        return self.device.constants(self.section, self.dtype)

    def predicted_us(self, constants: Mapping[str, float]) -> Floats:
        """Return the times with `constants` in place of the section's, launches included."""
        price = operator_model(self._device_with(constants)).estimate
        times = [sum(price(operator).duration for operator in call) / 1e6 for call in self.operators]
        return np.array(times)

    def kinds(self) -> tuple[str, ...]:
        """Return the vector kinds among the calls; an attention section has none."""
        if self.section != "vector":
            return ()
        operators = (operator for call in self.operators for operator in call)
        return tuple(sorted({operator.kind for operator in operators if isinstance(operator, Vector)}))

    def _device_with(self, constants: Mapping[str, float]) -> Device:
        """Return the native device with the values in the strongest scope, which nothing overrides."""
        spec, scope = self.device.spec, f"{self.device.conditions.library}/{self.dtype}"
        section = dict(spec.constants.get(self.section, {}))
        section[scope] = {**section.get(scope, {}), **constants}
        every = {**spec.constants, self.section: section}
        return replace(self.device, spec=structs.replace(spec, constants=every, operators="native"))


def error(fit: GemmConstants, samples: Sequence[MeasuredGemms]) -> float:
    """Return the mean absolute log error of several devices' GEMMs, every case weighing the same."""
    return sum(group.log_error(group.predicted_us(fit)) for group in samples) / len(samples)


def fit_constants(
    start: GemmConstants, samples: Sequence[MeasuredGemms], names: Sequence[str]
) -> GemmConstants:
    """Return the constants with `names` fitted; the others stay as they are."""

    def loss(values: dict[str, float]) -> float:
        return error(GemmConstants(**values), samples)

    return GemmConstants(**pattern_search(asdict(start), loss, names, shares=UTILISATIONS))


def changed(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return the constants that differ from `before`, to four digits: what a device file has to say."""
    shown = {name: float(f"{value:.4g}") for name, value in after.items()}
    return {name: value for name, value in shown.items() if before.get(name) != value}


def bounds_of(calls: SectionCalls) -> dict[str, tuple[float, float]]:
    """Return the bounds of the constants that the calls can fit; `KIND_NAME` is that of one vector kind."""
    known, shared = calls.known, BOUNDS[calls.section]
    starts = {name: limits for name, limits in shared.items() if name in known}
    return starts | {
        f"{kind}_{name}": limits
        for kind in calls.kinds()
        for name, limits in shared.items()
        if name in known or f"{kind}_{name}" in known
    }


def constants_in_use(calls: SectionCalls) -> tuple[str, ...]:
    """Return the names that set the calls' times: a vector kind's `KIND_NAME` where there is one."""
    names = BOUNDS[calls.section]
    if calls.section != "vector":
        return tuple(name for name in names if name in calls.known)
    used = (
        specific if (specific := f"{kind}_{name}") in calls.known else name
        for kind in calls.kinds()
        for name in names
    )
    return tuple(dict.fromkeys(name for name in used if name in calls.known))


def fit_calls(calls: SectionCalls, names: Sequence[str]) -> dict[str, float]:
    """Return the values of `names` that the calls fit best; the section's others stay as they are."""

    def loss(values: Mapping[str, float]) -> float:
        return calls.log_error(calls.predicted_us(values))

    bounds = bounds_of(calls)
    start = {name: _start(calls, name) for name in names}
    return pattern_search(start, loss, names, bounds={name: bounds[name] for name in names})


def _start(calls: SectionCalls, name: str) -> float:
    """Return the constant as it is; a `KIND_NAME` that is new starts at what holds for all kinds."""
    shared = (each for each in KERNEL if name.endswith(f"_{each}"))
    return calls.known[name] if name in calls.known else calls.known[next(shared)]


def pattern_search(
    start: Mapping[str, float],
    loss: Callable[[dict[str, float]], float],
    names: Collection[str],
    *,
    shares: Collection[str] = (),
    bounds: Bounds | None = None,
) -> dict[str, float]:
    """Return the constants with `names` fitted; the others stay as they are.

    Those in `shares` stay at or below 1, those in `bounds` within them.

    Each pass tries every constant a step up and a step down (a factor), keeps what lowers the loss, goes on
    in that direction, and halves the step of a constant that nothing helped. A bounded constant leaves 0 by a
    hundredth of its greatest value.

    >>> round(pattern_search({"x": 1.0}, lambda fit: (fit["x"] - 3.0) ** 2, ["x"])["x"], 1)
    3.0
    """
    limits = {name: (-math.inf, 1.0) for name in shares} | dict(bounds or {})
    best = {name: _within(value, limits.get(name, _UNLIMITED)) for name, value in start.items()}
    least = loss(dict(best))
    steps = dict.fromkeys(names, _FIRST_STEP)
    while max(steps.values()) >= _LAST_STEP:
        for name in names:
            if steps[name] < _LAST_STEP:
                continue
            trial = _along(best, least, (name, steps[name], limits.get(name, _UNLIMITED)), loss)
            if trial[1] < least:
                best, least = trial
            else:
                steps[name] /= 2
    return best


def _along(
    best: dict[str, float],
    least: float,
    move: tuple[str, float, tuple[float, float]],
    loss: Callable[[dict[str, float]], float],
) -> tuple[dict[str, float], float]:
    name, step, limits = move
    for factor in (1 + step, 1 / (1 + step)):
        improved = False
        while True:
            trial = {**best, name: _within(_moved(best[name], factor, limits[1]), limits)}
            if trial == best or (error := loss(trial)) >= least - _SMALLEST_GAIN:
                break
            best, least, improved = trial, error, True
        if improved:
            break
    return best, least


def _moved(value: float, factor: float, greatest: float) -> float:
    if value == 0 and factor > 1 and greatest < math.inf:
        return _FIRST_SHARE_OF_RANGE * greatest
    return value * factor


def _within(value: float, limits: tuple[float, float]) -> float:
    return min(max(value, limits[0]), limits[1])
