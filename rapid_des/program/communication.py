"""What collectives and messages become (templates), and what they cost kernels beside them.

A template is a library's, or one of the machine's own algorithms. Where nothing takes a link (`analytic`)
each lasts as long as it would alone.

A collective's kernel keeps SMs to itself: NCCL's blocks do not share them with other kernels (its maintainer
in github.com/NVIDIA/nccl, issue 689), and its data pass HBM two or three times (issue 1428). What is left:

    time beside = launch + busy · max(S / (S - taken), u · B / (B - taken))

of S SMs and B bytes a second of HBM. The first holds for kernels that the chip bounds (arithmetic, shared
memory, L2, whose ports are the SMs'), smoothly: a last wave of blocks that just fills the whole GPU takes up
to twice as long, one that has room for more does not. u is the share of the bandwidth that the kernel uses
itself, 1 if that bounds it. Who wants all of the memory gets half of it at least.

Every stream is a digit: 0 while it serves nothing that takes anything, else which of the different
`Occupancy` of its visits. The sum of the digits' weights is a column of the table that engines look shares
up in.

Messages take multiprocessors and memory bandwidth, and are not slowed. Kernels on two streams share what
both need: of the chip (products and vectors in it) and of the memory each uses so much on average over its
time alone; where both together use more than all of it they go on at one rate that uses all. So a pair takes
no less than either kernel alone, or than the chip or the memory needs for both, and no more than one after
the other.
Places on multiprocessors are not followed: blocks that memory holds up are taken to leave some free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import ceil, prod
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np

from rapid_des.arrays import Floats, Int32s, Int64s, distinct, distinct_rows
from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import BOUNDS, UNSTATED, Exchange, NodeKind, NodeTable, TraceSet
from rapid_des.device.device import Device
from rapid_des.device.operators import Bound
from rapid_des.errors import UnsupportedByEngine
from rapid_des.machine import Machine
from rapid_des.network.collectives.libraries.library import library_name
from rapid_des.network.collectives.libraries.nccl import LibraryCost
from rapid_des.network.collectives.schedule import Schedule
from rapid_des.network.collectives.token_exchange import exchange_schedule
from rapid_des.network.specs import LibraryChoice, Nccl
from rapid_des.program import library
from rapid_des.program.analytic import alone, fixed_message, fixed_template, message_alone, plan_alone
from rapid_des.program.builders import NOTHING, Expansion, Occupancy, rank_program, service_times
from rapid_des.program.groups import GroupTable
from rapid_des.program.idle import MOST_MEMBERS, IdleTimes, Play, plan_schedules
from rapid_des.program.library import LaidOut, Libraries
from rapid_des.program.plans import SEND, AxisPhase, Call, CollectivePlan, Served, served_by
from rapid_des.program.program import NONE, Contention, RankProgram, Template
from rapid_des.program.replicas import cut_of
from rapid_des.program.routes import signatures
from rapid_des.program.services import Sizes
from rapid_des.program.templates import Templates
from rapid_des.program.timetable import ALONE
from rapid_des.units import PS_PER_S

if TYPE_CHECKING:
    from rapid_des.program.choosing import Planner

Ranks = tuple[int, ...]
Plans: TypeAlias = Mapping[Call, CollectivePlan]
"""How the machine's algorithms do each collective."""


def planner_of(
    machine: Machine,
    memory: BoundedCache | None = None,
    *,
    repeats: bool = False,
    families: Sequence[Int64s] = (),
) -> Planner:
    """Return what plans collectives: around dead links, if a constant fault of the machine asks for that."""
    if not machine.replans:
        from rapid_des.program.choosing import Planner

        return Planner(machine, memory, repeats=repeats, families=families)
    from rapid_des.program.faults.planning import FaultPlanner

    return FaultPlanner(machine, memory, repeats=repeats, families=families)


