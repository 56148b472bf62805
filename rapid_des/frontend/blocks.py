"""The structure that hierarchical execution needs: blocks on the inner group, and the graph around them.

The flattened trace of a job is made of priced pieces (`parts.py`, `inference.py`): embedding, transformer
block and head, forward and backward or pass by pass, and the sum of norm gradients. Their messages stay
inside the inner group of a rank (its tp neighbours, and its cp neighbours where keys and values go round
them), but for other exchanges of context and expert parallelism, which stand between two stretches of a
block. Where ranks go on beside exchanges of tokens among experts, or compute unlike many, these are inside
too: all ranks of the layer's experts run a block together, and the slowest says when its cuts are passed.
What joins the pieces (pipeline messages, gradient buckets, the optimizer) does not depend on what is
inside. So the same templates give both halves of a hierarchical run:

1. `blocks(job, operators)` returns each distinct piece as a `PipelineBlock`. `PipelineBlock.on(ranks)` is its
   trace on one inner group, exchanges taking no time; simulate that alone.
2. A block has *cuts*: rows, ascending in time, at which gradients become final or an exchange stands, and
   its last row. The finish times of the cuts, as steps from one to the next, are the block's durations (one
   number where there is one cut): what the outer graph needs to start messages at the right instant.
3. `JobBlocks.outer(durations)` returns the pipeline, context- and data-parallel graph with one compute node a
   cut, made by the same `stage_program` or `serving_program` as the flattened trace. It holds one rank of
   each tp group (its first), because the others do the same beside it, or all where experts are split
   otherwise.

What this assumes: blocks do not overlap one another, and traffic of the outer graph does not slow messages
inside the blocks (their kernels it does slow, by what bounds them). The first is true but for messages at a
block's end, beside which another micro-batch computes: they stand on the tp stream of the outer graph, and
the first messages of blocks that follow wait there.

A host that issues the job runs through the outer graph; a block is run twice, all issued and on an idle GPU
that waits for its host, and passes its cuts at the later of both, each from where its GPU or its host begins
with it. That is exact for a chain of kernels; of one whose messages overlap others it leaves out what a late
host moves within the block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import cast

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.chakra.trace import UNSTATED, NodeKind, NodeTable, TraceSet
from rapid_des.device.operators import OperatorModel
from rapid_des.errors import UnsupportedByEngine
from rapid_des.frontend.block_slices import exchanges_each_micro_batch, slices
from rapid_des.frontend.build import PricedJob, price_job
from rapid_des.frontend.groups import GROUP_SLOTS, GROUPS
from rapid_des.frontend.inference import ServingPass, pass_key, passes
from rapid_des.frontend.job import Job
from rapid_des.frontend.parts import HEAD, NORMS, PieceKey, stage_sections
from rapid_des.frontend.schedules.schedule import PassKind
from rapid_des.frontend.template import (
    PORTS,
    STREAMS,
    PieceColumn,
    PieceNode,
    PricedPiece,
    make_piece,
    retimed,
)
from rapid_des.frontend.trace import FinishedProgram, JobTrace, ProgramWriter, Segment, assemble
from rapid_des.values import replace

Groups = tuple[tuple[int, ...], ...]


def inner_axes(job: Job, *, exchanges: bool) -> frozenset[str]:
    """Return the axes whose messages stand inside blocks; with `exchanges` those among experts too.

    Ranks that share experts are inside where they are of one tp group.
    """
    axes = {"tp", "cp"} if job.spec.parallelism.passes_blocks else {"tp"}
    if exchanges:
        return frozenset(axes | {"etp", "ep"})
    of_tp = job.layout.group_numbers(("tp",))[job.expert_layout.rows(("etp",))]
    return frozenset(axes | {"etp"} if (of_tp == of_tp[:, :1]).all() else axes)


def followed_groups(job: Job) -> Groups:
    """Return groups of ranks of which the graph around blocks follows one each, ascending by first rank.

    Ranks of a tp group do the same there, unless experts are split otherwise than all else.
    """
    alike = not job.model.has_experts or job.spec.parallelism.expert_degree == job.members("tp")
    return job.layout.groups(("tp",)) if alike else tuple((rank,) for rank in range(job.gpus))


def groups_run_together(job: Job, axes: frozenset[str]) -> Groups:
    """Return for each rank those whose messages inside blocks are with it, or with each other, ascending."""
    dense = tuple(axis for axis in job.layout.axes if axis in axes)
    tables = [job.layout.rows(dense)]
    if job.model.has_experts:
        tables.append(job.expert_layout.rows(tuple(axes & {"etp", "ep"})))
    return _joined(job.gpus, tables)


def _joined(ranks: int, tables: Sequence[Int64s]) -> Groups:
    """Return for each rank all that groups of the tables join to it, step by step."""
    first = np.arange(ranks)
    while True:
        before = first.copy()
        for table in tables:
            first[table] = first[table].min(axis=1, keepdims=True)
        if np.array_equal(before, first):
            break
    order = np.argsort(first, kind="stable")
    bounds = np.flatnonzero(np.diff(first[order], prepend=-1, append=-1)).tolist()
    members = order.tolist()
    return _of_each(ranks, (tuple(members[begin:end]) for begin, end in pairwise(bounds)))


def _of_each(ranks: int, groups: Iterable[tuple[int, ...]]) -> Groups:
    group_of = {rank: group for group in groups for rank in group}
    return tuple(group_of[rank] for rank in range(ranks))


OUTER_LINES = (("cp",), ("cp", "dp"), ("pp",))
"""The axes along which ranks exchange data outside blocks; cp alone unless blocks contain its messages."""
EXPERT_LINES = (("etp",), ("ep",), ("edp",))
"""The axes of the experts' layout along which ranks exchange data outside blocks."""


