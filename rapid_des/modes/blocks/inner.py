"""The inner half: every distinct block on every kind of inner group, once; what a block mode returns."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s, fingerprint
from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import UNSTATED, NodeKind, TraceSet
from rapid_des.errors import UnsupportedByEngine
from rapid_des.frontend.blocks import Cuts, JobBlocks, PipelineBlock
from rapid_des.frontend.parts import PieceKey
from rapid_des.frontend.trace import FinishedProgram, JobTrace
from rapid_des.machine import Machine
from rapid_des.modes.blocks.reach import (
    Outside,
    Sharing,
    basis_of,
    group_keys,
    keys_beside_health,
    lowered_on,
)
from rapid_des.modes.blocks.replicas import lowered_mates
from rapid_des.modes.blocks.steady import Repetition
from rapid_des.modes.execution import EngineChoice, Run, execute, on_idle_links
from rapid_des.modes.mode_bound import UNBOUNDED, ModeBound
from rapid_des.program.collectives.plans import ServedCollective
from rapid_des.program.faults.slow_gpus import on_slow_gpus
from rapid_des.program.lowering import Lowered, lower
from rapid_des.program.program import NONE, Records
from rapid_des.units import Duration
from rapid_des.values import replace

_WEIGHT = 1000
"""Bytes, about, that remembering a block takes beside 200 a rank."""
_LABELS = frozenset({"ids", "name", "names"})
"""Columns that are for people: two tables that differ in nothing else run alike."""


class BlockTimes(Struct, frozen=True):
    """One block on one kind of inner group, in picoseconds."""

    cuts: Cuts
    compute: int
    """The compute time of the first rank in it; the rest is exposed communication inside the block."""
    hops: int
    served: frozenset[ServedCollective]
    """The algorithms that the block's collectives got."""
    busiest: int = 0
    """The longest time that its busiest link serves."""
    skew: int = 0
    """Its first rank is done this many picoseconds before its last."""

    @property
    def duration(self) -> int:
        """The time from the start of the block to its last cut, once all is issued."""
        return sum(self.cuts.steps)


def block_times(  # noqa: PLR0913 - what blocks are run with, by name
    blocks: JobBlocks,
    machine: Machine,
    choice: EngineChoice,
    *,
    analytic: bool,
    slow: Mapping[int, JobBlocks],
    cache: BoundedCache,
) -> tuple[list[bytes], Mapping[tuple[bytes, PieceKey], BlockTimes]]:
    """Return each inner group's kind, and the times of every block on every kind that runs it.

    `slow` are the blocks as slowed GPUs run them; blocks that are in `cache` are not run again. Groups of one
    kind have equal routes and equal paces.
    """
    groups = blocks.run_groups
    apart = list(dict.fromkeys(groups))
    known_keys = group_keys(machine, [apart], cache) if len(groups[0]) > 1 else [b""] * len(apart)
    of_group = dict(zip(apart, known_keys, strict=True))
    alike = [of_group[group] for group in groups]
    kinds = [kind + _paces(group, machine, slow) for kind, group in zip(alike, groups, strict=True)]
    first: dict[tuple[bytes, PieceKey], tuple[int, ...]] = {}
    for index, kind in enumerate(kinds):
        for key in blocks.keys(blocks.stage(index)):
            first.setdefault((kind, key), groups[index])
    each = replace(choice, programs=choice.programs * len(first))
    basis = basis_of(machine, len(groups[0]), cache)
    times: dict[tuple[bytes, PieceKey], BlockTimes] = {}
    for (kind, key), ranks in first.items():
        slowed = {rank: slow[rank].blocks[key] for rank in ranks if rank in slow}
        inputs = _Inputs(ranks, slowed, machine, each, analytic, (*basis, kind))
        make = partial(_times, blocks.blocks[key], inputs, cache)
        if machine.slowed:  # of which every machine has blocks of its own
            times[kind, key] = make()
            continue
        known = ("times", inputs.basis, blocks, key, ranks, choice.engine, choice.fold, analytic)
        times[kind, key] = cache.get_or_make(known, make, weight=lambda _: _WEIGHT)
    return kinds, times


