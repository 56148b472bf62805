"""How much later each kernel and message could run without a later end: its slack.

Starts and finishes are moments, and what must follow what gives edges between them with a least distance:

    start ──duration──► finish      of kernels and of what else lasts as long whenever it starts
    start or finish ──lag──► start  of what depends on it (R1)
    finish ──0──► start             of the next visit that its server took (R2)
    finish ──0──► finish            of the stream that a collective holds (R5)
    start ──► the last arrival ──► finish  of a collective: what it lasts once all that it needs are there

From the end backwards, the latest time of a moment is the least latest time of those behind it minus the
distance. The order in which servers took visits, and how long messages last, stay as they were.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rapid_des.arrays import Int64s, rows_of
from rapid_des.program.latest import latest_times
from rapid_des.program.program import NONE, Program, Records, VisitKind
from rapid_des.report.critical_path.walk import MetMembers

_LARGE = 1_000
"""Tasks of a template from which on all of its members are taken to wait for all."""
_Edges = tuple[Int64s, Int64s, Int64s]
"""Moments from which and to which edges lead, and their least distances in picoseconds."""


def slack_of(program: Program, records: Records) -> Int64s:
    """Return how many picoseconds later each visit could start without a later end.

    A visit of which the latest time is not known has `NONE`.
    """
    visits, end = int(program.visits()[-1]), records.makespan
    columns = [*_visit_edges(program, records), *_server_edges(program, records)]
    meetings = list(_meeting_edges(program, records))
    columns += meetings
    origin, target, lag = (np.concatenate(rows) for rows in zip(*columns, strict=True))
    moments = 2 * visits + sum(_extra(target, visits) for _, target, _ in meetings[:1])
    latest, known = latest_times((origin, target, lag), moments, end)
    slack: Int64s = latest[: 2 * visits : 2] - records.start
    return np.where(~known[: 2 * visits : 2] | (records.start == NONE), NONE, slack)


def _extra(target: Int64s, visits: int) -> int:
    """Return the number of moments beyond starts and finishes: the last arrivals of collectives."""
    return max(int(target.max(initial=0)) + 1 - 2 * visits, 0)


def _visit_edges(program: Program, records: Records) -> Iterator[_Edges]:
    """Yield the edges of each rank's program, the durations of its visits, and what collectives hold."""
    known: dict[int, tuple[Int64s, ...]] = {}
    for binding, offset in zip(program.bindings, program.visits().tolist(), strict=False):
        if binding.program not in known:
            table = program.programs[binding.program]
            first = rows_of(np.diff(table.edge_starts))
            holds = np.flatnonzero(table.kind == VisitKind.HOLD)
            lasting = np.flatnonzero((table.kind != VisitKind.HOLD) & (table.kind != VisitKind.MEMBER))
            known[binding.program] = (
                2 * first + 1 - table.edge_at_start, 2 * table.edge_target.astype(np.int64), table.edge_lag,
                holds, table.release[holds].astype(np.int64), lasting,
            )  # fmt: skip
        origin, target, lag, holds, released, lasting = known[binding.program]
        yield origin + 2 * offset, target + 2 * offset, lag
        yield 2 * (released + offset) + 1, 2 * (holds + offset) + 1, np.zeros(len(holds), np.int64)
        visit = lasting + offset
        yield 2 * visit, 2 * visit + 1, records.finish[visit] - records.start[visit]


def _server_edges(program: Program, records: Records) -> Iterator[_Edges]:
    """Yield an edge from each visit to the first that its server took once it had left."""
    for binding, offset in zip(program.bindings, program.visits().tolist(), strict=False):
        table = program.programs[binding.program]
        mine = np.flatnonzero(table.server != NONE)
        if not len(mine):
            continue
        start, finish = (column[offset + mine] for column in (records.start, records.finish))
        server = table.server[mine].astype(np.int64) * (int(records.makespan) + 2)
        order = np.argsort(server + start, kind="stable")
        key = (server + start)[order]
        place = np.searchsorted(key, server + np.maximum(finish, start + 1))
        there = np.minimum(place, len(key) - 1)
        follows = (place < len(key)) & (table.server[mine[order[there]]] == table.server[mine])
        after = mine[order[there[follows]]]
        yield 2 * (mine[follows] + offset) + 1, 2 * (after + offset), np.zeros(len(after), np.int64)


def _meeting_edges(program: Program, records: Records) -> Iterator[_Edges]:
    """Yield edges from the starts of a collective's members over the last arrival to their ends."""
    met = MetMembers(program, records)
    members, starts = met.visits, met.starts
    if not len(members):
        return
    instance = rows_of(np.diff(starts))
    last = np.zeros(len(starts) - 1, np.int64)
    np.maximum.at(last, instance, records.start[members])
    moment = 2 * int(program.visits()[-1]) + instance
    awaits = _awaiting(program, met)
    yield 2 * members, moment, np.zeros(len(members), np.int64)
    lasts = records.finish[members] - last[instance]
    there = awaits & (lasts >= 0)
    yield moment[there], 2 * members[there] + 1, lasts[there]
    alone = ~there  # a sender, for one, does not wait for its receiver
    own = members[alone]
    yield 2 * own, 2 * own + 1, records.finish[own] - records.start[own]


def _awaiting(program: Program, met: MetMembers) -> NDArray[np.bool_]:
    """Return which members of collectives wait for others at all; in large ones all do."""
    offsets = program.visits()
    position = np.searchsorted(offsets, met.visits, side="right") - 1
    waits = np.zeros(len(position), np.bool_)
    for place in np.unique(position).tolist():
        binding = program.bindings[place]
        table = program.programs[binding.program]
        mine = np.flatnonzero(position == place)
        number = met.visits[mine] - offsets[place]
        calls = np.stack([table.template[number], binding.members[table.slot[number]]], axis=1)
        kinds, which = np.unique(calls, axis=0, return_inverse=True)
        found = [
            program.template_tasks[template] > _LARGE or int(met.awaited(template, member).sum()) > 1
            for template, member in kinds.tolist()
        ]
        waits[mine] = np.array(found, np.bool_)[which.ravel()]
    return waits