class Cuts(Struct, frozen=True):
    """When a block passes its cuts, in picoseconds and in the order of `PipelineBlock.cuts`.

    Where a host issues the block, it passes a cut no earlier than on an idle GPU that it enters when the host
    begins with it.
    """

    steps: tuple[int, ...]
    """Picoseconds from each cut to the next, when all kernels have been issued beforehand."""
    issued: tuple[int, ...] = ()
    """Picoseconds from when the host starts issuing the block to each cut; empty: all is issued at once."""

    @classmethod
    def of(cls, passed: Sequence[int], issued: Sequence[int] = ()) -> Cuts:
        """Return the cuts from their times since the start of the block, in picoseconds.

        >>> Cuts.of([5, 7]).steps
        (5, 2)
        """
        return cls(tuple(later - earlier for earlier, later in pairwise([0, *passed])), tuple(issued))


Durations = Mapping[PieceKey, Cuts]
"""The cuts of each block."""


class PipelineBlock(Struct, frozen=True):
    """One distinct piece of the job on an inner group."""

    job: Job
    key: PieceKey
    piece: PricedPiece
    """The priced operator list, of ranks at the first place along ep."""
    programs: tuple[FinishedProgram, ...]
    """One program for each place along ep if experts' loads differ; else one for all ranks."""
    cuts: tuple[int, ...]
    """Rows of the table, ascending; the last is the end of the block."""
    exchanges: frozenset[int]
    """The cuts at which an exchange with other inner groups happens."""
    tail: bool
    """Whether only messages follow the last cut but one, so that other blocks may compute beside them."""
    gate: int | None
    """The cut after which the first message may have to wait for messages of another block's tail; None:
    none."""
    hosted: tuple[FinishedProgram, ...]
    """The programs with a host node that issues kernels one by one; empty: no host is modelled."""

    @property
    def table(self) -> NodeTable:
        """The program of each rank of the inner group, or of the first."""
        return self.programs[0].table

    def on(self, ranks: Sequence[int], *, hosted: bool = False) -> TraceSet:
        """Return the block's trace on the ranks of one inner group, all issued or `hosted`."""
        programs = self.hosted if hosted else self.programs
        each = [program for program in programs for _ in range(self.job.stages)]
        return assemble(self.job, each, ranks=ranks)

    def passed(self, finish: Sequence[int], *, hosted: bool = False) -> tuple[int, ...]:
        """Return when the cuts are passed, given the finish of every row of `on` (the slowest rank's)."""
        return tuple(finish[cut + hosted] for cut in self.cuts)