def _paces(ranks: Sequence[int], machine: Machine, slow: Container[int]) -> bytes:
    """Return which members of a group are slowed, and by what."""
    places = [(place, machine.slowed[rank]) for place, rank in enumerate(ranks) if rank in slow]
    return repr(places).encode() if places else b""


class _Inputs(Struct, frozen=True):
    """What a block is run on."""

    ranks: Sequence[int]
    slowed: Mapping[int, PipelineBlock]
    """The block as slowed ranks run it."""
    machine: Machine
    choice: EngineChoice
    analytic: bool
    """Whether by closed forms."""
    basis: tuple[Hashable, ...]
    """The values that it depends on besides its traces."""


def _times(block: PipelineBlock, inputs: _Inputs, cache: BoundedCache) -> BlockTimes:
    """Return a block's times; where a host issues it, of two runs: all issued, and on a GPU that waits."""
    run = _run(block, inputs, cache, hosted=False)
    issued: tuple[int, ...] = ()
    if block.hosted:
        begins = _begins(_traces(block, inputs, hosted=True), run, inputs.machine)
        if begins is None:
            issued = _run(block, inputs, cache, hosted=True).passed
        else:
            issued = tuple(moment + begins for moment in run.passed)
    cuts = Cuts.of(run.passed, issued)
    return BlockTimes(cuts, run.compute, run.hops, run.served, run.busiest, run.skew)


def _begins(hosted: TraceSet, run: _Passed, machine: Machine) -> int | None:
    """Return by how much later a whole block runs on a GPU that waits for its host; None: unknown.

    A host issues the first node, and nothing may start before. If it has issued each other node before that
    node would start, the host makes no further difference: everything runs that much later. This holds for
    streams in program order; it does not hold where messages choose routes by load.
    """
    tables = dict.fromkeys(rank.nodes for rank in hosted.ranks)
    if hosted.unordered_streams or machine.switching.spray is not None:
        return None
    begins = set()
    for table in tables:
        if (table.issuer[1:] == UNSTATED).any():
            return None
        issued = np.maximum(table.issued[1:], 1)
        begins.add(first := int(issued.min()))
        if (issued > run.starts + first).any():
            return None
    return begins.pop() if len(begins) == 1 else None


def _traces(block: PipelineBlock, inputs: _Inputs, *, hosted: bool) -> TraceSet:
    """Return the traces of a block on all of its ranks."""
    slowed = {rank: other.on(inputs.ranks, hosted=hosted) for rank, other in inputs.slowed.items()}
    return on_slow_gpus(block.on(inputs.ranks, hosted=hosted), slowed)


class _Passed(Struct, frozen=True, eq=False):
    """One run of a block: when it passed its cuts, and the rest as in `BlockTimes`."""

    passed: tuple[int, ...]
    starts: Int64s
    """The times at which its nodes started, each on the rank that was first."""
    compute: int
    hops: int
    served: frozenset[ServedCollective]
    busiest: int
    skew: int


def _run(block: PipelineBlock, inputs: _Inputs, cache: BoundedCache, *, hosted: bool) -> _Passed:
    """Run a block, unless one that runs alike on an equal machine is in the cache."""
    choice, analytic = inputs.choice, inputs.analytic
    traces = _traces(block, inputs, hosted=hosted)

    def run() -> _Passed:
        lowered = _lowered(traces, inputs, cache)
        records = execute(lowered.program, choice, name=lowered.name).records
        visits = list(visits_of_nodes(lowered))
        of_ranks = np.array([records.finish[rank_visits] for rank_visits in visits])
        ends, finish = of_ranks.max(axis=1), of_ranks.max(axis=0)
        return _Passed(
            passed=block.passed(finish.tolist(), hosted=hosted),
            starts=np.min([records.start[rank_visits] for rank_visits in visits], axis=0),
            compute=_computes(lowered, records),
            hops=records.hops * lowered.copies,
            served=lowered.served,
            busiest=_busiest(lowered, records, analytic=analytic),
            skew=int(ends.max() - ends.min()),
        )

    key = (inputs.basis, key_of(traces, choice, analytic=analytic), block.cuts)
    return cache.get_or_make(
        key, run, weight=lambda run: _WEIGHT + 200 * len(traces.ranks) + run.starts.nbytes
    )


