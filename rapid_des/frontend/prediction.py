"""Multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2): modules trained beside the model.

A module takes the stream of the one before and the embedding of the next tokens, each through a norm,
projects both together to the model's width, and goes on with a layer, the output head and a loss of its
own. Table and head are the model's: a stage that does not hold the table has a copy of it. The projection
is whole on every tp rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rapid_des.frontend.ends import embedding_backward, embedding_forward, loss_backward, loss_forward
from rapid_des.frontend.matrices import Linear, cast, column_backward, forward_gemm
from rapid_des.frontend.operations import Operation, OperationList, norm_backward, norm_forward
from rapid_des.frontend.recompute import LayerKind, following
from rapid_des.frontend.shard import Shard

NORMS = ("predict.hidden_norm", "predict.embedding_norm")


def prediction_forward(shard: Shard, layer: LayerKind) -> tuple[Operation, ...]:
    """Return the forward of one module, to its loss."""
    operations = OperationList()
    for name in NORMS:
        norm_forward(operations, shard, name, shard.norm_tokens, adds=False)
    linear, alone = _projection(shard), _alone(shard)
    cast(operations, alone, linear, linear.rows)
    kept = shard.activation_bytes(linear.rows * linear.inner)
    forward_gemm(operations, alone, linear, saved=kept)
    return _joined(embedding_forward(shard), operations.finish(), layer.forward(shard), loss_forward(shard))


def prediction_backward(shard: Shard, layer: LayerKind, *, has_table: bool) -> tuple[Operation, ...]:
    """Return the backward; `has_table`: the rank holds the model's token table anyway."""
    operations = OperationList()
    ready = column_backward(operations, _alone(shard), _projection(shard))
    for name in NORMS:
        norm_backward(operations, shard, name, ready)
    scatter = embedding_backward(shard)
    if has_table:
        scatter = tuple(replace(one, parameters=0) for one in scatter)
    return _joined(
        loss_backward(shard, shares_table=True), layer.backward(shard), operations.finish(), scatter
    )


def _joined(*lists: Sequence[Operation]) -> tuple[Operation, ...]:
    """Return lists one behind the other."""
    joined: tuple[Operation, ...] = ()
    for operations in lists:
        joined = following(joined, operations)
    return joined


def _projection(shard: Shard) -> Linear:
    return Linear("predict.project", shard.hidden, 2 * shard.hidden, bias=False, rows=shard.norm_tokens)


def _alone(shard: Shard) -> Shard:
    return replace(shard, tp=1, sequence_parallel=False)
