"""Modules that predict further tokens, beside the model (DeepSeek-V3, arXiv 2412.19437, section 2.2).

Such a module takes the stream of the one before and the embedding of the next tokens, each through a norm,
projects both together to the model's width, and goes on with a layer, the output head and a loss of its own.
Table and head are the model's: a stage that does not hold the table has a copy of it. The projection is whole
on every tp rank.
"""

from __future__ import annotations

from rapid_des.frontend.layers.layer import LayerKind
from rapid_des.frontend.matrices import Linear, cast, column_backward, forward_gemm
from rapid_des.frontend.model import embedding_backward, embedding_forward, loss_backward, loss_forward
from rapid_des.frontend.operations import Operation, OperatorList, Shard, norm_backward, norm_forward
from rapid_des.frontend.passes import joined
from rapid_des.values import replace

_PREDICTION_NORMS = ("predict.hidden_norm", "predict.embedding_norm")


def prediction_forward(shard: Shard, layer: LayerKind) -> tuple[Operation, ...]:
    """Return the forward of one module, to its loss."""
    return joined(embedding_forward(shard), projected(shard), layer.forward(shard), loss_forward(shard))


def projected(shard: Shard) -> tuple[Operation, ...]:
    """Return both norms and the projection of stream and embedding together."""
    operations = OperatorList()
    for name in _PREDICTION_NORMS:
        norm_forward(operations, shard, name, shard.norm_tokens, adds=False)
    linear, alone = _projection(shard), unsplit(shard)
    cast(operations, alone, linear, linear.rows)
    saved_bytes = shard.activation_bytes(linear.rows * linear.inner)
    forward_gemm(operations, alone, linear, saved=saved_bytes)
    return operations.finish()


def prediction_backward(shard: Shard, layer: LayerKind, *, has_table: bool) -> tuple[Operation, ...]:
    """Return the backward; `has_table`: the rank holds the model's token table anyway."""
    operations = OperatorList()
    ready = column_backward(operations, unsplit(shard), _projection(shard))
    for name in _PREDICTION_NORMS:
        norm_backward(operations, shard, name, ready)
    scatter = embedding_backward(shard)
    if has_table:
        scatter = tuple(replace(operation, parameters=0) for operation in scatter)
    return joined(
        loss_backward(shard, shares_table=True), layer.backward(shard), operations.finish(), scatter
    )


def _projection(shard: Shard) -> Linear:
    return Linear("predict.project", shard.hidden, 2 * shard.hidden, bias=False, rows=shard.norm_tokens)


def unsplit(shard: Shard) -> Shard:
    """Return the shard of a tp rank that holds matrices whole."""
    return replace(shard, tp=1, sequence_parallel=False)
