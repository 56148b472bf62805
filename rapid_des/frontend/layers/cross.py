"""Attention of a decoder's positions to what an encoder made, between self-attention and feed-forward (T5).

Queries come from the stream, keys and values from the encoder's output, whose length all layers share. While
serving they are made with the first token, and then kept.
"""

from __future__ import annotations

from msgspec import Struct

from rapid_des.errors import ConfigError
from rapid_des.frontend.groups import byte_count
from rapid_des.frontend.layer_spec import AttentionSpec, Mixer
from rapid_des.frontend.layers.layer import Absent, AttentionCore, Parameters
from rapid_des.frontend.matrices import Linear, column_backward, column_forward, row_backward, row_forward
from rapid_des.frontend.model_spec import ModelSpec
from rapid_des.frontend.operations import Counts, OperatorList, Shard
from rapid_des.frontend.spec import ParallelismSpec
from rapid_des.values import replace


class CrossAttention(Struct, frozen=True):
    """Query heads over the keys and values of an encoder's positions."""

    hidden: int
    core: AttentionCore
    bias: bool
    """Whether queries, keys and values have biases."""
    output_bias: bool

    name = "cross_attention"

    @property
    def parameters(self) -> Parameters:
        """Projections of queries, of keys and values, and of the result."""
        core = self.core
        query, both = core.heads * core.head_dim, 2 * core.kv_heads * core.head_dim
        return Parameters(
            matrices=self.hidden * (2 * query + both),
            split_vectors=self.bias * (query + both),
            whole_vectors=self.hidden * self.output_bias,
        )

    def flops(self, sequence: int) -> int:
        """Return two a weight of what a decoder's token passes; `of_source` has the rest."""
        del sequence
        return 4 * self.hidden * self.core.heads * self.core.head_dim

    def of_source(self, source: int) -> tuple[int, int]:
        """Return the FLOPs of an encoder's position, and those of a decoder's that attends to `source`."""
        return 4 * self.hidden * self.core.kv_heads * self.core.head_dim, self.core.flops(source)

    def refusal(self, split: ParallelismSpec) -> str | None:
        """Return why tp cannot split the heads."""
        return self.core.refusal(split)

    def context_refusal(self, split: ParallelismSpec) -> str | None:
        """Return that cp is not simulated with it."""
        return f"attention to an encoder is not simulated with cp {split.cp}"

    def cache_bytes(self, shard: Shard, positions: int) -> int:
        """Return the keys and values of what the encoder made, however long the answer is."""
        del positions
        length = 0 if shard.source is None else shard.source.positions
        dtype = shard.precision.kv_cache or shard.precision.activations
        return byte_count(2 * self.core.key_width(shard) * length, dtype)

    def forward(self, operations: OperatorList, shard: Shard) -> None:
        """Append queries, keys and values where they are not kept from before, core and output."""
        query, both, output = self._matrices(shard)
        stream = shard.activation_bytes(shard.norm_tokens * shard.hidden)
        if starts(shard):
            column_forward(operations, of_source(shard), both, saved=0)
        column_forward(operations, shard, query, saved=stream)
        made = shard.activation_bytes(shard.tokens * output.inner)
        kept = shard.activation_bytes(query.rows * query.columns + both.rows * both.columns)
        core = self.core.saved_bytes(self._core_shard(shard))
        counts: Counts = {"saved": kept, "core": core, "output": made}
        self.core.append(operations, self._core_shard(shard), f"{self.name}.core", **counts)
        row_forward(operations, shard, output, saved=made)

    def backward(self, operations: OperatorList, shard: Shard) -> int:
        """Append the same from the end; gradients of the encoder's output of all layers are added up."""
        query, both, output = self._matrices(shard)
        row_backward(operations, shard, output)
        size = shard.activation_bytes(query.rows * query.columns + both.rows * both.columns)
        inner = self._core_shard(shard)
        if shard.core_again:
            again = f"{self.name}.core.recompute"
            self.core.append(operations, inner, again, held=self.core.saved_bytes(inner))
        self.core.append(operations, inner, f"{self.name}.core", backward=True, output=size)
        source = of_source(shard)
        column_backward(operations, source, both)
        add = source.vector("residual_add", source.norm_tokens, source.hidden)
        operations.kernel(f"{self.name}.source.add", add)
        return column_backward(operations, shard, query)

    def _matrices(self, shard: Shard) -> tuple[Linear, Linear, Linear]:
        core, rows = self.core, of_source(shard).tokens
        name, width = self.name, core.query_width(shard)
        return (
            Linear(f"{name}.query", width, self.hidden, self.bias, shard.tokens),
            Linear(f"{name}.key_value", 2 * core.key_width(shard), self.hidden, self.bias, rows),
            Linear(f"{name}.output", self.hidden, width, self.output_bias, shard.tokens),
        )

    @staticmethod
    def _core_shard(shard: Shard) -> Shard:
        """Return the shard of the core: the decoder's queries, the encoder's keys."""
        source = of_source(shard)
        return replace(shard, key_length=source.key_length, documents=(), padding=0)


def of_source(shard: Shard) -> Shard:
    """Return the shard of what the encoder made, as long as a sequence of the decoder has of it."""
    length = 1 if shard.source is None else shard.source.positions
    return replace(shard, query_length=length, key_length=length, documents=(), padding=0)


def starts(shard: Shard) -> bool:
    """Return whether nothing of the sequences stands in a cache, so that the encoder runs with this pass."""
    return shard.query_length == shard.key_length


def cross_attention(spec: Mixer, model: ModelSpec, file: str) -> CrossAttention | Absent:
    """Return the attention to the encoder of a model's layers, with heads as their own attention's."""
    if model.encoder is None or model.encoder.model.patches is not None:
        return Absent()
    if not isinstance(spec, AttentionSpec) or model.block != "sequential":
        problem = "layers that attend to one are sequential, of kind attention"
        raise ConfigError(problem, file=file, key="encoder")
    head_dim = spec.head_dim or model.hidden // spec.heads
    core = AttentionCore(spec.heads, spec.kv_heads or spec.heads, head_dim, head_dim, causal=False)
    return CrossAttention(model.hidden, core, spec.qkv_bias, spec.output_bias)
