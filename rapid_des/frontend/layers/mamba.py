"""Mamba-2: each head carries a state from position to position (state space duality, arXiv 2405.21060).

Training and prefill compute it in chunks, by the kernels of the authors' package (`scan`). The backward runs
convolution, states and scores again. tp splits heads and groups, and copies groups where there are fewer.
Where cp splits sequences, however attention sees them, an all-to-all over its ranks gives each all positions
of some heads between the projections, as Megatron-LM's MambaContextParallel does: all that the first one
makes goes, results and gates come back.
"""

from __future__ import annotations

from msgspec import Struct

from rapid_des.device.operators import Vector
from rapid_des.errors import ConfigError
from rapid_des.frontend.groups import byte_count
from rapid_des.frontend.layer_spec import MambaSpec
from rapid_des.frontend.layers.context import of_heads, swap_states
from rapid_des.frontend.layers.layer import Parameters
from rapid_des.frontend.layers.scan import Scan
from rapid_des.frontend.matrices import Linear, column_backward, column_forward, row_backward, row_forward
from rapid_des.frontend.model_spec import ModelSpec
from rapid_des.frontend.operations import OperatorList, Shard
from rapid_des.frontend.spec import ParallelismSpec

SCAN_FLOPS = 7
"""Forward FLOPs of one position and state element, as Megatron-LM counts them."""


