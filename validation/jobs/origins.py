"""Where measured jobs ran: machine files behind data files' GPUs and their number, and the software of sets.

A set's software is one line, and so is what the frontend does not express yet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from rapid_des.config import open_document
from rapid_des.units import ceil_divide
from validation.jobs.cases import Place
from validation.measurements import UnsupportedRow


@dataclass(frozen=True)
class Servers:
    """Machine files of one kind of server."""

    one: str
    several: str = ""
    """Dimension 1 of its fabric counts the nodes; empty: there is no file of several."""
    gpus: int = 8
    """GPUs of a node, or of what NVLink joins."""
    device: str = ""
    """The device in place of the file's; empty: that of the file."""
    joined: int = 8
    """Up to how many GPUs the file's links are those of the name."""
    beyond: Servers | None = None
    """Of more GPUs; None: there is no file of them."""


_RACK = 64
"""GPUs of an NVL72 rack that jobs get: 16 trays, so that powers of two fill racks."""
_GB200 = Servers("gb200_nvl72", "gb200_nvl72_x8", gpus=_RACK, joined=_RACK)
SERVERS: Mapping[str, Servers] = {
    "A100-SXM4-80GB": Servers("dgx_a100", "dgx_a100_x8"),
    "A100-SXM4-40GB": Servers("dgx_a100", "dgx_a100_x8", device="a100_sxm_40gb"),
    "A100-PCIE-80GB": Servers("a100_pcie_x4", gpus=4, joined=4),
    "H100-SXM-80GB": Servers("dgx_h100", "dgx_h100_x8"),
    "H100-SXM-80GB (EFA)": Servers("dgx_h100", "aws_p5_x32"),
    "H100-96GB": Servers("dgx_h100", "dgx_h100_x8", device="h100_sxm_500w"),
    "H100-NVL-94GB": Servers("h100_nvl_x8", joined=2, beyond=Servers("rtx_pro_6000_x8", device="h100_nvl")),
    "H200-SXM-141GB": Servers("dgx_h100", "dgx_h100_x8", device="h200"),
    "GH200-120GB(96GB HBM3)": Servers("gh200_alps_x16", gpus=4, joined=4),
    "L40S": Servers("l40s_switched_x8"),
    "L40": Servers("l40s_switched_x8", device="l40"),
    "RTX4090": Servers("rtx_pro_6000_x8", device="rtx_4090", joined=1),
    "RTX-PRO-6000": Servers("rtx_pro_6000_x8"),
    "B200-SXM": Servers("hgx_b200", "hgx_b200_x2"),
    "B300-SXM": Servers("hgx_b300"),
    "GB200-NVL72": _GB200,
    "GB300-NVL72": Servers("gb200_nvl72", "gb300_nvl72_x8", gpus=_RACK, device="gb300", joined=_RACK),
}
"""By GPU; H100-96GB are torchtitan's. Assumed: GH200 are joined as on Alps; more than a pair of H100 NVL are
by PCIe 5, as RTX PRO 6000 whose NCCL was measured."""


def place(gpu: str, gpus: int) -> Place:
    """Return where a job of `gpus` GPUs runs; `UnsupportedRow` if there is no machine file.

    >>> place("H100-SXM-80GB", 64).settings
    (('fabric.1.size', '8'),)
    """
    servers = SERVERS.get(gpu)
    if servers is None:
        raise UnsupportedRow(f"no machine file of {gpu}")
    if gpus > servers.joined and servers.beyond is not None:
        servers = servers.beyond
    nodes = ceil_divide(gpus, servers.gpus)
    if gpus > 1 and ((nodes > 1 and not servers.several) or min(gpus, servers.gpus) > servers.joined):
        raise UnsupportedRow(f"no machine file of {gpus} {gpu}")
    settings = [("fabric.1.size", str(nodes))] if nodes > 1 else []
    if servers.gpus == _RACK:
        settings.append(("fabric.0.size", str(_RACK)))
    if servers.device:
        settings.append(("device", servers.device))
    return Place(servers.several if nodes > 1 else servers.one, tuple(settings), servers.gpus)


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
    "megascale": "a window that is not printed, and overlap within matrices",
    "jax": "JAX's partitioner",
}
"""What rows need that the frontend does not express: with its line, a feature's reason goes away."""


def lacking(needs: Collection[str]) -> str:
    """Return what is missing for a row; empty if nothing is.

    >>> lacking(["tensor_parallel"]), lacking(["jax"])
    ('', "JAX's partitioner")
    """
    return ", ".join(LACKS[need] for need in needs if need in LACKS)
