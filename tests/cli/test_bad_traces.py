"""Trace sets that are damaged, or that cannot be replayed: codes 2 and 3, never a wait."""

import json
import random
import shutil

import pytest

from rapid_des.chakra.files import varint
from tests.chakra.writing import all_reduce, node, ranks, recv, send
from tests.cli.shell import ROOT, call, refused

WORKING = ROOT / "workloads" / "traces" / "two_stages"
MACHINE = "dgx_a100"


def replay(prefix, *options):
    return call("replay", prefix, "--on", MACHINE, "--engine", "simpy", *options)


@pytest.fixture
def working(tmp_path):
    """Copy the two-rank trace set that replays."""
    for rank in range(2):
        shutil.copy(f"{WORKING}.{rank}.et", tmp_path / f"job.{rank}.et")
    assert replay(tmp_path).code == 0
    return tmp_path


@pytest.mark.parametrize("share", range(1, 40))
def test_a_truncated_file_is_refused_with_its_byte_or_is_whole_up_to_there(working, share):
    path = working / "job.0.et"
    content = path.read_bytes()
    size = len(content) * share // 40
    path.write_bytes(content[:size])
    ends = frame_ends(content)
    said = refused(call("trace", "check", working), 2)
    if size in ends:
        assert "job.0.et" in said or "rank" in said
    else:
        assert "job.0.et: truncated" in said
        assert "byte" in said
    refused(replay(working), 2, 3)


def frame_ends(content):
    ends, place = {0}, 0
    while place < len(content):
        size = next(size for size in range(1 << 14) if content.startswith(varint(size), place))
        place += len(varint(size)) + size
        ends.add(place)
    return ends


@pytest.mark.parametrize("seed", range(30))
def test_flipped_bits_end_in_an_answer_or_a_refusal(working, seed):
    chance = random.Random(seed)
    path = working / f"job.{seed % 2}.et"
    content = bytearray(path.read_bytes())
    for _ in range(chance.randint(1, 3)):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)
    for answer in (call("trace", "check", working), replay(working)):
        if answer.code:
            refused(answer, 2, 3)


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_are_refused(working, seed):
    chance = random.Random(seed)
    (working / "job.1.et").write_bytes(chance.randbytes(chance.randint(1, 2000)))
    assert "job.1.et" in refused(call("trace", "check", working), 2)
    refused(replay(working), 2)


CYCLE = [node(1, "a", us=1, needs=[3]), node(2, "b", us=1, needs=[1]), node(3, "c", us=1, needs=[2])]
TWO_REDUCES = [all_reduce(1, 64), all_reduce(2, 128, needs=[1])]
REFUSED = {  # name: (nodes of each rank, what must be said)
    "cycle": ([CYCLE], "in a circle: 1 ('a') needs 3 ('c')"),
    "cycle of two ranks": ([CYCLE, [node(1)]], "job.0.et"),
    "duplicate id": ([[node(1, "a"), node(1, "b")]], "node id 1 occurs twice"),
    "no nodes": ([[], []], "0 nodes"),
    "no work": ([[node(1)], [node(1)]], "nothing to replay: 2 nodes on 2 ranks"),
    "unknown collective": ([[node(1, type=7, comm_type=99, comm_size=8)]], "states no known type"),
    "send without a peer": ([[node(1, type=5, comm_size=8, comm_tag=1)]], ""),
    "send to a rank without a file": ([[send(1, to=5, tag=0)]], "5"),
    "send below rank 0": ([[send(1, to=-3, tag=0)]], "-3"),
    "sizes differ": ([[all_reduce(1, 64)], [all_reduce(1, 128)]], "64"),
    "unknown group": ([[all_reduce(1, 64, pg_name="77")], [all_reduce(1, 64, pg_name="77")]], "77"),
    "negative size": ([[all_reduce(1, -64)], [all_reduce(1, -64)]], "-64"),
}


@pytest.mark.parametrize(("nodes", "said"), REFUSED.values(), ids=REFUSED)
def test_traces_that_make_no_sense_are_code_2(tmp_path, nodes, said):
    ranks(tmp_path, *nodes)
    assert said in refused(replay(tmp_path), 2)


WAITING = {
    "nobody sends": ([[recv(1, source=1, tag=0)], [node(1, us=1)]], "rank 0"),
    "nobody receives": ([[send(1, to=1), recv(2, source=1, needs=[1])], [node(1, us=1)]], "rank 0"),
    "tags differ": ([[send(1, to=1, tag=1)], [recv(1, source=0, tag=2)]], "rank 1"),
    "both receive first": (
        [
            [recv(1, source=1, tag=0), send(2, to=1, tag=0, needs=[1])],
            [recv(1, source=0, tag=0), send(2, to=0, tag=0, needs=[1])],
        ],
        "rank 0",
    ),
    "one is missing": ([[all_reduce(1, 64)], [node(1, us=1)]], "rank"),
    "ring of three": (
        [
            [recv(1, source=2, tag=0), send(2, to=1, tag=0, needs=[1])],
            [recv(1, source=0, tag=0), send(2, to=2, tag=0, needs=[1])],
            [recv(1, source=1, tag=0), send(2, to=0, tag=0, needs=[1])],
        ],
        "waits",
    ),
}  # fmt: skip


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
@pytest.mark.parametrize(("nodes", "said"), WAITING.values(), ids=WAITING)
def test_a_replay_that_can_not_finish_is_code_3_and_names_who_waits(tmp_path, nodes, said, engine):
    ranks(tmp_path, *nodes)
    assert said in refused(call("replay", tmp_path, "--on", MACHINE, "--engine", engine), 3)


def test_a_hundred_waiting_ranks_are_still_forty_lines(tmp_path):
    ranks(tmp_path, *([recv(1, source=(rank + 1) % 100, tag=0)] for rank in range(100)))
    refused(call("replay", tmp_path, "--on", "dgx_h100_superpod_32"), 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "groups.json"),
        ("{", "groups.json"),
        ("[]", "groups.json"),
        ("{}", ""),
        ('{"0": [0, 9]}', "9"),
        ('{"0": [0, 0]}', "0"),
        ('{"0": "all"}', "groups.json"),
        ('{"0": [0, "1"]}', "groups.json"),
        ('{"1": [0, 1]}', ""),
    ],
)
def test_wrong_group_files_are_refused(tmp_path, text, said):
    ranks(tmp_path / "set", *[[all_reduce(1, 64, pg_name="0")] for _ in range(2)])
    (tmp_path / "groups.json").write_text(text)
    answer = replay(tmp_path / "set", "--groups", tmp_path / "groups.json")
    if answer.code or said:
        assert said in refused(answer, 2)


def test_more_ranks_than_gpus_names_both(tmp_path):
    ranks(tmp_path, *[[node(1, us=1)] for _ in range(9)])
    said = refused(replay(tmp_path), 2)
    assert "8 GPUs" in said
    assert "rank 8" in said


def test_a_missing_rank_in_the_middle_is_named(working):
    (working / "job.0.et").rename(working / "job.4.et")
    assert "rank" in refused(call("trace", "check", working), 2)
    refused(replay(working), 2, 3)


def test_strict_refuses_what_is_otherwise_repaired_and_said(tmp_path):
    ranks(tmp_path, [node(1, us=1, needs=[9])])
    assert "dangling" in refused(replay(tmp_path, "--strict"), 2)
    assert any("dangling" in note for note in json.loads(replay(tmp_path, "--json").out)["notes"])
