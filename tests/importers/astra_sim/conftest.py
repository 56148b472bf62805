"""Small traces and set-ups in memory for the ASTRA-sim front door."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rapid_des.chakra.trace import UNSTATED, CollectiveType, NodeKind, NodeTable, RankTrace, TraceSet
from rapid_des.engines.simpy.engine import run
from rapid_des.importers.astra_sim import Files, lower, read_setup, result_of

_COLUMNS = {
    "ids": (np.uint64, None),
    "kind": (np.int8, NodeKind.COMPUTE),
    "duration": (np.int64, UNSTATED),
    "size": (np.int64, 0),
    "collective": (np.int8, UNSTATED),
    "group": (np.int32, UNSTATED),
    "peer": (np.int32, UNSTATED),
    "tag": (np.int64, 0),
    "priority": (np.int64, 0),
    "flops": (np.int64, 0),
    "tensor_bytes": (np.int64, 0),
    "on_cpu": (np.bool_, False),
    "issuer": (np.int32, UNSTATED),
    "issued": (np.int64, 0),
    "bound": (np.int8, -1),
}


def table(nodes):
    """Return a NodeTable of dicts of columns; `after` names positions, ids count from 0 unless stated."""
    columns: dict[str, Any] = {
        name: np.array(
            [node.get(name, place if name == "ids" else default) for place, node in enumerate(nodes)], kind
        )
        for name, (kind, default) in _COLUMNS.items()
    }
    after = [node.get("after", []) for node in nodes]
    return NodeTable(
        **columns,
        name=np.arange(len(nodes), dtype=np.int32),
        stream=np.zeros(len(nodes), np.int32),
        dependency_starts=np.concatenate(([0], np.cumsum([len(one) for one in after]))).astype(np.int64),
        dependencies=np.array([place for one in after for place in one], np.int32),
        names=tuple(f"node{place}" for place in range(len(nodes))),
        streams=("compute",),
    )


class Workbench:
    """Writes files, builds traces and replays them on the SimPy engine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.network = {"topology": ["Ring"], "npus_count": [4], "bandwidth": [50.0], "latency": [500.0]}
        self.system = {
            "scheduling-policy": "LIFO",
            "endpoint-delay": 10,
            "active-chunks-per-dimension": 1,
            "preferred-dataset-splits": 1,
            "collective-optimization": "localBWAware",
            "local-mem-bw": 1600,
        } | {
            f"{name}-implementation": ["ring"]
            for name in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
        }
        self.groups = None
        self.memory = None

    def file(self, name, tree):
        path = self.folder / name
        path.write_text(tree if isinstance(tree, str) else json.dumps(tree))
        return path

    def setup(self, **options):
        files = Files(
            self.file("net.yml", self.network),
            self.file("sys.json", self.system),
            None if self.groups is None else self.file("groups.json", self.groups),
            None if self.memory is None else self.file("mem.json", self.memory),
            **options,
        )
        return read_setup(files)

    def traces(self, ranks, groups=()):
        """Return a trace set: for each rank its nodes, with (group names, peers) for their slots."""
        built = [RankTrace(rank, table(nodes), *slots) for rank, (nodes, *slots) in enumerate(ranks)]
        return TraceSet(tuple(built), {"world": tuple(range(len(built))), **dict(groups)})

    def replay(self, ranks, **options):
        """Return (finish, exposed communication) of every rank in nanoseconds."""
        program = lower(self.traces(ranks), self.setup(**options)).program
        result = result_of(program, run(program))
        return list(zip(result.finish_ns, result.exposed_communication_ns, strict=True))

    def compute(self, ns, **columns):
        return {"duration": ns * 1000, **columns}

    def collective(self, size, kind=CollectiveType.ALL_REDUCE, **columns):
        return {"kind": NodeKind.COLLECTIVE, "collective": kind, "size": size, **columns}

    def send(self, size, peer=0, **columns):
        return {"kind": NodeKind.SEND, "size": size, "peer": peer, **columns}

    def recv(self, size, peer=0, **columns):
        return {"kind": NodeKind.RECV, "size": size, "peer": peer, **columns}


@pytest.fixture
def bench(tmp_path):
    return Workbench(tmp_path)
