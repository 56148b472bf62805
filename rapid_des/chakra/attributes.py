"""The attributes of nodes under a dialect: kinds, durations, sizes and peers in this package's units."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Bools, Int8s, Int64s
from rapid_des.chakra.columns import RawTable
from rapid_des.chakra.dialects import ELEMENT_BYTES, TIME_UNITS, Dialect, ReadOptions
from rapid_des.chakra.groups import attribute_labels
from rapid_des.chakra.trace import BOUNDS, UNSTATED, CollectiveType, Finding, FoundError, NodeKind
from rapid_des.units import PS_PER_S

_LARGEST = 2**62
_KINDS = int(max(NodeKind))
_INVALID, _COMPUTE, _COLLECTIVE = int(NodeKind.INVALID), int(NodeKind.COMPUTE), int(NodeKind.COLLECTIVE)
_SEND, _RECV = int(NodeKind.SEND), int(NodeKind.RECV)
_MEMORY, _MESSAGES = (int(NodeKind.MEM_LOAD), int(NodeKind.MEM_STORE)), (_SEND, _RECV)
_BARRIER, _COLLECTIVES = int(CollectiveType.BARRIER), int(max(CollectiveType))
_SUSPICIOUS = 3600 * PS_PER_S


class TableSource(Struct, frozen=True):
    """Where a table comes from, and how it is to be understood."""

    file: str
    rank: int
    dialect: Dialect
    options: ReadOptions
    group_named: Callable[[str], str]
    """Maps the name that a node uses for its group to the group's name."""
    declared_unordered: frozenset[str] = frozenset()

    def error(self, kind: str, message: str, node: int | None = None) -> FoundError:
        """Return the error for something that cannot be read."""
        return FoundError(Finding(kind, f"{self.file}: {message}", file=self.file, rank=self.rank, node=node))

    def is_unordered(self, stream: str) -> bool:
        """Return whether a stream's nodes may start in any order."""
        if self.options.streams != "auto":
            return self.options.streams == "unordered"
        return stream in self.declared_unordered or not self.dialect.in_order


_NCCL_KERNEL = re.compile(rb"(?:nccl|rccl)(?:Dev)?Kernel_?(?:Generic_)?([A-Za-z]+)")
_KERNEL_TYPES = {
    b"AllReduce": CollectiveType.ALL_REDUCE,
    b"AllGather": CollectiveType.ALL_GATHER,
    b"ReduceScatter": CollectiveType.REDUCE_SCATTER,
    b"Broadcast": CollectiveType.BROADCAST,
    b"Reduce": CollectiveType.REDUCE,
}
"""Collectives by the word in the names of NCCL's kernels; `SendRecv` may be any exchange."""


class Columns(Struct, frozen=True):
    """A row for each node in file order; see `NodeTable` for what each holds."""

    kind: Int8s
    duration: Int64s
    size: Int64s
    collective: Int8s
    peer: Int64s
    """The rank of the peer (not a slot) or `UNSTATED`, by node."""
    tag: Int64s
    priority: Int64s
    flops: Int64s
    tensor_bytes: Int64s
    on_cpu: Bools
    issued: Int64s
    bound: Int8s
    remarks: tuple[str, ...]


