"""What one rank sees of a pass: dimensions, formats and settings that every operator list is made from."""

from __future__ import annotations

from dataclasses import dataclass

from rapid_des.device.operators import Dtype, Gemm, Vector
from rapid_des.device.vector.kinds import Policy
from rapid_des.frontend.spec import ModelSpec, PrecisionSpec, Recompute
from rapid_des.frontend.traffic import TRAFFIC, byte_count, message_size
from rapid_des.units import ceil_divide


@dataclass(frozen=True)
class Shard:
    """One rank's share of one pass of `sequences` sequences; layer kinds add dimensions of their own."""

    model: ModelSpec
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
    recompute: Recompute = "none"
    serving: bool = False
    """Whether the pass keeps what later tokens need in a cache."""

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
        return self.model.hidden

    @property
    def boundary_bytes(self) -> int:
        """Bytes of the tensor between two layers."""
        return self.activation_bytes(self.norm_tokens * self.hidden)

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

    def message(self, role: str, elements: int, dtype: str | None = None) -> int:
        """Return the comm_size of a message inside the tp (or cp) group."""
        members = self.cp if TRAFFIC[role].group == "cp" else self.tp
        return message_size(role, elements, dtype or self.precision.activations, members)
