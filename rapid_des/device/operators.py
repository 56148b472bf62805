"""Operators as frozen shapes, and the estimate of an operator's time.

Shapes know what follows from them alone: how many bytes they touch at the least and which pairs they compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from msgspec import Struct, field

Dtype = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8", "int4"]
Bound = Literal["tensor", "vector", "shared", "l2", "hbm", "latency", "launch", "host"]

DTYPE_BITS: Mapping[str, int] = {
    "fp64": 64, "fp32": 32, "tf32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "int8": 8, "fp4": 4, "int4": 4,
}  # fmt: skip


def width(dtype: str) -> float:
    """Return the bytes of one element.

    >>> width("fp4"), width("bf16")
    (0.5, 2.0)
    """
    return DTYPE_BITS[dtype] / 8


class Gemm(Struct, frozen=True):
    """C[b, m, n] = A[b, m, k] · B[b, k, n], b = 0..batch-1, nothing shared between them.

    >>> Gemm(m=4096, n=4096, k=1024, dtype="fp16").batch
    1
    """

    m: int
    n: int
    k: int
    batch: int = 1
    dtype: Dtype = "bf16"
    out_dtype: Dtype | None = None
    """The dtype of C; None: the same as `dtype`."""
    accumulate: bool = False
    """Whether C is read too (gradient accumulation)."""
    weight_dtype: Dtype | None = None
    """The dtype of B under weight-only quantisation; None: the same as `dtype`."""
    quantised: bool = False
    """Whether A already has the type `dtype`, where a library would otherwise convert it from 16 bit."""
    across: int = 0
    """The elements of A and B that a framework stores across K. A separate kernel transposes them where the
    library multiplies only operands stored along K.
    """


class GroupedGemm(Struct, frozen=True):
    """One kernel over several experts: group g computes [rows[g], k] · [k, n].

    >>> sum(GroupedGemm(rows=(128, 0, 64), n=4096, k=1024).rows)
    192
    """

    rows: tuple[int, ...]
    n: int
    k: int
    dtype: Dtype = "bf16"
    weight_dtype: Dtype | None = None
    """The dtype of the experts' weights under weight-only quantisation; None: the same as `dtype`."""