class _Attributes:
    """The numeric attributes of one file, whose ranges are checked on access."""

    def __init__(self, raw: RawTable, origin: TableSource) -> None:
        self.raw = raw
        self.origin = origin

    def stated(self, name: str) -> Bools:
        attribute = self.raw.attributes.get(name)
        return np.zeros(len(self.raw), np.bool_) if attribute is None else attribute.stated

    def value(self, name: str) -> Int64s:
        attribute = self.raw.attributes.get(name)
        return np.zeros(len(self.raw), np.int64) if attribute is None else attribute.value

    def natural(self, name: str, *, scale: int = 1) -> Int64s:
        """Return a number that cannot be negative, times `scale`."""
        if name not in self.raw.attributes:
            return np.zeros(len(self.raw), np.int64)
        return self.scaled(name, self.value(name), scale)

    def scaled(self, name: str, values: Int64s, scale: int) -> Int64s:
        wrong = (values < 0) | (values > _LARGEST // scale)
        if wrong.any():
            row = int(np.argmax(wrong))
            node = int(self.raw.ids.view(np.uint64)[row])
            raise self.origin.error("range", f"node {node}: {name} is {values[row]}; out of range", node)
        return values * scale


def columns_of(raw: RawTable, origin: TableSource) -> Columns:
    """Return the nodes' columns; a negative or huge size or duration is a `FoundError` naming the node."""
    read = _Attributes(raw, origin)
    on_cpu = read.value("is_cpu_op") != 0
    kind, remarks = _kinds(raw, read, on_cpu)
    width, said = _element_width(origin)
    flops = read.natural("num_ops")
    duration, timed = _durations(raw, read, kind, on_cpu)
    tensor_bytes = read.natural("tensor_size", scale=width)
    return Columns(
        kind=kind,
        duration=duration,
        size=_sizes(read, kind, width, tensor_bytes),
        collective=_collectives(read, kind),
        peer=_peers(read, kind),
        tag=read.value("comm_tag"),
        priority=read.value("comm_priority"),
        flops=flops,
        tensor_bytes=_own_tensor_bytes(read, tensor_bytes),
        on_cpu=on_cpu,
        issued=read.natural("rapid_issued_ps"),
        bound=_bounds(read),
        remarks=(*remarks, *said, *timed),
    )


def _kinds(raw: RawTable, read: _Attributes, on_cpu: Bools) -> tuple[Int8s, list[str]]:
    """Return the node kinds: unknown ones are opaque, CPU collectives without a type are CPU work."""
    unknown = (raw.kind < 0) | (raw.kind > _KINDS)
    kind = np.where(unknown, _INVALID, raw.kind).astype(np.int8)
    hosted = (kind == _COLLECTIVE) & on_cpu & ~read.stated("comm_type")
    hosted &= not read.origin.dialect.complete
    kind[hosted] = _COMPUTE
    remarks = []
    if unknown.any():
        numbers = ", ".join(map(str, np.unique(raw.kind[unknown])[:6].tolist()))
        remarks.append(f"node types unknown to the schema ({numbers}) take no time")
    if hosted.any():
        remarks.append("collectives of the host without a type are CPU work")
    if raw.conflicts:
        remarks.append("attributes given twice with different values: the first counts")
    return kind, remarks


def _element_width(origin: TableSource) -> tuple[int, list[str]]:
    if origin.options.dtype_bytes is not None:
        return origin.options.dtype_bytes, []
    if not origin.dialect.sizes_in_elements:
        return 1, []
    said = f"sizes count elements; each is taken as {ELEMENT_BYTES} bytes (--dtype-bytes says otherwise)"
    return ELEMENT_BYTES, [said]


def _durations(raw: RawTable, read: _Attributes, kind: Int8s, on_cpu: Bools) -> tuple[Int64s, list[str]]:
    """Return picoseconds; a node that says operations or moves data but no time is left to the machine."""
    unit = origin_unit(read.origin)
    duration = read.scaled("duration", raw.duration, unit)
    remarks = []
    if (duration > _SUSPICIOUS).any():
        remarks.append("a node lasts more than an hour; is its time unit right (--time-unit)?")
    priced = _any_of(kind, *_MEMORY, *_MESSAGES) | (kind == _COLLECTIVE) | (read.stated("num_ops") & ~on_cpu)
    priced |= read.origin.dialect.complete
    exact = read.stated("rapid_duration_ps")
    untimed = (duration == 0) & priced & ~exact
    duration[untimed] = UNSTATED
    compute = kind == _COMPUTE
    if compute.any() and not (exact | (duration != 0))[compute].any():
        remarks.append("compute time is zero: nodes have neither durations nor operation counts")
    elif (untimed & compute).any():
        remarks.append(
            "compute nodes without durations are priced by their operations on the machine's device"
        )
    if "rapid_duration_ps" in read.raw.attributes:
        duration = np.where(exact, read.natural("rapid_duration_ps"), duration)
    return duration, remarks


def _any_of(kind: Int8s, *wanted: int) -> Bools:
    """Return which nodes are of some kinds; on short columns much faster than numpy's own function."""
    matches: Bools = kind == wanted[0]
    for other in wanted[1:]:
        matches |= kind == other
    return matches


def origin_unit(origin: TableSource) -> int:
    """Return the picoseconds in one unit of the traces' durations."""
    unit = origin.options.time_unit
    return origin.dialect.time_unit if unit == "auto" else TIME_UNITS[unit]


def _sizes(read: _Attributes, kind: Int8s, width: int, tensor_bytes: Int64s) -> Int64s:
    """Return bytes; `UNSTATED` where a collective or message does not say any."""
    size = read.natural("comm_size", scale=width)
    stated = read.stated("comm_size")
    messages, memory = _any_of(kind, *_MESSAGES), _any_of(kind, *_MEMORY)
    fallback = ~stated & read.stated("tensor_size") & (messages | memory)
    size[fallback] = tensor_bytes[fallback]
    collective = kind == _COLLECTIVE
    barrier = collective & (read.value("comm_type") == _BARRIER)
    silent = ~stated & ~fallback & ~barrier & (messages | collective)
    size[silent] = UNSTATED
    return size


def _collectives(read: _Attributes, kind: Int8s) -> Int8s:
    """Return the collectives' types: as stated, else as the name of an NCCL kernel says."""
    value = read.value("comm_type")
    known = read.stated("comm_type") & (value >= 0) & (value <= _COLLECTIVES)
    found = np.where(known & (kind == _COLLECTIVE), value, UNSTATED).astype(np.int8)
    silent = (kind == _COLLECTIVE) & ~read.stated("comm_type")
    if silent.any():
        named = np.array([_named_collective(name) for name in read.raw.names], np.int8)
        found[silent] = named[read.raw.name[silent]]
    return found


def _named_collective(name: bytes) -> int:
    """Return the type of the collective that a kernel of NCCL is by its name, or `UNSTATED`.

    >>> _named_collective(b"ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*)"), _named_collective(b"x")
    (<CollectiveType.ALL_GATHER: 2>, -1)
    """
    kernel = _NCCL_KERNEL.match(name)
    return _KERNEL_TYPES.get(kernel[1], UNSTATED) if kernel else UNSTATED


def _peers(read: _Attributes, kind: Int8s) -> Int64s:
    """Return the rank on the other side of each send and receive, or `UNSTATED`."""
    peer = np.full(len(kind), UNSTATED, np.int64)
    for side, name in ((_SEND, "comm_dst"), (_RECV, "comm_src")):
        rows = (kind == side) & read.stated(name)
        peer[rows] = read.natural(name)[rows]
    return peer


def _bounds(read: _Attributes) -> Int8s:
    """Return the resource that bounds each kernel; one that is not in `BOUNDS` is a `FoundError`."""
    labels = attribute_labels(read.raw.attributes.get("rapid_bound"), len(read.raw))
    known = {name: number for number, name in enumerate(BOUNDS)}
    numbers = np.array([*(known.get(text, -2) for text in labels.texts), UNSTATED], np.int8)
    bounds: Int8s = numbers[labels.codes]
    wrong = np.flatnonzero(bounds < UNSTATED)
    if len(wrong):
        node, text = int(read.raw.ids.view(np.uint64)[wrong[0]]), labels.texts[labels.codes[wrong[0]]]
        problem = f"node {node}: rapid_bound is {text!r}; allowed: {', '.join(BOUNDS)}"
        raise read.origin.error("range", problem, node)
    return bounds


def _own_tensor_bytes(read: _Attributes, tensor_bytes: Int64s) -> Int64s:
    if "rapid_tensor_bytes" not in read.raw.attributes:
        return tensor_bytes
    exact = read.stated("rapid_tensor_bytes")
    return np.where(exact, read.natural("rapid_tensor_bytes"), tensor_bytes)
