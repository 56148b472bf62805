"""What slow links reach, and what need not be worked out again for links that they do not.

Constant faults that leave all links alive change no route and no plan of a collective: of a program they
change the services of messages, of groups the keys of those whose routes they stand on.

`Sharing` says which links carry traffic that block modes simulate apart: of blocks, and between them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Bools, Int64s, digest, distinct, fingerprint
from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import NodeTable, TraceSet
from rapid_des.errors import UnsupportedByEngine
from rapid_des.frontend.trace import JobTrace
from rapid_des.machine import Machine
from rapid_des.modes.execution import EngineChoice, Run, execute
from rapid_des.network.fabric import Routes
from rapid_des.program.expansions import Expanded
from rapid_des.program.lowering import Lowered, lower
from rapid_des.program.program import RankBinding, RankProgram
from rapid_des.program.routes import COMPARED, Reach, all_pairs, compared_pairs, known_signatures, signatures
from rapid_des.program.services import hop_table
from rapid_des.program.switch_trees import tree_pairs
from rapid_des.values import replace

_Made = TypeVar("_Made")
BYTES_A_NODE = 200
"""What remembering a program takes, about."""
_TIMES = frozenset({"duration", "issued"})
"""Columns that lowering leaves open: how long nodes take, and when a host issues them."""
Outside: TypeAlias = Sequence[tuple[str, Int64s]]
"""Groups of ranks outside blocks: what each table is of (pp, dp, cp or ep), and a row a group."""


def basis_of(machine: Machine, members: int, cache: BoundedCache) -> tuple[Hashable, ...]:
    """Return what of a machine a block on `members` GPUs runs by, besides its routes and the GPUs' paces.

    Who plans collectives knows of no fault, unless links are dead.
    """
    if not keeps_routes(machine) or members > COMPARED:
        return (machine,)
    return healthy_of(machine, cache), int(machine.fabric.bandwidth.max(initial=0))


def keeps_routes(machine: Machine) -> bool:
    """Whether messages take the routes of the healthy machine, each for itself."""
    return not (machine.dead or machine.in_switches or machine.switching.spray is not None)


def healthy_of(machine: Machine, cache: BoundedCache) -> Machine:
    """Return the machine without its faults, the same object for all that are equal."""
    healthy = machine.unfaulted
    return cache.get_or_make(("machine", healthy), lambda: healthy)


def _changed(machine: Machine) -> Int64s:
    """Return the links that constant faults have slowed."""
    fabric, healthy = machine.fabric, machine.healthy
    return np.flatnonzero((fabric.bandwidth != healthy.bandwidth) | (fabric.latency != healthy.latency))


def group_keys(
    machine: Machine, tables: Sequence[Sequence[tuple[int, ...]]], cache: BoundedCache
) -> list[bytes]:
    """Return the key of each group as `signatures` does; `tables` are of groups of one size each."""
    if not machine.faults:
        return [key for table in tables for key in known_signatures(machine, table, cache)]
    return keys_beside_health(machine, tables, cache)[0]


def keys_beside_health(
    machine: Machine, tables: Sequence[Sequence[tuple[int, ...]]], cache: BoundedCache
) -> tuple[list[bytes], list[bytes]]:
    """Return the key of each group, and what it is without faults: the same where none slows the group."""

    def make() -> tuple[list[bytes], Reach]:
        pairs = [pair for table in tables for pair in compared_pairs(table)]
        return [key for table in tables for key in signatures(healthy, table)], Reach.of(healthy, pairs)

    healthy = healthy_of(machine, cache)
    key = ("signatures", healthy, tuple(map(tuple, tables)))
    known, reach = cache.get_or_make(key, make, weight=lambda made: 64 * len(made[0]) + made[1].links.nbytes)
    if not keeps_routes(machine):
        return [key for table in tables for key in signatures(machine, table)], known
    keys, groups = list(known), [group for table in tables for group in table]
    for group in reach.users_of(_changed(machine)):
        (keys[group],) = signatures(machine, [groups[group]])
    return keys, known


def kept(
    machine: Machine, cache: BoundedCache, key: Hashable, make: Callable[[], _Made], weight: int
) -> _Made:
    """Return what `make` makes of a machine's routes alone: once for all faults that leave these."""
    if not keeps_routes(machine):
        return make()
    return cache.get_or_make((key, machine.unfaulted.network), make, weight=lambda _: weight)


