"""Permutations of a collective's members that leave its template as it is, and one orbit of a template.

It leaves the template as it is if all columns and edges agree of tasks and of those to which it takes them
(`task_order`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Bools, Int32s, Int64s, entries_of, rows_of, starts_of
from rapid_des.modes.symmetry.task_order import BLOCK, TaskOrder, blocks_of, orbits_of
from rapid_des.program.program import NONE, Template, shapes
from rapid_des.program.rounds import RoundsTemplate, rounds_template
from rapid_des.values import replace

_SAMPLE = 1 << 10
"""Tasks that are compared first: where they agree, nearly always all do."""
SEVERAL = -2
"""Stands for the member where there are several."""


class Invariance(Struct, frozen=True):
    """A permutation of members under which a template stays the same."""

    member: Int64s
    pair: Int32s
    """[pair] the pair between the images of its members."""
    order: TaskOrder | None = None
    """The order of the tasks; None: they go round by round (`RoundsTemplate`)."""


class Invariances:
    """Knows under which permutations templates stay the same; what templates share is compared once."""

    def __init__(self, templates: Sequence[Template]) -> None:
        self._templates, self._shapes = templates, shapes(templates)
        self._known: dict[tuple[Hashable, bytes], Invariance | None] = {}
        self.compared = 0
        """The number of tasks and edges that have been compared; of what a sample refutes its tasks count."""

    def of(self, number: int, member: Int64s) -> Invariance | None:
        """Return what takes member m of a template to `member[m]`; None if the template changes."""
        template = self._templates[number]
        if isinstance(template, RoundsTemplate):
            return _rounds_invariance(template, member)
        key = (self._shapes[number], member.tobytes())
        if key not in self._known:
            self._known[key], compared = _invariance(template, member)
            self.compared += compared
        invariance = self._known[key]
        if invariance is None or invariance.order is None:
            return None
        return invariance if invariance.order.keeps(template.size, member) else None


def rows_to_compare(template: Template) -> int:
    """Return how many tasks and edges a comparison of a template looks at."""
    if isinstance(template, RoundsTemplate):
        return int(template.rounds.partner.size)
    return len(template) + len(template.edge_target)


def _rounds_invariance(template: RoundsTemplate, member: Int64s) -> Invariance | None:
    rounds = template.rounds
    if not np.array_equal(rounds.partner[:, member], member.astype(np.int32)[rounds.partner]):
        return None
    pair = np.arange(len(template.pair_source), dtype=np.int32)
    pair[rounds.pair] = rounds.pair[:, member]
    return Invariance(member, pair)


def _invariance(template: Template, member: Int64s) -> tuple[Invariance | None, int]:
    """Return what takes tasks to like ones, in the order of the template or else by pair.

    Also the number of rows that were read.
    """
    if not np.array_equal(template.member_need[member], template.member_need):
        return None, template.members
    pair = _pair_images(template, member)
    if pair is None:
        return None, len(template.pair_source)
    compared = 0
    for by_pair in (False, True):
        order = TaskOrder.by_pair(template, member, pair) if by_pair else TaskOrder(template)
        if order is None:
            break
        invariance = Invariance(member, pair, order)
        comparison = _Comparison(template, invariance)
        agrees = comparison.of_sample()
        compared += rows_to_compare(template) if agrees else len(template)
        if agrees and comparison.agrees():
            return invariance, compared
    return None, compared


def _pair_images(template: Template, member: Int64s) -> Int32s | None:
    """Return the pair between the images of each pair's members; None if there is none, or of a switch."""
    source, destination = template.pair_source, template.pair_destination
    if not len(source):
        return np.zeros(0, np.int32)
    if max(source.max(), destination.max()) >= template.members:
        return None
    width = template.members
    number: type[np.signedinteger[Any]] = np.int32 if width < 1 << 15 else np.int64  # of members' pairs
    keys = source.astype(number)
    keys *= width
    keys += destination
    # Pairs must stand in ascending order, each once: the search below, and the table, rely on it.
    if (keys[1:] <= keys[:-1]).any():
        return None
    moved = member.astype(number)
    image = moved[source]
    image *= width
    image += moved[destination]
    if width * width <= 4 * len(keys):  # nearly all pairs: a table is several times faster than a search
        pair_of = np.full(width * width, NONE, np.int32)
        pair_of[keys] = np.arange(len(keys), dtype=np.int32)
        images = pair_of[image]
        return images if (images != NONE).all() else None
    place = np.minimum(np.searchsorted(keys, image), len(keys) - 1)
    return place.astype(np.int32) if np.array_equal(keys[place], image) else None


