"""The communication kernels of serving engines: one- and two-shot all-reduce, expert dispatch and combine.

One-shot: every rank reads all of every other's buffer, (n - 1)·S. Two-shot: it reduces its share of all,
and all read the shares, 2·(n - 1)/n·S with one more synchronisation. Multimem: the switch adds up each rank's
share as it reads it, and multicasts it, (n + 1)/n·S. Which serves which sizes of which groups stands in the
engine's source, and in our files as `limits`; above them, and for other groups, the engine calls NCCL.

Expert exchange: a rank sends each of its tokens to `topk` experts. The low-latency kernels send every copy by
itself, over NVLink within the node and the NIC to other nodes; an expert's copies are moved by one group of
threads. The normal kernels send a token once to each node and, within it, once to each rank that needs it.
Hybrid-EP's do so too, in pieces that pass through both at the same time, and leave in place what stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from itertools import count as counting
from pathlib import Path

from msgspec import Struct

from rapid_des.chakra.trace import CollectiveType, Exchange
from rapid_des.config import Spec, decode, load_document
from rapid_des.config.specs import preset_folder
from rapid_des.errors import ConfigError, InputError
from rapid_des.network.collectives.libraries.nccl import GroupPlacement, LibraryCost, link_share
from rapid_des.network.collectives.libraries.nccl_fabric import load_fabric, with_registered_buffers
from rapid_des.network.collectives.libraries.nccl_network import nccl_time
from rapid_des.network.collectives.token_exchange import expected_places
from rapid_des.network.specs import DeepEp, HybridEp
from rapid_des.units import PS_PER_US, Bandwidth, Duration, Size, ceil_divide

ONCE = "normal"
"""The protocol of an exchange that sends a token once to each node and once to each rank."""
_MICRO = 1e6
_SCALE_BLOCK = 128
_SCALE_BYTES = 4
_HEADER = 16
_ALL_REDUCE_BLOCKS = 36
"""The number of CTAs of vLLM's custom all-reduce (its own default); the other engines' numbers are similar.
"""
_WARP = 32
_PACK = 16
"""The bytes that a thread moves at a time."""


class Limits(Spec, frozen=True, kw_only=True):
    """The kernels that serve a group of this many ranks, by size."""

    ranks: int
    one_shot_below: Size
    below: Size
    """The upper limit of two-shot, which serves sizes above one-shot's limit."""
    symmetric_below: Size = Size(0)
    """The upper limit of PyTorch's kernels on symmetric memory, which serve sizes from `below` on (0: not
    used); NCCL serves larger ones.
    """


class SymmetricMemory(Spec, frozen=True, kw_only=True):
    """PyTorch's all-reduce on symmetric memory; what is summed is copied there, and back."""

    base: Duration
    two_shot: Bandwidth
    """The rate of two-shot, copies included; that of `multimem` includes them too."""
    multimem: Bandwidth
    least_multimem: int
    """The least number of ranks from which the switch reduces and multicasts."""


class Blocks(Spec, frozen=True, kw_only=True):
    """Blocks of threads that an all-reduce is spread over, where they bind it: TensorRT-LLM's to 0.10.

    Its launcher (`kernelLaunchConfig` of customAllReduceKernels.cu) gives each thread 16 bytes. For two-shot
    it takes the fewest blocks that divide a rank's share evenly, and of more than `most` of them one in so
    many as divides these: of 29 or 58, which rows of 14,848 (Falcon 180B) make, one or two are left.
    """

    most: int
    threads: int
    rate: Bandwidth
    """The rate at which one block moves data."""
    block: Duration
    """The added time for each block (flags)."""

    def of_one_shot(self, size: int) -> int:
        """Return the blocks that sum `size` bytes in one step."""
        return min(self.most, ceil_divide(ceil_divide(size, _PACK), self.threads))

    def of_two_shot(self, size: int, ranks: int) -> int:
        """Return the blocks that sum a rank's share of `size` bytes.

        >>> blocks = Blocks(most=24, threads=1024, rate=Bandwidth(0), block=Duration(0))
        >>> [blocks.of_two_shot(2 * width * 128, 8) for width in (8192, 14848)]
        [16, 1]
        """
        share = _WARP * ceil_divide(ceil_divide(size, _PACK * ranks), _WARP)
        even = next(count for count in counting(ceil_divide(share, self.threads)) if share % count == 0)
        return even // next(part for part in counting(1) if even % part == 0 and even // part <= self.most)


