"""Measured servers: request traces of vLLM, and NVIDIA's, vLLM's and SGLang's servers under closed loops.

What a row leaves open is its engine's default, said beside the table that states it. Requests of dumps vary:
each length is drawn from 0.8 to 1.0 of the nominal one, as the benchmark behind most of them draws it
(`--random-range-ratio 0.8`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from rapid_des.validation.inference import runs
from rapid_des.validation.jobs.cases import Case, Served
from rapid_des.validation.jobs.decoders import Tree
from rapid_des.validation.jobs.places import place
from rapid_des.validation.jobs.rows import (
    Figure,
    MeasuredJob,
    first_token_ms,
    job_topics,
    per_token_ms,
    step_ms,
)
from rapid_des.validation.jobs.workers import Watch
from rapid_des.validation.measurements import DataFolder, Record, UnsupportedRow
from rapid_des.validation.scoring import Row, Topic

SILICON = "inference_e2e/silicon_e2e_serving.csv"
TRACES = "inference_e2e/vllm_request_traces_llmservingsim.csv"
MOST_CLIENTS = 64
"""Above, rows hold queues of overload: topics of their own."""
_MODELS: Mapping[str, str] = {
    "meta-llama/Llama-3.1-70B": "llama3_1_70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama3_1_8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama3_1_8b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3_235b_a22b",
    "openai/gpt-oss-120b": "gpt_oss_120b",
    "deepseek-ai/DeepSeek-R1": "deepseek_v3",
    "deepseek-ai/DeepSeek-V3": "deepseek_v3",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek_v3",
    "Llama-3.1-8B": "llama3_1_8b",
    "Qwen3-30B-A3B-Instruct-2507": "qwen3_30b_a3b",
}
_GPUS: Mapping[str, str] = {
    "h100_sxm": "H100-SXM-80GB",
    "h200_sxm": "H200-SXM-141GB",
    "b200_sxm": "B200-SXM",
    "b300_sxm": "B300-SXM",
    "gb200": "GB200-NVL72",
    "gb300": "GB300-NVL72",
    "RTX4090": "RTX4090",
    "RTXPRO6000": "RTX-PRO-6000",
}
_ENGINES: Mapping[str, tuple[str, str]] = {
    "vllm": ("vllm-0.12", "vllm_v1"),
    "sglang": ("sglang", "sglang"),
    "trtllm": ("trtllm-1", "trtllm_guaranteed_no_evict"),
}
"""Software profile and policy: each engine's default."""
_PRECISIONS: Mapping[str, Tree] = {
    "bfloat16": {},
    "fp8": {"gemm": "fp8"},
    "fp8_block": {"gemm": "fp8"},
    "nvfp4": {"gemm": "fp4"},
    "mxfp4": {"weights": "fp4"},
}
_FIGURES: Mapping[str, Figure] = {"ttft": first_token_ms, "tpot": per_token_ms, "e2e": step_ms}
_ROUNDS, _MOST = 10, 320
"""Requests of a closed loop: so many a client, as the benchmark behind most dumps has them, and at most."""


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `inference/silicon/…`, `inference/silicon-ranking` and `inference/vllm-traces/ttft|tpot|e2e`."""
    silicon = list(_silicon(data))
    yield from job_topics([*silicon, *_traces(data)], runs(), unit="ms", split=data.split)
    yield from _ranking(data)


def _traces(data: DataFolder) -> Iterator[MeasuredJob]:
    """Yield the means of each case; the bench's flags: 128 sequences, 2,048 tokens."""
    cases: dict[str, list[Record]] = defaultdict(list)
    for record in data.read(TRACES):
        cases[record["case_id"]].append(record)
    for case_id, records in cases.items():
        means = {
            "ttft": fmean(1e3 * record.time("ttft_s") for record in records),
            "tpot": fmean(record.time("tpot_ms") for record in records),
            "e2e": fmean(1e3 * record.time("e2e_s") for record in records),
        }
        for name, measured in means.items():
            row = MeasuredJob(f"inference/vllm-traces/{name}", case_id, measured, _FIGURES[name])
            try:
                yield replace(row, cases=(_replayed(records),))
            except UnsupportedRow as why:
                yield replace(row, unsupported=str(why))


