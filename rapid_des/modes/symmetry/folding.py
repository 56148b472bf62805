"""Folding a program along its rotations, and unfolding what an engine saw.

A rotation shows that the ranks of an orbit live alike, so that one of them can stand for all: the folded
program has the lowest rank of each orbit, the lowest group of each orbit of groups, of each group that the
rotation maps to itself one member for each orbit of members, and one link for each orbit of links. It is
folded again as long as a rotation is found.

Looking for rotations costs little beside the run, by count and not by clock, so that the same program is
always folded alike: see `Budget`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import cached_property

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s, distinct, entries_of, ranges, starts_of
from rapid_des.modes.symmetry.choices import WatchedChoices, digits_apart
from rapid_des.modes.symmetry.collective import (
    Invariances,
    MemberOrbits,
    member_orbits,
    one_orbit,
    rows_to_compare,
    sizes_of_orbits,
    with_used_pairs,
)
from rapid_des.modes.symmetry.rotation import (
    SAMPLE,
    GroupImages,
    GroupSlots,
    Rotation,
    Shift,
    Uses,
    keeps_order,
    may_keep_order,
    prove,
    shifts,
)
from rapid_des.program.program import (
    NONE,
    Group,
    Program,
    RankBinding,
    RankProgram,
    Records,
    Template,
    shapes,
)
from rapid_des.values import replace

LOOK_S, COMPARE_S = 30e-9, 50e-9
"""The seconds it takes to read a slot, and to compare a task, an edge or a route with its image."""


class Budget(Struct, frozen=True):
    """What folding may cost, as shares of the time that running the whole program would take."""

    run_s: float
    search: float = 0.02
    """The share for refuting shifts; what no sample refutes is compared if that takes half of its savings."""
    discarded: float = 0.5
    """The share for a folded run that is discarded because a link chose by rank: it ends where one does, and
    that is early, mostly."""
    least_s: float = 1e-3
    """What the search may always take."""


class Folding(Struct, frozen=True):
    """A program with one rank for each orbit, and who it stands for."""

    program: Program
    stands_for: Int64s
    """[position in the whole program] the position in the folded one."""
    link: Int64s
    """[link] the link of the folded program that stands for it."""
    keeps_order: bool
    """Whether the order of transfers is kept; otherwise a run counts only if no link chose by rank
    (`Records.ties`), because ranks of an orbit may differ then."""
    watched: WatchedChoices | None = None
    """What distinguishes choices of links that are alike for all ranks of an orbit; None: nothing does."""

    @property
    def factor(self) -> float:
        """The average number of ranks that one simulated rank stands for."""
        return len(self.stands_for) / len(self.program.bindings)

    def unfolded(self, whole: Program, records: Records) -> Records:
        """Return what an engine would have seen on the whole program, given what it saw on the folded one."""
        before, after = self.program.visits(), whole.visits()
        lengths = np.diff(after)
        # Visit k of a rank is visit k of the rank that stands for it.
        visit = np.repeat(before[self.stands_for], lengths) + ranges(0, lengths)
        factor = len(self.stands_for) // len(self.program.bindings)
        return replace(
            self.on_all_links(records),
            start=records.start[visit],
            finish=records.finish[visit],
            met=records.met[visit],
            hops=records.hops * factor,
            sent=records.sent * factor,
            received=records.received * factor,
        )

    def on_all_links(self, records: Records) -> Records:
        """Return records with what the links of the whole program carry, given those of the folded one."""
        link = self.link
        return replace(
            records,
            link_bytes=records.link_bytes[link],
            link_busy=records.link_busy[link],
            link_wait=records.link_wait[link],
        )


def fold(program: Program, budget: Budget) -> Folding | None:
    """Return the program folded along all rotations that can be proven within a budget; None if none is."""
    # These tables name single links, visits or routes, which a rotation does not map.
    if program.link_timetables or program.visit_timetables or program.fluid:
        return None
    if program.queue_pairs or program.spray or program.delays:
        return None
    whole = Folding(program, np.arange(len(program.bindings)), np.arange(program.links), keeps_order=True)
    folding = whole
    while True:
        # A run that may be discarded anyway may be folded along more that does not keep the order.
        discarded = budget.discarded if folding.keeps_order else 1.0
        left = replace(budget, run_s=budget.run_s / folding.factor, discarded=discarded)
        step = _fold_once(folding.program, left)
        if step is None:
            return None if folding is whole else folding
        folding = Folding(
            step.program,
            step.stands_for[folding.stands_for],
            step.link[folding.link],
            step.keeps_order and folding.keeps_order,
            step.watched if folding.keeps_order else None,
        )


def _fold_once(program: Program, budget: Budget) -> Folding | None:
    """Fold a program along the first shift that is proven to be a rotation."""
    search = _RotationSearch(program, budget)
    for shift in search.candidates():
        folding = search.folded_along(shift)
        if folding is not None:
            return folding
    return None


class _RotationSearch:
    """The search for a rotation of a program, and what is left to spend on it."""

    def __init__(self, program: Program, budget: Budget) -> None:
        self.program, self.budget = program, budget
        self.left_s = max(budget.least_s, budget.search * budget.run_s)
        self.slots = GroupSlots(program)
        self.shapes = shapes(program.templates)
        self.known = Invariances(program.templates)

    @cached_property
    def uses(self) -> Uses:
        return Uses(self.program, self.slots)

    def candidates(self) -> Iterator[Shift]:
        """Yield the shifts that a sample of the slots does not refute, until nothing is left to spend."""
        for shift in shifts(self.program):
            self.left_s -= LOOK_S * (len(self.program.bindings) + SAMPLE)
            if self.left_s < 0:
                return
            if self.slots.plausible(shift):
                self.left_s -= LOOK_S * len(self.slots)
                yield shift

    def folded_along(self, shift: Shift) -> Folding | None:
        """Return the program folded along a shift; None if it is refuted or not worth comparing."""
        ordered = may_keep_order(self.uses, shift)
        # A run of 1 / extent of the ranks may be in vain if that costs less than the budget for such runs.
        may_be_discarded = shift.extent * self.budget.discarded >= 1
        groups = self.slots.images(shift) if ordered or may_be_discarded else None
        if groups is None:
            return None
        compare_s = COMPARE_S * (len(self.uses.routes) + self._rows_to_compare(groups))
        saved_s = self.budget.run_s * (1 - 1 / shift.extent)
        if compare_s > self.budget.least_s + saved_s / 2:
            return None
        ordered = ordered and keeps_order(self.uses, shift)
        if not (ordered or may_be_discarded):
            return None
        before = self.known.compared
        rotation = prove(self.uses, shift, groups, self.known)
        ordered = ordered and rotation is not None and not rotation.reorders
        if rotation is None or not (ordered or may_be_discarded):
            # often one collective refutes a shift, and nothing behind it is looked at
            self.left_s -= min(compare_s, COMPARE_S * (len(self.slots) + self.known.compared - before))
            return None
        apart = None if ordered else digits_apart(self.uses, rotation)
        return _Quotient(self.program, rotation).folding(apart, keeps_order=ordered)

    def _rows_to_compare(self, groups: GroupImages) -> int:
        """Return how many rows of the templates of groups that a shift permutes are to be compared."""
        rows: dict[tuple[Hashable, bytes], int] = {}
        for group, member in groups.permuted.items():
            for number in self.program.groups[group].routes:
                template = self.program.templates[number]
                rows[self.shapes[number], member.tobytes()] = rows_to_compare(template)
        return sum(rows.values())


class _Quotient:
    """Builds the folded program: lowest groups, lowest positions, one orbit of each permuted template."""

    def __init__(self, program: Program, rotation: Rotation) -> None:
        self.program = program
        self.rotation = rotation
        positions = rotation.shift.representative(np.arange(len(program.bindings)))
        self.positions, self.stands_for = np.unique(positions, return_inverse=True)
        self.templates: list[Template] = list(program.templates)
        self.orbits: dict[int, MemberOrbits] = {}
        """The orbits of the members of each permuted group."""
        self.template_of: dict[int, dict[int, int]] = {}
        """The template that each template of a permuted group becomes."""
        self._known_orbits: dict[bytes, MemberOrbits] = {}
        self._numbers: dict[tuple[int, bytes], int] = {}
        self._shapes = shapes(program.templates)
        self._left: dict[tuple[Hashable, bytes], Template] = {}

    def folding(self, apart: Int64s | None, *, keeps_order: bool) -> Folding | None:
        """Return the folded program; `apart` as `digits_apart` has it."""
        lowest = self._group_orbits()
        groups = [self._group(group) for group in distinct(lowest).tolist()]
        number = np.searchsorted(distinct(lowest), lowest)
        programs = self._programs()
        if programs is None:
            return None
        used = {template for table in programs for template in distinct(table.template).tolist()}
        folded = replace(
            self.program,
            bindings=tuple(self._binding(position, number) for position in self.positions.tolist()),
            programs=programs,
            groups=tuple(groups),
            templates=tuple(
                template if place in used else _NO_TASKS for place, template in enumerate(self.templates)
            ),
        )
        (folded, hops), link = compact(folded), self.rotation.lowest_link
        folded = replace(folded, route_links=link.astype(np.int32)[folded.route_links])
        reordered = self.rotation.reorders
        watched = None if apart is None else WatchedChoices(folded, apart[hops], reordered=reordered)
        return Folding(folded, self.stands_for.reshape(-1), link, keeps_order, watched)

    def _group_orbits(self) -> Int64s:
        """Return the lowest group of each group's orbit."""
        # Pointer doubling: each pass looks twice as far along the orbit as the one before.
        lowest, ahead = np.arange(len(self.rotation.groups.image)), self.rotation.groups.image
        for _ in range(self.rotation.shift.extent.bit_length()):
            lowest, ahead = np.minimum(lowest, lowest[ahead]), ahead[ahead]
        return lowest

    def _group(self, index: int) -> Group:
        group, member = self.program.groups[index], self.rotation.groups.permuted.get(index)
        if member is None:
            return replace(group, bindings=self.stands_for[group.bindings].astype(np.int32))
        key = member.tobytes()
        orbits = self.orbits[index] = self._known_orbits.setdefault(key, member_orbits(member))
        renumbered = self.template_of[index] = {
            template: self._one_orbit(index, template, key) for template in group.routes
        }
        return replace(
            group,
            bindings=self.stands_for[group.bindings[orbits.lowest]].astype(np.int32),
            routes={renumbered[template]: routes for template, routes in group.routes.items()},
        )

    def _one_orbit(self, index: int, number: int, key: bytes) -> int:
        """Return the number of one orbit of a template; what templates share is cut to one orbit once."""
        if (number, key) in self._numbers:
            return self._numbers[number, key]
        template, orbits = self.program.templates[number], self.orbits[index]
        shared = self._shapes[number], key
        left = self._left.get(shared)
        if left is None:
            left = one_orbit(template, orbits, self.rotation.invariances[index, number].order)
            shape = None if template.shape is None else ("one orbit", *shared)
            left = self._left[shared] = replace(left, shape=shape)
        else:
            left = replace(left, size=sizes_of_orbits(template, orbits), name=template.name)
        self._numbers[number, key] = len(self.templates)
        self.templates.append(left)
        return len(self.templates) - 1

    def _programs(self) -> tuple[RankProgram, ...] | None:
        """Return the rank programs with permuted templates replaced; None if one would need two forms."""
        # Ranks that share a program share its columns: a slot must become the same in all of them.
        slots: dict[tuple[int, int], dict[int, int]] = {}
        for position in self.positions.tolist():
            binding = self.program.bindings[position]
            for slot, group in enumerate(binding.groups.tolist()):
                wanted = self.template_of.get(group, {})
                if slots.setdefault((binding.program, slot), wanted) != wanted:
                    return None
        columns = [table.template.copy() for table in self.program.programs]
        for (number, slot), wanted in slots.items():
            table = self.program.programs[number]
            for old, new in wanted.items():
                columns[number][(table.slot == slot) & (table.template == old)] = new
        return tuple(
            replace(table, template=column)
            for table, column in zip(self.program.programs, columns, strict=True)
        )

    def _binding(self, position: int, number: Int64s) -> RankBinding:
        binding = self.program.bindings[position]
        groups, members = binding.groups.copy(), binding.members.copy()
        for slot, group in enumerate(binding.groups.tolist()):
            if group != NONE:
                groups[slot] = number[group]
                if group in self.orbits:
                    members[slot] = self.orbits[group].of_member[members[slot]]
        return replace(binding, groups=groups, members=members)


