"""Laws on drawn jobs, machines and faults: a few cases of each here, `python -m validation.laws` for many."""

from collections import Counter

import pytest

from validation.laws.campaign import attempt, campaign, check
from validation.laws.checks import LAWS
from validation.laws.draws import draw

SEEDS = (64, 71, 72, 76, 77)
"""Draws that can be simulated; each law holds in at least one of them, and does not apply to some."""


@pytest.fixture(scope="module")
def trials():
    return [attempt(draw(seed), Counter()) for seed in SEEDS]


@pytest.mark.parametrize("law", LAWS)
def test_laws_hold(trials, law):
    counts: Counter[tuple[str, str]] = Counter()
    assert [check(law, trial, counts) for trial in trials] == [None] * len(SEEDS)
    assert counts[law, "held"], counts


@pytest.mark.parametrize("seed", [63, 70152, 70860, 90068, 90206, 300793, 710064])
def test_bounds_hold_where_a_campaign_once_found_a_step_outside(seed):
    trial = attempt(draw(seed), Counter())
    assert trial is not None
    assert check("modes", trial, Counter()) is None


def test_cases_are_those_of_their_seed():
    assert [draw(seed).as_json() for seed in range(5)] == [draw(seed).as_json() for seed in range(5)]
    assert len({str(draw(seed).machine["fabric"]) for seed in range(50)}) > 30


def test_a_law_that_is_broken_is_told_with_its_case(monkeypatch):
    monkeypatch.setitem(LAWS, "names", lambda trial: f"{trial.job.gpus} GPUs")
    counts: Counter[tuple[str, str]] = Counter()
    (found,) = campaign(1, 3, ["names"], counts)
    assert found.law == "names" and found.problem.endswith("GPUs") and found.case.seed >= 3
    assert counts["names", "broken"] == 1
