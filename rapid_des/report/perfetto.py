"""Writes a run in Perfetto's own format: tracks by node, rank and stream, flows of messages, counters.

The file is a protobuf message `Trace`, a sequence of packets
(perfetto.dev/docs/reference/trace-packet-proto). A packet describes a track, begins or ends a slice, states
the value of a counter, or gives a name its number before the first use. Times are whole nanoseconds, the unit
of Perfetto. Slices that overlap go to several tracks of the same name.
"""

from __future__ import annotations

import gzip
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.chakra.trace import UNSTATED, NodeKind
from rapid_des.frontend.memory import JobMemory
from rapid_des.frontend.trace import JobTrace
from rapid_des.modes.execution import Run
from rapid_des.program.lowering import rank_times
from rapid_des.report.charts.memory import steps_of_stages
from rapid_des.report.timeline import COMMUNICATES, Chosen, senders_of
from rapid_des.report.writing import replacing

ENDINGS = (".pftrace", ".perfetto-trace")
"""Endings of paths that ask for this format, before a `.gz`."""
_PS_PER_NS = 1000
_SEQUENCE = 1
_BEGIN, _END, _COUNTER = 1, 2, 4
"""Types of a track event: a slice begins, a slice ends, a counter's value."""
_BYTES, _COUNT = 3, 2
"""Units of a counter."""
_NOTES = {"bytes": 1, "flops": 2, "waited_ns": 3, "rank": 4}

Counter = tuple[str, int, Sequence[int], Sequence[int]]
"""The name of a counter, its unit, the picoseconds of its changes and its values from then on."""


class _Slice(Struct, frozen=True):
    """A slice of a track, in nanoseconds."""

    name: str
    start: int
    finish: int
    notes: Mapping[str, int]
    flow: int = 0
    """The number of the message that the slice sends or receives, from 1 on; 0 if there is none."""
    receives: bool = False


def memory_counters(memory: JobMemory, trace: JobTrace, run: Run) -> Iterator[Counter]:
    """Yield the memory of one rank of each stage over a training step; other runs have no such counters."""
    if trace.job.spec.training is None:
        return
    for stage, (times, held) in steps_of_stages(memory.stages, trace, run):
        sizes = [sum(categories.values()) for categories in held]
        yield f"memory of stage {stage.stage}", _BYTES, times, sizes


def write_perfetto(path: Path, run: Run, chosen: Chosen, counters: Sequence[Counter] = ()) -> None:
    """Write the slices of a run that were chosen, and counters over time."""
    with replacing(path) as beside, beside.open("wb") as raw:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", 4, raw, mtime=0) as packed:
                _write(packed, run, chosen, counters)  # type: ignore[arg-type] # a file to write bytes to
        else:
            _write(raw, run, chosen, counters)


def _write(file: BinaryIO, run: Run, chosen: Chosen, counters: Sequence[Counter]) -> None:
    writer = _Writer(file)
    size = run.machine.spec.gpus_per_node or run.machine.fabric.gpus
    nodes: dict[int, int] = {}
    flows = _flows(run, list(chosen.rows))
    for position, rows in chosen.rows.items():
        trace = run.lowered.traces.ranks[position]
        node = trace.rank // size
        if node not in nodes:
            nodes[node] = writer.track(f"node {node}")
        rank = writer.track(f"rank {trace.rank}", nodes[node])
        for stream, slices in _of_rank(run, position, rows, flows).items():
            writer.slices(trace.nodes.streams[stream], rank, slices)
    links = list(_of_links(run, chosen.hops))
    if links:
        top = writer.track("links")
        writer.counter(top, _busy(run, chosen.hops))
        for name, slices in links:
            writer.slices(name, top, slices)
    for counter in counters:
        writer.counter(0, counter)


def _flows(run: Run, positions: Sequence[int]) -> dict[tuple[int, int], int]:
    """Return the number of the message of each send and receive, by position and node.

    The k-th send of a pair of ranks with a tag matches the k-th receive of that pair and tag.
    """
    ends: dict[tuple[int, int, int, int], dict[bool, tuple[int, int]]] = defaultdict(dict)
    counts: dict[tuple[int, int, int, bool], int] = defaultdict(int)
    for position in positions:
        trace = run.lowered.traces.ranks[position]
        nodes = trace.nodes
        kinds = (NodeKind.SEND, NodeKind.RECV)
        for row in np.flatnonzero(np.isin(nodes.kind, kinds)).tolist():
            peer, sends = trace.peers[nodes.peer[row]], bool(nodes.kind[row] == NodeKind.SEND)
            pair = (trace.rank, peer) if sends else (peer, trace.rank)
            key = (*pair, int(nodes.tag[row]))
            ends[*key, counts[*key, sends]][sends] = (position, row)
            counts[*key, sends] += 1
    both = [pair for pair in ends.values() if len(pair) > 1]
    return {end: number for number, pair in enumerate(both, 1) for end in pair.values()}


