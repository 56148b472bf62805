"""From placed pieces to a trace of all ranks: a program a stage, shared tables, groups and peers by rank."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
from msgspec import Struct, field

from rapid_des.arrays import Int64s, distinct
from rapid_des.chakra.trace import UNSTATED, NodeKind, NodeTable, RankTrace, TraceSet
from rapid_des.device.operators import Dtype, HostWork, Operator, OperatorModel
from rapid_des.frontend.blocking import blocking
from rapid_des.frontend.groups import GROUP_SLOTS, PEERS
from rapid_des.frontend.job import Job
from rapid_des.frontend.parts import kernel_node, message_node
from rapid_des.frontend.routing import exchanges, libraries_json, place_of_ranks
from rapid_des.frontend.software import HostSpec
from rapid_des.frontend.template import STREAM_KINDS, PieceColumn, PieceNode, SectionName, Writer
from rapid_des.values import replace

_STAGES = GROUP_SLOTS.index("stages")
_OF_HOST = {"to_host": "to-host", "from_host": "from-host", "memory": "host-optimizer"}
"""The streams of the host's operations."""


class Segment(Struct, frozen=True):
    """A stretch of one table that belongs together, for reports: rows start to stop."""

    name: str
    start: int
    stop: int
    micro_batch: int = 0
    chunk: int = 0
    step: int = 0
    """Inference: 0 is the prefill, 1 the first decode step."""
    kv_length: int = 0
    """Inference: number of positions that the last token of the pass attends to."""


class FinishedProgram(Struct, frozen=True):
    """A rank's table, the process groups behind its slots, and its segments."""

    table: NodeTable
    groups: tuple[str, ...]
    peers: tuple[tuple[str, int], ...]
    """The peer of each slot for sends and receives: one of `PEERS`, or ("stage", number)."""
    segments: tuple[Segment, ...]


class ProgramWriter(Struct):
    """Collects one rank's program in order."""

    host: HostSpec | None = None
    """The host that issues what is appended; None: issuing is free."""
    batched: bool = False
    """Whether messages between stages go through the communicator of all stages."""
    apart: int | None = None
    """A stage whose messages do not wait for those of other stages; None: there is none."""
    writer: Writer = field(default_factory=Writer)
    segments: list[Segment] = field(default_factory=list)
    _numbers: dict[Hashable, int] = field(default_factory=dict)
    """The numbers of nodes that may be appended again, by their content."""

    def __len__(self) -> int:
        return len(self.writer)

    def issuing(self, *, first: int = 0, after: Sequence[int] = ()) -> int:
        """Have the host issue what follows, from `first` picoseconds after given positions have ended.

        Return the position of its wait, -1 where no host issues anything.
        """
        if self.host is None:
            return -1
        return self.writer.append_made(self._made(_issuing, first), after)

    def kernel(self, name: str, operator: Operator, operators: OperatorModel, *, after: Sequence[int]) -> int:
        """Append one kernel that waits for given positions; return its own."""
        return self.writer.append(kernel_node(name, operator, operators, (), self.host), after)

    def send(self, name: str, *, to: int, size: int, tag: int, after: int) -> int:
        """Append a send to another stage; return its position."""
        made = self._made(self._between_stages, name, NodeKind.SEND, to, size)
        return self.writer.append_made(made, (after,), tag=tag)

    def receive(self, name: str, *, source: int, size: int, tag: int, after: Sequence[int] = ()) -> int:
        """Append a receive from another stage, asked for after given positions; return its own."""
        made = self._made(self._between_stages, name, NodeKind.RECV, source, size)
        return self.writer.append_made(made, after, tag=tag)

    def _between_stages(self, name: str, kind: NodeKind, stage: int, size: int) -> PieceNode:
        stream = "pp-send" if kind is NodeKind.SEND else "pp-recv"
        return PieceNode(
            name,
            kind,
            f"{stream}-next" if stage == self.apart else stream,
            (),
            size=size,
            group=_STAGES if self.batched else UNSTATED,
            peer=len(PEERS) + stage,
            issue=0 if self.host is None else int(self.host.collective),
        )

    def _made(self, make: Callable[..., PieceNode], *what: Hashable) -> int:
        """Return the number of the node that `make` makes, cached by content: a step has many equal nodes."""
        if (make, what) not in self._numbers:
            self._numbers[make, what] = self.writer.make(make(*what))
        return self._numbers[make, what]

    def message(  # noqa: PLR0913 - a message, and whose
        self,
        name: str,
        role: str,
        size: int,
        *,
        after: Sequence[int],
        group: str | None = None,
        parts: int = 0,
    ) -> int:
        """Append a collective of the role's group, or of another; return its position.

        `parts`: of how many replicas' parts, which the host may have to copy one by one.
        """
        return self.writer.append_made(self._made(self._collective, name, role, size, group, parts), after)

    def _collective(self, name: str, role: str, size: int, group: str | None, parts: int) -> PieceNode:
        node = message_node(name, role, size, (), self.host, group=group)
        if self.host is None or not parts:
            return node
        return replace(node, issue=node.issue + self.host.of_list(parts))

    def with_host(self, name: str, work: HostWork, operators: OperatorModel, *, after: Sequence[int]) -> int:
        """Append what the GPU and its host do for each other, on a stream of its own; return its position."""
        duration, issue = operators.estimate(work).duration, 0 if self.host is None else int(self.host.kernel)
        node = PieceNode(name, NodeKind.COMPUTE, _OF_HOST[work.what], (), duration=duration, issue=issue)
        return self.writer.append(node, after)

    def segment(self, name: str, start: int, **what: int) -> None:
        """Close a segment that began at row `start`."""
        self.segments.append(Segment(name, start, len(self.writer), **what))

    def finish(self) -> FinishedProgram:
        """Return the table with only the groups and peers that it uses."""
        table, segments = self.writer.table_rows(), self.segments
        if self.host is not None and self.host.blocking:
            table, places = blocking(table, self.writer.name("launch"))
            segments = [
                replace(each, start=int(places[each.start]), stop=int(places[each.stop])) for each in segments
            ]
        groups, group_slots = _used(table.rows[:, PieceColumn.GROUP])
        peers, peer_slots = _used(table.rows[:, PieceColumn.PEER])
        return FinishedProgram(
            self.writer.table(table, group_slots, peer_slots),
            tuple(GROUP_SLOTS[slot] for slot in groups),
            tuple(PEERS[slot] if slot < len(PEERS) else ("stage", slot - len(PEERS)) for slot in peers),
            tuple(segments),
        )


