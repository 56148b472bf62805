"""The dense feed-forward: two matrices with an activation between them; tp splits the inner width."""

from __future__ import annotations

from dataclasses import dataclass

from rapid_des.device.vector import fused
from rapid_des.frontend.layers.layer import Parameters
from rapid_des.frontend.matrices import (
    Linear,
    cast,
    column_backward,
    column_forward,
    forward_gemm,
    row_backward,
    row_forward,
)
from rapid_des.frontend.operations import OperationList, defers_bias, launch
from rapid_des.frontend.shard import Shard
from rapid_des.frontend.spec import FeedForwardSpec, ModelSpec, ParallelismSpec

GATED = frozenset(("swiglu", "geglu"))
"""Activations that multiply a gate, which stands beside the up projection."""


@dataclass(frozen=True)
class DenseFeedForward:
    """Two matrices and an activation, which may have a gate beside the up projection."""

    hidden: int
    inner: int
    activation: str
    bias: bool
    name: str = "ffn"
    """The first part of its operators' names."""

    @property
    def output_bias(self) -> bool:
        """Both matrices have a bias or none."""
        return self.bias

    @property
    def _projections(self) -> int:
        """Matrices side by side in the first one: up, and the gate if there is one."""
        return 2 if self.activation in GATED else 1

    @property
    def parameters(self) -> Parameters:
        """The matrices up (with the gate) and down."""
        return Parameters(
            matrices=self.hidden * self.inner * (self._projections + 1),
            split_vectors=self.inner * self._projections * self.bias,
            whole_vectors=self.hidden * self.bias,
        )

    def flops(self, sequence: int) -> int:
        """Return two a weight."""
        del sequence
        return 2 * self.parameters.matrices

    def refusal(self, split: ParallelismSpec) -> str | None:
        """Return why tp can not split the inner width."""
        tp = split.tp
        return f"feed-forward hidden {self.inner} does not divide by tp {tp}" if self.inner % tp else None

    def forward(self, operations: OperationList, shard: Shard) -> None:
        """Append up projection, activation and down projection."""
        self.up(operations, shard, saved=shard.activation_bytes(shard.norm_tokens * shard.hidden))
        down = self._down(shard)
        row_forward(operations, shard, down, saved=shard.activation_bytes(shard.tokens * down.inner))

    def up(self, operations: OperationList, shard: Shard, *, saved: int) -> None:
        """Append the first product and the activation."""
        column_forward(operations, shard, self._up(shard), saved=saved)
        self._activate(operations, shard)

    def down(self, operations: OperationList, shard: Shard) -> None:
        """Append the second product, without the sum over tp."""
        down = self._down(shard)
        cast(operations, shard, down, shard.tokens)
        forward_gemm(operations, shard, down, saved=shard.activation_bytes(shard.tokens * down.inner))

    def backward(self, operations: OperationList, shard: Shard) -> int:
        """Append the same from the end."""
        self.down_backward(operations, shard)
        return self.up_backward(operations, shard)

    def down_backward(self, operations: OperationList, shard: Shard) -> None:
        """Append the gradients of the second product and of the activation."""
        row_backward(operations, shard, self._down(shard))
        rows, columns = shard.tokens, self._down(shard).inner
        size = shard.activation_bytes(rows * self._up(shard).columns)
        for kind in reversed(self._activation_kinds(shard)):
            if kind != "bias_add":
                kernel = shard.vector(kind, rows, columns, backward=True)
                operations.kernel(f"{self.name}.{kind}", kernel, output=size)

    def up_backward(self, operations: OperationList, shard: Shard) -> int:
        """Append the gradients of the first product."""
        return column_backward(operations, shard, self._up(shard))

    def _up(self, shard: Shard) -> Linear:
        columns = self.inner // shard.tp * self._projections
        return Linear(f"{self.name}.in", columns, self.hidden, self.bias, shard.tokens)

    def _down(self, shard: Shard) -> Linear:
        return Linear(f"{self.name}.out", self.hidden, self.inner // shard.tp, self.bias, shard.tokens)

    def _activate(self, operations: OperationList, shard: Shard) -> None:
        """Append the activation; where it takes several kernels each keeps its input."""
        kinds = self._activation_kinds(shard)
        rows, columns = shard.tokens, self._down(shard).inner
        size = shard.activation_bytes(rows * columns)
        saved = shard.activation_bytes(rows * self._up(shard).columns) + (len(kinds) - 1) * size
        launch(operations, shard, f"{self.name}.activation", kinds, (rows, columns), saved=saved, output=size)

    def _activation_kinds(self, shard: Shard) -> tuple[str, ...]:
        """Return the kernels of the activation, in forward order."""
        bias = ("bias_add",) if self.bias and defers_bias(shard) else ()
        return fused((*bias, self.activation), shard.fusion)


def dense_feed_forward(spec: FeedForwardSpec, model: ModelSpec, file: str) -> DenseFeedForward:
    """Return the feed-forward of a model file; all its dimensions fit."""
    del file
    return DenseFeedForward(model.hidden, spec.hidden, spec.activation, spec.bias)
