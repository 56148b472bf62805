"""The halves of a plain transformer layer: self-attention over one KV cache, and the dense feed-forward.

Attention is multi-head, grouped-query or multi-query (MHA, GQA, MQA). tp splits the heads; key and value
heads are copied where there are fewer than tp. The feed-forward is two matrices with an activation between
them; tp splits the inner width.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from rapid_des.device.vector import EAGER, Policy, fused
from rapid_des.errors import ConfigError
from rapid_des.frontend.groups import byte_count
from rapid_des.frontend.layer_spec import AttentionSpec, FeedForwardSpec
from rapid_des.frontend.layers.context import context_refusal, core_backward, core_forward, join_parts
from rapid_des.frontend.layers.layer import CORE, AttentionCore, Parameters
from rapid_des.frontend.matrices import (
    Linear,
    cast,
    column_backward,
    column_forward,
    forward_gemm,
    row_backward,
    row_forward,
)
from rapid_des.frontend.model_spec import ModelSpec
from rapid_des.frontend.operations import (
    Counts,
    OperatorList,
    Shard,
    defers_bias,
    launch,
    rms_norm_backward,
)
from rapid_des.frontend.spec import ParallelismSpec

ROTATING: frozenset[Policy] = frozenset({"trtllm"})
"""Policies whose attention rotates queries and keys and writes the cache while serving: TensorRT-LLM's plugin
does, in masked multi-head attention or in a kernel of its own that constants of measured plugins hold."""


class GroupedQueryAttention(Struct, frozen=True):
    """Query heads that share key and value heads, fused by FlashAttention or not."""

    hidden: int
    core: AttentionCore
    biases: int
    """Biases of queries, keys and values."""
    output_bias: bool
    rotary_dim: int
    """Number of channels of a head that are rotated (RoPE)."""
    qk_norm: str
    sinks: bool
    output_gate: bool
    keeps_cache: bool = True
    """Whether later passes see its keys and values: not those of encoders, nor of models of features."""

    name = "attention"

    @property
    def parameters(self) -> Parameters:
        """The fused query, key and value projection, the output projection, norms and sinks."""
        core = self.core
        query, kv = core.heads * core.head_dim, core.kv_heads * core.head_dim
        projected = query * (1 + self.output_gate) + 2 * kv
        return Parameters(
            matrices=self.hidden * (projected + query),
            split_vectors=self.biases + core.heads * self.sinks + (query + kv) * (self.qk_norm == "whole"),
            whole_vectors=self.hidden * self.output_bias + 2 * core.head_dim * (self.qk_norm == "head"),
        )

    def flops(self, sequence: int) -> int:
        """Return two a weight, and four a position and query element for scores and values."""
        return 2 * self.parameters.matrices + self.core.flops(sequence)

    def refusal(self, split: ParallelismSpec) -> str | None:
        """Return why tp cannot split the heads."""
        return self.core.refusal(split)

    def context_refusal(self, split: ParallelismSpec) -> str | None:
        """Return why cp cannot split the core."""
        return context_refusal(self.core, split)

    def cache_bytes(self, shard: Shard, positions: int) -> int:
        """Return the keys and values of all positions that a later query sees: none behind an encoder."""
        if not self.keeps_cache:
            return 0
        dtype = shard.precision.kv_cache or shard.precision.activations
        return byte_count(2 * self.core.key_width(shard) * self.core.seen(positions), dtype)

    def forward(self, operations: OperatorList, shard: Shard) -> None:
        """Append projection, norms, rotation, exchange of keys and values (cp), core, output projection."""
        core, qkv = self.core, self._qkv(shard)
        width = self._result_bytes(shard, qkv.columns)
        inner = self._result_bytes(shard, core.result_width(shard))
        stream = shard.activation_bytes(shard.norm_tokens * shard.hidden)
        column_forward(operations, shard, qkv, saved=stream)
        if self.biases and defers_bias(shard):
            kernel = shard.vector("bias_add", shard.tokens, qkv.columns)
            operations.kernel("attention.qkv.bias", kernel, output=width)
        self._normalize(operations, shard)
        inside = shard.serving and shard.fusion in ROTATING
        if not inside:
            self._rotate(operations, shard)
        if shard.serving and not inside and self.keeps_cache:
            write = shard.vector("kv_cache_write", shard.tokens, 2 * core.key_width(shard))
            operations.kernel("attention.cache", write)
        counts: Counts = {
            "saved": width,
            "core": core.saved_bytes(shard),
            "output": inner,
            "sees_cache": True,
        }
        if shard.cp > 1:
            core_forward(core, operations, shard, **counts)
        else:
            core.append(operations, shard, CORE, **counts)
            if shard.cache_parts > 1:
                join_parts(operations, shard, core.local_heads(shard), core.result_width(shard))
        self._scale(operations, shard)
        row_forward(operations, shard, self._output(shard), saved=inner)

    def backward(self, operations: OperatorList, shard: Shard) -> int:
        """Append the same from the end, keys and values gathered again (cp)."""
        core = self.core
        row_backward(operations, shard, self._output(shard))
        self._scale(operations, shard, backward=True)
        width = self._result_bytes(shard, self._qkv(shard).columns)
        counts: Counts = {"output": width, "parameters": core.local_heads(shard) * self.sinks}
        if shard.cp > 1:
            core_backward(core, operations, shard, **counts)
        else:
            core.append_backward(operations, shard, **counts)
        self._rotate(operations, shard)
        self._normalize(operations, shard, backward=True)
        if shard.fusion in EAGER:  # the backward of a split copies the three gradients into one tensor
            operations.kernel(f"{CORE}.join", shard.vector("copy", shard.tokens, self._qkv(shard).columns))
        return column_backward(operations, shard, self._qkv(shard))

    def _scale(self, operations: OperatorList, shard: Shard, *, backward: bool = False) -> None:
        """Append the gate of what the heads made, which is kept before it too."""
        if self.output_gate:
            columns = self.core.result_width(shard)
            size = self._result_bytes(shard, columns)
            kernel = shard.vector("multiply", shard.tokens, columns, backward=backward)
            operations.kernel("attention.gate", kernel, saved=size * (not backward), output=size)

    def _qkv(self, shard: Shard) -> Linear:
        queries = self.core.query_width(shard) * (1 + self.output_gate)
        columns = queries + 2 * self.core.key_width(shard)
        return Linear("attention.qkv", columns, self.hidden, self.biases > 0, shard.tokens)

    def _output(self, shard: Shard) -> Linear:
        inner = self.core.result_width(shard)
        return Linear("attention.output", self.hidden, inner, self.output_bias, shard.tokens)

    @staticmethod
    def _result_bytes(shard: Shard, columns: int) -> int:
        return shard.activation_bytes(shard.tokens * columns)

    def _rotate(self, operations: OperatorList, shard: Shard) -> None:
        if self.rotary_dim:
            heads = self.core.local_heads(shard) + self.core.local_kv_heads(shard)
            columns = heads * self.rotary_dim
            output = self._result_bytes(shard, columns)
            launch(operations, shard, "attention.rope", ("rope",), (shard.tokens, columns), output=output)

    def _normalize(self, operations: OperatorList, shard: Shard, *, backward: bool = False) -> None:
        """Append the norms of queries and keys: of each head, or of all heads together.

        Together over tp ranks they first add up each token's two sums of squares (their products with the
        gradient in the backward).
        """
        if self.qk_norm == "none":
            return
        whole = self.qk_norm == "whole"
        if whole and shard.tp > 1:
            size = shard.message("tp.reduce", 2 * shard.tokens, "fp32")
            operations.message("attention.qk_norm.reduce", "tp.reduce", size)
        widths = {"q": self.core.query_width(shard), "k": self.core.key_width(shard)}
        for part, width in widths.items():
            columns = width if whole else self.core.head_dim
            shape = (shard.tokens * width // columns, columns)
            size, name = self._result_bytes(shard, width), f"attention.{part}_norm"
            if backward:
                rms_norm_backward(operations, shard, name, shape, output=size, parameters=columns)
            else:
                launch(operations, shard, name, ("rms_norm",), shape, saved=size, output=size)


def grouped_query_attention(spec: AttentionSpec, model: ModelSpec, file: str) -> GroupedQueryAttention:
    """Return the attention of a model file."""
    if spec.head_dim is None and model.hidden % spec.heads:
        problem = f"hidden {model.hidden} is not divisible by {spec.heads} heads: give head_dim"
        raise ConfigError(problem, file=file, key="attention.heads")
    if spec.kv_heads and spec.heads % spec.kv_heads:
        problem = f"{spec.heads} heads do not divide by {spec.kv_heads} kv_heads"
        raise ConfigError(problem, file=file, key="attention.kv_heads")
    if not spec.causal and (spec.window or spec.chunk):
        problem = "a window or chunks of both sides are not simulated"
        raise ConfigError(problem, file=file, key="attention.causal")
    head_dim = spec.head_dim or model.hidden // spec.heads
    core = AttentionCore(
        heads=spec.heads,
        kv_heads=spec.kv_heads or spec.heads,
        head_dim=head_dim,
        value_dim=head_dim,
        window=spec.window,
        chunk=spec.chunk,
        softcap=spec.softcap,
        causal=spec.causal,
    )
    return GroupedQueryAttention(
        hidden=model.hidden,
        core=core,
        biases=_biases(spec, core),
        output_bias=spec.output_bias,
        rotary_dim=_rotary_dim(spec, model, head_dim, file),
        qk_norm=spec.qk_norm,
        sinks=spec.sinks,
        output_gate=spec.output_gate,
        keeps_cache=spec.causal and model.features is None,
    )


def _biases(spec: AttentionSpec, core: AttentionCore) -> int:
    """Return how many biases queries, keys and values have."""
    heads = core.heads * (1 + spec.output_gate) + core.kv_heads * (1 + spec.key_bias)
    return heads * core.head_dim * spec.qkv_bias


def _rotary_dim(spec: AttentionSpec, model: ModelSpec, head_dim: int, file: str) -> int:
    """Return the number of rotated channels of a head; by default all if positions are rotary."""
    if spec.rotary is None:
        return head_dim if model.position == "rope" else 0
    if model.position != "rope":
        problem = f"{spec.rotary} of a head cannot be rotated: position is {model.position}, not rope"
        raise ConfigError(problem, file=file, key="attention.rotary")
    return round(spec.rotary * head_dim)


GATED = frozenset(("swiglu", "geglu"))
"""Activations that multiply a gate, which stands beside the up projection."""


class DenseFeedForward(Struct, frozen=True):
    """Two matrices and an activation, which may have a gate beside the up projection."""

    hidden: int
    inner: int
    activation: str
    bias: bool
    name: str = "ffn"
    """The first part of its operators' names."""

    @property
    def output_bias(self) -> bool:
        """Both matrices have a bias or none."""
        return self.bias

    @property
    def _projections(self) -> int:
        """Number of matrices side by side in the first product: up, and the gate if there is one."""
        return 2 if self.activation in GATED else 1

    @property
    def parameters(self) -> Parameters:
        """The matrices up (with the gate) and down."""
        return Parameters(
            matrices=self.hidden * self.inner * (self._projections + 1),
            split_vectors=self.inner * self._projections * self.bias,
            whole_vectors=self.hidden * self.bias,
        )

    def flops(self, sequence: int) -> int:
        """Return two a weight."""
        del sequence
        return 2 * self.parameters.matrices

    def refusal(self, split: ParallelismSpec) -> str | None:
        """Return why tp cannot split the inner width."""
        tp = split.tp
        return f"feed-forward hidden {self.inner} is not divisible by tp {tp}" if self.inner % tp else None

    def forward(self, operations: OperatorList, shard: Shard) -> None:
        """Append up projection, activation and down projection."""
        self.up(operations, shard, saved=shard.activation_bytes(shard.norm_tokens * shard.hidden))
        down = self._down(shard)
        row_forward(operations, shard, down, saved=shard.activation_bytes(shard.tokens * down.inner))

    def up(self, operations: OperatorList, shard: Shard, *, saved: int) -> None:
        """Append the first product and the activation."""
        column_forward(operations, shard, self._up(shard), saved=saved)
        self._activate(operations, shard)

    def down(self, operations: OperatorList, shard: Shard) -> None:
        """Append the second product, without the sum over tp."""
        down = self._down(shard)
        cast(operations, shard, down, shard.tokens)
        forward_gemm(operations, shard, down, saved=shard.activation_bytes(shard.tokens * down.inner))

    def backward(self, operations: OperatorList, shard: Shard) -> int:
        """Append the same from the end."""
        self.down_backward(operations, shard)
        return self.up_backward(operations, shard)

    def down_backward(self, operations: OperatorList, shard: Shard) -> None:
        """Append the gradients of the second product and of the activation."""
        row_backward(operations, shard, self._down(shard))
        rows, columns = shard.tokens, self._down(shard).inner
        size = shard.activation_bytes(rows * self._up(shard).columns)
        for kind in reversed(self._activation_kinds(shard)):
            if kind != "bias_add":
                kernel = shard.vector(kind, rows, columns, backward=True)
                operations.kernel(f"{self.name}.{kind}", kernel, output=size)

    def up_backward(self, operations: OperatorList, shard: Shard) -> int:
        """Append the gradients of the first product."""
        return column_backward(operations, shard, self._up(shard))

    def _up(self, shard: Shard) -> Linear:
        columns = self.inner // shard.tp * self._projections
        return Linear(f"{self.name}.in", columns, self.hidden, self.bias, shard.tokens)

    def _down(self, shard: Shard) -> Linear:
        return Linear(f"{self.name}.out", self.hidden, self.inner // shard.tp, self.bias, shard.tokens)

    def _activate(self, operations: OperatorList, shard: Shard) -> None:
        """Append the activation; where it takes several kernels each keeps its input."""
        kinds = self._activation_kinds(shard)
        rows, columns = shard.tokens, self._down(shard).inner
        size = shard.activation_bytes(rows * columns)
        saved = shard.activation_bytes(rows * self._up(shard).columns) + (len(kinds) - 1) * size
        launch(operations, shard, f"{self.name}.activation", kinds, (rows, columns), saved=saved, output=size)

    def _activation_kinds(self, shard: Shard) -> tuple[str, ...]:
        """Return the kernels of the activation, in forward order."""
        bias = ("bias_add",) if self.bias and defers_bias(shard) else ()
        return fused((*bias, self.activation), shard.fusion)


def dense_feed_forward(spec: FeedForwardSpec, model: ModelSpec, file: str) -> DenseFeedForward:
    """Return the feed-forward of a model file; all its dimensions fit."""
    del file
    return DenseFeedForward(model.hidden, spec.hidden, spec.activation, spec.bias)


def causal_flops(flops: Callable[[int], int], positions: range) -> int:
    """Return the FLOPs of positions each of which sees those up to itself.

    They grow with what is seen by one slope, up to a reach, and by a lesser one beyond it (0 with a window).
    """
    alone, end = flops(0), positions[-1]
    slope, later = flops(1) - alone, flops(end) - flops(end - 1)
    seen = (positions.start + end) * len(positions) // 2
    if slope == later:
        return len(positions) * alone + seen * slope
    reach = (flops(end) - end * later - alone) // (slope - later)
    growing = range(positions.start, max(positions.start, min(positions.stop, reach + 1)))
    within = (growing.start + growing.stop - 1) * len(growing) // 2 + (len(positions) - len(growing)) * reach
    return len(positions) * alone + within * (slope - later) + seen * later
