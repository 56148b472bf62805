"""Mamba-2: each head carries a state from position to position (state space duality, arXiv 2405.21060).

Training and prefill compute it in chunks, by the kernels of the authors' package: what each chunk adds to
the state (a product a chunk and head), the states passed from chunk to chunk, the scores of each chunk (a
product a chunk and group), results from scores and states (a product again; the causal mask leaves half of
the scores). The backward runs convolution, states and scores again. A decode step reads and writes the
state. tp splits heads and groups, and copies groups where there are fewer. Where cp splits sequences, however
attention sees them, an all-to-all over its ranks gives each all positions of some heads between the
projections, as Megatron-LM's MambaContextParallel does: all that the first one makes goes, results and gates
come back. None of these kernels was measured here: products are priced as batched GEMMs.
"""

from __future__ import annotations

from msgspec import Struct

from rapid_des.device.operators import Gemm, Vector
from rapid_des.errors import ConfigError
from rapid_des.frontend.groups import byte_count
from rapid_des.frontend.layer_spec import MambaSpec
from rapid_des.frontend.layers.context import of_heads, swap_states
from rapid_des.frontend.layers.layer import Parameters
from rapid_des.frontend.matrices import Linear, column_backward, column_forward, row_backward, row_forward
from rapid_des.frontend.operations import OperatorList, Shard
from rapid_des.frontend.spec import ModelSpec, ParallelismSpec
from rapid_des.units import ceil_divide

SCAN_FLOPS = 7
"""Forward FLOPs of one position and state element, as Megatron-LM counts them."""


