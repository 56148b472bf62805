"""Rotations of a program: a cyclic shift of ranks under which everything an engine reads stays the same.

If shifting the ranks (along one axis of a mixed radix) maps slots, groups, transfers and the routes' links
onto each other with equal services, then any future of the program, shifted, is a future of the program. A
program has one future if no link chooses by rank among transfers that became ready at one instant (R3), or if
the shift keeps the order of those between which a link may have to choose (`keeps_order`). Then ranks of one
orbit live alike.

A shift is refuted as cheaply as possible: first by a sample of the slots, then by all of them, then by a
sample of what its collectives do. Only what no sample refutes is compared in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int32s, Int64s, distinct, entries_of, rows_of, starts_of
from rapid_des.modes.symmetry.collective import SEVERAL, Invariance, Invariances, injectors
from rapid_des.program.program import NONE, Program

_MOST_PLACES = 1 << 22
"""The largest product of links and ranks above a shift's span by which transfers are distinguished."""
_BLOCK = 1 << 18
"""Routes compared at a time."""
SAMPLE = 1 << 10
"""Slots, and routes, that are looked at first."""


class Shift(Struct, frozen=True):
    """Rank position a + stride·(b + extent·c) goes to b + 1, modulo extent."""

    stride: int
    extent: int

    def image(self, positions: Int64s) -> Int64s:
        """Return where positions go."""
        last = self.digit(positions) == self.extent - 1
        moved: Int64s = positions + self.stride * np.where(last, 1 - self.extent, 1)
        return moved

    def digit(self, positions: Int64s) -> Int64s:
        """Return the digit b that is shifted."""
        digit: Int64s = positions // self.stride % self.extent
        return digit

    def representative(self, positions: Int64s) -> Int64s:
        """Return the member of each position's orbit with digit 0."""
        return positions - self.stride * self.digit(positions)


def shifts(program: Program) -> Iterator[Shift]:
    """Yield the shifts that keep every rank's program, largest orbits first."""
    count = len(program.bindings)
    runs = np.array([binding.program for binding in program.bindings], np.int64)
    positions = np.arange(count)
    sizes = [size for size in range(count, 1, -1) if count % size == 0]
    # A digit of a mixed radix is a stride and an extent whose product divides the number of ranks.
    for extent in sizes:
        for stride in sorted({size for size in [1, *sizes] if count % (size * extent) == 0}):
            shift = Shift(stride, extent)
            if (runs[shift.image(positions)] == runs).all():
                yield shift


class GroupImages(Struct, frozen=True):
    """Where a shift takes groups: `image[g]`, and for groups that it maps to themselves how members go."""

    image: Int64s
    permuted: dict[int, Int64s]


