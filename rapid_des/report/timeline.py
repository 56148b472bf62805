"""A run for ui.perfetto.dev: a track for each rank and stream and busy link, arrows for messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from rapid_des.chakra.trace import NodeKind
from rapid_des.network.fabric import Fabric
from rapid_des.program.lowering import Lowered
from rapid_des.program.program import NONE, Records
from rapid_des.report.breakdown import rank_times
from rapid_des.report.writing import replacing
from rapid_des.units import PS_PER_US

LINKS_PROCESS = 1_000_000
"""Process number of the link tracks, above every rank."""

Event = dict[str, Any]


def write_timeline(path: Path, lowered: Lowered, records: Records, fabric: Fabric) -> None:
    """Write the Chrome trace-event JSON of a run; times in it are microseconds."""
    with replacing(path) as beside, beside.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
        _write_all(file, _events(lowered, records, fabric))
        file.write("\n]}\n")


def _write_all(file: TextIO, events: Iterator[Event]) -> None:
    separator = ""
    for event in events:
        file.write(separator)
        file.write(json.dumps(event, separators=(",", ":")))
        separator = ",\n"


def _events(lowered: Lowered, records: Records, fabric: Fabric) -> Iterator[Event]:
    for position in range(len(lowered.program.bindings)):
        yield from _rank_events(lowered, records, position)
    if records.trail is not None:
        yield from _link_events(lowered, records, fabric)


def _rank_events(lowered: Lowered, records: Records, position: int) -> Iterator[Event]:
    trace = lowered.traces.ranks[position]
    nodes, times = trace.nodes, rank_times(lowered, records, position)
    yield _name("process_name", trace.rank, 0, f"rank {trace.rank}")
    yield {"ph": "M", "name": "process_sort_index", "pid": trace.rank, "args": {"sort_index": trace.rank}}
    for stream in np.unique(nodes.stream).tolist():
        yield _name("thread_name", trace.rank, stream, nodes.streams[stream])
    columns = zip(
        nodes.name.tolist(), nodes.stream.tolist(), nodes.kind.tolist(), nodes.size.tolist(), strict=True
    )
    rows = zip(columns, times.start.tolist(), times.finish.tolist(), times.met.tolist(), strict=True)
    for index, ((name, stream, kind, size), start, finish, met) in enumerate(rows):
        if finish == start:
            continue
        event = _slice(nodes.names[name], (trace.rank, stream), start, finish)
        event["args"] = {"node": int(nodes.ids[index])}
        if kind in (NodeKind.COLLECTIVE, NodeKind.SEND, NodeKind.RECV):
            event["args"] |= {"bytes": size, "waited_us": max(0, met - start) / PS_PER_US}
        yield event


def _link_events(lowered: Lowered, records: Records, fabric: Fabric) -> Iterator[Event]:
    trail, offsets = records.trail, lowered.program.visits()
    assert trail is not None
    yield _name("process_name", LINKS_PROCESS, 0, "links")
    for link in np.unique(trail.link).tolist():
        yield _name("thread_name", LINKS_PROCESS, link, fabric.link_name(link))
    position = np.searchsorted(offsets, trail.visit, side="right") - 1
    senders = _senders(lowered, trail.visit - offsets[position], position)
    columns = (trail.link, trail.start, trail.finish, trail.task, trail.position)
    flow = 0
    for row, (link, start, finish, task, place) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        rank, name, stream = senders[row]
        yield _slice(name, (LINKS_PROCESS, link), start, finish) | {"args": {"rank": rank, "transfer": task}}
        if place == 0:
            flow += 1
            arrow = {"name": "message", "cat": "message", "id": flow}
            yield arrow | {"ph": "s", "pid": rank, "tid": stream, "ts": start / PS_PER_US}
            yield arrow | {"ph": "f", "bp": "e", "pid": LINKS_PROCESS, "tid": link, "ts": start / PS_PER_US}


def _senders(lowered: Lowered, visit: Any, position: Any) -> list[tuple[int, str, int]]:
    """Return (rank, node name, stream) of the node behind each hop."""
    found: dict[tuple[int, int], tuple[int, str, int]] = {}
    result = []
    for key in zip(position.tolist(), visit.tolist(), strict=True):
        if key not in found:
            found[key] = _sender(lowered, *key)
        result.append(found[key])
    return result


def _sender(lowered: Lowered, position: int, visit: int) -> tuple[int, str, int]:
    trace = lowered.traces.ranks[position]
    table = lowered.program.programs[lowered.program.bindings[position].program]
    own = visit if table.node[visit] != NONE else int(table.parent[visit])
    node = int(table.node[own])
    return trace.rank, trace.nodes.names[trace.nodes.name[node]], int(trace.nodes.stream[node])


def _slice(name: str, track: tuple[int, int], start: int, finish: int) -> Event:
    times = {"ts": start / PS_PER_US, "dur": (finish - start) / PS_PER_US}
    return {"ph": "X", "name": name, "pid": track[0], "tid": track[1], **times}


def _name(what: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}
