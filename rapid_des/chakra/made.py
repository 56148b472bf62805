"""Node tables made in code, and the traces of collectives by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rapid_des.arrays import starts_of
from rapid_des.chakra.trace import UNSTATED, CollectiveType, NodeKind, NodeTable, RankTrace, TraceSet


def one_collective(
    ranks: Sequence[int], collective: CollectiveType, size: int, *, stream: str, unordered: bool = False
) -> TraceSet:
    """Return the trace in which every rank calls the same collective once and does nothing else."""
    return collectives(ranks, collective, [size], stream=stream, unordered=unordered)


def collectives(
    ranks: Sequence[int],
    collective: CollectiveType,
    sizes: Sequence[int],
    *,
    stream: str,
    unordered: bool = False,
) -> TraceSet:
    """Return the trace in which every rank calls the same collectives, one after the other, and no more."""
    count = len(sizes)
    nodes = node_table(
        [NodeKind.COLLECTIVE] * count,
        sizes,
        collective=[collective] * count,
        group=[0] * count,
        names=(collective.name.lower(),),
        streams=(stream,),
    )
    traces = tuple(RankTrace(rank, nodes, groups=("world",)) for rank in ranks)
    return TraceSet(traces, {"world": tuple(ranks)}, frozenset({stream} if unordered else ()))


def node_table(
    kind: Sequence[int] | NDArray[Any],
    size: Sequence[int] | NDArray[Any],
    *,
    streams: tuple[str, ...],
    names: tuple[str, ...] = ("transfer",),
    waits: Sequence[Sequence[int]] | None = None,
    **stated: Sequence[int] | NDArray[Any],
) -> NodeTable:
    """Return a table of nodes; columns that are not stated hold what stands for nothing."""
    count = len(kind)

    def column(name: str, dtype: type[np.generic], default: int = 0) -> NDArray[Any]:
        return np.array(stated[name], dtype) if name in stated else np.full(count, default, dtype)

    waits = waits or [()] * count
    return NodeTable(
        ids=np.arange(count, dtype=np.uint64),
        kind=np.array(kind, np.int8),
        name=column("name", np.int32),
        stream=column("stream", np.int32),
        duration=column("duration", np.int64, UNSTATED),
        size=np.array(size, np.int64),
        collective=column("collective", np.int8, UNSTATED),
        group=column("group", np.int32, UNSTATED),
        peer=column("peer", np.int32, UNSTATED),
        tag=column("tag", np.int64),
        priority=column("priority", np.int64),
        flops=column("flops", np.int64),
        tensor_bytes=column("tensor_bytes", np.int64),
        on_cpu=column("on_cpu", np.bool_),
        issuer=column("issuer", np.int32, UNSTATED),
        issued=column("issued", np.int64),
        bound=column("bound", np.int8, UNSTATED),
        dependency_starts=starts_of([len(row) for row in waits]),
        dependencies=np.array([other for row in waits for other in row], np.int32),
        names=names,
        streams=streams,
    )
