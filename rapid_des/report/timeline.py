"""A run for ui.perfetto.dev: a track for each rank and stream and busy link, arrows for messages."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import TextIO

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Bools, Int64s
from rapid_des.chakra.trace import UNSTATED, NodeKind
from rapid_des.errors import InputError
from rapid_des.modes.execution import Run
from rapid_des.network.fabric import Fabric
from rapid_des.program.lowering import Lowered, rank_times
from rapid_des.program.program import NONE, LinkTrail, Records
from rapid_des.report.writing import replacing
from rapid_des.units import PS_PER_US, Duration

LINKS_PROCESS = 1_000_000
"""Process number of the link tracks, larger than every rank."""
LARGEST = 200_000_000
"""Largest timeline in bytes, before packing, that is written without --force; larger ones open slowly."""

_SLICE_BYTES, _HOP_BYTES = 165, 250
"""Approximate bytes in the file of a node, and of a message's hop."""
_AT_ONCE = 1 << 14
"""Number of events that are converted to text at a time."""


class Extract(Struct, frozen=True):
    """The part of a run that is written to its timeline.

    >>> Extract.parse("0,4-6", "10ms:20ms")
    Extract(ranks=frozenset({0, 4, 5, 6}), begin=10000000000, end=20000000000)
    """

    ranks: frozenset[int] | None = None
    """The ranks to write; None: all."""
    begin: int = 0
    end: int | None = None
    """The window in picoseconds: what ends after `begin` and starts before `end`."""

    @classmethod
    def parse(cls, ranks: str | None, window: str | None) -> Extract:
        """Return the extract for ranks such as 0,4,8-15 and a window such as 10ms:20ms, if given."""
        begin, end = (0, None) if window is None else _window(window)
        return cls(None if ranks is None else _ranks(ranks), begin, end)

    def rows(self, start: Int64s, finish: Int64s) -> Int64s:
        """Return which slices fall into the window; slices without duration are left out."""
        end = np.iinfo(np.int64).max if self.end is None else self.end
        shown: Bools = (finish > start) & (finish > self.begin) & (start < end)
        return np.flatnonzero(shown)

    def positions(self, lowered: Lowered) -> list[int]:
        """Return the positions of the ranks; `InputError` if the run lacks one of them."""
        ranks = [binding.rank for binding in lowered.program.bindings]
        missing = sorted((self.ranks or frozenset()).difference(ranks))
        if missing:
            raise InputError(f"rank {missing[0]}: the run has ranks {ranks[0]} to {ranks[-1]}")
        return [place for place, rank in enumerate(ranks) if self.ranks is None or rank in self.ranks]


EVERYTHING = Extract()


def _ranks(text: str) -> frozenset[int]:
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = (first, last if dash else first)
        if not all(end.isascii() and end.isdigit() and len(end) <= 7 for end in ends):
            raise InputError(f"--ranks: {part!r} is no rank and no range of ranks, as in 0,4,8-15")
        ranks.update(range(int(ends[0]), int(ends[1]) + 1))
    if not ranks:
        raise InputError(f"--ranks: {text!r} holds no rank")
    return frozenset(ranks)


def _window(text: str) -> tuple[int, int | None]:
    first, colon, last = text.partition(":")
    try:
        begin = int(Duration.parse(first)) if first else 0
        end = int(Duration.parse(last)) if last else None
    except ValueError as error:
        raise InputError(f"--window: {error}") from None
    if not colon or (end is not None and end <= begin):
        raise InputError(f"--window: {text!r} is not FROM:UNTIL with UNTIL after FROM, as in 10ms:20ms")
    return begin, end


def check_size(lowered: Lowered, extract: Extract, *, messages: int) -> None:
    """Raise `InputError` if the timeline of a run with that many message hops would be larger than `LARGEST`.

    Call it before the run. A window does not make the estimate smaller: its content is not known yet.
    """
    ranks = extract.positions(lowered)
    share = len(ranks) / max(len(lowered.program.bindings), 1)
    nodes = sum(len(lowered.traces.ranks[position].nodes) for position in ranks)
    if extract.begin == 0 and extract.end is None:
        _refuse_large(nodes, round(messages * share))


