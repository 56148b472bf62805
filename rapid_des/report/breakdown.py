"""Where the time of the critical rank goes, inside blocks too: the parts add up; and what to say of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from rapid_des.arrays import distinct, rows_of
from rapid_des.chakra.trace import UNSTATED, NodeKind, NodeTable
from rapid_des.frontend.parts import PieceKey
from rapid_des.frontend.schedules.schedule import direction_of
from rapid_des.frontend.trace import PricedOperator, Segment
from rapid_des.program.program import NONE, Records

if TYPE_CHECKING:
    from rapid_des.frontend.blocks import JobBlocks
    from rapid_des.modes.blocks.inner import BlockRun
    from rapid_des.modes.blocks.steady import Repetition
    from rapid_des.modes.execution import Run


from rapid_des.program.lowering import Lowered, RankTimes, rank_times
from rapid_des.report.colours import BUBBLE, COMPUTE, HOST, IDLE, KIND_ORDER
from rapid_des.report.rows import operator_names
from rapid_des.units import Duration

_BOUND = 0.2
"""The share of a step above which a report explains that the GPU waits for its host."""
_SLOWED = 1e-3
"""The share of a rank's time above which a report says that kernels are slowed."""

Int64s = NDArray[np.int64]
_Key = TypeVar("_Key", str, tuple[str, str])


def finish_times(lowered: Lowered, records: Records) -> Int64s:
    """Return the finish of each rank's last node, in the order of the bindings."""
    offsets = lowered.program.visits()
    return np.array(
        [
            records.finish[first:last].max(initial=0)
            for first, last in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
        ],
        np.int64,
    )


def critical_position(lowered: Lowered, records: Records) -> int:
    """Return the position of the rank that finishes last, the lowest of equals."""
    return int(np.argmax(finish_times(lowered, records)))


class TimeIntervals(Struct, frozen=True):
    """Intervals that a rank's time may count as, and the node that each is about."""

    rows: Int64s
    start: Int64s
    finish: Int64s
    """End of each interval; before `start` where it is empty."""


class RankRun(Struct, frozen=True, eq=False, dict=True):
    """One rank of a run: the times of its nodes and the parts of its time, cached.

    `kinds` maps streams to kinds, by default a stream is its own kind; given them, compute on a stream of
    communication stands for that.
    """

    lowered: Lowered
    records: Records
    position: int
    kinds: Mapping[str, str] | None = None
    _paintings: dict[int, tuple[dict[str, Int64s], int]] = field(default_factory=dict)

    @cached_property
    def times(self) -> RankTimes:
        """The times of the rank's nodes."""
        return rank_times(self.lowered, self.records, self.position)

    @cached_property
    def parts(self) -> dict[str, TimeIntervals]:
        """The parts of the rank's time; see `breakdown`."""
        return parts_of(self.lowered, self.times, self.position, kinds=self.kinds)

    def painted(self, end: int | None) -> tuple[dict[str, Int64s], int]:
        """Return `painted` until `end`, by default when the rank finishes."""
        until = int(self.times.finish.max(initial=0)) if end is None else end
        if until not in self._paintings:
            self._paintings[until] = painted(self.parts, until)
        return self._paintings[until]

    def painted_whole(self, repeated: Repetition | None) -> tuple[dict[str, Int64s], int]:
        """Return `painted` for the whole step, including repetitions that the run left out."""
        amounts, idle = self.painted(None)
        if repeated is None:
            return amounts, idle
        (before, idle_before), (after, idle_after) = (
            self.painted(end) for end in (repeated.begin, repeated.end)
        )
        whole = {
            part: spent + repeated.times * (after[part] - before[part]) for part, spent in amounts.items()
        }
        return whole, idle + repeated.times * (idle_after - idle_before)


