"""The run clock against closed forms, and the conservation of its time."""

from math import exp
from statistics import fmean, stdev
from typing import Any

import pytest

from rapid_des.errors import CannotFinishError
from rapid_des.runs.checkpoints import best_interval
from rapid_des.runs.clock import replicate
from rapid_des.runs.failures import FailingParts, Failure, failures
from rapid_des.runs.laws import Exponential, Weibull
from rapid_des.runs.spares import Tier
from rapid_des.runs.stretch import CheckpointLevel, TrainingStretch
from rapid_des.runs.times import parse_time
from rapid_des.runs.treatment import RunPlan, Treatment

S = 10**12
"""A second in picoseconds."""


def plan(*, every=0, stall=0, write=0, last=None, horizon=None, nodes=0, tiers=(), restart="0 s", **times):
    stated: dict[str, Any] = {
        name: parse_time(times.get(name, "0 s")) for name in ("detection", "diagnosis", "repair")
    }
    return RunPlan(
        TrainingStretch(10 * S, (CheckpointLevel(every, stall * S, write * S),), last),
        horizon,
        (Treatment("part", **stated, nodes=nodes),),
        {"start": parse_time(restart)},
        tuple(Tier(count, parse_time(start)) for count, start in tiers),
    )


def at(*seconds):
    return iter([Failure(int(second * S), 0, part, 1, (0.5,) * 16) for part, second in enumerate(seconds)])


def seconds(replication):
    return {cause: time / S for cause, time in replication.times.items() if time}


def walls(run, mean_s, count, law=None):
    fleet = FailingParts("part", 1, law or Exponential(), mean_s * 1e6)
    found = [replicate(run, failures([fleet], seed=0, replication=n), n) for n in range(count)]
    assert all(sum(each.times.values()) == each.wall for each in found)
    return [each.wall / S for each in found]


@pytest.mark.parametrize("every", [0, 1, 3, 7])
@pytest.mark.parametrize("last", [None, 20, 21])
def test_a_stretch_of_training_is_what_stepping_through_it_gives(every, last):
    level = CheckpointLevel(every, 4)
    course = TrainingStretch(10, (level,), last)
    for done in range(8):
        ends, moment = [(0, "step", done)], 0  # when each step and each stall ends
        for step in range(done + 1, (last or 40) + 1):
            moment += 10
            ends.append((moment, "step", step))
            if every and (step % every == 0 or step == last):
                moment += 4
                ends.append((moment, "stall", step))
        for elapsed in range(moment + 1):
            travelled = course.after(done, elapsed)
            passed = [end for end in ends if end[0] <= elapsed]
            assert travelled.steps == max(step for _, kind, step in passed if kind == "step") - done
            assert travelled.steps * 10 + travelled.partial + travelled.stalled == elapsed
            if last is None or elapsed < moment:
                saved = [step for _, kind, step in passed if kind == "stall" and step % max(every, 1) == 0]
                assert course.saved(done, elapsed, level) == max(saved, default=0)
        assert course.time_to(done, last or 40) == moment


def test_without_failures_a_run_is_its_steps_and_checkpoints():
    found = replicate(plan(every=6, stall=3, last=20), iter(()), 0)
    assert seconds(found) == {"steps": 200, "checkpoints": 12}  # after steps 6, 12, 18 and 20
    assert (found.steps, found.wall) == (20, 212 * S)
    assert replicate(plan(last=20), iter(()), 0).wall == 200 * S


def test_a_failure_costs_what_no_checkpoint_holds_and_the_restart():
    run = plan(every=6, stall=3, last=20, detection="1 s", diagnosis="2 s", restart="4 s")
    found = replicate(run, at(100), 0)
    # a checkpoint at 63 s holds 6 steps; 37 s after it the work of 37 s is lost
    assert seconds(found) == {
        "steps": 200, "checkpoints": 12, "rework": 37, "detection": 1, "diagnosis": 2, "restart_start": 4
    }  # fmt: skip
    (incident,) = found.incidents
    assert sum(incident.times.values()) == 44 * S


