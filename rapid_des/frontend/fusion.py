"""Small kernels of a layer under a fusion policy; which runs are one kernel is the device package's list.

A layer's halves stand in the residual stream: a norm before, dropout and the addition of the residual after.
"""

from __future__ import annotations

from typing import Unpack

from rapid_des.device.operators import Vector
from rapid_des.device.vector.kinds import Policy, fused
from rapid_des.frontend.operations import Counts, OperationList
from rapid_des.frontend.shard import Shard

DEFERRED_BIAS: frozenset[Policy] = frozenset({"megatron"})
"""Policies whose matrices leave the bias to the kernel that follows; elsewhere it rides in the GEMM."""


def defers_bias(shard: Shard) -> bool:
    """Return whether biases are added after the GEMM, not in it."""
    return shard.fusion in DEFERRED_BIAS


def launch(
    operations: OperationList, shard: Shard, name: str, kinds: tuple[str, ...], shape: tuple[int, int],
    **counts: Unpack[Counts],
) -> None:  # fmt: skip
    """Append the kernels that the policy launches for operators in a row on one tensor.

    `kinds` names the operators, `shape` is (rows, columns) of the tensor; the counts go to the last kernel.
    """
    *early, last = fused(kinds, shard.fusion)
    output = counts.get("output", 0)
    for index, kind in enumerate(early):
        operations.kernel(f"{name}.{index}.{kind}", _kernel(shard, kind, shape), output=output)
    operations.kernel(name, _kernel(shard, last, shape), **counts)


def _kernel(shard: Shard, kind: str, shape: tuple[int, int]) -> Vector:
    rows, columns = shape
    return shard.vector(kind, rows, 1 if kind == "row_scalar" else columns)


def _before_residual(shard: Shard, *, bias: bool) -> tuple[str, ...]:
    """Return what runs between a row-parallel matrix and the residual addition.

    A deferred bias without dropout is added by the residual's kernel at no cost in traffic.
    """
    if not shard.dropout:
        return ()
    return ("bias_add", "dropout") if bias and defers_bias(shard) else ("dropout",)


def _residual_in_norm(shard: Shard) -> bool:
    """Return whether the norm that follows adds the residual."""
    norm = shard.model.norm
    kinds = (*_before_residual(shard, bias=False), "residual_add", norm)
    return fused(kinds, shard.fusion)[-1] == f"add_{norm}"


def norm_forward(operations: OperationList, shard: Shard, name: str, rows: int) -> None:
    """Append a norm, with the residual addition in it where the policy fuses them."""
    norm = shard.model.norm
    kind = f"add_{norm}" if _residual_in_norm(shard) else norm
    size = shard.activation_bytes(rows * shard.hidden)
    launch(operations, shard, name, (kind,), (rows, shard.hidden), saved=size, output=size)


def norm_backward(operations: OperationList, shard: Shard, name: str, after: int) -> None:
    """Append a norm's backward, which waits for the input gradient of what follows it."""
    rows, columns = shard.norm_tokens, shard.hidden
    size = shard.activation_bytes(rows * columns)
    kernel = shard.vector(shard.model.norm, rows, columns, backward=True)
    operations.kernel(name, kernel, after=after, output=size, parameters=shard.model.norm_parameters)


def residual_forward(operations: OperationList, shard: Shard, name: str, *, bias: bool) -> None:
    """Append dropout and the residual addition; `bias`: the matrix before has one."""
    rows, columns = shard.norm_tokens, shard.hidden
    size = shard.activation_bytes(rows * columns)
    mask = rows * columns * shard.dropout
    kinds = _before_residual(shard, bias=bias) + (() if _residual_in_norm(shard) else ("residual_add",))
    if kinds:
        launch(operations, shard, f"{name}.residual", kinds, (rows, columns), saved=mask, output=size)


def residual_backward(operations: OperationList, shard: Shard, name: str) -> None:
    """Append the sum of a half's input gradient with the gradient that passed beside it."""
    kernel = shard.vector("residual_add", shard.norm_tokens, shard.hidden)
    operations.kernel(f"{name}.residual", kernel, output=shard.activation_bytes(kernel.rows * kernel.columns))


def dropout_backward(operations: OperationList, shard: Shard, name: str, *, bias: bool) -> None:
    """Append the backward of the dropout before the residual addition."""
    if shard.dropout:
        before = _before_residual(shard, bias=bias)
        after = () if _residual_in_norm(shard) else ("residual_add",)
        kinds = fused((*before, *after), shard.fusion)
        kind = next(kind for kind in kinds if kind in {"dropout", "dropout_add"})
        kernel = shard.vector(kind, shard.norm_tokens, shard.hidden, backward=True)
        operations.kernel(
            f"{name}.dropout", kernel, output=shard.activation_bytes(kernel.rows * kernel.columns)
        )