def breakdown(rank: RankRun, *, end: int | None = None) -> dict[str, int]:
    """Return the picoseconds that a rank spends on each part until `end`; they add up to it.

    `compute` while a compute stream serves; else the kind of communication that is in progress with all
    members there (ties in `KIND_ORDER`, then by name); else `bubble` while something waits for a late peer or
    a message; else `host` while something could start that its host has not issued yet; else `idle`.
    By default `end` is when the rank finishes.
    """
    amounts, idle = rank.painted(end)
    return {name: int(spent.sum()) for name, spent in amounts.items()} | {IDLE: idle}


def parts_of(
    lowered: Lowered, times: RankTimes, position: int, *, kinds: Mapping[str, str] | None = None
) -> dict[str, TimeIntervals]:
    """Return the parts of a rank's time, those with precedence first; see `breakdown`."""
    nodes = lowered.traces.ranks[position].nodes
    serves = np.isin(nodes.kind, (NodeKind.COMPUTE, NodeKind.MEM_LOAD, NodeKind.MEM_STORE)) & ~nodes.on_cpu
    talks = times.met != NONE
    names = [(kinds or {}).get(stream, stream) for stream in nodes.streams]
    stands_in = serves & _on(nodes.stream, names, () if kinds is None else KIND_ORDER)
    begun = np.minimum(np.maximum(times.start, times.met), times.finish)
    parts = {COMPUTE: _part(serves & ~stands_in, times.start, times.finish)}
    for kind in _ordered(names):
        of_kind = (talks | stands_in) & _on(nodes.stream, names, [kind])
        if of_kind.any():
            parts[kind] = _part(of_kind, begun, times.finish)
    waited = np.maximum(times.start, np.minimum(times.met, times.finish))
    parts[BUBBLE] = _part(talks, times.start, waited)
    late = nodes.issuer != UNSTATED
    if late.any():
        parts[HOST] = TimeIntervals(late.nonzero()[0], *_unissued(nodes, times, late))
    return parts


def _part(chosen: NDArray[np.bool_], start: Int64s, finish: Int64s) -> TimeIntervals:
    return TimeIntervals(chosen.nonzero()[0], start[chosen], finish[chosen])


def _unissued(nodes: NodeTable, times: RankTimes, late: NDArray[np.bool_]) -> tuple[Int64s, Int64s]:
    """Return start and end of each node's wait for its host alone; the end is before the start if none."""
    ready, finish = np.zeros(len(nodes), np.int64), times.finish.copy()
    # what waits for its host's own wait waits for no one else meanwhile
    finish[nodes.issuer[late]] = times.start[nodes.issuer[late]]
    np.maximum.at(ready, rows_of(np.diff(nodes.dependency_starts)), finish[nodes.dependencies])
    # The predecessor of each node on its stream: its neighbour after a stable sort by stream.
    order = np.argsort(nodes.stream, kind="stable")
    same = nodes.stream[order[1:]] == nodes.stream[order[:-1]]
    ready[order[1:][same]] = np.maximum(ready[order[1:][same]], times.finish[order[:-1][same]])
    issued = times.start[nodes.issuer[late]] + nodes.issued[late]
    return np.minimum(ready[late], issued), issued


def host_busy(lowered: Lowered, position: int) -> int:
    """Return how long the host of a rank issues work in its run."""
    nodes = lowered.traces.ranks[position].nodes
    return int(nodes.duration[distinct(nodes.issuer[nodes.issuer != UNSTATED])].sum())


def _on(stream: NDArray[np.int32], names: list[str], kinds: Sequence[str]) -> NDArray[np.bool_]:
    """Return which nodes are on streams of some kinds."""
    of_kinds = np.array([*(name in kinds for name in names), False])  # the last for nodes on no stream
    return of_kinds[stream]


def _ordered(names: list[str]) -> list[str]:
    present = set(names)
    return [kind for kind in KIND_ORDER if kind in present] + sorted(present - set(KIND_ORDER))