class Attention(Struct, frozen=True):
    """Scaled dot-product attention of `batch` sequences; heads are this GPU's.

    Prefill and training: `query_length` new positions attend to `key_length` ≥ query_length positions (the
    last query to all of them when causal). Decode: query_length 1.

    >>> Attention(1, 2048, 2048, heads=32, kv_heads=8, head_dim=128).group_size
    4
    """

    batch: int
    query_length: int
    key_length: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int | None = None
    """The size of a value head; None: the same as `head_dim`."""
    phase: Literal["forward", "backward"] = "forward"
    causal: bool = True
    window: int | None = None
    """The sliding window in positions; None: no window."""
    dtype: Dtype = "bf16"
    kv_dtype: Dtype | None = None
    page_size: int | None = None
    """The positions in a page of a paged KV cache; None: a contiguous cache."""
    fused: bool = True
    """Whether FlashAttention is used; if not, scores and probabilities go through memory."""
    shared_latent: bool = False
    """Whether keys and values are one latent of `head_dim` that is read once (absorbed MLA); its first
    `value_dim` columns are the values.
    """

    @property
    def value_width(self) -> int:
        """The columns of a value head."""
        return self.value_dim or self.head_dim

    @property
    def cache_dtype(self) -> Dtype:
        """The dtype in which keys and values are stored."""
        return self.kv_dtype or self.dtype

    @property
    def group_size(self) -> int:
        """The number of query heads that share one KV head."""
        return self.heads // self.kv_heads

    @property
    def read_keys(self) -> int:
        """How many key positions are read at all: with a window, only those that some query sees.

        A paged cache is read in whole pages.
        """
        keys = self.key_length
        if self.window is not None:
            keys = min(keys, self.window + self.query_length - 1)
        if self.page_size is not None:
            keys = -(-keys // self.page_size) * self.page_size
        return keys

    @property
    def visible_pairs(self) -> int:
        """How many (query, key) pairs one head of one sequence looks at.

        >>> Attention(1, 4, 4, 1, 1, 64).visible_pairs, Attention(1, 4, 4, 1, 1, 64, window=2).visible_pairs
        (10, 7)
        """
        queries, keys = self.query_length, self.key_length
        if not self.causal:
            return queries * min(keys, self.window or keys)
        window = min(self.window or keys, keys)
        # Query i (0-based) sees the min(window, first + i) latest keys.
        first = keys - queries + 1
        growing = max(0, min(queries, window - first))
        return growing * first + growing * (growing - 1) // 2 + (queries - growing) * window

    @property
    def sizes(self) -> Sizes:
        """The bytes of the operands and the FLOPs of the forward pass.

        >>> Attention(1, 2, 2, heads=1, kv_heads=1, head_dim=64).sizes.flops  # 3 visible pairs, 2 products
        768
        """
        rows = self.batch * self.query_length * self.heads
        columns = self.head_dim + (0 if self.shared_latent else self.value_width)
        keys = self.batch * self.read_keys * self.kv_heads * columns
        pairs = self.batch * self.heads * self.visible_pairs
        return Sizes(
            query=rows * self.head_dim * width(self.dtype),
            keys=keys * width(self.cache_dtype),
            output=rows * self.value_width * width(self.dtype),
            flops=2 * pairs * (self.head_dim + self.value_width),
        )


class Sizes(Struct, frozen=True):
    """Bytes of one attention's operands, and its exact FLOPs (masked pairs excluded)."""

    query: float
    keys: float
    """The bytes of K and V (one latent where it is shared)."""
    output: float
    flops: int

    @property
    def operands(self) -> float:
        """Q, K, V and O: what the kernel must move at least."""
        return self.query + self.keys + self.output


class Vector(Struct, frozen=True):
    """A memory-bound kernel on the vector unit: norms, softmax, activations, RoPE, optimizers, copies.

    `kind` is one of the registry in the device package (see `rapid-des operator --help`); `rows` × `columns`
    elements; `dtype` of the inputs and outputs.

    >>> Vector("rms_norm", rows=4096, columns=8192).phase
    'forward'
    """

    kind: str
    rows: int
    columns: int
    dtype: Dtype = "bf16"
    phase: Literal["forward", "backward"] = "forward"


class HostWork(Struct, frozen=True):
    """Bytes that go to the memory of the host, come from it, or pass its processor's part for this GPU."""

    size: int
    what: Literal["to_host", "from_host", "memory"]
    dtype: Dtype = "fp32"


class Starts(Struct, frozen=True):
    """The start-up time of several kernels in sequence: the time to issue and begin them, without their work.

    >>> Starts(16, 14_000_000).duration / 1e6  # microseconds
    224.0
    """

    count: int
    each: int
    """The time of each start in picoseconds."""
    dtype: Dtype = "bf16"

    @property
    def duration(self) -> int:
        """Picoseconds of all."""
        return self.count * self.each


Operator = Gemm | GroupedGemm | Attention | Vector | HostWork | Starts


class Estimate(Struct, frozen=True):
    """How long one operator takes on one device, and why.

    >>> Estimate(duration=2_000_000, bound="hbm", flops=0).duration / 1e6  # microseconds
    2.0
    """

    duration: int
    """The duration in picoseconds, launch included."""
    bound: Bound
    flops: int
    bytes: Mapping[str, int] = field(default_factory=dict)
    """The bytes moved at each level: hbm, l2, shared."""
    detail: Mapping[str, object] = field(default_factory=dict)
    """Details for reports and JSON: tile, waves, occupancy, energy_pj, and others."""
    model: str = ""
    """The name of the model that priced it: `gemm`, `grouped`, `attention.flash`, `attention.decode`,
    `attention.unfused`, `vector`, `roofline` or `learned:FILE`.
    """


class OperatorModel(Protocol):
    """A model that prices operators; equal operators get equal estimates."""

    def estimate(self, operator: Operator) -> Estimate:
        """Return the latency of one operator."""
        ...
