"""How the servers of the silicon rows were started: what their benchmarks' scripts say.

Most rows are InferenceX's (SemiAnalysis; `benchmarks/*.sh` of github.com/SemiAnalysisAI/InferenceX, the
lengths 1024 and 8192 tell them): ten requests a client, each length drawn from 0.8 to 1.0 of the nominal one
(`--random-range-ratio 0.8`), no prefix cache. Other rows are of fixed lengths, as aiconfigurator's authors
measured them; engines run at their defaults there, TensorRT-LLM with the budget that aiconfigurator writes.
Scripts changed over the months of the rows: these are those of early 2026, and of 2025 where it is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rapid_des.config import open_document
from rapid_des.units import ceil_divide
from rapid_des.values import replace
from validation.jobs.decoders import Tree
from validation.measurements import Names, Record, UnsupportedRow

_SWEPT = {("1024", "1024"), ("1024", "8192"), ("8192", "1024")}
"""Prompt and output lengths of InferenceX."""
_ENGINES: Mapping[str, tuple[str, str]] = Names(
    "engine",
    {
        "vllm": ("vllm-0.12", "vllm_v1"),
        "sglang": ("sglang", "sglang"),
        "trtllm": ("trtllm-1", "trtllm_guaranteed_no_evict"),
    },
)
"""Software profile and policy: each engine's default."""
_PRECISIONS: Mapping[str, Tree] = {
    "": {},
    "bfloat16": {},
    "fp8": {"gemm": "fp8"},
    "fp8_block": {"gemm": "fp8"},
    "nvfp4": {"gemm": "fp4"},
    "int4_wo": {"weights": "int4", "wide": "attention"},
}
_GEN_KERNELS = "trtllm_min_latency"
"""Scope of trtllm-gen's kernels over experts: aiconfigurator's collector takes them where it says so."""


_MANY_CLIENTS, _TOKENS_STEP = 64, 64
_MINIMAX_FP8 = "2026-04"
"""Since when MiniMax's script in fp8 says the same as that in nvfp4."""
_NORM_IN_SUM: Mapping[str, str] = {"2": "64 MiB", "4": "32 MiB", "8": "1 MiB"}
"""FlashInfer's kernel in vLLM on Blackwell, by tp."""


@dataclass(frozen=True)
class Recipe:
    """What a script states of a server; the rest is its engine's default."""

    tokens: int | None = None
    """Of an iteration, at most."""
    wait: tuple[int, float] = (0, 0.0)
    """Iterations that prompts wait for others, and up to which share of those tokens."""
    receive_interval: int = 1
    share: float | None = None
    """Of the memory that is the KV cache's (or also the weights', as the engine counts)."""
    kv_cache: str | None = None
    """Format of keys and values; None: as activations."""
    expert_kernels: str | None = None
    norm_in_sum: str | None = None
    """Sums up to which norms are in their kernel."""
    captured: int | None = None
    """Tokens of a pass with prompts up to which it is graphs between its attention; None: as the profile."""


def is_swept(record: Record) -> bool:
    """Tell whether a row is of InferenceX."""
    return (record["isl"], record["osl"]) in _SWEPT


def recipe_of(record: Record) -> Recipe:
    """Return what the script behind a row states.

    >>> row = {"backend": "sglang", "system": "b200_sxm", "isl": "8192", "osl": "1024", "concurrency": "16",
    ...        "tp_size": "4", "gemm_quant_mode": "fp8", "model_path": "deepseek-ai/DeepSeek-V3"}
    >>> recipe_of(row).receive_interval, recipe_of(row).tokens
    (10, 8192)
    """
    return _RECIPES[record["backend"]](record) if is_swept(record) else _generated(record)


def _generated(record: Record) -> Recipe:
    """Return the budget that aiconfigurator writes for TensorRT-LLM; other engines keep their defaults.

    `agg max_num_tokens = max_batch_size + SlaConfig.isl + 1500` (rule_plugin/benchmark/trtllm.rule).
    """
    tokens = record.count("isl") + 1500 + int(record.number("concurrency"))
    return Recipe(tokens) if record["backend"] == "trtllm" else Recipe()


