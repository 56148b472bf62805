"""One rank's part of the model: the dimensions that its operators have."""

from __future__ import annotations

from dataclasses import dataclass

from rapid_des.device.fusion import Policy
from rapid_des.device.operators import Attention, Dtype, Gemm, Vector
from rapid_des.frontend.job import PrecisionSpec
from rapid_des.frontend.model import Model
from rapid_des.frontend.traffic import TRAFFIC, byte_count, message_size
from rapid_des.units import ceil_divide


@dataclass(frozen=True)
class Shard:
    """Dimensions of one rank's operators in one pass of `sequences` sequences."""

    model: Model
    precision: PrecisionSpec
    fusion: Policy
    tp: int
    sequence_parallel: bool
    sequences: int
    query_length: int
    """Positions of a sequence on this rank."""
    key_length: int
    """Positions that the last of them attends to."""
    vocabulary: int
    """Padded, whole."""
    cp: int = 1
    flash: bool = True
    dropout: bool = False

    @property
    def tokens(self) -> int:
        """Positions in a tensor that is whole along the sequence."""
        return self.sequences * self.query_length

    @property
    def norm_tokens(self) -> int:
        """Positions in a tensor between blocks: a tp-th with sequence parallel."""
        return ceil_divide(self.tokens, self.tp) if self.sequence_parallel else self.tokens

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.model.spec.hidden

    @property
    def heads(self) -> int:
        """Query heads of this rank."""
        return self.model.spec.attention.heads // self.tp

    @property
    def kv_heads(self) -> int:
        """Key and value heads of this rank; replicated where there are fewer than tp."""
        return max(1, self.model.kv_heads // self.tp)

    @property
    def query_width(self) -> int:
        """Width of this rank's queries and attention output."""
        return self.heads * self.model.head_dim

    @property
    def kv_width(self) -> int:
        """Width of this rank's keys (and of its values)."""
        return self.kv_heads * self.model.head_dim

    @property
    def qkv_width(self) -> int:
        """Width of the fused query, key and value projection."""
        return self.query_width + 2 * self.kv_width

    @property
    def inner(self) -> int:
        """Width between the two feed-forward matrices."""
        return self.model.spec.feed_forward.hidden // self.tp

    @property
    def inner_in(self) -> int:
        """Output width of the first feed-forward matrix: gate and up side by side."""
        return self.inner * (2 if self.model.gated else 1)

    @property
    def vocabulary_part(self) -> int:
        """Rows of the token table on this rank."""
        return self.vocabulary // self.tp

    @property
    def gemm_dtype(self) -> Dtype:
        """Format in which matrices multiply."""
        return self.precision.gemm or self.precision.activations

    def activation_bytes(self, elements: int) -> int:
        """Return the bytes of so many activations."""
        return byte_count(elements, self.precision.activations)

    def vector(self, kind: str, rows: int, columns: int, *, backward: bool = False) -> Vector:
        """Return a small kernel on activations."""
        return Vector(kind, rows, columns, self.precision.activations, "backward" if backward else "forward")

    def gemm(self, rows: int, columns: int, inner: int, *, narrow: bool) -> Gemm:
        """Return a GEMM with a weight as its second operand, in the job's GEMM format if `narrow`."""
        activations, weights = self.precision.activations, self.precision.weights
        if not narrow:
            return Gemm(rows, columns, inner, dtype=activations)
        quantized = weights if weights != self.gemm_dtype else None
        return Gemm(
            rows, columns, inner, dtype=self.gemm_dtype, out_dtype=activations, weight_dtype=quantized
        )

    def attention(self, *, backward: bool = False) -> tuple[Attention, ...]:
        """Return the kernels of the attention core.

        With context parallelism a rank holds one early and one late piece of 2·cp (so that causal work is
        alike on all ranks): two kernels. Those of rank 0 stand for all, since the visible pairs of piece i
        and piece 2·cp - 1 - i always sum to the same.
        """
        if self.cp == 1:
            return (self._core(self.query_length, self.key_length, backward=backward),)
        piece = self.query_length // 2
        return tuple(self._core(piece, keys, backward=backward) for keys in (piece, self.key_length))

    def _core(self, query_length: int, key_length: int, *, backward: bool) -> Attention:
        return Attention(
            self.sequences, query_length, key_length, self.heads, self.kv_heads, self.model.head_dim,
            phase="backward" if backward else "forward",
            dtype=self.precision.activations,
            kv_dtype=self.precision.kv_cache,
            fused=self.flash,
        )  # fmt: skip

    def message(self, role: str, elements: int, dtype: str | None = None) -> int:
        """Return the comm_size of a message inside the tp (or cp) group."""
        members = self.cp if TRAFFIC[role].group == "cp" else self.tp
        return message_size(role, elements, dtype or self.precision.activations, members)
