"""The backward of one transformer layer as an ordered operator list of one rank."""

from __future__ import annotations

from rapid_des.frontend.block import (
    CORE,
    attention_core,
    attention_output,
    block_forward,
    core_bytes,
    exchange_kv,
    feed_forward_in,
    feed_forward_out,
    qkv,
    rope_kernels,
)
from rapid_des.frontend.fusion import activation_kinds, dropout_kind
from rapid_des.frontend.linear import column_backward, row_backward
from rapid_des.frontend.shard import Shard
from rapid_des.frontend.steps import Step, Steps


def _dropout_backward(steps: Steps, shard: Shard, name: str, *, bias: bool) -> None:
    if shard.dropout:
        kind = dropout_kind(shard, bias=bias)
        kernel = shard.vector(kind, shard.norm_tokens, shard.hidden, backward=True)
        steps.kernel(f"{name}.dropout", kernel, output=shard.activation_bytes(kernel.rows * kernel.columns))


def norm_backward(steps: Steps, shard: Shard, name: str, after: int) -> None:
    """Append a norm's backward and the sum of its input gradient with the residual's."""
    rows, columns = shard.norm_tokens, shard.hidden
    size = shard.activation_bytes(rows * columns)
    kernel = shard.vector(shard.model.spec.norm, rows, columns, backward=True)
    steps.kernel(name, kernel, after=after, output=size, parameters=shard.model.norm_parameters)


def _residual_backward(steps: Steps, shard: Shard, name: str) -> None:
    kernel = shard.vector("residual_add", shard.norm_tokens, shard.hidden)
    steps.kernel(f"{name}.residual", kernel, output=shard.activation_bytes(kernel.rows * kernel.columns))


def _activation_backward(steps: Steps, shard: Shard) -> None:
    rows, columns = shard.tokens, shard.inner
    size = shard.activation_bytes(rows * shard.inner_in)
    for kind in reversed(activation_kinds(shard)):
        if kind != "bias_add":
            steps.kernel(f"ffn.{kind}", shard.vector(kind, rows, columns, backward=True), output=size)


def _feed_forward_backward(steps: Steps, shard: Shard) -> None:
    _dropout_backward(steps, shard, "ffn", bias=shard.model.spec.feed_forward.bias)
    row_backward(steps, shard, feed_forward_out(shard))
    _activation_backward(steps, shard)
    ready = column_backward(steps, shard, feed_forward_in(shard))
    norm_backward(steps, shard, "ffn.norm", ready)
    _residual_backward(steps, shard, "ffn")


def _attention_backward(steps: Steps, shard: Shard, *, recompute_core: bool) -> None:
    _dropout_backward(steps, shard, "attention", bias=shard.model.spec.attention.output_bias)
    row_backward(steps, shard, attention_output(shard))
    width = shard.activation_bytes(shard.tokens * shard.qkv_width)
    exchange_kv(steps, shard, "cp.gather")
    if recompute_core:
        attention_core(steps, shard, f"{CORE}.recompute", held=core_bytes(shard))
    attention_core(steps, shard, CORE, backward=True, output=width)
    exchange_kv(steps, shard, "cp.scatter")
    rope_kernels(steps, shard)
    ready = column_backward(steps, shard, qkv(shard))
    norm_backward(steps, shard, "attention.norm", ready)
    _residual_backward(steps, shard, "attention")


def block_backward(shard: Shard, recompute: str) -> tuple[Step, ...]:
    """Return the backward of one layer, after its forward again where everything is recomputed."""
    steps = Steps()
    if recompute == "full":
        again = [_recomputed(step) for step in block_forward(shard)]
        steps.steps.extend(again)
    _feed_forward_backward(steps, shard)
    _attention_backward(steps, shard, recompute_core=recompute == "selective")
    return tuple(steps.steps)


def _recomputed(step: Step) -> Step:
    return Step(
        f"recompute.{step.name}",
        step.after,
        step.operator,
        step.role,
        step.size,
        held=step.saved + step.core,
        output=step.output,
    )
