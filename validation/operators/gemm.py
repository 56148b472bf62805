"""GEMMs against measurements: times of dense GEMMs by GPU and dtype, and the HBM traffic of cuBLAS.

`operators/gemm/GPU/DTYPE` holds all shapes, `operators/gemm-large/…` those with M, N, K ≥ 256,
`operators/gemm-sustained/…` runs at the power-limited clock. The null model is a three-parameter roofline
fitted to the calibration rows of the same topic (to all rows with `--data`).

`operators/traffic/ncu` holds predicted bytes against what a profiler counted on an A100 where M, N, K ≥ 1024,
`operators/traffic/ncu-small` the other shapes. The profiler's locked clock does not change the bytes. The
null model there is compulsory traffic: each operand once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from rapid_des.device.gemm import gemm_times_us
from rapid_des.device.operators import DTYPE_BITS, Dtype, Gemm
from rapid_des.device.pricing import gemm_bytes
from rapid_des.errors import RapidDesError
from rapid_des.values import replace
from validation.measurements import (
    DTYPES,
    PRESETS,
    DataFolder,
    Record,
    UnsupportedRow,
    device_for,
    engine_of,
    prices_on,
)
from validation.scoring import Row, Topic, roofline_null

LARGE = 256
_NO_GEMM = Gemm(1, 1, 1)
TRAFFIC_LARGE = 1024


@dataclass(frozen=True, slots=True)
class MeasuredGemm:
    """One measurement: whose GPU and dtype spelling, what ran, how, and for how long."""

    gpu: str
    dtype: str
    gemm: Gemm
    conditions: tuple[tuple[str, str], ...]
    case_id: str
    time_us: float
    unsupported: str = ""
    """Why its shape or the engine that ran it are not known; `gemm` means nothing then."""


@dataclass(frozen=True)
class Source:
    """One data file: `shape` returns M, N, K, batch of a row, or None if the row is no GEMM."""

    file: str
    shape: Callable[[Record], tuple[int, int, int, int] | None]
    conditions: Callable[[Record], dict[str, str]]
    topic: str = "gemm"


def _columns(row: Record) -> tuple[int, int, int, int]:
    return row.count("M"), row.count("N"), row.count("K"), 1


def _library(row: Record) -> dict[str, str]:
    """aiconfigurator: inside a CUDA graph; on L40S the weights too stay in L2 between repetitions."""
    l2 = "warm" if row["gpu"] == "L40S" else "activations"
    return {"library": engine_of(row["framework"]), "launch": "graph", "l2": l2}


def _vidur(row: Record) -> tuple[int, int, int, int] | None:
    if not row["N"]:
        return None
    return row.count("tokens"), row.count("N"), row.count("K"), 1


@dataclass(frozen=True)
class _Model:
    hidden: int
    query: int
    key_value: int
    ffn: int
    vocabulary: int


_MODELS: Mapping[str, _Model] = {
    "Llama-3.1-8B": _Model(4096, 4096, 1024, 14336, 128256),
    "Llama-3.1-70B": _Model(8192, 8192, 1024, 28672, 128256),
    "Phi-mini-MoE-instruct": _Model(4096, 4096, 1024, 960, 32064),
    "Qwen3-32B": _Model(5120, 8192, 1024, 25600, 151936),
}
"""Widths from the models' published configurations."""

