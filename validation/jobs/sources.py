"""Sources of measured jobs: an organisation and a document, whose rows are left out together.

Configurations of several releases of one document, and both halves of the split by names, are one source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

from rapid_des.report import memory_forecast
from rapid_des.report.forecast import JobKind, Posterior, posterior_of, table

SOURCES: Mapping[str, str] = {
    "training/korthikanti": "NVIDIA, Korthikanti et al. 2022",
    "training/memory": "NVIDIA, Korthikanti et al. 2022",
    "training/sc21": "NVIDIA, Narayanan et al. 2021",
    "training/mt-nlg": "NVIDIA and Microsoft, Smith et al. 2022",
    "training/megascale": "ByteDance, Jiang et al. 2024",
    "training/llama3": "Meta, Grattafiori et al. 2024",
    "training/torchtitan": "PyTorch, torchtitan's benchmarks",
    "training/llm-foundry": "MosaicML, LLM Foundry's benchmarks",
    "training/nemo": "NVIDIA, NeMo's performance summary",
    "training/megatron-bridge": "NVIDIA, Megatron-Bridge's performance summary",
    "training/dgxc": "NVIDIA, dgxc-benchmarking",
    "training/mlperf": "MLCommons, MLPerf Training",
    "training/folding": "NVIDIA, Liu et al. 2025",
    "training/nanotron": "Hugging Face, nanotron's sweep",
    "training/uci": "UCI, Llama 2 on four A100",
    "training/torchtitan-docs": "PyTorch, torchtitan's benchmarks",
    "training/ibm-fms-fsdp": "IBM and PyTorch, fms-fsdp",
    "training/internevo": "InternLM, InternEvo",
    "training/tinyllama": "SUTD, TinyLlama",
    "training/nanogpt": "Karpathy, nanoGPT",
    "training/automodel": "NVIDIA, NeMo AutoModel",
    "training/flagperf": "FlagOpen, FlagPerf",
    "training/olmo-core": "AI2, OLMo-core",
    "training/vectorlm": "Vector Institute, VectorLM",
    "training/gpt-neox-20b": "EleutherAI, Black et al. 2022",
    "training/nemotron-4-340b": "NVIDIA, Nemotron-4 340B",
    "inference/trtllm-static": "NVIDIA, TensorRT-LLM 0.9 sweep",
    "inference/trtllm-published": "NVIDIA, TensorRT-LLM's tables",
    "inference/nim": "NVIDIA, NIM's tables",
    "inference/kundu": "imec, Kundu et al. 2024",
    "inference/koyeb": "Koyeb, Llama 3.1 8B",
    "inference/lmdeploy": "InternLM, LMDeploy's tables",
    "inference/silicon": "InferenceX and aiconfigurator, servers",
    "inference/vllm-traces": "KAIST, LLMServingSim's traces",
}
"""By the start of a topic's name."""
WORKED_ON = frozenset(
    SOURCES[f"training/{name}"] for name in ("korthikanti", "dgxc", "llm-foundry", "megatron-bridge")
)
"""Sources on which mechanisms and recipes were worked out, or a constant was fitted: jobs of others are
further off."""


def source_of(topic: str) -> str:
    """Return a topic's source; of one that the table lacks its own first two parts.

    >>> source_of("training/dgxc/H100-SXM-80GB/bf16"), source_of("training/somebody/h100")
    ('NVIDIA, dgxc-benchmarking', 'training/somebody')
    """
    start = "/".join(topic.split("/")[:2])
    return SOURCES.get(start.removesuffix("-slope").removesuffix("-ranking"), start)


def ratios_of(topic: str, kind: JobKind) -> tuple[float, float, float]:
    """Return measured over simulated times by the other sources: the median and the interval's ends."""
    return _ratios(_without(source_of(topic)), kind)


def memory_ratios_of(software: str) -> tuple[float, float, float]:
    """Return measured over simulated peaks by other software: the median and the interval's ends."""
    known = posterior_of(memory_forecast.posterior().table, without=(software,))
    return _ratios(known, memory_forecast.kind_of(software))


def _ratios(posterior: Posterior, kind: JobKind) -> tuple[float, float, float]:
    middle, spread = posterior.ratio(kind)
    half = posterior.table.scales.half(kind, spread)
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


@cache
def _without(source: str) -> Posterior:
    return posterior_of(table(), without=(source,))
