"""Pooling by attention (SigLIP): a learned query attends to all positions of an image."""

from __future__ import annotations

from rapid_des.frontend.layer_spec import AttentionSpec
from rapid_des.frontend.layers.cross import CrossAttention
from rapid_des.frontend.layers.layer import AttentionCore, Sublayer
from rapid_des.frontend.model_spec import EncoderInput, ModelSpec
from rapid_des.frontend.operations import OperatorList, Shard, norm_backward, norm_forward
from rapid_des.values import replace

_NORM = "head.pooling.norm"


def _attention(model: ModelSpec) -> CrossAttention:
    """Return attention with heads as those of the layers."""
    attention = model.attention
    assert isinstance(attention, AttentionSpec)
    head_dim = attention.head_dim or model.hidden // attention.heads
    core = AttentionCore(attention.heads, attention.heads, head_dim, head_dim, causal=False)
    return CrossAttention(model.hidden, core, bias=True, output_bias=True)


def _shard(shard: Shard) -> Shard:
    """Return the shard of one query a sequence, of which all positions are seen."""
    whole = replace(shard, sequence_parallel=False, query_length=1, key_length=1, padding=0)
    return replace(whole, source=EncoderInput(1, shard.key_length))


def pooling_forward(operations: OperatorList, shard: Shard, feed_forward: Sublayer) -> None:
    """Append attention, norm and feed-forward of one position a sequence."""
    one = _shard(shard)
    _attention(shard.model).forward(operations, one)
    norm_forward(operations, one, _NORM, one.tokens, adds=False)
    feed_forward.forward(operations, one)


def pooling_backward(operations: OperatorList, shard: Shard, feed_forward: Sublayer) -> None:
    """Append the same from the end, with the gradient of the query."""
    one = _shard(shard)
    norm_backward(operations, one, _NORM, feed_forward.backward(operations, one))
    _attention(shard.model).backward(operations, one)
    kernel = one.vector("bias_gradient", one.tokens, one.hidden)
    operations.kernel("head.pooling.query_gradient", kernel, parameters=one.hidden)
