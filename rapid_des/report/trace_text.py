"""What trace sets hold and what is wrong with them, and a rank's nodes as rows, for a terminal or as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from rapid_des.chakra.trace import UNSTATED, CollectiveType, NodeKind, RankTrace, TraceSet
from rapid_des.errors import TraceError
from rapid_des.units import Duration, FlopRate, Size

_FINDINGS = 38
_RANKS = 64


def counted(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "file"), counted(2, "file")
    ('1 file', '2 files')
    """
    return f"{count} {noun}" + "s" * (count != 1)


def finding_lines(findings: Sequence[str]) -> Iterator[str]:
    """Yield how many findings there are, and the first of them."""
    yield counted(len(findings), "finding")
    yield from findings[:_FINDINGS]
    if len(findings) > _FINDINGS:
        yield f"… and {len(findings) - _FINDINGS} more (--json lists all)"


def statistics_lines(counts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the counts of a set, in total and by rank."""
    total = counts["total"]
    yield f"{total['ranks']:,} ranks, {total['nodes']:,} nodes, {total['dependencies']:,} dependencies"
    for kind, count in total["kinds"].items():
        yield f"  {kind:<20} {count:,}"
    for kind, count in total["collectives"].items():
        yield f"  {kind:<20} {count:,} collectives, {Size(total['collective_bytes'][kind])} of input"
    yield f"  {'sent':<20} {Size(total['sent_bytes'])}"
    yield f"  {'compute':<20} {Duration(total['compute_time'])} stated, {_work(total['flops'])}"
    yield f"  {'without duration':<20} {total['untimed']:,} compute nodes"
    yield "  rank      nodes  depth  compute"
    for row in counts["ranks"][:_RANKS]:
        yield f"  {row['rank']:<6} {row['nodes']:>8} {row['depth']:>6}  {Duration(row['compute_time'])}"
    if total["ranks"] > _RANKS:
        yield f"  … {total['ranks'] - _RANKS} more ranks (--json lists all)"


def _work(flops: int) -> str:
    """Return a count of floating-point operations with the prefix that fits."""
    return str(FlopRate(flops)).removesuffix("/s")


class NodeRow(Struct, frozen=True):
    """One node of a trace: times in picoseconds and sizes in bytes, None where the trace does not say."""

    id: int
    kind: str
    name: str
    stream: str
    on_cpu: bool
    duration: int | None
    size: int | None
    collective: str | None
    group: str | None
    peer: int | None
    tag: int
    priority: int
    flops: int
    tensor_bytes: int
    needs: tuple[int, ...]

    def amount(self) -> str:
        """Return the duration or the bytes of a node as text."""
        parts = []
        if self.duration is not None:
            parts.append(str(Duration(self.duration)))
        elif self.flops:
            parts.append(_work(self.flops))
        if self.size is not None and self.kind not in {"compute", "metadata"}:
            parts.append(str(Size(self.size)))
        return ", ".join(parts) or "-"

    def partner(self) -> str:
        """Return the group or the peer of a node as text."""
        if self.group is not None:
            return f"{self.collective or 'unknown'} on {self.group}"
        if self.peer is not None:
            arrow = "to" if self.kind == "send" else "from"
            return f"{arrow} {self.peer}, tag {self.tag}"
        return "-"


def rank_of(traces: TraceSet, rank: int | None) -> RankTrace:
    """Return one rank's trace, the first if None; a rank that has none is a `TraceError`."""
    known = {trace.rank: trace for trace in traces.ranks}
    if not known:
        raise TraceError("the set has no ranks")
    chosen = min(known) if rank is None else rank
    if chosen not in known:
        raise TraceError(
            f"rank {rank} has no trace; {len(known)} ranks from {min(known)} to {max(known)} have"
        )
    return known[chosen]


def node_rows(rank: RankTrace, first: int, count: int) -> tuple[NodeRow, ...]:
    """Return `count` nodes from position `first` of the rank's program on."""
    if first < 0 or count < 1:
        raise TraceError(
            f"--first {first} --count {count}: out of range; first is at least 0, count at least 1"
        )
    return tuple(_row(rank, index) for index in range(first, min(first + count, len(rank.nodes))))


def _row(rank: RankTrace, index: int) -> NodeRow:
    nodes = rank.nodes
    duration, size = int(nodes.duration[index]), int(nodes.size[index])
    collective, group, peer = (int(column[index]) for column in (nodes.collective, nodes.group, nodes.peer))
    start, end = nodes.dependency_starts[index : index + 2].tolist()
    return NodeRow(
        id=int(nodes.ids[index]),
        kind=NodeKind(int(nodes.kind[index])).name.lower(),
        name=nodes.names[nodes.name[index]],
        stream=nodes.streams[nodes.stream[index]],
        on_cpu=bool(nodes.on_cpu[index]),
        duration=None if duration == UNSTATED else duration,
        size=None if size == UNSTATED else size,
        collective=None if collective == UNSTATED else CollectiveType(collective).name.lower(),
        group=None if group == UNSTATED else rank.groups[group],
        peer=None if peer == UNSTATED else rank.peers[peer],
        tag=int(nodes.tag[index]),
        priority=int(nodes.priority[index]),
        flops=int(nodes.flops[index]),
        tensor_bytes=int(nodes.tensor_bytes[index]),
        needs=tuple(nodes.ids[nodes.dependencies[start:end]].tolist()),
    )


def table_lines(rows: tuple[NodeRow, ...], *, widest_name: int = 48) -> list[str]:
    """Return the rows as an aligned table with a header."""
    cells = [("id", "kind", "name", "stream", "takes", "with", "needs")]
    for row in rows:
        name = " ".join(row.name.split())
        name = name if len(name) <= widest_name else f"{name[: widest_name - 3]}..."
        needs = " ".join(map(str, row.needs[:6])) + (f" … {len(row.needs)}" if len(row.needs) > 6 else "")
        cells.append((str(row.id), row.kind, name, row.stream, row.amount(), row.partner(), needs or "-"))
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
