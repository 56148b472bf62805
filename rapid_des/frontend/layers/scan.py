"""States that heads carry from position to position, in chunks: what Mamba-2 and lightning attention share.

Kernels of training and prefill: what each chunk adds to the state (a product a chunk and head), the states
passed from chunk to chunk, the scores of each chunk (a product a chunk and group), results from scores and
states (a product again; the causal mask leaves half of the scores). A decode step reads and writes the state.
None of these kernels was measured here: products are priced as batched GEMMs.
"""

from __future__ import annotations

from msgspec import Struct

from rapid_des.device.operators import Gemm, Vector
from rapid_des.frontend.operations import OperatorList, Shard
from rapid_des.units import ceil_divide


class Scan(Struct, frozen=True):
    """`heads` heads of `head_dim` channels with states of `state`, whose inputs `groups` groups share."""

    heads: int
    head_dim: int
    state: int
    groups: int
    chunk: int
    """Number of positions that are computed together."""

    @property
    def inner(self) -> int:
        """Channels of all heads."""
        return self.heads * self.head_dim

    @property
    def state_size(self) -> int:
        """Elements of a head's state."""
        return self.head_dim * self.state

    def heads_here(self, shard: Shard) -> int:
        """Return the heads of a rank."""
        return self.heads // shard.tp

    def inner_here(self, shard: Shard) -> int:
        """Return the channels of a rank's heads."""
        return self.inner // shard.tp

    def groups_here(self, shard: Shard) -> int:
        """Return the groups of a rank, which are copied where there are fewer than tp."""
        return max(1, self.groups // shard.tp)

    def pass_on(self, operations: OperatorList, shard: Shard, name: str, *, output: int) -> None:
        """Append what carries the states of equal sequences on: by one position, or by chunks."""
        if shard.serving and shard.query_length == 1:
            rows = shard.sequences * self.heads_here(shard)
            state = shard.vector("state_update", rows, self.state_size)
            operations.kernel(f"{name}.update", state, output=output)
        else:
            self.states(operations, shard, name)
            operations.kernel(f"{name}.scan", self._scan(shard), saved=output, output=output)

    def states(self, operations: OperatorList, shard: Shard, name: str) -> None:
        """Append what chunks add to the states, the states passed on, and the scores."""
        _, length = self._chunks(shard)
        added = self._product(shard, self.heads_here(shard), self.head_dim, self.state, length)
        size = 4 * added.batch * self.state_size
        operations.kernel(f"{name}.states", added, output=size)
        operations.kernel(f"{name}.pass", self._passing(shard), output=size)
        scores = self._product(shard, self.groups_here(shard), length, length, self.state)
        output = shard.activation_bytes(scores.batch * length * length)
        operations.kernel(f"{name}.scores", scores, output=size + output)

    def gradients(self, operations: OperatorList, shard: Shard, name: str, *, output: int) -> None:
        """Append the backward: of states, inputs, scores, and of both their factors."""
        _, length = self._chunks(shard)
        heads, groups, half = self.heads_here(shard), self.groups_here(shard), ceil_divide(length, 2)
        of_states = self._product(shard, heads, self.head_dim, self.state, length)
        of_inputs = self._product(shard, heads, length, self.state, self.head_dim)
        of_scores = self._product(shard, groups, length, self.state, half)
        kernels: dict[str, Gemm | Vector] = {
            "states_gradient": of_states,
            "pass": self._passing(shard, backward=True),
            "input_gradient": self._scan(shard),
            "state_input_gradient": of_inputs,
            "state_output_gradient": of_inputs,
            "scores_gradient": self._product(shard, heads, length, half, self.head_dim),
            "scores_left": of_scores,
            "scores_right": of_scores,
        }
        for part, kernel in kernels.items():
            operations.kernel(f"{name}.{part}", kernel, output=output)

    def _chunks(self, shard: Shard) -> tuple[int, int]:
        """Return how many chunks all sequences have, and the positions of one."""
        length = min(self.chunk, shard.query_length)
        return shard.sequences * ceil_divide(shard.query_length, length), length

    def _product(self, shard: Shard, parts: int, m: int, n: int, k: int) -> Gemm:
        """Return a product for each chunk and each of this many heads or groups."""
        chunks, _ = self._chunks(shard)
        return Gemm(m, n, k, batch=chunks * parts, dtype=shard.precision.activations)

    def _passing(self, shard: Shard, *, backward: bool = False) -> Vector:
        """Return the kernel that passes fp32 states from chunk to chunk, a head beside the other."""
        chunks, _ = self._chunks(shard)
        rows = chunks * self.heads_here(shard)
        return Vector("state_pass", rows, self.state_size, "fp32", "backward" if backward else "forward")

    def _scan(self, shard: Shard) -> Gemm:
        _, length = self._chunks(shard)
        inner = ceil_divide(length, 2) + self.state
        return self._product(shard, self.heads_here(shard), length, self.head_dim, inner)