def _in_2025(record: Record) -> bool:
    return record["measured_date"].startswith("2025")


def _on_blackwell(record: Record) -> bool:
    return record["system"] not in ("h100_sxm", "h200_sxm")


def _vllm(record: Record) -> Recipe:
    """gpt-oss, Kimi, Llama and MiniMax on Blackwell cache in fp8. Experts in 4 bits: Marlin or trtllm-gen.

    Passes are captured up to `max-cudagraph-capture-size`: 2048 for gpt-oss, 8192 for Kimi on B300, whose
    budget is two prompts; Llama's on B200 are not (`FULL_DECODE_ONLY`). MiniMax's budget is two prompts too,
    captured up to 2048 (`minimaxm2.5_fp4_b200.sh`; `…_fp8_b200.sh` since pull request 947 of April 2026).
    Where `fuse_allreduce_rms` is stated on Blackwell, limits are vLLM's (pull request 24248), Llama's on
    eight GPUs of its script.
    """
    gpt_oss, llama = "gpt-oss" in record["model_path"], "Llama" in record["model_path"]
    captured = 2048 if gpt_oss else None
    if not _on_blackwell(record):
        four_bits = gpt_oss or record["gemm_quant_mode"] == "int4_wo"
        return Recipe(tokens=8192, expert_kernels="marlin" if four_bits else None, captured=captured)
    four_bits = record["gemm_quant_mode"] == "nvfp4"
    recipe = Recipe(8192, expert_kernels=_GEN_KERNELS if gpt_oss or four_bits else None, captured=captured)
    if gpt_oss or llama or four_bits:
        recipe = replace(recipe, norm_in_sum=_NORM_IN_SUM.get(record["tp_size"]))
    if "Kimi" in record["model_path"]:
        return replace(recipe, tokens=2 * int(record["isl"]), kv_cache="fp8", captured=8192)
    if "MiniMax" in record["model_path"] and (four_bits or record["measured_date"] >= _MINIMAX_FP8):
        return replace(recipe, tokens=2 * int(record["isl"]), kv_cache="fp8", captured=2048)
    if "MiniMax" in record["model_path"]:
        return replace(recipe, share=0.95)  # its script of March 2026: --gpu-memory-utilization 0.95
    if llama:
        most = "8 MiB" if record["tp_size"] == "8" else recipe.norm_in_sum
        return replace(recipe, kv_cache="fp8", captured=0, norm_in_sum=most)
    return replace(recipe, kv_cache="fp8" if gpt_oss else None)


def _sglang(record: Record) -> Recipe:
    """On B200 and B300 the scheduler looks for requests every 10 or 30 decode steps.

    `--enable-flashinfer-allreduce-fusion` there is for up to 2,048 tokens (layers/communicator.py).
    """
    if not _on_blackwell(record):
        return Recipe(tokens=32768, share=0.82)
    interval = 30 if int(float(record["concurrency"])) >= 16 else 10
    fused = "28 MiB" if "DeepSeek" in record["model_path"] else None  # of 7,168 channels
    if record["gemm_quant_mode"] == "nvfp4":
        seldom = Recipe(16384, receive_interval=interval, share=0.85, kv_cache="fp8")
        return replace(seldom, expert_kernels=_GEN_KERNELS, norm_in_sum=fused)
    if record["tp_size"] == "4":
        return Recipe(8192, receive_interval=10, share=0.95, kv_cache="fp8", norm_in_sum=fused)
    return Recipe(32768, receive_interval=interval, share=0.82, kv_cache="fp8", norm_in_sum=fused)


