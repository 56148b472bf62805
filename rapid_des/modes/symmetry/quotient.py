"""A template turned by a rotation of its members: whether it stays the same, and one orbit of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rapid_des.arrays import Int32s
from rapid_des.program.program import NONE, Template
from rapid_des.program.rounds import RoundsTemplate
from rapid_des.program.templates import structure

Ints = NDArray[np.int64]


_BLOCK = 1 << 16
"""Rows compared at a time: what a comparison holds beside the template is a few megabytes."""


@dataclass(frozen=True)
class Turn:
    """A template under a rotation of its members."""

    member: Ints
    task: Int32s
    """Where tasks go; nothing for templates that are rounds, whose task k·members + m goes along with m."""
    pair: Ints


class Turner:
    """Turns templates; what templates share, and they share all but sizes, is compared once."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Turn | None] = {}
        self._templates: list[Template] = []

    def turned(self, template: Template, member: Ints) -> Turn | None:
        """Return how tasks and pairs go when member m becomes `member[m]`; None if the template changes."""
        if isinstance(template, RoundsTemplate):
            return _turned_rounds(template, member)
        key = (structure(template), member.tobytes())
        if key not in self._known:
            self._templates.append(template)  # lives as long as the key, which holds its columns' ids
            self._known[key] = _turned(template, member)
        turn = self._known[key]
        if turn is None or not np.array_equal(template.size[turn.task], template.size):
            return None
        return turn


def turned(template: Template, member: Ints) -> Turn | None:
    """Return how tasks and pairs go when member m becomes `member[m]`; None if the template changes."""
    return Turner().turned(template, member)


def _turned_rounds(template: RoundsTemplate, member: Ints) -> Turn | None:
    rounds = template.rounds
    if not np.array_equal(rounds.partner[:, member], member[rounds.partner]):
        return None
    pair = np.arange(len(template.pair_source))
    pair[rounds.pair] = rounds.pair[:, member]
    return Turn(member, np.zeros(0, np.int32), pair)


def _turned(template: Template, member: Ints) -> Turn | None:
    """Take the j-th task of a member to the j-th task of its image; all columns and edges must agree."""
    counts = np.bincount(template.source, minlength=template.members)
    if not np.array_equal(counts[member], counts):
        return None
    first = np.cumsum(counts) - counts
    order = np.argsort(template.source, kind="stable").astype(np.int32)
    image = first[member] - first
    task = np.empty(len(template), np.int32)
    for begin in range(0, len(template), _BLOCK):
        block = np.arange(begin, min(begin + _BLOCK, len(template)))
        task[order[block]] = order[block + image[template.source[order[block]]]]
    pair = _pairs(template, member)
    if pair is None:
        return None
    moves = template.pair != NONE
    same = (
        np.array_equal(template.need[task], template.need)
        and np.array_equal(template.member_need[member], template.member_need)
        and np.array_equal(moves[task], moves)
        and np.array_equal(template.pair[task][moves], pair[template.pair[moves]])
    )
    turn = Turn(member, task, pair)
    return turn if same and _same_edges(template, turn) else None


def _pairs(template: Template, member: Ints) -> Ints | None:
    width = template.members + 1
    keys = template.pair_source.astype(np.int64) * width + template.pair_destination
    if len(keys) and (template.pair_source.max() >= template.members or (np.diff(keys) <= 0).any()):
        return None
    if len(keys) and template.pair_destination.max() >= template.members:
        return None
    image = member[template.pair_source] * width + member[template.pair_destination]
    place = np.minimum(np.searchsorted(keys, image), max(len(keys) - 1, 0))
    return place if np.array_equal(keys[place] if len(keys) else keys, image) else None


def _same_edges(template: Template, turn: Turn) -> bool:
    nodes = np.concatenate((turn.task, len(template) + turn.member)).astype(np.int32)
    return _same_rows(
        (template.edge_starts, template.edge_target),
        turn.task,
        nodes,
        marks=(template.edge_lag, template.edge_at_injection),
    ) and _same_rows(
        (template.arrival_starts, template.arrival_target),
        turn.member,
        nodes,
        marks=(template.arrival_lag,),
    )


