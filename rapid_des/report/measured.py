"""What `validation/data` holds measurements of, by device, format, software: what reports call validated."""

from __future__ import annotations

from collections.abc import Mapping

MEASURED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "A100-SXM4-80GB": ("a100_sxm_80gb", ("attention", "collectives", "experts", "gemm", "layers")),
    "A40": ("a40", ("collectives", "layers")),
    "A6000": ("a6000", ("layers",)),
    "B200-SXM-180GB": ("b200", ("attention", "collectives", "experts", "gemm")),
    "B300-SXM-270GB": ("b300", ("collectives",)),
    "GB200": ("gb200", ("attention", "collectives", "experts", "gemm")),
    "GB300": ("gb300", ("collectives",)),
    "GH200-96GB": ("gh200", ("layers",)),
    "H100-SXM-80GB": ("h100_sxm", ("attention", "collectives", "experts", "gemm", "layers")),
    "H200-SXM-141GB": ("h200", ("collectives",)),
    "L40S": ("l40s", ("collectives", "gemm")),
    "MI210": ("mi210", ("layers",)),
    "P100-PCIE-16GB": ("p100_pcie", ("gemm",)),
    "RTX3090": ("rtx_3090", ("layers",)),
    "RTX4090": ("rtx_4090", ("layers",)),
    "RTXPRO6000": ("rtx_pro_6000", ("layers",)),
    "T4": ("t4", ("gemm",)),
    "TPU-v6e-1": ("tpu_v6e", ("layers",)),
    "V100-SXM2-16GB": ("v100_sxm2", ("gemm",)),
}
"""Devices with measurements in `validation/data`: name, preset, and topics."""


GEMM_DTYPES: Mapping[str, tuple[str, ...]] = {
    "A100-SXM4-80GB": ("bf16", "fp16"),
    "B200-SXM-180GB": ("fp4", "fp8"),
    "GB200": ("bf16", "fp4", "fp8"),
    "H100-SXM-80GB": ("bf16", "fp16", "fp8"),
    "L40S": ("bf16", "fp8"),
    "P100-PCIE-16GB": ("fp16", "fp32"),
    "T4": ("fp16", "fp32"),
    "V100-SXM2-16GB": ("fp16", "fp32"),
}
"""The number formats in which `validation/data` has GEMMs of those devices."""


JOBS: Mapping[str, tuple[str, ...]] = {
    "DeepSpeed 2021": ("A100-SXM4-80GB",),
    "LLM Foundry 2023": ("A100-SXM4-40GB", "A100-SXM4-80GB", "H100-SXM-80GB"),
    "Megatron-DeepSpeed 2021": ("A100-SXM4-80GB",),
    "Megatron-LM 2021": ("A100-SXM4-80GB",),
    "Megatron-LM 2022": ("A100-SXM4-80GB",),
    "Megatron-LM 2025": (
        "B200-SXM-180GB", "B300-SXM-270GB", "GB200", "GB300", "H100-SXM-80GB", "H200-SXM-141GB",
    ),
    "NIM 1.x": ("A100-SXM4-80GB", "H100-SXM-80GB"),
    "PyTorch FSDP": ("A100-PCIE-80GB",),
    "PyTorch eager": ("A100-PCIE-80GB",),
    "TensorRT-LLM 0.9": ("A100-SXM4-80GB", "H100-SXM-80GB"),
    "nanotron": ("H100-SXM-80GB",),
    "vLLM 0.x": ("A100-PCIE-80GB", "A100-SXM4-80GB"),
}  # fmt: skip
"""The devices on which `validation/data` has whole jobs of a software profile, by its name."""