class Mamba(Struct, frozen=True):
    """`heads` heads of `head_dim` channels with states of `state`, whose inputs `groups` groups share."""

    hidden: int
    heads: int
    head_dim: int
    state: int
    groups: int
    window: int
    """Number of positions that the convolution before the scan covers."""
    chunk: int
    window_bias: bool
    bias: bool
    """Whether both projections have biases."""

    name = "mamba"

    @property
    def output_bias(self) -> bool:
        """Whether the projection after the scan has a bias."""
        return self.bias

    @property
    def _inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def _mixed(self) -> int:
        """Channels that pass the convolution: inputs of the heads, and of the states' input and output."""
        return self._inner + 2 * self.groups * self.state

    @property
    def _projected(self) -> int:
        """Columns of the first projection: the gate, what is mixed, and a step a head."""
        return self._inner + self._mixed + self.heads

    @property
    def parameters(self) -> Parameters:
        """Both projections; the convolution, three numbers a head, and the gains of the gated norm."""
        window = self._mixed * (self.window + self.window_bias)
        return Parameters(
            matrices=self.hidden * (self._projected + self._inner),
            split_vectors=window + 3 * self.heads + self._inner + self._projected * self.bias,
            whole_vectors=self.hidden * self.bias,
        )

    def flops(self, sequence: int) -> int:
        """Return two a weight, and the scan's, which do not grow with the sequence."""
        del sequence
        return 2 * self.parameters.matrices + SCAN_FLOPS * self._inner * self.state

    def refusal(self, split: ParallelismSpec) -> str | None:
        """Return why a job's axes can not split heads and groups."""
        if self.heads % split.tp:
            return f"mamba2 heads {self.heads} does not divide by tp {split.tp}"
        if self.groups % split.tp and split.tp % self.groups:
            return f"mamba2 groups {self.groups} and tp {split.tp}: one must divide by the other"
        return None

    def context_refusal(self, split: ParallelismSpec) -> str | None:
        """Return why the ranks of cp can not share heads and groups."""
        heads, groups, cp = self.heads // split.tp, max(1, self.groups // split.tp), split.cp
        if heads % cp:
            return f"mamba2 heads {heads} of a tp rank does not divide by cp {cp}, whose ranks share them"
        if groups % cp and cp % groups:
            return f"mamba2 groups {groups} of a tp rank and cp {cp}: one must divide by the other"
        return None

    def cache_bytes(self, shard: Shard, positions: int) -> int:
        """Return the state, and the latest inputs of the convolution, however long the request is."""
        del positions
        elements = self._inner // shard.tp * self.state + self.window * self._mixed_here(shard)
        return byte_count(elements, shard.precision.activations)

    def forward(self, operations: OperatorList, shard: Shard) -> None:
        """Append projection, convolution, scan, gated norm, projection."""
        stream = shard.activation_bytes(shard.norm_tokens * self.hidden)
        inner = self._bytes(shard, self._inner)
        column_forward(operations, shard, self._input(shard), saved=stream)
        swap_states(operations, shard, "mamba.input.to_heads", self._projected_here(shard))
        whole = of_heads(shard)
        projected = whole.activation_bytes(whole.tokens * self._projected_here(whole))
        self._convolve(operations, whole, "mamba.conv", saved=projected)
        for kernel_shard in whole.of_kernels():
            self._pass_on(operations, kernel_shard, output=inner)
        swap_states(operations, shard, "mamba.output.from_heads", 2 * self._local(shard, self._inner))
        operations.kernel("mamba.norm", self._norm(shard), output=inner)
        row_forward(operations, shard, self._output(shard), saved=inner)

    def _pass_on(self, operations: OperatorList, shard: Shard, output: int) -> None:
        """Append what carries the states of equal sequences on: by one position, or by chunks."""
        if shard.serving and shard.query_length == 1:
            rows = shard.sequences * self._local(shard, self.heads)
            state = shard.vector("state_update", rows, self._state_size)
            operations.kernel("mamba.update", state, output=output)
        else:
            self._states(operations, shard, "mamba")
            operations.kernel("mamba.scan", self._scan(shard), saved=output, output=output)

    def backward(self, operations: OperatorList, shard: Shard) -> int:
        """Append the same from the end, after the convolution, states and scores once more."""
        whole, gains = of_heads(shard), self._local(shard, self._inner)
        mixed = whole.activation_bytes(whole.tokens * self._mixed_here(whole))
        row_backward(operations, shard, self._output(shard))
        norm = self._norm(shard, backward=True)
        output = 2 * self._bytes(shard, self._inner)
        operations.kernel("mamba.norm", norm, output=output, parameters=gains)
        swap_states(operations, shard, "mamba.output.to_heads", 2 * gains)
        self._convolve(operations, whole, "mamba.recompute.conv")
        self._states(operations, whole, "mamba.recompute")
        for name, kernel in self._gradients(whole):
            operations.kernel(f"mamba.{name}", kernel, output=mixed)
        steps = whole.vector("row_scalar", whole.tokens, self._local(whole, self.heads))
        operations.kernel("mamba.steps", steps, parameters=3 * self._local(shard, self.heads))
        convolved = self._mixed_here(shard) * (self.window + self.window_bias)
        self._convolve(operations, whole, "mamba.conv", parameters=convolved)
        swap_states(operations, shard, "mamba.input.from_heads", self._projected_here(shard))
        return column_backward(operations, shard, self._input(shard))

    @property
    def _state_size(self) -> int:
        return self.head_dim * self.state

    @staticmethod
    def _local(shard: Shard, number: int) -> int:
        return number // shard.tp

    def _groups_here(self, shard: Shard) -> int:
        """Return the groups of a rank, which are copied where there are fewer than tp."""
        return max(1, self.groups // shard.tp)

    def _mixed_here(self, shard: Shard) -> int:
        return self._inner // shard.tp + 2 * self._groups_here(shard) * self.state

    def _projected_here(self, shard: Shard) -> int:
        return self._inner // shard.tp + self._mixed_here(shard) + self.heads // shard.tp

    def _bytes(self, shard: Shard, columns: int) -> int:
        """Return the bytes of this rank's part of this many columns at all positions."""
        return shard.activation_bytes(shard.tokens * self._local(shard, columns))

    def _input(self, shard: Shard) -> Linear:
        return Linear("mamba.input", self._projected_here(shard), self.hidden, self.bias, shard.tokens)

    def _output(self, shard: Shard) -> Linear:
        return Linear("mamba.output", self.hidden, self._local(shard, self._inner), self.bias, shard.tokens)

    def _norm(self, shard: Shard, *, backward: bool = False) -> Vector:
        """Return the gate and the norm of each group's channels, as one kernel."""
        groups = self._groups_here(shard)
        columns = self._local(shard, self._inner) // groups
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

    def _chunks(self, shard: Shard) -> tuple[int, int]:
        """Return how many chunks all sequences have, and the positions of one."""
        length = min(self.chunk, shard.query_length)
        return shard.sequences * ceil_divide(shard.query_length, length), length

    def _product(self, shard: Shard, parts: int, m: int, n: int, k: int) -> Gemm:
        """Return a product for each chunk and each of this many heads or groups."""
        chunks, _ = self._chunks(shard)
        batch = chunks * parts
        return Gemm(m, n, k, batch=batch, dtype=shard.precision.activations)

    def _states(self, operations: OperatorList, shard: Shard, name: str) -> None:
        """Append what chunks add to the states, the states passed on, and the scores."""
        chunks, length = self._chunks(shard)
        added = self._product(shard, self._local(shard, self.heads), self.head_dim, self.state, length)
        size = 4 * added.batch * self._state_size
        operations.kernel(f"{name}.states", added, output=size)
        operations.kernel(f"{name}.pass", self._passing(shard), output=size)
        scores = self._product(shard, self._groups_here(shard), length, length, self.state)
        output = shard.activation_bytes(scores.batch * length * length)
        operations.kernel(f"{name}.scores", scores, output=size + output)

    def _passing(self, shard: Shard, *, backward: bool = False) -> Vector:
        """Return the kernel that passes fp32 states from chunk to chunk, a head beside the other."""
        chunks, _ = self._chunks(shard)
        rows = chunks * self._local(shard, self.heads)
        return Vector("state_pass", rows, self._state_size, "fp32", "backward" if backward else "forward")

    def _scan(self, shard: Shard) -> Gemm:
        _, length = self._chunks(shard)
        return self._product(
            shard, self._local(shard, self.heads), length, self.head_dim, ceil_divide(length, 2) + self.state
        )

    def _gradients(self, shard: Shard) -> tuple[tuple[str, Gemm | Vector], ...]:
        """Return the kernels of the scan's backward: of states, inputs, scores, and of both their factors."""
        _, length = self._chunks(shard)
        half = ceil_divide(length, 2)
        return (
            (
                "states_gradient",
                self._product(shard, self._local(shard, self.heads), self.head_dim, self.state, length),
            ),
            ("pass", self._passing(shard, backward=True)),
            ("input_gradient", self._scan(shard)),
            (
                "state_input_gradient",
                self._product(shard, self._local(shard, self.heads), length, self.state, self.head_dim),
            ),
            (
                "state_output_gradient",
                self._product(shard, self._local(shard, self.heads), length, self.state, self.head_dim),
            ),
            (
                "scores_gradient",
                self._product(shard, self._local(shard, self.heads), length, half, self.head_dim),
            ),
            ("scores_left", self._product(shard, self._groups_here(shard), length, self.state, half)),
            ("scores_right", self._product(shard, self._groups_here(shard), length, self.state, half)),
        )


def mamba(spec: MambaSpec, model: ModelSpec, file: str) -> Mamba:
    """Return the Mamba-2 mixer of a model file."""
    if spec.heads % spec.groups:
        problem = f"{spec.heads} heads do not divide by {spec.groups} groups"
        raise ConfigError(problem, file=file, key="attention.groups")
    return Mamba(
        hidden=model.hidden,
        heads=spec.heads,
        head_dim=spec.head_dim,
        state=spec.state,
        groups=spec.groups,
        window=spec.window,
        chunk=spec.chunk,
        window_bias=spec.window_bias,
        bias=spec.bias,
    )