class AllReduceKernel(Spec, frozen=True, kw_only=True):
    """A library's own all-reduce."""

    base: Duration
    rank: Duration
    """The added time for each other rank (flags)."""
    second: Duration
    """The added time of two-shot: its second synchronisation, and more of each step."""
    link: Bandwidth
    limits: tuple[Limits, ...]
    """The limits of each group size; NCCL serves groups of other sizes."""
    symmetric: SymmetricMemory | None = None
    blocks: Blocks | None = None
    """The limit by blocks of threads; None: there are always enough blocks."""

    def limits_of(self, ranks: int) -> Limits | None:
        """Return the limits of groups of this many ranks, if the library serves any."""
        return next((limits for limits in self.limits if limits.ranks == ranks), None)


class LowLatency(Spec, frozen=True, kw_only=True):
    """One direction (dispatch or combine) of the low-latency exchange."""

    base: Duration
    expert: Duration
    """The added time for each expert of the layer."""
    node: Duration
    """The added time for each further doubling of the number of nodes."""
    link: Bandwidth
    nic: Bandwidth
    expert_rate: Bandwidth
    """The rate at which the copies of one expert are sent."""


class Normal(Spec, frozen=True, kw_only=True):
    """One direction of the normal (throughput) exchange."""

    base: Duration
    node: Duration
    multiprocessor: Bandwidth
    """The rate at which one SM moves data."""
    local: float
    """The number of passes over a token that do not leave the GPU."""
    nic: Bandwidth


class Hybrid(Spec, frozen=True, kw_only=True):
    """One direction of Hybrid-EP's exchange."""

    base: Duration
    """The time around the kernel: maps of destinations, and flags."""
    link: Bandwidth
    """The highest rate of a GPU to others in its node."""
    multiprocessor: Bandwidth
    """The rate at which one SM moves data to others in its node."""
    nic: Bandwidth


class ServingKernels(Spec, frozen=True, kw_only=True):
    """The kernels of one GPU and its fabric."""

    name: str
    source: str
    fabric: str
    """The file of `topologies/fabrics` with NCCL's constants, used above the libraries' limits."""
    all_reduce: dict[str, AllReduceKernel | None]
    """The all-reduce kernels by library: vllm, sglang, trtllm. None: the library calls NCCL at every size."""
    low_latency: dict[str, LowLatency] = {}
    """The low-latency kernels by direction: dispatch, combine."""
    normal: dict[str, Normal] = {}
    hybrid: dict[str, Hybrid] = {}


class ExpertExchange(Struct, frozen=True):
    """The data that one rank exchanges: its tokens, each with `topk` of `experts` experts."""

    tokens: int
    hidden: int
    topk: int
    experts: int
    nodes: int
    per_node: int
    element_bytes: int
    """The bytes of an element: 1 for fp8 (with a scale for each 128 values), 2 for bf16."""

    sent: float | None = None
    """The bytes of all copies that a rank sends, if they differ from the product of tokens, experts and
    hidden size.
    """
    most_nodes: int = 0
    """The largest number of nodes among which a token's experts are chosen; 0: all nodes."""

    @property
    def copies(self) -> float:
        """Bytes of all copies of a rank's tokens."""
        return self.tokens * self.topk * self.copy_bytes if self.sent is None else self.sent

    @property
    def copy_bytes(self) -> float:
        """Bytes of one copy of one token on the wire."""
        scales = self.hidden / _SCALE_BLOCK * _SCALE_BYTES if self.element_bytes == 1 else 0.0
        return self.hidden * self.element_bytes + scales + _HEADER

    def distinct(self, parts: int) -> float:
        """Return how many of `parts` equal parts of the group a token's experts are expected in."""
        if self.most_nodes:
            parts = parts * min(self.most_nodes, self.nodes) // self.nodes
        return expected_places(parts, self.topk)


@cache
def load_kernels(name: str) -> ServingKernels:
    """Return the kernels that a path or a preset's bare name stands for."""
    folder = preset_folder("machine") / "fabrics" / "serving"
    for candidate in (Path(name), folder / f"{name}.yaml"):
        if candidate.is_file():
            return decode(load_document(candidate), ServingKernels)
    presets = ", ".join(sorted(path.stem for path in folder.glob("*.yaml")))
    raise ConfigError(f"no file of serving kernels {name!r}; presets: {presets}")