class GroupSlots:
    """The slots of all ranks, one rank after the other: a member of a group each, or nobody's."""

    def __init__(self, program: Program) -> None:
        bindings, groups = program.bindings, program.groups
        self.lengths = np.array([len(binding.groups) for binding in bindings], np.int64)
        self.starts = starts_of(self.lengths)
        self.group = np.concatenate([binding.groups for binding in bindings]).astype(np.int64)
        self.member = np.concatenate([binding.members for binding in bindings]).astype(np.int64)
        self.used = np.flatnonzero(self.group != NONE)
        self.first_member = starts_of([len(group.bindings) for group in groups])
        self.position = np.concatenate([np.zeros(0, np.int32), *(group.bindings for group in groups)])
        """The positions of the members of all groups, one group after the other."""
        numbers: dict[object, int] = {}
        kinds = ((len(group.bindings), group.label, tuple(group.routes)) for group in groups)
        self.kind = np.array([numbers.setdefault(kind, len(numbers)) for kind in kinds], np.int64)
        """Groups of one kind have as many members, one label, and run the same templates in one order."""

    def __len__(self) -> int:
        return len(self.group)

    @cached_property
    def _complete(self) -> bool:
        """Whether each member of each group calls it by one slot of its own."""
        # A member that two slots call would be counted twice, one that none calls never.
        place = self.first_member[self.group[self.used]] + self.member[self.used]
        times = np.bincount(place, minlength=len(self.position))
        return bool((times == 1).all()) and np.array_equal(
            self.position[place], rows_of(self.lengths)[self.used]
        )

    def plausible(self, shift: Shift) -> bool:
        """Return whether a sample of the slots goes to like slots of their ranks' images."""
        image = shift.image(np.arange(len(self.lengths)))
        sample = self.used[:: max(1, len(self.used) // SAMPLE)]
        return np.array_equal(self.lengths[image], self.lengths) and self._agree(sample, image)

    def images(self, shift: Shift) -> GroupImages | None:
        """Return where a shift takes the groups if each slot goes to the same slot of its rank's image.

        None if some group would become what is none of the program's groups.
        """
        image = shift.image(np.arange(len(self.lengths)))
        if not self._complete or not self._agree(self.used, image):
            return None
        here, there = self.used, self._moved(self.used, image)
        groups = np.arange(len(self.kind))
        # The slots of one group write the same entry; the comparison fails if they write different images.
        groups[self.group[here]] = self.group[there]
        if not np.array_equal(groups[self.group[here]], self.group[there]):
            return None
        return GroupImages(groups, self._permuted(here, there))

    def _moved(self, entries: Int64s, image: Int64s) -> Int64s:
        # Slot k of a rank goes to slot k of the rank's image.
        position = np.searchsorted(self.starts, entries, side="right") - 1
        return entries + (self.starts[image] - self.starts[:-1])[position]

    def _agree(self, entries: Int64s, image: Int64s) -> bool:
        """Return whether members go to members of the same number in like groups, or stay in their group."""
        moved = self._moved(entries, image)
        group, other = self.group[entries], self.group[moved]
        return bool(
            (other != NONE).all()
            and np.array_equal(self.kind[group], self.kind[other])
            and ((group == other) | (self.member[entries] == self.member[moved])).all()
        )

    def _permuted(self, here: Int64s, there: Int64s) -> dict[int, Int64s]:
        stays = self.group[here] == self.group[there]
        here, there = here[stays], there[stays]
        member = np.zeros(len(self.position), np.int64)
        member[self.first_member[self.group[here]] + self.member[here]] = self.member[there]
        first = self.first_member
        return {
            group: member[first[group] : first[group + 1]] for group in distinct(self.group[here]).tolist()
        }


class Uses:
    """Every group's use of each of its templates: the routes that its pairs of members take."""

    def __init__(self, program: Program, slots: GroupSlots) -> None:
        self.program, self.slots = program, slots
        routes = [group.routes for group in program.groups]
        self.first = starts_of([len(of_group) for of_group in routes])
        """[group] its first use."""
        self.group = rows_of(np.diff(self.first))
        self.template = np.array(list(chain.from_iterable(routes)), np.int64)
        columns = [column for of_group in routes for column in of_group.values()]
        self.starts = starts_of([len(column) for column in columns])
        self.routes: Int32s = np.concatenate([np.zeros(0, np.int32), *columns])

    def blocks(self) -> Iterator[slice]:
        """Yield the entries of `routes`, many at a time."""
        for begin in range(0, len(self.routes), _BLOCK):
            yield slice(begin, min(begin + _BLOCK, len(self.routes)))

    def images(self, block: slice, groups: GroupImages, pairs: dict[int, Int32s]) -> Int32s:
        """Return the routes that routes go to; `pairs` says of uses where their pairs go, if anywhere."""
        entries = np.arange(block.start, block.stop)
        use = np.searchsorted(self.starts, entries, side="right") - 1
        # The image of a group runs the same templates in the same order: use u of one is use u of the other.
        image_use = self.first[groups.image[self.group[use]]] + use - self.first[self.group[use]]
        target = self.starts[image_use] + entries - self.starts[use]
        # In a group that the shift maps to itself the members change places, and so do the pairs of a use.
        for moved in range(use[0], use[-1] + 1) if pairs else ():
            if moved in pairs:
                mine = slice(*np.searchsorted(use, (moved, moved + 1)))
                target[mine] = self.starts[moved] + pairs[moved][entries[mine] - self.starts[moved]]
        images: Int32s = self.routes[target]
        return images

    def sources(self, entries: Int64s) -> Int64s:
        """Return the position of the rank that injects what goes over each of some routes (NONE: nothing)."""
        use = np.searchsorted(self.starts, entries, side="right") - 1
        first, members = self.injectors
        member = members[first[self.template[use]] + entries - self.starts[use]].astype(np.int64)
        place = self.slots.first_member[self.group[use]] + member
        # The inner choice keeps indices valid where nobody injects; the outer one says so.
        return np.where(member == NONE, NONE, self.slots.position[np.where(member == NONE, 0, place)])

    @cached_property
    def injectors(self) -> tuple[Int64s, Int32s]:
        """The start of each template's pairs, and the member that injects what goes over each pair."""
        columns = [injectors(template) for template in self.program.templates]
        members: Int32s = np.concatenate([np.zeros(0, np.int32), *columns])
        return starts_of([len(column) for column in columns]), members


def keeps_order(uses: Uses, shift: Shift) -> bool:
    """Return whether a shift keeps the order of any transfers that may ask one link at one instant.

    R3 orders them by their ranks' positions a + stride·(b + extent·c), where b is the digit that the shift
    turns, then in the order in which a rank injected them, which a shift keeps unless it `reorders` tasks.
    Ranks of different c are
    ordered by c in all images, as their representatives are. Ranks of one c are ordered by (b, a): if all of
    them that ever use the link have one digit b, they have one digit b + k in every image and are ordered by
    a, as their representatives are. If two digits meet, k moves one of them around the end before the other,
    and whether who was first is first then depends on k.
    """
    return _keeps_order(uses, shift, (np.arange(block.start, block.stop) for block in uses.blocks()))


def may_keep_order(uses: Uses, shift: Shift) -> bool:
    """Return whether a sample of the routes leaves it open that a shift keeps the order of transfers."""
    return _keeps_order(uses, shift, [np.arange(0, len(uses.routes), max(1, len(uses.routes) // SAMPLE))])


def _keeps_order(uses: Uses, shift: Shift, blocks: Iterable[Int64s]) -> bool:
    program = uses.program
    starts, lengths = program.route_starts, np.diff(program.route_starts)
    span = shift.stride * shift.extent
    spans = -(-len(program.bindings) // span)
    spans = spans if spans * program.links <= _MOST_PLACES else 1  # fewer places distinguish less: stricter
    digit_of = np.full(program.links * spans, NONE, np.int32)  # by link and c
    for entries in blocks:
        source, routes = uses.sources(entries), uses.routes[entries]
        if (source == SEVERAL).any():
            return False
        sources = np.repeat(source, lengths[routes])
        sent = sources != NONE
        links, sources = program.route_links[entries_of(starts, routes)][sent], sources[sent]
        places = links.astype(np.int64) * spans + (sources // span if spans > 1 else 0)
        digits = shift.digit(sources)
        # The first to use a place writes its digit there; all others must then find their own digit.
        new = digit_of[places] == NONE
        digit_of[places[new]] = digits[new]
        if not np.array_equal(digit_of[places], digits):
            return False
    return True


class Rotation(Struct, frozen=True):
    """A proven symmetry of a program."""

    ranks: int
    shift: Shift
    groups: GroupImages
    invariances: dict[tuple[int, int], Invariance]
    """The images of tasks by (group, template), for groups that the shift maps to themselves."""
    link: Int64s
    """[link] the link that it is mapped to; one that no route takes stays."""
    lowest_link: Int64s
    """The lowest link of each link's orbit."""

    @property
    def reorders(self) -> bool:
        """Whether tasks that a rank injects at one instant change their order."""
        # They never meet on a first link (`_keeps_choices`), but may where their routes join again.
        return any(each.order is not None and each.order.changed for each in self.invariances.values())

    @property
    def position(self) -> Int64s:
        """The position to which each rank's position goes."""
        return self.shift.image(np.arange(self.ranks))


def rotations(program: Program) -> Iterator[Rotation]:
    """Yield the rotations that can be proven, each on the whole program.

    Two faults that one rotation maps onto each other cost the same as long as no link chooses among transfers
    that became ready at one instant (`Records.ties`): such a choice looks at the ranks.
    """
    slots = GroupSlots(program)
    uses = Uses(program, slots)
    for shift in shifts(program):
        groups = slots.images(shift) if slots.plausible(shift) else None
        rotation = None if groups is None else prove(uses, shift, groups)
        if rotation is not None:
            yield rotation


def prove(uses: Uses, shift: Shift, groups: GroupImages, known: Invariances | None = None) -> Rotation | None:
    """Compare all that a shift moves; None if the collectives or the links of their routes change.

    `known` remembers collectives from one shift to the next.
    """
    known, invariances, pairs = known or Invariances(uses.program.templates), {}, {}
    for group, member in groups.permuted.items():
        for use, template in enumerate(uses.program.groups[group].routes, int(uses.first[group])):
            invariance = known.of(template, member)
            if invariance is None or not _keeps_choices(uses, use, template, invariance):
                return None
            invariances[group, template], pairs[use] = invariance, invariance.pair
    link = _link_images(uses, groups, pairs)
    if link is None:
        return None
    lowest = _orbits(link, shift.extent)
    if lowest is None:
        return None
    stays = np.where(link == NONE, np.arange(len(link)), link)
    return Rotation(len(uses.program.bindings), shift, groups, invariances, stays, lowest)


def _keeps_choices(uses: Uses, use: int, template: int, invariance: Invariance) -> bool:
    """Return whether first links choose alike between tasks of a member and between their images (R3)."""
    if invariance.order is None or not invariance.order.changed:
        return True
    program = uses.program
    routes = uses.routes[uses.starts[use] : uses.starts[use + 1]]
    begins, ends = program.route_starts[routes], program.route_starts[1:][routes]
    links = np.full(len(routes), NONE, np.int32)
    links[ends > begins] = program.route_links[begins[ends > begins]]
    return invariance.order.keeps_choices(program.templates[template], links)


def _link_images(uses: Uses, groups: GroupImages, pairs: dict[int, Int32s]) -> Int64s | None:
    """Return the image of each link under the routes that use it (NONE: no route does).

    None if a link would have two images, or routes and their images differ in their hops' services.
    """
    program = uses.program
    link = np.full(program.links, NONE, np.int64)
    starts, lengths = program.route_starts, np.diff(program.route_starts)
    for block in uses.blocks():
        here, there = uses.routes[block], uses.images(block, groups, pairs)
        if not np.array_equal(lengths[here], lengths[there]):
            return None
        first, second = entries_of(starts, here), entries_of(starts, there)
        if not np.array_equal(program.route_class[first], program.route_class[second]):
            return None
        mine, images = program.route_links[first], program.route_links[second]
        # A link on several routes writes its image once; the comparison finds routes that disagree.
        new = link[mine] == NONE
        link[mine[new]] = images[new]
        if not np.array_equal(link[mine], images):
            return None
    return link


def _orbits(link: Int64s, extent: int) -> Int64s | None:
    """Return the lowest link of each link's orbit; None if an orbit has not as many links as the shift.

    A link then stands for exactly one rank of an orbit.
    """
    used = np.flatnonzero(link != NONE)
    if (np.bincount(link[used], minlength=1) > 1).any() or (link[link[used]] == NONE).any():
        return None
    lowest, ahead = np.arange(len(link)), np.where(link == NONE, np.arange(len(link)), link)
    # Each pass doubles how far `ahead` is: after log2(extent) of them the minimum is over the whole orbit.
    for _ in range(extent.bit_length()):
        lowest, ahead = np.minimum(lowest, lowest[ahead]), ahead[ahead]
    sizes = np.bincount(lowest[used], minlength=1)
    whole = np.array_equal(lowest[link[used]], lowest[used]) and (sizes[lowest[used]] == extent).all()
    return lowest if whole else None