def _refuse_large(slices: int, hops: int) -> None:
    size = slices * _SLICE_BYTES + hops * _HOP_BYTES
    if size > LARGEST:
        less = "fewer --ranks, a --window" + (", no --messages" if hops else "")
        raise InputError(
            f"--timeline: about {size / 1e6:,.0f} MB in {slices + 3 * hops:,} events, more than "
            f"{LARGEST / 1e6:,.0f} MB, which is slow to open; {less}, or --force"
        )


class Chosen(Struct, frozen=True):
    """What of a run goes to its timeline."""

    rows: dict[int, Int64s]
    """The nodes of each rank by its position."""
    hops: Int64s
    """Rows of the trail of messages."""


def chosen_of(run: Run, extract: Extract = EVERYTHING, *, bounded: bool = False) -> Chosen:
    """Return what an extract leaves of a run; if it is `bounded`, more than `LARGEST` is an `InputError`."""
    lowered, records = run.lowered, run.execution.records
    positions = extract.positions(lowered)
    rows = {position: _chosen(lowered, records, position, extract) for position in positions}
    hops = _hops(lowered, records, extract, positions)
    if bounded:
        _refuse_large(sum(map(len, rows.values())), len(hops))
    return Chosen(rows, hops)


def write_timeline(path: Path, run: Run, chosen: Chosen) -> None:
    """Write the Chrome trace-event JSON of a run, packed if the path ends in .gz; times are microseconds."""
    write_events(path, _events(run, chosen.rows, chosen.hops))


def write_events(path: Path, events: Iterator[str]) -> None:
    """Write trace events, each as JSON text, packed if the path ends in .gz."""
    with replacing(path) as beside, _opened(beside, packed=path.suffix == ".gz") as file:
        file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
        _write_all(file, events)
        file.write("\n]}\n")


@contextmanager
def _opened(path: Path, *, packed: bool) -> Iterator[TextIO]:
    if not packed:
        with path.open("w", encoding="utf-8") as plain:
            yield plain
        return
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", 4, raw, mtime=0) as pack,
        TextIOWrapper(pack, encoding="utf-8") as file,
    ):
        yield file


def _write_all(file: TextIO, events: Iterator[str]) -> None:
    separator = ""
    while some := list(islice(events, _AT_ONCE)):
        file.write(separator + ",\n".join(some))
        separator = ",\n"


def _chosen(lowered: Lowered, records: Records, position: int, extract: Extract) -> Int64s:
    times = rank_times(lowered, records, position)
    return extract.rows(times.start, times.finish)


def _hops(lowered: Lowered, records: Records, extract: Extract, positions: list[int]) -> Int64s:
    """Return the rows of the trail in the window that one of the ranks sent."""
    trail = records.trail
    if trail is None:
        return np.zeros(0, np.int64)
    rows = extract.rows(trail.start, trail.finish)
    if extract.ranks is None:
        return rows
    sender = np.searchsorted(lowered.program.visits(), trail.visit[rows], side="right") - 1
    return rows[np.isin(sender, positions)]


def _events(run: Run, chosen: dict[int, Int64s], hops: Int64s) -> Iterator[str]:
    lowered, records = run.lowered, run.execution.records
    for position, rows in chosen.items():
        yield from _rank_events(lowered, records, position, rows)
    if records.trail is not None and len(hops):
        yield from _link_events(lowered, records.trail, run.machine.fabric, hops)


