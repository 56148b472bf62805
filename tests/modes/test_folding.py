"""Folding saves work and changes nothing: equal to the tick with the whole program."""

from collections import Counter

import pytest
from hypothesis import given, settings

from rapid_des.modes.execution import EngineChoice, execute
from tests.engines.agreement import RUN, assert_same
from tests.modes.symmetric_programs import symmetric_programs

happened: Counter[str] = Counter()


@settings(max_examples=150, deadline=None)
@given(symmetric_programs())
def test_folded_and_whole_programs_are_equal_to_the_tick(program):
    whole = RUN["compiled"](program)
    done = execute(program, EngineChoice("compiled"))
    assert_same(done.records, whole, ties=False)
    happened["folded" if done.folded > 1 else "tied" if whole.ties else "whole"] += 1


def test_random_programs_did_fold():
    # the property above is worth nothing if no program folds; about half of them do
    if not happened:
        pytest.skip("runs after the property")
    assert happened["folded"] >= 20, happened
    assert happened["tied"] + happened["whole"] >= 5, happened