def compact(program: Program) -> tuple[Program, Int64s]:
    """Return a folded program with the pairs that its templates use and the routes that its groups take.

    Also the hops that are left of those of all routes.
    """
    used = [with_used_pairs(template) for template in program.templates]
    routes = [
        {number: column[used[number][1]] for number, column in group.routes.items()}
        for group in program.groups
    ]
    is_taken = np.zeros(len(program.route_starts) - 1, np.bool_)
    for of_group in routes:
        for column in of_group.values():
            is_taken[column] = True
    # number[r]: which of the taken routes r is; it means nothing for a route that nobody takes.
    tasks, number = np.flatnonzero(is_taken), np.cumsum(is_taken, dtype=np.int32)
    number -= 1
    hops = entries_of(program.route_starts, tasks)
    left = replace(
        program,
        templates=tuple(template for template, _ in used),
        groups=tuple(
            replace(
                group,
                routes={template: number[column] for template, column in of_group.items()},
            )
            for group, of_group in zip(program.groups, routes, strict=True)
        ),
        route_starts=starts_of(program.route_starts[1:][tasks] - program.route_starts[tasks]),
        route_links=program.route_links[hops],
        route_class=program.route_class[hops],
    )
    return left, hops


_ROW, _STARTS = np.zeros(0, np.int32), np.zeros(2, np.int64)
_NO_TASKS = Template(
    members=1, pair=_ROW, pair_source=_ROW, pair_destination=_ROW, source=_ROW, size=_ROW, need=_ROW,
    edge_starts=_STARTS[:1], edge_target=_ROW, edge_lag=_STARTS[:0], edge_at_injection=np.zeros(0, np.bool_),
    arrival_starts=_STARTS, arrival_target=_ROW, arrival_lag=_STARTS[:0], member_need=np.zeros(1, np.int32),
    name="unused",
)  # fmt: skip
"""Keeps the number of a template that nothing runs any more, and frees the columns behind it."""