class JobBlocks(Struct, frozen=True, eq=False, dict=True):
    """A job divided into blocks and an outer graph; see the module. Compares by identity."""

    priced: PricedJob
    blocks: Mapping[PieceKey, PipelineBlock]
    inside: frozenset[str]
    """The axes whose messages stand inside blocks."""

    @property
    def job(self) -> Job:
        """The job."""
        return self.priced.job

    @cached_property
    def inner_groups(self) -> tuple[tuple[int, ...], ...]:
        """Groups of ranks, ascending by first rank; the outer graph holds one rank of each."""
        return followed_groups(self.job)

    @cached_property
    def run_groups(self) -> tuple[tuple[int, ...], ...]:
        """The ranks on which the blocks of each inner group are simulated."""
        together = groups_run_together(self.job, self.inside)
        return tuple(together[group[0]] for group in self.inner_groups)

    def of(self, job: Job) -> JobBlocks:
        """Return the same blocks for a job that repeats them another number of times."""
        return replace(self, priced=replace(self.priced, job=job))

    def stage(self, inner_group: int) -> int:
        """Return the pipeline stage that an inner group runs."""
        return self._stages[inner_group]

    @cached_property
    def _stages(self) -> list[int]:
        stages = self.job.layout.coordinates("pp")
        return [int(stages[group[0]]) for group in self.inner_groups]

    def keys(self, stage: int) -> tuple[PieceKey, ...]:
        """Return the blocks that a stage runs."""
        return self._keys[stage]

    @cached_property
    def _keys(self) -> list[tuple[PieceKey, ...]]:
        present = [stage_sections(self.job, stage) for stage in range(self.job.stages)]
        phases = {"forward"} if self.priced.serves else self.job.stage_orders.phases
        return [
            tuple(
                key
                for key in self.blocks
                if key.stage == stage or (key.section in here and key.phase in phases)
            )
            for stage, here in enumerate(present)
        ]

    def outer(self, durations: Sequence[Durations]) -> JobTrace:
        """Return the graph around the blocks, one rank (the first) of each inner group.

        `durations` are given for each stage. Where inner groups of one stage differ (faults), build one
        graph a distinct set and take the tables from each.
        """
        return self.assembled([self.outer_program(stage, times) for stage, times in enumerate(durations)])

    def assembled(self, programs: Sequence[FinishedProgram], place: int = 0) -> JobTrace:
        """Return the outer graph, one program per stage, for one rank of each inner group."""
        return self.priced.trace(programs, ranks=[group[place] for group in self.inner_groups])

    def outer_program(self, stage: int, durations: Durations) -> FinishedProgram:
        """Return the program of one stage's ranks with its blocks as compute nodes."""
        pieces = {key: _timed(block, durations.get(key)) for key, block in self.blocks.items()}
        return self.priced.program(stage, {**self.priced.pieces, **pieces})

    def uses(self, stage: int, segment: Segment) -> Counter[PieceKey]:
        """Return how often a segment of a stage's program runs each block."""
        if segment.name == "optimizer":
            norms = PieceKey(NORMS, "backward", stage)
            return Counter([norms] if norms in self.blocks else [])
        placed = self.priced.sections[self.job.placement[stage][segment.chunk]].items()
        if self.priced.serves:
            current = self._passes[segment.step]
            keys = {pass_key(each, current): count for each, count in placed}
        else:
            keys = {PieceKey(each, cast("PassKind", segment.name)): count for each, count in placed}
        return Counter({key: count for key, count in keys.items() if key in self.blocks})

    @cached_property
    def _passes(self) -> dict[int, ServingPass]:
        return {current.step: current for current in passes(self.job)}


