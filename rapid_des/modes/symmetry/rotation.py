"""Rotations of a program: a cyclic shift of ranks under which everything an engine reads stays the same.

If shifting the ranks (along one axis of a mixed radix) maps programs, groups, transfers and the routes' links
onto each other with equal services, then any future of the program, shifted, is a future of the program. A
program has one future as long as no link chooses among equals by rank (R3), so ranks of one orbit live alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rapid_des.arrays import Int32s
from rapid_des.program.program import Group, Program

Ints = NDArray[np.int64]

_BLOCK = 1 << 18
"""Routes compared at a time."""


@dataclass(frozen=True)
class Shift:
    """Rank position a + stride·(b + extent·c) goes to b + 1, modulo extent."""

    stride: int
    extent: int

    def image(self, positions: Ints) -> Ints:
        """Return where positions go."""
        digit = positions // self.stride % self.extent
        moved: Ints = positions + self.stride * np.where(digit == self.extent - 1, 1 - self.extent, 1)
        return moved

    def representative(self, positions: Ints) -> Ints:
        """Return the member of each position's orbit with digit 0."""
        return positions - self.stride * (positions // self.stride % self.extent)


def shifts(program: Program) -> Iterator[Shift]:
    """Yield the shifts that keep every rank's program, largest orbits first."""
    count = len(program.bindings)
    runs = np.array([binding.program for binding in program.bindings], np.int64)
    positions = np.arange(count)
    sizes = [size for size in range(count, 1, -1) if count % size == 0]
    for extent in sizes:
        for stride in sorted({size for size in [1, *sizes] if count % (size * extent) == 0}):
            shift = Shift(stride, extent)
            if (runs[shift.image(positions)] == runs).all():
                yield shift


@dataclass(frozen=True)
class GroupMap:
    """Where a shift takes groups: `image[g]`, and for groups that it maps to themselves how members go."""

    image: Ints
    turned: dict[int, Ints]


def group_map(program: Program, shift: Shift) -> GroupMap | None:
    """Return the groups' images; None if some group's image is none of the program's."""
    used = _slot_uses(program)
    if used is None:
        return None
    numbers = _numbered([group.bindings for group in program.groups])
    known: dict[tuple[int, tuple[int, ...]], int] = {}  # by members, then by the slots that call
    for index, number in enumerate(numbers):
        known.setdefault((number, used[index]), index)
    image = np.empty(len(program.groups), np.int64)
    moved = _moved(program, shift, numbers)
    turned: dict[int, Ints] = {}
    for index, group in enumerate(program.groups):
        goes, number = moved[numbers[index]]
        other = known.get((number, used[index]))
        if other is None and set(goes.tolist()) == set(group.bindings.tolist()):
            turned[index] = _turn(group, goes)
            other = index
        if other is None or not _alike(group, program.groups[other]):
            return None
        image[index] = other
    return GroupMap(image, turned)


def _numbered(arrays: Sequence[Int32s]) -> list[int]:
    """Return a number for each array, the same for equal ones; many are one object."""
    by_id: dict[int, int] = {}
    by_value: dict[bytes, int] = {}
    for one in arrays:
        if id(one) not in by_id:
            by_id[id(one)] = by_value.setdefault(one.tobytes(), len(by_value))
    return [by_id[id(one)] for one in arrays]


def _moved(program: Program, shift: Shift, numbers: Sequence[int]) -> dict[int, tuple[Int32s, int]]:
    """Return for each list of members where it goes, and the number of the list that it then is, or -1."""
    images = shift.image(np.arange(len(program.bindings))).astype(np.int32)
    members = {number: group.bindings for number, group in zip(numbers, program.groups, strict=True)}
    number_of = {bindings.tobytes(): number for number, bindings in members.items()}
    goes = {number: images[bindings] for number, bindings in members.items()}
    return {number: (where, number_of.get(where.tobytes(), -1)) for number, where in goes.items()}


def _alike(group: Group, other: Group) -> bool:
    return group.label == other.label and group.routes.keys() == other.routes.keys()


def _turn(group: Group, moved: Int32s) -> Ints:
    place = {position: member for member, position in enumerate(group.bindings.tolist())}
    return np.array([place[position] for position in moved.tolist()], np.int64)


def _slot_uses(program: Program) -> list[tuple[int, ...]] | None:
    """Return by which slot each member of a group calls it: groups alike in members differ in their slots."""
    uses: list[list[int]] = [[-1] * len(group.bindings) for group in program.groups]
    for binding in program.bindings:
        for slot, (group, member) in enumerate(
            zip(binding.groups.tolist(), binding.members.tolist(), strict=True)
        ):
            if group >= 0:
                if uses[group][member] >= 0:
                    return None
                uses[group][member] = slot
    return [tuple(use) for use in uses]


def keeps_slots(program: Program, shift: Shift, groups: GroupMap) -> bool:
    """Tell whether each rank's slots go to the same slots of its image, member by member."""
    images = shift.image(np.arange(len(program.bindings))).tolist()
    for binding, image in zip(program.bindings, images, strict=True):
        other = program.bindings[image]
        here = binding.groups >= 0
        if not np.array_equal(here, other.groups >= 0):
            return False
        if not np.array_equal(groups.image[binding.groups[here]], other.groups[here]):
            return False
        for slot in np.flatnonzero(here).tolist():
            turn = groups.turned.get(int(binding.groups[slot]))
            member = int(binding.members[slot])
            if (member if turn is None else int(turn[member])) != int(other.members[slot]):
                return False
    return True


def link_orbits(
    program: Program, shift: Shift, groups: GroupMap, turns: dict[tuple[int, int], Ints]
) -> Ints | None:
    """Return the lowest link of each link's orbit; None if the shift does not carry routes onto routes.

    `turns` gives for (group, template) of turned groups where each pair goes. Every orbit must have as many
    links as the shift has positions, so that a link stands for exactly one rank of an orbit.
    """
    move = np.full(program.links, -1, np.int64)
    links = program.route_links
    for first, second in hop_images(program, groups, turns):
        if not np.array_equal(program.route_class[first], program.route_class[second]):
            return None
        move[links[first]] = links[second]
    for first, second in hop_images(program, groups, turns):
        if not np.array_equal(move[links[first]], links[second]):
            return None
    return _orbits(move, shift.extent)


def hop_images(
    program: Program, groups: GroupMap, turns: dict[tuple[int, int], Ints]
) -> Iterator[tuple[Ints, Ints]]:
    """Yield the hops of each group's routes and of their images, many routes at a time.

    Routes that differ in length from their images are yielded without any.
    """
    sources, targets, count = list[Int32s](), list[Int32s](), 0
    for source, target in _route_images(program, groups, turns):
        sources.append(source)
        targets.append(target)
        count += len(source)
        if count >= _BLOCK:
            yield from _hops(program, np.concatenate(sources), np.concatenate(targets))
            sources, targets, count = [], [], 0
    if count:
        yield from _hops(program, np.concatenate(sources), np.concatenate(targets))


def _route_images(
    program: Program, groups: GroupMap, turns: dict[tuple[int, int], Ints]
) -> Iterator[tuple[Int32s, Int32s]]:
    """Yield routes and their images: each route of each group's templates once, in order."""
    seen: set[tuple[int, int]] = set()
    for index, group in enumerate(program.groups):
        for template, routes in group.routes.items():
            turn = turns.get((index, template))
            other = program.groups[int(groups.image[index])].routes[template]
            ends = (id(routes), id(other if turn is None else turn))
            if ends not in seen:
                seen.add(ends)
                yield routes, (other if turn is None else routes[turn])


def _hops(program: Program, source: Int32s, target: Int32s) -> Iterator[tuple[Ints, Ints]]:
    starts = program.route_starts
    for begin in range(0, len(source), _BLOCK):
        here, there = starts[source[begin : begin + _BLOCK]], starts[target[begin : begin + _BLOCK]]
        lengths = starts[1:][source[begin : begin + _BLOCK]] - here
        if not np.array_equal(lengths, starts[1:][target[begin : begin + _BLOCK]] - there):
            yield np.arange(1), np.zeros(0, np.int64)
        elif (lengths == lengths[0]).all():
            inside = np.arange(lengths[0])
            yield (here[:, None] + inside).reshape(-1), (there[:, None] + inside).reshape(-1)
        else:
            inside = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            yield np.repeat(here, lengths) + inside, np.repeat(there, lengths) + inside


def _orbits(move: Ints, extent: int) -> Ints | None:
    used = np.flatnonzero(move >= 0)
    if (np.bincount(move[used], minlength=1) > 1).any() or not (move[move[used]] >= 0).all():
        return None
    lowest, current = np.arange(len(move)), used.copy()
    for _ in range(extent - 1):
        current = move[current]
        lowest[used] = np.minimum(lowest[used], current)
        if (current == used).any():
            return None
    return lowest if np.array_equal(move[current], used) else None
