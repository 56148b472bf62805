"""Which small kernels run on their own: the fusion policies, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Fusion:
    """What is merged into one kernel; everything not merged is a kernel with its own traffic."""

    bias: bool
    """Biases are added in the GEMM's epilogue or by the kernel that follows."""
    gate: bool
    """SwiGLU in one kernel, else SiLU and a product."""
    dropout_residual: bool
    """Dropout and residual addition in one kernel."""
    residual_norm: bool
    """The residual is added by the norm that follows (inference engines)."""


FUSIONS: Mapping[str, Fusion] = {
    "eager": Fusion(bias=False, gate=False, dropout_residual=False, residual_norm=False),
    "torch_compile": Fusion(bias=True, gate=True, dropout_residual=True, residual_norm=True),
    "megatron": Fusion(bias=True, gate=True, dropout_residual=True, residual_norm=False),
    "vllm": Fusion(bias=True, gate=True, dropout_residual=False, residual_norm=True),
}
"""By the names of the device package's fusion policies."""
