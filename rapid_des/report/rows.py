"""Results as flat frozen rows, which pandas and csv take as they are: times in seconds, sizes in bytes."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.chakra.trace import UNSTATED, CollectiveType, NodeKind
from rapid_des.frontend import PricedOperator
from rapid_des.network.fabric import Fabric
from rapid_des.program.lowering import Lowered, rank_times
from rapid_des.program.program import NONE, Program, Records
from rapid_des.report.writing import replacing, require_extra
from rapid_des.units import seconds
from rapid_des.values import astuple, fields

_LAYER = re.compile(r"\.L\d+(?=\.)")


class OperatorRow(Struct, frozen=True):
    """One compute operator of a rank, all layers' and micro-batches' runs together.

    >>> OperatorRow(0, "forward.ffn.in", 64, 0.4, 10**15, 10**9, "tensor", "gemm").runs
    64
    """

    rank: int
    operator: str
    runs: int
    time_s: float
    flops: int
    """FLOPs of all runs together, as are the bytes."""
    hbm_bytes: int
    bound: str
    """What limits it; several, with a slash between, where its runs differ. Empty for foreign traces."""
    model: str
    """The operator models that priced its runs, likewise."""


class MessageRow(Struct, frozen=True):
    """One collective, send or receive of a rank.

    >>> row = MessageRow(0, "send.activation", "send", "pp", "1", 2**20, 0.5, 0.5, 0.75)
    >>> row.finish_s - row.ready_s
    0.25
    """

    rank: int
    name: str
    operation: str
    """all_reduce, …, send, recv."""
    kind: str
    """The parallelism that its time counts for; of foreign traces the stream."""
    group: str
    """The process group; of messages the peer's rank."""
    bytes: int
    start_s: float
    ready_s: float
    """When all members, or both ends, were there; a send may leave before its receiver asks for it."""
    finish_s: float


def operator_rows(
    lowered: Lowered, records: Records, position: int, *, priced: Sequence[PricedOperator]
) -> tuple[OperatorRow, ...]:
    """Return a rank's compute operators, the longest first, equals by name; `priced` says why."""
    said, (names, (name, *figures)) = _reasons(priced), _compute_runs(lowered, records, position)
    operators = {each: number for number, each in enumerate(dict.fromkeys(names))}
    sums = np.zeros((len(operators), 4), np.int64)
    operator = np.array([operators[each] for each in names], np.int64)[name]
    np.add.at(sums, operator, np.stack([np.ones_like(name), *figures], axis=1))
    rows = (
        OperatorRow(
            rank=lowered.traces.ranks[position].rank,
            operator=name,
            runs=runs,
            time_s=seconds(time),
            flops=flops,
            hbm_bytes=moved,
            bound=said[name][0],
            model=said[name][1],
        )
        for name, (runs, time, flops, moved) in zip(operators, sums.tolist(), strict=True)
        if runs
    )
    return tuple(sorted(rows, key=lambda row: (-row.time_s, row.operator)))


def operator_runs(
    lowered: Lowered, records: Records, position: int, *, priced: Sequence[PricedOperator]
) -> tuple[OperatorRow, ...]:
    """Return each run of a rank's compute operators, in the order of their start."""
    said, (names, columns) = _reasons(priced), _compute_runs(lowered, records, position)
    rank = lowered.traces.ranks[position].rank
    return tuple(
        OperatorRow(rank, names[name], 1, seconds(time), flops, moved, *said[names[name]])
        for name, time, flops, moved in columns.T.tolist()
    )


def _compute_runs(lowered: Lowered, records: Records, position: int) -> tuple[list[str], Int64s]:
    """Return the names of a rank's operators, and its runs on the device in the order of their start.

    Of each run: the number of its name, picoseconds, FLOPs and bytes of HBM; shape (4, runs).
    """
    nodes = lowered.traces.ranks[position].nodes
    times = rank_times(lowered, records, position)
    runs = np.flatnonzero((nodes.kind == NodeKind.COMPUTE) & ~nodes.on_cpu)
    runs = runs[np.argsort(times.start[runs], kind="stable")]
    figures = times.finish - times.start, np.maximum(nodes.flops, 0), np.maximum(nodes.tensor_bytes, 0)
    names = [operator_name(name) for name in nodes.names]
    return names, np.stack([column[runs].astype(np.int64) for column in (nodes.name, *figures)])


def _reasons(priced: Sequence[PricedOperator]) -> Mapping[str, tuple[str, str]]:
    """Return what limits each operator, and the models that priced it, by its name."""
    found = defaultdict[str, tuple[dict[str, None], dict[str, None]]](lambda: ({}, {}))
    for kernel in priced:
        found[kernel.name][0][kernel.bound] = None
        found[kernel.name][1][kernel.model] = None
    joined = {name: ("/".join(bounds), "/".join(models)) for name, (bounds, models) in found.items()}
    return defaultdict(lambda: ("", ""), joined)