def _trtllm(record: Record) -> Recipe:
    """Prompts of 1024 wait for others: Llama's on up to four GPUs, DeepSeek's in fp8 of many clients."""
    isl, osl, clients = record["isl"], record["osl"], int(float(record["concurrency"]))
    short = isl == osl == "1024"
    if "gpt-oss" in record["model_path"]:
        newer = _on_blackwell(record)
        return Recipe(20000, share=0.85, kv_cache="fp8" if newer else None,
                      expert_kernels=_GEN_KERNELS if newer else None)  # fmt: skip
    if "Llama" in record["model_path"]:
        wait = (20, 0.9) if short and int(record["tp_size"]) < 8 else (0, 0.0)
        return Recipe(2048 if short else 9216, wait, kv_cache="fp8")
    tokens, newer = _TOKENS_STEP * ceil_divide(clients + int(isl) + 64, _TOKENS_STEP), _on_blackwell(record)
    if not _in_2025(record):  # dsr1_*_trt_slurm.sh had no floor, dsr1_*_trt.sh of 2026 has
        tokens = max(8192, tokens)
    if record["gemm_quant_mode"] == "nvfp4":
        return Recipe(tokens, share=0.8, kv_cache="fp8", expert_kernels=_GEN_KERNELS)
    delayed = short and clients >= _MANY_CLIENTS and newer and not _in_2025(record)
    wait = (40, 0.8) if delayed else (0, 0.0)
    return Recipe(tokens, wait, share=0.8 if newer else 0.75, kv_cache="fp8")


_RECIPES = Names("engine", {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm})


def engine_tree(record: Record) -> Tree:
    """Return the job's keys that say which engine serves a row, in which formats, and how it was started."""
    name, policy = _ENGINES[record["backend"]]
    recipe = recipe_of(record)
    serving: Tree = {
        "policy": policy,
        "max_sequences": 1024,
        "wait_iterations": recipe.wait[0],
        "wait_share": recipe.wait[1],
        "receive_interval": recipe.receive_interval,
        "schedule_ahead": True,  # the default of all three
    }
    software = _profile(name, recipe.expert_kernels)
    if recipe.captured is not None:
        host = software["defaults"]["host"]
        software["defaults"]["host"] = {**host, "captured_prompts": recipe.captured or None}
    if recipe.tokens is not None:
        serving["max_batched_tokens"] = recipe.tokens
    if recipe.share is not None:
        software["defaults"]["memory"]["kv_pool"]["share"] = recipe.share
    precision = _precision(record)
    if recipe.kv_cache is not None:
        precision = {**precision, "kv_cache": recipe.kv_cache}
    tree: Tree = {"software": software, "serving": serving, "precision": precision}
    return tree if recipe.norm_in_sum is None else {**tree, "norm_in_sum": recipe.norm_in_sum}


def _profile(name: str, expert_kernels: str | None) -> dict[str, Any]:
    tree = open_document(name, "software", folder=Path()).tree
    memory = tree["defaults"]["memory"]
    copied = {**memory, "kv_pool": dict(memory["kv_pool"])}
    experts = {} if expert_kernels is None else {"expert_kernels": expert_kernels}
    return {**tree, **experts, "defaults": {**tree["defaults"], "memory": copied}}


def _precision(record: Record) -> Tree:
    """Return a row's number formats.

    The experts of gpt-oss are stored in mxfp4, whatever the column says, and multiply in bf16 (Marlin,
    Triton) or on Blackwell in fp8; the checkpoints of DeepSeek in nvfp4 leave attention as it was.
    """
    mode, model = record["gemm_quant_mode"], record["model_path"]
    if "gpt-oss" in model:
        gemm = {"gemm": "fp8"} if _on_blackwell(record) else {}
        return {"weights": "fp4", "wide": "attention", **gemm}
    if mode not in _PRECISIONS:
        raise UnsupportedRow(f"number format {mode}")
    if record["backend"] == "vllm" and "Llama" in model and mode == "fp8":
        return {**_PRECISIONS[mode], "quantisation": "fused"}
    apart = {"wide": "attention"} if mode == "nvfp4" and ("DeepSeek" in model or "Kimi" in model) else {}
    return {**_PRECISIONS[mode], **apart}