def painted(parts: Mapping[str, TimeIntervals], end: int) -> tuple[dict[str, Int64s], int]:
    """Return how long each interval of each part is on top until `end`, and how long nothing is.

    Earlier parts lie over later ones; within a part an interval lies over those that begin after it.
    """
    sides = [np.minimum(side, end) for part in parts.values() for side in (part.start, part.finish)]
    edges = distinct(np.concatenate([np.array([0, end]), *sides]))
    # Cut time at all starts and ends: between two edges nothing changes. `bare`: not covered by any part yet.
    lengths = np.diff(edges)
    bare = np.ones(len(lengths), np.bool_)
    result = {}
    for name, part in parts.items():
        start, finish = (np.searchsorted(edges, np.minimum(side, end)) for side in (part.start, part.finish))
        order = np.argsort(start, kind="stable")
        begun, ended = start[order], finish[order]
        # Within a part the earlier interval has precedence: begin where all earlier ones have ended.
        covered_to = np.maximum.accumulate(np.concatenate([np.zeros(1, np.int64), ended]))[:-1]
        begun = np.minimum(np.maximum(begun, covered_to), np.maximum(begun, ended))
        # Prefix sums of the uncovered time: what an interval gets is a difference.
        free = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.where(bare, lengths, 0))])
        spent = np.zeros(len(order), np.int64)
        spent[order] = np.maximum(free[ended] - free[begun], 0)
        result[name] = spent
        # +1 at each start, -1 at each end: the running sum is above 0 where the part covers an edge interval.
        ends = np.bincount(np.maximum(begun, ended), minlength=len(edges))
        bare &= np.cumsum(np.bincount(begun, minlength=len(edges)) - ends)[:-1] <= 0
    return result, int(lengths[bare].sum())


def operator_times(rank: RankRun, *, end: int | None = None) -> Counter[str]:
    """Return how long a rank computes each operator that starts before `end`, all layers' together.

    Picoseconds; by default of the whole run.
    """
    nodes, times = rank.lowered.traces.ranks[rank.position].nodes, rank.times
    serves = (nodes.kind == NodeKind.COMPUTE) & ~nodes.on_cpu
    if end is not None:
        serves &= times.start < end
    spent = np.bincount(
        nodes.name[serves], weights=(times.finish - times.start)[serves], minlength=len(nodes.names)
    )
    totals: Counter[str] = Counter()
    for name, time in zip(operator_names(nodes.names), spent.tolist(), strict=True):
        totals[name] += int(time)
    return totals


def busiest(times: Mapping[str, int], *, count: int = 8) -> dict[str, int]:
    """Return the largest of the operators' times, the first by name of equals."""
    ranked = sorted(times.items(), key=lambda entry: (-entry[1], entry[0]))
    return {name: time for name, time in ranked[:count] if time > 0}


def with_inside(
    done: BlockRun, rank: RankRun, outside: Mapping[str, int], *, end: int | None
) -> dict[str, int]:
    """Return the outer breakdown with the exposed communication inside blocks taken out of `compute`.

    Messages at a block's end are on the outer graph's tp stream already. Where tp and a ring of cp both send
    inside blocks, all of it counts as tp.

    `outside` is the breakdown until `end`, by default of the whole run; blocks that are in progress then are
    not looked into. Where a host is late that is what is exposed once all is issued: what it hides then, and
    would not if it came late, counts as waiting for the host.
    """
    kind, stage = done.kinds[rank.position], done.trace.stage_of_rank[rank.position]
    finish = rank.times.finish
    hidden = 0
    for segment, key, count in block_uses(done.blocks, stage, done.trace.segments[stage]):
        if end is None or finish[segment.start : segment.stop].max(initial=0) <= end:
            times = done.times[kind, key]
            tail = times.cuts.steps[-1] if done.blocks.blocks[key].tail else 0
            hidden += count * (times.duration - tail - times.compute)
    hidden = min(max(hidden, 0), outside[COMPUTE])
    if not hidden:
        return dict(outside)
    inside = inside_of(done)
    parts = {COMPUTE: outside[COMPUTE] - hidden, inside: outside.get(inside, 0) + hidden}
    return parts | {part: time for part, time in outside.items() if part not in parts}