def blocks(job: Job, operators: OperatorModel, *, decode_operators: OperatorModel | None = None) -> JobBlocks:
    """Return a job as blocks and what joins them; `decode_operators` as in `build`.

    `UnsupportedByEngine` where something goes on beside an exchange other than of tokens among experts, or
    where such exchanges are inside blocks and the other batch should compute beside them.
    """
    if job.host is not None and job.host.blocking:
        raise UnsupportedByEngine(
            f"{job.file}: host.blocking leaves nothing of a rank beside anything else, which blocks do not "
            "model: use --mode flattened"
        )
    priced = price_job(job, operators, decode_operators)
    inside = inner_axes(job, exchanges=len(priced.places) > 1 or _goes_on_beside_experts(priced))
    if "ep" in inside and _pairs_batches(job):
        raise UnsupportedByEngine(
            f"{job.file}: ranks of unlike load, or that compute beside their own exchanges (routing), run "
            "blocks together and alone, which leaves no exchange to the other batch (training.schedule, "
            "training.overlap_batches): use --mode flattened"
        )
    used = [key for key, piece in priced.pieces.items() if len(piece)]
    pieces = {key: [of_place[key] for of_place in priced.places] for key in used}
    return JobBlocks(priced, {key: _block(job, key, each, inside) for key, each in pieces.items()}, inside)


def _pairs_batches(job: Job) -> bool:
    """Return whether some forward runs beside a backward of another micro-batch."""
    training = job.spec.phase == "training"
    return training and any(item.paired for order in job.stage_orders.orders for item in order)


def _goes_on_beside_experts(priced: PricedJob) -> bool:
    """Return whether a rank computes while tokens travel to experts, or back."""
    groups = [GROUP_SLOTS.index(name) for name in ("ep", "experts")]
    return any(
        not separates(piece, row)
        for piece in priced.pieces.values()
        for row in np.flatnonzero(np.isin(piece.rows[:, PieceColumn.GROUP], groups)).tolist()
    )


def _block(job: Job, key: PieceKey, places: Sequence[PricedPiece], inside: frozenset[str]) -> PipelineBlock:
    piece = places[0]
    outward = [bool(set(GROUPS[name]) - inside) for name in GROUP_SLOTS]
    exchanges = np.flatnonzero(np.array([*outward, False])[piece.rows[:, PieceColumn.GROUP]])
    for row in exchanges.tolist():
        if not separates(piece, row):
            name = piece.names[int(piece.rows[row, PieceColumn.NAME])]
            raise UnsupportedByEngine(
                f"{job.file}: a rank goes on beside {name}, which leaves its block; hierarchical execution "
                "needs such exchanges by themselves: use --mode flattened"
            )
    programs, hosted = [], []
    for of_place in places:
        alone = retimed(of_place, exchanges, _NO_TIME)
        program = ProgramWriter()
        program.writer.place(alone, {})
        programs.append(program.finish())
        issued = ProgramWriter(job.host)
        issued.issuing()
        issued.writer.place(alone, {})
        hosted.append(issued)
    issues = job.host is not None and piece.rows[:, PieceColumn.ISSUE].any()
    cuts = {mark.position for mark in piece.marks} | {piece.output} | set(exchanges.tolist())
    computes = np.flatnonzero(piece.rows[:, PieceColumn.KIND] == NodeKind.COMPUTE)
    tail = piece.output not in computes
    cuts.update(computes[-1:].tolist() if tail else ())
    gate = _gate(job, key, piece)
    cut = tuple(sorted(cuts if gate is None else cuts | {gate}))
    return PipelineBlock(
        job,
        key,
        piece,
        tuple(programs),
        cut,
        frozenset(exchanges.tolist()),
        tail,
        gate,
        tuple(issuer.finish() for issuer in hosted) if issues else (),
    )


def _gate(job: Job, key: PieceKey, piece: PricedPiece) -> int | None:
    """Return the row before a block's first message, if another micro-batch may still send before it."""
    inner = piece.rows[:, PieceColumn.GROUP] == GROUP_SLOTS.index("tp")
    if job.spec.training is None or not inner.any():
        return None
    begins = key.phase == "forward" or key.section == HEAD  # behind a head, whose last messages still go
    if job.stages == 1 and (job.schedule.backward_follows_loss or not begins):
        return None
    row = int(np.flatnonzero(inner)[0])
    before = max(piece.edges.by_row()[row])
    return before if before >= 0 else None


