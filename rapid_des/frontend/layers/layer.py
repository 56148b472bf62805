"""What a layer kind says of itself, and a layer as its two halves in the residual stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rapid_des.frontend.operations import (
    Operation,
    OperationList,
    dropout_backward,
    norm_backward,
    norm_forward,
    residual_backward,
    residual_forward,
)
from rapid_des.frontend.shard import Shard
from rapid_des.frontend.spec import ParallelismSpec


@dataclass(frozen=True)
class Parameters:
    """Parameters of one half of a layer, without its norm, on all tp ranks together."""

    matrices: int
    """Weight matrices, which tp splits."""
    split_vectors: int = 0
    """Biases of column-parallel matrices."""
    whole_vectors: int = 0
    """What every tp rank has whole: biases of row-parallel matrices, routers."""
    experts: int = 0
    """Matrices of routed experts, which ep and etp split."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.matrices + self.split_vectors + self.whole_vectors + self.experts


class Sublayer(Protocol):
    """One half of a layer, between a norm and the residual addition; a value that is hashed by content.

    The operator lists are the source for time, memory and traffic; the counts below are the whole model's.
    """

    @property
    def name(self) -> str:
        """The first part of its operators' names."""
        ...

    @property
    def output_bias(self) -> bool:
        """Whether its last matrix has a bias, which a fused residual addition can add."""
        ...

    @property
    def parameters(self) -> Parameters:
        """Its parameters."""
        ...

    def flops(self, sequence: int) -> int:
        """Return the model FLOPs of one token's forward that attends to `sequence` positions.

        The convention of Narayanan et al. 2021 (eq. 3): matrices and full (not causal) attention, no
        recomputation, no small kernels.
        """
        ...

    def refusal(self, split: ParallelismSpec) -> str | None:
        """Return why a job's axes can not split it; None if they can."""
        ...

    def forward(self, operations: OperationList, shard: Shard) -> None:
        """Append the forward from the norm's output to what is added to the residual stream."""
        ...

    def backward(self, operations: OperationList, shard: Shard) -> int:
        """Append the backward; return the position that holds the gradient of the norm's output.

        With `shard.recompute` selective it runs again what its forward counted as `core`.
        """
        ...


class Mixer(Sublayer, Protocol):
    """The half of a layer in which positions see one another, and which serving keeps a cache for."""

    def cache_bytes(self, shard: Shard, positions: int) -> int:
        """Return what a rank keeps of one request of so many positions while it is served."""
        ...


@dataclass(frozen=True)
class Layer:
    """One layer: norm, mixer, residual addition; norm, feed-forward, residual addition."""

    mixer: Mixer
    feed_forward: Sublayer

    @property
    def halves(self) -> tuple[Sublayer, Sublayer]:
        """Mixer and feed-forward, in forward order."""
        return self.mixer, self.feed_forward

    def forward(self, shard: Shard) -> tuple[Operation, ...]:
        """Return the forward as one rank's operator list."""
        operations = OperationList()
        for half in self.halves:
            norm_forward(operations, shard, f"{half.name}.norm", shard.norm_tokens)
            half.forward(operations, shard)
            residual_forward(operations, shard, half.name, bias=half.output_bias)
        return operations.finish()

    def on_cache(self, shard: Shard) -> tuple[Operation, ...]:
        """Return what of the forward sees the KV cache; only a mixer does."""
        operations = OperationList()
        self.mixer.forward(operations, shard)
        return tuple(operation for operation in operations.entries if operation.sees_cache)

    def backward(self, shard: Shard) -> tuple[Operation, ...]:
        """Return the backward, after the forward again where everything is recomputed."""
        operations = OperationList()
        if shard.recompute == "full":
            operations.entries.extend(_recomputed(operation) for operation in self.forward(shard))
        for half in reversed(self.halves):
            dropout_backward(operations, shard, half.name, bias=half.output_bias)
            ready = half.backward(operations, shard)
            norm_backward(operations, shard, f"{half.name}.norm", ready)
            residual_backward(operations, shard, half.name)
        return operations.finish()


def _recomputed(operation: Operation) -> Operation:
    return Operation(
        f"recompute.{operation.name}",
        operation.after,
        operation.operator,
        operation.role,
        operation.size,
        held=operation.saved + operation.core,
        output=operation.output,
    )
