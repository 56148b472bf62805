"""What is not on the critical path: its slack, what would be critical next, and who waits for links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Bools, Int64s
from rapid_des.modes.execution import Run
from rapid_des.program.program import NONE, Records, VisitKind
from rapid_des.report.critical_path import CriticalPath, Namer
from rapid_des.report.critical_path.slack import slack_of
from rapid_des.report.result import Result
from rapid_des.units import Duration, seconds

_QUEUES = 2
"""The number of kinds of messages whose waits are put into words."""


class OperatorSlack(Struct, frozen=True):
    """The slack of all runs of an operator, collective or message, on all ranks."""

    cause: str
    operator: str
    visits: int
    """The number of its runs."""
    time: int
    """The picoseconds that all of them take together."""
    least: int
    """The least slack of one of them in picoseconds."""
    median: int
    rank: int
    """The rank of the one with the least slack."""
    on_path: bool
    """Whether runs of it are on the critical path."""

    def as_json(self) -> Mapping[str, Any]:
        """Return plain data for JSON; times in seconds."""
        return {
            "cause": self.cause,
            "operator": self.operator,
            "rank": self.rank,
            "visits": self.visits,
            "time_s": seconds(self.time),
            "least_slack_s": seconds(self.least),
            "median_slack_s": seconds(self.median),
            "on_path": self.on_path,
        }


class LinkQueue(Struct, frozen=True):
    """How long messages of a kind wait for links, and who takes the link where they wait longest."""

    kind: str
    wait: int
    """The picoseconds that all of them wait on all links together."""
    link: str
    link_wait: int
    """The picoseconds of those on the link where they wait the longest."""
    busy: Mapping[str, int]
    """The picoseconds for which that link serves messages of each kind."""

    def as_json(self) -> Mapping[str, Any]:
        """Return plain data for JSON; times in seconds."""
        return {
            "kind": self.kind,
            "wait_s": seconds(self.wait),
            "link": self.link,
            "link_wait_s": seconds(self.link_wait),
            "link_busy_s": {kind: seconds(time) for kind, time in self.busy.items()},
        }


class OffPath(Struct, frozen=True):
    """What is known besides the critical path."""

    slacks: tuple[OperatorSlack, ...]
    queues: tuple[LinkQueue, ...]

    @property
    def next(self) -> OperatorSlack | None:
        """What becomes critical next: of all that is not on the path, what has the least slack."""
        return next((row for row in self.slacks if row.least > 0 and not row.on_path), None)

    def report(self) -> Iterator[str]:
        """Yield what would be critical next, and who waits on links."""
        following = self.next
        if following is not None:
            what = f"{following.operator} ({following.cause}, rank {following.rank})"
            yield (
                f"critical next: {what}, which could run {Duration(following.least)} later; "
                "once the path is that much shorter, it decides too"
            )
        for queue in self.queues[:_QUEUES]:
            busy = ", ".join(f"{kind} {Duration(time)}" for kind, time in queue.busy.items())
            yield (
                f"{queue.kind} messages wait {Duration(queue.wait)} for links in all, "
                f"{Duration(queue.link_wait)} of that on {queue.link}, which serves {busy}"
            )

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        return {
            "slack": [row.as_json() for row in self.slacks],
            "next": None if self.next is None else self.next.as_json(),
            "queueing": [queue.as_json() for queue in self.queues],
        }


def operator_slacks(result: Result, path: CriticalPath) -> tuple[OperatorSlack, ...]:
    """Return the slack of each operator, collective and message, the least first; empty without a run."""
    run = result.run if result.blocks is None else result.blocks.run
    if run is None:
        return ()
    records, program = run.execution.records, run.lowered.program
    slack = slack_of(program, records)
    names, of = _named_visits(run, Namer(run.lowered, result.stream_kinds or {}))
    found = [
        _of_rank(records, of[position], offset)
        for position, offset in enumerate(program.visits()[:-1].tolist())
    ]
    name, visit, length = (np.concatenate(columns) for columns in zip(*found, strict=True))
    known = slack[visit] != NONE
    name, visit, length = name[known], visit[known], length[known]
    order = np.lexsort((visit, slack[visit], name))  # by name, and within a name the least slack first
    name, visit, length = name[order], visit[order], length[order]
    bounds = np.searchsorted(name, np.arange(len(names) + 1)).tolist()
    position, on_path = np.searchsorted(program.visits(), visit, side="right") - 1, path.by_operator.keys()
    rows = [
        OperatorSlack(
            *key,
            visits=high - low,
            time=int(length[low:high].sum()),
            least=int(slack[visit[low]]),
            median=int(slack[visit[(low + high - 1) // 2]]),
            rank=program.bindings[int(position[low])].rank,
            on_path=key in on_path,
        )
        for key, low, high in zip(names, bounds, bounds[1:], strict=False)
        if high > low
    ]
    return tuple(sorted(rows, key=lambda row: (row.least, -row.time, row.operator)))


_Named = tuple[Int64s, Int64s, Bools]
"""The kernels and messages of a rank, the number of each one's name, and which are messages."""


