"""Gated delta rule: each head corrects a matrix of keys and values position by position (arXiv 2412.06464).

Qwen3-Next and Qwen3.5 have it in three layers of four. Training and prefill compute it in chunks, by the
kernels of flash-linear-attention: norms of queries and keys, the keys' scores within each chunk (for every
value head, whose rates differ), the inverse of that triangle, what it makes of keys and values (WY form), the
states passed from chunk to chunk, results from states and scores. The backward makes WY form and states
again. A decode step reads and writes the state in fp32, as engines keep it. tp splits key and value heads,
and copies key heads where there are fewer; cp gives each rank all positions of some heads, as Mamba-2's does.
None of these kernels was measured here: products are priced as batched GEMMs, and the states of a sequence as
if its chunks did not wait for each other, which few long sequences of few heads do.
"""

from __future__ import annotations

from msgspec import Struct

from rapid_des.device.operators import Gemm, Vector
from rapid_des.errors import ConfigError
from rapid_des.frontend.groups import byte_count
from rapid_des.frontend.layer_spec import GatedDeltaSpec
from rapid_des.frontend.layers.context import of_heads, swap_states
from rapid_des.frontend.layers.layer import Parameters
from rapid_des.frontend.matrices import Linear, column_backward, column_forward, row_backward, row_forward
from rapid_des.frontend.model_spec import ModelSpec
from rapid_des.frontend.operations import OperatorList, Shard
from rapid_des.frontend.spec import ParallelismSpec
from rapid_des.units import ceil_divide

RULE_FLOPS = 8
"""Forward FLOPs of one position and state element, as Megatron-LM counts them."""
_STATE_BYTES = 4


