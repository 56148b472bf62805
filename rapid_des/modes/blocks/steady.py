"""Long steps: a run of fewer micro-batches that is proven to repeat stands for them.

The short step is simulated, with every hop. Let `begin` and `end` = begin + P be the starts of an item of the
first rank and of the same item one period later. If the same is under way just before both
(`modes.periodicity`), on every rank and link, then the run repeats until a rank meets an item that does not
repeat. So each further period takes P, and the long step ends that much later. All that is under way has
started at most `age` before, so all visits and hops of that time are compared.

Nothing is left out where this is not proven: a pipeline that has not settled, a host that falls behind, fluid
links, queue pairs, routes chosen by load, links whose rates change.

Shorter steps that stand for long ones: fewer micro-batches, and which of their items repeat.

Between warm-up and cool-down every stage runs the same items over and over, each time for the next
micro-batches. A long step is then a shorter one with a period W of items inserted several times:

    long step     F1 … │ W  W  W … W │ … B        both start and end alike, item by item, on every stage
    short step    F1 … │ W │ … B
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field, structs
from numpy.typing import NDArray

from rapid_des.arrays import Bools, Int32s, Int64s, distinct
from rapid_des.chakra.trace import UNSTATED, NodeKind, NodeTable
from rapid_des.frontend.job import Job
from rapid_des.frontend.schedules.schedule import Order
from rapid_des.frontend.trace import JobTrace, Segment
from rapid_des.modes.execution import Run
from rapid_des.modes.periodicity import Periodicity
from rapid_des.program.program import NONE, LinkTrail, Records
from rapid_des.units import Duration
from rapid_des.values import replace

_MARGIN = 4
"""The number of items at both ends of a range whose messages, or host, also belong to other items."""
_TRIES = 8
"""The number of moments that are tried, the latest first."""
_ALIKE = (
    "kind", "name", "stream", "duration", "size", "collective", "group", "peer", "priority", "flops",
    "tensor_bytes", "on_cpu", "bound",
)  # fmt: skip


class Repetition(Struct, frozen=True):
    """A period of a run that stands for more of the same, all times in picoseconds."""

    times: int
    """The number of periods that are left out."""
    micro_batches: int
    """The number of micro-batches that pass a stage in one period."""
    begin: int
    end: int
    host: Int64s
    """[position] the time for which its host issues in one period."""
    link_busy: Int64s
    """[link] the time for which it is busy in one period."""
    simulated: int
    """The number of micro-batches of the run."""

    @property
    def left_out(self) -> int:
        """The time by which the whole step is longer than the run."""
        return self.times * (self.end - self.begin)

    @property
    def note(self) -> str:
        """The line that a report prints."""
        return (
            f"{self.times * self.micro_batches:,} micro-batches repeat exactly what simulated ones do, every "
            f"{self.micro_batches:,} in {Duration(self.end - self.begin)}"
        )


class _Region(Struct, frozen=True):
    """Visits of one rank that repeat, numbered as in records: `low` to before `high`, with period `each`."""

    low: int
    high: int
    each: int
    heads: Int64s
    """The first visit of each item that a whole period follows."""
    tails: Int64s
    """The last visit of each stream that repeats."""
    begin: int
    """The first of all of the rank's visits; `end` is one past the last."""
    end: int
    host: int = NONE
    """The visit before all periods that issues what is in them; NONE: there is none."""
    issued: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    """The visits that the host issues from `low` on."""
    lag: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    """The time from the start of the host to the issue of each, in picoseconds."""
    growth: int = 0
    """The time by which the host issues a visit later than the one a period before."""


