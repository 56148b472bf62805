"""Tensor-parallel matrices (Shoeybi et al. 2019), with sequence parallelism (Korthikanti et al. 2022).

Column-parallel: the input is whole (with sequence parallelism gathered first), the output is split. Its
input gradient is a partial sum: reduced while the weight gradient is computed. Row-parallel: the input is
split, the output a partial sum, reduced (scattered) at once. A gathered input is not kept: the backward
gathers it again.
"""

from __future__ import annotations

from dataclasses import dataclass

from rapid_des.device.operators import Gemm, Vector
from rapid_des.frontend.operations import OperationList
from rapid_des.frontend.shard import Shard


@dataclass(frozen=True)
class Linear:
    """One weight matrix of this rank, `columns` outputs by `inner` inputs."""

    name: str
    columns: int
    inner: int
    bias: bool
    rows: int
    """Positions that pass it."""
    narrow: bool = True
    """Multiplies in the job's GEMM format with its stored weights; otherwise in that of activations."""
    tied: bool = False
    """Its weights are another operator's, whose backward completes their gradient."""

    @property
    def parameters(self) -> int:
        """Weights and biases of this rank that are its own."""
        return 0 if self.tied else self.columns * self.inner + self.columns * self.bias


def _gathers(shard: Shard) -> bool:
    return shard.tp > 1 and shard.sequence_parallel


def _forward_gemm(operations: OperationList, shard: Shard, linear: Linear, saved: int) -> None:
    output = shard.activation_bytes(linear.rows * linear.columns)
    gemm = shard.gemm(linear.rows, linear.columns, linear.inner, narrow=linear.narrow)
    weights = linear.columns * linear.inner if linear.narrow else 0
    operations.kernel(linear.name, gemm, saved=saved, output=output, weights=weights)


def column_forward(operations: OperationList, shard: Shard, linear: Linear, *, saved: int) -> None:
    """Append the forward of a column-parallel matrix whose kept input has `saved` bytes."""
    if _gathers(shard):
        elements = linear.rows * linear.inner
        size = shard.message("sp.gather", elements)
        operations.message(
            f"{linear.name}.gather", "sp.gather", size, output=shard.activation_bytes(elements)
        )
    _forward_gemm(operations, shard, linear, saved)


def row_forward(operations: OperationList, shard: Shard, linear: Linear, *, saved: int) -> None:
    """Append the forward of a row-parallel matrix and the reduction of its output."""
    _forward_gemm(operations, shard, linear, saved)
    reduce_output(operations, shard, linear.name, linear.rows * linear.columns)


def reduce_output(operations: OperationList, shard: Shard, name: str, elements: int) -> None:
    """Append the sum of partial results over tp: whole, or to sequence shards."""
    if shard.tp > 1:
        role = "sp.scatter" if shard.sequence_parallel else "tp.reduce"
        size = shard.message(role, elements)
        operations.message(f"{name}.{role.partition('.')[2]}", role, size, output=size)


def gather_gradient(operations: OperationList, shard: Shard, name: str, elements: int) -> None:
    """Append the gather of a gradient that stands in sequence shards."""
    if _gathers(shard):
        size = shard.message("sp.gather", elements)
        name = f"{name}.gather_gradient"
        operations.message(name, "sp.gather", size, output=shard.activation_bytes(elements))


def column_backward(operations: OperationList, shard: Shard, linear: Linear) -> int:
    """Append the backward of a column-parallel matrix; return the position that holds the input gradient."""
    incoming = operations.last
    elements = linear.rows * linear.inner
    output = shard.activation_bytes(elements)
    gathered = incoming
    if _gathers(shard):
        size = shard.message("sp.gather", elements)
        gathered = operations.message(f"{linear.name}.regather", "sp.gather", size, output=output)
    gemm = shard.gemm(linear.rows, linear.inner, linear.columns, narrow=linear.narrow)
    ready = operations.kernel(f"{linear.name}.input_gradient", gemm, after=incoming, output=output)
    if shard.tp > 1:
        role = "sp.scatter" if shard.sequence_parallel else "tp.reduce_gradient"
        ready = operations.message(f"{linear.name}.reduce_gradient", role, shard.message(role, elements))
    _weight_gradient(operations, shard, linear, gathered)
    return ready


def row_backward(operations: OperationList, shard: Shard, linear: Linear) -> None:
    """Append the backward of a row-parallel matrix."""
    gather_gradient(operations, shard, linear.name, linear.rows * linear.columns)
    incoming = operations.last
    output = shard.activation_bytes(linear.rows * linear.inner)
    gemm = shard.gemm(linear.rows, linear.inner, linear.columns, narrow=linear.narrow)
    operations.kernel(f"{linear.name}.input_gradient", gemm, output=output)
    _weight_gradient(operations, shard, linear, incoming)


def _accumulating_gemm(shard: Shard, linear: Linear) -> Gemm:
    return Gemm(
        linear.columns,
        linear.inner,
        linear.rows,
        dtype=shard.gemm_dtype if linear.narrow else shard.precision.activations,
        out_dtype=shard.precision.gradients,
        accumulate=True,
    )


def _weight_gradient(operations: OperationList, shard: Shard, linear: Linear, after: int) -> None:
    gemm = _accumulating_gemm(shard, linear)
    name = f"{linear.name}.weight_gradient"
    if not linear.bias:
        operations.kernel(name, gemm, after=after, parameters=linear.parameters)
        return
    operations.kernel(name, gemm, after=after)
    reduction = Vector("bias_gradient", linear.rows, linear.columns, shard.precision.activations)
    operations.kernel(f"{linear.name}.bias_gradient", reduction, after=after, parameters=linear.parameters)