def inside_of(done: BlockRun) -> str:
    """Return which parallelism the communication inside blocks counts for."""
    job = done.blocks.job
    return "cp" if job.spec.parallelism.passes_blocks and job.members("tp") == 1 else "tp"


def inside_times(done: BlockRun, rank: RankRun) -> Counter[str]:
    """Return how long a rank computes each operator, in blocks and outside, in picoseconds."""
    blocks = done.slow.get(done.trace.traces.ranks[rank.position].rank, done.blocks)
    totals = Counter(in_whole_step(lambda end: operator_times(rank, end=end), done.repeated))
    for key in blocks.blocks:
        totals.pop(f"{direction_of(key.phase)}.{key.section.name}", None)
    for key, count in uses_of(done, rank).items():
        table, direction = blocks.blocks[key].table, direction_of(key.phase)
        kernels = (table.kind == NodeKind.COMPUTE).nonzero()[0]
        for name, time in zip(table.name[kernels].tolist(), table.duration[kernels].tolist(), strict=True):
            totals[f"{direction}.{table.names[name]}"] += count * time
    return totals


def in_whole_step(
    until: Callable[[int | None], Mapping[_Key, int]], repeated: Repetition | None
) -> dict[_Key, int]:
    """Return the amounts of a whole step, given a function of those until a moment (None: the end)."""
    whole = dict(until(None))
    if repeated is not None:
        before, after = until(repeated.begin), until(repeated.end)
        for name in whole:
            whole[name] += repeated.times * (after.get(name, 0) - before.get(name, 0))
    return whole


def uses_of(done: BlockRun, rank: RankRun) -> Counter[PieceKey]:
    """Return how often a rank begins each block in the whole step."""
    stage = done.trace.stage_of_rank[rank.position]
    alike: dict[tuple[str, int, int], list[Segment]] = {}
    for segment in done.trace.segments[stage]:
        alike.setdefault((segment.name, segment.chunk, segment.step), []).append(segment)
    counts: Counter[PieceKey] = Counter()
    for segments in alike.values():
        times = len(segments)
        if (repeated := done.repeated) is not None:
            start = rank.times.start[[segment.start for segment in segments]]
            times += repeated.times * int(((start >= repeated.begin) & (start < repeated.end)).sum())
        for key, count in done.blocks.uses(stage, segments[0]).items():
            counts[key] += count * times
    return counts


def block_uses(
    blocks: JobBlocks, stage: int, segments: Iterable[Segment]
) -> Iterator[tuple[Segment, PieceKey, int]]:
    """Yield each block of segments of a stage, and how often it is in them."""
    known: dict[tuple[str, int, int], Counter[PieceKey]] = {}
    for segment in segments:
        kind = segment.name, segment.chunk, segment.step
        if kind not in known:
            known[kind] = blocks.uses(stage, segment)
        for key, count in known[kind].items():
            yield segment, key, count


def host_notes(parts: Mapping[str, int], busy: int) -> Iterator[str]:
    """Yield a line if a GPU often waits for its host; `parts` are where its time goes, picoseconds.

    >>> list(host_notes({"compute": 10**9, "host": 10**9}, 15 * 10**8))[0].partition(":")[0]
    'host-bound'
    """
    waits, whole = parts.get(HOST, 0), max(sum(parts.values()), 1)
    if waits < _BOUND * whole:
        return
    yield (
        f"host-bound: for {waits / whole:.1%} of the time the GPU waits for its host, which issues for "
        f"{Duration(busy)} of {Duration(whole)}: larger kernels cost less than they add, fewer kernels "
        "(fusion, CUDA graphs) or a quicker host save time"
    )


