"""Checks of a trace set before a replay: errors by file, rank and node.

Among it sends and receives that do not find each other, and what nearly would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Bools, Int64s
from rapid_des.chakra.dialects import ReadOptions
from rapid_des.chakra.reader import ReadReport, read_report
from rapid_des.chakra.trace import UNSTATED, CollectiveType, Finding, NodeKind, NodeTable, RankTrace, TraceSet
from rapid_des.errors import TraceError

_SHOWN = 4


class Halves(Struct, frozen=True):
    """All sends or all receives of a set, as columns."""

    source: Int64s
    target: Int64s
    tag: Int64s
    size: Int64s
    rank: Int64s
    row: Int64s

    def take(self, rows: Int64s) -> Halves:
        """Return these rows."""
        return Halves(*(column[rows] for column in self._columns()))

    def _columns(self) -> tuple[Int64s, ...]:
        return (self.source, self.target, self.tag, self.size, self.rank, self.row)


def halves(traces: TraceSet, kind: NodeKind) -> Halves:
    """Return the sends or the receives that name a peer and a size, by rank and table order."""
    parts = []
    for rank in traces.ranks:
        nodes = rank.nodes
        row = np.flatnonzero((nodes.kind == kind) & (nodes.peer != UNSTATED) & (nodes.size != UNSTATED))
        here = np.full(len(row), rank.rank, np.int64)
        peer = np.array([*rank.peers, 0], np.int64)[nodes.peer[row]]
        ends = (here, peer) if kind == NodeKind.SEND else (peer, here)
        parts.append((*ends, nodes.tag[row], nodes.size[row], here, row))
    if not parts:
        return Halves(*(np.zeros(0, np.int64) for _ in range(6)))
    return Halves(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def unmatched(sends: Halves, receives: Halves) -> tuple[Halves, Halves]:
    """Return the sends and receives whose number differs for their (source, target, tag)."""
    keys = np.stack(
        [
            np.concatenate([sends.source, receives.source]),
            np.concatenate([sends.target, receives.target]),
            np.concatenate([sends.tag, receives.tag]),
        ],
        axis=1,
    )
    if not len(keys):
        return sends, receives
    # each (source, target, tag) is a number; a key is in order if as many sends as receives have it
    _, key = np.unique(keys, axis=0, return_inverse=True)
    key = key.reshape(-1)
    split = len(sends.source)
    count = int(key.max()) + 1
    differs = np.bincount(key[:split], minlength=count) != np.bincount(key[split:], minlength=count)
    return (
        sends.take(np.flatnonzero(differs[key[:split]])),
        receives.take(np.flatnonzero(differs[key[split:]])),
    )


def message_findings(traces: TraceSet) -> Iterator[Finding]:
    """Report unmatched messages pair by pair with near misses, then messages whose sizes disagree."""
    sends, receives = halves(traces, NodeKind.SEND), halves(traces, NodeKind.RECV)
    loose_sends, loose_receives = unmatched(sends, receives)
    pairs = Counter(zip(loose_sends.source.tolist(), loose_sends.target.tolist(), strict=True))
    pairs.update(zip(loose_receives.source.tolist(), loose_receives.target.tolist(), strict=True))
    for source, target in sorted(pairs):
        mine = loose_sends.take(_on_pair(loose_sends, source, target))
        theirs = loose_receives.take(_on_pair(loose_receives, source, target))
        yield _pair_finding(traces, (source, target), mine, theirs)
    yield from _size_findings(traces, sends, receives)


def _on_pair(side: Halves, source: int, target: int) -> Int64s:
    return np.flatnonzero((side.source == source) & (side.target == target))


def _pair_finding(traces: TraceSet, pair: tuple[int, int], sends: Halves, receives: Halves) -> Finding:
    source, target = pair
    text = f"from rank {source} to rank {target}: {len(sends.tag)} sends ({_tags(sends)}) and "
    text += f"{len(receives.tag)} receives ({_tags(receives)}) do not match; "
    side = receives if len(receives.tag) else sends
    text += f"the first: {_node(traces, side, 0)}"
    if len(sends.tag) and len(receives.tag):
        text += "; the pair is the same but the tags differ, so a replay would wait forever"
        if sorted(sends.size.tolist()) == sorted(receives.size.tolist()):
            text += " (the sizes do match: the writer seems to have numbered the two sides apart)"
    return Finding("unmatched message", text, rank=int(side.rank[0]), node=_id(traces, side, 0))


def _tags(side: Halves) -> str:
    if not len(side.tag):
        return "none"
    counts = Counter(side.tag.tolist())
    shown = [f"{tag} x{count}" if count > 1 else str(tag) for tag, count in sorted(counts.items())[:_SHOWN]]
    more = f", … {len(counts)} tags" if len(counts) > _SHOWN else ""
    return f"tag {', '.join(shown)}{more}"


def _id(traces: TraceSet, side: Halves, index: int) -> int:
    nodes = next(rank.nodes for rank in traces.ranks if rank.rank == side.rank[index])
    return int(nodes.ids[side.row[index]])


def _node(traces: TraceSet, side: Halves, index: int) -> str:
    nodes = next(rank.nodes for rank in traces.ranks if rank.rank == side.rank[index])
    name = nodes.names[nodes.name[side.row[index]]]
    return f"rank {side.rank[index]} node {_id(traces, side, index)} ({name[:60]!r})"


def _size_findings(traces: TraceSet, sends: Halves, receives: Halves) -> Iterator[Finding]:
    """Compare, key by key, the sizes on both sides in ascending order."""
    sends, receives = _sorted(sends), _sorted(receives)
    left = np.stack([sends.source, sends.target, sends.tag], axis=1)
    right = np.stack([receives.source, receives.target, receives.tag], axis=1)
    if len(left) != len(right) or not np.array_equal(left, right):
        paired_sends, paired_receives = _paired(left, right), _paired(right, left)
        sends, receives = sends.take(paired_sends), receives.take(paired_receives)
    wrong = np.flatnonzero(sends.size != receives.size)
    if len(wrong):
        first = int(wrong[0])
        text = f"{_node(traces, sends, first)} sends {sends.size[first]} bytes but "
        text += f"{_node(traces, receives, first)} receives {receives.size[first]} "
        text += f"(tag {sends.tag[first]}; {len(wrong)} such messages)"
        yield Finding("message size", text, rank=int(sends.rank[first]), node=_id(traces, sends, first))


def _sorted(side: Halves) -> Halves:
    return side.take(np.lexsort((side.size, side.tag, side.target, side.source)))


def _paired(mine: Int64s, theirs: Int64s) -> Int64s:
    """Return the rows whose key occurs equally often on both sides."""
    both = np.concatenate([mine, theirs])
    _, inverse, counts = np.unique(both, axis=0, return_inverse=True, return_counts=True)
    key = inverse.reshape(-1)[: len(mine)]
    matching = np.bincount(key, minlength=len(counts))
    return np.flatnonzero((2 * matching == counts)[key])  # half of all rows of a key are mine


def check(reference: str | Path, options: ReadOptions | None = None) -> tuple[Finding, ...]:
    """Return everything that is wrong with the trace set that a folder, prefix or file stands for."""
    return check_report(read_report(reference, options or ReadOptions()))


def check_report(report: ReadReport) -> tuple[Finding, ...]:
    """Return what reading found, then what is wrong between the ranks that could be read."""
    return (*report.findings, *_missing_files(report), *check_set(report.traces))


def check_set(traces: TraceSet) -> tuple[Finding, ...]:
    """Return the errors of a trace set in memory: first those of nodes, then of groups, then of messages."""
    findings: list[Finding] = []
    for rank in traces.ranks:
        findings += _node_findings(rank, traces)
    findings += _group_findings(traces)
    findings += message_findings(traces)
    return tuple(findings)


def require_sound(traces: TraceSet) -> None:
    """Raise a `TraceError` with the first few errors of `check_set`, if there is one."""
    errors = [finding for finding in check_set(traces) if finding.severity == "error"]
    if errors:
        lines = [str(finding) for finding in errors[:10]]
        lines += [f"… and {len(errors) - 10} more"] if len(errors) > 10 else []
        raise TraceError("\n".join(lines))


def repair_lines(report: ReadReport) -> list[str]:
    """Return one line for each dependency that reading dropped."""
    return [
        f"rank {rank}: dropped {repair.kind} dependency: node {node} needs {needed}"
        for rank, repairs in sorted(report.repairs.items())
        for repair in repairs
        for node, needed in zip(
            repair.nodes.view(np.uint64).tolist(), repair.needs.view(np.uint64).tolist(), strict=True
        )
    ]


def _missing_files(report: ReadReport) -> Iterator[Finding]:
    missing = report.files.missing
    if missing and len(report.files.files) > 1:
        named = ", ".join(map(str, missing[:20]))
        last = max(report.files.files)
        text = f"{report.files.folder / report.files.prefix}: ranks 0 to {last} have no file for {named}"
        yield Finding("missing rank file", text)


def node_text(rank: RankTrace, row: int) -> str:
    """Return a node's rank, id and name for a message."""
    name = rank.nodes.names[rank.nodes.name[row]]
    short = name if len(name) <= 60 else f"{name[:57]}..."
    return f"rank {rank.rank} node {rank.nodes.ids[row]} ({short!r})"


