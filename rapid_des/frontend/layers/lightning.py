"""Lightning attention: linear attention whose states decay by a fixed rate a head (arXiv 2501.08313).

MiniMax-01 has it. One projection makes queries, keys, values and a gate. Queries, keys and values pass SiLU.
A scan carries keys times values on from chunk to chunk; its results are normed over all heads, scaled
by the sigmoid of the gate, and projected back. Rates have no parameters. Queries, keys, values and gate are
one product here, as all read the same stream. tp splits heads, and its ranks add up the squares that the norm
needs; cp gives each rank all positions of some heads, as Mamba-2's does.
"""

from __future__ import annotations

from msgspec import Struct

from rapid_des.device.operators import Vector
from rapid_des.frontend.groups import byte_count
from rapid_des.frontend.layer_spec import LightningSpec
from rapid_des.frontend.layers.context import of_heads, swap_states
from rapid_des.frontend.layers.layer import Parameters
from rapid_des.frontend.layers.scan import Scan
from rapid_des.frontend.matrices import Linear, column_backward, column_forward, row_backward, row_forward
from rapid_des.frontend.model_spec import ModelSpec
from rapid_des.frontend.operations import OperatorList, Shard
from rapid_des.frontend.spec import ParallelismSpec

STATE_FLOPS = 4
"""Forward FLOPs of one position and state element: keys times values are added, queries read the state."""
_PROJECTED = 4
"""Queries, keys, values and gate, each as wide as all heads."""


class Lightning(Struct, frozen=True):
    """A scan in which every head has queries and keys of its own, between two projections."""

    hidden: int
    scan: Scan

    name = "lightning"
    output_bias = False

    @property
    def parameters(self) -> Parameters:
        """Both projections, and the gains of the norm of all heads."""
        inner = self.scan.inner
        return Parameters(matrices=self.hidden * (_PROJECTED + 1) * inner, split_vectors=inner)

    def flops(self, sequence: int) -> int:
        """Return two a weight, and the states', which do not grow with the sequence."""
        del sequence
        return 2 * self.parameters.matrices + STATE_FLOPS * self.scan.inner * self.scan.state

    def refusal(self, split: ParallelismSpec) -> str | None:
        """Return why tp cannot split the heads."""
        heads, tp = self.scan.heads, split.tp
        return f"{heads} lightning_attention heads are not divisible by tp {tp}" if heads % tp else None

    def context_refusal(self, split: ParallelismSpec) -> str | None:
        """Return why the ranks of cp cannot share the heads of a tp rank."""
        heads, cp = self.scan.heads // split.tp, split.cp
        if heads % cp:
            return f"{heads} lightning_attention heads of a tp rank are not divisible by cp {cp}"
        return None

    def cache_bytes(self, shard: Shard, positions: int) -> int:
        """Return the states, however long the request is."""
        del positions
        elements = self.scan.heads_here(shard) * self.scan.state_size
        return byte_count(elements, shard.precision.activations)

    def forward(self, operations: OperatorList, shard: Shard) -> None:
        """Append projection, SiLU, scan, gated norm, projection."""
        stream = shard.activation_bytes(shard.norm_tokens * self.hidden)
        inner = shard.activation_bytes(shard.tokens * self.scan.inner_here(shard))
        column_forward(operations, shard, self._input(shard), saved=stream)
        swap_states(operations, shard, "lightning.input.to_heads", self._projected_here(shard))
        whole = of_heads(shard)
        activation = self._activation(whole)
        mixed = whole.activation_bytes(activation.rows * activation.columns)
        projected = whole.activation_bytes(whole.tokens * self._projected_here(whole))
        operations.kernel("lightning.silu", activation, saved=projected + mixed, output=mixed)
        for kernel_shard in whole.of_kernels():
            self.scan.pass_on(operations, kernel_shard, "lightning", output=inner)
        swap_states(operations, shard, "lightning.output.from_heads", 2 * self.scan.inner_here(shard))
        self._sum_squares(operations, shard)
        operations.kernel("lightning.norm", self._norm(shard), output=inner)
        row_forward(operations, shard, self._output(shard), saved=inner)

    def backward(self, operations: OperatorList, shard: Shard) -> int:
        """Append the same from the end, after states and scores once more."""
        whole, gains = of_heads(shard), self.scan.inner_here(shard)
        activation = self._activation(whole, backward=True)
        mixed = whole.activation_bytes(activation.rows * activation.columns)
        row_backward(operations, shard, self._output(shard))
        self._sum_squares(operations, shard)
        both = 2 * shard.activation_bytes(shard.tokens * gains)
        norm = self._norm(shard, backward=True)
        operations.kernel("lightning.norm", norm, output=both, parameters=gains)
        swap_states(operations, shard, "lightning.output.to_heads", 2 * gains)
        self.scan.states(operations, whole, "lightning.recompute")
        self.scan.gradients(operations, whole, "lightning", output=mixed)
        operations.kernel("lightning.silu", activation, output=mixed)
        swap_states(operations, shard, "lightning.input.from_heads", self._projected_here(shard))
        return column_backward(operations, shard, self._input(shard))

    def _projected_here(self, shard: Shard) -> int:
        return _PROJECTED * self.scan.inner_here(shard)

    def _input(self, shard: Shard) -> Linear:
        columns = self._projected_here(shard)
        return Linear("lightning.input", columns, self.hidden, bias=False, rows=shard.tokens)

    def _output(self, shard: Shard) -> Linear:
        inner = self.scan.inner_here(shard)
        return Linear("lightning.output", self.hidden, inner, bias=False, rows=shard.tokens)

    def _activation(self, shard: Shard, *, backward: bool = False) -> Vector:
        columns = (_PROJECTED - 1) * self.scan.inner_here(shard)
        return shard.vector("silu", shard.tokens, columns, backward=backward)

    def _norm(self, shard: Shard, *, backward: bool = False) -> Vector:
        """Return the norm and the gate, as one kernel."""
        return shard.vector("gated_rms_norm", shard.tokens, self.scan.inner_here(shard), backward=backward)

    @staticmethod
    def _sum_squares(operations: OperatorList, shard: Shard) -> None:
        """Append the sum over tp of each token's squares, or of their products with the gradient."""
        if shard.tp > 1:
            size = shard.message("tp.reduce", shard.tokens, "fp32")
            operations.message("lightning.norm.reduce", "tp.reduce", size)


def lightning_attention(spec: LightningSpec, model: ModelSpec, file: str) -> Lightning:
    """Return the lightning attention of a model file; all its dimensions fit."""
    del file
    return Lightning(model.hidden, Scan(spec.heads, spec.head_dim, spec.head_dim, spec.heads, spec.chunk))
