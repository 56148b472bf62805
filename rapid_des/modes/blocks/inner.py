"""The inner half: every distinct block on every distinct kind of inner group, once."""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np

from rapid_des.arrays import Int64s, digest
from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import NodeKind, NodeTable, TraceSet
from rapid_des.frontend.blocks import Block, Blocks, Cuts
from rapid_des.frontend.parts import PieceKey
from rapid_des.machine import Machine
from rapid_des.modes.execution import EngineChoice, execute
from rapid_des.program.faults.slow_gpus import on_slow_gpus
from rapid_des.program.lowering import Lowered, lower
from rapid_des.program.plans import Served
from rapid_des.program.program import NONE, Records
from rapid_des.program.routes import signatures

_WEIGHT = 1000
"""Bytes, about, that remembering a block takes beside 200 a rank."""


@dataclass(frozen=True)
class BlockTimes:
    """One block on one kind of inner group, in picoseconds."""

    cuts: Cuts
    compute: int
    """Of that, how long the first rank computes; the rest is exposed communication inside the block."""
    hops: int
    served: frozenset[Served]
    """Which algorithms the block's collectives got."""
    busiest: int = 0
    """How long its busiest link serves."""

    @property
    def duration(self) -> int:
        """From the start of the block to its last cut, once all is issued."""
        return sum(self.cuts.steps)


def block_times(  # noqa: PLR0913 - what blocks are run with, by name
    blocks: Blocks,
    machine: Machine,
    choice: EngineChoice,
    *,
    analytic: bool,
    slow: Mapping[int, Blocks],
    cache: BoundedCache,
) -> tuple[list[bytes], Mapping[tuple[bytes, PieceKey], BlockTimes]]:
    """Return each inner group's kind, and the times of every block on every kind that runs it.

    `slow` are the blocks as slowed GPUs run them; blocks that are in `cache` are not run again. Groups of one
    kind have equal routes and equal paces.
    """
    groups = blocks.inner_groups
    alike = signatures(machine, groups) if len(groups[0]) > 1 else [b""] * len(groups)
    kinds = [kind + _paces(group, machine, slow) for kind, group in zip(alike, groups, strict=True)]
    times: dict[tuple[bytes, PieceKey], BlockTimes] = {}
    for index, kind in enumerate(kinds):
        for key in blocks.keys(blocks.stage(index)):
            if (kind, key) not in times:
                block, ranks = blocks.blocks[key], groups[index]
                slowed = {rank: slow[rank].blocks[key] for rank in ranks if rank in slow}
                inputs = (ranks, slowed, machine, choice, analytic)
                times[kind, key] = _times(block, inputs, cache)
    return kinds, times


def _paces(ranks: Sequence[int], machine: Machine, slow: Container[int]) -> bytes:
    """Return which members of a group are slowed, and by what."""
    places = [(place, machine.slowed[rank]) for place, rank in enumerate(ranks) if rank in slow]
    return repr(places).encode() if places else b""


_Inputs: TypeAlias = tuple[Sequence[int], Mapping[int, Block], Machine, EngineChoice, bool]
"""The ranks, the block as slowed ones run it, the machine, the engine, whether by closed forms."""


def _times(block: Block, inputs: _Inputs, cache: BoundedCache) -> BlockTimes:
    """Return a block's times; where a host issues it, of two runs: all issued, and on a GPU that waits."""
    run = _run(block, inputs, cache, hosted=False)
    issued = () if block.hosted is None else _run(block, inputs, cache, hosted=True).passed
    return BlockTimes(Cuts.of(run.passed, issued), run.compute, run.hops, run.served, run.busiest)


@dataclass(frozen=True)
class _Passed:
    """One run of a block: when it passed its cuts, and the rest as in `BlockTimes`."""

    passed: tuple[int, ...]
    compute: int
    hops: int
    served: frozenset[Served]
    busiest: int


def _run(block: Block, inputs: _Inputs, cache: BoundedCache, *, hosted: bool) -> _Passed:
    """Run a block, unless one that runs alike on an equal machine is in the cache."""
    ranks, slowed, machine, choice, analytic = inputs
    own = {rank: other.on(ranks, hosted=hosted) for rank, other in slowed.items()}
    traces = on_slow_gpus(block.on(ranks, hosted=hosted), own)

    def run() -> _Passed:
        lowered = lower(traces, machine, analytic=analytic, cache=cache)
        records = execute(lowered.program, choice, name=lowered.name).records
        finish = [records.finish[_visits_of_nodes(lowered, rank)] for rank in range(len(traces.ranks))]
        return _Passed(
            passed=block.passed(np.max(finish, axis=0).tolist(), hosted=hosted),
            compute=_computes(lowered, records),
            hops=records.hops,
            served=lowered.served,
            busiest=int(records.link_busy.sum(axis=1).max(initial=0)),
        )

    key = (machine, key_of(traces, choice, analytic=analytic), block.cuts)
    return cache.get_or_make(key, run, weight=lambda _: _WEIGHT + 200 * len(traces.ranks))


def _visits_of_nodes(lowered: Lowered, position: int) -> Int64s:
    table = lowered.program.programs[lowered.program.bindings[position].program]
    visits: Int64s = np.flatnonzero(table.node != NONE)
    return visits + int(lowered.program.visits()[position])


def _computes(lowered: Lowered, records: Records) -> int:
    """Return how long the first rank's compute stream serves: its visits follow one another."""
    visits, nodes = _visits_of_nodes(lowered, 0), lowered.traces.ranks[0].nodes
    serves = (nodes.kind == NodeKind.COMPUTE) & ~nodes.on_cpu
    return int((records.finish[visits] - records.start[visits])[serves].sum())


_LABELS = frozenset({"ids", "name", "names"})
"""Columns that are for people: two tables that differ in nothing else run alike."""


def key_of(traces: TraceSet, choice: EngineChoice, *, analytic: bool) -> Hashable:
    """Return what the run of a trace set follows from on a given machine, by value.

    Groups count by their members, in order, and not by their names.
    """
    contents: dict[int, bytes] = {}
    ranks = []
    for one, table in zip(traces.ranks, traces.table_numbers(), strict=True):
        content = contents.get(table) or contents.setdefault(table, _digest(one.nodes))
        ranks.append((one.rank, content, tuple(traces.groups[name] for name in one.groups), one.peers))
    return ("run", tuple(ranks), traces.unordered_streams, choice.engine, choice.fold, analytic)


def _digest(table: NodeTable) -> bytes:
    columns = (getattr(table, column.name) for column in fields(table) if column.name not in _LABELS)
    return digest(
        *(column for column in columns if isinstance(column, np.ndarray)), label=repr(table.streams)
    )
