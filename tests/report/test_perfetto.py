"""Timelines in Perfetto's own format: the slices of the JSON, flows between ends of messages, counters."""

import gzip
import json
import struct

import pytest

from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.report.timeline import Extract
from rapid_des.simulation import simulate


def varint(data, at):
    value, shift = 0, 0
    while True:
        byte, at = data[at], at + 1
        value, shift = value | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            return value, at


def fields(data):
    """Every field of a protobuf message as (number, value), in order."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        elif key & 7 == 1:
            value, at = struct.unpack_from("<Q", data, at)[0], at + 8
        else:
            size, at = varint(data, at)
            value, at = data[at : at + size], at + size
        yield key >> 3, value


def read(data):
    """Tracks by number as (name, parent), slices as (track, name, start, end), flows, counters by track."""
    tracks, names, opened, slices = {}, {}, {}, []
    flows: dict[int, dict[int, tuple[int, str]]] = {}
    counters: dict[int, list[tuple[int, int]]] = {}
    for packet in (dict(fields(content)) for _, content in fields(data)):
        if 60 in packet:
            track = dict(fields(packet[60]))
            tracks[track[1]] = (track[2].decode(), track.get(5, 0))
        for kind, entry in fields(packet.get(12, b"")):
            if kind == 2:
                one = dict(fields(entry))
                names[one[1]] = one[2].decode()
        if 11 not in packet:
            continue
        event = dict(fields(packet[11]))
        if event[9] == 1:
            opened[event[11]] = (names[event[10]], packet[8])
            for end in (47, 48):
                if end in event:
                    flows.setdefault(event[end], {})[end] = (event[11], names[event[10]])
        elif event[9] == 2:
            slices.append((event[11], *opened.pop(event[11]), packet[8]))
        else:
            counters.setdefault(event[11], []).append((packet[8], event[30]))
    assert not opened
    return tracks, slices, flows, counters


@pytest.fixture(scope="module")
def result():
    job = load_job("llama2_7b_train", settings=[("model.layers", "4"), ("training.global_batch", "8")])
    return simulate(job, load_machine("dgx_a100"), trail=True)


def test_slices_are_those_of_the_json(result, tmp_path):
    some = Extract(frozenset({0, 4}))
    result.write_timeline(tmp_path / "t.pftrace", some)
    result.write_timeline(tmp_path / "t.json", some)
    tracks, slices, flows, counters = read((tmp_path / "t.pftrace").read_bytes())
    names = {number: name for number, (name, _) in tracks.items()}
    parents = {names[track] for track, (_, parent) in tracks.items() if parent == 0}
    assert {"node 0", "links", "memory of stage 0", "memory of stage 1"} == parents
    assert tracks[next(number for number, name in names.items() if name == "rank 4")][1] == 1  # node 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    plain = sorted((each["name"], int(each["ts"] * 1000 + 1e-4)) for each in events if each["ph"] == "X")
    assert sorted((name, start) for _, name, start, _ in slices) == plain
    # stage 0 of the first pipeline sends to stage 1: ranks 0 and 4
    assert flows
    assert all(set(ends) == {47, 48} for ends in flows.values())
    ranks = [{names[tracks[track][1]] for track, _ in ends.values()} for ends in flows.values()]
    assert all(pair == {"rank 0", "rank 4"} for pair in ranks)
    busy = next(counter for track, counter in counters.items() if names[track] == "links busy")
    assert busy[-1][1] == 0
    held = next(counter for track, counter in counters.items() if names[track] == "memory of stage 0")
    peak = result.figures.memory.stages[0].peak
    assert 0.9 * peak < max(value for _, value in held) <= peak


def test_slices_that_overlap_have_tracks_of_their_own(result, tmp_path):
    result.write_timeline(tmp_path / "t.pftrace.gz")
    _, slices, _, _ = read(gzip.decompress((tmp_path / "t.pftrace.gz").read_bytes()))
    ends: dict[int, int] = {}
    for track, _, start, end in slices:
        assert start >= ends.get(track, 0)
        ends[track] = end
