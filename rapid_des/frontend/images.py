"""Images in place of tokens: the operators before and after the layers of a vision transformer.

A sequence is an image. It begins with learned tokens (ViT, arXiv 2010.11929, has one, for the class), and the
square patches of the image follow. One matrix product embeds the patches; it equals a convolution whose
stride is the size of a patch. Every tp rank computes the whole product, because the layers need its whole
output. The head reads one position of each sequence, and its logits are over classes.
"""

from __future__ import annotations

from rapid_des.device.operators import Gemm
from rapid_des.frontend.layer_spec import PatchesSpec
from rapid_des.frontend.matrices import Linear, append_weight_gradient, forward_gemm
from rapid_des.frontend.operations import OperatorList, Shard
from rapid_des.values import replace


def _linear(shard: Shard, patches: PatchesSpec) -> Linear:
    rows = shard.sequences * patches.count
    return Linear("embedding.patches", shard.hidden, patches.width, patches.bias, rows, narrow=False)


def embed_patches(operations: OperatorList, shard: Shard, patches: PatchesSpec) -> None:
    """Append the product that embeds the patches, and keep the pixels for its gradient."""
    linear = _linear(shard, patches)
    pixels = shard.activation_bytes(linear.rows * linear.inner)
    forward_gemm(operations, _whole(shard), linear, saved=pixels)


def patch_gradients(operations: OperatorList, shard: Shard, patches: PatchesSpec) -> None:
    """Append the gradients of the embedding's weights, of learned tokens and of positions."""
    linear = _linear(shard, patches)
    gemm = Gemm(linear.columns, linear.inner, linear.rows, dtype=shard.precision.activations)
    others = (
        linear.columns * patches.bias
        + (patches.extra + patches.mask) * shard.hidden
        + shard.model.position_parameters
    )
    parameters = linear.columns * linear.inner
    name, after = f"{linear.name}.weight_gradient", operations.last
    append_weight_gradient(operations, shard, name, gemm, after=after, parameters=parameters)
    bias = shard.vector("bias_gradient", shard.tokens, shard.hidden)
    operations.kernel(f"{linear.name}.bias_gradient", bias, parameters=others, deferrable=True)


def pooled(shard: Shard) -> Shard:
    """Return the shard that the head reads: one position of each sequence, whole on every tp rank."""
    return replace(_whole(shard), tp=shard.tp, query_length=1, key_length=1)


def _whole(shard: Shard) -> Shard:
    return replace(shard, tp=1, sequence_parallel=False)
