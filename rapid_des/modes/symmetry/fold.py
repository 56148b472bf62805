"""Folding a program along its rotations, and unfolding what an engine saw."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rapid_des.arrays import distinct
from rapid_des.modes.symmetry.compact import compact
from rapid_des.modes.symmetry.quotient import Turn, Turner, no_tasks, quotient
from rapid_des.modes.symmetry.rotation import GroupMap, Shift, group_map, keeps_slots, link_orbits, shifts
from rapid_des.program.program import NONE, Group, Program, RankBinding, RankProgram, Records, Template
from rapid_des.program.templates import structure

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Folding:
    """A program with one rank for each orbit, and who it stands for."""

    program: Program
    stands_for: Ints
    """[position in the whole program] the position in the folded one."""
    link: Ints
    """[link] the link of the folded program that stands for it."""

    @property
    def factor(self) -> float:
        """How many ranks one simulated rank stands for, on average."""
        return len(self.stands_for) / len(self.program.bindings)


def fold(program: Program) -> Folding | None:
    """Return the program folded along all rotations that can be proven; None if there is none.

    A run of the folded program counts only if no link chose among equals (`Records.ties`): then who goes
    first would depend on the rank, and ranks of one orbit would not live alike.
    """
    if program.link_timetables or program.stream_timetables:
        return None
    stands_for, link = np.arange(len(program.bindings)), np.arange(program.links)
    folded = program
    while (once := _once(folded)) is not None:
        folded = once.program
        stands_for, link = once.stands_for[stands_for], once.link[link]
    return None if folded is program else Folding(compact(folded), stands_for, link)


def _once(program: Program) -> Folding | None:
    for shift in shifts(program):
        found = _along(program, shift)
        if found is not None:
            return found
    return None


def _along(program: Program, shift: Shift) -> Folding | None:
    groups = group_map(program, shift)
    if groups is None or not keeps_slots(program, shift, groups):
        return None
    turns = turns_of(program, groups)
    if turns is None:
        return None
    pairs = {key: turn.pair for key, turn in turns.items()}
    orbits = link_orbits(program, shift, groups, pairs)
    if orbits is None:
        return None
    return _Quotient(program, shift, groups, turns).folding(orbits)


def turns_of(program: Program, groups: GroupMap) -> dict[tuple[int, int], Turn] | None:
    """Return the turn of each template of each group that the shift maps to itself."""
    turner = Turner()
    known: dict[tuple[int, bytes], Turn | None] = {}
    result = {}
    for index, member in groups.turned.items():
        for template in program.groups[index].routes:
            key = (template, member.tobytes())
            if key not in known:
                known[key] = turner.turned(program.templates[template], member)
            turn = known[key]
            if turn is None:
                return None
            result[index, template] = turn
    return result


class _Quotient:
    """Builds the folded program: lowest groups, lowest positions, one orbit of each turned template."""

    def __init__(
        self, program: Program, shift: Shift, groups: GroupMap, turns: dict[tuple[int, int], Turn]
    ) -> None:
        self.program = program
        self.groups = groups
        self.turns = turns
        positions = shift.representative(np.arange(len(program.bindings)))
        self.kept, self.stands_for = np.unique(positions, return_inverse=True)
        self.templates: list[Template] = list(program.templates)
        self.replaced: dict[tuple[int, bytes], tuple[int, Ints, Ints]] = {}
        self.cuts: dict[tuple[tuple[int, ...], bytes], tuple[Template, Ints, Ints]] = {}
        self.members: dict[int, Ints] = {}
        self.template_of: dict[int, dict[int, int]] = {}

    def folding(self, orbits: Ints) -> Folding | None:
        lowest = self._group_orbits()
        numbers = {int(group): number for number, group in enumerate(distinct(lowest).tolist())}
        folded_groups = [self._group(group) for group in numbers]
        programs = self._programs()
        if programs is None:
            return None
        bindings = tuple(self._binding(int(position), lowest, numbers) for position in self.kept)
        program = replace(
            self.program,
            bindings=bindings,
            programs=programs,
            groups=tuple(folded_groups),
            templates=self._used_templates(programs),
            route_links=orbits.astype(np.int32)[self.program.route_links],
        )
        return Folding(program, self.stands_for.reshape(-1), orbits)

    def _used_templates(self, programs: tuple[RankProgram, ...]) -> tuple[Template, ...]:
        """Return the templates under their numbers; those that turned ones replaced hold nothing any more."""
        used = {number for table in programs for number in distinct(table.template).tolist()}
        return tuple(one if number in used else no_tasks() for number, one in enumerate(self.templates))

    def _group_orbits(self) -> Ints:
        """Return the lowest group of each group's orbit; the stretch that is looked at doubles."""
        lowest, ahead = np.arange(len(self.groups.image)), self.groups.image
        for _ in range(len(self.program.bindings).bit_length()):
            lowest, ahead = np.minimum(lowest, lowest[ahead]), ahead[ahead]
        return lowest

    def _group(self, index: int) -> Group:
        group = self.program.groups[index]
        if index not in self.groups.turned:
            return replace(group, bindings=self.stands_for[group.bindings].astype(np.int32))
        if not group.routes:  # only counts instances: any order of the ranks that are left will do
            left = distinct(self.stands_for[group.bindings])
            self.members[index] = np.searchsorted(left, self.stands_for[group.bindings])
            return replace(group, bindings=left.astype(np.int32))
        routes, chosen = {}, np.zeros(0, np.int64)
        for template, of_pairs in group.routes.items():
            number, chosen, orbit = self._orbit(index, template)
            self.members[index] = orbit
            self.template_of.setdefault(index, {})[template] = number
            routes[number] = of_pairs
        return replace(
            group, bindings=self.stands_for[group.bindings[chosen]].astype(np.int32), routes=routes
        )

    def _orbit(self, index: int, template: int) -> tuple[int, Ints, Ints]:
        turn = self.turns[index, template]
        key = (template, turn.member.tobytes())
        if key not in self.replaced:
            cut, chosen, orbit = self._cut(self.program.templates[template], turn)
            self.replaced[key] = len(self.templates), chosen, orbit
            self.templates.append(cut)
        return self.replaced[key]

    def _cut(self, template: Template, turn: Turn) -> tuple[Template, Ints, Ints]:
        """Return one orbit of a template; those of one structure are cut once."""
        key = (structure(template), turn.member.tobytes())
        if key not in self.cuts:
            self.cuts[key] = quotient(template, turn)
            return self.cuts[key]
        cut, chosen, orbit = self.cuts[key]
        kept = np.isin(template.source, chosen)
        return replace(cut, size=template.size[kept], name=template.name), chosen, orbit

    def _programs(self) -> tuple[RankProgram, ...] | None:
        """Return the rank programs with turned templates replaced; None if a program would need two forms."""
        result = []
        for number, table in enumerate(self.program.programs):
            slots: dict[int, dict[int, int]] = {}
            for position in self.kept.tolist():
                binding = self.program.bindings[position]
                if binding.program != number:
                    continue
                for slot, group in enumerate(binding.groups.tolist()):
                    wanted = self.template_of.get(group, {})
                    if slots.setdefault(slot, wanted) != wanted:
                        return None
            template = table.template.copy()
            for slot, wanted in slots.items():
                for old, new in wanted.items():
                    template[(table.slot == slot) & (table.template == old)] = new
            result.append(replace(table, template=template))
        return tuple(result)

    def _binding(self, position: int, lowest: Ints, numbers: dict[int, int]) -> RankBinding:
        binding = self.program.bindings[position]
        groups, members = binding.groups.copy(), binding.members.copy()
        for slot, group in enumerate(binding.groups.tolist()):
            if group != NONE:
                groups[slot] = numbers[int(lowest[group])]
                if group in self.members:
                    members[slot] = self.members[group][members[slot]]
        return replace(binding, groups=groups, members=members)


def unfold(folding: Folding, whole: Program, records: Records) -> Records:
    """Return what an engine would have seen on the whole program."""
    before, after = folding.program.visits(), whole.visits()
    lengths = np.diff(after)
    place = np.arange(int(after[-1])) - np.repeat(after[:-1], lengths)
    visit = np.repeat(before[folding.stands_for], lengths) + place
    factor = len(folding.stands_for) // len(folding.program.bindings)
    return replace(
        records,
        start=records.start[visit],
        finish=records.finish[visit],
        met=records.met[visit],
        link_bytes=records.link_bytes[folding.link],
        link_busy=records.link_busy[folding.link],
        link_wait=records.link_wait[folding.link],
        hops=records.hops * factor,
        sent=records.sent * factor,
        received=records.received * factor,
    )
