"""Measured servers whose requests came as a trace says: vLLM's, of LLMServingSim's examples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from rapid_des.values import replace
from validation.inference import runs
from validation.jobs.cases import Case, Served
from validation.jobs.decoders import Tree
from validation.jobs.origins import place
from validation.jobs.rows import (
    Figure,
    MeasuredJob,
    first_token_ms,
    job_topics,
    per_token_ms,
    step_ms,
)
from validation.measurements import DataFolder, Names, Record, UnsupportedRow
from validation.scoring import Topic

TRACES = "inference_e2e/vllm_request_traces_llmservingsim.csv"
_MODELS: Mapping[str, str] = {
    "Llama-3.1-8B": "llama3_1_8b",
    "Qwen3-30B-A3B-Instruct-2507": "qwen3_30b_a3b",
}
_GPUS: Mapping[str, str] = Names("GPU", {"RTX4090": "RTX4090", "RTXPRO6000": "RTX-PRO-6000"})
_FLAGS: Mapping[str, tuple[float, int]] = Names("GPU", {"RTX4090": (0.9, 256), "RTXPRO6000": (0.92, 128)})
"""vLLM's gpu_memory_utilization and max_num_seqs, as the meta.json beside each run's trace prints them
(github.com/casys-kaist/LLMServingSim, bench); the shares are the defaults of vLLM 0.19 and 0.28."""
_TOKENS = 2048
_FIGURES: Mapping[str, Figure] = {"ttft": first_token_ms, "tpot": per_token_ms, "e2e": step_ms}


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `inference/vllm-traces/ttft|tpot|e2e`."""
    yield from job_topics(_traces(data), runs(), unit="ms", split=data.split)


def _traces(data: DataFolder) -> Iterator[MeasuredJob]:
    """Yield the means of each case."""
    cases: dict[str, list[Record]] = defaultdict(list)
    for record in data.read(TRACES):
        cases[record["case_id"]].append(record)
    for case_id, records in cases.items():
        for name, figure in _FIGURES.items():
            row = MeasuredJob(f"inference/vllm-traces/{name}", case_id, 1.0, figure)
            try:
                yield replace(row, measured=_mean_ms(records, name), cases=(_replayed(records),))
            except UnsupportedRow as why:
                yield replace(row, unsupported=str(why))


def _mean_ms(records: Sequence[Record], figure: str) -> float:
    column, scale = ("tpot_ms", 1.0) if figure == "tpot" else (f"{figure}_s", 1e3)
    return fmean(scale * record.time(column) for record in records)


def _replayed(records: Sequence[Record]) -> Case:
    """Return the case of requests that come as they did; Qwen3 ran as two replicas that share experts."""
    first = records[0]
    replicas = 2 if first["model"].startswith("Qwen3") else 1
    share, sequences = _FLAGS[first["gpu"]]
    pool = {
        "share": share,
        "of": "used",
        "page": 16,
        "tokens": _TOKENS,
        "sequences": sequences,
        "sampling": 38,
    }
    tree: Tree = {
        "model": _model(first["model"]),
        "phase": "inference",
        "software": "vllm-0.12",
        "host": {"captured_prompts": min(512, 2 * sequences)},  # max_cudagraph_capture_size, vLLM's default
        "parallelism": {"dp": replicas, "ep": replicas},
        "inference": _STATIC,
        "memory": {"kv_pool": pool},
        "serving": {"router": "least_requests", "schedule_ahead": True},
    }
    ordered = sorted(records, key=lambda record: _seconds(record["arrival_s"]))
    served = Served(
        tuple(record.count("input_toks") for record in ordered),
        tuple(record.count("output_toks") for record in ordered),
        tuple(_seconds(record["arrival_s"]) for record in ordered),
    )
    return replace(Case.of(tree, place(_GPUS[first["gpu"]], replicas)), served=served)


_STATIC: Tree = {"batch": 1, "prompt_length": 128, "output_length": 2}
"""What a job file must say; the server reads none of it."""


def _seconds(text: str) -> float:
    """Return what `0 days 00:01:02.5` is.

    >>> _seconds("0 days 00:01:02.5")
    62.5
    """
    days, _, clock = text.partition(" days ")
    try:
        hours, minutes, rest = clock.split(":")
        int(days), int(hours), int(minutes), float(rest)
    except ValueError:
        raise UnsupportedRow("arrivals that are no times") from None
    return 86400 * int(days) + 3600 * int(hours) + 60 * int(minutes) + float(rest)


def _model(name: str) -> str:
    if name not in _MODELS:
        raise UnsupportedRow(f"no model file of {name}")
    return _MODELS[name]