def _named_visits(run: Run, namer: Namer) -> tuple[dict[tuple[str, str], int], list[_Named]]:
    """Return the numbers of the names, and the kernels and messages of each rank."""
    names = dict[tuple[str, str], int]()
    known = dict[tuple[int, int], _Named]()  # ranks that do the same share a program and nodes
    found = []
    for position, binding in enumerate(run.lowered.program.bindings):
        key = binding.program, id(run.lowered.traces.ranks[position].nodes)
        if key not in known:
            known[key] = _named_visits_of_rank(run, namer, names, position)
        found.append(known[key])
    return names, found


def _named_visits_of_rank(run: Run, namer: Namer, names: dict[tuple[str, str], int], position: int) -> _Named:
    """Return the named visits of one rank; names that are new get the next numbers in `names`."""
    program = run.lowered.program
    table = program.programs[program.bindings[position].program]
    member = table.kind == VisitKind.MEMBER
    # a member inside a collective of several phases has the node of the visit that holds its stream
    holder = np.where((table.node == NONE) & (table.parent != NONE), table.parent, np.arange(len(table)))
    node = table.node[holder]
    mine = np.flatnonzero(
        (node != NONE) & (member | ((table.kind == VisitKind.COMPUTE) & (table.server != NONE)))
    )
    nodes = run.lowered.traces.ranks[position].nodes
    # one number for each (name, stream): the namer is asked once for each, not for each visit
    kinds = nodes.name[node[mine]].astype(np.int64) * (len(nodes.streams) + 1) + nodes.stream[node[mine]]
    _, first, which = np.unique(kinds, return_index=True, return_inverse=True)
    keys = [namer.named(position, int(node[mine[row]])) for row in first.tolist()]
    numbers = np.array([names.setdefault(key, len(names)) for key in keys], np.int64)
    return mine, numbers[which.ravel()], member[mine]


def _of_rank(records: Records, named: _Named, offset: int) -> tuple[Int64s, Int64s, Int64s]:
    """Return the name, the flat number and the duration of each kernel and message of a rank."""
    mine, name, member = named
    visit = mine + offset
    # a message or collective begins when all its members have arrived, not when the first one waits
    begun = np.maximum(records.start[visit], np.where(member, records.met[visit], 0))
    return name, visit, np.maximum(records.finish[visit] - begun, 0)


def link_queues(run: Run | None) -> Iterator[LinkQueue]:
    """Yield how long messages of each kind wait for links, the longest first."""
    if run is None or not run.execution.records.link_wait.any():
        return
    records, labels = run.execution.records, run.lowered.program.labels
    totals = records.link_wait.sum(axis=0)
    for label in np.argsort(-totals, kind="stable").tolist():
        if not totals[label]:
            return
        link = int(records.link_wait[:, label].argmax())
        busy = records.link_busy[link]
        shares = {
            labels[each]: int(busy[each]) for each in np.argsort(-busy, kind="stable").tolist() if busy[each]
        }
        waited = int(records.link_wait[link, label])
        yield LinkQueue(labels[label], int(totals[label]), run.machine.fabric.link_name(link), waited, shares)
