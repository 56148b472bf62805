"""Reports of what trace sets hold and of what is wrong with them, and a rank's nodes as rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from rapid_des.chakra.trace import UNSTATED, CollectiveType, NodeKind, RankTrace, TraceSet
from rapid_des.errors import TraceError
from rapid_des.report.tables import Part, Plain, Table, columns, counted
from rapid_des.units import Duration, FlopRate, Size, time_text
from rapid_des.values import asdict

_FINDINGS = 38
_RANKS = 64
_NEEDS = 6


def finding_lines(findings: Sequence[str]) -> Iterator[str]:
    """Yield how many findings there are, and the first of them."""
    yield counted(len(findings), "finding")
    yield from findings[:_FINDINGS]
    if len(findings) > _FINDINGS:
        yield f"… and {len(findings) - _FINDINGS} more (--json lists all)"


def statistics_report(counts: Plain) -> Iterator[Part]:
    """Yield the counts of a set, in total and by rank."""
    total = counts["total"]
    yield f"{total['ranks']:,} ranks, {total['nodes']:,} nodes, {total['dependencies']:,} dependencies"
    facts = {kind: f"{number:,}" for kind, number in total["kinds"].items()}
    for kind, number in total["collectives"].items():
        facts[kind] = f"{number:,} collectives, {Size(total['collective_bytes'][kind])} of input"
    yield facts | {
        "sent": f"{Size(total['sent_bytes'])}",
        "compute": f"{Duration(total['compute_time'])} stated, {_work(total['flops'])}",
        "without duration": f"{total['untimed']:,} compute nodes",
    }
    names = columns("rank", "nodes", "depth", compute_time=("compute", time_text))
    yield Table("", names, counts["ranks"][:_RANKS])
    if total["ranks"] > _RANKS:
        yield f"… {total['ranks'] - _RANKS} more ranks (--json lists all)"


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


def nodes_table(rows: Sequence[NodeRow]) -> Table:
    """Return the rows as a table."""
    cells = [
        {**asdict(row), "name": " ".join(row.name.split()), "amount": row.amount(), "partner": row.partner()}
        for row in rows
    ]
    names = columns(id="id", kind="kind", name="name", stream="stream", amount="takes", partner="with")
    return Table("", names + columns(needs=("needs", _needs)), cells)


def _needs(nodes: Sequence[int]) -> str:
    more = f" … {len(nodes)}" if len(nodes) > _NEEDS else ""
    return " ".join(map(str, nodes[:_NEEDS])) + more or "-"