def _same_rows(
    table: tuple[Ints, Int32s], image: NDArray[Any], nodes: Int32s, *, marks: tuple[NDArray[Any], ...]
) -> bool:
    """Tell whether each row of edges is that of its image, its targets moved by `nodes`."""
    starts, target = table
    for begin in range(0, len(image), _BLOCK):
        rows = np.arange(begin, min(begin + _BLOCK, len(image)))
        here, lengths = _rows(starts, rows)
        there, other_lengths = _rows(starts, image[rows])
        if not np.array_equal(lengths, other_lengths):
            return False
        moved, other = nodes[target[here]], target[there]
        if not np.array_equal(moved, other):
            row = np.repeat(rows, np.diff(lengths))
            here, there = here[np.lexsort((moved, row))], there[np.lexsort((other, row))]
            if not np.array_equal(nodes[target[here]], target[there]):
                return False
        if not all(np.array_equal(mark[here], mark[there]) for mark in marks):
            return False
    return True


def quotient(template: Template, turn: Turn) -> tuple[Template, Ints, Ints]:
    """Return one orbit of a template: its lowest members and their tasks.

    Also which of the old members stand for the new ones, and the new number of each old member's orbit.
    """
    orbit = np.arange(template.members)
    current = turn.member.copy()
    while not np.array_equal(current, np.arange(template.members)):
        orbit = np.minimum(orbit, current)
        current = turn.member[current]
    chosen, number = np.unique(orbit, return_inverse=True)
    if isinstance(template, RoundsTemplate):
        return _cut_rounds(template, chosen, number.reshape(-1)), chosen, number.reshape(-1)
    is_chosen = np.zeros(template.members, np.bool_)
    is_chosen[chosen] = True
    kept = np.flatnonzero(is_chosen[template.source])
    task_orbit = _kept_images(turn.task, kept)
    renumbered = np.full(len(template), NONE, np.int32)
    renumbered[kept] = np.arange(len(kept))
    nodes = np.concatenate((renumbered[task_orbit], (len(kept) + number.reshape(-1)).astype(np.int32)))
    return _cut(template, kept, chosen, nodes, number.reshape(-1)), chosen, number.reshape(-1)


def _cut_rounds(template: RoundsTemplate, chosen: Ints, number: Ints) -> RoundsTemplate:
    rounds = template.rounds
    left = replace(
        rounds, partner=number[rounds.partner[:, chosen]].astype(np.int32), pair=rounds.pair[:, chosen]
    )
    source = number[template.pair_source].astype(np.int32)
    destination = number[template.pair_destination].astype(np.int32)
    return RoundsTemplate(left, source, destination, template.name)


def _kept_images(image: Int32s, kept: Ints) -> Int32s:
    """Return for each task the kept one of its orbit; strides double, so an orbit of n takes log n steps."""
    found = np.full(len(image), NONE, np.int32)
    found[kept] = kept
    stride = image
    while (missing := np.flatnonzero(found == NONE)).size:
        found[missing] = found[stride[missing]]
        stride = stride[stride]
    return found


def _cut(template: Template, kept: Ints, chosen: Ints, nodes: Int32s, number: Ints) -> Template:
    edges, edge_starts = _rows(template.edge_starts, kept)
    arrivals, arrival_starts = _rows(template.arrival_starts, chosen)
    return Template(
        members=len(chosen),
        pair=template.pair[kept],
        pair_source=number[template.pair_source].astype(np.int32),
        pair_destination=number[template.pair_destination].astype(np.int32),
        source=number[template.source[kept]].astype(np.int32),
        size=template.size[kept],
        need=template.need[kept],
        edge_starts=edge_starts,
        edge_target=nodes[template.edge_target[edges]].astype(np.int32),
        edge_lag=template.edge_lag[edges],
        edge_at_injection=template.edge_at_injection[edges],
        arrival_starts=arrival_starts,
        arrival_target=nodes[template.arrival_target[arrivals]].astype(np.int32),
        arrival_lag=template.arrival_lag[arrivals],
        member_need=template.member_need[chosen],
        name=template.name,
    )


def _rows(starts: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Return the entries of some rows of a sparse table, and the new row starts."""
    lengths = (starts[1:] - starts[:-1])[rows]
    ends = np.cumsum(lengths)
    entries = np.arange(int(lengths.sum())) + np.repeat(starts[rows] - (ends - lengths), lengths)
    return entries, np.concatenate(([0], ends)).astype(np.int64)


def no_tasks() -> Template:
    """Return a template that nothing runs: it keeps a number and frees the columns behind it."""
    none, flags = np.zeros(0, np.int32), np.zeros(0, np.bool_)
    lags, starts = np.zeros(0, np.int64), np.zeros(2, np.int64)
    return Template(
        members=1, pair=none, pair_source=none, pair_destination=none, source=none, size=none, need=none,
        edge_starts=starts[:1], edge_target=none, edge_lag=lags, edge_at_injection=flags,
        arrival_starts=starts, arrival_target=none, arrival_lag=lags, member_need=np.zeros(1, np.int32),
        name="unused",
    )  # fmt: skip
