"""Where each part of a rank's time goes by name: operators, collectives and messages, what is waited for.

Every instant of the breakdown is given to one node of the rank: of those that could have it the one that
began first. The names of a part add up to it to the picosecond; `other` is time for which no name is known.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from rapid_des.chakra.trace import UNSTATED, NodeKind
from rapid_des.frontend.schedules.schedule import direction_of
from rapid_des.report.breakdown import RankRun, in_whole_step, inside_of, uses_of
from rapid_des.report.colours import COMPUTE
from rapid_des.report.rows import operator_names

if TYPE_CHECKING:
    from rapid_des.modes.blocks.inner import BlockRun
    from rapid_des.modes.blocks.steady import Repetition
    from rapid_des.modes.execution import Run

OTHER = "other"
SLOWED = "kernels slowed by messages"
_NUMBER = re.compile(r"\.\d+\Z")
Attribution = Mapping[str, Mapping[str, int]]
"""Maps each part of the breakdown to picoseconds by name."""


def attribution(
    run: Run,
    rank: RankRun,
    spent: Mapping[str, int],
    *,
    inside: tuple[BlockRun, Mapping[str, int]] | None = None,
) -> Attribution:
    """Return the names behind each part of a rank's breakdown, which is `spent`; the largest first.

    `inside` are the blocks of the run and the time of each operator in all.
    """
    repeated = None if inside is None else inside[0].repeated
    numbers: dict[str, dict[str, int]] = {}
    named = _outside(rank, repeated)
    whole = named if inside is None else _with_blocks(named, *inside, rank)
    for (part, name), time in whole.items():
        numbers.setdefault(part, {})[name] = time
    cut = repeated is None and run.execution.records.makespan < sum(spent.values())
    return {part: _fitted(numbers.get(part, {}), time, stretched=cut) for part, time in spent.items()}


def _outside(rank: RankRun, repeated: Repetition | None) -> dict[tuple[str, str], int]:
    """Return the picoseconds by part and name of a whole step, in which blocks are single nodes."""
    nodes = rank.lowered.traces.ranks[rank.position].nodes
    amounts, idle = rank.painted_whole(repeated)
    short = unnumbered(nodes.names)
    named: Counter[tuple[str, str]] = Counter({("idle", OTHER): idle})
    for part, spent in amounts.items():
        sums = np.zeros(len(nodes.names), np.int64)
        np.add.at(sums, nodes.name[rank.parts[part].rows], spent)
        for name in np.flatnonzero(sums).tolist():
            named[part, short[name]] += int(sums[name])
    return dict(named)


@lru_cache(maxsize=256)
def unnumbered(nodes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of operators and of messages without layer and micro-batch numbers."""
    return tuple(_NUMBER.sub("", name) for name in operator_names(nodes))


def _with_blocks(
    named: Mapping[tuple[str, str], int], done: BlockRun, computed: Mapping[str, int], rank: RankRun
) -> Mapping[tuple[str, str], int]:
    """Return the names with blocks replaced by their operators and inner communication."""
    outside = Counter({key: time for key, time in named.items() if key[0] != COMPUTE})
    outside.update({(COMPUTE, name): time for name, time in computed.items()})
    outside.update(_communication(done, rank))
    outside.update(in_whole_step(lambda end: _slowed(done, rank, end), done.repeated))
    return outside


def _slowed(done: BlockRun, rank: RankRun, end: int | None) -> dict[tuple[str, str], int]:
    """Return by how much messages lengthen the kernels that a rank begins before `end`."""
    nodes, times = done.trace.traces.ranks[rank.position].nodes, rank.times
    kernels = (nodes.kind == NodeKind.COMPUTE) & (nodes.bound != UNSTATED) & ~nodes.on_cpu
    if end is not None:
        kernels &= times.start < end
    longer = int((times.finish - times.start - nodes.duration)[kernels].sum())
    return {(COMPUTE, SLOWED): longer} if longer else {}


def _communication(done: BlockRun, rank: RankRun) -> Counter[tuple[str, str]]:
    """Return the communication inside the blocks that a rank begins."""
    inside, named = inside_of(done), Counter[tuple[str, str]]()
    for key, count in uses_of(done, rank).items():
        times = done.times[done.kinds[rank.position], key]
        tail = times.cuts.steps[-1] if done.blocks.blocks[key].tail else 0
        name = f"in {direction_of(key.phase)}.{key.section.name}"
        named[inside, name] += count * (times.duration - tail - times.compute)
    return named


def _fitted(named: Mapping[str, int], spent: int, *, stretched: bool) -> dict[str, int]:
    """Return the names of a part, largest first; with `other` they add up to its time.

    `stretched`: whether the run left decode steps out, which are like those that it has.
    """
    scale = spent / max(sum(named.values()), 1) if stretched else 1
    scaled = {name: round(time * scale) for name, time in named.items() if time > 0}
    scaled[OTHER] = scaled.get(OTHER, 0) + spent - sum(scaled.values())
    return {name: time for name, time in sorted(scaled.items(), key=lambda part: -abs(part[1])) if time}
