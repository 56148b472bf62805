"""Messages that move weights from the layout of a training job to that of a server.

Every tensor is a stretch of parameters. Training holds stretches by tensor-parallel rank, expert-parallel
rank, pipeline stage and, where parameters are sharded over replicas (ZeRO-3, FSDP), by replica; a server
by its own degrees. Each server GPU takes what it lacks from the nearest GPU that holds it: itself, then one
of its node, then any other, of equals the one that sends least so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import lcm
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field

from rapid_des.chakra.trace import UNSTATED, NodeKind, NodeTable, RankTrace, TraceSet, node_table
from rapid_des.frontend import Job
from rapid_des.frontend.groups import byte_count
from rapid_des.frontend.parts import EMBEDDING, HEAD, ModelSection, section_parameters
from rapid_des.frontend.template import Domain
from rapid_des.machine import Machine
from rapid_des.units import PS_PER_S, ceil_divide

Tensor = tuple[str, int, Domain]
"""Section, layer number (0 for the ends), and the domain whose ranks split it."""


class Stretch(NamedTuple):
    """The parts `low` to `high` (excluded), of `of` equal parts of a tensor, that a GPU holds or needs."""

    gpu: int
    low: int
    high: int
    of: int


class ReshardingTraffic(Struct, frozen=True):
    """The messages between GPUs, and the copies within each GPU's memory, in bytes."""

    between: dict[tuple[int, int], int]
    """Bytes by (source, destination)."""
    within: dict[int, int]

    @property
    def total(self) -> int:
        """Bytes of all messages."""
        return sum(self.between.values())


def reshard(training: Job, server: Job, machine: Machine, *, first: int = 0) -> ReshardingTraffic:
    """Return what must travel so that a server, from GPU `first` on, has the weights of a training job.

    Weights travel in the server's format of weights, which the trainer makes of its own.
    """
    holders, needs = _holders(training), _needs(server, first)
    sizes = _tensor_bytes(server)
    builder = _TransferBuilder(machine.spec.gpus_per_node or machine.fabric.gpus)
    for tensor, wanted in needs.items():
        builder.add(holders[tensor], wanted, sizes[tensor])
    return builder.transfers