def in_health(
    machine: Machine, cache: BoundedCache, key: Hashable, make: Callable[[Machine], Lowered], weight: int
) -> Lowered:
    """Return what `make` lowers on the machine without its faults, once.

    `key` is what the program follows from besides the machine, `weight` about how many bytes it takes.
    """
    healthy = healthy_of(machine, cache)
    whole = ("lowered", healthy, key)
    return cache.get_or_make(whole, lambda: make(healthy), weight=lambda _: weight)


def lowered_on(
    machine: Machine, cache: BoundedCache, key: Hashable, make: Callable[[Machine], Lowered], weight: int
) -> Lowered:
    """Return what `make` lowers on a machine: where faults only slow links, by what it is in health."""
    if not machine.faults or not keeps_routes(machine):
        return make(machine)
    return slowed(in_health(machine, cache, key, make, weight), machine, make)


def lower_again(lowered: Lowered, traces: TraceSet, machine: Machine) -> Lowered:
    """Return what `lower` makes of traces that differ from those of a program by durations alone.

    What a host needs to issue a node is such a duration too.
    """
    numbers: dict[tuple[int, NodeTable], int] = {}
    programs, expanded, bindings = list[RankProgram](), list[Expanded](), list[RankBinding]()
    ranks = zip(lowered.program.bindings, lowered.traces.ranks, traces.ranks, strict=True)
    for binding, before, rank in ranks:
        key = (binding.program, rank.nodes)
        if key not in numbers:
            numbers[key] = len(programs)
            program, known = lowered.program.programs[binding.program], lowered.expanded[binding.program]
            if rank.nodes is not before.nodes:
                program = known.program(rank.nodes, machine.device, traces, overlap=False)
            programs.append(program)
            expanded.append(known)
        bindings.append(replace(binding, program=numbers[key]))
    whole = replace(lowered.program, bindings=tuple(bindings), programs=tuple(programs))
    return replace(lowered, program=whole, traces=traces, expanded=tuple(expanded))


def slowed(lowered: Lowered, machine: Machine, make: Callable[[Machine], Lowered]) -> Lowered:
    """Return what `make` lowers on a machine with constant faults, given the same without them."""
    if not _follows_from_rates(lowered, machine):
        return make(machine)
    program, sizes = lowered.program, lowered.sizes
    routes = Routes(program.route_starts, program.route_links.astype(np.int64))
    services = machine.fabric, machine.switching, routes, sizes.all()
    hops, classes = hop_table(*services, whole=sizes.whole())
    return replace(lowered, program=replace(program, hops=hops, route_class=classes))


def _follows_from_rates(lowered: Lowered, machine: Machine) -> bool:
    """Whether a program on slower links differs by the services of messages alone."""
    switching, program = machine.switching, lowered.program
    plain = switching.mode != "fluid" and switching.congestion is None and program.delays is None
    fastest = machine.fabric.bandwidth.max(initial=0) == machine.healthy.bandwidth.max(initial=0)
    return bool(plain and fastest and lowered.replicas is None and program.links == len(machine.fabric))


def run_again(
    trace: JobTrace, machine: Machine, choice: EngineChoice, cache: BoundedCache, how: tuple[bool, bool]
) -> Run:
    """Run an outer graph on links that constant faults have slowed, unless equal ones ran it before."""
    repeats, trail = how

    def make(wanted: Machine) -> Lowered:
        return lower(trace.traces, wanted, repeats=repeats, cache=cache)

    def run() -> tuple[TraceSet, Run]:
        lowered = slowed(healthy, machine, make)
        done = execute(lowered.program, choice, trail=trail, name=lowered.name)
        return trace.traces, Run(lowered, done, machine)

    ranks = trace.traces.ranks
    weight = sum(BYTES_A_NODE * len(table) for table in dict.fromkeys(rank.nodes for rank in ranks))
    tables = tuple((rank.rank, rank.nodes) for rank in ranks)
    healthy = _in_health(trace, machine, cache, make, (repeats, weight))
    links, fabric = healthy.program.route_links, machine.fabric
    if len(links) and int(links.max()) >= len(fabric):
        return run()[1]
    rates = digest(fabric.bandwidth[links], fabric.latency[links], label=str(fabric.bandwidth.max(initial=0)))
    key = ("outer run", healthy_of(machine, cache), tables, repeats, rates, trail, choice.engine, choice.fold)
    known = cache.get_or_make(key, run, weight=lambda made: weight + made[1].nbytes)
    return replace(known[1], machine=machine)


