"""Tensor-parallel matrices (Shoeybi et al. 2019), with sequence parallelism (Korthikanti et al. 2022).

Column-parallel: the input is whole (with sequence parallelism gathered first), the output is split. Its
input gradient is a partial sum: reduced while the weight gradient is computed. Row-parallel: the input is
split, the output a partial sum, reduced (scattered) at once. A gathered input is not kept: the backward
gathers it again.
"""

from __future__ import annotations

from dataclasses import dataclass

from rapid_des.device.operators import Gemm, Vector
from rapid_des.frontend.shard import Shard
from rapid_des.frontend.steps import Steps


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

    @property
    def parameters(self) -> int:
        """Weights and biases of this rank."""
        return self.columns * self.inner + self.columns * self.bias


def _gathers(shard: Shard) -> bool:
    return shard.tp > 1 and shard.sequence_parallel


def _forward_gemm(steps: Steps, shard: Shard, linear: Linear, saved: int) -> None:
    output = shard.activation_bytes(linear.rows * linear.columns)
    gemm = shard.gemm(linear.rows, linear.columns, linear.inner, narrow=linear.narrow)
    steps.kernel(linear.name, gemm, saved=saved, output=output)


def column_forward(steps: Steps, shard: Shard, linear: Linear, *, saved: int) -> None:
    """Append the forward of a column-parallel matrix whose kept input has `saved` bytes."""
    if _gathers(shard):
        elements = linear.rows * linear.inner
        size = shard.message("sp.gather", elements)
        steps.message(f"{linear.name}.gather", "sp.gather", size, output=shard.activation_bytes(elements))
    _forward_gemm(steps, shard, linear, saved)


def row_forward(steps: Steps, shard: Shard, linear: Linear, *, saved: int) -> None:
    """Append the forward of a row-parallel matrix and the reduction of its output."""
    _forward_gemm(steps, shard, linear, saved)
    reduce_output(steps, shard, linear.name, linear.rows * linear.columns)


def reduce_output(steps: Steps, shard: Shard, name: str, elements: int) -> None:
    """Append the sum of partial results over tp: whole, or to sequence shards."""
    if shard.tp > 1:
        role = "sp.scatter" if shard.sequence_parallel else "tp.reduce"
        size = shard.message(role, elements)
        steps.message(f"{name}.{role.partition('.')[2]}", role, size, output=size)


def gather_gradient(steps: Steps, shard: Shard, name: str, elements: int) -> None:
    """Append the gather of a gradient that stands in sequence shards."""
    if _gathers(shard):
        size = shard.message("sp.gather", elements)
        name = f"{name}.gather_gradient"
        steps.message(name, "sp.gather", size, output=shard.activation_bytes(elements))


def column_backward(steps: Steps, shard: Shard, linear: Linear) -> int:
    """Append the backward of a column-parallel matrix; return the position that holds the input gradient."""
    incoming = steps.last
    elements = linear.rows * linear.inner
    output = shard.activation_bytes(elements)
    gathered = incoming
    if _gathers(shard):
        size = shard.message("sp.gather", elements)
        gathered = steps.message(f"{linear.name}.regather", "sp.gather", size, output=output)
    gemm = shard.gemm(linear.rows, linear.inner, linear.columns, narrow=linear.narrow)
    ready = steps.kernel(f"{linear.name}.input_gradient", gemm, after=incoming, output=output)
    if shard.tp > 1:
        role = "sp.scatter" if shard.sequence_parallel else "tp.reduce_gradient"
        ready = steps.message(f"{linear.name}.reduce_gradient", role, shard.message(role, elements))
    _weight_gradient(steps, shard, linear, gathered)
    return ready


def row_backward(steps: Steps, shard: Shard, linear: Linear) -> None:
    """Append the backward of a row-parallel matrix."""
    gather_gradient(steps, shard, linear.name, linear.rows * linear.columns)
    incoming = steps.last
    output = shard.activation_bytes(linear.rows * linear.inner)
    gemm = shard.gemm(linear.rows, linear.inner, linear.columns, narrow=linear.narrow)
    steps.kernel(f"{linear.name}.input_gradient", gemm, output=output)
    _weight_gradient(steps, shard, linear, incoming)


def _accumulating_gemm(shard: Shard, linear: Linear) -> Gemm:
    return Gemm(
        linear.columns,
        linear.inner,
        linear.rows,
        dtype=shard.gemm_dtype if linear.narrow else shard.precision.activations,
        out_dtype=shard.precision.gradients,
        accumulate=True,
    )


def _weight_gradient(steps: Steps, shard: Shard, linear: Linear, after: int) -> None:
    gemm = _accumulating_gemm(shard, linear)
    name = f"{linear.name}.weight_gradient"
    if not linear.bias:
        steps.kernel(name, gemm, after=after, parameters=linear.parameters)
        return
    steps.kernel(name, gemm, after=after)
    reduction = Vector("bias_gradient", linear.rows, linear.columns, shard.precision.activations)
    steps.kernel(f"{linear.name}.bias_gradient", reduction, after=after, parameters=linear.parameters)