class _TransferBuilder(Struct):
    gpus_per_node: int
    transfers: ReshardingTraffic = field(default_factory=lambda: ReshardingTraffic({}, {}))
    sent: dict[int, int] = field(default_factory=dict)

    def add(self, holders: Sequence[Stretch], wanted: Sequence[Stretch], size: int) -> None:
        """Move the stretches of one tensor of `size` bytes to all GPUs that need them."""
        parts = lcm(*{stretch.of for stretch in (*holders, *wanted)})
        held = [
            (holder.low * parts // holder.of, holder.high * parts // holder.of, holder.gpu)
            for holder in holders
        ]
        borders = sorted({border for low, high, _ in held for border in (low, high)})
        for want in wanted:
            low, high = want.low * parts // want.of, want.high * parts // want.of
            cuts = [low, *(border for border in borders if low < border < high), high]
            for start, stop in zip(cuts, cuts[1:], strict=False):
                owners = [gpu for begin, end, gpu in held if begin <= start and stop <= end]
                amount = ceil_divide(stop * size, parts) - ceil_divide(start * size, parts)
                self._take(want.gpu, owners, amount)

    def _take(self, gpu: int, owners: Sequence[int], amount: int) -> None:
        node = gpu // self.gpus_per_node
        source = min(
            owners,
            key=lambda sender: (
                sender != gpu,
                sender // self.gpus_per_node != node,
                self.sent.get(sender, 0),
                sender,
            ),
        )
        if source == gpu:
            self.transfers.within[gpu] = self.transfers.within.get(gpu, 0) + amount
            return
        self.sent[source] = self.sent.get(source, 0) + amount
        pair = source, gpu
        self.transfers.between[pair] = self.transfers.between.get(pair, 0) + amount


def _tensors(job: Job) -> Iterator[tuple[int, ModelSection, int]]:
    """Yield every section of the model with its part and its number among those of its name."""
    yield 0, EMBEDDING, 0
    layer = 0
    for part, count in enumerate(job.layers):
        for _ in range(count):
            yield part, ModelSection("block", job.kind_of_layer[layer]), layer
            layer += 1
    yield job.parts - 1, HEAD, 0


def _tensor_bytes(job: Job) -> dict[Tensor, int]:
    """Return the bytes of every whole tensor, as the ranks of one replica hold it together."""
    precision, sizes = job.spec.precision, section_parameters(job)
    dtype = precision.weights or precision.gemm or precision.activations
    degrees = {"dense": job.members("tp"), "expert": job.members("etp") * job.members("ep")}
    return {
        (section.name, number, domain): byte_count(elements * degrees[domain], dtype)
        for _, section, number in _tensors(job)
        for domain, elements in sizes[section].items()
        if elements
    }


def _needs(job: Job, first: int) -> dict[Tensor, list[Stretch]]:
    return _stretches(job, {"dense": None, "expert": None}, first)


def _holders(job: Job) -> dict[Tensor, list[Stretch]]:
    """Return who holds what after a step: replicas their parts, if these stay split from step to step."""
    split: dict[Domain, str | None] = {"dense": None, "expert": None}
    for domain, sharding in job.shardings.items():
        if sharding.policy.by_unit and sharding.replicas > 1:
            split[domain] = sharding.group
    return _stretches(job, split, 0)


def _stretches(job: Job, split: dict[Domain, str | None], first: int) -> dict[Tensor, list[Stretch]]:
    """Return for every tensor which stretch each GPU of its stage has; `split`: over which group besides."""
    sizes = section_parameters(job)
    stages = [
        {stage for stage, parts in enumerate(job.placement) if part in parts} for part in range(job.parts)
    ]
    of_rank = {domain: _shares(job, domain, group) for domain, group in split.items()}
    stage_of = job.layout.coordinates("pp").tolist()
    stretches: dict[Tensor, list[Stretch]] = {}
    for part, section, number in _tensors(job):
        ranks = [rank for rank, stage in enumerate(stage_of) if stage in stages[part]]
        for domain in (name for name, elements in sizes[section].items() if elements):
            stretches[section.name, number, domain] = [
                Stretch(first + rank, low, low + 1, of)
                for rank in ranks
                for low, of in (of_rank[domain][rank],)
            ]
    return stretches


def _shares(job: Job, domain: Domain, group: str | None) -> list[tuple[int, int]]:
    """Return for each rank which of how many equal parts of its stage's tensors it holds."""
    layout = job.expert_layout if domain == "expert" else job.layout
    axes = ("etp", "ep") if domain == "expert" else ("tp",)
    place, of = np.zeros(job.gpus, np.int64), 1
    for axis in axes:
        place, of = place + of * layout.coordinates(axis), of * layout.size(axis)
    if group is not None:
        rows = job.rows(group)
        within = np.empty(job.gpus, np.int64)
        within[rows] = np.arange(rows.shape[1])
        place, of = place * rows.shape[1] + within, of * rows.shape[1]
    return [(low, of) for low in place.tolist()]


def as_traces(transfers: ReshardingTraffic, gpus: int, memory_bandwidth: int) -> TraceSet:
    """Return transfers as traces to replay: all at once, copies at the speed of the memory beside them.

    `memory_bandwidth` is bytes/s; a copy reads and writes each byte.
    """
    nodes: list[list[tuple[NodeKind, int, int]]] = [[] for _ in range(gpus)]
    for (source, target), size in sorted(transfers.between.items()):
        nodes[source].append((NodeKind.SEND, target, size))
        nodes[target].append((NodeKind.RECV, source, size))
    for gpu, size in transfers.within.items():
        nodes[gpu].append((NodeKind.COMPUTE, gpu, ceil_divide(2 * size * PS_PER_S, memory_bandwidth)))
    ranks = tuple(
        RankTrace(rank, _table(sends), peers=tuple(dict.fromkeys(peer for _, peer, _ in sends)))
        for rank, sends in enumerate(nodes)
    )
    return TraceSet(ranks, {"world": tuple(range(gpus))})


def _table(nodes: Sequence[tuple[NodeKind, int, int]]) -> NodeTable:
    """Return the table of one GPU, with each message on its own stream."""
    count = len(nodes)
    peers = {peer: slot for slot, peer in enumerate(dict.fromkeys(peer for _, peer, _ in nodes))}
    kinds = np.array([kind for kind, _, _ in nodes], np.int8).reshape(count)
    amounts = np.array([amount for _, _, amount in nodes], np.int64).reshape(count)
    copies = kinds == NodeKind.COMPUTE
    slots = np.array([peers[peer] for _, peer, _ in nodes], np.int32).reshape(count)
    streams = tuple(f"{_STREAMS[kind]}{'' if kind is NodeKind.COMPUTE else peer}" for kind, peer, _ in nodes)
    return node_table(
        kinds,
        np.where(copies, 0, amounts),
        streams=streams,
        names=("weights",),
        stream=np.arange(count),
        duration=np.where(copies, amounts, 0),
        peer=np.where(copies, UNSTATED, slots),
    )


_STREAMS = {NodeKind.COMPUTE: "copy", NodeKind.SEND: "to ", NodeKind.RECV: "from "}
