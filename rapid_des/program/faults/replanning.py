"""Collectives that begin while a closure is noticed, replanned: each rank's phases, made when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from rapid_des.chakra.trace import CollectiveType, NodeKind, TraceSet
from rapid_des.machine import Machine
from rapid_des.network.collectives.ordering import line_of
from rapid_des.program.faults.planning import FaultPlanner, Ranks
from rapid_des.program.plans import Call, Phase, TreesOverGroups, cut_in_chunks, geometry, with_switches
from rapid_des.program.program import Template
from rapid_des.program.services import Sizes, part_sizes
from rapid_des.program.templates import template_of


@dataclass(frozen=True, eq=False)
class RoutedPhase:
    """The transfers of one phase among its members: what each carries, and its route if nothing is closed."""

    template: Template
    parts: Sequence[Sequence[int]]
    """Bytes of each part of a message, by size row of the template."""
    routes: Sequence[tuple[int, ...]]
    """Links of each pair of the template."""


@dataclass(frozen=True, eq=False)
class RankPhase:
    """One rank's part in one phase of a collective."""

    number: int
    """Tells the phases of a collective, and the lines that take one side by side, apart."""
    member: int
    phase: RoutedPhase


class CollectiveReplanner:
    """What the ranks of a trace do instead where links are closed."""

    def __init__(self, traces: TraceSet, machine: Machine) -> None:
        self._traces, self._machine = traces, machine
        stores = machine.switching.mode == "store_and_forward"
        self._segment = machine.switching.segment if stores else None
        self._surviving = cache(self._without)
        self._routed = cache(self._route)

    def is_collective(self, position: int, node: int) -> bool:
        """Tell whether a rank's node is a collective."""
        return bool(self._traces.ranks[position].nodes.kind[node] == NodeKind.COLLECTIVE)

    def steps_of(self, position: int, node: int, dead: frozenset[int]) -> list[list[RankPhase]]:
        """Return a rank's phases in the collective of one of its nodes, one after the other for each chunk.

        It is planned for the fabric without `dead`; `FabricCutError` if that cuts the group apart.
        """
        trace = self._traces.ranks[position]
        nodes = trace.nodes
        ranks = self._traces.groups[trace.groups[nodes.group[node]]]
        extents, axes = geometry(self._machine, ranks)
        surviving = self._surviving(dead)
        trees = surviving.above.of(trace.groups[nodes.group[node]], ranks, extents, trace.rank)
        call = Call(CollectiveType(int(nodes.collective[node])), int(nodes.size[node]), extents, axes, trees)
        plan = surviving.survivors.plan(call, ranks, trace.rank)
        place, first, chunks = ranks.index(trace.rank), 0, []
        for chunk in plan:
            phases = range(first, first + len(chunk))
            rank_steps = [
                self._rank_phase(one, phase, call, (ranks, place), (dead, cut_in_chunks(plan)))
                for one, phase in zip(phases, chunk, strict=True)
            ]
            chunks.append(rank_steps)
            first += len(chunk)
        return chunks

    def _rank_phase(
        self, number: int, phase: Phase, call: Call, who: tuple[Ranks, int], how: tuple[frozenset[int], bool]
    ) -> RankPhase:
        ranks, place = who
        base, line, member = 0, ranks, place
        if phase.axis is not None:
            base, members = line_of(ranks, call.extents, phase.axis, place)
            line, member = tuple(members), members.index(ranks[place])
        return RankPhase(number * len(ranks) + base, member, self._routed(phase, line, *how))

    def _route(self, phase: Phase, ranks: Ranks, dead: frozenset[int], whole: bool) -> RoutedPhase:  # noqa: FBT001
        sizes, schedule = Sizes(), phase.schedule(len(ranks))
        template = template_of(schedule, sizes, name="", segment=self._segment)
        nodes = (
            with_switches(self._surviving(dead).machine.switch_trees, ranks) if schedule.switches else ranks
        )
        ends = np.array(nodes)[np.stack((template.pair_source, template.pair_destination), 1)]
        routes = self._machine.router.routes(ends)
        parts = [[size] if whole else part_sizes(self._machine.switching, size) for size in sizes.all()]
        return RoutedPhase(template, parts, [routes.of(pair) for pair in range(len(routes))])

    def _without(self, dead: frozenset[int]) -> _Surviving:
        machine = self._machine.without(dead)
        return _Surviving(machine, FaultPlanner(machine), TreesOverGroups(machine))


@dataclass(frozen=True, eq=False)
class _Surviving:
    """What plans go by while some links are down."""

    machine: Machine
    survivors: FaultPlanner
    above: TreesOverGroups