def test_an_asynchronous_checkpoint_counts_once_it_is_written():
    written, not_yet = (replicate(plan(every=6, write=20, last=20), at(time), 0) for time in (81, 79))
    assert seconds(written)["rework"] == 21
    assert seconds(not_yet)["rework"] == 79


def test_a_failure_during_a_restart_begins_it_again_and_one_while_the_job_stands_still_joins():
    run = plan(every=6, last=6, detection="5 s", restart="10 s")
    found = replicate(run, at(30, 32, 40), 0)
    assert seconds(found) == {"steps": 60, "rework": 30, "detection": 10, "restart_start": 15}
    assert [bool(incident.times) for incident in found.incidents] == [True, False, True]


def test_spares_are_taken_hot_first_and_then_a_run_waits_for_a_repair():
    run = plan(every=1, last=30, nodes=1, repair="100 s", tiers=[(1, "0 s"), (1, "7 s")])
    found = replicate(run, at(10, 20, 30), 0)
    # the hot spare at once, the warm one after 7 s; the first repaired node is back at 110 s
    assert seconds(found)["spare_wait"] == 7 + (110 - 30)
    assert found.most_out == 3


def test_a_horizon_stops_the_run_in_whatever_it_does():
    run = plan(every=6, stall=3, horizon=102 * S, detection="5 s")
    found = replicate(run, at(100), 0)
    assert found.wall == 102 * S == sum(found.times.values())
    assert seconds(found)["detection"] == 2
    assert seconds(replicate(plan(horizon=25 * S), iter(()), 0)) == {"steps": 25}


def test_exponential_failures_take_as_long_as_daly_says():
    # a piece of W = 600 s with a checkpoint of C = 30 s, restarts of R = 120 s that failures end, and
    # D = 60 s without failures: E = e^(R/M) (M + D) (e^((W+C)/M) - 1)
    mean, pieces = 3600, 100
    expected = exp(120 / mean) * (mean + 60) * (exp(630 / mean) - 1)
    found = walls(plan(every=60, stall=30, last=60 * pieces, detection="60 s", restart="120 s"), mean, 300)
    off = abs(fmean(found) / pieces - expected)
    assert off < 3 * stdev(found) / 300**0.5 / pieces
    assert off < 0.005 * expected


def test_renewals_of_a_weibull_law_have_its_mean():
    # in 1e6 s with repairs at once a part of a mean of 1e4 s renews 100 times (and the half of cv² - 1)
    fleet = FailingParts("part", 10, Weibull(shape=0.7), 1e10)
    run = plan(every=1, horizon=1_000_000 * S)
    counts = [len(replicate(run, failures([fleet], seed=0, replication=n), n).incidents) for n in range(10)]
    assert fmean(counts) / 10 == pytest.approx(100 + (2.139 - 1) / 2, rel=0.02)


def test_the_best_interval_is_youngs_where_failures_are_rare():
    assert best_interval(60, 1 / 1e8) == pytest.approx((2 * 60 * 1e8) ** 0.5, rel=0.01)


def test_the_best_interval_has_the_least_wall_time():
    mean, stall = 3600, 60
    best = round(best_interval(stall, 1 / mean) / 10)
    taken = {
        every: fmean(walls(plan(every=every, stall=stall, last=12_000), mean, 20))
        for every in (best // 3, best, best * 3)
    }
    assert min(taken, key=taken.get) == best


def test_twice_the_mean_time_between_failures_is_no_worse():
    run = plan(every=60, stall=30, last=3000, detection="60 s", restart="120 s")
    often, seldom = (walls(run, mean, 30) for mean in (3600, 7200))
    assert fmean(seldom) < fmean(often)


def test_a_run_that_never_progresses_ends_with_the_figure():
    fleet = FailingParts("part", 1, Exponential(), 60e6)
    with pytest.raises(CannotFinishError, match=r"does not progress: 1,000 failures in a row, .* apart"):
        replicate(plan(every=600, last=6000), failures([fleet], seed=0, replication=0), 0)