def _in_health(
    trace: JobTrace,
    machine: Machine,
    cache: BoundedCache,
    make: Callable[[Machine], Lowered],
    how: tuple[bool, int],
) -> Lowered:
    """Return what an outer graph is lowered to on the machine without its faults.

    Graphs whose blocks take longer share all but that with the first of them.
    """
    repeats, weight = how
    groups, ranks = trace.traces.groups, trace.traces.ranks
    shapes = {
        table: cache.get_or_make(("shape", table), partial(fingerprint, table, without=_TIMES))
        for table in dict.fromkeys(rank.nodes for rank in ranks)
    }
    shape = tuple(
        (rank.rank, shapes[rank.nodes], tuple((name, groups[name]) for name in rank.groups), rank.peers)
        for rank in ranks
    )
    first = in_health(machine, cache, (trace.job, shape, repeats), make, weight)
    return lower_again(first, trace.traces, machine)


_BATCH = 1 << 18
"""Pairs that are routed at a time."""
_NEVER = 1 << 62


class Sharing(Struct, frozen=True):
    """Which links carry what block modes simulate apart: for each link of the fabric who takes it."""

    inside: Int64s
    """The number of inner groups whose blocks take it."""
    places: Int64s
    """The number of places of inner groups whose pipelines and data-parallel groups use it."""
    groups: Mapping[str, Int64s]
    """The number of groups outside blocks that take it, by what they are of: pp, dp, cp, ep."""
    direct: Bools
    """Whether it joins two GPUs, which pass on what is not for them."""
    passed_on: frozenset[str]
    """The kinds of groups whose members pass on messages of their own group: those of three or more."""

    @property
    def met(self) -> Int64s:
        """The links on which something waits for what `hierarchical` simulates apart."""
        return np.flatnonzero(self.inside + self.places > 1)

    def on(self, links: Int64s) -> Sharing:
        """Return who takes some of the links."""
        groups = {kind: crossed[links] for kind, crossed in self.groups.items()}
        return Sharing(self.inside[links], self.places[links], groups, self.direct[links], self.passed_on)

    def waits(self, inside: int, between: Int64s) -> Int64s:
        """Return for how long a stage waits at most on each link for what `hierarchical` simulates apart.

        `inside` is how long its blocks keep their busiest link busy, `between` [link] how long what one place
        sends keeps a link like it, both picoseconds of the whole step. Links serve in order of arrival, so a
        small message may wait for a large one each time: only the work of the others bounds the waiting.
        """
        others = np.where(self.inside > 0, self.places, np.maximum(self.places - 1, 0))
        work: Int64s = others * between + np.maximum(self.inside - 1, 0) * inside
        return np.where(self.inside + self.places > 1, work, 0)

    def waits_of_closed_forms(self, inside: int, busy: Mapping[str, int]) -> Int64s:
        """Return the same where groups outside blocks do not meet either.

        `busy` is for how long a group of each kind is under way alone: no link of it serves it for longer.
        """
        none = np.zeros_like(self.inside)
        between = {kind: groups * busy.get(kind, 0) for kind, groups in self.groups.items()}
        # who waits is a block, or where none takes the link the group that is served for the least time
        least = np.full_like(none, _NEVER)
        for kind, work in between.items():
            least = np.where(work > 0, np.minimum(least, busy.get(kind, 0)), least)
        # where members pass on each other's messages, a collective meets the rest of the one before
        met = [crossed > 0 for kind, crossed in self.groups.items() if kind in self.passed_on]
        meets_itself = self.direct & np.any([none > 0, *met], axis=0)
        # a stage sends to the one before and to the one behind it at once
        meets_itself |= (self.groups.get("pp", none) > 0) & ("pp" in self.passed_on)
        own = np.where((self.inside > 0) | (least == _NEVER) | meets_itself, 0, least)
        waits: Int64s = sum(between.values(), none) - own + np.maximum(self.inside - 1, 0) * inside
        return waits


