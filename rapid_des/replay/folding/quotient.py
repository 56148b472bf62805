"""A template turned by a rotation of its members: whether it stays the same, and one orbit of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rapid_des.replay.program import NONE, Template

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Turn:
    """A template under a rotation of its members."""

    member: Ints
    task: Ints
    pair: Ints


def turned(template: Template, member: Ints) -> Turn | None:
    """Return how tasks and pairs go when member m becomes `member[m]`; None if the template changes.

    The j-th task of a member goes to the j-th task of its image; all columns and edges must agree.
    """
    tasks = len(template)
    order = np.argsort(template.source, kind="stable")
    counts = np.bincount(template.source, minlength=template.members)
    if not np.array_equal(counts[member], counts):
        return None
    first = np.cumsum(counts) - counts
    task = np.empty(tasks, np.int64)
    own = np.arange(tasks) - np.repeat(first, counts)
    task[order] = order[first[member[template.source[order]]] + own]
    pair = _pairs(template, member)
    if pair is None:
        return None
    moves = template.pair != NONE
    same = (
        np.array_equal(template.size[task], template.size)
        and np.array_equal(template.need[task], template.need)
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
    nodes = np.concatenate((turn.task, len(template) + turn.member))
    origin = np.repeat(np.arange(len(template)), np.diff(template.edge_starts))
    arrival = np.repeat(np.arange(template.members), np.diff(template.arrival_starts))
    return _same(
        (origin, template.edge_target.astype(np.int64), template.edge_lag * 2 + template.edge_at_injection),
        (turn.task[origin], nodes[template.edge_target], template.edge_lag * 2 + template.edge_at_injection),
    ) and _same(
        (arrival, template.arrival_target.astype(np.int64), template.arrival_lag),
        (turn.member[arrival], nodes[template.arrival_target], template.arrival_lag),
    )


def _same(one: tuple[Ints, Ints, Ints], other: tuple[Ints, Ints, Ints]) -> bool:
    """Tell whether two lists of edges (origin, target, what) hold the same edges."""
    width = int(one[1].max(initial=0)) + 1
    keys = [edges[0] * width + edges[1] for edges in (one, other)]
    orders = [np.argsort(key, kind="stable") for key in keys]
    return np.array_equal(keys[0][orders[0]], keys[1][orders[1]]) and np.array_equal(
        one[2][orders[0]], other[2][orders[1]]
    )


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
    is_chosen = np.zeros(template.members, np.bool_)
    is_chosen[chosen] = True
    kept = np.flatnonzero(is_chosen[template.source])
    task_orbit = _kept_images(turn.task, kept)
    renumbered = np.full(len(template), NONE, np.int64)
    renumbered[kept] = np.arange(len(kept))
    nodes = np.concatenate((renumbered[task_orbit], len(kept) + number.reshape(-1)))
    return _cut(template, kept, chosen, nodes, number.reshape(-1)), chosen, number.reshape(-1)


def _kept_images(image: Ints, kept: Ints) -> Ints:
    """Return for each task the kept one of its orbit; strides double, so an orbit of n takes log n steps."""
    found = np.full(len(image), NONE, np.int64)
    found[kept] = kept
    stride = image
    while (missing := np.flatnonzero(found == NONE)).size:
        found[missing] = found[stride[missing]]
        stride = stride[stride]
    return found


def _cut(template: Template, kept: Ints, chosen: Ints, nodes: Ints, number: Ints) -> Template:
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
