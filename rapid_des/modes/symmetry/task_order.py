"""The image of each task of a template under a permutation of its members.

Each member has a list of its tasks. A permutation takes the j-th task of a member's list to the j-th task of
the list of the member's image. The lists are either in the order of the template or *by pair*: then the j-th
task between two members goes to the j-th task between their images.

    exchange, member 0:  to 1, to 2, over the rail to 8        member 7:  over the rail to 15, to 0, to 1

If a member injects several tasks at one instant and they begin on the same link, the order of the template
decides which goes first (R3). So lists by pair must keep that order for such tasks (`keeps_choices`).
"""

from __future__ import annotations

import numpy as np

from rapid_des.arrays import Bools, Int32s, Int64s, rows_of, starts_of
from rapid_des.program.program import NONE, Template

BLOCK = 1 << 16
"""Number of tasks that are compared at a time, so that a comparison needs a few megabytes of its own."""


def blocks_of(count: int) -> list[slice]:
    """Return the ranges of rows that are compared at a time."""
    return [slice(begin, min(begin + BLOCK, count)) for begin in range(0, count, BLOCK)]


class TaskOrder:
    """The tasks of a template by the member that injects them."""

    def __init__(self, template: Template) -> None:
        self.source = template.source
        self.counts = np.bincount(template.source, minlength=template.members)
        self.first = starts_of(self.counts)[:-1].astype(np.int32)
        few = template.source.astype(np.uint16) if template.members < 1 << 16 else template.source
        self.task = np.argsort(few, kind="stable").astype(np.int32)  # 16 bits: by radix, many times faster
        self.place = _inverse(self.task)
        self.changed = False
        """Whether some list is not in the order of the template."""

    @classmethod
    def by_pair(cls, template: Template, member: Int64s, pair: Int32s) -> TaskOrder | None:
        """Return lists by pair; None if there are none, or if they are the lists of the template.

        `pair` is the image of each pair. In each orbit of the permutation, the member with the lowest number
        keeps its list as it is.
        """
        order, images = cls(template), _images_by_pair(template, member, pair)
        if images is None:
            return None
        lowest = orbits_of(member)
        tasks = order.task[(lowest == np.arange(template.members))[order.source[order.task]]]
        place = order.place[tasks] - order.first[order.source[tasks]]
        lists = order.task.copy()
        while len(tasks):
            tasks = images[tasks]
            goes_on = lowest[order.source[tasks]] != order.source[tasks]
            tasks, place = tasks[goes_on], place[goes_on]
            lists[order.first[order.source[tasks]] + place] = tasks
        if np.array_equal(lists, order.task):
            return None
        order.task, order.place, order.changed = lists, _inverse(lists), True
        return order

    def image(self, tasks: Int32s | Int64s | slice, member: Int64s) -> Int32s:
        """Return the images of tasks."""
        # `place` is where a task stands in the list by member; that list moves by whole members.
        moved = (self.first[member] - self.first)[self.source[tasks]]
        image: Int32s = self.task[self.place[tasks] + moved]
        return image

    def keeps(self, column: Int32s, member: Int64s) -> bool:
        """Return whether a column has the same entry for each task and its image."""
        if (column == column[:1]).all():
            return True
        return all(
            np.array_equal(column[block], column[self.image(block, member)])
            for block in blocks_of(len(self.task))
        )

    def keeps_choices(self, template: Template, links: Int32s) -> bool:
        """Return whether tasks among which a first link may choose stand in each list as in the template.

        `links` has the first link of each pair (NONE: it crosses no link).
        """
        if not self.changed:
            return True
        task, pairs = self.task, template.pair[self.task]
        keys = np.where(pairs == NONE, NONE, links[pairs]), _moments(template)[task], self.source[task]
        order = np.lexsort(keys)
        link, moment, source = (key[order] for key in keys)
        together: Bools = (link[1:] == link[:-1]) & (moment[1:] == moment[:-1]) & (source[1:] == source[:-1])
        return bool((np.diff(task[order]) > 0)[together & (link[1:] != NONE)].all())


def _moments(template: Template) -> Int64s:
    """Return the time of injection of each task after its member's arrival; all 0 if some wait for others.

    A link never has to choose between tasks that are injected at different times.
    """
    tasks, moments = len(template), np.zeros(len(template), np.int64)
    waits = np.bincount(template.arrival_target, minlength=tasks)[:tasks]
    waits = waits + np.bincount(template.edge_target, minlength=tasks)[:tasks]
    member = rows_of(np.diff(template.arrival_starts))
    starts = template.arrival_target < tasks
    started = template.arrival_target[starts]
    own = np.array_equal(template.source[started], member[starts])
    if not own or (waits != 1).any() or (template.need != 1).any() or len(started) != tasks:
        return moments
    moments[started] = template.arrival_lag[starts]
    return moments


def orbits_of(member: Int64s) -> Int64s:
    """Return for each member the lowest one of those that a permutation takes to one another."""
    # Pointer doubling: after k passes `lowest` is the minimum over the next 2^k members of the orbit.
    lowest, ahead = np.arange(len(member)), member
    for _ in range(len(member).bit_length()):
        lowest, ahead = np.minimum(lowest, lowest[ahead]), ahead[ahead]
    return lowest


def _inverse(permutation: Int32s) -> Int32s:
    inverse = np.empty_like(permutation)
    inverse[permutation] = np.arange(len(permutation), dtype=np.int32)
    return inverse


def _images_by_pair(template: Template, member: Int64s, pair: Int32s) -> Int32s | None:
    """Return for each task the task of the same number between the images; None if a task has no image."""
    pairs = len(template.pair_source)
    # the j-th task of a member that crosses no link goes to the j-th such task of its image
    between = np.where(template.pair == NONE, pairs + template.source, template.pair)
    image = np.concatenate((pair, pairs + member))
    counts = np.bincount(between, minlength=len(image))
    if not np.array_equal(counts[image], counts):
        return None
    first, task = starts_of(counts), np.argsort(between, kind="stable").astype(np.int32)
    images: Int32s = task[_inverse(task) + (first[image] - first[:-1])[between]]
    return images if np.array_equal(template.source[images], member[template.source]) else None
