"""The structure that hierarchical execution needs: blocks on the inner group, and the graph around them.

The flattened trace of a training job is made of priced pieces (`parts.py`): embedding, transformer block and
head, forward and backward, and the sum of norm gradients. All their messages stay inside the inner group of a
rank (its tp, cp and ep neighbours); what joins them (pipeline messages, gradient buckets, the optimizer) does
not depend on what is inside. So the same templates give both halves of a hierarchical run:

1. `blocks(job, operators)` returns each distinct piece as a `Block`. `Block.on(ranks)` is its trace on one
   inner group; simulate that alone.
2. A block has *cuts*: rows, ascending in time, at which gradients become final, and its last row. The finish
   times of the cuts, as steps from one to the next, are the block's durations (one number where there is one
   cut). They are what the outer graph needs to start gradient buckets at the right instant.
3. `Blocks.outer(durations)` returns the pipeline and data-parallel graph with one compute node a cut, made by
   the same `stage_program` as the flattened trace. It holds one rank of each inner group (its first), because
   the others do the same beside it.

What this assumes: blocks do not overlap one another (true: each starts from the result of the one before and
ends with it on the same stream), and traffic of the outer graph does not slow that inside the blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from rapid_des.chakra.trace import NodeKind, NodeTable, TraceSet
from rapid_des.device.operators import OperatorModel
from rapid_des.errors import UnsupportedByEngine
from rapid_des.frontend.parts import PieceKey, price_steps, training_steps
from rapid_des.frontend.program import FinishedProgram, ProgramWriter
from rapid_des.frontend.resolved import Job
from rapid_des.frontend.template import PORTS, Mark, Node, Piece, make_piece
from rapid_des.frontend.trace import JobTrace, assemble, job_trace
from rapid_des.frontend.training import stage_program

INNER = ("tp", "cp", "ep")
"""The axes whose messages stand inside blocks."""

Durations = Mapping[PieceKey, Sequence[int]]
"""For each block the picoseconds from cut to cut, in the order of `Block.cuts`."""


@dataclass(frozen=True)
class Block:
    """One distinct piece of the job on an inner group."""

    job: Job
    key: PieceKey
    piece: Piece
    program: FinishedProgram
    cuts: tuple[int, ...]
    """Rows of the table, ascending; the last is the end of the block."""

    @property
    def table(self) -> NodeTable:
        """The program of each rank of the inner group."""
        return self.program.table

    def on(self, ranks: Sequence[int]) -> TraceSet:
        """Return the block's trace on the ranks of one inner group."""
        return assemble(self.job, [self.program] * self.job.stages, ranks=ranks)

    def durations(self, finish: Sequence[int]) -> tuple[int, ...]:
        """Return the steps from cut to cut, given the finish time of every row (the slowest rank's)."""
        times = [finish[cut] for cut in self.cuts]
        return tuple(later - earlier for earlier, later in pairwise([0, *times]))


@dataclass(frozen=True)
class Blocks:
    """A training job taken apart: see the module's text."""

    job: Job
    operators: OperatorModel
    blocks: Mapping[PieceKey, Block]

    @cached_property
    def inner_groups(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each inner group, ascending by first rank."""
        return self.job.layout.groups(INNER)

    def stage(self, inner_group: int) -> int:
        """Return the pipeline stage that an inner group runs."""
        return self._stages[inner_group]

    @cached_property
    def _stages(self) -> list[int]:
        stages = self.job.layout.coordinates("pp")
        return [int(stages[group[0]]) for group in self.inner_groups]

    def keys(self, stage: int) -> tuple[PieceKey, ...]:
        """Return the blocks that a stage runs."""
        absent = {"embedding"} if stage else set()
        if stage != self.job.stages - 1:
            absent.add("head")
        return tuple(key for key in self.blocks if key.stage in {-1, stage} and key.section not in absent)

    def outer(self, durations: Sequence[Durations]) -> JobTrace:
        """Return the graph around the blocks, one rank (the first) of each inner group.

        `durations` are given for each stage. Where inner groups of one stage differ (faults), build one
        graph a distinct set and take the tables from each.
        """
        return self.assembled([self.outer_program(stage, own) for stage, own in enumerate(durations)])

    def assembled(self, programs: Sequence[FinishedProgram], place: int = 0) -> JobTrace:
        """Return the outer graph of one program a stage, on the ranks at one place of each inner group."""
        return job_trace(self.job, programs, ranks=[group[place] for group in self.inner_groups])

    def outer_program(self, stage: int, durations: Durations) -> FinishedProgram:
        """Return the program of one stage's ranks with its blocks as compute nodes."""
        pieces = {key: _timed(block, durations.get(key)) for key, block in self.blocks.items()}
        return stage_program(self.job, pieces, stage, self.operators)


def blocks(job: Job, operators: OperatorModel) -> Blocks:
    """Return a training job as blocks and what joins them; inference has no such structure to gain from."""
    if job.spec.phase != "training":
        raise UnsupportedByEngine(
            f"{job.file}: phase: only training is taken apart into blocks; run it flattened"
        )
    pieces = price_steps(training_steps(job), operators)
    return Blocks(job, operators, {key: _block(job, key, piece) for key, piece in pieces.items()})


def _block(job: Job, key: PieceKey, piece: Piece) -> Block:
    program = ProgramWriter()
    program.writer.place(piece, {})
    cuts = sorted({mark.position for mark in piece.marks} | {piece.output})
    return Block(job, key, piece, program.finish(), tuple(cuts))


def _timed(block: Block, durations: Sequence[int] | None) -> Piece:
    """Return a block as a chain of compute nodes; a block that a stage does not run may lack durations."""
    times = [0] * len(block.cuts) if durations is None else list(durations)
    assert len(times) == len(block.cuts)
    stream = "tp" if block.key.section == "norms" else "compute"
    nodes = [
        Node(
            block.key.section,
            NodeKind.COMPUTE,
            stream,
            (index - 1,) if index else PORTS,
            duration=time,
        )
        for index, time in enumerate(times)
    ]
    positions = {cut: index for index, cut in enumerate(block.cuts)}
    marks = [Mark(positions[mark.position], mark.parameters) for mark in block.piece.marks]
    return make_piece(nodes, marks=marks)
