"""Measured servers under closed loops: vLLM, SGLang and TensorRT-LLM on H100 to GB300.

Rows of one configuration are averaged and count once. The rows of DeepSeek-R1 hold those that stand under
DeepSeek-V3 too, and others of the same configuration that are up to twice as quick: InferenceX measures R1
with multi-token prediction besides, which no column says. What is not V3's stands apart.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from statistics import fmean

import numpy as np

from rapid_des.device.operators import Dtype
from rapid_des.frontend import load_job
from rapid_des.units import ceil_divide
from rapid_des.values import replace
from validation.inference import runs
from validation.inference.recipes import engine_tree, is_swept
from validation.jobs.cases import Case, Place, Served, machine_at
from validation.jobs.origins import place
from validation.jobs.rows import Figure, MeasuredJob, first_token_ms, job_topics, per_token_ms
from validation.jobs.workers import Watch
from validation.measurements import DataFolder, Names, Record, UnsupportedRow
from validation.scoring import Row, Topic

SILICON = "inference_e2e/silicon_e2e_serving.csv"
MOST_CLIENTS = 64
"""Above, rows hold queues of overload: topics of their own."""
ROUNDS = 10
"""Requests of a client."""
_MODELS: Mapping[str, str] = {
    "meta-llama/Llama-3.1-70B": "llama3_1_70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama3_1_8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama3_1_8b",
    "Qwen/Qwen3-32B": "qwen3_32b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3_235b_a22b",
    "openai/gpt-oss-120b": "gpt_oss_120b",
    "deepseek-ai/DeepSeek-R1": "deepseek_v3",
    "deepseek-ai/DeepSeek-V3": "deepseek_v3",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek_v3",
    "MiniMaxAI/MiniMax-M2.5": "minimax_m2",
    "moonshotai/Kimi-K2.5": "kimi_k2",
    "Qwen/Qwen3.5-397B-A17B": "qwen3_5_397b_a17b",
}
_DENSE = ("meta-llama", "nvidia/Llama", "Qwen/Qwen3-32B")
_LACKING: Mapping[str, str] = {
    "zhipuai/GLM-5": "sparse attention with an indexer (GLM-5)",
}
_GPUS: Mapping[str, str] = Names(
    "GPU",
    {
        "h100_sxm": "H100-SXM-80GB",
        "h200_sxm": "H200-SXM-141GB",
        "b200_sxm": "B200-SXM",
        "b300_sxm": "B300-SXM",
        "gb200": "GB200-NVL72",
        "gb300": "GB300-NVL72",
    },
)
_HOPPER = ("h100_sxm", "h200_sxm")
"""Where TensorRT-LLM runs the experts of gpt-oss by Triton's kernels."""
_MOST_OF_PEAK = 2 / 3
FIGURES: Mapping[str, Figure] = {"tpot": per_token_ms, "ttft": first_token_ms}
Configuration = tuple[list[Record], Case | str]


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `inference/silicon/ENGINE/GPU/tpot|ttft` and `inference/silicon-ranking`."""
    known = [(records, _blank(records) or case) for records, case in configurations(data)]
    cached = cached_prompts(known)
    rows = [row for records, case in known for row in _rows(records, case, cached)]
    yield from job_topics(rows, runs(), unit="ms", split=data.split)
    yield from _ranking(known)


def _rows(
    records: Sequence[Record], case: Case | str, cached: Collection[tuple[str, ...]]
) -> Iterator[MeasuredJob]:
    record = records[0]
    apart = _apart(records, case) or "/excluded-cached-prompts" * (_set_of(record) in cached)
    for figure, what in FIGURES.items():
        name = f"inference/silicon/{record['backend']}/{record['system']}/{figure}{apart}"
        if isinstance(case, str):
            yield MeasuredJob(name, record["case_id"], 1.0, what, unsupported=case)
        else:
            yield MeasuredJob(name, record["case_id"], mean(records, figure), what, (case,))


def cached_prompts(known: Iterable[Configuration]) -> frozenset[tuple[str, ...]]:
    """Return the sets of rows (engine, GPU, model) whose prompts were not computed, by what they print alone.

    In some configuration prompts would need over two thirds of the GPUs' peak, beside decoding.
    """
    return frozenset(
        _set_of(records[0])
        for records, case in known
        if isinstance(case, Case) and not _apart(records, case) and _peak_share(records, case) > _MOST_OF_PEAK
    )


def _set_of(record: Record) -> tuple[str, ...]:
    return tuple(record[name] for name in ("backend", "system", "model_path"))


def _peak_share(records: Sequence[Record], case: Case) -> float:
    """Return the share of the GPUs' peak arithmetic that a configuration's prompts need."""
    assert case.served is not None
    tree, lengths = json.loads(case.job), case.served
    answer = (fmean(lengths.output) - 1) * mean(records, "tpot") + mean(records, "ttft")
    gpus = tree["parallelism"]["tp"] * tree["parallelism"]["dp"] * tree["parallelism"]["pp"]
    peak = _peak(case.place, tree["precision"].get("gemm", "bf16"))
    tokens = fmean(lengths.prompt) * lengths.clients / (answer / 1e3)
    return float(tokens * _token_flops(tree["model"]) / (gpus * peak))


@cache
def _peak(where: Place, dtype: Dtype) -> float:
    return float(machine_at(where).device.tensor_rate(dtype))


@cache
def _token_flops(model: str) -> float:
    """Return a prompt token's FLOPs, without its attention to those before."""
    job = load_job({"model": model, "phase": "inference",
                    "inference": {"batch": 1, "prompt_length": 1, "output_length": 1}})  # fmt: skip
    return float(job.model_flops)


