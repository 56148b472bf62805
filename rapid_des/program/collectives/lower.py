"""What collectives and messages become: templates.

A template is a library's, or one of the machine's own algorithms. Where nothing takes a link (`analytic`)
each lasts as long as it would alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, TypeAlias

from rapid_des.arrays import Int64s
from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import Exchange
from rapid_des.errors import UnsupportedByEngine
from rapid_des.machine import Machine
from rapid_des.network.collectives.libraries.library import library_name
from rapid_des.network.collectives.libraries.nccl import LibraryCost
from rapid_des.network.collectives.schedule import Schedule
from rapid_des.network.collectives.token_exchange import exchange_schedule
from rapid_des.network.specs import LibraryChoice, Nccl
from rapid_des.program.builders import Occupancy
from rapid_des.program.collectives import library
from rapid_des.program.collectives.library import LaidOut, Libraries
from rapid_des.program.collectives.plans import (
    MOST_MEMBERS,
    SEND,
    AxisPhase,
    CollectiveCall,
    CollectivePlan,
    IdleTimes,
    Play,
    ServedCollective,
    alone,
    message_alone,
    plan_alone,
    plan_schedules,
    served_by,
)
from rapid_des.program.collectives.templates import Templates, fixed_message, fixed_template
from rapid_des.program.groups import GroupTable
from rapid_des.program.program import Template
from rapid_des.program.replicas import cut_of
from rapid_des.program.routes import known_signatures
from rapid_des.program.services import MessageSizes
from rapid_des.units import PS_PER_S
from rapid_des.values import replace

if TYPE_CHECKING:
    from rapid_des.program.collectives.select import Planner

Ranks = tuple[int, ...]
Plans: TypeAlias = Mapping[CollectiveCall, CollectivePlan]
"""Maps each collective to its plan by the machine's own algorithms."""


def planner_of(
    machine: Machine,
    memory: BoundedCache | None = None,
    *,
    repeats: bool = False,
    families: Sequence[Int64s] = (),
) -> Planner:
    """Return what plans collectives: around dead links, if a constant fault of the machine asks for that."""
    if not machine.replans:
        from rapid_des.program.collectives.select import Planner

        return Planner(machine, memory, repeats=repeats, families=families)
    from rapid_des.program.faults.planning import FaultPlanner

    return FaultPlanner(machine, memory, repeats=repeats, families=families)


