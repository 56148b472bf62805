"""When the members of each group came to its collectives in a run, and when these ended."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.chakra.trace import NodeKind
from rapid_des.modes.blocks.block_run import BlockRun
from rapid_des.modes.blocks.inner import times_alone
from rapid_des.modes.execution import Run
from rapid_des.network.faults import touches_links


class Meetings(Struct, frozen=True):
    """The collectives of one group in the order of their calls, times in picoseconds."""

    first: Int64s
    """When the first member came."""
    last: Int64s
    """When the last member came."""
    end: Int64s
    """When the last member was done."""

    def joined_by(self, start: Int64s, finish: Int64s) -> Meetings:
        """Return the same with one more member."""
        first, last = np.minimum(self.first, start), np.maximum(self.last, start)
        return Meetings(first, last, np.maximum(self.end, finish))


def meetings(run: Run) -> Mapping[str, Meetings]:
    """Return the meetings of each group by its name."""
    records, found = run.execution.records, dict[str, Meetings]()
    for position, rank in enumerate(run.lowered.traces.ranks):
        visits, _ = times_alone(run.lowered, position)
        collective = rank.nodes.kind == NodeKind.COLLECTIVE
        for slot, name in enumerate(rank.groups):
            mine = visits[collective & (rank.nodes.group == slot)]
            start, finish = records.start[mine], records.finish[mine]
            known = found.get(name)
            found[name] = known.joined_by(start, finish) if known else Meetings(start, start, finish)
    return found


def has_unlike_links(done: BlockRun) -> bool:
    """Return whether faults change links, so that members of a collective may not be done together."""
    return any(touches_links(fault) for fault in done.run.machine.faults)


def moved_by_meetings(done: BlockRun) -> int:
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
    for name, each in meetings(done.run).items():
        alone, times = each.end - each.last, np.ones_like(each.end)
        if done.repeated is not None:
            is_repeated = (each.last >= done.repeated.begin) & (each.last < done.repeated.end)
            times += done.repeated.times * is_repeated
        early = np.minimum(each.last - each.first, alone) if done.mode.outer_analytic else 0 * alone
        beside = int((alone * times).sum() - alone.max(initial=0)) if unlike else 0
        moved[name] = max(int((early * times).sum()), beside) + slowed * int((alone * times).sum())
    ranks = done.run.lowered.traces.ranks
    return max((sum(moved[name] for name in rank.groups) for rank in ranks), default=0)