def _region(
    short: ShortenedJob, stage: int, segments: Sequence[Segment], rank: _RankVisits
) -> _Region | None:
    """Return the visits of a rank that repeat; None if its nodes do not repeat as its stage's items do."""
    order = short.job.stage_orders.orders[stage]
    passes = [segment for segment in segments if segment.name != "optimizer"]
    if sum(item.phase != "wait" for item in order) != len(passes):
        return None
    place = np.cumsum([0, *(item.phase != "wait" for item in order)])  # items that wait have no segment
    starts = np.array([*(segment.start for segment in passes), len(rank.nodes)])[place]
    first, each = short.first[stage] + _MARGIN, short.items[stage]
    low, high = int(starts[first]), passes[int(place[short.last[stage] - _MARGIN]) - 1].stop
    rows = int(starts[first + each]) - low if first + each < len(starts) else 0
    if rows <= 0 or low + rows >= high:
        return None
    same = _Same(rank.nodes, low, high, rows)
    visits = np.append(np.flatnonzero(rank.visits != NONE), len(rank.visits))
    shifted = visits[low + rows : high] - visits[low : high - rows]
    issuing = same.issued()
    if issuing is None or not same.holds() or (shifted != shifted[0]).any():
        return None
    host, growth = issuing
    visits += rank.offset
    heads = starts[first : short.last[stage] - _MARGIN - each]
    ends = [low + int(np.flatnonzero(rank.nodes.stream[low:high] == stream)[-1])
            for stream in distinct(rank.nodes.stream[low:high]).tolist()]  # fmt: skip
    issued = low + np.flatnonzero((rank.nodes.issuer[low:] == host) & (host != NONE))
    return _Region(
        low=int(visits[low]),
        high=int(visits[high]),
        each=int(shifted[0]),
        heads=visits[heads[heads < high - rows]],
        tails=visits[ends],
        begin=rank.offset,
        end=int(visits[-1]),
        host=NONE if host == NONE else int(visits[host]),
        issued=visits[issued],
        lag=rank.nodes.issued[issued],
        growth=growth,
    )


class _RankVisits(Struct, frozen=True):
    """The nodes of a rank, the node of each of its visits, and where these begin in the records."""

    nodes: NodeTable
    visits: Int32s
    offset: int


