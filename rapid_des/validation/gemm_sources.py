"""The measured GEMMs: how each data file spells a shape, and under which conditions it was taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from rapid_des.device.operators import Dtype, Gemm
from rapid_des.validation.folder import DataFolder, Record
from rapid_des.validation.hardware import DTYPES


@dataclass(frozen=True, slots=True)
class MeasuredGemm:
    """One measurement: whose GPU and dtype spelling, what ran, how, and for how long."""

    gpu: str
    dtype: str
    gemm: Gemm
    conditions: tuple[tuple[str, str], ...]
    case_id: str
    time_us: float


@dataclass(frozen=True)
class Source:
    """One data file: `shape` returns M, N, K, batch of a row, or None if the row is no GEMM."""

    file: str
    shape: Callable[[Record], tuple[int, int, int, int] | None]
    conditions: Callable[[Record], dict[str, str]]
    topic: str = "gemm"


def _columns(row: Record) -> tuple[int, int, int, int]:
    return int(float(row["M"])), int(float(row["N"])), int(float(row["K"])), 1


def _library(row: Record) -> dict[str, str]:
    """aiconfigurator: inside a CUDA graph; on L40S the weights too stay in L2 between repetitions."""
    l2 = "warm" if row["gpu"] == "L40S" else "activations"
    return {"library": row["framework"].split("-")[0], "launch": "graph", "l2": l2}


def _vidur(row: Record) -> tuple[int, int, int, int] | None:
    if not row["N"]:
        return None
    return int(row["tokens"]), int(float(row["N"])), int(float(row["K"])), 1


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
    n, k = layer(_MODELS[row["model"]], int(row["tp"]))
    return int(row["tokens"]), n, k, 1


def _matmul(row: Record) -> tuple[int, int, int, int] | None:
    return _columns(row) if row["op"] == "matmul" else None


def _neusight(row: Record) -> tuple[int, int, int, int] | None:
    if row["op"] not in {"bmm", "linear"}:
        return None
    batch = int(float(row["B"])) if row["op"] == "bmm" else 1
    return (*_columns(row)[:3], batch)


def _microbenchmark(row: Record) -> tuple[int, int, int, int] | None:
    return _columns(row) if row["op"] == "gemm" else None


def _fixed(**conditions: str) -> Callable[[Record], dict[str, str]]:
    return lambda _row: conditions


_PROFILED = {"launch": "graph", "l2": "activations"}

SOURCES: tuple[Source, ...] = (
    Source("operators/gemm_aiconfigurator.csv", _columns, _library),
    Source("operators/layer_ops_vidur.csv", _vidur, _fixed(library="vidur", **_PROFILED)),
    Source("operators/layer_ops_llmservingsim.csv", _serving_layer, _fixed(**_PROFILED)),
    Source("operators/gemm_deepbench.csv", _columns, _fixed(launch="graph", l2="warm")),
    Source("operators/ops_llmcompass.csv", _matmul, _fixed(launch="eager", l2="warm")),
    Source("operators/ops_neusight_nvidia.csv", _neusight, _fixed(launch="eager", l2="warm")),
    Source("operators/ops_neusight_amd.csv", _neusight, _fixed(launch="eager", l2="warm")),
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
            found = _measured(row, source)
            if found is not None:
                repeats.setdefault(found, []).append(float(row["time_us"]))
        for key, times in repeats.items():
            mean = sum(times) / len(times)
            yield source.topic, MeasuredGemm(key.gpu, key.dtype, key.gemm, key.conditions, key.case_id, mean)


def _measured(row: Record, source: Source) -> MeasuredGemm | None:
    shape = source.shape(row)
    if shape is None or not row["time_us"]:
        return None
    m, n, k, batch = shape
    gemm = Gemm(m, n, k, batch=batch, dtype=cast(Dtype, DTYPES.get(row["dtype"], row["dtype"])))
    conditions = tuple(sorted(source.conditions(row).items()))
    return MeasuredGemm(row["gpu"], row["dtype"], gemm, conditions, row["case_id"], 0.0)