class Mamba(Struct, frozen=True):
    """A scan between two projections, after a convolution."""

    hidden: int
    scan: Scan
    window: int
    """Number of positions that the convolution before the scan covers."""
    window_bias: bool
    bias: bool
    """Whether both projections have biases."""

    name = "mamba"

    @property
    def output_bias(self) -> bool:
        """Whether the projection after the scan has a bias."""
        return self.bias

    @property
    def _mixed(self) -> int:
        """Channels that pass the convolution: inputs of the heads, and of the states' input and output."""
        return self.scan.inner + 2 * self.scan.groups * self.scan.state

    @property
    def _projected(self) -> int:
        """Columns of the first projection: the gate, what is mixed, and a step a head."""
        return self.scan.inner + self._mixed + self.scan.heads

    @property
    def parameters(self) -> Parameters:
        """Both projections; the convolution, three numbers a head, and the gains of the gated norm."""
        window = self._mixed * (self.window + self.window_bias)
        inner = self.scan.inner
        return Parameters(
            matrices=self.hidden * (self._projected + inner),
            split_vectors=window + 3 * self.scan.heads + inner + self._projected * self.bias,
            whole_vectors=self.hidden * self.bias,
        )

    def flops(self, sequence: int) -> int:
        """Return two a weight, and the scan's, which do not grow with the sequence."""
        del sequence
        return 2 * self.parameters.matrices + SCAN_FLOPS * self.scan.inner * self.scan.state

    def refusal(self, split: ParallelismSpec) -> str | None:
        """Return why a job's axes cannot split heads and groups."""
        if self.scan.heads % split.tp:
            return f"{self.scan.heads} mamba2 heads are not divisible by tp {split.tp}"
        if self.scan.groups % split.tp and split.tp % self.scan.groups:
            return f"mamba2 groups {self.scan.groups} and tp {split.tp}: one must divide by the other"
        return None

    def context_refusal(self, split: ParallelismSpec) -> str | None:
        """Return why the ranks of cp cannot share heads and groups."""
        heads, groups, cp = self.scan.heads // split.tp, max(1, self.scan.groups // split.tp), split.cp
        if heads % cp:
            return f"{heads} mamba2 heads of a tp rank are not divisible by cp {cp}, whose ranks share them"
        if groups % cp and cp % groups:
            return f"mamba2 groups {groups} of a tp rank and cp {cp}: one must divide by the other"
        return None

    def cache_bytes(self, shard: Shard, positions: int) -> int:
        """Return the state, and the latest inputs of the convolution, however long the request is."""
        del positions
        states = self.scan.inner_here(shard) * self.scan.state
        elements = states + self.window * self._mixed_here(shard)
        return byte_count(elements, shard.precision.activations)

    def forward(self, operations: OperatorList, shard: Shard) -> None:
        """Append projection, convolution, scan, gated norm, projection."""
        stream = shard.activation_bytes(shard.norm_tokens * self.hidden)
        inner = shard.activation_bytes(shard.tokens * self.scan.inner_here(shard))
        column_forward(operations, shard, self._input(shard), saved=stream)
        swap_states(operations, shard, "mamba.input.to_heads", self._projected_here(shard))
        whole = of_heads(shard)
        projected = whole.activation_bytes(whole.tokens * self._projected_here(whole))
        self._convolve(operations, whole, "mamba.conv", saved=projected)
        for kernel_shard in whole.of_kernels():
            self.scan.pass_on(operations, kernel_shard, "mamba", output=inner)
        swap_states(operations, shard, "mamba.output.from_heads", 2 * self.scan.inner_here(shard))
        operations.kernel("mamba.norm", self._norm(shard), output=inner)
        row_forward(operations, shard, self._output(shard), saved=inner)

    def backward(self, operations: OperatorList, shard: Shard) -> int:
        """Append the same from the end, after the convolution, states and scores once more."""
        whole, gains = of_heads(shard), self.scan.inner_here(shard)
        mixed = whole.activation_bytes(whole.tokens * self._mixed_here(whole))
        row_backward(operations, shard, self._output(shard))
        norm = self._norm(shard, backward=True)
        output = 2 * shard.activation_bytes(shard.tokens * gains)
        operations.kernel("mamba.norm", norm, output=output, parameters=gains)
        swap_states(operations, shard, "mamba.output.to_heads", 2 * gains)
        self._convolve(operations, whole, "mamba.recompute.conv")
        self.scan.states(operations, whole, "mamba.recompute")
        self.scan.gradients(operations, whole, "mamba", output=mixed)
        steps = whole.vector("row_scalar", whole.tokens, self.scan.heads_here(whole))
        operations.kernel("mamba.steps", steps, parameters=3 * self.scan.heads_here(shard))
        convolved = self._mixed_here(shard) * (self.window + self.window_bias)
        self._convolve(operations, whole, "mamba.conv", parameters=convolved)
        swap_states(operations, shard, "mamba.input.from_heads", self._projected_here(shard))
        return column_backward(operations, shard, self._input(shard))

    def _mixed_here(self, shard: Shard) -> int:
        return self.scan.inner_here(shard) + 2 * self.scan.groups_here(shard) * self.scan.state

    def _projected_here(self, shard: Shard) -> int:
        return self.scan.inner_here(shard) + self._mixed_here(shard) + self.scan.heads_here(shard)

    def _input(self, shard: Shard) -> Linear:
        return Linear("mamba.input", self._projected_here(shard), self.hidden, self.bias, shard.tokens)

    def _output(self, shard: Shard) -> Linear:
        return Linear("mamba.output", self.hidden, self.scan.inner_here(shard), self.bias, shard.tokens)

    def _norm(self, shard: Shard, *, backward: bool = False) -> Vector:
        """Return the gate and the norm of each group's channels, as one kernel."""
        groups = self.scan.groups_here(shard)
        columns = self.scan.inner_here(shard) // groups
        return shard.vector("gated_rms_norm", shard.tokens * groups, columns, backward=backward)

    def _convolve(
        self, operations: OperatorList, shard: Shard, name: str, *, saved: int = 0, parameters: int = 0
    ) -> None:
        """Append the convolution; with the parameters whose gradients it makes, its backward."""
        channels = self._mixed_here(shard)
        kernel = shard.vector("conv_silu", shard.tokens, channels, backward=parameters > 0)
        width = self._projected_here(shard) if parameters else channels
        size = shard.activation_bytes(shard.tokens * width)
        operations.kernel(name, kernel, saved=saved, output=size, parameters=parameters)


def mamba(spec: MambaSpec, model: ModelSpec, file: str) -> Mamba:
    """Return the Mamba-2 mixer of a model file."""
    if spec.heads % spec.groups:
        problem = f"{spec.heads} heads do not divide by {spec.groups} groups"
        raise ConfigError(problem, file=file, key="attention.groups")
    return Mamba(
        hidden=model.hidden,
        scan=Scan(spec.heads, spec.head_dim, spec.state, spec.groups, spec.chunk),
        window=spec.window,
        window_bias=spec.window_bias,
        bias=spec.bias,
    )
