"""What builders add to what is stated."""

import numpy as np

from rapid_des.program.builders import make_rank_program, make_template
from rapid_des.program.program import NONE, TaskEdges, VisitKind, WorkLevel, edges, joined


def test_a_template_awaits_all_edges_to_its_tasks_and_members():
    # task 0 at member 0, then task 1 at member 1; member 1 is done with task 1, member 0 with both
    template = make_template(
        2,
        (np.array([0, 1]), np.array([0, 0])),
        (np.array([0, 1]), np.array([0, 1]), np.array([1, 0])),
        edges=TaskEdges(np.array([1, 0, 1]), np.array([3, 1, 2])),
        arrivals=TaskEdges(np.array([0, 1, 0, 1]), np.array([0, 1, 2, 3])),
    )
    assert template.need.tolist() == [1, 2]
    assert template.member_need.tolist() == [2, 2]
    assert template.edge_starts.tolist() == [0, 1, 3]
    assert template.edge_target.tolist() == [1, 2, 3]  # by task, ascending


def test_edges_of_any_shapes_are_joined_with_their_lags_and_anchors():
    # tasks 0 and 1 each release 2 and 3 after 7; task 2 starts member 0's end at once, by its injection
    both = joined(
        [edges([[0], [1]], [2, 3], 7), TaskEdges(np.array([3]), np.array([4])), edges(2, 4, at_start=True)]
    )
    starts, target, lag, at_start = both.by_origin(4)
    assert starts.tolist() == [0, 2, 4, 5, 6]
    assert target.tolist() == [2, 3, 2, 3, 4, 4]
    assert lag.tolist() == [7, 7, 7, 7, 0, 0]
    assert at_start.tolist() == [False, False, False, False, True, False]


def test_a_task_that_counts_needs_fewer_edges_than_it_has():
    nobody = np.zeros(0, np.int64)
    template = make_template(
        2,
        (np.zeros(1, np.int64), np.zeros(1, np.int64)),
        (np.array([NONE]), nobody, nobody),
        edges=edges(0, [1, 2]),
        arrivals=edges([0, 1], 0),
        need=np.ones(1, np.int64),
    )
    assert template.need.tolist() == [1]
    assert template.member_need.tolist() == [1, 1]


def test_visits_have_no_server_group_or_node_unless_stated():
    kinds = np.array([VisitKind.COMPUTE, VisitKind.JOIN])
    stated = {"kind": kinds, "server": np.array([0, NONE]), "work": np.array([5, 0])}
    program = make_rank_program(
        stated, TaskEdges(np.array([0]), np.array([1])), server_capacity=np.array([1])
    )
    assert program.slot.tolist() == program.node.tolist() == program.template.tolist() == [NONE, NONE]
    assert program.need.tolist() == [0, 1]
    assert program.server_level.tolist() == [WorkLevel.STREAM]
