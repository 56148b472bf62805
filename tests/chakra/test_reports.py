"""What is counted in a trace, repaired and wrong with it."""

import pytest

from rapid_des.chakra import (
    check,
    rank_statistics,
    read_set,
    repair_lines,
    require_sound,
    statistics_json,
)
from rapid_des.chakra.dialects import ReadOptions
from rapid_des.chakra.reader import read_report
from rapid_des.chakra.statistics import depths
from rapid_des.errors import TraceError
from tests.chakra.writing import all_reduce, node, one_rank, ranks, recv, send

DIAMOND = [
    node(1, "start", us=1),
    node(2, "short", us=2, needs=[1]),
    node(3, "long", us=9, needs=[1]),
    node(4, "end", us=1, needs=[2, 3]),
]


def test_depth_and_counts_of_a_diamond_and_its_communication(tmp_path):
    folder = ranks(
        tmp_path, [*DIAMOND, all_reduce(5, 100, needs=[4]), send(6, to=1, size=7)], [recv(1, 0, size=7)]
    )
    first, second = rank_statistics(read_set(folder))
    assert (first.nodes, first.dependencies, first.depth) == (6, 5, 4)  # start, short, end, all-reduce
    assert first.compute_time == 13_000_000  # 1 + 2 + 9 + 1 us
    assert (first.collectives, first.collective_bytes, first.sent_bytes) == (
        {"all_reduce": 1},
        {"all_reduce": 100},
        7,
    )
    assert (second.received_bytes, second.depth) == (7, 1)
    total = statistics_json((first, second))["total"]
    assert (total["ranks"], total["nodes"], total["depth"]) == (2, 7, 4)


def test_depth_follows_dependencies_that_point_forward(tmp_path):
    nodes = read_set(one_rank(tmp_path, node(1, needs=[2]), node(2, needs=[3]), node(3))).ranks[0].nodes
    assert depths(nodes).tolist() == [3, 2, 1]


def test_every_repair_can_be_listed(tmp_path):
    report = read_report(one_rank(tmp_path, node(1, us=1, needs=[1, 7])), ReadOptions())
    assert repair_lines(report) == [
        "rank 0: dropped dangling dependency: node 1 needs 7",
        "rank 0: dropped self dependency: node 1 needs 1",
    ]


def test_a_sound_set_passes_and_another_says_why_not(tmp_path):
    require_sound(read_set(one_rank(tmp_path / "good", node(1, us=1))))
    with pytest.raises(TraceError, match="unmatched message: from rank 0 to rank 0"):
        require_sound(read_set(one_rank(tmp_path / "bad", send(1, to=0))))
    assert [finding.kind for finding in check(tmp_path / "bad")] == ["unmatched message"]
