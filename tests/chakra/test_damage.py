"""Damaged files: whatever the bytes, reading ends, and ends in a trace set or in a clear error."""

import json
import random

import pytest

from rapid_des.chakra import ReadOptions, check, convert_set
from rapid_des.errors import TraceError
from tests.chakra.test_generations import PROGRAMS
from tests.chakra.writing import all_reduce, delimited, metadata, node, recv, send

MODERN = delimited(
    metadata(schema="x", input_file="COMP"),
    node(1, "gemm", us=10, is_cpu_op=False, num_ops=5, tensor_size=8),
    node(2, "## process_group:init ##", 1, rf_id=1),
    send(3, 1, tag=4, needs=[1], ctrl=[2]),
    recv(4, 1, tag=5, needs=[1, 3]),
    all_reduce(5, 4096, needs=[4], pg_name="1", stream=7, tid=1),
    node(6, "x", 9, op_schema="f(a)", values=2.5, involved=b"\x0a\x01\x01"),
)
FILES = {
    "modern": MODERN,
    **{name: delimited(*frames) for name, frames in PROGRAMS.items()},
    "json": b'{"version":"1.0.0"}{"id":"1","type":"COMP_NODE","attr":[{"name":"a","int64Val":"3"}]}{}',
    "graph": json.dumps(
        {"workload_graph": [{"Id": 1, "Name": "a", "NodeType": 4, "data_deps": []}]}
    ).encode(),
    "groups": b'{"0": [0, 1], "1": [0]}',
}


def damaged(content, seed):
    """Cut, flip, insert or repeat some bytes."""
    chance = random.Random(seed)
    work = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(work) or 1)
        action = chance.randrange(5)
        if action == 0:
            del work[place:]
        elif action == 1 and work:
            work[place] ^= 1 << chance.randrange(8)
        elif action == 2:
            work[place:place] = bytes(chance.choices(range(256), k=chance.randint(1, 9)))
        elif action == 3 and work:
            work[place] = chance.choice([0, 127, 128, 255])
        else:
            work[place:place] = work[place : place + chance.randint(1, 40)]
    return bytes(work)


@pytest.mark.parametrize("name", FILES)
def test_every_cut_of_a_file_ends_in_findings_or_one_error(tmp_path, name):
    for size in range(0, len(FILES[name]), 5):
        read(tmp_path, name, FILES[name][:size])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("part", range(3))
def test_random_damage_ends_in_findings_or_one_error(tmp_path, name, part):
    for seed in range(part * 12, part * 12 + 12):
        read(tmp_path, name, damaged(FILES[name], seed))


def read(folder, name, content):
    """Check and convert a damaged file; anything but findings and `TraceError` fails the test."""
    target = folder / ("groups.json" if name == "groups" else "job.0.et")
    if name == "groups":
        (folder / "job.0.et").write_bytes(MODERN)
    target.write_bytes(content)
    for options in (ReadOptions(), ReadOptions(salvage=True, dependencies="both")):
        try:
            for finding in check(folder, options):
                assert "\n" not in str(finding)
        except TraceError as error:
            assert "\n" not in str(error)
    for form in ("et", "json"):
        try:
            convert_set(folder, folder / "out", form, ReadOptions())
        except TraceError as error:
            assert "\n" not in str(error)
