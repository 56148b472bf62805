"""Random programs: the two engines agree to the tick on every record field."""

from hypothesis import given, settings

from rapid_des.replay.program import NONE
from tests.replay.agreement import assert_engines_agree
from tests.replay.random_programs import programs

FEW = settings(max_examples=60, deadline=None)


@FEW
@given(programs(priorities=False))
def test_streams_in_order(program):
    records = assert_engines_agree(program, trail=True)
    assert (records.finish != NONE).all()
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
