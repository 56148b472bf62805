"""Multi-head latent attention (MLA): keys and values of all heads come from one latent a token.

DeepSeek-AI 2024 (arXiv 2405.04434), section 2.1. Down-projections and their norms are whole on every tp rank
(with sequence parallelism each on its part of the sequence, and what is gathered are the latents);
up-projections are split by heads. The two down-projections are one GEMM. Serving keeps the latent and one
rotated key a token. A decode step multiplies the up-projections into queries and results ("absorbed"): its
core runs over the latent, as over one key and value head; a prefill makes keys and values from the latent,
as does a decode step that does not absorb, of all tokens that are cached. With an `indexer` each query
attends to the latents of few positions: prefill and decode steps both absorb, as its kernels do.
"""

from __future__ import annotations

from msgspec import Struct

from rapid_des.device.operators import Attention, Gemm
from rapid_des.frontend.groups import byte_count
from rapid_des.frontend.layer_spec import LatentAttentionSpec
from rapid_des.frontend.layers.context import context_refusal, core_backward, core_forward, join_parts
from rapid_des.frontend.layers.indexer import Indexer
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
from rapid_des.frontend.operations import Counts, OperatorList, Shard, launch, rms_norm_backward
from rapid_des.frontend.spec import ParallelismSpec
from rapid_des.units import ceil_divide
from rapid_des.values import replace


