"""What stands before and after a model's layers: token table, output head, loss, choice of a token."""

from __future__ import annotations

from rapid_des.device.operators import Vector
from rapid_des.frontend.matrices import (
    Linear,
    column_backward,
    column_forward,
    gather_gradient,
    reduce_output,
)
from rapid_des.frontend.operations import Operation, OperationList, norm_backward, norm_forward
from rapid_des.frontend.shard import Shard

LOSS_REDUCTIONS = ("maximum", "target", "sum")
"""What vocabulary-parallel cross-entropy sums over tp, one fp32 a token each."""


def _has_positions(shard: Shard) -> bool:
    return shard.model.position == "learned"


def embedding_forward(shard: Shard) -> tuple[Operation, ...]:
    """Return the lookup in this rank's rows of the table, summed over tp, and the position embedding."""
    operations = OperationList()
    elements = shard.tokens * shard.hidden
    lookup = shard.vector("embedding", shard.tokens, shard.hidden)
    operations.kernel("embedding", lookup, output=shard.activation_bytes(elements))
    reduce_output(operations, shard, "embedding", elements)
    rows, columns = shard.norm_tokens, shard.hidden
    size = shard.activation_bytes(rows * columns)
    if _has_positions(shard):
        operations.kernel("embedding.position", shard.vector("residual_add", rows, columns), output=size)
    if shard.dropout:
        kernel = shard.vector("dropout", rows, columns)
        operations.kernel("embedding.dropout", kernel, saved=rows * columns, output=size)
    return operations.finish()


def embedding_backward(shard: Shard) -> tuple[Operation, ...]:
    """Return the scatter of gradients into this rank's rows of the table."""
    operations = OperationList()
    if shard.dropout:
        kernel = shard.vector("dropout", shard.norm_tokens, shard.hidden, backward=True)
        operations.kernel("embedding.dropout", kernel)
    gather_gradient(operations, shard, "embedding", shard.tokens * shard.hidden)
    parameters = shard.vocabulary_part * shard.hidden + shard.model.position_parameters
    scatter = shard.vector("embedding_gradient", shard.tokens, shard.hidden)
    operations.kernel("embedding.weight_gradient", scatter, parameters=parameters, deferrable=True)
    return operations.finish()


def _head(shard: Shard, rows: int, *, tied: bool = False) -> Linear:
    """Return the output head, column-parallel over the vocabulary."""
    bias = shard.model.head_bias
    return Linear("head", shard.vocabulary_part, shard.hidden, bias, rows, narrow=False, tied=tied)


def loss_forward(shard: Shard) -> tuple[Operation, ...]:
    """Return final norm, logits and vocabulary-parallel cross-entropy in fp32.

    The fp32 logits (or their softmax, in their place) are kept from the loss to the backward.
    """
    operations = OperationList()
    rows, columns = shard.tokens, shard.vocabulary_part
    norm_forward(operations, shard, "head.norm", shard.norm_tokens)
    column_forward(
        operations, shard, _head(shard, rows), saved=shard.activation_bytes(shard.norm_tokens * shard.hidden)
    )
    operations.kernel("head.cast", Vector("cast", rows, columns, "fp32"), output=4 * rows * columns)
    if shard.model.logit_softcap:
        operations.kernel("head.cap", Vector("tanh", rows, columns, "fp32"), logits=4 * rows * columns)
    operations.kernel("loss", Vector("cross_entropy", rows, columns, "fp32"), logits=4 * rows * columns)
    if shard.tp > 1:
        for name in LOSS_REDUCTIONS:
            operations.message(f"loss.{name}", "tp.loss", shard.message("tp.loss", rows, "fp32"))
    return operations.finish()


def loss_backward(shard: Shard, *, shares_table: bool) -> tuple[Operation, ...]:
    """Return the backward of cross-entropy, head and final norm.

    Where the head is the embedding of the same rank (`shares_table`), the embedding's backward completes
    the table's gradient.
    """
    operations = OperationList()
    rows, columns = shard.tokens, shard.vocabulary_part
    operations.kernel(
        "loss", Vector("cross_entropy", rows, columns, "fp32", "backward"), output=2 * rows * columns
    )
    if shard.model.logit_softcap:
        operations.kernel("head.cap", Vector("tanh", rows, columns, "fp32", "backward"))
    ready = column_backward(operations, shard, _head(shard, rows, tied=shares_table))
    norm_backward(operations, shard, "head.norm", ready)
    return operations.finish()


def sampling(shard: Shard) -> tuple[Operation, ...]:
    """Return final norm, the logits of each sequence's last position, and the choice of a token.

    Chunks of prompts whose end is still to come choose none.
    """
    operations = OperationList()
    rows = shard.sampled
    if not rows:
        return ()
    norm_forward(operations, shard, "head.norm", rows)
    column_forward(operations, shard, _head(shard, rows), saved=0)
    if shard.model.logit_softcap:
        operations.kernel("head.cap", shard.vector("tanh", rows, shard.vocabulary_part))
    if shard.tp > 1:
        elements = rows * shard.vocabulary
        output = shard.activation_bytes(elements)
        operations.message("head.gather", "tp.logits", shard.message("tp.logits", elements), output=output)
    operations.kernel("sample", shard.vector("sample", rows, shard.vocabulary))
    return operations.finish()