def _finding(kind: str, rank: RankTrace, rows: Int64s, problem: str) -> Finding:
    """Return one finding for all rows with the same problem, naming the first."""
    more = f" (and {len(rows) - 1} more on this rank)" if len(rows) > 1 else ""
    text = f"{node_text(rank, int(rows[0]))} {problem}{more}"
    return Finding(kind, text, rank=rank.rank, node=int(rank.nodes.ids[rows[0]]))


def _node_findings(rank: RankTrace, traces: TraceSet) -> Iterator[Finding]:
    nodes = rank.nodes
    collective = nodes.kind == NodeKind.COLLECTIVE
    message = (nodes.kind == NodeKind.SEND) | (nodes.kind == NodeKind.RECV)
    known = {other.rank for other in traces.ranks}
    peers = np.array([*(peer in known for peer in rank.peers), True], np.bool_)
    checks = (
        ("unknown collective", collective & (nodes.collective == UNSTATED), _UNKNOWN_COLLECTIVE),
        ("no size", collective & (nodes.size == UNSTATED), "says no comm_size"),
        (
            "no peer",
            message & (nodes.peer == UNSTATED),
            _NO_PEER,
        ),
        ("no size", message & (nodes.size == UNSTATED), "says neither comm_size nor tensor_size"),
        ("unknown peer", message & ~peers[nodes.peer], "names a rank that has no trace file"),
    )
    for kind, mask, problem in checks:
        rows = np.flatnonzero(mask)
        if len(rows):
            yield _finding(kind, rank, rows, problem)
    yield from _membership(rank, traces, collective)


