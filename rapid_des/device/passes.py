"""What a pass of a small kernel over its tensors moves and computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Traffic:
    """One pass of a kernel, an element of its result.

    `reads` and `writes` count elements of the operator's dtype; `read_bytes` and `write_bytes` are in other
    formats (fp32 states, masks, indices). `row_reads` says how often a row is read: above 1 the later
    readings find it in L1 or L2, unless the rows in flight are too many.
    """

    reads: float
    writes: float
    flops: float
    read_bytes: float = 0.0
    write_bytes: float = 0.0
    row_reads: int = 1

    def bytes_per_element(self, width: float) -> float:
        """Return what an element moves in all, in bytes."""
        return (self.reads + self.writes) * width + self.read_bytes + self.write_bytes


@dataclass(frozen=True, slots=True)
class VectorKind:
    """A kernel: `map` splits the elements evenly, `rows` gives each row a thread block."""

    summary: str
    pattern: Literal["map", "rows"]
    forward: Traffic
    backward: Traffic | None = None
    kernels: int = 1
    """Launches of the forward pass (two-stage reductions have two)."""


def over_elements(
    summary: str, forward: Traffic, backward: Traffic | None = None, kernels: int = 1
) -> VectorKind:
    """Return a kernel that splits its elements evenly."""
    return VectorKind(summary, "map", forward, backward, kernels)


def by_rows(summary: str, forward: Traffic, backward: Traffic | None = None) -> VectorKind:
    """Return a kernel that gives each row a thread block."""
    return VectorKind(summary, "rows", forward, backward)