def contention_notes(
    lowered: Lowered, records: Records, position: int, repeated: Repetition | None
) -> Iterator[str]:
    """Yield a line if a rank's kernels take longer beside collectives; nothing where faults slow them too."""
    program = lowered.program
    rank_program = program.programs[program.bindings[position].program]
    if rank_program.contention is None or program.visit_timetables:
        return
    slowed = np.flatnonzero(rank_program.contention.kind != NONE)
    visits = slowed + int(program.visits()[position])
    start = records.start[visits]
    longer = records.finish[visits] - start - np.maximum(rank_program.work[slowed], 1)
    whole = in_whole_step(
        lambda end: {"longer": int(longer[start < end].sum() if end is not None else longer.sum())}, repeated
    )["longer"]
    if whole > _SLOWED * (records.makespan + (repeated.left_out if repeated else 0)):
        yield (
            f"kernels take {Duration(whole)} longer beside collectives and messages, which take SMs and "
            "memory bandwidth from them (collectives.contention: false leaves that out)"
        )


def congestion_notes(run: Run) -> Iterator[str]:
    """Yield what priority flow control held, what marks made of rates, and how coarsely routes are chosen."""
    yield from _pauses(run)
    if run.lowered.program.spray is not None:
        from rapid_des.report.notes import choice_notes

        yield from choice_notes(run.lowered.program, run.machine)
    if run.execution.records.rates is not None:
        from rapid_des.report.notes import rate_notes

        yield from rate_notes(run.lowered.program, run.execution.records.rates, run.machine)


def _pauses(run: Run) -> Iterator[str]:
    """Yield a line if priority flow control held links."""
    fabric, stopped = run.machine.fabric, run.execution.records.link_stopped
    if stopped is None or not (stopped > 0).any():
        return
    link, links = int(stopped.argmax()), np.count_nonzero(stopped)
    longest, total = Duration(int(stopped[link])), Duration(int(stopped.sum()))
    yield (
        f"priority flow control held {links} of {len(fabric):,} links: {total} in all, "
        f"{fabric.link_name(link)} longest, {longest}"
    )


def compute_bound(
    times: Mapping[str, int], priced: Iterable[PricedOperator], tokens: tuple[int, int] | None
) -> str:
    """Return what limits most of a rank's time in kernels: `hbm`, `launch`, or `compute` on the chip.

    `times` are those of operators by name. Of requests, whose first and last `tokens` come at these times, it
    is the longer of prefill and decode that counts.
    """
    decode = tokens is not None and 2 * tokens[0] < tokens[1]
    phase = [each for each in priced if tokens is None or (each.step > 0) == decode]
    whole: Counter[str] = Counter()
    for kernel in phase:
        whole[kernel.name] += kernel.duration
    limits: Counter[str] = Counter({"compute": 0})
    for kernel in phase:
        share = kernel.duration / max(whole[kernel.name], 1)
        limits[_LIMITS.get(kernel.bound, "compute")] += round(share * times.get(kernel.name, 0))
    return max(limits, key=lambda name: limits[name])


_LIMITS = {"hbm": "hbm", "launch": "launch", "latency": "launch"}


def until_last_token(
    parts: Callable[[int | None], dict[str, int]], tokens: tuple[int, int] | None, makespan: int
) -> tuple[int, dict[str, int]]:
    """Return the step time and its parts, including decode steps that were not simulated.

    `tokens` are the times of the first token and the last one; None: no requests.
    """
    whole = parts(None)
    if tokens is None or tokens[1] == makespan:
        return makespan, whole
    return tokens[1], _stretched(parts(tokens[0]), whole, tokens[1])


def _stretched(head: Mapping[str, int], whole: Mapping[str, int], total: int) -> dict[str, int]:
    """Return the parts when only some decode steps were simulated: the decode phase grows in proportion."""
    tail = {part: spent - head[part] for part, spent in whole.items()}
    wanted, simulated = total - sum(head.values()), max(sum(tail.values()), 1)
    parts = {part: head[part] + tail[part] * wanted // simulated for part in whole}
    parts["idle"] += total - sum(parts.values())
    return parts
