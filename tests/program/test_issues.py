"""What the host issues: when kernels and collectives of a trace may start, and which edges say so."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapid_des.program.lowering import lower
from rapid_des.simulation import replay
from tests.program.machines import machine, ring
from tests.program.tracing import ALL_REDUCE, Nodes, same_everywhere, trace_set

ENGINES = ["simpy", "compiled"]
PAIR = machine(ring(2))


def chain(works, each):
    """Kernels in a row on one stream, the k-th issued after k + 1 times `each`."""
    nodes = Nodes()
    host = nodes.host(each * len(works))
    for number, work in enumerate(works, start=1):
        nodes.issue(nodes.compute(work), host, each * number)
    return nodes


def kept(nodes):
    """How many edges from starts the program of a rank has."""
    (program,) = lower(trace_set([nodes]), PAIR).program.programs
    return int(np.broadcast_to(program.edge_at_start, program.edge_target.shape).sum())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("work", "each"), [(1_000, 4_000), (4_000, 1_000), (2_000, 2_000)])
def test_kernels_in_a_row_take_the_longer_of_issuing_and_running(engine, work, each):
    # n issues and the last kernel, or the first issue and n kernels
    assert replay(trace_set([chain([work] * 10, each)]), PAIR, engine=engine).step_time == max(
        10 * each + work, each + 10 * work
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(1, 9))
def test_leaving_out_edges_that_follow_from_others_changes_nothing(works, each):
    done = 0
    for number, work in enumerate(works, start=1):
        done = max(done, each * number) + work
    nodes = chain(works, each)
    run = replay(trace_set([nodes]), PAIR, engine="simpy")
    # the host itself ends when it has issued all
    assert run.step_time == max(done, each * len(works))
    assert kept(nodes) <= len(works)


def test_where_the_host_runs_ahead_one_edge_is_left_and_where_it_is_late_all_are():
    assert (kept(chain([4_000] * 10, 1_000)), kept(chain([1_000] * 10, 4_000))) == (1, 10)


def test_an_issue_that_follows_from_a_dependency_on_another_stream_needs_no_edge():
    nodes = Nodes()
    host = nodes.host(20)
    kernel = nodes.issue(nodes.compute(50), host, 10)
    nodes.issue(nodes.compute(5, stream="other", after=kernel), host, 20)
    # the second cannot start before 10 + 50
    assert kept(nodes) == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_a_host_that_waits_for_its_gpu_issues_again_when_that_is_done(engine):
    nodes = Nodes()
    first = nodes.host(30)
    slow = nodes.issue(nodes.compute(500), first, 30)
    second = nodes.host(20, after=slow)
    nodes.issue(nodes.compute(7), second, 20)
    # 30 + 500, then 20 to issue, then 7
    assert replay(trace_set([nodes]), PAIR, engine=engine).step_time == 557


@pytest.mark.parametrize("engine", ENGINES)
def test_all_members_of_a_collective_wait_for_the_host_that_issues_last(engine):
    programs = []
    for late in (10_000, 90_000):
        nodes = Nodes()
        host = nodes.host(late)
        nodes.issue(nodes.collective(ALL_REDUCE, 1000), host, late)
        programs.append(nodes)
    alone = Nodes()
    alone.collective(ALL_REDUCE, 1000)
    undisturbed = replay(same_everywhere(alone, 2), PAIR, engine=engine).step_time
    assert replay(trace_set(programs), PAIR, engine=engine).step_time == 90_000 + undisturbed


def test_an_issue_at_once_still_takes_a_tick():
    nodes = Nodes()
    host = nodes.host(0)
    nodes.issue(nodes.compute(5), host, 0)
    assert replay(trace_set([nodes]), PAIR).step_time == 6  # R1: from a start, a tick


def test_time_for_want_of_an_issue_counts_as_the_hosts():
    parts = replay(trace_set([chain([1_000] * 10, 4_000)]), PAIR).breakdown
    assert (parts["compute"], parts["host"], parts["idle"]) == (10_000, 31_000, 0)
