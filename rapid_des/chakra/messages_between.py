"""Sends and receives that do not find each other, and what nearly would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rapid_des.chakra.findings import Finding
from rapid_des.chakra.trace import UNSTATED, NodeKind, TraceSet

Integers = NDArray[np.int64]
_SHOWN = 4


@dataclass(frozen=True)
class Halves:
    """All sends or all receives of a set, as columns."""

    source: Integers
    target: Integers
    tag: Integers
    size: Integers
    rank: Integers
    row: Integers

    def take(self, rows: Integers) -> Halves:
        """Return these rows."""
        return Halves(*(column[rows] for column in self._columns()))

    def _columns(self) -> tuple[Integers, ...]:
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


def _on_pair(side: Halves, source: int, target: int) -> Integers:
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


def _paired(mine: Integers, theirs: Integers) -> Integers:
    """Return the rows whose key occurs equally often on both sides."""
    both = np.concatenate([mine, theirs])
    _, inverse, counts = np.unique(both, axis=0, return_inverse=True, return_counts=True)
    key = inverse.reshape(-1)[: len(mine)]
    own = np.bincount(key, minlength=len(counts))
    return np.flatnonzero((2 * own == counts)[key])
