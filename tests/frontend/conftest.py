"""A price list small enough to check by hand, and small jobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rapid_des.chakra.trace import NodeKind, TraceSet
from rapid_des.device.operators import (
    Attention,
    Estimate,
    Gemm,
    GroupedGemm,
    HostWork,
    Operator,
    Starts,
)
from rapid_des.frontend import Job, load_job

TINY_MODEL = """\
hidden: 64
layers: 4
attention: {heads: 4, kv_heads: 2}
feed_forward: {activation: swiglu, hidden: 128}
norm: rms_norm
position: rope
vocabulary: 256
max_positions: 128
tied_embeddings: false
"""

TINY_JOB = """\
model: tiny.model.yaml
phase: training
software: {name: bare}
training: {global_batch: 8, micro_batch: 1, sequence_length: 32}
"""

TINY_SERVICE = """\
model: tiny.model.yaml
phase: inference
software: {name: bare}
fusion: vllm
inference: {batch: 2, prompt_length: 16, output_length: 5}
"""


class UnitPrices:
    """Every FLOP of a GEMM or of attention takes 10 ps, every element of a small kernel 1 ps."""

    def estimate(self, operator: Operator) -> Estimate:
        return Estimate(max(1, self.duration(operator)), "tensor", self.duration(operator), {"hbm": 1})

    @staticmethod
    def duration(operator: Operator) -> int:
        if isinstance(operator, Gemm):
            return 20 * operator.batch * operator.m * operator.n * operator.k
        if isinstance(operator, GroupedGemm):
            return 20 * sum(operator.rows) * operator.n * operator.k
        if isinstance(operator, Attention):
            pairs = operator.query_length * operator.key_length
            return 40 * operator.batch * operator.heads * pairs * operator.head_dim
        if isinstance(operator, HostWork):
            return operator.size
        if isinstance(operator, Starts):
            return operator.duration
        return operator.rows * operator.columns


@pytest.fixture
def prices() -> UnitPrices:
    return UnitPrices()


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., Job]:
    """Load the tiny training job with settings such as ("parallelism.tp", "2")."""
    (tmp_path / "tiny.model.yaml").write_text(TINY_MODEL)
    (tmp_path / "job.yaml").write_text(TINY_JOB)

    def load(*settings: tuple[str, str]) -> Job:
        return load_job(tmp_path / "job.yaml", settings=settings)

    return load


@pytest.fixture
def tiny_service(tmp_path: Path) -> Callable[..., Job]:
    """Load the tiny inference job with settings."""
    (tmp_path / "tiny.model.yaml").write_text(TINY_MODEL)
    (tmp_path / "service.yaml").write_text(TINY_SERVICE)

    def load(*settings: tuple[str, str]) -> Job:
        return load_job(tmp_path / "service.yaml", settings=settings)

    return load


@pytest.fixture
def replay() -> Callable[..., dict[int, list[int]]]:
    """A replay: streams in order, collectives and messages meet, the network takes no time."""
    return replay_without_network


def replay_without_network(traces: TraceSet, *, rendezvous: bool) -> dict[int, list[int]]:
    """Return each rank's finish times; with `rendezvous` a send waits for its receive. Raises on deadlock."""
    waiting: dict[object, list[tuple[int, int, int]]] = {}
    finish = {trace.rank: [-1] * len(trace.nodes) for trace in traces.ranks}
    queues: dict[tuple[int, int], list[int]] = {}
    for trace in traces.ranks:
        for row, stream in enumerate(trace.nodes.stream.tolist()):
            queues.setdefault((trace.rank, stream), []).append(row)
    heads = dict.fromkeys(queues, 0)
    free = dict.fromkeys(queues, 0)
    counts: dict[tuple[int, str], int] = {}
    blocked: set[tuple[int, int]] = set()
    by_rank = {trace.rank: trace for trace in traces.ranks}
    moved = True
    while moved:
        moved = False
        for key, queue in queues.items():
            rank = key[0]
            trace, nodes = by_rank[rank], by_rank[rank].nodes
            while heads[key] < len(queue) and key not in blocked:
                row = queue[heads[key]]
                first, last = nodes.dependency_starts[row], nodes.dependency_starts[row + 1]
                needs = [finish[rank][other] for other in nodes.dependencies[first:last].tolist()]
                if min(needs, default=0) < 0:
                    break
                start = max([free[key], *needs])
                kind = nodes.kind[row]
                moved = True
                heads[key] += 1
                if kind == NodeKind.COMPUTE:
                    finish[rank][row] = free[key] = start + int(nodes.duration[row])
                    continue
                if kind == NodeKind.COLLECTIVE:
                    group = trace.groups[nodes.group[row]]
                    counts[rank, group] = counts.get((rank, group), 0) + 1
                    meeting: object = (
                        group,
                        counts[rank, group],
                        int(nodes.collective[row]),
                        int(nodes.size[row]),
                    )
                    wanted = len(traces.groups[group])
                else:
                    peer = trace.peers[nodes.peer[row]]
                    pair = (rank, peer) if kind == NodeKind.SEND else (peer, rank)
                    channel = (rank, f"{pair} {nodes.tag[row]} {kind}")
                    counts[channel] = counts.get(channel, 0) + 1
                    meeting = (pair, int(nodes.tag[row]), int(nodes.size[row]), counts[channel])
                    wanted = 2
                    if kind == NodeKind.SEND and not rendezvous:
                        finish[rank][row] = free[key] = start
                arrived = waiting.setdefault(meeting, [])
                arrived.append((rank, row, start))
                if finish[rank][row] < 0:
                    blocked.add(key)
                if len(arrived) == wanted:
                    end = max(when for _, _, when in arrived)
                    for who, where, _ in arrived:
                        their = (who, int(by_rank[who].nodes.stream[where]))
                        blocked.discard(their)
                        if finish[who][where] < 0:
                            finish[who][where] = free[their] = end
                    del waiting[meeting]
    assert not waiting, f"unmet: {sorted(map(str, waiting))[:4]}"
    assert all(min(times) >= 0 for times in finish.values()), "deadlock"
    return finish