class _Comparison(Struct, frozen=True):
    """Rows of a template beside the rows that they should become."""

    template: Template
    invariance: Invariance

    @property
    def order(self) -> TaskOrder:
        """The lists by which tasks go to their images."""
        assert self.invariance.order is not None, "rounds are compared as rounds"
        return self.invariance.order

    def of_sample(self) -> bool:
        """Return whether some tasks are those of their images, and each member has as many as its image."""
        order, count = self.order, len(self.template)
        if not np.array_equal(order.counts[self.invariance.member], order.counts):
            return False
        everywhere = np.arange(0, count, max(1, count // _SAMPLE))
        sample = np.concatenate((order.task[:_SAMPLE], order.task[-_SAMPLE:], everywhere)).astype(np.int64)
        return self.of_tasks(sample)

    def agrees(self) -> bool:
        """Compare all tasks."""
        return self.of_arrivals() and all(self.of_tasks(block) for block in blocks_of(len(self.template)))

    def of_tasks(self, tasks: Int64s | slice) -> bool:
        """Return whether tasks, and the edges that begin at them, are those of their images."""
        template = self.template
        image = self.order.image(tasks, self.invariance.member)
        pair, image_pair = template.pair[tasks], template.pair[image]
        moves = pair != NONE  # a task without a pair crosses no link, and neither may its image
        expected = pair.copy()
        expected[moves] = self.invariance.pair[pair[moves]]
        return (
            np.array_equal(image_pair, expected)
            and np.array_equal(template.need[image], template.need[tasks])
            and self._same_rows(
                template.edge_starts,
                (template.edge_target, template.edge_lag, template.edge_at_injection),
                (np.arange(tasks.start, tasks.stop) if isinstance(tasks, slice) else tasks, image),
            )
        )

    def of_arrivals(self) -> bool:
        """Return whether the arrival of each member starts the same tasks as that of its image."""
        template, member = self.template, self.invariance.member
        columns = (
            template.arrival_target,
            template.arrival_lag,
            np.broadcast_to(np.False_, len(template.arrival_lag)),
        )
        few = max(1, BLOCK * template.members // max(1, len(template.arrival_target)))  # a block's members
        return all(
            self._same_rows(template.arrival_starts, columns, (np.arange(begin, end), member[begin:end]))
            for begin in range(0, template.members, few)
            for end in [min(begin + few, template.members)]
        )

    def _same_rows(
        self, starts: Int64s, edges: tuple[Int32s, Int64s, Bools], rows: tuple[Int64s, Int64s | Int32s]
    ) -> bool:
        """Return whether each row of edges is that of its image, with the targets' images as targets."""
        target, *marks = edges
        lengths = starts[1:][rows[0]] - starts[rows[0]]
        if not np.array_equal(starts[1:][rows[1]] - starts[rows[1]], lengths):
            return False
        here, there = (entries_of(starts, row) for row in rows)
        expected, other = self._targets(target[here]), target[there]
        if not np.array_equal(expected, other):  # perhaps only in another order
            row = rows_of(lengths)
            here, there = here[np.lexsort((expected, row))], there[np.lexsort((other, row))]
            if not np.array_equal(self._targets(target[here]), target[there]):
                return False
        return all(np.array_equal(mark[here], mark[there]) for mark in marks)

    def _targets(self, targets: Int32s) -> Int64s:
        """Return the images of edge targets: tasks, and behind them members (that they are done)."""
        tasks = len(self.template)
        is_task = targets < tasks
        images = np.empty(len(targets), np.int64)
        images[is_task] = self.order.image(targets[is_task], self.invariance.member)
        images[~is_task] = tasks + self.invariance.member[targets[~is_task] - tasks]
        return images


class MemberOrbits(Struct, frozen=True):
    """The orbits of members under a permutation; the lowest member of each stands for it."""

    lowest: Int64s
    """[orbit] its lowest member."""
    of_member: Int64s
    """[member] the orbit that it belongs to."""


def member_orbits(member: Int64s) -> MemberOrbits:
    """Return the orbits of a permutation."""
    chosen, number = np.unique(orbits_of(member), return_inverse=True)
    return MemberOrbits(chosen, number.reshape(-1))


def one_orbit(template: Template, orbits: MemberOrbits, order: TaskOrder | None) -> Template:
    """Return what is left of a template when one member stands for each orbit: its tasks, and their edges."""
    if isinstance(template, RoundsTemplate):
        return _rounds_of_orbits(template, orbits)
    order = order or TaskOrder(template)
    representative = orbits.lowest[orbits.of_member]
    orbit_of = orbits.of_member.astype(np.int32)
    stays = (representative == np.arange(template.members))[template.source]
    left = np.flatnonzero(stays)
    number = np.cumsum(stays, dtype=np.int32) - np.int32(1)

    def nodes(targets: Int32s) -> Int32s:
        # An edge to a task of another orbit's member goes to the task of the member that stands for it.
        is_task = targets < len(template)
        renumbered = np.empty(len(targets), np.int32)
        renumbered[is_task] = number[order.image(targets[is_task], representative)]
        renumbered[~is_task] = len(left) + orbits.of_member[targets[~is_task] - len(template)]
        return renumbered

    edges = entries_of(template.edge_starts, left)
    arrivals = entries_of(template.arrival_starts, orbits.lowest)
    return Template(
        members=len(orbits.lowest),
        pair=template.pair[left],
        pair_source=orbit_of[template.pair_source],
        pair_destination=orbit_of[template.pair_destination],
        source=orbit_of[template.source[left]],
        size=template.size[left],
        need=template.need[left],
        edge_starts=starts_of(template.edge_starts[1:][left] - template.edge_starts[left]),
        edge_target=nodes(template.edge_target[edges]),
        edge_lag=template.edge_lag[edges],
        edge_at_injection=template.edge_at_injection[edges],
        arrival_starts=starts_of(np.diff(template.arrival_starts)[orbits.lowest]),
        arrival_target=nodes(template.arrival_target[arrivals]),
        arrival_lag=template.arrival_lag[arrivals],
        member_need=template.member_need[orbits.lowest],
        name=template.name,
        ahead=template.ahead,
    )


def sizes_of_orbits(template: Template, orbits: MemberOrbits) -> Int32s:
    """Return the sizes of the tasks that `one_orbit` leaves of a template."""
    stands = orbits.lowest[orbits.of_member] == np.arange(template.members)
    sizes: Int32s = template.size[stands[template.source]]
    return sizes


def _rounds_of_orbits(template: RoundsTemplate, orbits: MemberOrbits) -> RoundsTemplate:
    rounds, number = template.rounds, orbits.of_member.astype(np.int32)
    left = replace(
        rounds,
        partner=number[rounds.partner[:, orbits.lowest]],
        pair=rounds.pair[:, orbits.lowest],
    )
    ends = number[template.pair_source], number[template.pair_destination]
    return rounds_template(left, *ends, template.name, ahead=template.ahead)


def with_used_pairs(template: Template) -> tuple[Template, Int64s]:
    """Return a template without pairs that no task uses, and which of the pairs are left."""
    rounds = template.rounds if isinstance(template, RoundsTemplate) else None
    pair = template.pair if rounds is None else rounds.pair
    is_used = np.zeros(len(template.pair_source) + 1, np.bool_)  # the last stands for NONE
    is_used[pair] = True
    used = np.flatnonzero(is_used[:-1])
    if len(used) == len(template.pair_source):
        return template, used
    number = np.full(len(is_used), NONE, np.int32)
    number[used] = np.arange(len(used))
    ends = template.pair_source[used], template.pair_destination[used]
    if rounds is not None:
        renumbered = replace(rounds, pair=number[rounds.pair])
        return rounds_template(renumbered, *ends, template.name, ahead=template.ahead), used
    left = replace(template, pair=number[pair], pair_source=ends[0], pair_destination=ends[1], shape=None)
    return left, used


def injectors(template: Template) -> Int32s:
    """Return by pair the member that injects its tasks (NONE: no task uses it), or SEVERAL."""
    if isinstance(template, RoundsTemplate):
        pair = template.rounds.pair
        source = np.broadcast_to(np.arange(template.members, dtype=np.int32), pair.shape)
    else:
        pair, source = template.pair, template.source
        moves = pair != NONE
        if not moves.all():
            pair, source = pair[moves], source[moves]
    member = np.full(len(template.pair_source), NONE, np.int32)
    # Of several writers of an entry one wins; the others then find that it is not theirs.
    member[pair] = source
    member[pair[member[pair] != source]] = SEVERAL
    return member
