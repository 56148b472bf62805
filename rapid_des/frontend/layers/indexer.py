"""The lightning indexer of DeepSeek sparse attention: which positions each query attends to (DeepSeek-V3.2).

Few narrow heads score every earlier position: each has queries from the queries' latent, all share one key a
token, and a weight a head, from the residual stream, sums their scores up. Queries and keys are rotated,
turned by a Hadamard transform and stored in fp8 (keys with an fp32 scale), so that serving keeps a narrow key
a token beside the latent. The `topk` positions with the highest scores are what the core reads. All tp ranks
hold the indexer whole and compute the same. Prompts are scored by one fp8 product over the positions that are
visible; while decoding, the read of all keys is what takes the time. The choice reads the scores twice.
"""

from __future__ import annotations

from msgspec import Struct

from rapid_des.device.operators import Gemm, Vector
from rapid_des.frontend.matrices import Linear, cast, column_backward, forward_gemm
from rapid_des.frontend.operations import OperatorList, Shard, launch
from rapid_des.units import ceil_divide
from rapid_des.values import replace

_SCALE_BYTES = 4


class Indexer(Struct, frozen=True):
    """`heads` query heads of `head_dim` channels that choose `topk` positions."""

    hidden: int
    query_width: int
    """Width of what queries are projected from: the queries' latent."""
    heads: int
    head_dim: int
    topk: int

    @property
    def parameters(self) -> int:
        """Projections of queries, of keys and weights, and the keys' layer norm."""
        return self._weights + 2 * self.head_dim

    @property
    def _weights(self) -> int:
        return self.query_width * self.heads * self.head_dim + self.hidden * (self.head_dim + self.heads)

    def flops(self, sequence: int) -> int:
        """Return two a weight, and two a position and channel of the queries."""
        return 2 * self._weights + 2 * sequence * self.heads * self.head_dim

    def seen(self, positions: int) -> int:
        """Return how many of this many positions a query attends to."""
        return min(positions, self.topk)

    def cache_bytes(self, positions: int) -> int:
        """Return the narrow keys and their scales."""
        return (self.head_dim + _SCALE_BYTES) * positions

    def append(self, operations: OperatorList, shard: Shard) -> None:
        """Append what makes the indexer's queries, keys and weights, and the choices of equal sequences."""
        whole, rows, columns = _whole(shard), shard.tokens, self.heads * self.head_dim
        for linear in self._projections(rows):
            cast(operations, whole, linear, rows)
            forward_gemm(operations, whole, linear, saved=0)
        key = shard.activation_bytes(rows * self.head_dim)
        norm = (rows, self.head_dim)
        launch(operations, shard, "attention.index.key_norm", ("layer_norm",), norm, output=key)
        turned = (rows, columns + self.head_dim)
        launch(operations, shard, "attention.index.rope", ("rope",), turned, output=2 * turned[0] * turned[1])
        narrow = shard.vector("quantize", rows, columns + self.head_dim)
        operations.kernel("attention.index.quantize", narrow, output=rows * (columns + self.head_dim))
        operations.kernel("attention.index.cache", Vector("kv_cache_write", rows, self.head_dim, "fp8"))
        for some in shard.of_kernels():
            self._choose(operations, some)

    def backward(self, operations: OperatorList, shard: Shard) -> None:
        """Append the gradients of the projections and the norm, of which ranks count their parameters."""
        for linear in self._projections(shard.tokens):
            column_backward(operations, _whole(shard), linear)
        norm = shard.vector("layer_norm", shard.tokens, self.head_dim, backward=True)
        operations.kernel("attention.index.key_norm", norm, parameters=2 * self.head_dim)

    def _projections(self, rows: int) -> tuple[Linear, Linear]:
        columns = self.heads * self.head_dim
        return (
            Linear("attention.index.query", columns, self.query_width, bias=False, rows=rows),
            Linear("attention.index.key", self.head_dim + self.heads, self.hidden, bias=False, rows=rows),
        )

    def _choose(self, operations: OperatorList, shard: Shard) -> None:
        """Append the scores of all visible positions, and the choice, which few positions do not need."""
        queries, keys = shard.query_length, shard.key_length
        if keys <= self.topk:
            return
        pairs = queries * keys - queries * (queries - 1) // 2
        seen = ceil_divide(pairs, queries)
        rows, size = shard.sequences * queries, 4 * shard.sequences * pairs
        name = "attention.index.scores" + ("" if shard.decodes else ".prompts")
        if shard.decodes:
            read = Vector("row_mean", shard.sequences * keys, self.head_dim, "fp8")
            operations.kernel(name, read, output=size, sees_cache=True)
        else:
            inner = self.heads * self.head_dim
            scores = Gemm(queries, seen, inner, batch=shard.sequences, dtype="fp8", out_dtype="fp32")
            operations.kernel(name, scores, output=size, sees_cache=True)
        choice = Vector("moe_topk", rows, seen, "fp32")
        operations.kernel(
            name.replace("scores", "choice"), choice, output=4 * rows * self.topk, sees_cache=True
        )


def _whole(shard: Shard) -> Shard:
    return replace(shard, tp=1, sequence_parallel=False)