def _blank(records: Sequence[Record]) -> str:
    """Return which figure some row of a configuration does not print; empty if all do."""
    blank = (f"{figure}_ms" for figure in FIGURES if not all(record[f"{figure}_ms"] for record in records))
    return next((f"{column} is not printed" for column in blank), "")


def mean(records: Sequence[Record], figure: str) -> float:
    """Return a figure's mean over repeats, milliseconds."""
    return fmean(record.time(f"{figure}_ms") for record in records)


_SAME = ("backend", "model_path", "system", "mode", "isl", "osl", "gemm_quant_mode", "moe_quant_mode",
         "tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size", "concurrency")  # fmt: skip
_R1, _V3 = "deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-V3"
SPECULATIVE = "speculative decoding, which no column says"


def configurations(data: DataFolder) -> list[Configuration]:
    """Return the rows of each configuration, and its case or why there is none."""
    alike: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for number, record in enumerate(map(as_run, data.read(SILICON))):
        key = tuple(record[name] for name in _SAME)
        alike[key if record["mode"] == "agg" else (*key, str(number))].append(record)
    every = [record for records in alike.values() for record in records]
    plain = {_measured(record) for record in every if record["model_path"] == _V3}
    known: list[Configuration] = []
    for records in alike.values():
        first = records[0]
        known += _told_apart(records, plain) if first["model_path"] == _R1 else [(records, case_of(first))]
    return known


_SERVER = 8
"""GPUs of the servers whose rows print tp times ep."""


def as_run(record: Record) -> Record:
    """Return a row with the layout that ran, where its columns hold tp times ep.

    One export of InferenceX multiplies the attention's ranks by ep and prints tp as `moe_tp_size`: 64, 8, 8
    for 8, 1, 8. Eighty measurements stand in the file in both ways, to the last digit, and no such row's
    server has so many GPUs.

    >>> printed = {"tp_size": "64", "attention_dp_size": "1", "moe_tp_size": "8", "moe_ep_size": "8"}
    >>> list(as_run(Record({"system": "h200_sxm", **printed}, "row 1")).values())
    ['h200_sxm', '8', '1', '1', '8']
    """
    ep = _count(record, "moe_ep_size")
    ranks = {name: _count(record, name) for name in ("tp_size", "attention_dp_size")}
    multiplied = [name for name, count in ranks.items() if count == ep * ep > _SERVER]
    if not multiplied or _count(record, "moe_tp_size") != ep or record["system"].startswith("gb"):
        return record
    return Record({**record, multiplied[0]: str(ep), "moe_tp_size": "1"}, record.where)


def _measured(record: Record) -> tuple[str, ...]:
    """Return what two exports of one measurement share."""
    return tuple(record[name] for name in (*_SAME, "ttft_ms", "tpot_ms") if name != "model_path")


def _told_apart(records: Sequence[Record], plain: set[tuple[str, ...]]) -> Iterator[Configuration]:
    """Yield the rows of DeepSeek-R1 that are not V3's again, where its engine and GPU has any of V3."""
    known = {measured[:2] for measured in plain}
    fused = [record for record in records if _measured(record) not in plain]
    if fused:
        speculative = _measured(fused[0])[:2] in known
        yield fused, SPECULATIVE if speculative else case_of(fused[0])


def _apart(records: Sequence[Record], case: Case | str) -> str:
    """Return what a configuration's topic is called besides; empty: it is scored."""
    if case == SPECULATIVE:
        return "/excluded-speculative"
    if records[0]["mode"] != "agg":
        return "/disaggregated"
    return "" if _count(records[0], "concurrency", MOST_CLIENTS + 1) <= MOST_CLIENTS else "/overload"


def _count(record: Record, column: str, absent: int = 1) -> int:
    """Return a whole number that the file may print as a fraction; what is blank or 0 is `absent`."""
    return (int(record.number(column)) if record[column] else 0) or absent


