"""The speed cases give their stored answers, and a wrong one is said to be wrong."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from rapid_des.cli.main import cli
from rapid_des.errors import InputError, RapidDesError
from rapid_des.studies.bench import CASES, Measurement, chosen_cases, growth, measure, require_right
from rapid_des.values import replace

SMALL = [
    "ring256_all_reduce_64M",
    "ring32_ring32_all_reduce_1G",
    "irregular_64",
    "llama70b_64_flattened",
    "llama70b_64_hierarchical",
]


def measured(case, hops, wall_s):
    return Measurement(case, True, 1, hops, hops, wall_s, wall_s, 100.0)


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
    one = measure("irregular_64")
    require_right([one])
    with pytest.raises(RapidDesError, match="wrong answer in irregular_64"):
        require_right([replace(one, right=False)])


def test_growth_is_the_slope_of_time_over_hops():
    # time quadruples while hops double: hops^2; a hop costs 4/2 = 2 times as much
    rows = [measured("irregular_64", 1000, 1.0), measured("irregular_256", 2000, 4.0)]
    (found,) = growth(rows)
    assert found.exponent == pytest.approx(2.0)
    assert found.cost_ratio == pytest.approx(2.0)


def test_the_command_prints_a_table_with_every_answer():
    result = CliRunner().invoke(cli, ["bench", "irregular_64"])
    assert result.exit_code == 0, result.output
    assert "irregular_64" in result.output
    assert result.output.rstrip().endswith("right")
