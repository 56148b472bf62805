"""Images in place of tokens: what stands before and behind the layers of a vision transformer.

A sequence is an image, cut into square patches, behind tokens that are learned (ViT, arXiv 2010.11929: one
that stands for the class). One product embeds the patches, which is what a convolution by whole patches
computes. It is whole on every tp rank, as its output is wanted whole. The head reads one position of a
sequence; its logits are over classes.
"""

from __future__ import annotations

from rapid_des.device.operators import Gemm
from rapid_des.frontend.layer_spec import PatchesSpec
from rapid_des.frontend.matrices import Linear, append_weight_gradient, forward_gemm
from rapid_des.frontend.operations import OperatorList, Shard
from rapid_des.values import replace


def _linear(shard: Shard, patches: PatchesSpec) -> Linear:
    rows = shard.sequences * patches.count
    return Linear("embedding.patches", shard.hidden, patches.width, True, rows, narrow=False)


def embed_patches(operations: OperatorList, shard: Shard, patches: PatchesSpec) -> None:
    """Append the product that embeds the patches, which keeps the pixels for its gradient."""
    linear = _linear(shard, patches)
    pixels = shard.activation_bytes(linear.rows * linear.inner)
    forward_gemm(operations, _whole(shard), linear, saved=pixels)


def patch_gradients(operations: OperatorList, shard: Shard, patches: PatchesSpec) -> None:
    """Append the gradients of the embedding's weights, of learned tokens and of positions."""
    linear = _linear(shard, patches)
    gemm = Gemm(linear.columns, linear.inner, linear.rows, dtype=shard.precision.activations)
    others = linear.columns + patches.extra * shard.hidden + shard.model.position_parameters
    parameters = linear.columns * linear.inner
    name, after = f"{linear.name}.weight_gradient", operations.last
    append_weight_gradient(operations, shard, name, gemm, after=after, parameters=parameters)
    bias = shard.vector("bias_gradient", shard.tokens, shard.hidden)
    operations.kernel(f"{linear.name}.bias_gradient", bias, parameters=others, deferrable=True)


def pooled(shard: Shard) -> Shard:
    """Return what the head sees of sequences: one position of each, whole on every tp rank."""
    return replace(_whole(shard), tp=shard.tp, query_length=1, key_length=1)


def _whole(shard: Shard) -> Shard:
    return replace(shard, tp=1, sequence_parallel=False)
