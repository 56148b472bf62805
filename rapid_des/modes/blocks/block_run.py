"""The block modes, and what a run in one of them returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from rapid_des.frontend.blocks import JobBlocks
from rapid_des.frontend.parts import PieceKey
from rapid_des.frontend.trace import JobTrace
from rapid_des.modes.blocks.inner import BlockTimes
from rapid_des.modes.blocks.steady import Repetition
from rapid_des.modes.execution import Run
from rapid_des.modes.mode_bound import UNBOUNDED, ModeBound
from rapid_des.program.collectives.plans import ServedCollective


class BlockMode(Struct, frozen=True):
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
        leaves_out="no collective or message waits for another; a large collective takes the longer of its "
        "zero-load chain and its busiest link",
    ),
)

BLOCK_MODES: Mapping[str, BlockMode] = {mode.name: mode for mode in _MODES}


class BlockRun(Struct, frozen=True):
    """A run of a block mode: the outer graph as executed, and the blocks behind its compute nodes."""

    mode: BlockMode
    blocks: JobBlocks
    slow: Mapping[int, JobBlocks]
    trace: JobTrace
    run: Run
    kinds: Sequence[bytes]
    """The kind of the inner group of each outer rank that was lowered."""
    times: Mapping[tuple[bytes, PieceKey], BlockTimes]
    wall_s: float
    repeated: Repetition | None = None
    """The stretch of the run that stands for more of the same; None: the run is the whole step."""
    bound: ModeBound = UNBOUNDED
    """The bound of the flattened step."""

    @property
    def step(self) -> int:
        """The whole step, in picoseconds."""
        return self.run.execution.records.makespan + (self.repeated.left_out if self.repeated else 0)

    @property
    def simulated_hops(self) -> int:
        """Link hops of all simulations together."""
        return self.run.execution.records.hops + sum(block.hops for block in self.times.values())

    @property
    def served(self) -> frozenset[ServedCollective]:
        """Which algorithms collectives got, inside blocks and between them."""
        return self.run.lowered.served.union(*(block.served for block in self.times.values()))

    def followed(self, rank: int) -> int:
        """Return the rank of the outer graph that does what a rank does; the rank itself if none does."""
        lowered = self.run.lowered
        present = {binding.rank for binding in lowered.program.bindings}
        group = next((group for group in self.blocks.inner_groups if rank in group), (rank,))
        while present.isdisjoint(group) and lowered.replicas is not None:
            group = tuple(lowered.replicas.image[list(group)].tolist())
            if rank in group:
                break
        return next((member for member in group if member in present), rank)