def all_reduce_time(kernels: ServingKernels, library: str, ranks: int, size: int) -> int:
    """Return the picoseconds of a library's all-reduce of `size` bytes on each rank of a node.

    It is in a CUDA graph, where NCCL's buffers are registered.
    """
    custom = all_reduce_cost(kernels, library, ranks, size)
    if custom is not None:
        return custom.duration
    fabric = with_registered_buffers(load_fabric(kernels.fabric))
    return nccl_time(fabric, CollectiveType.ALL_REDUCE, ranks, size).duration


def all_reduce_cost(
    kernels: ServingKernels, library: str, ranks: int, size: int, *, switched: bool = True
) -> LibraryCost | None:
    """Return the cost of a library's own all-reduce in a node; None where it calls NCCL.

    Symmetric memory is used where one switch is at all ranks (`switched`), as its multicast needs.
    """
    if library not in kernels.all_reduce:
        known = ", ".join(kernels.all_reduce)
        raise InputError(f"{kernels.name}: no all-reduce kernel of {library!r}; allowed: {known}")
    kernel = kernels.all_reduce[library]
    limits = None if kernel is None else kernel.limits_of(ranks)
    if kernel is None or limits is None or size >= max(limits.below, limits.symmetric_below):
        return None
    if size >= limits.below:
        return _symmetric_cost(kernel.symmetric, ranks, size, switched=switched)
    share = link_share(load_fabric(kernels.fabric).node, ranks)
    others, rate = ranks - 1, kernel.link * share / _MICRO
    start, at_once = (kernel.base + others * kernel.rank) / PS_PER_US, size < limits.one_shot_below
    if kernel.blocks is not None:
        blocks = kernel.blocks.of_one_shot(size) if at_once else kernel.blocks.of_two_shot(size, ranks)
        start += blocks * kernel.blocks.block / PS_PER_US
        rate = min(rate, blocks * kernel.blocks.rate / _MICRO)
    if at_once:
        return _reduced("one_shot", size, start, others * size, rate)
    return _reduced("two_shot", size, start + kernel.second / PS_PER_US, 2 * others / ranks * size, rate)


def _symmetric_cost(
    memory: SymmetricMemory | None, ranks: int, size: int, *, switched: bool
) -> LibraryCost | None:
    if memory is None or not switched:
        return None
    start = memory.base / PS_PER_US
    if ranks >= memory.least_multimem:
        return _reduced("nvls", size, start, (ranks + 1) / ranks * size, memory.multimem / _MICRO)
    return _reduced("two_shot", size, start, 2 * (ranks - 1) / ranks * size, memory.two_shot / _MICRO)


def _reduced(algorithm: str, size: int, start: float, wire: float, rate: float) -> LibraryCost:
    """Return the cost of these bytes over a GPU's links, after `start`; in microseconds."""
    return LibraryCost(
        duration=math.ceil((start + wire / rate) * PS_PER_US),
        algorithm=algorithm,
        protocol="custom",
        start=math.ceil(start * PS_PER_US),
        rate=math.ceil(rate * _MICRO),
        channels=_ALL_REDUCE_BLOCKS,
        hbm_bytes=2 * size,
    )