def _lowered(traces: TraceSet, inputs: _Inputs, cache: BoundedCache) -> Lowered:
    def make(machine: Machine) -> Lowered:
        return lower(traces, machine, cache=cache)

    machine = inputs.machine
    if inputs.analytic:
        play = on_idle_links(traces, machine, inputs.choice, cache)
        lines = traces.table_numbers()
        mates = lowered_mates(traces, lines, machine, play, cache) if inputs.choice.fold else None
        return mates[0] if mates else lower(traces, machine, analytic=True, play=play, cache=cache)
    if inputs.basis[0] is machine:
        return make(machine)
    key = key_of(traces, inputs.choice, analytic=False)
    return lowered_on(machine, cache, key, make, _WEIGHT * len(traces.ranks[0].nodes))


def visits_of_nodes(lowered: Lowered) -> Iterator[Int64s]:
    """Yield the visits of each rank's nodes."""
    program = lowered.program
    own = [np.flatnonzero(table.node != NONE) for table in program.programs]
    for binding, first in zip(program.bindings, program.visits()[:-1].tolist(), strict=True):
        yield own[binding.program] + first


def times_alone(lowered: Lowered) -> Iterator[Int64s]:
    """Yield how long what each rank's nodes send lasts where nothing takes links."""
    program = lowered.program
    lasts = np.array([template.edge_lag.max(initial=0) for template in program.templates] + [0], np.int64)
    own = [lasts[table.template[table.node != NONE]] for table in program.programs]
    return (own[binding.program] for binding in program.bindings)


def _busiest(lowered: Lowered, records: Records, *, analytic: bool) -> int:
    """Return how long the busiest link serves; where nothing takes links, what a rank sends lasts."""
    if analytic:
        return int(next(times_alone(lowered)).sum())
    return int(records.link_busy[lowered.program.route_links].sum(axis=1).max(initial=0))


def _computes(lowered: Lowered, records: Records) -> int:
    """Return how long the first rank computes, on one stream or several."""
    visits, nodes = next(visits_of_nodes(lowered)), lowered.traces.ranks[0].nodes
    visits = visits[(nodes.kind == NodeKind.COMPUTE) & ~nodes.on_cpu]
    visits = visits[np.argsort(records.start[visits], kind="stable")]
    start, finish = records.start[visits], np.maximum.accumulate(records.finish[visits])
    start[1:] = np.maximum(start[1:], finish[:-1])
    return int(np.maximum(finish - start, 0).sum())


def key_of(traces: TraceSet, choice: EngineChoice, *, analytic: bool) -> Hashable:
    """Return what the run of a trace set follows from on a given machine, by value.

    Groups count by their members, in order, and not by their names.
    """
    contents: dict[int, bytes] = {}
    ranks = []
    for rank, table in zip(traces.ranks, traces.table_numbers(), strict=True):
        content = contents.get(table) or contents.setdefault(table, fingerprint(rank.nodes, without=_LABELS))
        ranks.append((rank.rank, content, tuple(traces.groups[name] for name in rank.groups), rank.peers))
    how = (traces.unordered_streams, traces.libraries, traces.exchanges)
    return ("run", tuple(ranks), *how, choice.engine, choice.fold, analytic)


def representatives(
    machine: Machine, places: Sequence[Outside], cache: BoundedCache, *, strict: bool
) -> tuple[int, ...]:
    """Return the places whose data-parallel groups and pipelines the outer graphs simulate, ascending.

    `places` are, for each place in an inner group, the lines of ranks at that place. Members of a block start
    and end it together, so the slowest place leads: one that faults hit, the first of those that they hit
    alike. With `strict` an `UnsupportedByEngine` refuses faults that hit places differently: such places
    delay each other.
    """
    if not machine.faults:
        return (0,)
    tables = [table.tolist() for lines in places for _, table in lines if len(table)]
    keys, healthy = keys_beside_health(machine, [[*map(tuple, table)] for table in tables], cache)
    hit = dict[tuple[bytes, ...], int]()
    ends = np.cumsum([0, *(sum(len(table) for _, table in lines) for lines in places)]).tolist()
    for place, (begin, end) in enumerate(pairwise(ends)):
        if keys[begin:end] != healthy[begin:end]:
            hit.setdefault(tuple(keys[begin:end]), place)
    if len(hit) > 1 and strict:
        named = ", ".join(map(str, list(hit.values())[:8]))
        raise UnsupportedByEngine(
            f"{machine.path}: faults hit the pipeline or data-parallel routes of places {named} of the inner "
            "groups differently; strict hierarchical execution follows one place: use --mode flattened"
        )
    return tuple(hit.values()) or (0,)