_NO_TIME = {
    PieceColumn.KIND: int(NodeKind.COMPUTE),
    PieceColumn.STREAM: STREAMS.index("compute"),
    PieceColumn.DURATION: 0,
    PieceColumn.SIZE: 0,
    PieceColumn.COLLECTIVE: UNSTATED,
    PieceColumn.GROUP: UNSTATED,
}
"""Columns of the row that replaces an exchange while its block is simulated alone."""


def separates(piece: PricedPiece, row: int) -> bool:
    """Return whether all rows before `row` end before it starts, and all after it start when it has ended."""
    before = [set(targets) for targets in piece.edges.by_row()]
    streams = piece.rows[:, PieceColumn.STREAM].tolist()
    newest: dict[int, int] = {}
    for position, stream in enumerate(streams):
        if stream in newest:
            before[position].add(newest[stream])
        newest[stream] = position
    needed, waits = {row}, {row}
    for position in range(row, -1, -1):
        if position in needed:
            needed |= before[position]
    for position in range(row + 1, len(piece)):
        if before[position] & waits:
            waits.add(position)
    return needed >= set(range(row)) and waits == set(range(row, len(piece)))


def _timed(block: PipelineBlock, cuts: Cuts | None) -> PricedPiece:
    """Return a block as a chain of compute nodes and exchanges; without cuts none takes time."""
    times = Cuts((0,) * len(block.cuts)) if cuts is None else cuts
    nodes: list[PieceNode] = []
    positions: dict[int, int] = {}
    begin, in_order = 0, exchanges_each_micro_batch(block.job)
    for cut, time, (issue, lead) in zip(block.cuts, times.steps, _issues(block, times), strict=True):
        stream = "tp" if block.tail and cut == block.cuts[-1] else "compute"
        node = PieceNode(block.key.section.name, NodeKind.COMPUTE, stream, (), issue=issue, lead=lead)
        end = cut + 1 if block.job.spec.training else begin  # nothing travels beside what infers
        rows = block.piece.rows[begin:end]
        for part in slices(rows, time, in_order=in_order):
            after = (len(nodes) - 1,) if nodes else PORTS
            nodes.append(replace(node, after=after, **part))
            # the next part is issued with the first, and starts this much later
            node = replace(node, issue=0, lead=node.lead - part["duration"])
        begin = cut + 1
        positions[cut] = len(nodes) - 1
        if cut == block.gate and cut != block.cuts[-1]:
            nodes.append(
                PieceNode(block.key.section.name, NodeKind.COMPUTE, "tp", (len(nodes) - 1,), duration=0)
            )
        if cut in block.exchanges:
            nodes.append(_exchange(block.piece, cut, after=len(nodes) - 1))
    marks = [mark.at(positions[mark.position]) for mark in block.piece.marks]
    return make_piece(nodes, marks=marks, cache_rows=range(len(nodes)))


def _issues(block: PipelineBlock, cuts: Cuts) -> Iterator[tuple[int, int]]:
    """Yield for each cut the time to issue its rows, and the lead of its node, in picoseconds.

    The node of a cut starts no earlier than its step before the moment at which a host-bound block passes it:
    with h the issues until there and all times from the host's beginning with the block, at passed - step =
    h - (h + step - passed), the bracket being its lead.
    """
    # Issue time of all rows up to and with each cut.
    needed = np.add.accumulate(block.piece.rows[:, PieceColumn.ISSUE])[list(block.cuts)].tolist()
    passed = cuts.issued or tuple(accumulate(cuts.steps))
    for before, until, step, moment in zip([0, *needed], needed, cuts.steps, passed, strict=False):
        yield until - before, until + step - moment


def _exchange(piece: PricedPiece, row: int, *, after: int) -> PieceNode:
    values = dict(zip(PieceColumn, piece.rows[row].tolist(), strict=True))
    return PieceNode(
        piece.names[values[PieceColumn.NAME]],
        NodeKind.COLLECTIVE,
        STREAMS[values[PieceColumn.STREAM]],
        (after,),
        size=values[PieceColumn.SIZE],
        collective=values[PieceColumn.COLLECTIVE],
        group=values[PieceColumn.GROUP],
        tag=values[PieceColumn.TAG],
    )