def exchange_cost(
    kernels: ServingKernels, library: DeepEp, place: GroupPlacement, size: int, how: Exchange | None = None
) -> LibraryCost | None:
    """Return the cost of an exchange of `size` bytes a rank; None where there are no constants for it.

    An all-to-all of a trace that does not say `how` it spreads may dispatch or combine: the mean of both,
    unless the library's `direction` says it.
    """
    directions = ("dispatch", "combine") if library.direction is None else (library.direction,)
    if how is not None:
        directions = ("combine" if how.returns else "dispatch",)
    packed = how is not None and how.once
    once = packed if library.kernel == "by_exchange" else library.kernel == ONCE
    known: Mapping[str, LowLatency | Normal] = kernels.normal if once else kernels.low_latency
    if any(name not in known for name in directions):
        return None
    exchange = ExpertExchange(
        tokens=1, hidden=0, topk=library.topk if how is None else how.topk, experts=library.experts,
        nodes=place.nodes, per_node=place.per_node, element_bytes=2, sent=float(size),
        most_nodes=0 if how is None else how.nodes,
    )  # fmt: skip
    times, starts = [], []
    for name in directions:
        kernel = known[name]
        if isinstance(kernel, LowLatency):
            times.append(low_latency_time(kernel, exchange))
        else:
            times.append(normal_time(kernel, exchange, multiprocessors=library.multiprocessors))
        starts.append(int(kernel.base))
    duration, start = sum(times) // len(times), sum(starts) // len(starts)
    return LibraryCost(
        duration=duration,
        algorithm="deepep",
        protocol=ONCE if once else "low_latency",
        intra_node_share=min(1.0, exchange.distinct(place.ranks) / library.topk) if once else 1.0,
        inter_node_share=min(1.0, exchange.distinct(place.nodes) / library.topk) if once else 1.0,
        start=start,
        channels=library.multiprocessors if once else 0,
        hbm_bytes=2 * size,
    )


def hybrid_cost(
    kernels: ServingKernels, library: HybridEp, place: GroupPlacement, size: int, how: Exchange
) -> LibraryCost | None:
    """Return Hybrid-EP's cost for `size` bytes a rank of copies; None where there are no constants."""
    kernel = kernels.hybrid.get("combine" if how.returns else "dispatch")
    if kernel is None or not how.once:
        return None
    exchange = ExpertExchange(
        tokens=1, hidden=0, topk=how.topk, experts=0, nodes=place.nodes, per_node=place.per_node,
        element_bytes=2, sent=float(size), most_nodes=how.nodes,
    )  # fmt: skip
    return LibraryCost(
        duration=int(kernel.base) + hybrid_time(kernel, exchange, multiprocessors=library.multiprocessors),
        algorithm="hybridep",
        protocol=ONCE,
        start=int(kernel.base),
        channels=library.multiprocessors,
        hbm_bytes=2 * size,
    )


def hybrid_time(kernel: Hybrid, exchange: ExpertExchange, *, multiprocessors: int) -> int:
    """Return the picoseconds of Hybrid-EP's dispatch or combine kernel on this number of SMs."""
    payload = exchange.copies / exchange.topk
    nodes, per_node = exchange.nodes, exchange.per_node
    inside = payload * exchange.distinct(nodes * per_node) * (1 - 1 / per_node)
    outside = payload * exchange.distinct(nodes) * (1 - 1 / nodes)
    link = min(int(kernel.link), int(kernel.multiprocessor) * multiprocessors) / _MICRO
    return math.ceil(max(inside / link, outside / (kernel.nic / _MICRO)) * PS_PER_US)


def low_latency_time(kernel: LowLatency, exchange: ExpertExchange) -> int:
    """Return the picoseconds of a low-latency dispatch or combine."""
    copies = exchange.copies
    ranks = exchange.nodes * exchange.per_node
    inside = copies / exchange.nodes / (kernel.link / _MICRO)
    outside = copies * (1 - 1 / exchange.nodes) / (kernel.nic / _MICRO)
    one_expert = copies * ranks / exchange.experts / (kernel.expert_rate / _MICRO)
    start = kernel.base + exchange.experts * kernel.expert + math.log2(exchange.nodes) * kernel.node
    return math.ceil((start / PS_PER_US + max(inside, outside, one_expert)) * PS_PER_US)


def normal_time(kernel: Normal, exchange: ExpertExchange, *, multiprocessors: int) -> int:
    """Return the picoseconds of a normal dispatch or combine on this number of SMs."""
    payload = exchange.copies / exchange.topk
    ranks = exchange.distinct(exchange.nodes * exchange.per_node)
    moved = payload * (ranks / exchange.nodes + kernel.local * exchange.nodes)
    inside = moved / (kernel.multiprocessor * multiprocessors / _MICRO)
    remote = exchange.distinct(exchange.nodes) * (1 - 1 / exchange.nodes) if exchange.nodes > 1 else 0.0
    outside = payload * remote / (kernel.nic / _MICRO)
    start = (kernel.base + math.log2(exchange.nodes) * kernel.node) / PS_PER_US
    return math.ceil((start + max(inside, outside)) * PS_PER_US)