def case_of(record: Record) -> Case | str:
    """Return the closed loop of a row, or why it cannot be run."""
    try:
        return _closed_loop(record)
    except UnsupportedRow as why:
        return str(why)


def _closed_loop(record: Record) -> Case:
    apart = record["mode"] != "agg"
    workers = _workers(record) if apart else (0, 1)
    of_prompts, record = _one_worker(record, "prefill"), _one_worker(record, "decode")
    clients = _count(record, "concurrency", MOST_CLIENTS + 1)
    if clients > MOST_CLIENTS:
        raise UnsupportedRow("overload")
    model = _model(record["model_path"])
    if record["backend"] == "trtllm" and model.startswith("gpt_oss") and record["system"] in _HOPPER:
        raise UnsupportedRow("experts of gpt-oss in Triton: none of their kernels is measured")
    split = _parallelism(record)
    engine = engine_tree(record)
    split["dp"] *= workers[1]
    gpus = split["tp"] * split["dp"] * split["pp"]
    if apart:
        others = _parallelism(of_prompts)
        others["dp"] *= workers[0]
        gpus = _gpus_of(others, split, workers[1])
        engine["serving"]["prefill_parallelism"] = {axis: n for axis, n in others.items() if axis != "pp"}
    tree = {
        "model": model,
        "phase": "inference",
        "parallelism": split,
        "inference": {"batch": 1, "prompt_length": 128, "output_length": 2},  # the server reads none of it
        **engine,
    }
    where = place(_GPUS[record["system"]], gpus)
    prompts, outputs = (_lengths(record, column, clients) for column in ("isl", "osl"))
    return replace(Case.of(tree, where), served=Served(prompts, outputs, clients=clients))


_LAYOUT = ("tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")


def _workers(record: Record) -> tuple[int, int]:
    """Return how many workers compute prompts, and how many answer."""
    workers = _count(record, "prefill_num_workers", 0), _count(record, "decode_num_workers", 0)
    if 0 in workers:
        raise UnsupportedRow("disaggregated workers whose numbers the file does not state")
    return workers


def _one_worker(record: Record, role: str) -> Record:
    """Return the row of one of several workers, for prompts (`prefill`) or for answers."""
    if record["mode"] == "agg":
        return record
    return Record({**record, **{name: record[f"{role}_{name}"] for name in _LAYOUT}}, record.where)


def _gpus_of(prompting: Mapping[str, int], answering: Mapping[str, int], workers: int) -> int:
    """Return the GPUs of workers for prompts and for answers, which begin at a multiple of one of theirs."""
    of_prompts, of_answers = (split["tp"] * split["dp"] for split in (prompting, answering))
    return ceil_divide(of_prompts, of_answers // workers) * (of_answers // workers) + of_answers


def _parallelism(record: Record) -> dict[str, int]:
    split = {axis: _count(record, f"{axis}_size") for axis in ("tp", "pp")}
    split["dp"] = _count(record, "attention_dp_size")
    if record["model_path"].startswith(_DENSE):
        return split
    ep, etp = _count(record, "moe_ep_size"), _count(record, "moe_tp_size")
    if split["tp"] > 8 or ep * etp != split["tp"] * split["dp"]:
        raise UnsupportedRow("a layout that the file does not state whole")
    if split["tp"] > 1 and split["dp"] > 1:
        raise UnsupportedRow("tensor parallelism within attention data parallelism")
    return {**split, "ep": ep, "etp": etp}


def _lengths(record: Record, column: str, clients: int) -> tuple[int, ...]:
    """Return the lengths of all requests, prompts (`isl`) or answers."""
    nominal, requests = record.count(column), ROUNDS * clients
    if column == "osl" and nominal == 1:
        raise UnsupportedRow("an answer of one token has no time a token")
    if not is_swept(record):
        return (nominal,) * requests
    random = np.random.default_rng(("isl", "osl").index(column))
    return tuple(random.integers(int(0.8 * nominal), nominal, requests, endpoint=True).tolist())


def _model(name: str) -> str:
    if name not in _MODELS:
        raise UnsupportedRow(_LACKING.get(name, f"no model file of {name}"))
    return _MODELS[name]


def _ranking(known: Sequence[Configuration]) -> Iterator[Topic]:
    """Yield the topic of groups of configurations: TPOT at the predicted best and at the best of each."""
    groups: dict[tuple[str, ...], list[tuple[float, Record, Case]]] = defaultdict(list)
    for records, case in known:
        if not isinstance(case, str):
            record = records[0]
            key = tuple(record[name] for name in ("model_path", "system", "isl", "osl", "concurrency"))
            groups[key].append((mean(records, "tpot"), record, case))
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
        return Row(case_id, best, None, unsupported="a configuration that cannot be run")
    return Row(case_id, best, min(known)[1])
