"""The core of attention: scores, softmax and values, as FlashAttention or as kernels of their own.

A window hides all but the latest positions, a chunk all positions before the query's own chunk. Soft-capping
of the scores happens inside the fused kernel and is not charged; unfused it is a kernel.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Unpack

from rapid_des.device.operators import Attention
from rapid_des.frontend.operations import Counts, OperationList
from rapid_des.frontend.shard import Shard
from rapid_des.frontend.spec import ParallelismSpec

CORE = "attention.core"
"""The kernel whose cost depends on the KV length."""


@dataclass(frozen=True)
class AttentionCore:
    """`heads` query heads over `kv_heads` key and value heads, on all tp ranks together."""

    heads: int
    kv_heads: int
    head_dim: int
    """Of queries and keys."""
    value_dim: int
    window: int | None = None
    """Positions that a query sees, itself the last; None: all before it."""
    chunk: int | None = None
    """Positions of a chunk, before whose start its queries see nothing; None: one chunk."""
    softcap: bool = False

    @property
    def reach(self) -> int | None:
        """The most positions that a query sees; None: no bound."""
        bounds = [bound for bound in (self.window, self.chunk) if bound is not None]
        return min(bounds, default=None)

    def seen(self, positions: int) -> int:
        """Return how many of so many positions a query sees at most."""
        return positions if self.reach is None else min(positions, self.reach)

    def latest(self, position: int) -> int:
        """Return how many positions the query at a position sees, counted from 1.

        >>> AttentionCore(1, 1, 64, 64, chunk=8).latest(11), AttentionCore(1, 1, 64, 64, window=4).latest(11)
        (3, 4)
        """
        return self.seen(position if self.chunk is None else (position - 1) % self.chunk + 1)

    def flops(self, sequence: int) -> int:
        """Return two a position, query head and channel for the scores, and two for the values."""
        return 2 * self.seen(sequence) * self.heads * (self.head_dim + self.value_dim)

    def refusal(self, split: ParallelismSpec) -> str | None:
        """Return why a job's axes can not split it."""
        tp = split.tp
        if self.heads % tp:
            return f"attention heads {self.heads} does not divide by tp {tp}"
        if self.kv_heads % tp and tp % self.kv_heads:
            return f"kv_heads {self.kv_heads} and tp {tp}: one must divide by the other"
        return None

    def local_heads(self, shard: Shard) -> int:
        """Return the query heads of a rank."""
        return self.heads // shard.tp

    def local_kv_heads(self, shard: Shard) -> int:
        """Return the key and value heads of a rank, which are copied where there are fewer than tp."""
        return max(1, self.kv_heads // shard.tp)

    def query_width(self, shard: Shard) -> int:
        """Return the columns of a rank's queries."""
        return self.local_heads(shard) * self.head_dim

    def key_width(self, shard: Shard) -> int:
        """Return the columns of a rank's keys."""
        return self.local_kv_heads(shard) * self.head_dim

    def value_width(self, shard: Shard) -> int:
        """Return the columns of a rank's values."""
        return self.local_kv_heads(shard) * self.value_dim

    def result_width(self, shard: Shard) -> int:
        """Return the columns of what a rank's core makes."""
        return self.local_heads(shard) * self.value_dim

    def kept_bytes(self, shard: Shard) -> int:
        """Return what the core keeps for its backward besides Q, K and V.

        Flash: one fp32 a query and head. Unfused: probabilities, and with dropout its mask and result:
        5·a·s²·b bytes in 16 bit (Korthikanti et al. 2022, section 4.1).
        """
        rows = shard.tokens * self.local_heads(shard)
        if shard.flash:
            return 4 * rows
        scores = rows * shard.key_length
        if shard.documents:
            squares = sum(length**2 for length in shard.documents)
            scores = shard.sequences * self.local_heads(shard) * squares
        return shard.activation_bytes(scores) * (1 + shard.dropout) + scores * shard.dropout

    def append(
        self, operations: OperationList, shard: Shard, name: str, *, backward: bool = False,
        **counts: Unpack[Counts],
    ) -> None:  # fmt: skip
        """Append the kernels of the core; the counts go to the last.

        Unlike sequences have one for all prompts, and one for what decodes. Dropout of the probabilities, and
        the cap of the scores, are kernels where attention is not fused.
        """
        *prompts, shard = shard.of_kernels(self.latest)
        for number, some in enumerate(prompts):
            self.append(operations, some, f"{name}.prompts" + f".{number}" * (number > 0), sees_cache=True)
        *early, late = self._kernels(shard, backward=backward)
        for extra, there in (("tanh", self.softcap), ("dropout", shard.dropout)):
            if there and not shard.flash:
                rows = shard.tokens * self.local_heads(shard)
                kernel = shard.vector(extra, rows, shard.key_length, backward=backward)
                operations.kernel(f"{name}.{extra}", kernel)
        for part in early:
            operations.kernel(f"{name}.early", part, sees_cache=counts.get("sees_cache", False))
        operations.kernel(name, late, **counts)

    def append_backward(self, operations: OperationList, shard: Shard, **counts: Unpack[Counts]) -> None:
        """Append the backward of the core, after the core again where that is recomputed."""
        if shard.core_again:
            self.append(operations, shard, f"{CORE}.recompute", held=self.kept_bytes(shard))
        self.append(operations, shard, CORE, backward=True, **counts)

    def _kernels(self, shard: Shard, *, backward: bool) -> tuple[Attention, ...]:
        """Return the kernels of the core.

        Where keys and values are gathered (cp) a rank holds one early and one late piece of 2·cp (so that
        causal work is alike on all ranks): two kernels. Those of rank 0 stand for all, since the visible
        pairs of piece i and piece 2·cp - 1 - i always sum to the same; with a window those of the last rank,
        which sees most.
        """
        queries, keys = shard.query_length, shard.key_length
        if shard.documents and queries > 1:
            return self._of_documents(shard, backward=backward)
        if self.chunk and keys > self.chunk:
            return self._in_chunks(shard, self.chunk, backward=backward)
        if shard.cp == 1:
            return (self._kernel(shard, queries, keys, backward=backward),)
        piece = queries // 2
        ends = (piece, keys) if self.window is None else (shard.cp * piece, (shard.cp + 1) * piece)
        return tuple(self._kernel(shard, piece, end, backward=backward) for end in ends)

    def block(self, shard: Shard, queries: int, keys: int, *, backward: bool) -> Attention:
        """Return the kernel of so many queries of each sequence that all see so many keys."""
        return replace(self._kernel(shard, queries, keys, backward=backward), causal=False)

    def diagonal(self, shard: Shard, *, backward: bool) -> Attention:
        """Return the kernel of a rank's own queries and keys."""
        return self._kernel(shard, shard.query_length, shard.query_length, backward=backward)

    def _of_documents(self, shard: Shard, *, backward: bool) -> tuple[Attention, ...]:
        """Return a kernel for each length of documents, over all of that length."""
        return tuple(
            kernel
            for length, count in sorted(Counter(shard.documents).items())
            for kernel in self._kernels(
                replace(
                    shard,
                    documents=(),
                    sequences=shard.sequences * count,
                    query_length=length,
                    key_length=length,
                ),
                backward=backward,
            )
        )

    def _in_chunks(self, shard: Shard, chunk: int, *, backward: bool) -> tuple[Attention, ...]:
        """Return a kernel over all whole chunks, and one over what is left."""
        whole, rest = divmod(shard.query_length, chunk)
        if shard.query_length < shard.key_length:
            keys = (shard.key_length - 1) % chunk + 1
            return (self._kernel(shard, min(shard.query_length, keys), keys, backward=backward),)
        full = self._kernel(shard, chunk, chunk, backward=backward, copies=whole)
        left = (self._kernel(shard, rest, rest, backward=backward),) if rest else ()
        return (full, *left)

    def _kernel(
        self, shard: Shard, query_length: int, key_length: int, *, backward: bool, copies: int = 1
    ) -> Attention:
        return Attention(
            shard.sequences * copies, query_length, key_length,
            self.local_heads(shard), self.local_kv_heads(shard), self.head_dim,
            value_dim=None if self.value_dim == self.head_dim else self.value_dim,
            phase="backward" if backward else "forward",
            window=None if self.window is None or self.window >= key_length else self.window,
            dtype=shard.precision.activations,
            kv_dtype=shard.precision.kv_cache,
            fused=shard.flash,
        )  # fmt: skip
