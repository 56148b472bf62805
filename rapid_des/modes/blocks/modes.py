"""The modes that simulate blocks, and what each leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class BlockMode:
    """One mode: which half is simulated on the fabric, which is priced by closed forms."""

    name: str
    inner_analytic: bool
    outer_analytic: bool
    leaves_out: str

    @property
    def note(self) -> str:
        """What a report says of the mode."""
        return f"mode {self.name}: {self.leaves_out}"


_MODES = (
    BlockMode(
        name="hierarchical",
        inner_analytic=False,
        outer_analytic=False,
        leaves_out="each block runs alone, as if all ranks of its inner group entered it together; traffic "
        "inside blocks does not meet the traffic between them; the gradient norm is summed over one rank of "
        "each inner group",
    ),
    BlockMode(
        name="hybrid",
        inner_analytic=False,
        outer_analytic=True,
        leaves_out="as hierarchical, and messages between blocks do not wait for one another",
    ),
    BlockMode(
        name="analytical",
        inner_analytic=True,
        outer_analytic=True,
        leaves_out="no message waits for another: collectives take the longest of their zero-load chain and "
        "their busiest link",
    ),
)

BLOCK_MODES: Mapping[str, BlockMode] = {mode.name: mode for mode in _MODES}