def _rank_events(lowered: Lowered, records: Records, position: int, rows: Int64s) -> Iterator[str]:
    trace = lowered.traces.ranks[position]
    nodes, times = trace.nodes, rank_times(lowered, records, position)
    yield _name("process_name", trace.rank, 0, f"rank {trace.rank}")
    sorting = {"ph": "M", "name": "process_sort_index", "pid": trace.rank, "args": {"sort_index": trace.rank}}
    yield json.dumps(sorting, separators=(",", ":"))
    for stream in np.unique(nodes.stream).tolist():
        yield _name("thread_name", trace.rank, stream, nodes.streams[stream])
    names = [json.dumps(name) for name in nodes.names]
    columns = (nodes.name, nodes.stream, nodes.kind, nodes.ids, nodes.size, nodes.flops, nodes.tensor_bytes)
    spans = (times.start, times.finish, times.met)
    for some in _blocks(rows):
        table = zip(*(column[some].tolist() for column in (*columns, *spans)), strict=True)
        for name, stream, kind, node, size, flops, moved, start, finish, met in table:
            if kind in COMMUNICATES:
                more = f',"bytes":{size},"waited_us":{max(0, met - start) / PS_PER_US!r}'
            else:
                more = (f',"flops":{flops}' if flops != UNSTATED else "") + (
                    f',"hbm_bytes":{moved}' if moved != UNSTATED else ""
                )
            yield _slice(names[name], (trace.rank, stream), start, finish, f'"node":{node}{more}')


COMMUNICATES = (NodeKind.COLLECTIVE, NodeKind.SEND, NodeKind.RECV)


def _blocks(rows: Int64s) -> Iterator[Int64s]:
    """Yield blocks of rows as Python integers, which take ten times the memory of arrays."""
    for first in range(0, len(rows), _AT_ONCE):
        yield rows[first : first + _AT_ONCE]


def _link_events(lowered: Lowered, trail: LinkTrail, fabric: Fabric, rows: Int64s) -> Iterator[str]:
    yield _name("process_name", LINKS_PROCESS, 0, "links")
    for link in np.unique(trail.link[rows]).tolist():
        yield _name("thread_name", LINKS_PROCESS, link, fabric.link_name(link))
    senders = senders_of(lowered, trail.visit[rows])
    columns = (trail.link, trail.visit, trail.start, trail.finish, trail.task, trail.position)
    message = 0
    for some in _blocks(rows):
        table = zip(*(column[some].tolist() for column in columns), strict=True)
        for link, visit, start, finish, task, place in table:
            rank, name, stream = senders[visit]
            yield _slice(
                json.dumps(name), (LINKS_PROCESS, link), start, finish, f'"rank":{rank},"transfer":{task}'
            )
            if place == 0:
                message += 1
                arrow = f'"name":"message","cat":"message","id":{message},"ts":{start / PS_PER_US!r}'
                yield f'{{{arrow},"ph":"s","pid":{rank},"tid":{stream}}}'
                yield f'{{{arrow},"ph":"f","bp":"e","pid":{LINKS_PROCESS},"tid":{link}}}'


def senders_of(lowered: Lowered, visits: Int64s) -> dict[int, tuple[int, str, int]]:
    """Return (rank, node name, stream) of the nodes behind visits, numbered over all ranks."""
    offsets, distinct = lowered.program.visits(), np.unique(visits)
    positions = np.searchsorted(offsets, distinct, side="right") - 1
    within = distinct - offsets[positions]
    columns = zip(distinct.tolist(), positions.tolist(), within.tolist(), strict=True)
    return {visit: _sender(lowered, position, row) for visit, position, row in columns}


def _sender(lowered: Lowered, position: int, visit: int) -> tuple[int, str, int]:
    trace = lowered.traces.ranks[position]
    table = lowered.program.programs[lowered.program.bindings[position].program]
    holder = visit if table.node[visit] != NONE else int(table.parent[visit])
    node = int(table.node[holder])
    return trace.rank, trace.nodes.names[trace.nodes.name[node]], int(trace.nodes.stream[node])


def _slice(name: str, track: tuple[int, int], start: int, finish: int, arguments: str) -> str:
    """Return a slice as JSON; the name is JSON already."""
    times = f'"ts":{start / PS_PER_US!r},"dur":{(finish - start) / PS_PER_US!r}'
    return f'{{"ph":"X","name":{name},"pid":{track[0]},"tid":{track[1]},{times},"args":{{{arguments}}}}}'


def _name(what: str, process: int, thread: int, name: str) -> str:
    event = {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}
    return json.dumps(event, separators=(",", ":"))
