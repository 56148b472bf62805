"""Self-attention over one KV cache: multi-head, grouped-query and multi-query (MHA, GQA, MQA).

tp splits the heads; key and value heads are copied where there are fewer than tp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from rapid_des.device.operators import Attention
from rapid_des.errors import ConfigError
from rapid_des.frontend.layers.layer import Parameters
from rapid_des.frontend.operations import (
    Counts,
    Linear,
    OperationList,
    column_backward,
    column_forward,
    defers_bias,
    launch,
    row_backward,
    row_forward,
)
from rapid_des.frontend.shard import Shard, byte_count
from rapid_des.frontend.spec import AttentionSpec, ModelSpec, ParallelismSpec

CORE = "attention.core"
"""The kernel whose cost depends on the KV length."""


@dataclass(frozen=True)
class GroupedQueryAttention:
    """`heads` query heads that share `kv_heads` key and value heads, fused by FlashAttention or not."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool
    output_bias: bool
    rotary: bool
    """Whether queries and keys are rotated (RoPE)."""

    name = "attention"

    @property
    def parameters(self) -> Parameters:
        """The fused query, key and value projection, and the output projection."""
        query, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return Parameters(
            matrices=self.hidden * (query + 2 * kv) + query * self.hidden,
            split_vectors=(query + 2 * kv) * self.qkv_bias,
            whole_vectors=self.hidden * self.output_bias,
        )

    def flops(self, sequence: int) -> int:
        """Return two a weight, and four a position and query element for scores and values."""
        return 2 * self.parameters.matrices + 4 * sequence * self.heads * self.head_dim

    def refusal(self, split: ParallelismSpec) -> str | None:
        """Return why tp can not split the heads."""
        tp = split.tp
        if self.heads % tp:
            return f"attention heads {self.heads} does not divide by tp {tp}"
        if self.kv_heads % tp and tp % self.kv_heads:
            return f"kv_heads {self.kv_heads} and tp {tp}: one must divide by the other"
        return None

    def cache_bytes(self, shard: Shard, positions: int) -> int:
        """Return the keys and values of all positions."""
        dtype = shard.precision.kv_cache or shard.precision.activations
        return byte_count(2 * self._kv_width(shard) * positions, dtype)

    def forward(self, operations: OperationList, shard: Shard) -> None:
        """Append projection, rotation, exchange of keys and values (cp), core, and output projection."""
        width = self._result_bytes(shard, self._qkv(shard).columns)
        inner = self._result_bytes(shard, self._query_width(shard))
        stream = shard.activation_bytes(shard.norm_tokens * shard.hidden)
        column_forward(operations, shard, self._qkv(shard), saved=stream)
        if self.qkv_bias and defers_bias(shard):
            kernel = shard.vector("bias_add", shard.tokens, self._qkv(shard).columns)
            operations.kernel("attention.qkv.bias", kernel, output=width)
        self._rotate(operations, shard)
        if shard.serving:
            write = shard.vector("kv_cache_write", shard.tokens, 2 * self._kv_width(shard))
            operations.kernel("attention.cache", write)
        self._exchange_kv(operations, shard, "cp.gather")
        self._append_core(
            operations, shard, CORE, saved=width, core=self._core_bytes(shard), output=inner, sees_cache=True
        )
        row_forward(operations, shard, self._output(shard), saved=inner)

    def backward(self, operations: OperationList, shard: Shard) -> int:
        """Append the same from the end, keys and values gathered again (cp)."""
        row_backward(operations, shard, self._output(shard))
        width = self._result_bytes(shard, self._qkv(shard).columns)
        self._exchange_kv(operations, shard, "cp.gather")
        if shard.recompute == "selective":
            self._append_core(operations, shard, f"{CORE}.recompute", held=self._core_bytes(shard))
        self._append_core(operations, shard, CORE, backward=True, output=width)
        self._exchange_kv(operations, shard, "cp.scatter")
        self._rotate(operations, shard)
        return column_backward(operations, shard, self._qkv(shard))

    def _query_width(self, shard: Shard) -> int:
        return self.heads // shard.tp * self.head_dim

    def _kv_width(self, shard: Shard) -> int:
        return max(1, self.kv_heads // shard.tp) * self.head_dim

    def _qkv(self, shard: Shard) -> Linear:
        columns = self._query_width(shard) + 2 * self._kv_width(shard)
        return Linear("attention.qkv", columns, self.hidden, self.qkv_bias, shard.tokens)

    def _output(self, shard: Shard) -> Linear:
        inner = self._query_width(shard)
        return Linear("attention.output", self.hidden, inner, self.output_bias, shard.tokens)

    @staticmethod
    def _result_bytes(shard: Shard, columns: int) -> int:
        return shard.activation_bytes(shard.tokens * columns)

    def _rotate(self, operations: OperationList, shard: Shard) -> None:
        if self.rotary:
            columns = self._query_width(shard) + self._kv_width(shard)
            output = self._result_bytes(shard, columns)
            launch(operations, shard, "attention.rope", ("rope",), (shard.tokens, columns), output=output)

    def _exchange_kv(self, operations: OperationList, shard: Shard, role: str) -> None:
        """Append the exchange of keys and values, or their gradients, of all sequence parts."""
        if shard.cp > 1:
            elements = shard.sequences * shard.key_length * 2 * self._kv_width(shard)
            name = "attention.kv_gather" if role == "cp.gather" else "attention.kv_gradient_scatter"
            operations.message(
                name, role, shard.message(role, elements), output=shard.activation_bytes(elements)
            )

    def _core_bytes(self, shard: Shard) -> int:
        """Return what the attention core keeps for its backward besides Q, K and V.

        Flash: one fp32 a query and head. Unfused: probabilities, and with dropout its mask and result:
        5·a·s²·b bytes in 16 bit (Korthikanti et al. 2022, section 4.1).
        """
        rows = shard.tokens * (self.heads // shard.tp)
        if shard.flash:
            return 4 * rows
        scores = rows * shard.key_length
        return shard.activation_bytes(scores) * (1 + shard.dropout) + scores * shard.dropout

    def _append_core(
        self, operations: OperationList, shard: Shard, name: str, *, backward: bool = False,
        **counts: Unpack[Counts],
    ) -> None:  # fmt: skip
        """Append the kernels of the attention core; the counts go to the last.

        Dropout of the probabilities is a kernel of its own where attention is not fused.
        """
        *early, late = self._cores(shard, backward=backward)
        if shard.dropout and not shard.flash:
            rows = shard.tokens * (self.heads // shard.tp)
            dropout = shard.vector("dropout", rows, shard.key_length, backward=backward)
            operations.kernel(f"{name}.dropout", dropout)
        for kernel in early:
            operations.kernel(f"{name}.early", kernel)
        operations.kernel(name, late, **counts)

    def _cores(self, shard: Shard, *, backward: bool) -> tuple[Attention, ...]:
        """Return the kernels of the core.

        With context parallelism a rank holds one early and one late piece of 2·cp (so that causal work is
        alike on all ranks): two kernels. Those of rank 0 stand for all, since the visible pairs of piece i
        and piece 2·cp - 1 - i always sum to the same.
        """
        if shard.cp == 1:
            return (self._core(shard, shard.query_length, shard.key_length, backward=backward),)
        piece = shard.query_length // 2
        return tuple(self._core(shard, piece, keys, backward=backward) for keys in (piece, shard.key_length))

    def _core(self, shard: Shard, query_length: int, key_length: int, *, backward: bool) -> Attention:
        kv_heads = max(1, self.kv_heads // shard.tp)
        return Attention(
            shard.sequences, query_length, key_length, self.heads // shard.tp, kv_heads, self.head_dim,
            phase="backward" if backward else "forward",
            dtype=shard.precision.activations,
            kv_dtype=shard.precision.kv_cache,
            fused=shard.flash,
        )  # fmt: skip


def grouped_query_attention(spec: AttentionSpec, model: ModelSpec, file: str) -> GroupedQueryAttention:
    """Return the attention of a model file."""
    if spec.head_dim is None and model.hidden % spec.heads:
        problem = f"hidden {model.hidden} does not divide by {spec.heads} heads: give head_dim"
        raise ConfigError(problem, file=file, key="attention.heads")
    if spec.kv_heads and spec.heads % spec.kv_heads:
        problem = f"{spec.heads} heads do not divide by {spec.kv_heads} kv_heads"
        raise ConfigError(problem, file=file, key="attention.kv_heads")
    return GroupedQueryAttention(
        hidden=model.hidden,
        heads=spec.heads,
        kv_heads=spec.kv_heads or spec.heads,
        head_dim=spec.head_dim or model.hidden // spec.heads,
        qkv_bias=spec.qkv_bias,
        output_bias=spec.output_bias,
        rotary=model.position == "rope",
    )
