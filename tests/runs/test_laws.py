"""Laws of times between failures, and the order of a run's failures."""

from itertools import islice

import numpy as np
import pytest

from rapid_des.runs.failures import FailingParts, failures
from rapid_des.runs.laws import Bathtub, Empirical, Exponential, Log, LognormalLaw, Weibull
from rapid_des.runs.times import parse_time
from rapid_des.units import LongDuration

MEAN = 1e9
LAWS = [Exponential(), Weibull(shape=0.7), Weibull(shape=3.0), LognormalLaw(sigma=0.8)]
BATHTUB = Bathtub(early=0.5, within=LongDuration(10**7), wear_out=LongDuration(10**9))


@pytest.mark.parametrize("law", [*LAWS, BATHTUB], ids=repr)
def test_the_age_at_a_hazard_has_that_hazard(law):
    hazards = np.array([0.01, 0.3, 1.0, 4.0])
    assert [law.hazard(age, MEAN) for age in law.ages(hazards, MEAN)] == pytest.approx(
        hazards.tolist(), rel=1e-6
    )


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_ages_have_the_stated_mean(law):
    hazards = np.random.default_rng(0).standard_exponential(200_000)
    assert law.ages(hazards, MEAN).mean() == pytest.approx(MEAN, rel=0.02)


def test_observed_times_are_equally_likely():
    law = Empirical(times=tuple(LongDuration(time) for time in (30, 10, 20)))
    ages = law.ages(np.random.default_rng(0).standard_exponential(30_000), 1.0)
    assert [(ages == time).mean() for time in (10, 20, 30)] == pytest.approx([1 / 3] * 3, abs=0.01)
    assert law.mean == 20


def first(count, *fleets, seed=0, replication=0):
    return list(islice(failures(fleets, seed=seed, replication=replication), count))


def test_failures_come_in_the_order_of_time_at_the_rate_of_all_parts():
    found = first(
        4000, FailingParts("a", 100, Exponential(), 1e12), FailingParts("b", 300, Exponential(), 1e12)
    )
    times = [failure.at for failure in found]
    assert times == sorted(times)
    # 400 parts of a mean of 1e12 us: one failure in 2.5e9 us; 4,000 of them have an error of 1.6 %
    assert times[-1] / 4000 == pytest.approx(2.5e15, rel=0.05)
    assert sum(failure.fleet for failure in found) / 4000 == pytest.approx(0.75, abs=0.03)


def test_a_class_has_the_same_failures_beside_others_and_another_replication_has_not():
    a, b = FailingParts("a", 50, Weibull(shape=0.8), 1e10), FailingParts("b", 9, Exponential(), 1e10)
    alone = [(failure.at, failure.part) for failure in first(90, a)]
    beside = [(failure.at, failure.part) for failure in first(90, b, a) if failure.fleet == 1]
    assert beside == alone[: len(beside)]
    assert alone != [(failure.at, failure.part) for failure in first(90, a, replication=1)]


def test_failures_follow_one_another_in_bursts():
    alone = FailingParts("gpu", 50, Exponential(), 1e12)
    burst = FailingParts("gpu", 50, Exponential(), 1e12, 0, 0.5, parse_time("1 min"))
    found = first(4000, burst)
    starts = [failure.at for failure in found if failure.ordinal]
    assert starts == [failure.at for failure in first(len(starts), alone)]
    assert len(found) / len(starts) == pytest.approx(2, rel=0.05)
    times = {failure.at for failure in found}
    assert all(failure.at - 60 * 10**12 in times for failure in found if not failure.ordinal)


def test_twice_the_mean_time_doubles_every_time():
    once, twice = (first(200, FailingParts("a", 20, Exponential(), mean)) for mean in (1e10, 2e10))
    assert [failure.at for failure in twice] == pytest.approx([2 * failure.at for failure in once], rel=1e-9)


def test_logged_failures_come_at_their_times_and_end():
    law = Log(at=(LongDuration(5), LongDuration(2)), parts=(1, 0))
    assert [(failure.at, failure.part) for failure in first(9, FailingParts("a", 2, law, 1.0))] == [
        (2_000_000, 0),
        (5_000_000, 1),
    ]


def test_old_parts_of_a_falling_rate_fail_less():
    young, old = (first(100, FailingParts("a", 1000, Weibull(shape=0.5), 1e12, age)) for age in (0, 10**12))
    assert old[-1].at > 2 * young[-1].at
