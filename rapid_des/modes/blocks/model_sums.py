"""How much longer sums over a model (of gradient norms) take than block modes let them.

Block modes sum over one rank of each inner group, a flattened run over all ranks of the model.
"""

from __future__ import annotations

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.made import one_collective
from rapid_des.chakra.trace import CollectiveType, NodeKind, RankTrace, TraceSet
from rapid_des.machine import Machine
from rapid_des.modes.blocks.block_run import BlockRun
from rapid_des.modes.blocks.inner import times_alone
from rapid_des.modes.blocks.meetings import meetings
from rapid_des.modes.execution import EngineChoice
from rapid_des.modes.idle import on_idle_links
from rapid_des.program.collectives.alone import MOST_MEMBERS
from rapid_des.program.lowering import lower
from rapid_des.values import replace

_SUMMED = "model."
"""What names of groups of a whole model begin with."""


def left_out_of_sums(
    done: BlockRun, machine: Machine, choice: EngineChoice, cache: BoundedCache
) -> tuple[int, int]:
    """Return by how many picoseconds the sums over a model may be shorter, or longer, over all of its ranks.

    Members that come early send early: a sum may be over as the last member comes, and in the run sums of few
    ranks may be shorter than alone.
    """
    first, shorter, longer = done.trace.traces.ranks[0], 0, 0
    nodes, libraries = first.nodes, done.trace.traces.libraries
    summed = [place for place, name in enumerate(first.groups) if name.startswith(_SUMMED)]
    sums = np.flatnonzero((nodes.kind == NodeKind.COLLECTIVE) & np.isin(nodes.group, summed)).tolist()
    for node, (least, most) in zip(sums, _took(done), strict=True):
        name = first.groups[nodes.group[node]]
        few, models = done.trace.traces.groups[name], done.blocks.job.rows("model")
        if len(few) == models.shape[1]:
            continue
        if models.size > MOST_MEMBERS:  # too many to play at once: they hardly meet
            models = models[[int(name.removeprefix(_SUMMED))]]
        stream, size = nodes.streams[nodes.stream[node]], int(nodes.size[node])

        def lasts(groups: Int64s, stream: str = stream, size: int = size) -> int:
            key = ("sums", machine, libraries, groups.tobytes(), groups.shape, stream, size)
            traces = replace(_sums(groups, stream, size), libraries=libraries)
            return cache.get_or_make(key, lambda: _lasts(traces, machine, choice, cache))

        shorter, longer = shorter + most, longer + max(lasts(models) - least, 0)
    return shorter, longer


def _took(done: BlockRun) -> list[tuple[int, int]]:
    """Return how long each sum over a model took once all had come, in the fastest and the slowest group."""
    found = meetings(done.run)
    lasted = [each.end - each.last for name, each in found.items() if name.startswith(_SUMMED)]
    if not lasted:
        return []
    return list(zip(np.min(lasted, axis=0).tolist(), np.max(lasted, axis=0).tolist(), strict=True))


def _sums(groups: Int64s, stream: str, size: int) -> TraceSet:
    """Return the trace in which each row of ranks sums this many bytes once and does nothing else."""
    nodes = one_collective((0,), CollectiveType.ALL_REDUCE, size, stream=stream).ranks[0].nodes
    members = {str(number): tuple(row) for number, row in enumerate(groups.tolist())}
    ranks = sorted((rank, name) for name, row in members.items() for rank in row)
    return TraceSet(tuple(RankTrace(rank, nodes, groups=(name,)) for rank, name in ranks), members)


def _lasts(traces: TraceSet, machine: Machine, choice: EngineChoice, cache: BoundedCache) -> int:
    """Return how many picoseconds sums last where nothing else is under way."""
    play = on_idle_links(traces, machine, choice, cache)
    if len(traces.ranks) <= MOST_MEMBERS:
        return play(traces)
    return int(times_alone(lower(traces, machine, analytic=True, play=play, cache=cache), 0)[1].sum())