def _issuing(first: int) -> PieceNode:
    return PieceNode("host", NodeKind.COMPUTE, "host", (), duration=0, issue=first)


def _used(column: Int64s) -> tuple[list[int], Int64s]:
    """Return which slots a column uses, and each slot's number among them (-1: it has none)."""
    used = distinct(column[column >= 0])
    # A lookup table: slot -> its number among the used slots.
    numbers = np.full(int(used.max(initial=0)) + 1, -1, np.int64)
    numbers[used] = np.arange(len(used))
    return used.tolist(), numbers


class PricedOperator(Struct, frozen=True):
    """One kernel of a job as it was priced, the same in all layers of a kind and all micro-batches."""

    name: str
    """Name as in traces, without the layer: `forward.attention.core`."""
    section: SectionName
    """The section of the model, or `optimizer`."""
    kind: int
    """The index of a block's layer kind in the model."""
    stage: int
    """The pipeline stage where stages differ; -1: the same in all."""
    step: int
    """Serving: 0 is the prefill, else the (first) decode step."""
    duration: int
    """Duration in picoseconds."""
    flops: int
    arithmetic: Dtype
    """The number format of its arithmetic."""
    bytes: Mapping[str, int]
    """Bytes moved at each memory level: hbm, l2, shared."""
    bound: str
    model: str
    """Name of the operator model that priced it."""