_NO_PEER = "says no peer (comm_dst of a send, comm_src of a receive)"
_UNKNOWN_COLLECTIVE = f"names no known collective; comm_type is one of 0 to {max(CollectiveType)}"


def _membership(rank: RankTrace, traces: TraceSet, collective: Bools) -> Iterator[Finding]:
    for slot, name in enumerate(rank.groups):
        rows = np.flatnonzero(collective & (rank.nodes.group == slot))
        if not len(rows):
            continue
        if name not in traces.groups:
            yield _finding("undefined group", rank, rows, _undefined(name, traces))
        elif rank.rank not in traces.groups[name]:
            members = _some(traces.groups[name])
            yield _finding("not a member", rank, rows, f"is on group {name!r}, whose members are {members}")


def _undefined(name: str, traces: TraceSet) -> str:
    if name.startswith("dimensions:"):
        flags = name.removeprefix("dimensions:")
        return f"spans the network dimensions {flags}; give the ranks' shape (--dimensions)"
    return f"names group {name!r}, which is defined nowhere; known groups: {_some(traces.groups)}"


def _some(values: Iterable[object], limit: int = 12) -> str:
    listed = [str(value) for value in values]
    return ", ".join(listed[:limit]) + (f", … ({len(listed)} in all)" if len(listed) > limit else "")


