"""Random programs: the two engines agree to the tick on every record field."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapid_des.engines.compiled import CompiledSimulation, KernelRun
from rapid_des.engines.simpy.engine import Simulation
from rapid_des.errors import TraceError
from rapid_des.program.lowering import lower
from rapid_des.program.program import NONE, Timetable
from rapid_des.program.timetable import FULL_RATE
from tests.engines.agreement import RUN, assert_engines_agree, assert_same, outcome
from tests.engines.random_programs import machines, programs, traces, with_followed_tails
from tests.program.machines import machine, ring
from tests.program.tracing import Nodes, trace_set

STEPPED: dict[str, Callable[..., Any]] = {
    "simpy": partial(Simulation, ties=True),
    "compiled": lambda program, **options: CompiledSimulation(KernelRun(program, **options)),
}

FEW = settings(max_examples=8, deadline=None)


@FEW
@given(programs(priorities=False))
def test_streams_in_order(program):
    records = assert_engines_agree(program, trail=True)
    assert records.finished
    assert records.sent == records.received


@FEW
@given(programs(priorities=True))
def test_priorities_on_streams_and_links(program):
    assert_engines_agree(program, trail=True)


@FEW
@given(programs(unordered=True))
def test_streams_without_order_and_programs_that_can_not_finish(program):
    assert_engines_agree(program)


@FEW
@given(programs(unordered=True, timetables=True))
def test_rates_that_change(program):
    assert_engines_agree(program, trail=True)


@FEW
@given(programs(unordered=True, contention=True))
def test_visits_that_slow_each_other(program):
    assert_engines_agree(program, trail=True)


@FEW
@given(programs(unordered=True, timetables=True, contention=True))
def test_visits_that_slow_each_other_at_rates_that_change(program):
    assert_engines_agree(program)


@FEW
@given(programs(unordered=True, timetables=True, late=True))
def test_messages_that_come_late(program):
    assert_engines_agree(program, trail=True)


@FEW
@given(programs(unordered=True, fluid=True, late=True))
def test_messages_that_come_late_over_links_that_are_shared(program):
    assert_engines_agree(program)


@FEW
@given(programs(priorities=False, choosing=True))
def test_ways_chosen_by_load_r12(program):
    assert_engines_agree(program, trail=True)


@FEW
@given(programs(unordered=True, timetables=True, choosing=True))
def test_ways_chosen_by_load_at_rates_and_priorities_that_change_r12(program):
    assert_engines_agree(program, trail=True)


@FEW
@given(programs(unordered=True, timetables=True, pausing=True))
def test_links_that_nodes_stop_r13(program):
    assert_engines_agree(program, trail=True)


@FEW
@given(programs(unordered=True, timetables=True, slowing=True))
def test_rates_that_marks_cut_r14(program):
    assert_engines_agree(program, trail=True)


@FEW
@given(st.data())
def test_timetables_that_change_no_rate_change_nothing(data):
    where = data.draw(machines())
    program = lower(data.draw(traces(where.fabric.gpus)), where).program
    columns = (np.array([column]) for column in (0, FULL_RATE, 0))
    steady = with_followed_tails(program, where, dict.fromkeys(range(program.links), Timetable(*columns)))
    assert_same(outcome("simpy", steady, trail=True), outcome("simpy", program, trail=True))
    assert_engines_agree(steady, trail=True)


@FEW
@given(programs(unordered=True, fluid=True))
def test_links_that_are_shared(program):
    assert_engines_agree(program)


@FEW
@given(programs(timetables=True, fluid=True))
def test_links_that_are_shared_at_rates_that_change(program):
    assert_engines_agree(program)


@FEW
@given(st.data())
def test_collectives_that_overlap_on_streams_without_order(data):
    where = data.draw(machines())
    trace_set = data.draw(traces(where.fabric.gpus, unordered=True))
    assert_engines_agree(lower(trace_set, where, overlap=True).program, trail=True)


@FEW
@given(
    programs(unordered=True, timetables=True, contention=True),
    st.lists(st.integers(0, 2_000_000), max_size=5),
)
@pytest.mark.parametrize("engine", STEPPED)
def test_a_run_in_steps_is_the_same_run(engine, program, stops):
    whole = outcome(engine, program, trail=True)
    simulation = STEPPED[engine](program, trail=True)
    try:
        for stop in sorted(stops):
            simulation.run(stop)
            # the instant itself has happened, nothing later has
            assert simulation.records().start.max(initial=0) <= stop
        simulation.run()
    except TraceError as disagreement:
        assert str(disagreement) == whole
    else:
        assert_same(simulation.records(), whole)


@FEW
@given(programs(unordered=True, timetables=True), st.sampled_from(sorted(RUN)))
def test_twice_the_same_run_gives_the_same_bits(program, engine):
    one, other = outcome(engine, program, trail=True), outcome(engine, program, trail=True)
    assert isinstance(one, str) == isinstance(other, str)
    if isinstance(one, str):
        assert one == other
    else:
        assert_same(one, other)
        assert one.events == other.events


@pytest.mark.parametrize("engine", STEPPED)
def test_stopping_at_a_finish_includes_it(engine):
    nodes = Nodes()
    first = nodes.compute(700)
    nodes.compute(50, stream="other", after=first)
    simulation = STEPPED[engine](lower(trace_set([nodes]), machine(ring(2))).program)
    simulation.run(699)
    assert simulation.records().finish.tolist() == [NONE, NONE]
    simulation.run(700)
    assert simulation.records().finish.tolist() == [700, NONE]
    assert simulation.records().start.tolist() == [0, 700]
    simulation.run(700)
    simulation.run()
    assert simulation.records().finish.tolist() == [700, 750]