def sharing(machine: Machine, inner: Sequence[Sequence[int]], outer: Sequence[Outside]) -> Sharing:
    """Return who takes which link.

    `inner` are the inner groups. `outer` is, for each place in an inner group, what the ranks at that place
    exchange data in outside (data-parallel groups, pipelines): tables of groups, with what they are of.
    """
    inside = np.zeros(len(machine.fabric), np.int64)
    places = np.zeros(len(machine.fabric), np.int64)
    groups: dict[str, Int64s] = {}
    passed_on: set[str] = set()
    if len(inner[0]) > 1:
        _require_one_switch(machine, inner)
        inside[_links(machine, tree_pairs(machine, inner))] = 1
        inside = np.maximum(inside, _groups_on(machine, all_pairs(inner), len(inner)))
    for tables in outer:
        taken = np.zeros(len(machine.fabric), np.bool_)
        for kind, table in tables:
            if not len(table):
                continue
            crossed = _groups_on(machine, _neighbours(table), len(table))
            groups[kind] = groups.get(kind, 0) + crossed
            passed_on |= {kind} if table.shape[1] > 2 else set()
            taken |= crossed > 0
            if machine.in_switches:
                taken[_links(machine, tree_pairs(machine, table.tolist()))] = True
        places += taken
    fabric = machine.fabric
    direct = (fabric.source < fabric.gpus) & (fabric.destination < fabric.gpus)
    return Sharing(inside, places, groups, direct, frozenset(passed_on))


def _require_one_switch(machine: Machine, inner: Sequence[Sequence[int]]) -> None:
    """Refuse trees of switches over inner groups: parts of a group may have other trees than the whole."""
    trees = machine.switch_trees
    switched = [trees.over(tuple(group)) for group in inner] if machine.in_switches else []
    if any(tree is not None and len(tree.switches) > 1 for tree in switched):
        raise UnsupportedByEngine(
            f"{machine.path}: ranks of one block stand below several switches, and collectives work inside "
            "switches: hierarchical execution cannot attribute their links to blocks: use --mode flattened"
        )


def _links(machine: Machine, pairs: Int64s) -> Int64s:
    blocks = np.zeros(len(machine.fabric), np.bool_)
    for begin in range(0, len(pairs), _BATCH):
        blocks[machine.router.routes(pairs[begin : begin + _BATCH]).links] = True
    return np.flatnonzero(blocks)


def _groups_on(machine: Machine, pairs: Int64s, groups: int) -> Int64s:
    """Return [link] the number of groups that use it; `pairs` are those of each group, in order."""
    links = len(machine.fabric)
    used = [np.zeros(0, np.int64)]
    for begin in range(0, len(pairs), _BATCH):
        routes = machine.router.routes(pairs[begin : begin + _BATCH])
        flow = begin + np.repeat(np.arange(len(routes)), np.diff(routes.starts))
        used.append(_distinct(flow // (len(pairs) // groups), routes.links, links))
    return np.bincount(distinct(np.concatenate(used)) % links, minlength=links)


def _distinct(groups: Int64s, links: Int64s, number: int) -> Int64s:
    """Return each pair of a group (ascending) and a link once, as group · links + link.

    NOTE: `np.unique` of all pairs sorts; most links have one group, which two assignments find.
    """
    begin = int(links.min(initial=number))
    near = links - begin
    first, last = np.full((2, int(near.max(initial=-1)) + 1), -1)
    last[near], first[near[::-1]] = groups, groups[::-1]
    alone = np.flatnonzero((first == last) & (last >= 0))
    several = first[near] != last[near]
    singly = last[alone] * number + begin + alone
    return np.concatenate((singly, distinct((groups * number + links)[several])))


def _neighbours(table: Int64s) -> Int64s:
    """Return the pairs of neighbours of each group in both directions, group by group."""
    pairs = [np.stack((table, np.roll(table, step, axis=1)), 2) for step in (1, -1)]
    return np.concatenate(pairs, axis=1).reshape(-1, 2)