def places_notes(places: Sequence[int], steps: Sequence[int]) -> tuple[str, ...]:
    """Return the note where several places were simulated; `steps` are their picoseconds."""
    if len(places) == 1:
        return ()
    return (
        f"faults hit places {', '.join(map(str, places[:8]))} of inner groups differently; each was "
        f"simulated alone, for {Duration(min(steps))} to {Duration(max(steps))}, and the slowest is shown: "
        "how they delay each other is left out",
    )


class BlockMode(Struct, frozen=True):
    """One mode: which half is simulated on the fabric, which is priced by closed forms."""

    name: str
    inner_analytic: bool
    outer_analytic: bool
    leaves_out: str

    @property
    def note(self) -> str:
        """What a report says of the mode."""
        return f"mode {self.name}: {self.leaves_out}"


_MODES = (
    BlockMode(
        name="hierarchical",
        inner_analytic=False,
        outer_analytic=False,
        leaves_out="each block runs alone, as if all ranks of its inner group entered it together; traffic "
        "inside blocks does not meet the traffic between them; the gradient norm is summed over one rank of "
        "each inner group",
    ),
    BlockMode(
        name="hybrid",
        inner_analytic=False,
        outer_analytic=True,
        leaves_out="as hierarchical, and messages between blocks do not wait for one another",
    ),
    BlockMode(
        name="analytical",
        inner_analytic=True,
        outer_analytic=True,
        leaves_out="no collective or message waits for another; a large collective takes the longer of its "
        "zero-load chain and its busiest link",
    ),
)

BLOCK_MODES: Mapping[str, BlockMode] = {mode.name: mode for mode in _MODES}


class BlockRun(Struct, frozen=True):
    """A run of a block mode: the outer graph as executed, and the blocks behind its compute nodes."""

    mode: BlockMode
    blocks: JobBlocks
    slow: Mapping[int, JobBlocks]
    trace: JobTrace
    run: Run
    kinds: Sequence[bytes]
    """The kind of the inner group of each outer rank that was lowered."""
    times: Mapping[tuple[bytes, PieceKey], BlockTimes]
    wall_s: float
    shared: Sharing
    """Which links carry what was simulated apart."""
    repeated: Repetition | None = None
    """The stretch of the run that stands for more of the same; None: the run is the whole step."""
    bound: ModeBound = UNBOUNDED
    """The bound of the flattened step, once `bounded` has worked it out."""

    @property
    def step(self) -> int:
        """The whole step, in picoseconds."""
        return self.run.execution.records.makespan + (self.repeated.left_out if self.repeated else 0)

    @property
    def simulated_hops(self) -> int:
        """Link hops of all simulations together."""
        return self.run.execution.records.hops + sum(block.hops for block in self.times.values())

    @property
    def served(self) -> frozenset[ServedCollective]:
        """The algorithms that collectives got, inside blocks and between them."""
        return self.run.lowered.served.union(*(block.served for block in self.times.values()))

    def outer_programs(self) -> Sequence[FinishedProgram]:
        """Return the outer program of the whole step of each stage's ranks."""
        if self.repeated is None:
            return self.trace.programs
        return [self.blocks.outer_program(stage, {}) for stage in range(self.blocks.job.stages)]

    def followed(self, rank: int) -> int:
        """Return the rank of the outer graph that does what a rank does; the rank itself if none does."""
        lowered = self.run.lowered
        present = {binding.rank for binding in lowered.program.bindings}
        group = next((group for group in self.blocks.inner_groups if rank in group), (rank,))
        while present.isdisjoint(group) and lowered.replicas is not None:
            group = tuple(lowered.replicas.image[list(group)].tolist())
            if rank in group:
                break
        return next((member for member in group if member in present), rank)