def _occupancy(cost: LibraryCost) -> Occupancy:
    """Return the GPU resources that a library takes during its collective."""
    return Occupancy(cost.channels, cost.hbm_bytes * PS_PER_S // max(cost.duration, 1))


TimeAlone: TypeAlias = tuple[int, Occupancy]
"""A duration in picoseconds, and the GPU resources taken meanwhile."""


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
        even: bool = False,
        play: Play | None = None,
    ) -> None:
        self.analytic = analytic
        self._idle = None if play is None else IdleTimes(machine, play, remembered, libraries)
        self.sizes = MessageSizes()
        self.templates = Templates(self.sizes, remembered)
        self.served: set[ServedCollective] = set()
        """What served which collectives, for reports."""
        self.plans: dict[CollectiveCall, CollectivePlan] = {}
        """The plan of each collective that the machine's own algorithms serve."""
        self.routes_key = cache(self._routes_key)
        self._crossings: dict[Ranks, bytes] = {}
        self.whole = cache(self._whole)
        self._planned = cache(self._plan)
        self.message = cache(self._message)
        self.occupancy: dict[int, Occupancy] = {}
        """The GPU resources that each library template takes, by template number."""
        self._machine, self._groups = machine, groups
        self._libraries = Libraries(machine, libraries, remembered)
        self._remembered, self._repeats, self._even = remembered, repeats, even
        stores = machine.switching.mode == "store_and_forward"
        self._segment = machine.switching.segment if stores else None

    @cached_property
    def _slowed(self) -> bool:
        """Whether closed forms of libraries, which know the links of health alone, may be too short."""
        machine = self._machine
        return self.analytic and bool(machine.faults) and machine.fabric != machine.healthy

    @cached_property
    def planner(self) -> Planner:
        """The planner of the collectives that no library serves."""
        families = self._groups.families
        return planner_of(self._machine, self._remembered, repeats=self._repeats, families=families)

    def mark(self, rank: int, groups: Iterable[Ranks]) -> int | None:
        """Return the rank if its part in collectives of its groups may be like no other's: by dead links."""
        return self.planner.mark(rank, groups) if self._machine.replans else None

    def _routes_key(self, ranks: Ranks) -> bytes:
        """Return a key of what a group's routes are like; a rank may be its own peer.

        What libraries lag follows from the routes without faults.
        """
        if max(ranks) >= self._machine.fabric.gpus:
            return b""  # nobody of that name: refused when the rank is bound
        machine = self._machine if self.analytic else self._machine.unfaulted
        return known_signatures(machine, [tuple(dict.fromkeys(ranks))], self._remembered)[0]

    def crossings_key(self, ranks: Ranks) -> bytes:
        """Return a key of the zero-load times among a group: a library's lags follow from them."""
        if max(ranks) >= self._machine.fabric.gpus:
            return b""
        if ranks not in self._crossings:
            distinct = tuple(dict.fromkeys(ranks))
            (self._crossings[ranks],) = self._crossing_keys([distinct])
        return self._crossings[ranks]

    def learn_crossings(self, ends: Iterable[tuple[int, int]]) -> None:
        """Compute the keys of all pairs of GPUs that exchange messages at once, which is much faster."""
        gpus = self._machine.fabric.gpus
        pairs = [pair for pair in dict.fromkeys(ends) if max(pair) < gpus and pair[0] != pair[1]]
        if pairs:
            self._crossings |= zip(pairs, self._crossing_keys(pairs), strict=True)

    def _crossing_keys(self, groups: Sequence[Ranks]) -> list[bytes]:
        return known_signatures(self._machine.unfaulted, groups, self._remembered, alone=True)

    @property
    def needs_crossings(self) -> bool:
        """Whether templates follow from zero-load times: libraries serve, and messages take links."""
        return bool(self._libraries) and not self.analytic

    def _whole(self, call: CollectiveCall, kind: str, ranks: Ranks) -> int | None:
        """Return a collective's template if it is a single one; None where it goes in phases (see `plan`).

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
        alike = ranks if self._machine.replans else self.routes_key(ranks)
        key = ("alone", call, kind, alike, self._groups.simulated(ranks))
        return self.templates.number(key, lambda: self._alone(call, kind, ranks))

    def _taking(self, number: int, cost: LibraryCost) -> int:
        """Record the GPU resources that a template takes."""
        if self._machine.collectives.contention:
            self.occupancy[number] = _occupancy(cost)
        return number

    def collective_alone(self, call: CollectiveCall, kind: str, ranks: Ranks) -> TimeAlone | None:
        """Return time and GPU resources of a library's collective alone; None: routes decide."""
        laid = self._laid_out(call, kind, ranks)
        if laid is None:
            return None
        return self._library_alone(laid, call, kind, ranks), _occupancy(laid.cost)

    def message_alone(
        self, size: int, kind: str, ends: tuple[int, int], within: Ranks | None
    ) -> TimeAlone | None:
        """Return time and GPU resources of a message between two GPUs; `within` as for message templates."""
        cost = self._libraries.message(kind, size, ends, ends if within is None else within)
        return None if cost is None else (cost.duration, _occupancy(cost))

    def plan(self, call: CollectiveCall, ranks: Ranks, rank: int) -> CollectivePlan:
        """Return and record the phases in which the machine's algorithms do a collective."""
        chunks = self._planned(call, ranks, rank if self._machine.replans else ranks[0])
        self.served.add(served_by(call, chunks))
        self.plans.setdefault(call, chunks)
        return chunks

    def _plan(self, call: CollectiveCall, ranks: Ranks, rank: int) -> CollectivePlan:
        return self.planner.plan(call, ranks, rank)

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
            key: tuple[object, ...] = ("message alone", size, self.routes_key(ends))
            return number(key, lambda: fixed_message(self._lasts(size, self._machine, ends), self.sizes))
        if cost is None:
            return number(("message", size), lambda: self.templates.message(size, self._segment))
        if self.analytic:
            healthy = self._lasts(size, self._machine.unfaulted, ends)
            lasts = max(cost.duration, healthy)  # which has the library's lags besides its links
            if self._slowed:
                lasts += max(self._lasts(size, self._machine, ends) - healthy, 0)
            key = ("timed message", lasts, _occupancy(cost))
            return self._taking(number(key, lambda: fixed_message(lasts, self.sizes)), cost)
        key = ("library message", cost, size, self.crossings_key(ends))
        template = number(key, lambda: self._libraries.message_template(cost, size, ends, self.sizes))
        return self._taking(template, cost)

    def _lasts(self, size: int, machine: Machine, ends: tuple[int, int]) -> int:
        """Return the picoseconds of a message between two GPUs at zero load."""
        key = ("message alone", machine.network, size, ends)
        return self._remembered.get_or_make(key, lambda: message_alone(size, machine, *ends))

    def _laid_out(self, call: CollectiveCall, kind: str, ranks: Ranks) -> LaidOut | None:
        """Return how a library does a collective; None where the machine's own algorithms do it."""
        if not self._libraries or self.mark(ranks[0], [ranks]) is not None:
            return None
        asked = call.collective, call.size, ranks, call.exchange
        return self._libraries.lay_out(kind, *asked, even=self._even)

    def _exchange(self, call: CollectiveCall, exchange: Exchange, kind: str, ranks: Ranks) -> int:
        """Return the template of an exchange of tokens at the links' own rates."""
        members = self._groups.simulated(ranks)
        if members < len(ranks) and not self.analytic:
            raise UnsupportedByEngine("an exchange that spreads unevenly has no cut")
        node = self._machine.spec.gpus_per_node or 1
        counts = tuple(Counter(rank // node for rank in ranks).values())
        name = f"all_to_all of {call.size} B"
        self.served.add(ServedCollective("all_to_all", len(ranks), call.size, "direct"))

        def schedule() -> Schedule:
            return exchange_schedule(exchange, call.size, counts)

        def fixed() -> Template:
            duration = self._played(call, kind, ranks, lambda: [schedule()])
            duration = alone(schedule(), self._machine, ranks) if duration is None else duration
            return fixed_template(members, duration, self.sizes, name=name)

        key = ("exchange", call.size, exchange, counts)
        if self.analytic:
            return self.templates.number((*key, self.routes_key(ranks), members), fixed)

        def sent() -> Template:
            return self.templates.of(key, schedule, name=name, segment=self._segment, whole=False)

        return self.templates.number(key, sent)

    def _fixed(self, laid: LaidOut, duration: int, ranks: Ranks) -> int:
        members = self._groups.simulated(ranks)
        return self.templates.number(
            ("timed collective", duration, members, _occupancy(laid.cost)),
            lambda: fixed_template(members, duration, self.sizes, name=laid.name, alike=self._even),
        )

    def _library_alone(self, laid: LaidOut, call: CollectiveCall, kind: str, ranks: Ranks) -> int:
        """Return the picoseconds of a library's collective: links may need longer than its closed form."""
        if not self.analytic or not laid.takes_links:
            return laid.cost.duration
        played = self._played(call, kind, ranks, lambda: [laid.schedule()])
        if played is not None or not self._slowed:
            return laid.cost.duration if played is None else played
        return max(laid.cost.duration, alone(laid.schedule(), self._machine, ranks, below=laid.below))

    def _played(
        self, call: CollectiveCall, kind: str, ranks: Ranks, schedules: Callable[[], Iterable[Schedule]]
    ) -> int | None:
        """Return the picoseconds of a collective simulated by itself; None if nobody does, or it is large."""
        idle = self._idle
        if idle is None or len(ranks) > MOST_MEMBERS:
            return None
        alike = ranks if self._machine.replans else self.routes_key(ranks)
        return idle.of(call, kind, ranks, alike, schedules)

    def _by_library(self, laid: LaidOut, ranks: Ranks) -> int:
        simulated = self._groups.simulated(ranks)
        key = ("library", laid, self.crossings_key(ranks), simulated)
        if simulated < len(ranks):
            return self.templates.number(key, lambda: self._libraries.cut(laid, ranks, simulated, self.sizes))
        return self.templates.number(key, lambda: self._libraries.template(laid, ranks, self.sizes))

    def _alone(self, call: CollectiveCall, kind: str, ranks: Ranks) -> Template:
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
