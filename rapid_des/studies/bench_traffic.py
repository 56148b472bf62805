"""The traffic of the standard speed cases, made in code: collectives and irregular messages on one fabric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rapid_des.astra.files import Dialect, Files, NetworkFile, Setup, Shape, SystemFile
from rapid_des.chakra.trace import UNSTATED, CollectiveType, NodeKind, NodeTable, RankTrace, TraceSet

_STREAM = "network"
_SIZES = (64 * 1024, 1024 * 1024)
"""Irregular messages have sizes between these, in bytes."""


def setup(shapes: Sequence[Shape], sizes: Sequence[int], system: Mapping[str, Any], queues: int = 1) -> Setup:
    """Return a fabric of 50 GiB/s and 500 ns a link, and how its collectives are done."""
    network = NetworkFile(
        topology=tuple(shapes),
        npus_count=tuple(sizes),
        bandwidth=(50.0,) * len(shapes),
        latency=(500.0,) * len(shapes),
    )
    dialect: Dialect = "extended" if "Torus2D" in shapes or len(shapes) > 1 else "stock"
    files = Files(Path("bench/network"), Path("bench/system"), queues=queues, dialect=dialect)
    return Setup(files, network, SystemFile(**system), {}, None, ())


def collective_system(algorithm: str, dimensions: int, splits: int) -> dict[str, Any]:
    """Return the system of a case that runs one algorithm in every dimension."""
    names = (algorithm,) * dimensions
    return {
        "scheduling_policy": "LIFO",
        "collective_optimization": "localBWAware",
        "preferred_dataset_splits": splits,
        "local_mem_bw": 1600,
        "all_reduce_implementation": names,
        "all_gather_implementation": names,
        "reduce_scatter_implementation": names,
        "all_to_all_implementation": names,
    }


def one_collective(ranks: int, collective: CollectiveType, size: int) -> TraceSet:
    """Return every rank calling the same collective once."""
    nodes = _table(
        kind=np.array([NodeKind.COLLECTIVE]), size=np.array([size]), collective=np.array([collective])
    )
    traces = tuple(RankTrace(rank, nodes) for rank in range(ranks))
    return TraceSet(traces, {"world": tuple(range(ranks))}, frozenset({_STREAM}))


def irregular(ranks: int, messages: int, seed: int = 1) -> TraceSet:
    """Return every rank sending `messages` messages at once, of random sizes, to random others."""
    random = np.random.default_rng(seed)
    source = np.repeat(np.arange(ranks), messages)
    destination = (source + random.integers(1, ranks, len(source))) % ranks
    size = random.integers(*_SIZES, len(source))
    traces = []
    for rank in range(ranks):
        sent, received = np.flatnonzero(source == rank), np.flatnonzero(destination == rank)
        others = np.concatenate((destination[sent], source[received]))
        peers, slot = np.unique(others, return_inverse=True)
        message = np.concatenate((sent, received))
        kinds = np.repeat([NodeKind.SEND, NodeKind.RECV], [len(sent), len(received)])
        nodes = _table(kind=kinds, size=size[message], peer=slot.reshape(-1), tag=message)
        traces.append(RankTrace(rank, nodes, peers=tuple(peers.tolist())))
    return TraceSet(tuple(traces), {"world": tuple(range(ranks))}, frozenset({_STREAM}))


def _table(*, kind: NDArray[np.int64], size: NDArray[np.int64], **stated: NDArray[np.int64]) -> NodeTable:
    count = len(kind)

    def column(name: str, dtype: type[np.generic], default: int) -> NDArray[Any]:
        return stated[name].astype(dtype) if name in stated else np.full(count, default, dtype)

    return NodeTable(
        ids=np.arange(count, dtype=np.uint64),
        kind=kind.astype(np.int8),
        name=np.zeros(count, np.int32),
        stream=np.zeros(count, np.int32),
        duration=column("duration", np.int64, UNSTATED),
        size=size.astype(np.int64),
        collective=column("collective", np.int8, UNSTATED),
        group=column("group", np.int32, UNSTATED),
        peer=column("peer", np.int32, UNSTATED),
        tag=column("tag", np.int64, 0),
        priority=np.zeros(count, np.int64),
        flops=np.zeros(count, np.int64),
        tensor_bytes=np.zeros(count, np.int64),
        on_cpu=np.zeros(count, np.bool_),
        dependency_starts=np.zeros(count + 1, np.int64),
        dependencies=np.zeros(0, np.int32),
        names=("traffic",),
        streams=(_STREAM,),
    )