_LAYERS: Mapping[str, Callable[[_Model, int], tuple[int, int]]] = {
    "q_proj": lambda m, tp: (m.query // tp, m.hidden),
    "k_proj": lambda m, tp: (m.key_value // tp, m.hidden),
    "v_proj": lambda m, tp: (m.key_value // tp, m.hidden),
    "qkv_proj": lambda m, tp: ((m.query + 2 * m.key_value) // tp, m.hidden),
    "o_proj": lambda m, tp: (m.hidden, m.query // tp),
    "gate_proj": lambda m, tp: (m.ffn // tp, m.hidden),
    "up_proj": lambda m, tp: (m.ffn // tp, m.hidden),
    "gate_up_proj": lambda m, tp: (2 * m.ffn // tp, m.hidden),
    "down_proj": lambda m, tp: (m.hidden, m.ffn // tp),
    "lm_head": lambda m, tp: (m.vocabulary // tp, m.hidden),
}


def _serving_layer(row: Record) -> tuple[int, int, int, int] | None:
    layer = _LAYERS.get(row["op"])
    if layer is None:
        return None
    if row["model"] not in _MODELS:
        raise UnsupportedRow(f"widths of model {row['model']!r} are not known")
    n, k = layer(_MODELS[row["model"]], row.count("tp"))
    return row.count("tokens"), n, k, 1


def _matmul(row: Record) -> tuple[int, int, int, int] | None:
    return _columns(row) if row["op"] == "matmul" else None


def _neusight(row: Record) -> tuple[int, int, int, int] | None:
    if row["op"] not in {"bmm", "linear"}:
        return None
    batch = row.count("B") if row["op"] == "bmm" else 1
    return (*_columns(row)[:3], batch)


def _microbenchmark(row: Record) -> tuple[int, int, int, int] | None:
    return _columns(row) if row["op"] == "gemm" else None


def _fixed(**conditions: str) -> Callable[[Record], dict[str, str]]:
    return lambda _row: conditions


_PROFILED = {"launch": "graph", "l2": "activations"}
_TIMED = _fixed(library="torch-events", launch="eager", l2="warm")

SOURCES: tuple[Source, ...] = (
    Source("operators/gemm_aiconfigurator.csv", _columns, _library),
    Source("operators/layer_ops_vidur.csv", _vidur, _fixed(library="vidur", **_PROFILED)),
    Source("operators/layer_ops_llmservingsim.csv", _serving_layer, _fixed(**_PROFILED)),
    Source("operators/gemm_deepbench.csv", _columns, _fixed(launch="graph", l2="warm")),
    Source("operators/ops_llmcompass.csv", _matmul, _fixed(launch="eager", l2="warm")),
    Source(
        "operators/ops_neusight_nvidia.csv",
        _neusight,
        _fixed(library="torch-events", launch="eager", l2="warm"),
    ),
    Source(
        "operators/ops_neusight_amd.csv", _neusight, _fixed(library="torch-events", launch="eager", l2="warm")
    ),
    Source(
        "operators/sustained_microbench_azure.csv",
        _microbenchmark,
        _fixed(launch="graph", l2="warm", clock="sustained"),
        topic="gemm-sustained",
    ),
)


def measured_gemms(data: DataFolder) -> Iterator[tuple[str, MeasuredGemm]]:
    """Yield (topic, measurement) of every GEMM row; repeats of one key are averaged."""
    for source in SOURCES:
        repeats: dict[MeasuredGemm, list[float]] = {}
        for row in data.read(source.file):
            measured = _measured(row, source)
            if measured is not None:
                repeats.setdefault(measured, []).append(row.time("time_us"))
        for key, times in repeats.items():
            yield source.topic, replace(key, time_us=sum(times) / len(times))


def _measured(row: Record, source: Source) -> MeasuredGemm | None:
    try:
        shape, conditions = source.shape(row), tuple(sorted(source.conditions(row).items()))
    except UnsupportedRow as why:
        return MeasuredGemm(row["gpu"], row["dtype"], _NO_GEMM, (), row["case_id"], 0.0, str(why))
    if shape is None or not row["time_us"]:
        return None
    m, n, k, batch = shape
    gemm = Gemm(m, n, k, batch=batch, dtype=cast(Dtype, DTYPES.get(row["dtype"], row["dtype"])))
    return MeasuredGemm(row["gpu"], row["dtype"], gemm, conditions, row["case_id"], 0.0)


def topics(data: DataFolder) -> Iterable[Topic]:
    """Yield the GEMM topics of the files that are there."""
    groups: dict[tuple[str, str, str], list[MeasuredGemm]] = {}
    for kind, row in measured_gemms(data):
        groups.setdefault((kind, row.gpu, row.dtype), []).append(row)
    for (kind, gpu, dtype), rows in groups.items():
        yield _topic(f"operators/{kind}/{gpu}/{dtype}", rows, data.split)
        large = [row for row in rows if min(row.gemm.m, row.gemm.n, row.gemm.k) >= LARGE]
        if kind == "gemm" and large:
            yield _topic(f"operators/gemm-large/{gpu}/{dtype}", large, data.split)


def _topic(name: str, measured: Sequence[MeasuredGemm], split: bool) -> Topic:
    return Topic(name, partial(score_rows, measured, split), constants=_constants(measured))


def _constants(measured: Sequence[MeasuredGemm]) -> dict[str, object]:
    known = [
        row for row in measured if row.gpu in PRESETS and row.gemm.dtype in DTYPE_BITS and not row.unsupported
    ]
    used = {(row.gpu, row.gemm.dtype, row.conditions) for row in known}
    return {
        f"gemm/{PRESETS[gpu]}/{device.conditions.library}/{dtype}": dict(device.constants("gemm", dtype))
        for gpu, dtype, conditions in sorted(used)
        for device in (device_for(gpu, **dict(conditions)),)
    }


def score_rows(measured: Sequence[MeasuredGemm], split: bool) -> list[Row]:
    """Return the rows with the model's and the null model's predictions."""
    groups: dict[tuple[bool, tuple[tuple[str, str], ...]], list[int]] = {}
    for place, row in enumerate(measured):
        groups.setdefault((bool(row.unsupported), row.conditions), []).append(place)
    known = [place for place, row in enumerate(measured) if not row.unsupported]
    nulls = dict(zip(known, _null([measured[place] for place in known], split), strict=True))
    return [
        Row(measured[place].case_id, measured[place].time_us, time, nulls.get(place), reason)
        for group in groups.values()
        for place, (time, reason) in zip(
            group, _predict([measured[position] for position in group]), strict=True
        )
    ]


def _predict(group: Sequence[MeasuredGemm]) -> list[tuple[float | None, str]]:
    first = group[0]
    if first.unsupported:
        return [(None, row.unsupported) for row in group]
    if first.gpu not in PRESETS:
        return [(None, f"no device file for {first.gpu}")] * len(group)
    if first.gemm.dtype not in DTYPE_BITS:
        return [(None, f"no dtype {first.dtype}")] * len(group)
    device = device_for(first.gpu, **dict(first.conditions))
    try:
        times = gemm_times_us([row.gemm for row in group], device)
    except RapidDesError as error:
        return [(None, str(error))] * len(group)
    return [(float(time), "") for time in times]


def _null(measured: Sequence[MeasuredGemm], split: bool) -> Sequence[float | None]:
    if not measured or measured[0].gemm.dtype not in DTYPE_BITS:
        return [None] * len(measured)
    basis = [
        (2.0 * row.gemm.batch * row.gemm.m * row.gemm.n * row.gemm.k, float(gemm_bytes(row.gemm)))
        for row in measured
    ]
    return roofline_null(basis, [(row.case_id, row.time_us) for row in measured], split=split)


def traffic_topics(data: DataFolder) -> Iterable[Topic]:
    """Yield the two traffic topics where the profiler's file is there."""
    rows = data.read("rapid/ncu_gemm_a100_measured.csv")
    large = [row for row in rows if min(row.count(key) for key in ("m", "n", "k")) >= TRAFFIC_LARGE]
    small = [row for row in rows if row not in large]
    for name, chosen in (("ncu", large), ("ncu-small", small)):
        if chosen:
            yield Topic(f"operators/traffic/{name}", partial(_traffic_rows, chosen), unit="byte")


def _traffic_rows(rows: Sequence[Record]) -> list[Row]:
    prices = prices_on(device_for("A100-SXM4-80GB", library="cublas", l2="cold"))
    scored = []
    for row in rows:
        m, n, k = (row.count(key) for key in ("m", "n", "k"))
        gemm = Gemm(m, n, k, dtype="fp16")
        counted = row.number("dram_read") + row.number("dram_write")
        predicted = prices.estimate(gemm).bytes["hbm"]
        scored.append(Row(f"ncu/{m},{n},{k}", counted, float(predicted), float(gemm_bytes(gemm))))
    return scored