def message_rows(
    lowered: Lowered, records: Records, position: int, *, kinds: Mapping[str, str] | None
) -> tuple[MessageRow, ...]:
    """Return a rank's collectives and messages in program order; `kinds` maps streams to parallelisms."""
    trace = lowered.traces.ranks[position]
    nodes, times = trace.nodes, rank_times(lowered, records, position)
    kind_of = [(kinds or {}).get(stream, stream) for stream in nodes.streams]
    rows = []
    communicates = np.isin(nodes.kind, (NodeKind.COLLECTIVE, NodeKind.SEND, NodeKind.RECV))
    for row in np.flatnonzero(communicates).tolist():
        collective = nodes.kind[row] == NodeKind.COLLECTIVE
        operation = CollectiveType(nodes.collective[row]) if collective else NodeKind(nodes.kind[row])
        slot = int(nodes.group[row] if collective else nodes.peer[row])
        named = trace.groups if collective else trace.peers
        start, met, finish = (int(column[row]) for column in (times.start, times.met, times.finish))
        rows.append(
            MessageRow(
                rank=trace.rank,
                name=nodes.names[nodes.name[row]],
                operation=operation.name.lower(),
                kind=kind_of[nodes.stream[row]],
                group="" if slot == UNSTATED else str(named[slot]),
                bytes=int(nodes.size[row]),
                start_s=seconds(start),
                ready_s=seconds(start if met == NONE else min(met, finish)),
                finish_s=seconds(finish),
            )
        )
    return tuple(rows)


class LinkRow(Struct, frozen=True):
    """What one directed link carried of one kind of traffic; an idle link has one row, of no kind.

    >>> LinkRow("gpu0>switch0", 0, 8, "nvlink", "tp", 2**20, 3.5e-6, 0.0, 0.25).utilisation
    0.25
    """

    link: str
    source: int
    destination: int
    dimension: str
    kind: str
    bytes: int
    busy_s: float
    """Time in service, in seconds."""
    queue_s: float
    """Sum of the waits of all transfers, in seconds."""
    utilisation: float
    """Busy time divided by the makespan."""
    stopped_s: float = 0.0
    """Seconds for which priority flow control stopped the link, for all kinds of traffic."""


COLUMNS = fields(LinkRow)


def link_rows(program: Program, records: Records, fabric: Fabric) -> Iterator[LinkRow]:
    """Yield one row a link and kind that carried something, and one without a kind for each idle link."""
    makespan = max(records.makespan, 1)
    idle = np.flatnonzero(~records.link_bytes.any(axis=1))
    links, labels = records.link_bytes.nonzero()
    both = np.concatenate([links, idle]), np.concatenate([labels, np.full(len(idle), NONE)])
    order = np.lexsort(both[::-1])
    for link, label in zip(both[0][order].tolist(), both[1][order].tolist(), strict=True):
        carries = label != NONE
        busy = int(records.link_busy[link, label]) if carries else 0
        dimension = int(fabric.dimension[link])
        yield LinkRow(
            fabric.link_name(link),
            int(fabric.source[link]),
            int(fabric.destination[link]),
            fabric.dimensions[dimension] if 0 <= dimension < len(fabric.dimensions) else "",
            program.labels[label] if carries else "",
            int(records.link_bytes[link, label]) if carries else 0,
            seconds(busy),
            seconds(int(records.link_wait[link, label])) if carries else 0.0,
            busy / makespan,
            0.0 if records.link_stopped is None else seconds(int(records.link_stopped[link])),
        )


def utilisation(records: Records) -> dict[int, float]:
    """Return the share of the makespan that each link was busy, for links that were."""
    busy = records.link_busy.sum(axis=1) / max(records.makespan, 1)
    return {int(link): float(busy[link]) for link in busy.nonzero()[0]}


def write_links(path: Path, program: Program, records: Records, fabric: Fabric) -> None:
    """Write the rows as Parquet if the path ends in .parquet (needs the extra `parquet`), else as CSV."""
    if path.suffix == ".parquet":
        with replacing(path) as beside:
            _write_parquet(beside, list(map(astuple, link_rows(program, records, fabric))))
        return
    with replacing(path) as beside, beside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(map(astuple, link_rows(program, records, fabric)))


def _write_parquet(path: Path, rows: list[tuple[object, ...]]) -> None:
    require_extra("pyarrow", "parquet", "Parquet")
    import pyarrow
    from pyarrow import parquet

    kinds = ("string", "int32", "int32", "string", "string", "int64", *["float64"] * 4)
    columns = list(zip(*rows, strict=True)) or [()] * len(COLUMNS)
    arrays = [
        pyarrow.array(column, getattr(pyarrow, kind)()) for column, kind in zip(columns, kinds, strict=True)
    ]
    parquet.write_table(pyarrow.Table.from_arrays(arrays, names=COLUMNS), path)


def operator_name(node: str) -> str:
    """Return a node's name without its layer.

    >>> operator_name("backward.L16.ffn.in.weight_gradient")
    'backward.ffn.in.weight_gradient'
    """
    return _LAYER.sub("", node)


@lru_cache(maxsize=256)
def operator_names(nodes: tuple[str, ...]) -> tuple[str, ...]:
    """Return `operator_name` of all names of a table, of which runs have few."""
    return tuple(map(operator_name, nodes))