class GatedDelta(Struct, frozen=True):
    """`heads` value heads whose states map `key_dim` to `value_dim` channels; `key_heads` serve them."""

    hidden: int
    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    window: int
    """Number of positions that the convolution of queries, keys and values covers."""
    chunk: int

    name = "delta"
    output_bias = False

    @property
    def _values(self) -> int:
        return self.heads * self.value_dim

    @property
    def _mixed(self) -> int:
        """Channels that pass the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self._values

    @property
    def parameters(self) -> Parameters:
        """Both projections; the convolution, two numbers a head, and the norm's gains, which heads share."""
        projected = self._mixed + self._values + 2 * self.heads
        return Parameters(
            matrices=self.hidden * (projected + self._values),
            split_vectors=self._mixed * self.window + 2 * self.heads,
            whole_vectors=self.value_dim,
        )

    def flops(self, sequence: int) -> int:
        """Return two a weight, and the rule's, which do not grow with the sequence."""
        del sequence
        return 2 * self.parameters.matrices + RULE_FLOPS * self._values * self.key_dim

    def refusal(self, split: ParallelismSpec) -> str | None:
        """Return why tp cannot split the heads."""
        return _refusal(self.heads, self.key_heads, "tp", split.tp)

    def context_refusal(self, split: ParallelismSpec) -> str | None:
        """Return why the ranks of cp cannot share the heads of a tp rank."""
        return _refusal(self.heads // split.tp, max(1, self.key_heads // split.tp), "cp", split.cp)

    def cache_bytes(self, shard: Shard, positions: int) -> int:
        """Return the state, and the latest inputs of the convolution, however long the request is."""
        del positions
        latest = byte_count(self.window * self._mixed_here(shard), shard.precision.activations)
        return _STATE_BYTES * self._heads_here(shard) * self._state + latest

    def forward(self, operations: OperatorList, shard: Shard) -> None:
        """Append projection, convolution, rule, gated norm, projection."""
        stream = shard.activation_bytes(shard.norm_tokens * self.hidden)
        column_forward(operations, shard, self._input(shard), saved=stream)
        swap_states(operations, shard, "delta.input.to_heads", self._projected_here(shard))
        whole = of_heads(shard)
        projected = whole.activation_bytes(whole.tokens * self._projected_here(whole))
        mixed = whole.activation_bytes(whole.tokens * self._mixed_here(whole))
        convolution = whole.vector("conv_silu", whole.tokens, self._mixed_here(whole))
        operations.kernel("delta.conv", convolution, saved=projected, output=mixed)
        for kernel_shard in whole.of_kernels():
            self._pass_on(operations, kernel_shard)
        values = self._values_here(shard)
        swap_states(operations, shard, "delta.output.from_heads", 2 * values)
        inner = shard.activation_bytes(shard.tokens * values)
        operations.kernel("delta.gated_norm", self._gated_norm(shard), output=inner)
        row_forward(operations, shard, self._output(shard), saved=inner)

    def _pass_on(self, operations: OperatorList, shard: Shard) -> None:
        """Append what carries the states of equal sequences on: by one position, or by chunks."""
        output = shard.activation_bytes(shard.tokens * self._values_here(shard))
        if shard.serving and shard.query_length == 1:
            rows = shard.sequences * self._heads_here(shard)
            operations.kernel(
                "delta.update", Vector("state_update", rows, self._state, "fp32"), output=output
            )
            return
        mixed = shard.activation_bytes(shard.tokens * self._mixed_here(shard))
        operations.kernel("delta.norm", self._norm(shard), saved=mixed, output=mixed)
        operations.kernel("delta.gates", self._gates(shard))
        for name, kernel in self._triangle(shard):
            size = shard.activation_bytes(kernel.batch * kernel.m * kernel.n)
            operations.kernel(f"delta.{name}", kernel, output=size, saved=size * (name == "inverse"))
        self._states(operations, shard, "delta")
        operations.kernel("delta.rule", self._results(shard), saved=output, output=output)

    def backward(self, operations: OperatorList, shard: Shard) -> int:
        """Append the same from the end, after WY form and states once more."""
        whole, values = of_heads(shard), self._values_here(shard)
        mixed = whole.activation_bytes(whole.tokens * self._mixed_here(whole))
        row_backward(operations, shard, self._output(shard))
        size = 2 * shard.activation_bytes(shard.tokens * values)
        norm = self._gated_norm(shard, backward=True)
        operations.kernel("delta.gated_norm", norm, output=size, parameters=self.value_dim)
        swap_states(operations, shard, "delta.output.to_heads", 2 * values)
        self._states(operations, whole, "delta.recompute")
        for name, kernel in self._gradients(whole):
            operations.kernel(f"delta.{name}", kernel, output=mixed)
        operations.kernel("delta.norm", self._norm(whole, backward=True), output=mixed)
        operations.kernel("delta.gates", self._gates(whole), parameters=2 * self._heads_here(shard))
        convolution = whole.vector("conv_silu", whole.tokens, self._mixed_here(whole), backward=True)
        width = whole.activation_bytes(whole.tokens * self._projected_here(whole))
        convolved = self._mixed_here(shard) * self.window
        operations.kernel("delta.conv", convolution, output=width, parameters=convolved)
        swap_states(operations, shard, "delta.input.from_heads", self._projected_here(shard))
        return column_backward(operations, shard, self._input(shard))

    @property
    def _state(self) -> int:
        return self.key_dim * self.value_dim

    def _heads_here(self, shard: Shard) -> int:
        return self.heads // shard.tp

    def _values_here(self, shard: Shard) -> int:
        return self._heads_here(shard) * self.value_dim

    def _key_heads_here(self, shard: Shard) -> int:
        """Return the key heads of a rank, which are copied where there are fewer than tp."""
        return max(1, self.key_heads // shard.tp)

    def _mixed_here(self, shard: Shard) -> int:
        return 2 * self._key_heads_here(shard) * self.key_dim + self._values_here(shard)

    def _projected_here(self, shard: Shard) -> int:
        """Return the columns of the first projection: what is mixed, gates of results, two numbers a head."""
        return self._mixed_here(shard) + self._values_here(shard) + 2 * self._heads_here(shard)

    def _input(self, shard: Shard) -> Linear:
        return Linear("delta.input", self._projected_here(shard), self.hidden, bias=False, rows=shard.tokens)

    def _output(self, shard: Shard) -> Linear:
        inner = self._values_here(shard)
        return Linear("delta.output", self.hidden, inner, bias=False, rows=shard.tokens)

    def _norm(self, shard: Shard, *, backward: bool = False) -> Vector:
        """Return the norms of queries and keys."""
        rows = 2 * shard.tokens * self._key_heads_here(shard)
        return shard.vector("rms_norm", rows, self.key_dim, backward=backward)

    def _gates(self, shard: Shard) -> Vector:
        """Return the rates at which a head forgets, summed up along each chunk, and at which it learns."""
        return shard.vector("row_scalar", shard.tokens, self._heads_here(shard))

    def _gated_norm(self, shard: Shard, *, backward: bool = False) -> Vector:
        rows = shard.tokens * self._heads_here(shard)
        return shard.vector("gated_rms_norm", rows, self.value_dim, backward=backward)

    def _length(self, shard: Shard) -> int:
        """Return the positions of a chunk."""
        return min(self.chunk, shard.query_length)

    def _product(self, shard: Shard, m: int, n: int, k: int) -> Gemm:
        """Return a product for each chunk and value head."""
        chunks = shard.sequences * ceil_divide(shard.query_length, self._length(shard))
        batch = chunks * self._heads_here(shard)
        return Gemm(m, n, k, batch=batch, dtype=shard.precision.activations)

    def _triangle(self, shard: Shard) -> tuple[tuple[str, Gemm], ...]:
        """Return the products that make a chunk's scores of keys, and invert them: a third of a product."""
        length = self._length(shard)
        return (
            ("scores", self._product(shard, length, length, self.key_dim)),
            ("inverse", self._product(shard, length, length, ceil_divide(length, 3))),
        )

    def _states(self, operations: OperatorList, shard: Shard, name: str) -> None:
        """Append what the inverse makes of keys and values, and the states passed from chunk to chunk.

        A chunk's state takes what it would recall off the values, and adds keys times the rest.
        """
        length = self._length(shard)
        made = self._product(shard, length, self.key_dim + self.value_dim, length)
        size = shard.activation_bytes(made.batch * length * made.n)
        operations.kernel(f"{name}.wy", made, output=size)
        passed = self._product(shard, length, self.value_dim, 2 * self.key_dim)
        size = shard.activation_bytes(passed.batch * (self._state + length * self.value_dim))
        operations.kernel(f"{name}.states", passed, output=size)

    def _results(self, shard: Shard) -> Gemm:
        """Return queries times states, and the causal half of their scores of keys times values."""
        length = self._length(shard)
        scores = ceil_divide(length * (self.key_dim + self.value_dim), 2 * self.value_dim)
        return self._product(shard, length, self.value_dim, self.key_dim + scores)

    def _gradients(self, shard: Shard) -> tuple[tuple[str, Gemm], ...]:
        """Return the kernels of the rule's backward: of values, states, queries and keys, and the WY form."""
        length, keys, values = self._length(shard), self.key_dim, self.value_dim
        scores = ceil_divide(length * (keys + values), values)
        inner = 3 * values + ceil_divide(length * values, keys) + 2 * length
        return (
            ("values_gradient", self._product(shard, length, values, scores)),
            ("states_gradient", self._product(shard, length, values, 3 * keys)),
            ("keys_gradient", self._product(shard, length, keys, inner)),
            (
                "wy_gradient",
                self._product(shard, length, length, 2 * (keys + values) + 2 * length + 2 * keys),
            ),
        )


def _refusal(heads: int, key_heads: int, axis: str, ranks: int) -> str | None:
    of = " of a tp rank" if axis == "cp" else ""
    if heads % ranks:
        return f"{heads} gated_delta heads{of} are not divisible by {axis} {ranks}"
    if key_heads % ranks and ranks % key_heads:
        return f"gated_delta key_heads {key_heads}{of} and {axis} {ranks}: one must divide by the other"
    return None


def gated_delta(spec: GatedDeltaSpec, model: ModelSpec, file: str) -> GatedDelta:
    """Return the mixer of a model file."""
    key_heads = spec.key_heads or spec.heads
    if spec.heads % key_heads:
        problem = f"{spec.heads} heads do not divide by {key_heads} key_heads"
        raise ConfigError(problem, file=file, key="attention.key_heads")
    return GatedDelta(
        hidden=model.hidden,
        heads=spec.heads,
        key_heads=key_heads,
        key_dim=spec.key_dim,
        value_dim=spec.value_dim,
        window=spec.window,
        chunk=spec.chunk,
    )