class LatentAttention(Struct, frozen=True):
    """MLA; `core` is that of training, where every head has keys and values of its own."""

    hidden: int
    core: AttentionCore
    q_rank: int
    """Width of the queries' latent; 0: queries are projected from the residual stream."""
    kv_rank: int
    rope_dim: int
    """Channels of a query head, and of the one key, that are rotated."""
    indexer: Indexer | None = None

    name = "attention"
    output_bias = False

    @property
    def _nope_dim(self) -> int:
        """Number of channels of a query or key head that are not rotated."""
        return self.core.head_dim - self.rope_dim

    @property
    def _latents(self) -> int:
        """Columns of the down-projection: the latents, and the rotated key."""
        return self.q_rank + self.kv_rank + self.rope_dim

    @property
    def parameters(self) -> Parameters:
        """The down-projection and the norms of latents are whole on every rank, all else is split."""
        core = self.core
        queries = (self.q_rank or self.hidden) * core.heads * core.head_dim
        keys_and_values = self.kv_rank * core.heads * (self._nope_dim + core.value_dim)
        chooses = self.indexer.parameters if self.indexer else 0
        return Parameters(
            matrices=queries + keys_and_values + core.heads * core.value_dim * self.hidden,
            whole_vectors=self.hidden * self._latents + self.q_rank + self.kv_rank + chooses,
        )

    def flops(self, sequence: int) -> int:
        """Return two a weight, the core's, not absorbed, and those of an indexer."""
        weights = self.parameters.matrices + self.hidden * self._latents
        chooses = self.indexer.flops(sequence) if self.indexer else 0
        return 2 * weights + self.core.flops(self._seen(sequence)) + chooses

    def _seen(self, positions: int) -> int:
        return self.indexer.seen(positions) if self.indexer else positions

    def refusal(self, split: ParallelismSpec) -> str | None:
        """Return why tp cannot split the heads."""
        return self.core.refusal(split)

    def context_refusal(self, split: ParallelismSpec) -> str | None:
        """Return why cp cannot split the core, or the choice of positions."""
        if self.indexer:
            return "an indexer chooses among all positions of a sequence, which cp splits"
        return context_refusal(self.core, split)

    def cache_bytes(self, shard: Shard, positions: int) -> int:
        """Return the latents and rotated keys of all positions, and an indexer's, whole on every tp rank."""
        dtype = shard.precision.kv_cache or shard.precision.activations
        latents = byte_count((self.kv_rank + self.rope_dim) * positions, dtype)
        return latents + (self.indexer.cache_bytes(positions) if self.indexer else 0)

    def forward(self, operations: OperatorList, shard: Shard) -> None:
        """Append what makes queries and latents, the core with or without keys and values, the output."""
        self._project(operations, shard)
        inner = shard.activation_bytes(shard.tokens * self.core.result_width(shard))
        if shard.serving:
            write = shard.vector("kv_cache_write", shard.tokens, self.kv_rank + self.rope_dim)
            operations.kernel("attention.cache", write)
        if self.indexer:
            self.indexer.append(operations, shard)
        *early, late = shard.of_kernels(self._seen)
        for kernel_shard in early:
            self._core(operations, kernel_shard, f"{CORE}.few" if kernel_shard.decodes else f"{CORE}.prompts")
        self._core(operations, late, CORE)
        row_forward(operations, shard, self._output(shard), saved=inner)

    def backward(self, operations: OperatorList, shard: Shard) -> int:
        """Append the same from the end, keys and values gathered again (cp)."""
        core, heads = self.core, self.core.local_heads(shard)
        row_backward(operations, shard, self._output(shard))
        if self.indexer:
            self.indexer.backward(operations, shard)
        if shard.cp > 1:
            core_backward(core, operations, shard, output=self._core_bytes(shard))
        else:
            core.append_backward(operations, shard, output=self._core_bytes(shard))
        key = shard.vector("copy", shard.tokens, heads * core.head_dim, backward=True)
        operations.kernel("attention.key", key, output=shard.activation_bytes(key.rows * key.columns))
        self._rotate(operations, shard)
        waits = [self._share_key(operations, shard, "sp.scatter")]
        waits.append(self._norm_gradient(operations, shard, self._kv_up(shard), "kv"))
        if self.q_rank:
            waits.append(self._norm_gradient(operations, shard, self._query(shard), "q"))
            return self._down_gradient(operations, shard, tuple(waits))
        straight = column_backward(operations, shard, self._query(shard))
        ready = self._down_gradient(operations, shard, tuple(waits))
        add = shard.vector("residual_add", shard.norm_tokens, self.hidden)
        output = shard.activation_bytes(add.rows * add.columns)
        return operations.kernel("attention.input.add", add, after=(straight, ready), output=output)

    def _project(self, operations: OperatorList, shard: Shard) -> None:
        """Append the down-projection, the norms, and the queries, rotated."""
        stream = shard.activation_bytes(shard.norm_tokens * self.hidden)
        down, query = self._down(shard), self._query(shard)
        cast(operations, shard, down, down.rows)
        forward_gemm(operations, shard, down, saved=stream)
        if self.q_rank:
            self._norm(operations, shard, "q", self.q_rank)
        self._norm(operations, shard, "kv", self.kv_rank)
        saved_bytes = shard.activation_bytes(shard.norm_tokens * self.q_rank)
        column_forward(operations, shard, query, saved=saved_bytes)
        self._share_key(operations, shard, "sp.gather")
        self._rotate(operations, shard)

    def _core(self, operations: OperatorList, shard: Shard, name: str) -> None:
        """Append the core of equal sequences: over the latent where they decode.

        While serving all of it goes by whose tokens these are, and not by how many pass in all.
        """
        start = len(operations.entries)
        if self.indexer or (shard.decodes and shard.absorbs):
            self._absorbed(operations, shard, name)
        else:
            self._expanded(operations, shard, name)
        if shard.serving:
            made = operations.entries[start:]
            operations.entries[start:] = [replace(each, sees_cache=True) for each in made]

    def _expanded(self, operations: OperatorList, shard: Shard, name: str) -> None:
        """Append keys and values made from the latent, of what is cached too, and the core over all heads."""
        core, tokens = self.core, shard.tokens
        cached = shard.sequences * ceil_divide(shard.key_length, shard.cache_parts)
        there = cached if shard.serving and shard.cp == 1 else tokens
        up = replace(self._kv_up(shard), rows=there)
        saved_bytes = shard.activation_bytes(shard.norm_tokens * self.kv_rank)
        column_forward(operations, shard, up, saved=saved_bytes)
        key = shard.vector("copy", there, core.key_width(shard))
        operations.kernel("attention.key", key, output=shard.activation_bytes(key.rows * key.columns))
        counts: Counts = {
            "saved": self._core_bytes(shard),
            "core": core.saved_bytes(shard),
            "output": shard.activation_bytes(tokens * core.result_width(shard)),
            "sees_cache": True,
        }
        if shard.cp > 1:
            core_forward(core, operations, shard, name, **counts)
        else:
            core.append(operations, shard, name, **counts)
            if shard.cache_parts > 1:
                join_parts(operations, shard, core.local_heads(shard), core.result_width(shard))

    def _absorbed(self, operations: OperatorList, shard: Shard, name: str) -> None:
        """Append the products with the up-projection, a batch of one a head, around a core over latents."""
        heads, tokens = self.core.local_heads(shard), shard.tokens
        dtype = shard.precision.activations
        latent = shard.activation_bytes(tokens * heads * self.kv_rank)
        queries = Gemm(tokens, self.kv_rank, self._nope_dim, batch=heads, dtype=dtype)
        operations.kernel("attention.absorb", queries, output=latent)
        keys = ceil_divide(shard.key_length, shard.cache_parts)
        core = Attention(
            shard.sequences, shard.query_length, keys, heads, 1, self.kv_rank + self.rope_dim,
            value_dim=self.kv_rank, dtype=dtype, kv_dtype=shard.precision.kv_cache,
            window=None if self._seen(keys) == keys else self._seen(keys),
            fused=shard.flash, shared_latent=True,
        )  # fmt: skip
        operations.kernel(name, core, output=latent, sees_cache=True)
        if shard.cache_parts > 1:
            join_parts(operations, shard, heads, heads * self.kv_rank)
        values = Gemm(tokens, self.core.value_dim, self.kv_rank, batch=heads, dtype=dtype)
        output = shard.activation_bytes(tokens * self.core.result_width(shard))
        operations.kernel("attention.value", values, output=output)

    def _down(self, shard: Shard) -> Linear:
        columns = self._latents
        return Linear("attention.down", columns, self.hidden, bias=False, rows=shard.norm_tokens)

    def _query(self, shard: Shard) -> Linear:
        columns, inner = self.core.query_width(shard), self.q_rank or self.hidden
        return Linear("attention.query", columns, inner, bias=False, rows=shard.tokens)

    def _kv_up(self, shard: Shard) -> Linear:
        columns = self.core.local_heads(shard) * (self._nope_dim + self.core.value_dim)
        return Linear("attention.kv_up", columns, self.kv_rank, bias=False, rows=shard.tokens)

    def _output(self, shard: Shard) -> Linear:
        inner = self.core.result_width(shard)
        return Linear("attention.output", self.hidden, inner, bias=False, rows=shard.tokens)

    def _core_bytes(self, shard: Shard) -> int:
        """Return the bytes of queries, keys and values."""
        core = self.core
        columns = core.query_width(shard) + core.key_width(shard) + core.value_width(shard)
        return shard.activation_bytes(shard.tokens * columns)

    def _rotate(self, operations: OperatorList, shard: Shard) -> None:
        columns = (self.core.local_heads(shard) + 1) * self.rope_dim
        size = shard.activation_bytes(shard.tokens * columns)
        launch(operations, shard, "attention.rope", ("rope",), (shard.tokens, columns), output=size)

    def _share_key(self, operations: OperatorList, shard: Shard, role: str) -> int:
        """Append the gather of sequence shards' rotated key, or the sum of its gradients; return the last."""
        if shard.tp == 1 or not (shard.sequence_parallel or role == "sp.scatter"):
            return operations.last
        elements, chosen = shard.tokens * self.rope_dim, role
        if not shard.sequence_parallel:
            chosen = "tp.reduce_gradient"
        name = f"attention.rope_key.{chosen.partition('.')[2]}"
        size = shard.activation_bytes(elements)
        return operations.message(name, chosen, shard.message(chosen, elements), output=size)

    def _norm(self, operations: OperatorList, shard: Shard, part: str, width: int) -> None:
        shape = (shard.norm_tokens, width)
        size = shard.activation_bytes(shape[0] * width)
        launch(operations, shard, f"attention.{part}_norm", ("rms_norm",), shape, saved=size, output=size)

    def _norm_gradient(self, operations: OperatorList, shard: Shard, linear: Linear, part: str) -> int:
        """Append the backward of an up-projection and of the norm before it; return where that stands."""
        ready = column_backward(operations, shard, linear)
        shape = (shard.norm_tokens, linear.inner)
        counts: Counts = {"output": shard.activation_bytes(shape[0] * shape[1]), "parameters": linear.inner}
        return rms_norm_backward(operations, shard, f"attention.{part}_norm", shape, ready, **counts)

    def _down_gradient(self, operations: OperatorList, shard: Shard, waits: tuple[int, ...]) -> int:
        """Append the gradients of latents joined, and the down-projection's backward."""
        join = shard.vector("copy", shard.norm_tokens, self._latents)
        output = shard.activation_bytes(join.rows * join.columns)
        operations.kernel("attention.latents", join, after=waits, output=output)
        alone = replace(shard, tp=1, sequence_parallel=False)
        return column_backward(operations, alone, self._down(shard))


def latent_attention(spec: LatentAttentionSpec, model: ModelSpec, file: str) -> LatentAttention:
    """Return the latent attention of a model file; all its dimensions fit."""
    del file
    core = AttentionCore(
        heads=spec.heads,
        kv_heads=spec.heads,
        head_dim=spec.head_dim + spec.rope_dim,
        value_dim=spec.value_dim,
    )
    return LatentAttention(
        hidden=model.hidden,
        core=core,
        q_rank=spec.q_rank or 0,
        kv_rank=spec.kv_rank,
        rope_dim=spec.rope_dim,
        indexer=_indexer(spec, model),
    )


def _indexer(spec: LatentAttentionSpec, model: ModelSpec) -> Indexer | None:
    if spec.indexer is None:
        return None
    width = spec.q_rank or model.hidden
    return Indexer(model.hidden, width, spec.indexer.heads, spec.indexer.head_dim, spec.indexer.topk)