class JobTrace(Struct, frozen=True):
    """A job as a trace, with what a report needs to read its timeline."""

    job: Job
    traces: TraceSet
    programs: tuple[FinishedProgram, ...]
    """One program a pipeline stage; where loads differ, stage by stage for each place along ep."""
    stage_of_rank: tuple[int, ...]
    """The stage of each entry of `traces.ranks`."""
    tokens: int
    """Tokens trained on in this step, or generated by all requests."""
    model_flops: int
    """Model FLOPs of the whole job, for MFU (see `Model.forward_flops`)."""
    notes: tuple[str, ...] = ()
    operators: tuple[PricedOperator, ...] = ()
    """The cost of each distinct kernel, with details."""
    gpu_of_rank: tuple[int, ...] = ()
    """The GPU of each rank where the job states a placement; empty: rank n is on GPU n."""

    @property
    def tables(self) -> tuple[NodeTable, ...]:
        """One table a pipeline stage, shared by its ranks, or by those at the first place."""
        return tuple(program.table for program in self.programs[: self.job.stages])

    @property
    def segments(self) -> tuple[tuple[Segment, ...], ...]:
        """Passes and optimizer of each stage as row ranges of its table."""
        return tuple(program.segments for program in self.programs[: self.job.stages])

    @property
    def stream_kinds(self) -> dict[str, str]:
        """Maps each stream to the kind of parallelism that its time counts for."""
        return dict(STREAM_KINDS)


def groups_by_rank(job: Job, name: str, ranks: frozenset[int]) -> dict[int, tuple[str, tuple[int, ...]]]:
    """Return for each rank the name and members of its group of one kind, kept to `ranks`."""
    group_of: dict[int, tuple[str, tuple[int, ...]]] = {}
    rows, is_present = job.rows(name), np.zeros(job.gpus, np.bool_)
    is_present[list(ranks)] = True
    for number in np.flatnonzero(is_present[rows].any(axis=1)).tolist():
        members = tuple(rank for rank in rows[number].tolist() if rank in ranks)
        for rank in members:
            group_of[rank] = (f"{name}.{number}", members)
    return group_of


def counterparts(job: Job, peer: tuple[str, int]) -> Int64s:
    """Return each rank's counterpart in another stage, or this many places on in its group's circle."""
    group, step = peer
    rows = job.rows("stages" if group == "stage" else group)
    others = np.empty(job.gpus, np.int64)
    # Every rank stands once in `rows`: scatter the rank of the other stage, or of the shifted place.
    others[rows] = rows[:, [step]] if group == "stage" else np.roll(rows, -step, axis=1)
    return others


def assemble(job: Job, programs: Sequence[FinishedProgram], *, ranks: Sequence[int] | None) -> TraceSet:
    """Return the trace of all ranks, or of some, with groups kept to them.

    `programs` are one a stage, or one a place (along ep) and stage, stage by stage within a place.
    """
    chosen = range(job.gpus) if ranks is None else sorted(ranks)
    present = frozenset(chosen)
    kinds = dict.fromkeys(kind for program in programs for kind in program.groups)
    by_kind = {kind: groups_by_rank(job, kind, present) for kind in kinds}
    stages = job.layout.coordinates("pp")
    program_numbers = stages + job.stages * place_of_ranks(job) if len(programs) > job.stages else stages
    others = {
        peer: counterparts(job, peer)
        for peer in dict.fromkeys(peer for program in programs for peer in program.peers)
    }
    traces = []
    groups: dict[str, tuple[int, ...]] = {"world": tuple(chosen)}
    for rank, number in zip(chosen, program_numbers[list(chosen)].tolist(), strict=True):
        program = programs[number]
        joined = [by_kind[kind][rank] for kind in program.groups]
        groups.update(joined)
        peers = tuple(int(others[peer][rank]) for peer in program.peers)
        traces.append(RankTrace(rank, program.table, tuple(name for name, _ in joined), peers))
    families = tuple(job.rows(kind) for kind in kinds)
    if not job.model.has_experts:
        libraries = job.software.libraries_json()
        return TraceSet(tuple(traces), groups, libraries=libraries, families=families)
    return TraceSet(
        tuple(traces), groups, libraries=libraries_json(job), exchanges=exchanges(job), families=families
    )


def job_trace(
    job: Job,
    programs: Sequence[FinishedProgram],
    *,
    ranks: Sequence[int] | None,
    notes: Sequence[str],
    operators: Sequence[PricedOperator],
) -> JobTrace:
    """Return the assembled trace with its segments and totals."""
    traces = assemble(job, programs, ranks=ranks)
    stages = job.layout.coordinates("pp")[[trace.rank for trace in traces.ranks]]
    return JobTrace(
        job=job,
        traces=traces,
        programs=tuple(programs),
        stage_of_rank=tuple(stages.tolist()),
        tokens=job.tokens,
        model_flops=job.model_flops,
        notes=tuple(notes),
        operators=tuple(operators),
    )
