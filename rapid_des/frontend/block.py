"""One transformer layer, forward and backward, as ordered operator lists of one rank."""

from __future__ import annotations

from typing import Unpack

from rapid_des.frontend.fusion import (
    Run,
    activation_kinds,
    before_residual,
    defers_bias,
    launch,
    norm_kind,
    residual_in_norm,
)
from rapid_des.frontend.linear import (
    Linear,
    column_forward,
    row_forward,
)
from rapid_des.frontend.shard import Shard
from rapid_des.frontend.steps import Counts, Step, Steps

CORE = "attention.core"
"""The name of the one kernel whose cost depends on the KV length."""


def qkv(shard: Shard) -> Linear:
    """Return the fused query, key and value projection."""
    bias = shard.model.spec.attention.qkv_bias
    return Linear("attention.qkv", shard.qkv_width, shard.hidden, bias, shard.tokens)


def attention_output(shard: Shard) -> Linear:
    """Return the projection after the attention core."""
    bias = shard.model.spec.attention.output_bias
    return Linear("attention.output", shard.hidden, shard.query_width, bias, shard.tokens)


def feed_forward_in(shard: Shard) -> Linear:
    """Return the first feed-forward matrix, gate and up side by side."""
    bias = shard.model.spec.feed_forward.bias
    return Linear("ffn.in", shard.inner_in, shard.hidden, bias, shard.tokens)


def feed_forward_out(shard: Shard) -> Linear:
    """Return the second feed-forward matrix."""
    bias = shard.model.spec.feed_forward.bias
    return Linear("ffn.out", shard.hidden, shard.inner, bias, shard.tokens)


def matrices(shard: Shard) -> tuple[Linear, ...]:
    """Return the weight matrices of one layer."""
    return qkv(shard), attention_output(shard), feed_forward_in(shard), feed_forward_out(shard)


def _norm(steps: Steps, shard: Shard, name: str) -> None:
    rows, columns = shard.norm_tokens, shard.hidden
    size = shard.activation_bytes(rows * columns)
    launch(steps, shard, name, Run((norm_kind(shard),), rows, columns), saved=size, output=size)


def add_residual(steps: Steps, shard: Shard, name: str, *, bias: bool) -> None:
    """Append dropout and the residual addition as the fusion policy has them."""
    rows, columns = shard.norm_tokens, shard.hidden
    size = shard.activation_bytes(rows * columns)
    mask = rows * columns * shard.dropout
    run = before_residual(shard, bias=bias) + (() if residual_in_norm(shard) else ("residual_add",))
    if run:
        name = f"{name}.residual"
        launch(steps, shard, name, Run(run, rows, columns), saved=mask, output=size)


def rope_kernels(steps: Steps, shard: Shard) -> None:
    """Append the rotation of queries and keys, where the model has it."""
    if shard.model.spec.position == "rope":
        rows, columns = shard.tokens, shard.query_width + shard.kv_width
        output = shard.activation_bytes(rows * columns)
        launch(steps, shard, "attention.rope", Run(("rope",), rows, columns), output=output)


def core_bytes(shard: Shard) -> int:
    """Return what the attention core keeps for its backward besides Q, K and V.

    Flash: one fp32 a query and head. Unfused: probabilities, and with dropout its mask and result:
    5·a·s²·b bytes in 16 bit (Korthikanti et al. 2022, section 4.1).
    """
    if shard.flash:
        return 4 * shard.tokens * shard.heads
    scores = shard.tokens * shard.heads * shard.key_length
    return shard.activation_bytes(scores) * (1 + shard.dropout) + scores * shard.dropout


def attention_core(
    steps: Steps, shard: Shard, name: str, *, backward: bool = False, **counts: Unpack[Counts]
) -> None:
    """Append the kernels of the attention core; the counts go to the last.

    Dropout of the probabilities is a kernel of its own where attention is not fused.
    """
    *early, late = shard.attention(backward=backward)
    if shard.dropout and not shard.flash:
        rows = shard.tokens * shard.heads
        dropout = shard.vector("dropout", rows, shard.key_length, backward=backward)
        steps.kernel(f"{name}.dropout", dropout)
    for kernel in early:
        steps.kernel(f"{name}.early", kernel)
    steps.kernel(name, late, **counts)


def exchange_kv(steps: Steps, shard: Shard, role: str) -> None:
    """Append the exchange of keys and values, or their gradients, of all sequence parts."""
    if shard.cp > 1:
        elements = shard.sequences * shard.key_length * 2 * shard.kv_width
        name = "attention.kv_gather" if role == "cp.gather" else "attention.kv_gradient_scatter"
        steps.message(name, role, shard.message(role, elements), output=shard.activation_bytes(elements))


def attention_forward(steps: Steps, shard: Shard, *, caches: bool = False) -> None:
    """Append the forward of the attention half of a layer; `caches` writes keys and values to the cache."""
    width = shard.activation_bytes(shard.tokens * shard.qkv_width)
    inner = shard.activation_bytes(shard.tokens * shard.query_width)
    stream = shard.activation_bytes(shard.norm_tokens * shard.hidden)
    _norm(steps, shard, "attention.norm")
    column_forward(steps, shard, qkv(shard), saved=stream)
    if qkv(shard).bias and defers_bias(shard):
        steps.kernel(
            "attention.qkv.bias", shard.vector("bias_add", shard.tokens, shard.qkv_width), output=width
        )
    rope_kernels(steps, shard)
    if caches:
        steps.kernel("attention.cache", shard.vector("kv_cache_write", shard.tokens, 2 * shard.kv_width))
    exchange_kv(steps, shard, "cp.gather")
    attention_core(steps, shard, CORE, saved=width, core=core_bytes(shard), output=inner)
    row_forward(steps, shard, attention_output(shard), saved=inner)
    add_residual(steps, shard, "attention", bias=shard.model.spec.attention.output_bias)


def activation_kernels(steps: Steps, shard: Shard) -> None:
    """Append GELU or SwiGLU; where it takes several kernels each keeps its input."""
    kinds = activation_kinds(shard)
    rows, columns = shard.tokens, shard.inner
    size = shard.activation_bytes(rows * columns)
    kept = shard.activation_bytes(rows * shard.inner_in) + (len(kinds) - 1) * size
    launch(steps, shard, "ffn.activation", Run(kinds, rows, columns), saved=kept, output=size)


def feed_forward(steps: Steps, shard: Shard) -> None:
    """Append the forward of the feed-forward half of a layer."""
    _norm(steps, shard, "ffn.norm")
    stream = shard.activation_bytes(shard.norm_tokens * shard.hidden)
    column_forward(steps, shard, feed_forward_in(shard), saved=stream)
    activation_kernels(steps, shard)
    inner = shard.activation_bytes(shard.tokens * shard.inner)
    row_forward(steps, shard, feed_forward_out(shard), saved=inner)
    add_residual(steps, shard, "ffn", bias=shard.model.spec.feed_forward.bias)


def block_forward(shard: Shard) -> tuple[Step, ...]:
    """Return the forward of one layer."""
    steps = Steps()
    attention_forward(steps, shard)
    feed_forward(steps, shard)
    return tuple(steps.steps)


def serving_block(shard: Shard) -> tuple[Step, ...]:
    """Return one layer of prefill or decode: the forward, with its keys and values kept in the cache."""
    steps = Steps()
    attention_forward(steps, shard, caches=True)
    feed_forward(steps, shard)
    return tuple(steps.steps)


def boundary_bytes(shard: Shard) -> int:
    """Return the bytes of the tensor between two layers."""
    return shard.activation_bytes(shard.norm_tokens * shard.hidden)
