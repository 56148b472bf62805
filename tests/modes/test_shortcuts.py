"""Lonely collectives from memory change nothing: equal to the tick with simulating each of them."""

import pytest
from hypothesis import given, settings

from rapid_des.engines import compiled
from rapid_des.engines.simpy import engine as simpy_engine
from rapid_des.errors import TraceError
from rapid_des.modes import shortcuts
from rapid_des.program.lowering import lower
from tests.engines.agreement import RUN, assert_same
from tests.engines.random_programs import programs
from tests.modes.symmetric_programs import symmetric_programs
from tests.program.machines import machine as machine_of
from tests.program.machines import ring
from tests.program.tracing import ALL_REDUCE, Nodes, trace_set


def remembered(program, engine="compiled"):
    run = RUN[engine]
    return shortcuts.play(program, run, lambda small: run(small, trail=True))


@settings(max_examples=100, deadline=None)
@given(symmetric_programs())
def test_symmetric_programs_from_memory_are_equal_to_the_tick(program):
    assert_same(remembered(program)[0], compiled.run(program))


@settings(max_examples=100, deadline=None)
@given(programs(unordered=True))
def test_random_programs_from_memory_are_equal_to_the_tick(program):
    try:
        whole = compiled.run(program)
    except TraceError:
        return
    assert_same(remembered(program)[0], whole)


def _steps(late=0):
    """Four ranks on a ring of their own: compute and all-reduce, three times; rank 3 may be late once."""
    ranks = []
    for rank in range(4):
        nodes, done = Nodes(), ()
        for step in range(3):
            extra = late if rank == 3 and step == 1 else 0
            done = (nodes.compute(1_000_000 + extra, after=done),)
            done = (nodes.collective(ALL_REDUCE, 4096, after=done),)
        ranks.append(nodes)
    return lower(trace_set(ranks), machine_of(ring(4))).program


@pytest.mark.parametrize("engine", RUN)
def test_collectives_that_all_reach_together_are_simulated_once(engine):
    program = _steps()
    records, hops = remembered(program, engine)
    # 3 all-reduces x 4 ranks x 2 (4 - 1) steps of one hop
    assert hops == 3 * 4 * 6
    assert_same(records, simpy_engine.run(program))


@pytest.mark.parametrize("engine", RUN)
def test_a_late_rank_has_its_group_simulated(engine):
    program = _steps(late=500_000)
    records, hops = remembered(program, engine)
    assert hops == 0
    assert_same(records, simpy_engine.run(program))


def test_a_group_whose_links_others_use_is_simulated():
    # ranks 0..3 and the pair 0, 1 share the link from 0 to 1
    nodes = [Nodes() for _ in range(4)]
    for rank, own in enumerate(nodes):
        own.collective(ALL_REDUCE, 4096)
        if rank < 2:
            own.collective(ALL_REDUCE, 4096, "pair", stream="tp")
    traces = trace_set(nodes, groups={"world": (0, 1, 2, 3), "pair": (0, 1)})
    program = lower(traces, machine_of(ring(4))).program
    records, hops = remembered(program)
    assert hops == 0
    assert_same(records, compiled.run(program))
