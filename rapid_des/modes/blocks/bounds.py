"""How far a run in blocks may be from the flattened one, and whether simulating all at once costs little.

`Meetings` says when the members of each group came to its collectives in a run, and when these ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.chakra.trace import NodeKind, NodeTable
from rapid_des.errors import UnsupportedByEngine
from rapid_des.modes.blocks.inner import BlockRun, BlockTimes, times_alone, visits_of_nodes
from rapid_des.modes.execution import Run
from rapid_des.modes.mode_bound import ModeBound
from rapid_des.network.faults import touches_links
from rapid_des.network.specs import Measured

if TYPE_CHECKING:
    from rapid_des.frontend.trace import Segment


class Meetings(Struct, frozen=True):
    """The collectives of one group in the order of their calls, times in picoseconds."""

    first: Int64s
    """The times at which the first member of each meeting came, in picoseconds."""
    last: Int64s
    """The times at which the last member came, in picoseconds."""
    end: Int64s
    """The times at which the last member was done, in picoseconds."""

    def joined_by(self, start: Int64s, finish: Int64s) -> Meetings:
        """Return the same with one more member."""
        first, last = np.minimum(self.first, start), np.maximum(self.last, start)
        return Meetings(first, last, np.maximum(self.end, finish))


def meetings(run: Run) -> Mapping[str, Meetings]:
    """Return the meetings of each group by its name."""
    records, found = run.execution.records, dict[str, Meetings]()
    calls = cache(_calls)
    for rank, visits in zip(run.lowered.traces.ranks, visits_of_nodes(run.lowered), strict=True):
        for slot, name in enumerate(rank.groups):
            mine = visits[calls(rank.nodes, slot)]
            start, finish = records.start[mine], records.finish[mine]
            known = found.get(name)
            found[name] = known.joined_by(start, finish) if known else Meetings(start, start, finish)
    return found


def _calls(nodes: NodeTable, group: int) -> Int64s:
    """Return the nodes that are collectives of a group."""
    return np.flatnonzero((nodes.kind == NodeKind.COLLECTIVE) & (nodes.group == group))


def has_unlike_links(done: BlockRun) -> bool:
    """Return whether faults change links, so that members of a collective may not be done together."""
    return any(touches_links(fault) for fault in done.run.machine.faults)


def moved_by_meetings(done: BlockRun, met: Mapping[str, Meetings]) -> int:
    """Return by how many picoseconds a step may be shorter or longer by how members meet in collectives.

    A closed form begins when the last member comes. Before that, messages of others go, which the last one
    then need not wait for, or finds in front of its own: no collective moves by more than the wait for the
    last member, nor by more than it lasts. Over links that faults make unlike, members are not done together,
    so that a collective may be under way beside the one before. On GPUs that faults slow, kernels beside a
    collective are bound by other limits than on the first rank, whose blocks say by which.
    """
    machine = done.run.machine
    unlike = done.mode.outer_analytic and has_unlike_links(done)
    slowed = bool(done.slow) and machine.collectives.contention
    moved: dict[str, int] = {}
    for name, each in met.items():
        alone, times = each.end - each.last, np.ones_like(each.end)
        if done.repeated is not None:
            is_repeated = (each.last >= done.repeated.begin) & (each.last < done.repeated.end)
            times += done.repeated.times * is_repeated
        early = np.minimum(each.last - each.first, alone) if done.mode.outer_analytic else 0 * alone
        beside = int((alone * times).sum() - alone.max(initial=0)) if unlike else 0
        moved[name] = max(int((early * times).sum()), beside) + slowed * int((alone * times).sum())
    ranks = done.run.lowered.traces.ranks
    return max((sum(moved[name] for name in rank.groups) for rank in ranks), default=0)


_APART = 0.02
"""What blocks that run alone leave out besides waiting, relative to the step: kernels of one kind stand
together, and all ranks of a block enter it together. Measured: at most 1.1 % of 1,000 drawn jobs."""
_EARLIER, _EARLIER_UNLIKE = 0.02, 0.1
"""The share of the step by which the flattened one may be shorter: links serve parts of messages in another
order, and where faults make links unlike, the places of a block enter it at different times. Measured on
3,700 drawn jobs: at most 1.7 %, but for four with faults of 3 to 9.3 %."""
_QUEUES = 0.15
"""The share by which a collective is longer than its closed form, since its own messages queue. Measured: the
median of 150 collectives drawn with fabric and algorithm is 1 %, three of four take at most 13 % longer."""
_LEAST_WAITING = 0.005
"""Shares of waiting below this are left out: no forecast is that exact."""
_MOST_HOPS, _MOST_RANKS = 100_000_000, 256
"""Up to which all is simulated at once instead: some seconds."""


def bound_of(done: BlockRun, met: Mapping[str, Meetings], sums: tuple[int, int]) -> ModeBound:
    """Return where the flattened step lies: all stages may wait on shared links, one after the other.

    `sums` is how much shorter or longer sums over a whole model may be than those that were run, in
    picoseconds.
    """
    fabric, (shorter, longer) = done.run.machine.fabric, sums
    inside = _most_of_stages(done, lambda times: times.busiest)
    apart = sum(_most_of_stages(done, lambda times: times.skew)) + moved_by_meetings(done, met)
    apart += sum(inside) if done.mode.inner_analytic and has_unlike_links(done) else 0
    earlier = _EARLIER_UNLIKE if has_unlike_links(done) else _EARLIER
    least = done.step - int(done.step * earlier) - apart - shorter
    most = done.step + int(done.step * _APART) + apart + longer
    if done.mode.inner_analytic and done.run.machine.collectives.measured == Measured():
        most += int(sum(inside) * _QUEUES)
    links, each = _waits(done, inside)
    waits = np.sum(each, axis=0)
    count = np.count_nonzero(waits)
    if not count:
        reason = "blocks run alone, sums over a model take one rank of each; what that leaves out"
        return ModeBound(least, most, None, reason)
    most += sum(int(stage.max()) for stage in each)
    name = fabric.link_name(int(links[waits.argmax()]))
    reason = f"{count:,} links (most of all {name}) carry traffic that is simulated apart; waiting there"
    return ModeBound(least, most, name, reason)


def _waits(done: BlockRun, inside: Sequence[int]) -> tuple[Int64s, list[Int64s]]:
    """Return the links on which stages may wait, and for how long each stage may there.

    `inside` is for how long each stage's blocks keep their busiest link busy.
    """
    shared = done.shared
    if done.mode.outer_analytic:
        busy = _busy_alone(done)
        waits = [shared.waits_of_closed_forms(busiest, busy) for busiest in inside]
        return np.arange(len(shared.inside)), waits
    links, between = shared.met, _between(done)
    on_links = shared.on(links)
    return links, [on_links.waits(busiest, between[links]) for busiest in inside]


def _most_of_stages(done: BlockRun, value: Callable[[BlockTimes], int]) -> list[int]:
    """Return a figure of blocks in the whole step, for each stage that of the inner group with the most."""
    most: dict[int, int] = {}
    for stage, kind in dict.fromkeys(zip(done.trace.stage_of_rank, done.kinds, strict=True)):
        most[stage] = max(most.get(stage, 0), in_step(done, stage, kind, value))
    return list(most.values())


def most_busy(done: BlockRun) -> Int64s:
    """Return for how long each link is busy at most: all who take it are as busy as the busiest of them.

    Picoseconds of the whole step, by the link's id.
    """
    shared, inside = done.shared, max(_most_of_stages(done, lambda times: times.busiest), default=0)
    if done.mode.outer_analytic:
        busy = _busy_alone(done)
        between = sum(
            (groups * busy.get(kind, 0) for kind, groups in shared.groups.items()), shared.inside * 0
        )
    else:
        between = shared.places * _between(done)
    most: Int64s = shared.inside * inside + between
    return most


def _busy_alone(done: BlockRun) -> dict[str, int]:
    """Return for how long what a rank communicates lasts alone, by kind, of the rank with most."""
    busy: dict[str, int] = {}
    lowered, records = done.run.lowered, done.run.execution.records
    each = zip(lowered.traces.ranks, visits_of_nodes(lowered), times_alone(lowered), strict=True)
    for rank, visits, alone in each:
        nodes, times = rank.nodes, alone.copy()
        if done.repeated is not None:
            start = records.start[visits]
            times *= 1 + done.repeated.times * ((start >= done.repeated.begin) & (start < done.repeated.end))
        times[nodes.kind == NodeKind.RECV] = 0  # of which the sender's message is the same
        kinds = np.array([name.partition("-")[0] for name in nodes.streams])
        for kind in set(kinds.tolist()):
            mine = int(times[np.isin(nodes.stream, np.flatnonzero(kinds == kind))].sum())
            busy[kind] = max(busy.get(kind, 0), mine)
    return busy


def _between(done: BlockRun) -> Int64s:
    """Return how long one place's messages keep the busiest link of each link's dimension busy.

    One place was simulated; the others take other links of the same dimensions for as long.
    """
    fabric, repeated = done.run.machine.fabric, done.repeated
    busy = done.run.execution.records.link_busy.sum(axis=1)
    if repeated is not None:
        busy = busy + repeated.times * repeated.link_busy
    if len(busy) < len(fabric):  # links are numbered by what they stand for
        return np.full(len(fabric), busy.max(initial=0), np.int64)
    most = np.zeros(int(fabric.dimension.max(initial=0)) + 2, np.int64)  # graphs have dimension -1
    np.maximum.at(most, fabric.dimension, busy)
    between: Int64s = most[fabric.dimension]
    return between


def may_pay_whole(done: BlockRun) -> bool:
    """Return whether a hierarchical run may leave waiting out, and a flattened one takes only seconds."""
    if done.mode.outer_analytic or done.blocks.job.gpus > _MOST_RANKS or not len(done.shared.met):
        return False
    return _hops(done) <= _MOST_HOPS


def pays_whole(done: BlockRun, *, strict: bool) -> bool:
    """Return whether a run whose bound is known leaves waiting out, and a flattened one takes only seconds.

    Little waiting is worth that if `strict` alone.
    """
    least = 0 if strict else _LEAST_WAITING
    waits = done.bound.link is not None and done.bound.high > (1 + _APART + least) * done.step
    return waits and may_pay_whole(done)


def require_own_links(done: BlockRun) -> None:
    """Raise `UnsupportedByEngine` where a run leaves out waiting on links, which it names."""
    if done.bound.link is None:
        return
    raise UnsupportedByEngine(
        f"{done.run.machine.path}: link {done.bound.link} carries traffic that mode {done.mode.name} "
        "simulates apart; strict execution needs it on links of its own: use --mode flattened, or place the "
        "axes on other dimensions"
    )


def whole_note(done: BlockRun) -> str:
    """Return what a report says where all was simulated at once instead of a run in blocks."""
    most = done.bound.high / done.step - 1
    return (
        f"mode {done.mode.name}: traffic of blocks and between them shares links (as {done.bound.link}), "
        f"which could add {most:.0%}; all was simulated at once, as the step is small: nothing is left out"
    )


def _hops(done: BlockRun) -> int:
    """Return about how many link hops the whole step has."""
    blocks, lowered = done.blocks, done.trace.stage_of_rank
    inside = sum(
        in_step(done, stage, kind, lambda times: times.hops)
        for stage, kind in zip(lowered, done.kinds, strict=True)
    )
    groups = len(blocks.inner_groups) * len(blocks.inner_groups[0]) / len(blocks.run_groups[0])
    each = len(blocks.inner_groups[0])
    return int(inside * groups / len(lowered)) + done.run.execution.records.hops * each


def in_step(done: BlockRun, stage: int, kind: bytes, value: Callable[[BlockTimes], int]) -> int:
    """Return a figure of blocks, summed over all that an inner group of a stage runs in the whole step."""
    passes, once = 0, 0
    alike: dict[tuple[object, ...], list[Segment]] = {}
    for segment in done.trace.segments[stage]:
        alike.setdefault((segment.name, segment.chunk, segment.step), []).append(segment)
    for segment, *others in alike.values():
        uses = done.blocks.uses(stage, segment)
        each = sum(count * value(done.times[kind, key]) for key, count in uses.items()) * (1 + len(others))
        passes, once = (passes, once + each) if segment.name == "optimizer" else (passes + each, once)
    if done.repeated is None:
        return passes + once
    return passes * done.blocks.job.micro_batches // done.repeated.simulated + once