def _group_findings(traces: TraceSet) -> Iterator[Finding]:
    """Compare, group by group, the collectives that the members issue."""
    by_rank = {rank.rank: rank for rank in traces.ranks}
    issued = _Issued(traces)
    used = {name for rank in traces.ranks for name in rank.groups}
    for name, members in traces.groups.items():
        if name not in used or len(members) < 2:
            continue
        absent = [member for member in members if member not in by_rank]
        if absent:
            text = f"group {name!r} has members without a trace file: {_some(absent)}"
            yield Finding("missing rank file", text)
        present = [by_rank[member] for member in members if member in by_rank]
        yield from _compare(name, present, issued, traces)


class _Issued:
    """The rows of each rank's collectives on a group, once for all ranks that share a table."""

    def __init__(self, traces: TraceSet) -> None:
        ranks = (rank.rank for rank in traces.ranks)
        self.table = dict(zip(ranks, traces.table_numbers(), strict=True))
        self.known: dict[tuple[int, int], Int64s] = {}

    def rows(self, rank: RankTrace, name: str) -> Int64s:
        if name not in rank.groups:
            return np.zeros(0, np.int64)
        slot = rank.groups.index(name)
        key = (self.table[rank.rank], slot)
        if key not in self.known:
            on_group = (rank.nodes.kind == NodeKind.COLLECTIVE) & (rank.nodes.group == slot)
            self.known[key] = np.flatnonzero(on_group)
        return self.known[key]


def _compare(name: str, members: list[RankTrace], issued: _Issued, traces: TraceSet) -> Iterator[Finding]:
    """Report the first member whose collectives are not those of the first member."""
    first = members[0] if members else None
    for other in members[1:]:
        if first is None or (first.nodes is other.nodes and first.groups == other.groups):
            continue
        mine, theirs = issued.rows(first, name), issued.rows(other, name)
        if len(mine) != len(theirs):
            yield _count_finding(name, (first, mine), (other, theirs))
            return
        left, right = _signature(first.nodes, mine), _signature(other.nodes, theirs)
        if np.array_equal(left, right):
            continue
        free = all(rank.nodes.streams[s] in traces.unordered_streams for rank, s in _streams(first, mine))
        if free and np.array_equal(left[np.lexsort(left.T)], right[np.lexsort(right.T)]):
            text = (
                f"group {name!r}: ranks {first.rank} and {other.rank} list its collectives in different order"
            )
            yield Finding("order", f"{text}; they are paired as they start", "warning", rank=other.rank)
            return
        index = int(np.flatnonzero((left != right).any(axis=1))[0])
        yield _value_finding(name, index, (first, int(mine[index])), (other, int(theirs[index])))
        return


def _streams(rank: RankTrace, rows: Int64s) -> list[tuple[RankTrace, int]]:
    return [(rank, int(slot)) for slot in np.unique(rank.nodes.stream[rows])]


def _signature(nodes: NodeTable, rows: Int64s) -> Int64s:
    return np.stack([nodes.collective[rows].astype(np.int64), nodes.size[rows]], axis=1)


def _count_finding(name: str, mine: tuple[RankTrace, Int64s], theirs: tuple[RankTrace, Int64s]) -> Finding:
    counts = f"rank {mine[0].rank} issues {len(mine[1])}, rank {theirs[0].rank} {len(theirs[1])}"
    (longer, rows), shorter = (mine, theirs[1]) if len(mine[1]) > len(theirs[1]) else (theirs, mine[1])
    surplus = int(rows[len(shorter)])
    text = f"group {name!r}: members issue different numbers of collectives: {counts}; "
    text += f"the first without a partner: {node_text(longer, surplus)}"
    return Finding("group disagreement", text, rank=longer.rank, node=int(longer.nodes.ids[surplus]))


def _value_finding(
    name: str, index: int, mine: tuple[RankTrace, int], theirs: tuple[RankTrace, int]
) -> Finding:
    sides = " but ".join(f"{node_text(*side)} says {_value(*side)}" for side in (mine, theirs))
    text = f"group {name!r}: collective number {index} differs: {sides}"
    other, row = theirs
    return Finding("group disagreement", text, rank=other.rank, node=int(other.nodes.ids[row]))


def _value(rank: RankTrace, row: int) -> str:
    kind, size = int(rank.nodes.collective[row]), int(rank.nodes.size[row])
    what = CollectiveType(kind).name if kind != UNSTATED else "an unknown collective"
    return f"{what} of {size if size != UNSTATED else 'unstated'} bytes"