class _Same(Struct, frozen=True):
    """Rows of a table from `low` to before `high`, which may repeat every `rows` rows."""

    nodes: NodeTable
    low: int
    high: int
    rows: int

    def _pair(self, column: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        return column[self.low : self.high - self.rows], column[self.low + self.rows : self.high]

    def holds(self) -> bool:
        """Return whether rows repeat, and wait for rows at the same distance or for one common row."""
        nodes = self.nodes
        if not all(
            (first == second).all() for first, second in (self._pair(getattr(nodes, name)) for name in _ALIKE)
        ):
            return False
        first, second = self._pair(nodes.tag)
        talks = np.isin(self._pair(nodes.kind)[0], (NodeKind.SEND, NodeKind.RECV))
        if (first != second)[~talks].any() or len(distinct((second - first)[talks])) > 1:
            return False
        counts, later = self._pair(np.diff(nodes.dependency_starts))
        if (counts != later).any():
            return False
        bounds = nodes.dependency_starts[[self.low, self.high - self.rows, self.low + self.rows, self.high]]
        return self._moves(
            nodes.dependencies[bounds[0] : bounds[1]], nodes.dependencies[bounds[2] : bounds[3]]
        )

    def _moves(self, first: Int32s, second: Int32s) -> bool:
        return bool(((second == first + self.rows) | ((second == first) & (first < self.low))).all())

    def issued(self) -> tuple[int, int] | None:
        """Return the row of the host that issues all periods, and by how much later each; None: they differ.

        The result is (NONE, 0) if nothing issues them, or a host in each period does.
        """
        first, second = self._pair(self.nodes.issuer)
        fixed = (first == second) & (first != UNSTATED)
        if (second != np.where((first == UNSTATED) | fixed, first, first + self.rows)).any():
            return None
        before, after = self._pair(self.nodes.issued)
        hosts, later = distinct(first[fixed]).tolist(), distinct((after - before)[fixed]).tolist()
        if (before != after)[~fixed].any() or max(len(hosts), len(later)) > 1:
            return None
        return (int(hosts[0]), int(later[0])) if hosts and hosts[0] < self.low else (NONE, 0)


def repetition(short: ShortenedJob, trace: JobTrace, run: Run) -> Repetition | None:
    """Return the period of a run of a shortened job that repeats; None if that is not proven."""
    program, records = run.lowered.program, run.execution.records
    apart = program.fluid or program.queue_pairs or program.spray or program.delays
    if apart or program.link_timetables or program.visit_timetables or records.trail is None:
        return None
    regions = []
    ranks = [
        _RankVisits(trace.nodes, program.programs[binding.program].node, offset)
        for trace, binding, offset in zip(
            run.lowered.traces.ranks, program.bindings, program.visits()[:-1].tolist(), strict=True
        )
    ]
    for stage, rank in zip(trace.stage_of_rank, ranks, strict=True):
        region = _region(short, stage, trace.segments[stage], rank)
        if region is None:
            return None
        regions.append(region)
    seen = _SteadyRun(regions, records, records.trail)
    heads = regions[0].heads
    for head in heads[:: -max(1, len(heads) // _TRIES)].tolist():
        begin, end = int(records.start[head]), int(records.start[head + regions[0].each])
        if seen.recurs(begin, end):
            host = [seen.issuing(*pair, begin, end) for pair in zip(regions, ranks, strict=True)]
            busy = seen.link_busy(begin, end, program.links)
            return Repetition(
                short.times, short.micro_batches, begin, end, np.array(host), busy, short.job.micro_batches
            )
    return None


class _SteadyRun:
    """A run, the ranges of its ranks that repeat, and the visits before them."""

    def __init__(self, regions: Sequence[_Region], records: Records, trail: LinkTrail) -> None:
        self._regions, self._records, self._trail = regions, records, trail
        later = np.full(len(records.start), NONE)
        self._before = np.ones(len(records.start), np.bool_)
        self._hosts = [region.host for region in regions if region.host != NONE]
        for region in regions:
            repeated = np.arange(region.low, region.high - region.each)
            later[repeated] = repeated + region.each
            self._before[region.low : region.end] = False
        self._before[self._hosts] = False  # see `_issued_in_time`
        self._check = Periodicity(records, trail, later)

    def recurs(self, begin: int, end: int) -> bool:
        """Return whether what is under way just before `end` is what was just before `begin`."""
        age = self._age(begin)
        return (
            age is not None
            and self._is_apart(begin, end, age)
            and self._visits_agree(begin, end, age)
            and self._check.hops_agree(begin, end, age)
            and all(self._issued_in_time(region, begin - age, end - begin) for region in self._regions)
        )

    def _age(self, moment: int) -> int | None:
        """Return the longest time for which something has been under way; None if it does not repeat."""
        under_way = self._check.under_way(moment)
        under_way[self._hosts] = False
        if self._before[under_way].any():
            return None
        return moment - int(self._records.start[under_way].min(initial=moment)) + 1

    def _visits_agree(self, begin: int, end: int, age: int) -> bool:
        """Return whether recent visits are the same at both moments, those of hosts aside."""
        here, there = self._check.recent(begin, age), self._check.recent(end, age)
        here[self._hosts] = there[self._hosts] = False
        records = self._records
        return self._check.is_later(here, there, (records.start, records.finish, records.met), end - begin)

    def _is_apart(self, begin: int, end: int, age: int) -> bool:
        """Return whether what is before the ranges is over, and what is behind them has not started."""
        start, finish = self._records.start, self._records.finish
        return not (finish[self._before] >= begin - age).any() and all(
            finish[region.low : region.low + region.each].max() < end - age
            and start[region.high : region.end].min(initial=end) >= end
            and start[region.tails].min() >= end
            and start[region.high - region.each : region.end].min(initial=begin) >= begin
            for region in self._regions
        )

    def _issued_in_time(self, region: _Region, since: int, period: int) -> bool:
        """Return whether a host that issues all periods gets ahead and holds nothing up, or keeps pace."""
        if region.host == NONE or region.growth == period:
            return True
        start = self._records.start
        waits = start[region.issued] >= since
        moments = start[region.host] + np.maximum(region.lag, 1)
        behind = self._records.finish[region.host] >= start[region.issued].max(initial=0)
        return region.growth < period and not behind and bool((start[region.issued] > moments)[waits].all())

    def issuing(self, region: _Region, rank: _RankVisits, begin: int, end: int) -> int:
        """Return the time for which the host of a rank issues from `begin` to `end`."""
        visits = rank.offset + np.flatnonzero(rank.visits != NONE)
        hosts = distinct(rank.nodes.issuer[rank.nodes.issuer != UNSTATED])
        start = self._records.start[visits[hosts]]
        return int(rank.nodes.duration[hosts][(start >= begin) & (start < end)].sum()) + region.growth

    def link_busy(self, begin: int, end: int, links: int) -> Int64s:
        """Return [link] the time for which it serves hops that start from `begin` to before `end`."""
        trail, busy = self._trail, np.zeros(links, np.int64)
        rows = (trail.start >= begin) & (trail.start < end)
        np.add.at(busy, trail.link[rows], (trail.finish - trail.start)[rows])
        return busy


WORTH = 4_000
"""The least number of items to leave out: fewer take less time to simulate than a shorter run to check."""
_LENGTHS = (3, 6)
"""The lengths of shorter runs, in pipeline depths or periods; at most half of the step."""


class ShortenedJob(Struct, frozen=True):
    """A job with fewer micro-batches, and which of its items repeat."""

    job: Job
    times: int
    micro_batches: int
    first: tuple[int, ...]
    """[stage] the first item that repeats."""
    last: tuple[int, ...]
    """[stage] the item up to which the job runs the same items as the long one."""
    items: tuple[int, ...]
    """[stage] the number of items in a period."""


def shortened(job: Job, *, worth: int = WORTH) -> Iterator[ShortenedJob]:
    """Yield shorter jobs that differ from a job by whole periods of items only, the shortest first.

    They leave out at least `worth` items.
    """
    if job.spec.training is None:
        return
    orders, count, shape = job.stage_orders.orders, job.micro_batches, job.shape
    for period in dict.fromkeys((1, 2, shape.in_group)):
        for factor in _LENGTHS:
            short = factor * max(period, job.stages)
            short += (count - short) % period
            if 2 * short > count or sum(map(len, orders)) * (count - short) < worth * count:
                continue
            if job.schedule.refusal(shape._replace(micro_batches=short)) is None:
                insertion = _insertion(job, _with_micro_batches(job, short), period)
                if insertion is not None:
                    yield insertion


def _with_micro_batches(job: Job, count: int) -> Job:
    training = job.training
    batch = training.global_batch // job.micro_batches * count
    return replace(
        job, spec=structs.replace(job.spec, training=structs.replace(training, global_batch=batch))
    )


def _insertion(job: Job, short: Job, period: int) -> ShortenedJob | None:
    """Return how the items of a short job become those of a long one; None if not by repeating a period."""
    left_out = job.micro_batches - short.micro_batches
    times = left_out // period
    ranges = []
    for long, fewer in zip(job.stage_orders.orders, short.stage_orders.orders, strict=True):
        items = (len(long) - len(fewer)) // times
        whole, part = _columns(long), _columns(fewer)
        alike = _leading((whole[: len(fewer)] == part).all(axis=1))
        later = part + _shift(part, left_out)
        ends = _leading((whole[::-1][: len(fewer)] == later[::-1]).all(axis=1))
        repeats = (whole[items:] == (whole + _shift(whole, period))[:-items]).all(axis=1)
        begin = alike - items
        if items * times != len(long) - len(fewer) or begin < max(0, len(fewer) - items - ends):
            return None
        if not repeats[begin : begin + times * items].all():
            return None
        first = begin - _leading(repeats[:begin][::-1])
        ranges.append((first, alike, items))
    begins, ends_at, each = zip(*ranges, strict=True)
    return ShortenedJob(short, times, period, begins, ends_at, each)


def _columns(order: Order) -> Int64s:
    """Return items as rows of numbers, the micro-batch last; items that wait have no micro-batch."""
    phases = {phase: sum(map(ord, phase)) for phase in {item.phase for item in order}}
    rows = [(phases[item.phase], item.chunk, item.paired, item.micro_batch) for item in order]
    return np.array(rows, np.int64).reshape(len(order), 4)


_WAIT = sum(map(ord, "wait"))


def _shift(columns: Int64s, micro_batches: int) -> Int64s:
    shift = np.zeros_like(columns)
    shift[:, 3] = np.where(columns[:, 0] == _WAIT, 0, micro_batches)
    return shift


def _leading(holds: Bools) -> int:
    """Return the number of leading entries for which something holds."""
    return len(holds) if holds.all() else int(np.argmin(holds))