def _replayed(records: Sequence[Record]) -> Case:
    """Return the case of requests that come as they did; Qwen3 ran as two replicas that share experts."""
    first = records[0]
    replicas = 2 if first["model"].startswith("Qwen3") else 1
    tree: Tree = {
        "model": _model(first["model"]),
        "phase": "inference",
        "software": "vllm-0.12",
        "parallelism": {"dp": replicas, "ep": replicas},
        "inference": _STATIC,
        "serving": {"max_sequences": 128, "max_batched_tokens": 2048, "router": "least_requests"},
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
    hours, minutes, rest = clock.split(":")
    return 86400 * int(days) + 3600 * int(hours) + 60 * int(minutes) + float(rest)


def _silicon(data: DataFolder) -> Iterator[MeasuredJob]:
    """Yield each configuration once, with the mean of its repeats."""
    for records, case in _configurations(data):
        record = records[0]
        for figure in ("tpot", "ttft"):
            name = f"inference/silicon/{record['backend']}/{record['system']}/{figure}{_excluded(record)}"
            row = MeasuredJob(name, record["case_id"], _mean(records, figure), _FIGURES[figure])
            yield replace(row, unsupported=case) if isinstance(case, str) else replace(row, cases=(case,))


def _mean(records: Sequence[Record], figure: str) -> float:
    return fmean(record.time(f"{figure}_ms") for record in records)


_SAME = ("backend", "model_path", "system", "mode", "isl", "osl", "gemm_quant_mode", "moe_quant_mode",
         "tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size", "concurrency")  # fmt: skip


def _configurations(data: DataFolder) -> list[tuple[list[Record], Case | str]]:
    """Return the rows of each configuration, and its case or why there is none."""
    alike: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for number, record in enumerate(data.read(SILICON)):
        key = tuple(record[name] for name in _SAME)
        alike[key if record["mode"] == "agg" else (*key, str(number))].append(record)
    return [(records, _case(records[0])) for records in alike.values()]


def _excluded(record: Record) -> str:
    """Return what a row's topic is called besides; empty: it is scored."""
    if record["mode"] != "agg":
        return "/disaggregated"
    return "" if _count(record, "concurrency", MOST_CLIENTS + 1) <= MOST_CLIENTS else "/overload"


def _count(record: Record, column: str, absent: int = 1) -> int:
    """Return a whole number that the file may print as a fraction; what is blank or 0 is `absent`."""
    return int(float(record[column] or 0)) or absent


def _case(record: Record) -> Case | str:
    """Return the closed loop of a row, or why it can not be run."""
    try:
        return _closed_loop(record)
    except UnsupportedRow as why:
        return str(why)


def _closed_loop(record: Record) -> Case:
    if _excluded(record):
        raise UnsupportedRow("disaggregated workers" if record["mode"] != "agg" else "overload")
    tp, dp = _count(record, "tp_size"), _count(record, "attention_dp_size")
    ep, clients = _count(record, "moe_ep_size"), _count(record, "concurrency")
    dense = record["model_path"].startswith(("meta-llama", "nvidia/Llama"))
    if tp > 8 or (not dense and ep * _count(record, "moe_tp_size") != tp * dp):
        raise UnsupportedRow("a layout that the file does not state whole")
    profile, policy = _ENGINES[record["backend"]]
    tree: Tree = {
        "model": _model(record["model_path"]),
        "phase": "inference",
        "software": profile,
        "parallelism": {"tp": tp, "dp": dp, "pp": _count(record, "pp_size")}
        | ({} if dense else {"ep": ep, "etp": _count(record, "moe_tp_size")}),
        "precision": _precision(record["gemm_quant_mode"], record["model_path"]),
        "inference": _STATIC,
        "serving": {"policy": policy, "max_sequences": 1024},
    }
    random = np.random.default_rng(0)
    requests = min(_ROUNDS * clients, _MOST)
    prompt, output = (
        tuple(random.integers(int(0.8 * length), length, requests, endpoint=True).tolist())
        for length in (_count(record, "isl"), _count(record, "osl"))
    )
    where = place(_GPUS[record["system"]], tp * dp * _count(record, "pp_size"))
    return replace(Case.of(tree, where), served=Served(prompt, output, clients=clients))


def _model(name: str) -> str:
    if name not in _MODELS:
        raise UnsupportedRow(f"no model file of {name}")
    return _MODELS[name]


def _precision(mode: str, model: str) -> Tree:
    if model == "openai/gpt-oss-120b":  # its experts are stored in mxfp4, whatever the column says
        return {"weights": "fp4"}
    if mode not in _PRECISIONS:
        raise UnsupportedRow(f"number format {mode or 'not stated'}")
    return _PRECISIONS[mode]


def _ranking(data: DataFolder) -> Iterator[Topic]:
    """Yield the topic of groups of configurations: TPOT at the predicted best and at the best of each."""
    groups: dict[tuple[str, ...], list[tuple[float, Record, Case]]] = defaultdict(list)
    for records, case in _configurations(data):
        if not isinstance(case, str):
            record = records[0]
            key = tuple(record[name] for name in ("model_path", "system", "isl", "osl", "concurrency"))
            groups[key].append((_mean(records, "tpot"), record, case))
    several = [members for members in groups.values() if len(members) > 1]

    def rows() -> list[Row]:
        return [_chosen(members) for members in several]

    def begin(watch: Watch) -> None:
        runs().watch = watch
        runs().begin(case for members in several for _, _, case in members)

    if several:
        yield Topic("inference/silicon-ranking", rows, unit="ms", begin=begin, abandon=runs().abandon)


def _chosen(members: Sequence[tuple[float, Record, Case]]) -> Row:
    """Return the best measured time, and what was measured where the prediction is best."""
    outcomes = [(runs().outcome(case), measured) for measured, _, case in members]
    known = [(outcome.per_token_s, measured) for outcome, measured in outcomes if not outcome.refusal]
    best = min(measured for measured, _, _ in members)
    case_id = members[0][1]["case_id"]
    if len(known) < len(members):
        return Row(case_id, best, None, unsupported="a configuration that can not be run")
    return Row(case_id, best, min(known)[1])
