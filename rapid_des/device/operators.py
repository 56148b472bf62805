"""What the frontend asks a device: operators as frozen shapes, and the estimate that comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

Dtype = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8", "int4"]
Bound = Literal["tensor", "vector", "shared", "l2", "hbm", "latency", "launch"]

DTYPE_BITS: Mapping[str, int] = {
    "fp64": 64, "fp32": 32, "tf32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "int8": 8, "fp4": 4, "int4": 4,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gemm:
    """C[b, m, n] = A[b, m, k] · B[b, k, n], b = 0..batch-1 with operands of their own."""

    m: int
    n: int
    k: int
    batch: int = 1
    dtype: Dtype = "bf16"
    out_dtype: Dtype | None = None
    """None: as `dtype`."""
    accumulate: bool = False
    """C is read too (gradient accumulation)."""
    weight_dtype: Dtype | None = None
    """Weight-only quantisation of B; None: as `dtype`."""


@dataclass(frozen=True, slots=True)
class GroupedGemm:
    """One kernel over several experts: group g computes [rows[g], k] · [k, n]."""

    rows: tuple[int, ...]
    n: int
    k: int
    dtype: Dtype = "bf16"


@dataclass(frozen=True, slots=True)
class Attention:
    """Scaled dot-product attention of `batch` sequences; heads are this GPU's.

    Prefill and training: `query_length` new positions attend to `key_length` ≥ query_length positions (the
    last query to all of them when causal). Decode: query_length 1.
    """

    batch: int
    query_length: int
    key_length: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int | None = None
    """None: as `head_dim`."""
    phase: Literal["forward", "backward"] = "forward"
    causal: bool = True
    window: int | None = None
    """Sliding window in positions; None: none."""
    dtype: Dtype = "bf16"
    kv_dtype: Dtype | None = None
    page_size: int | None = None
    """Positions a page of a paged KV cache; None: contiguous."""
    fused: bool = True
    """FlashAttention; False: scores and probabilities go through memory."""
    shared_latent: bool = False
    """MLA, absorbed: keys and values are one latent of `head_dim` read once (value_dim of it as value)."""


@dataclass(frozen=True, slots=True)
class Vector:
    """A memory-bound kernel on the vector unit: norms, softmax, activations, RoPE, optimizers, copies.

    `kind` is one of the registry in the device package (see `rapid-des operator --help`); `rows` × `columns`
    elements; `dtype` of the inputs and outputs.
    """

    kind: str
    rows: int
    columns: int
    dtype: Dtype = "bf16"
    phase: Literal["forward", "backward"] = "forward"


Operator = Gemm | GroupedGemm | Attention | Vector


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long one operator takes on one device, and why."""

    duration: int
    """Picoseconds, launch included."""
    bound: Bound
    flops: int
    bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes moved at each level: hbm, l2, shared."""
    detail: Mapping[str, object] = field(default_factory=dict)
    """Tile, waves, occupancy, energy_pj, model … for people and JSON."""


class OperatorModel(Protocol):
    """A device's price list; pure and memoised."""

    def estimate(self, operator: Operator) -> Estimate:
        """Return the latency of one operator."""
        ...