def _of_rank(
    run: Run, position: int, rows: Int64s, flows: Mapping[tuple[int, int], int]
) -> dict[int, list[_Slice]]:
    """Return a rank's slices by stream."""
    nodes = run.lowered.traces.ranks[position].nodes
    times = rank_times(run.lowered, run.execution.records, position)
    slices: dict[int, list[_Slice]] = defaultdict(list)
    columns = (nodes.name, nodes.stream, nodes.kind, nodes.size, nodes.flops)
    spans = (times.start, times.finish, times.met)
    table = zip(rows.tolist(), *(column[rows].tolist() for column in (*columns, *spans)), strict=True)
    for row, name, stream, kind, size, flops, start, finish, met in table:
        notes = {} if flops == UNSTATED else {"flops": flops}
        if kind in COMMUNICATES:
            notes = {"bytes": size, "waited_ns": max(0, met - start) // _PS_PER_NS}
        slices[stream].append(
            _Slice(
                nodes.names[name],
                start // _PS_PER_NS,
                finish // _PS_PER_NS,
                notes,
                flows.get((position, row), 0),
                receives=kind == NodeKind.RECV,
            )
        )
    return slices


def _of_links(run: Run, hops: Int64s) -> Iterator[tuple[str, list[_Slice]]]:
    """Yield each link that messages crossed, with its slices."""
    trail, fabric = run.execution.records.trail, run.machine.fabric
    if trail is None or not len(hops):
        return
    senders = senders_of(run.lowered, trail.visit[hops])
    order = hops[np.lexsort((trail.start[hops], trail.link[hops]))]
    slices: dict[int, list[_Slice]] = defaultdict(list)
    columns = (trail.link, trail.visit, trail.start, trail.finish)
    for link, visit, start, finish in zip(*(column[order].tolist() for column in columns), strict=True):
        rank, name, _ = senders[visit]
        slices[link].append(_Slice(name, start // _PS_PER_NS, finish // _PS_PER_NS, {"rank": rank}))
    yield from ((fabric.link_name(link), inside) for link, inside in slices.items())


def _busy(run: Run, hops: Int64s) -> Counter:
    """Return the number of links that serve a message, over time."""
    trail = run.execution.records.trail
    assert trail is not None
    times = np.concatenate((trail.start[hops], trail.finish[hops]))
    changes = np.repeat((1, -1), len(hops))
    order = np.lexsort((changes, times))
    moments, last = np.unique(times[order][::-1], return_index=True)
    values = np.cumsum(changes[order])[len(times) - 1 - last]
    return "links busy", _COUNT, moments.tolist(), values.tolist()


class _Writer:
    """Writes packets; tracks are numbered from 1."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._tracks, self._names = file, 0, dict[str, int]()
        names = b"".join(_field(3, _number(1, key) + _text(2, name)) for name, key in _NOTES.items())
        self._packet(_number(13, 1) + _field(12, names))  # a fresh sequence of interned names

    def track(self, name: str, parent: int = 0, more: bytes = b"") -> int:
        """Describe a track below another one; return its number."""
        self._tracks += 1
        below = _number(5, parent) if parent else b""
        self._packet(_field(60, _number(1, self._tracks) + _text(2, name) + below + more))
        return self._tracks

    def slices(self, name: str, parent: int, slices: Sequence[_Slice]) -> None:
        """Write slices to a track, and those that overlap to further ones of that name."""
        lanes: list[tuple[int, int]] = []
        for each in sorted(slices, key=lambda one: (one.start, one.finish)):
            free = next((place for place, (_, end) in enumerate(lanes) if end <= each.start), len(lanes))
            if free == len(lanes):
                lanes.append((self.track(name, parent), 0))
            number = lanes[free][0]
            lanes[free] = (number, each.finish)
            self._slice(number, each)

    def counter(self, parent: int, counter: Counter) -> None:
        """Write a counter as a track."""
        name, unit, times, values = counter
        number = self.track(name, parent, _field(8, _number(3, unit)))
        for time, value in zip(times, values, strict=True):
            event = _number(9, _COUNTER) + _number(11, number) + _number(30, value)
            self._packet(_number(8, time // _PS_PER_NS) + _field(11, event))

    def _slice(self, track: int, each: _Slice) -> None:
        notes = b"".join(
            _field(4, _number(1, _NOTES[key]) + _number(4, value)) for key, value in each.notes.items()
        )
        flow = b""
        if each.flow:
            flow = _varint((48 if each.receives else 47) << 3 | 1) + struct.pack("<Q", each.flow)
        name = self._interned(each.name)
        event = _number(9, _BEGIN) + _number(10, name) + _number(11, track) + notes + flow
        self._packet(_number(8, each.start) + _number(13, 2) + _field(11, event))
        self._packet(_number(8, each.finish) + _field(11, _number(9, _END) + _number(11, track)))

    def _interned(self, name: str) -> int:
        """Return the number of a name, which is written before its first use."""
        number = self._names.get(name)
        if number is None:
            number = self._names[name] = len(self._names) + 1
            self._packet(_number(13, 2) + _field(12, _field(2, _number(1, number) + _text(2, name))))
        return number

    def _packet(self, content: bytes) -> None:
        self._file.write(_field(1, _number(10, _SEQUENCE) + content))


def _varint(value: int) -> bytes:
    """Return a number as protobuf's variable-length integer.

    >>> _varint(300).hex()
    'ac02'
    """
    out = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits a byte
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _field(field, text.encode())
