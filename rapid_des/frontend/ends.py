"""What stands before the first layer and after the last: embedding, output head and loss, sampling."""

from __future__ import annotations

from dataclasses import replace

from rapid_des.device.operators import Vector
from rapid_des.frontend.block_backward import norm_backward
from rapid_des.frontend.fusion import Run, launch, norm_kind
from rapid_des.frontend.linear import (
    Linear,
    column_backward,
    column_forward,
    gather_gradient,
    reduce_output,
)
from rapid_des.frontend.shard import Shard
from rapid_des.frontend.steps import Step, Steps

LOSS_REDUCTIONS = ("maximum", "target", "sum")
"""What vocabulary-parallel cross-entropy sums over tp, one fp32 a token each."""


def _has_positions(shard: Shard) -> bool:
    return shard.model.spec.position == "learned"


def embedding_forward(shard: Shard) -> tuple[Step, ...]:
    """Return the lookup in this rank's rows of the table, summed over tp, and the position embedding."""
    steps = Steps()
    elements = shard.tokens * shard.hidden
    lookup = shard.vector("embedding", shard.tokens, shard.hidden)
    steps.kernel("embedding", lookup, output=shard.activation_bytes(elements))
    reduce_output(steps, shard, "embedding", elements)
    rows, columns = shard.norm_tokens, shard.hidden
    size = shard.activation_bytes(rows * columns)
    if _has_positions(shard):
        steps.kernel("embedding.position", shard.vector("residual_add", rows, columns), output=size)
    if shard.dropout:
        kernel = shard.vector("dropout", rows, columns)
        steps.kernel("embedding.dropout", kernel, saved=rows * columns, output=size)
    return tuple(steps.steps)


def embedding_backward(shard: Shard) -> tuple[Step, ...]:
    """Return the scatter of gradients into this rank's rows of the table."""
    steps = Steps()
    if shard.dropout:
        kernel = shard.vector("dropout", shard.norm_tokens, shard.hidden, backward=True)
        steps.kernel("embedding.dropout", kernel)
    gather_gradient(steps, shard, "embedding", shard.tokens * shard.hidden)
    parameters = shard.vocabulary_part * shard.hidden + shard.model.position_parameters
    scatter = shard.vector("embedding_gradient", shard.tokens, shard.hidden)
    steps.kernel("embedding.weight_gradient", scatter, parameters=parameters)
    return tuple(steps.steps)


def head(shard: Shard, rows: int) -> Linear:
    """Return the output head, column-parallel over the vocabulary."""
    return Linear("head", shard.vocabulary_part, shard.hidden, False, rows, narrow=False)


def _final_norm(steps: Steps, shard: Shard, rows: int) -> None:
    size = shard.activation_bytes(rows * shard.hidden)
    kinds = (norm_kind(shard),)
    launch(steps, shard, "head.norm", Run(kinds, rows, shard.hidden), saved=size, output=size)


def loss_forward(shard: Shard) -> tuple[Step, ...]:
    """Return final norm, logits and vocabulary-parallel cross-entropy in fp32."""
    steps = Steps()
    rows, columns = shard.tokens, shard.vocabulary_part
    _final_norm(steps, shard, shard.norm_tokens)
    column_forward(
        steps, shard, head(shard, rows), saved=shard.activation_bytes(shard.norm_tokens * shard.hidden)
    )
    steps.kernel("head.cast", Vector("cast", rows, columns, "fp32"), output=4 * rows * columns)
    steps.kernel("loss", Vector("cross_entropy", rows, columns, "fp32"), saved=logits_bytes(shard))
    if shard.tp > 1:
        for name in LOSS_REDUCTIONS:
            steps.message(f"loss.{name}", "tp.loss", shard.message("tp.loss", rows, "fp32"))
    return tuple(steps.steps)


def logits_bytes(shard: Shard) -> int:
    """Return the fp32 logits (or their softmax, in their place) kept from loss to backward."""
    return 4 * shard.tokens * shard.vocabulary_part


def loss_backward(shard: Shard, *, shares_table: bool) -> tuple[Step, ...]:
    """Return the backward of cross-entropy, head and final norm.

    Where the head is the embedding of the same rank (`shares_table`), the embedding's backward completes
    the table's gradient.
    """
    steps = Steps()
    rows, columns = shard.tokens, shard.vocabulary_part
    steps.kernel(
        "loss", Vector("cross_entropy", rows, columns, "fp32", "backward"), output=2 * rows * columns
    )
    ready = column_backward(steps, shard, head(shard, rows))
    norm_backward(steps, shard, "head.norm", ready)
    if not shares_table:
        return tuple(steps.steps)
    return tuple(
        replace(step, parameters=0) if "weight_gradient" in step.name else step for step in steps.steps
    )


def sampling(shard: Shard) -> tuple[Step, ...]:
    """Return final norm, the logits of each sequence's last position, and the choice of a token."""
    steps = Steps()
    rows = shard.sequences
    _final_norm(steps, shard, rows)
    column_forward(steps, shard, head(shard, rows), saved=0)
    if shard.tp > 1:
        elements = rows * shard.vocabulary
        output = shard.activation_bytes(elements)
        steps.message("head.gather", "tp.logits", shard.message("tp.logits", elements), output=output)
    steps.kernel("sample", shard.vector("sample", rows, shard.vocabulary))
    return tuple(steps.steps)
