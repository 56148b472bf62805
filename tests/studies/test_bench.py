"""The speed cases give their stored answers, and a wrong one is said to be wrong."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from rapid_des.cli.main import cli
from rapid_des.errors import InputError, RapidDesError
from rapid_des.studies.bench import (
    Measurement,
    chosen_cases,
    growth,
    require_growth,
    require_right,
)
from rapid_des.studies.bench_cases import CASES, STATED_GROWTH
from rapid_des.values import replace

SMALL = [
    "ring256_all_reduce_64M",
    "ring32_ring32_all_reduce_1G",
    "irregular_64",
    "llama70b_64_flattened",
    "llama70b_64_hierarchical",
]


def measured(case, seconds):
    return Measurement(case, True, 1, 1000, 1000, seconds, seconds, seconds, 100.0)


@pytest.mark.parametrize("name", SMALL)
def test_a_case_gives_the_recorded_finish_time(name):
    outcome = CASES[name].run()
    assert outcome.finish == CASES[name].finish


def test_a_ring_moves_every_chunk_once_around_twice():
    # 1,024 members, 2 · 1,023 rounds of one message to a neighbour
    assert CASES["ring1024_all_reduce_1G"].run().hops == 1024 * 2 * 1023


def test_large_cases_run_only_when_asked_for():
    assert "llama405b_16384_hierarchical" not in chosen_cases([], large=False)
    assert "llama405b_16384_hierarchical" in chosen_cases([], large=True)
    assert chosen_cases(["llama405b_16384_hierarchical"], large=False) == ["llama405b_16384_hierarchical"]


def test_an_unknown_case_is_refused_by_name():
    with pytest.raises(InputError, match="'ring7' is not one of"):
        chosen_cases(["ring7"], large=False)


def test_a_wrong_answer_is_an_error_however_fast():
    one = measured("irregular_64", 1.0)
    require_right([one])
    with pytest.raises(RapidDesError, match="wrong answer in irregular_64"):
        require_right([replace(one, right=False)])


def test_growth_is_the_slope_of_processor_time_over_size():
    # time grows 16-fold while the ranks grow 4-fold: size^2; a rank costs 16/4 = 4 times as much
    rows = [measured("irregular_64", 1.0), measured("irregular_256", 16.0)]
    (found,) = growth(rows)
    assert found.exponent == pytest.approx(2.0)
    assert found.cost_ratio == pytest.approx(4.0)
    with pytest.raises(RapidDesError, match="irregular grows with exponent 2.00"):
        require_growth(rows)
    require_growth([measured("irregular_64", 1.0), measured("irregular_256", 4.0)])


def test_every_ladder_states_its_growth_and_every_case_of_it_its_size():
    assert {case.ladder for case in CASES.values() if case.ladder} == set(STATED_GROWTH)
    assert all(case.size > 0 for case in CASES.values() if case.ladder)


def test_a_cost_is_told_in_yardsticks_and_against_the_stored_one():
    row = replace(measured("irregular_64", 3.0), yardstick_s=2.0)
    assert row.cost == 1.5
    assert row.against_stored == pytest.approx(1.5 / CASES["irregular_64"].cost)


def test_the_command_prints_a_table_with_every_answer():
    result = CliRunner().invoke(cli, ["bench", "irregular_64", "irregular_256"])
    assert result.exit_code == 0, result.output
    assert result.output.count("right") == 2
    assert "grows as size^" in result.output
