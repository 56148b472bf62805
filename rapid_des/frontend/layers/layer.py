"""What a layer kind says of itself, and a layer as its two halves in the residual stream."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from rapid_des.device.vector import Policy
from rapid_des.frontend.matrices import reduce_output
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
from rapid_des.frontend.spec import Block, Norms, ParallelismSpec

ONE_SUM: frozenset[Policy] = frozenset({"trtllm"})
"""Policies that serve a parallel block with one sum over tp: the halves' partial results are added before it
(TensorRT-LLM's Falcon)."""


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

        With `shard.core_again` it runs the core of attention again before that's backward.
        """
        ...


class Mixer(Sublayer, Protocol):
    """The half of a layer in which positions see one another, and which serving keeps a cache for."""

    def context_refusal(self, split: ParallelismSpec) -> str | None:
        """Return why a job's cp, of 2 or more, can not split its sequences; None if it can."""
        ...

    def cache_bytes(self, shard: Shard, positions: int) -> int:
        """Return what a rank keeps of one request of so many positions while it is served."""
        ...


@dataclass(frozen=True)
class Absent:
    """A half that the layer does not have."""

    name = "none"
    output_bias = False
    parameters = Parameters(0)

    def flops(self, sequence: int) -> int:
        """Return nothing."""
        del sequence
        return 0

    def refusal(self, split: ParallelismSpec) -> str | None:
        """Split nothing."""
        del split
        return None

    def context_refusal(self, split: ParallelismSpec) -> str | None:
        """Split nothing."""
        del split
        return None

    def cache_bytes(self, shard: Shard, positions: int) -> int:
        """Keep nothing."""
        del shard, positions
        return 0

    def forward(self, operations: OperationList, shard: Shard) -> None:
        """Append nothing."""

    def backward(self, operations: OperationList, shard: Shard) -> int:
        """Append nothing; the gradient is the incoming one."""
        del shard
        return operations.last


@dataclass(frozen=True)
class Layer:
    """One layer: mixer and feed-forward, each with its norms, and their additions to the residual stream.

    One of them may be absent (Mamba, Nemotron-H).

    In a parallel block both read the same stream, by a norm each or by one, and each has its own sum over tp,
    or while serving one for both (`ONE_SUM`). What one norm makes for both is counted as kept by each.
    """

    mixer: Mixer
    feed_forward: Sublayer
    norms: Norms = "before"
    block: Block = "sequential"

    @property
    def halves(self) -> tuple[Sublayer, ...]:
        """Mixer and feed-forward, as far as they are there, in forward order."""
        return tuple(half for half in (self.mixer, self.feed_forward) if not isinstance(half, Absent))

    @property
    def norm_count(self) -> int:
        """How many norms it has."""
        halves = len(self.halves)
        before = 0 if self.norms == "after" else 1 if self.block == "parallel_one_norm" else halves
        return before + halves * (self.norms != "before")

    def forward(self, shard: Shard) -> tuple[Operation, ...]:
        """Return the forward as one rank's operator list."""
        operations = OperationList()
        together = self.block != "sequential" and shard.serving and shard.fusion in ONE_SUM
        inner = replace(shard, partial=together)
        for half in self.halves:
            if self._has_own_norm(half):
                norm_forward(operations, shard, f"{half.name}.norm", shard.norm_tokens)
            half.forward(operations, inner)
            if self.norms != "before":
                norm_forward(operations, shard, f"{half.name}.post_norm", shard.norm_tokens, adds=False)
            if self.block == "sequential":
                residual_forward(operations, shard, half.name, bias=half.output_bias)
        if self.block != "sequential":
            for half in self.halves:
                residual_forward(operations, shard, half.name, bias=half.output_bias)
                if together and half is self.mixer:
                    reduce_output(operations, shard, "block", shard.tokens * shard.hidden)
        return operations.finish()

    def on_cache(self, shard: Shard) -> tuple[Operation, ...]:
        """Return what of the forward sees the KV cache; only a mixer does."""
        operations = OperationList()
        self.mixer.forward(operations, shard)
        return tuple(operation for operation in operations.entries if operation.sees_cache)

    def backward(self, shard: Shard) -> tuple[Operation, ...]:
        """Return the backward as one rank's operator list."""
        operations = OperationList()
        ready = []
        for half in reversed(self.halves):
            dropout_backward(operations, shard, half.name, bias=half.output_bias)
            if self.norms != "before":
                norm_backward(operations, shard, f"{half.name}.post_norm", operations.last)
            ready.append(half.backward(operations, shard))
            if self._has_own_norm(half) and self.block != "parallel_one_norm":
                ready[-1] = norm_backward(operations, shard, f"{half.name}.norm", ready[-1])
            if self.block != "parallel_one_norm":
                residual_backward(operations, shard, half.name, after=ready[-1])
        if self.block == "parallel_one_norm":
            both = residual_backward(operations, shard, f"{self.mixer.name}.norm", after=tuple(ready))
            both = norm_backward(operations, shard, f"{self.mixer.name}.norm", both)
            residual_backward(operations, shard, self.mixer.name, after=both)
        return operations.finish()

    def _has_own_norm(self, half: Sublayer) -> bool:
        """Tell whether a norm stands before this half for it, or for both."""
        if self.norms == "after":
            return False
        return half is self.mixer or self.block != "parallel_one_norm"


@dataclass(frozen=True)
class LayerKind:
    """A layer as a job runs it; a value that is hashed by content. This one keeps what its operators keep."""

    layer: Layer
    before: tuple[Layer, ...] = ()
    """Layers that are run again at the start of its backward, in forward order, itself the last."""

    @property
    def waits(self) -> bool:
        """Whether a layer behind it runs it again."""
        return False

    def forward(self, shard: Shard) -> tuple[Operation, ...]:
        """Return the forward as one rank's operator list, with what is kept of it."""
        operations = self.layer.forward(shard)
        return tuple(
            replace(operation, saved=operation.saved + operation.core, core=0) for operation in operations
        )

    def made_again(self, shard: Shard) -> tuple[Operation, ...]:
        """Return the forward with what its operators keep from when they are run again."""
        return LayerKind.forward(self, shard)

    def backward(self, shard: Shard) -> tuple[Operation, ...]:
        """Return the backward, after the layers that are run again, or with the operators that are."""
        return self.layer.backward(shard)
