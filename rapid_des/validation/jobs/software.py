"""Which software ran each set, and what the frontend does not express yet: one line a set, one a feature."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from rapid_des.config import open_document

Profile: TypeAlias = str | Mapping[str, Any]
"""A software profile's name, or what its file would hold."""

_TURBOMIND: Profile = {
    "name": "LMDeploy TurboMind",
    "communication": {"default": {"library": "nccl"}},
    "defaults": {"fusion": "vllm"},
}
SOFTWARE: Mapping[str, Profile] = {
    "korthikanti": "megatron-2022",
    "sc21": "megatron-2021",
    "sc21-zero": "deepspeed-2021",
    "memory": "megatron-2022",
    "mt-nlg": "megatron-deepspeed",
    "uci-fsdp": "fsdp",
    "megascale": "megatron-2022",
    "llama3": "megatron-2025",
    "torchtitan": "torchtitan",
    "nemo": "megatron-2025",
    "dgxc": "megatron-2025",
    "mlperf": "megatron-2025",
    "megatron-bridge": "megatron-2025",
    "folding": "megatron-2025",
    "llm-foundry": "llm-foundry",
    "nanotron": "nanotron",
    "uci": "torch-eager",
    "trtllm-static": "trtllm-0.9",
    "trtllm-published": "trtllm-0.6",
    "nim": "nim-1.0",
    "nim-tables": "nim",
    "kundu": "nemo-2023",
    "koyeb": "vllm-0.x",
    "lmdeploy": _TURBOMIND,
}
"""By set. A set's rows have one software, whatever their model and GPU."""


@cache
def without_all_reduce(name: str) -> Profile:
    """Return a profile whose tensor-parallel groups have no all-reduce of the engine's own, but NCCL's.

    Without the buffers of its own all-reduce, ranks keep less for one another.

    >>> without_all_reduce("trtllm-0.9")["communication"]
    {'default': {'library': 'nccl'}}
    """
    tree = open_document(name, "software", folder=Path()).tree
    defaults, memory = tree["defaults"], {"communicator": "0.3 GB", "peer": "0.5 GB"}
    return {
        **tree,
        "communication": {"default": tree["communication"]["default"]},
        "defaults": {**defaults, "memory": {**defaults["memory"], **memory}},
    }


@cache
def with_attention(name: str, attention: str) -> Profile:
    """Return a profile whose attention is another one's than its framework usually runs.

    >>> with_attention("megatron-2025", "flash-2")["attention"]
    'flash-2'
    """
    return {**open_document(name, "software", folder=Path()).tree, "attention": attention}


@cache
def with_fused_experts(name: str) -> Profile:
    """Return a profile whose experts start no kernels one by one.

    >>> with_fused_experts("megatron-2025")["expert_start"]
    """
    return {**open_document(name, "software", folder=Path()).tree, "expert_start": None}


LACKS: Mapping[str, str] = {
    "mamba": "state-space layers",
    "megascale": "a window that is not printed, and overlap within matrices",
    "jax": "JAX's partitioner",
}
"""What rows need that the frontend does not express: with its line, a feature's reason goes away."""


def lacking(needs: Collection[str]) -> str:
    """Return what is missing for a row; empty if nothing is.

    >>> lacking(["tensor_parallel"]), lacking(["mamba"])
    ('', 'state-space layers')
    """
    return ", ".join(LACKS[need] for need in needs if need in LACKS)