def _occupancy(cost: LibraryCost) -> Occupancy:
    """Return what a library takes of each GPU while it needs its time."""
    return Occupancy(cost.channels, cost.hbm_bytes * PS_PER_S // max(cost.duration, 1))


TimeAlone: TypeAlias = tuple[int, Occupancy]
"""Picoseconds, and what of a GPU is taken for so long."""


class Communication:
    """Numbers the templates of one program as its ranks ask for them."""

    def __init__(  # noqa: PLR0913 - as lowering has it, by name
        self,
        machine: Machine,
        groups: GroupTable,
        remembered: BoundedCache,
        *,
        analytic: bool,
        libraries: LibraryChoice,
        repeats: bool = False,
        play: Play | None = None,
    ) -> None:
        self.analytic = analytic
        self._idle = None if play is None else IdleTimes(machine, play, remembered, libraries)
        self.sizes = Sizes()
        self.templates = Templates(self.sizes, remembered)
        self.served: set[Served] = set()
        """What served which collectives, for reports."""
        self.plans: dict[Call, CollectivePlan] = {}
        """How the machine's algorithms do each of them."""
        self.places = bool(asked := Libraries(machine, libraries, remembered)) or analytic
        """Whether templates depend on where in the fabric a group lies."""
        self.likeness = cache(self._likeness)
        self.message = cache(self._message)
        self.occupancy: dict[int, Occupancy] = {}
        """What of a GPU those templates take that are a library's."""
        self._machine, self._groups, self._libraries = machine, groups, asked
        self._remembered, self._repeats = remembered, repeats
        stores = machine.switching.mode == "store_and_forward"
        self._segment = machine.switching.segment if stores else None

    @cached_property
    def _slowed(self) -> bool:
        """Whether closed forms of libraries, which know the links of health alone, may be too short."""
        machine = self._machine
        return self.analytic and bool(machine.faults) and machine.fabric != machine.healthy

    @cached_property
    def planner(self) -> Planner:
        """What plans the collectives that no library does."""
        families = self._groups.families
        return planner_of(self._machine, self._remembered, repeats=self._repeats, families=families)

    def mark(self, rank: int, groups: Iterable[Ranks]) -> int | None:
        """Return the rank if its part in collectives of its groups may be like no other's: by dead links."""
        return self.planner.mark(rank, groups) if self._machine.replans else None

    def _likeness(self, ranks: Ranks) -> bytes:
        """Return a key of what a group's routes are like; a rank may be its own peer.

        What libraries lag follows from the routes without faults.
        """
        if max(ranks) >= self._machine.fabric.gpus:
            return b""  # nobody of that name: refused when the rank is bound
        machine = self._machine if self.analytic else self._machine.unfaulted
        return signatures(machine, [tuple(dict.fromkeys(ranks))])[0]

    def whole(self, call: Call, kind: str, ranks: Ranks) -> int | None:
        """Return the template of a collective that is one; None where it goes in phases (see `plan`).

        `kind` is the stream that it runs on.
        """
        laid = self._laid_out(call, kind, ranks)
        if laid is None and call.exchange is not None:
            return self._exchange(call, call.exchange, kind, ranks)
        if laid is not None:
            self.served.add(laid.served)
            if self.analytic or not laid.takes_links:
                return self._taking(
                    self._fixed(laid, self._library_alone(laid, call, kind, ranks), ranks), laid.cost
                )
            return self._taking(self._by_library(laid, ranks), laid.cost)
        if not self.analytic:
            return None
        alike = ranks if self._machine.replans else self.likeness(ranks)
        key = ("alone", call, kind, alike, self._groups.simulated(ranks))
        return self.templates.number(key, lambda: self._alone(call, kind, ranks))

    def _taking(self, number: int, cost: LibraryCost) -> int:
        """Note what a template takes of its members' GPUs."""
        if self._machine.collectives.contention:
            self.occupancy[number] = _occupancy(cost)
        return number

    def collective_alone(self, call: Call, kind: str, ranks: Ranks) -> TimeAlone | None:
        """Return what a collective takes of time and GPU alone if a library does it; None: routes decide."""
        laid = self._laid_out(call, kind, ranks)
        if laid is None:
            return None
        return self._library_alone(laid, call, kind, ranks), _occupancy(laid.cost)

    def message_alone(
        self, size: int, kind: str, ends: tuple[int, int], within: Ranks | None
    ) -> TimeAlone | None:
        """Return the same of a message between two GPUs; `within` as templates of messages have it."""
        cost = self._libraries.message(kind, size, ends, ends if within is None else within)
        return None if cost is None else (cost.duration, _occupancy(cost))

    def plan(self, call: Call, ranks: Ranks, rank: int) -> CollectivePlan:
        """Return the phases in which the machine's algorithms do a collective, and note these."""
        chunks = self.planner.plan(call, ranks, rank)
        self.served.add(served_by(call, chunks))
        self.plans.setdefault(call, chunks)
        return chunks

    def phase(self, phase: AxisPhase, members: int, *, whole: bool, simulated: int) -> int:
        """Return the template of one phase of a collective; `whole`: its messages never go in parts.

        With fewer `simulated` than members, its cut.
        """
        key = (phase, members, whole, simulated)
        return self.templates.number(
            key, lambda: self._phase(phase, members, whole=whole, simulated=simulated)
        )

    def _message(self, size: int, kind: str, ends: tuple[int, int], within: Ranks | None = None) -> int:
        """Return the template of a message between two GPUs; `kind` is the stream that it runs on.

        `within` are the ranks of the communicator that it goes through; None: its two ends have their own.
        """
        among = ends if within is None else within
        known = max(ends) < self._machine.fabric.gpus
        cost = self._libraries.message(kind, size, ends, among) if known else None
        if cost is not None:
            self.served.add(library.served_by(library_name(Nccl()), cost, SEND, len(among), size))
        number = self.templates.number
        if cost is None and self.analytic:
            key: tuple[object, ...] = ("message alone", size, self.likeness(ends))
            return number(key, lambda: fixed_message(message_alone(size, self._machine, *ends), self.sizes))
        if cost is None:
            return number(("message", size), lambda: self.templates.message(size, self._segment))
        if self.analytic:
            lasts = max(cost.duration, message_alone(size, self._machine, *ends))
            key = ("timed message", lasts, _occupancy(cost))
            return self._taking(number(key, lambda: fixed_message(lasts, self.sizes)), cost)
        key = ("library message", cost, size, self.likeness(ends))
        template = number(key, lambda: self._libraries.message_template(cost, size, ends, self.sizes))
        return self._taking(template, cost)

    def _laid_out(self, call: Call, kind: str, ranks: Ranks) -> LaidOut | None:
        """Return how a library does a collective; None where the machine's own algorithms do it."""
        if not self._libraries or self.mark(ranks[0], [ranks]) is not None:
            return None
        return self._libraries.lay_out(kind, call.collective, call.size, ranks, call.exchange)

    def _exchange(self, call: Call, exchange: Exchange, kind: str, ranks: Ranks) -> int:
        """Return the template of an exchange of tokens at the links' own rates."""
        members = self._groups.simulated(ranks)
        if members < len(ranks) and not self.analytic:
            raise UnsupportedByEngine("an exchange that spreads unevenly has no cut")
        node = self._machine.spec.gpus_per_node or 1
        counts = tuple(Counter(rank // node for rank in ranks).values())
        name = f"all_to_all of {call.size} B"
        self.served.add(Served("all_to_all", len(ranks), call.size, "direct"))

        def schedule() -> Schedule:
            return exchange_schedule(exchange, call.size, counts)

        def fixed() -> Template:
            duration = self._played(call, kind, ranks, lambda: [schedule()])
            duration = alone(schedule(), self._machine, ranks) if duration is None else duration
            return fixed_template(members, duration, self.sizes, name=name)

        key = ("exchange", call.size, exchange, counts)
        if self.analytic:
            return self.templates.number((*key, self.likeness(ranks), members), fixed)

        def sent() -> Template:
            return self.templates.of(key, schedule, name=name, segment=self._segment, whole=False)

        return self.templates.number(key, sent)

    def _fixed(self, laid: LaidOut, duration: int, ranks: Ranks) -> int:
        members = self._groups.simulated(ranks)
        return self.templates.number(
            ("timed collective", duration, members, _occupancy(laid.cost)),
            lambda: fixed_template(members, duration, self.sizes, name=laid.name),
        )

    def _library_alone(self, laid: LaidOut, call: Call, kind: str, ranks: Ranks) -> int:
        """Return the picoseconds of a library's collective: links may need longer than its closed form."""
        if not self.analytic or not laid.takes_links:
            return laid.cost.duration
        played = self._played(call, kind, ranks, lambda: [laid.schedule()])
        if played is not None or not self._slowed:
            return laid.cost.duration if played is None else played
        return max(laid.cost.duration, alone(laid.schedule(), self._machine, ranks, below=laid.below))

    def _played(
        self, call: Call, kind: str, ranks: Ranks, schedules: Callable[[], Iterable[Schedule]]
    ) -> int | None:
        """Return the picoseconds of a collective simulated by itself; None if nobody does, or it is large."""
        idle = self._idle
        if idle is None or len(ranks) > MOST_MEMBERS or not idle.is_small(schedules()):
            return None
        return idle.of(call, kind, ranks, ranks if self._machine.replans else self.likeness(ranks))

    def _by_library(self, laid: LaidOut, ranks: Ranks) -> int:
        simulated = self._groups.simulated(ranks)
        key = ("library", laid, self.likeness(ranks), simulated)
        if simulated < len(ranks):
            return self.templates.number(key, lambda: self._libraries.cut(laid, ranks, simulated, self.sizes))
        return self.templates.number(key, lambda: self._libraries.template(laid, ranks, self.sizes))

    def _alone(self, call: Call, kind: str, ranks: Ranks) -> Template:
        plan = self.plan(call, ranks, ranks[0])
        duration = self._played(call, kind, ranks, lambda: plan_schedules(plan, call.extents, len(ranks)))
        if duration is None:
            duration = plan_alone(plan, call.extents, self._machine, ranks)
        members = self._groups.simulated(ranks)
        return fixed_template(members, duration, self.sizes, name=call.collective.name.lower())

    def _phase(self, phase: AxisPhase, members: int, *, whole: bool, simulated: int) -> Template:
        name = f"{phase.collective.name.lower()} of {phase.size} B by {phase.algorithm}"
        if simulated < members:
            cut = cut_of(phase, members, simulated)
            if self._segment is not None and cut.size.max() > self._segment:
                raise UnsupportedByEngine("messages in segments have no cut")
            rows = self.sizes.rows(cut.size, whole=whole)
            return replace(cut.template(members, simulated), size=rows, name=name)
        return self.templates.of(
            (phase, members), lambda: phase.schedule(members), name=name, segment=self._segment, whole=whole
        )


_ON_CHIP: frozenset[Bound] = frozenset({"tensor", "vector", "shared", "l2"})
MOST_STATES = 4096
"""Columns of a rank's table; were there more, a stream takes the most that any of its visits does."""
WHOLE = 16
"""Parts in which what kernels use of their GPU is counted, rounded up."""


def slowdowns(device: Device, kernel: tuple[Bound, int, int], sms: Int64s, traffic: Int64s) -> Floats:
    """Return how many times as long a kernel takes beside each of several takers.

    `kernel` is what bounds it, its picoseconds alone (launch included), and its bytes from and to HBM.

    >>> from rapid_des.device.device import load_device
    >>> gemm = ("tensor", 10**9 + load_device("h100_sxm").launch_overhead, 0)
    >>> beside = slowdowns(load_device("h100_sxm"), gemm, np.array([0, 24]), np.array([0, 0]))
    >>> [round(float(factor), 2) for factor in beside]
    [1.0, 1.22]
    """
    bound, duration, moved = kernel
    whole, bandwidth = device.spec.sms, float(device.spec.hbm.bandwidth)
    busy = max(duration - device.launch_overhead, 0)
    used = 1.0 if bound == "hbm" else min(1.0, moved / bandwidth * PS_PER_S / max(busy, 1))
    memory = used * bandwidth / (bandwidth - np.minimum(traffic, bandwidth / 2))
    chip = whole / (whole - np.minimum(sms, whole - 1)) if bound in _ON_CHIP else np.ones(len(sms))
    slower: Floats = np.maximum(np.maximum(chip, memory), 1.0)
    if duration <= 0:
        return np.ones_like(slower)
    return 1.0 + busy / duration * (slower - 1.0)


@dataclass(frozen=True)
class Expanded:
    """What the nodes of a table that communicate become: by node its place in `distinct`, or NONE."""

    of_node: Int32s
    distinct: tuple[Expansion, ...]
    sub: Int32s
    """By node: what tells apart those of a slot that are no k-th of each other."""

    def program(self, nodes: NodeTable, device: Device, traces: TraceSet, *, overlap: bool) -> RankProgram:
        """Return the program of a table; see `rank_program`."""
        durations = service_times(nodes, device)
        program = rank_program(
            nodes,
            durations,
            expansion=self.of_node,
            expansions=self.distinct,
            sub=self.sub,
            unordered=traces.unordered_streams,
            overlap=overlap,
        )
        occupancy = self.of_node, [expansion.occupancy for expansion in self.distinct]
        return with_contention(program, nodes, durations, occupancy, device)


def with_contention(
    program: RankProgram,
    nodes: NodeTable,
    durations: Int64s,
    occupancy: tuple[Int32s, Sequence[Occupancy]],
    device: Device,
) -> RankProgram:
    """Return the program of a node table with what its kernels are slowed by; as it is if by nothing.

    `occupancy` is which entry of a list each node takes, or NONE. Only kernels of known `bound` slow: a
    recorded duration holds already what ran beside it.
    """
    kernels = np.flatnonzero((nodes.kind == NodeKind.COMPUTE) & (nodes.bound != UNSTATED) & ~nodes.on_cpu)
    if not len(kernels):
        return program
    visits = np.flatnonzero(program.node != NONE)
    columns = nodes.bound[kernels], durations[kernels], nodes.tensor_bytes[kernels], nodes.flops[kernels]
    different, kind_of = distinct_rows(*columns)
    uses = [_use(device, row) for row in different.tolist()]
    which, takers = occupancy
    if len(distinct(program.server[visits[kernels]])) > 1:
        which, takers = which.copy(), [*takers, *uses]
        which[kernels] = len(takers) - len(uses) + kind_of
    streams = _digits(program.server[visits], (which, takers))
    if not streams:
        return program
    weight, states = np.zeros(len(program), np.int32), [NOTHING]
    for server, kinds in streams.items():
        digit = {occupant: _digit(occupant, kinds) * len(states) for occupant in dict.fromkeys(takers)}
        on_it = np.flatnonzero(program.server[visits] == server)
        weight[visits[on_it]] = np.array([*map(digit.__getitem__, takers), 0])[which[on_it]]
        states = [_together(state, kind) for kind in (NOTHING, *kinds) for state in states]
    kind = np.full(len(program), NONE, np.int32)
    rows = zip(different.tolist(), uses, strict=True)
    shares = np.stack([_shares(device, row, use, states) for row, use in rows]).astype(np.int32)
    kind[visits[kernels]] = kind_of
    return replace(program, contention=Contention(weight, kind, shares))


def _digits(servers: Int32s, occupancy: tuple[Int32s, Sequence[Occupancy]]) -> dict[int, list[Occupancy]]:
    """Return by stream what its visits take, in order, with few enough sets of all streams."""
    which, takers = occupancy
    takes = (which != NONE) & (servers != NONE)
    pairs = distinct(servers[takes].astype(np.int64) * max(len(takers), 1) + which[takes])
    occupied = {divmod(pair, len(takers)) for pair in pairs.tolist()}
    streams: dict[int, list[Occupancy]] = {}
    for server, occupant in sorted({(server, takers[occupant]) for server, occupant in occupied}):
        if occupant != NOTHING:
            streams.setdefault(server, []).append(occupant)
    if prod(len(kinds) + 1 for kinds in streams.values()) > MOST_STATES:
        return {server: [_most(kinds)] for server, kinds in streams.items()}
    return streams


def _digit(occupant: Occupancy, kinds: Sequence[Occupancy]) -> int:
    """Return which kind a taker on a stream is, from 1; 0 if it takes nothing, or is on another stream."""
    if occupant == NOTHING:
        return 0
    return kinds.index(occupant) + 1 if occupant in kinds else len(kinds)


def _most(kinds: Sequence[Occupancy]) -> Occupancy:
    return Occupancy(*(max(getattr(kind, part) for kind in kinds) for part in Occupancy.__slots__))


def _together(first: Occupancy, second: Occupancy) -> Occupancy:
    return Occupancy(*(getattr(first, part) + getattr(second, part) for part in Occupancy.__slots__))


def _use(device: Device, row: Sequence[int]) -> Occupancy:
    """Return how much of its GPU a kernel uses on average over its time alone.

    All that its work takes of what bounds it, and of the rest what its bytes and FLOPs (as if in 16 bits,
    since a node does not say in what) need at the peak.
    """
    bound, duration, moved, flops = row
    work = max(duration - int(device.spec.launch.graph), 0)
    needed = [
        work if BOUNDS[bound] in _ON_CHIP else max(flops, 0) / device.tensor_rate("bf16") * PS_PER_S,
        work if BOUNDS[bound] == "hbm" else max(moved, 0) / device.spec.hbm.bandwidth * PS_PER_S,
    ]
    chip, memory = (min(WHOLE, ceil(WHOLE * time / max(duration, 1))) for time in needed)
    return Occupancy(chip=chip, memory=memory)


def _shares(device: Device, row: Sequence[int], use: Occupancy, states: Sequence[Occupancy]) -> Int64s:
    """Return a kernel's share of the rate beside each set of streams, rounded down."""
    bound, duration, moved, _ = row
    sms, traffic, chip, memory = (
        np.array([getattr(state, part) for state in states], np.int64) for part in Occupancy.__slots__
    )
    slower = slowdowns(device, (cast(Bound, BOUNDS[bound]), duration, max(moved, 0)), sms, traffic)
    beside = (chip + memory) > 0
    slower *= np.where(beside, np.maximum(WHOLE, np.maximum(chip + use.chip, memory + use.memory)) / WHOLE, 1)
    return np.maximum(1, np.floor(ALONE / slower)).astype(np.int64)
